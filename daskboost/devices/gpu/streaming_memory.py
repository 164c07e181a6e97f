"""Bytes that streaming chunks take on a GPU and, page-locked, of its host: parts of the plan of `plans.py`."""

from __future__ import annotations

from typing import Any

from daskboost.devices.gpu.feature_groups import row_columns
from daskboost.devices.gpu.ring import N_BUFFERS
from daskboost.devices.plan import FitSize, SetSize
from daskboost.devices.stream_groups import n_read_rooms

POOL_GROUP_BYTES = 16 * 512
"""What CuPy's pool rounds up for a group of streamed chunks: its order, segments, pairs, labels, margins and ids."""
UNIT_BYTES = 24
"""Of a symbol in `StreamedDense`'s tables, at most."""


def streaming_parts(size: FitSize) -> dict[str, Any]:
    """Parts of a plan."""
    sets = (size.train, *size.evals)
    return {
        "ring_bytes": ring_bytes(size),
        "planes_bytes": sum(planes_bytes(rows, size.n_slots) for rows in sets),
        "stream_bytes": size.train.stream_bytes or 0,
        "host_pinned_bytes": sum(pinned_bytes(rows) for rows in sets),
    }


def ring_bytes(size: FitSize) -> int:
    """Of `Ring`, which all sets take in turn."""
    return N_BUFFERS * max((group.n_bytes for rows in (size.train, *size.evals) for group in rows.groups), default=0)


def planes_bytes(rows: SetSize, n_slots: int) -> int:
    """Of `StreamedDense` or `StreamedSparse`: the largest group, and tables of symbols' places or bins' slots."""
    if not rows.streamed:
        return 0
    tables = UNIT_BYTES * row_columns(rows.n_features, rows.symbol_bytes) if rows.symbol_bytes else 4 * n_slots
    most_rows, most_entries = (max(group[k] for group in rows.groups) for k in (0, 1))
    return unpacked_bytes(rows, most_rows, most_entries) + tables


def unpacked_bytes(rows: SetSize, n_rows: int, n_entries: int) -> int:
    """Of so many rows as views have them."""
    if rows.symbol_bytes:
        return n_rows * rows.symbol_bytes * row_columns(rows.n_features, rows.symbol_bytes)
    return 8 * (n_rows + 1) + 4 * n_entries


def pinned_bytes(rows: SetSize) -> int:
    """Of the host's memory: `ChunkStore.pin` and `StreamedChunks`."""
    n_rooms = n_read_rooms([group.n_files for group in rows.groups])
    kept = sum(chunk.n_bytes for chunk in rows.streamed if not chunk.on_disk)
    return kept + n_rooms * max((group.file_bytes for group in rows.groups), default=0)


def n_groups(size: FitSize) -> int:
    """Groups of streamed chunks of all sets."""
    return sum(len(rows.groups) for rows in (size.train, *size.evals))
