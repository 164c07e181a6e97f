"""Drawing rows by the norm of their gradients, see `devices/sampling.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.devices.cpu.gradients import global_id, row_bits
from daskboost.devices.sampling import CELL_BITS, FIRST_CELL, N_CELLS, NORM_LAMBDA
from daskboost.dtypes import Float32, Float64, Int64, UInt32, UInt64

_SHIFT = np.int64(52 - CELL_BITS)


@njit(cache=True, nogil=True)
def draw_share(
    key: np.uint64, below: np.uint64, first_row: int | np.int64 | UInt64, begin: int, end: int, rows: UInt32
) -> int:
    """Keep the rows of `[begin, end)` whose draw, of 32 bits, is less than `below`; return how many they are.

    `first_row` : as for `quantize_gradients`. `rows`, shape (end - begin,), gets them at its start.
    """
    kept = 0
    for row in range(begin, end):
        rows[kept] = row
        kept += int((row_bits(key, global_id(first_row, row)) >> np.uint64(32)) < below)
    return kept


@njit(cache=True, nogil=True)
def draw_rows(
    g: Float32, h: Float32, key: np.uint64, threshold: float, first_row: int | np.int64 | UInt64, begin: int, end: int,
    counts: Int64, rows: Int64, norms: Float64, draws: Float64,
) -> int:  # fmt: skip
    """Count the norms of rows `[begin, end)` and keep those with draw < norm / threshold; how many that are.

    `g`, `h` : float32, shape (rows, outputs). `first_row` : as for `quantize_gradients`. Norms that are 0 are not
    counted, and such rows are never kept; those that are not finite become infinite, so that they always are, and
    whoever looks for the range finds their gradients. `rows`, `norms`, `draws` get those of the kept rows, at their
    start.
    """
    one = np.empty(1, np.float64)
    bits = one.view(np.int64)
    kept = 0
    for row in range(begin, end):
        square = 0.0
        for k in range(g.shape[1]):
            own_g, own_h = np.float64(g[row, k]), np.float64(h[row, k])
            square += own_g * own_g + NORM_LAMBDA * (own_h * own_h)
        norm = np.sqrt(square)
        if not norm < np.inf:
            norm = np.inf
        if norm == 0.0:
            continue
        one[0] = norm
        counts[min(max((bits[0] >> _SHIFT) - FIRST_CELL, 0), N_CELLS - 1)] += 1
        draw = np.float64(row_bits(key, global_id(first_row, row)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
        if draw < norm / threshold:
            rows[kept], norms[kept], draws[kept] = row, norm, draw
            kept += 1
    return kept
