"""Counting residuals by the bits of their sortable keys: one round of a distributed radix selection."""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.dtypes import Float32, Int64, UInt32


@njit(inline="always")
def sortable_key(bits: np.uint32) -> np.uint32:
    """Order-preserving key of a float32's bits."""
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@njit(cache=True, nogil=True)
def count_residuals(
    label: Float32, margin: Float32, weight: Float32, weight_scale: float, rows: UInt32, prefix: np.uint32,
    known_bits: int, next_bits: int, counts: Int64,
) -> None:  # fmt: skip
    """Add the integer weights of `rows` whose residual's key starts with `prefix` to `counts`, by the next digit.

    `weight` : float32, shape (rows,) or (0,) for all ones. `counts` : int64, shape (2**next_bits,).
    """
    one = np.empty(1, np.float32)
    bits = one.view(np.uint32)
    weighted = len(weight) > 0
    shift = np.uint32(32 - known_bits - next_bits)
    mask = np.uint32((1 << next_bits) - 1)
    for i in range(len(rows)):
        row = rows[i]
        one[0] = (label[row] - margin[row]) + np.float32(0)  # -0 becomes 0
        key = sortable_key(bits[0])
        if known_bits > 0 and (key >> np.uint32(32 - known_bits)) != prefix:
            continue
        amount = np.int64(np.rint(np.float64(weight[row]) * weight_scale)) if weighted else np.int64(1)
        counts[np.int64((key >> shift) & mask)] += amount
