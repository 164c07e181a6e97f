"""Gradients become integers: global scale, rounding, row sampling.

Large data: a row's pair travels as one int32: g (signed, 16 bits) above h (15 bits, never negative). Rounding is
stochastic, so that sums stay unbiased where single gradients are far below one quantum (nearest rounding would wipe
out the many tiny gradients of an imbalanced data set); the random bits are a hash of the global row id.

Small data (`SMALL_ROWS` in `cluster/rounding.py`): one int64, int32 each, of which the scale uses as many bits as keep
the sums of all rows within int32. So fine a quantum needs no chance to be unbiased: rounding is to nearest, and comes
before the weight multiplies. A row of weight 3 so gives exactly the sums of three equal rows of weight 1, hence the
same trees: weights count rows, to the last bit, as scikit-learn's checks ask.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.dtypes import Float32, Pairs, UInt32

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def row_bits(key: np.uint64, row: np.uint64) -> np.uint64:
    """64 random bits of a row: `hashing.draws` for one id."""
    z = np.uint64(key + row * _GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def quantize_gradients(
    g: Float32,
    h: Float32,
    weight: Float32 | None,
    scale_g: float,
    scale_h: float,
    scale_w: float,
    round_key: np.uint64,
    sample_key: np.uint64,
    sample_below: np.uint64,
    first_row: int,
    begin: int,
    end: int,
    order: UInt32,
    pairs: Pairs,
) -> tuple[int, int, int]:
    """Quantize rows `[begin, end)` of one output into `order[begin:]`, `pairs[begin:]`.

    `g`, `h` : float32, shape (rows,), any stride. `weight` : float32, shape (rows,), for small data; None for large,
    whose `g` and `h` contain it. `sample_below` : a row is kept if its 32 sampling bits are below.
    Returns the number of kept rows and their integer sums of g and h.
    """
    kept = begin
    sum_g = np.int64(0)
    sum_h = np.int64(0)
    unit = 1.0 / 4294967296.0
    everyone = sample_below >= np.uint64(4294967296)
    for row in range(begin, end):
        global_row = np.uint64(first_row + row)
        if not everyone and (row_bits(sample_key, global_row) >> np.uint64(32)) >= sample_below:
            continue
        if weight is None:
            bits = row_bits(round_key, global_row)
            high = np.float64(bits >> np.uint64(32)) * unit
            low = np.float64(bits & np.uint64(0xFFFFFFFF)) * unit
            qg = np.int64(np.floor(np.float64(g[row]) * scale_g + high))
            qh = np.int64(np.floor(np.float64(h[row]) * scale_h + low))
            pairs[kept] = (qg << np.int64(16)) | qh
        else:
            times = np.float64(weight[row]) * scale_w
            qg = np.int64(np.rint(np.rint(np.float64(g[row]) * scale_g) * times))
            qh = np.int64(np.rint(np.rint(np.float64(h[row]) * scale_h) * times))
            pairs[kept] = (qg << np.int64(32)) | qh
        order[kept] = row
        sum_g += qg
        sum_h += qh
        kept += 1
    return kept - begin, int(sum_g), int(sum_h)


@njit(cache=True, nogil=True)
def largest(values: Float32, begin: int, end: int) -> float:
    """Largest absolute value of `values[begin:end]`; NaN if any value is NaN."""
    top = np.float32(0)
    for i in range(begin, end):
        value = abs(values[i])
        if not value <= top:  # also catches NaN
            if np.isnan(value):
                return np.nan
            top = value
    return float(top)
