"""Bytes that packed chunks take on their way to a GPU, there and, page-locked, of its host: parts of the plan of
`plans.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daskboost.devices.gpu.ring import N_BUFFERS
from daskboost.devices.plan import FitSize
from daskboost.devices.set_size import SetSize
from daskboost.devices.stream_groups import n_read_rooms

POOL_GROUP_BYTES = 16 * 512
"""What CuPy's pool rounds up for a group of streamed chunks: its order, segments, pairs, labels, margins and ids."""


def streaming_parts(size: FitSize) -> dict[str, Any]:
    """Parts of a plan."""
    sets = (size.train, *size.evals)
    return {
        "ring_bytes": ring_bytes(size),
        "planes_bytes": sum(rows.planes_bytes(size.n_slots) for rows in sets),
        "stream_bytes": size.train.group_bytes,
        "host_pinned_bytes": host_pinned_bytes(sets),
    }


def ring_bytes(size: FitSize) -> int:
    """Return the bytes of `Ring`, which all sets that stream take in turn."""
    return N_BUFFERS * max((group.n_bytes for rows in (size.train, *size.evals) for group in rows.groups), default=0)


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
