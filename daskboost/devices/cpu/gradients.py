"""Gradients become integers: global scale, rounding, row sampling.

Large data: a row's pair travels as one int32: g (signed, 16 bits) above h (15 bits, never negative). Rounding is
stochastic, so that sums stay unbiased where single gradients are far below one quantum (nearest rounding would wipe
out the many tiny gradients of an imbalanced data set); the random bits are a hash of the global row id.

Small data (`SMALL_ROWS` in `devices/plan.py`): one int64, int32 each, of which the scale uses as many bits as keep
the sums of all rows within int32. So fine a quantum needs no chance to be unbiased: rounding is to nearest, and comes
before the weight multiplies. A row of weight 3 so gives exactly the sums of three equal rows of weight 1, hence the
same trees: weights count rows, to the last bit, as scikit-learn's checks ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from daskboost.dtypes import Float32, Float64, Int32, Int64, Pairs, UInt32, UInt64

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


def global_id(first_row: int | np.int64 | UInt64, row: int) -> np.uint64:
    """The global id of a row: `first_row + row`, or `first_row[row]` where ids are not consecutive."""
    raise NotImplementedError("for compiled code only")


@overload(global_id, inline="always", strict=False)  # strict also compares type hints
def _typed_global_id(first_row: types.Type, row: types.Type) -> Callable[[Any, int], np.uint64]:
    if isinstance(first_row, types.Array):
        return lambda first_row, row: np.uint64(first_row[row])
    return lambda first_row, row: np.uint64(first_row + row)


@njit(nogil=True)
def _quantized(
    g: float, h: float, weight: float | None, row: np.uint64, scale_g: float, scale_h: float, scale_w: float,
    round_key: np.uint64,
) -> tuple[np.int64, np.int64]:  # fmt: skip
    """The integers of one gradient and hessian; `row` is the global id."""
    if weight is None:
        unit = 1.0 / 4294967296.0
        bits = row_bits(round_key, row)
        high = np.float64(bits >> np.uint64(32)) * unit
        low = np.float64(bits & np.uint64(0xFFFFFFFF)) * unit
        return np.int64(np.floor(np.float64(g) * scale_g + high)), np.int64(np.floor(np.float64(h) * scale_h + low))
    times = np.float64(weight) * scale_w
    return (
        np.int64(np.rint(np.rint(np.float64(g) * scale_g) * times)),
        np.int64(np.rint(np.rint(np.float64(h) * scale_h) * times)),
    )


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
    first_row: int | np.int64 | UInt64,
    begin: int,
    end: int,
    order: UInt32,
    pairs: Pairs,
) -> tuple[int, int, int]:
    """Quantize rows `[begin, end)` of one output into `order[begin:]`, `pairs[begin:]`.

    `g`, `h` : float32, shape (rows,), any stride. `weight` : float32, shape (rows,), for small data; None for large,
    whose `g` and `h` contain it. `first_row` : global id that row 0 would have, or the ids of all rows.
    `sample_below` : a row is kept if its 32 sampling bits are below. Returns the number of kept rows and their
    integer sums of g and h.
    """
    kept = begin
    sum_g = np.int64(0)
    sum_h = np.int64(0)
    everyone = sample_below >= np.uint64(4294967296)
    for row in range(begin, end):
        global_row = global_id(first_row, row)
        if not everyone and (row_bits(sample_key, global_row) >> np.uint64(32)) >= sample_below:
            continue
        if weight is None:
            qg, qh = _quantized(g[row], h[row], None, global_row, scale_g, scale_h, scale_w, round_key)
            pairs[kept] = (qg << np.int64(16)) | qh
        else:
            qg, qh = _quantized(g[row], h[row], weight[row], global_row, scale_g, scale_h, scale_w, round_key)
            pairs[kept] = (qg << np.int64(32)) | qh
        order[kept] = row
        sum_g += qg
        sum_h += qh
        kept += 1
    return kept - begin, int(sum_g), int(sum_h)


@njit(cache=True, nogil=True)
def quantize_vectors(
    g: Float32, h: Float32, weight: Float32 | None, scale_g: Float64, scale_h: Float64, scale_w: float,
    round_keys: UInt64, sample_key: np.uint64, sample_below: np.uint64, first_row: int | np.int64 | UInt64,
    begin: int, end: int, order: UInt32, pairs: Pairs, sums: Int64,
) -> int:  # fmt: skip
    """`quantize_gradients` of several columns: `g`, `h`, `pairs` of shape (rows, columns), scales and keys per column.

    Pairs stay in the order of rows: a row's are read together, so that moving them with `order` would cost more than
    looking them up. Returns the number of kept rows; adds their sums to `sums`, int64 of g and h of each column.
    """
    kept = begin
    everyone = sample_below >= np.uint64(4294967296)
    for row in range(begin, end):
        global_row = global_id(first_row, row)
        if not everyone and (row_bits(sample_key, global_row) >> np.uint64(32)) >= sample_below:
            continue
        for k in range(len(scale_g)):
            if weight is None:
                qg, qh = _quantized(
                    g[row, k], h[row, k], None, global_row, scale_g[k], scale_h[k], scale_w, round_keys[k]
                )
                pairs[row, k] = (qg << np.int64(16)) | qh
            else:
                qg, qh = _quantized(
                    g[row, k], h[row, k], weight[row], global_row, scale_g[k], scale_h[k], scale_w, round_keys[k]
                )
                pairs[row, k] = (qg << np.int64(32)) | qh
            sums[2 * k] += qg
            sums[2 * k + 1] += qh
        order[kept] = row
        kept += 1
    return kept - begin


@njit(cache=True, nogil=True)
def add_to_leaves(
    g: Float32, h: Float32, weight: Float32 | None, scale_g: Float64, scale_h: Float64, scale_w: float,
    round_keys: UInt64, first_row: int | np.int64 | UInt64, begin: int, end: int, leaf: Int32, sums: Int64,
) -> None:  # fmt: skip
    """Add the integers that `quantize_vectors` would make of rows `[begin, end)` to `sums[leaf[row]]`.

    `leaf` : int32, shape (rows,), -1 for rows that did not grow the tree. `sums` : int64, shape (leaves, 2 * columns).
    """
    for row in range(begin, end):
        if leaf[row] < 0:
            continue
        into = sums[leaf[row]]
        global_row = global_id(first_row, row)
        for k in range(len(scale_g)):
            if weight is None:
                qg, qh = _quantized(
                    g[row, k], h[row, k], None, global_row, scale_g[k], scale_h[k], scale_w, round_keys[k]
                )
            else:
                qg, qh = _quantized(
                    g[row, k], h[row, k], weight[row], global_row, scale_g[k], scale_h[k], scale_w, round_keys[k]
                )
            into[2 * k] += qg
            into[2 * k + 1] += qh


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
