"""Bytes that packed chunks take on their way to a GPU, there and, page-locked, of its host: parts of the plan of
`gpu_plans.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from daskboost.devices.budget.cpu_memory import sample_rows
from daskboost.devices.budget.plan import FitSize
from daskboost.devices.budget.set_size import SetSize, n_read_rooms
from daskboost.devices.gpu.rows.samples import RoomSize
from daskboost.devices.gpu.runtime.ring import N_BUFFERS
from daskboost.devices.sampling import most_candidates, most_drawn

# Bytes that rows drawn by their gradients take on a GPU: parts of the plan of `gpu_plans.py`.

STATE_BYTES = 8 + 4 + 4
"""Bytes of a row in the columns of `GpuCandidates`: its id, label and weight; `OUTPUT_BYTES` for each output."""
OUTPUT_BYTES = 3 * 4
"""g, h and margin."""
CANDIDATE_BYTES = 8 + 8 + 4
"""What candidates have beside that: norm and draw, and a number where rows are chosen."""
MORE_ENTRIES = 1.05
"""Drawn rows may have so many times the entries of others, and more at the price of a copy."""


def drawn_rooms(size: FitSize) -> tuple[RoomSize, RoomSize]:
    """What candidates and the sample are expected to be. Of several engines, that with larger gradients than others has
    more."""
    share, n_rows = size.share, size.train.n_rows
    found = most_candidates(share, n_rows), most_drawn(share, n_rows)
    per_row = MORE_ENTRIES * size.train.entries_per_row
    candidates, sample = (RoomSize(n, math.ceil(per_row * n)) for n in found)
    return candidates, sample


def sample_room(size: FitSize) -> RoomSize:
    """What a sample of certified trees is expected to be."""
    n_rows = sample_rows(size.share, size.train.n_rows)
    return RoomSize(n_rows, math.ceil(MORE_ENTRIES * size.train.entries_per_row * n_rows))


def room_bytes(rows: SetSize, room: RoomSize) -> int:
    """Return the bytes of the bins in `RowRoom`."""
    return rows.unpacked_bytes(room.n_rows, room.n_entries)


def state_bytes(size: FitSize) -> int:
    """Return the bytes of what goes with the rows of both rooms."""
    candidates, sample = drawn_rooms(size)
    per_row = STATE_BYTES + OUTPUT_BYTES * size.n_outputs
    return (CANDIDATE_BYTES + per_row) * candidates.n_rows + per_row * sample.n_rows


def drawing_bytes(size: FitSize, n_rows: int) -> tuple[int, int]:
    """Return the bytes of the numbers of a group's rows of the next sample, `n_rows`, and of temporary arrays while
    these are taken: places of CSR entries."""
    return 4 * n_rows, size.train.places_bytes(n_rows)


def taking_bytes(size: FitSize, turn_rows: int) -> int:
    """Return the bytes of temporary arrays while rows are drawn and taken, `turn_rows` at a time: places of CSR
    entries, and what splits are scored by."""
    candidates, sample = drawn_rooms(size)
    entries = size.train.places_bytes(max(sample.n_rows, min(turn_rows, candidates.n_rows)))
    return max(entries, 4 * turn_rows if size.refits and size.has_weight else 0)


POOL_GROUP_BYTES = 16 * 512
"""What CuPy's pool rounds up for a group of streamed chunks: its order, segments, pairs, labels, margins and ids."""


def streaming_parts(size: FitSize) -> dict[str, Any]:
    """Parts of a plan."""
    sets = (size.train, *size.evals)
    return {
        "ring_bytes": ring_bytes(sets),
        "planes_bytes": sum(rows.planes_bytes(size.n_slots) for rows in sets),
        "stream_bytes": size.train.group_bytes,
        "host_pinned_bytes": host_pinned_bytes(sets),
    }


def ring_bytes(sets: Sequence[SetSize]) -> int:
    """Return the bytes of `Ring`, which all sets that stream take in turn."""
    return N_BUFFERS * max((group.n_bytes for rows in sets for group in rows.groups), default=0)


def loading_bytes(rows: SetSize, n_slots: int) -> int:
    """Return the bytes of `GpuDevice.load`, beside the view: a ring of its own, and tables."""
    largest = max((chunk.n_bytes for chunk in rows.loaded), default=0)
    return N_BUFFERS * largest + rows.tables_bytes(n_slots) if largest else 0


def host_pinned_bytes(sets: Sequence[SetSize]) -> int:
    """Return the bytes of the host's memory, at most: what a set keeps there for streaming is taken after what it loads
    was freed."""
    held = most = 0
    for rows in sets:
        loading = n_read_rooms([1] * len(rows.loaded)) * max((chunk.n_bytes for chunk in rows.loaded), default=0)
        most = max(most, held + loading)
        held += streaming_pinned_bytes(rows)
    return max(most, held)


def streaming_pinned_bytes(rows: SetSize) -> int:
    """Return the bytes of `ChunkStore.pin` and of `StreamedChunks` of a set that streams."""
    n_rooms = n_read_rooms([group.n_files for group in rows.groups])
    return rows.streamed_bytes(on_disk=False) + n_rooms * max((group.file_bytes for group in rows.groups), default=0)


def n_groups(size: FitSize) -> int:
    """Groups of streamed chunks of all sets."""
    return sum(len(rows.groups) for rows in (size.train, *size.evals))
