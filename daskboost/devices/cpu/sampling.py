"""Drawing rows by the norm of their gradients, see `devices/sampling.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.gradients import RowDraw, RowRange, global_id, row_bits
from daskboost.devices.sampling import CELL_BITS, FIRST_CELL, N_CELLS, NORM_LAMBDA
from daskboost.dtypes import Float32, Float64, Int64, UInt32

_SHIFT = np.int64(52 - CELL_BITS)


class RowNorms(NamedTuple):
    """Norms of a range's rows, counted, and those of the rows that are kept; room for all rows of the range."""

    counts: Int64
    """The norms by their cells, shape (N_CELLS,); rows of norm 0 are left out."""
    rows: Int64
    """Kept rows, at the start, as of all that follow."""
    norms: Float64
    draws: Float64

    @classmethod
    def empty(cls, n_rows: int) -> RowNorms:
        """Room for so many rows, of which none is counted."""
        return cls(np.zeros(N_CELLS, np.int64), np.empty(n_rows, np.int64), np.empty(n_rows), np.empty(n_rows))


@njit(cache=True, nogil=True)
def draw_share(draw: RowDraw, rows: RowRange, drawn: UInt32) -> int:
    """Write the rows of a range that are drawn to the start of `drawn`, shape (rows of the range,); return how many
    they are."""
    first_row, kept = rows.first_row, 0
    for row in range(rows.begin, rows.end):
        drawn[kept] = row
        kept += int((row_bits(draw.key, global_id(first_row, row)) >> np.uint64(32)) < draw.below)
    return kept


@njit(cache=True, nogil=True)
def draw_rows(g: Float32, h: Float32, key: np.uint64, threshold: float, rows: RowRange, found: RowNorms) -> int:
    """Count the norms of a range's rows and keep those with draw < norm / threshold; return how many that are.

    `g`, `h` : float32, shape (rows, outputs). Rows whose norms are 0 are never kept; norms that are not finite become
    infinite, so that their rows always are, and whoever looks for the range finds their gradients.
    """
    counts, first_row = found.counts, rows.first_row
    one = np.empty(1, np.float64)
    bits = one.view(np.int64)
    kept = 0
    for row in range(rows.begin, rows.end):
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
            found.rows[kept], found.norms[kept], found.draws[kept] = row, norm, draw
            kept += 1
    return kept
