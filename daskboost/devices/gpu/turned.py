"""A copy of narrow rows in the order in which passes over all rows add them (`kernels/turned.cuh`).

Roots of trees read it: their rows take as many bytes as they have columns, and no instructions to be put in order.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.feature_groups import MOST_COLUMNS, room_bytes, skewed_shape
from daskboost.devices.gpu.runtime import DeviceArray, Runtime

THREADS = 256
"""Threads of a block, as in `kernels/turn.cu`."""
BLOCKS = 8
"""Blocks of a multiprocessor at the same time."""
TILE_ROWS = 32
"""A warp's."""
LEAST_ROWS = 1 << 20
"""With fewer, passes take as long to begin and to end as to read rows."""


def turned_columns(n_features: int, symbol_bytes: int, most_slots: int, shared_bytes: int | None) -> int:
    """Columns of the copy; 0 where there is none: of rows that leave few columns idle, or most, or one of whose
    features has so many slots that a block has no room for the kernel that reads the copy."""
    most_idle = MOST_COLUMNS // 2
    if symbol_bytes != 1 or n_features <= most_idle:
        return 0
    found = skewed_shape(n_features, most_slots, room_bytes(shared_bytes))
    return 0 if found is None else found[0]


def turned_bytes(n_rows: int, n_features: int, symbol_bytes: int, most_slots: int, shared_bytes: int | None) -> int:
    """Return the bytes of the copy, where it pays."""
    if n_rows < LEAST_ROWS:
        return 0
    return -(-n_rows // TILE_ROWS) * TILE_ROWS * turned_columns(n_features, symbol_bytes, most_slots, shared_bytes)


def turn(runtime: Runtime, planes: DeviceArray, columns: int) -> DeviceArray:
    """The copy of rows of MOST_COLUMNS symbols, of which `columns` are features' or zero.

    `planes` : uint8, shape (planes, rows, MOST_COLUMNS). Returns uint8, shape (planes, bytes of a plane).
    """
    n_planes, n_rows, _ = planes.shape
    tiles, words = -(-n_rows // TILE_ROWS), columns // 4
    turned = runtime.xp.empty((n_planes, tiles, words, TILE_ROWS), np.uint32)
    blocks = max(1, min(-(-tiles * TILE_ROWS // THREADS), runtime.multiprocessors * BLOCKS))
    for rows, copy in zip(planes, turned, strict=True):
        runtime.kernel("turn", "turn_rows")(blocks, THREADS, rows.view(np.uint32), n_rows, words, copy)
    found: DeviceArray = turned.view(np.uint8).reshape(n_planes, -1)
    return found
