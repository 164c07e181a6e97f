"""Counting residuals by the bits of their sortable keys: one round of a distributed radix selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Float32, Int32, Int64, UInt32


@dataclass(frozen=True)
class ResidualQuery:
    """What is asked of the residuals `label - margin` of leaves: how many, by weight, share a prefix of their keys and
    have each next digit."""

    leaves: Int32
    """Nodes of the current tree, or (-1,) for all rows."""
    prefixes: UInt32
    """The leading bits found so far, one row per quantile; uint32, shape (leaves,)."""
    known_bits: int
    next_bits: int
    weight_scale: float
    """Power of two that makes weights integers."""


class Residuals(NamedTuple):
    """What a chunk's residuals are computed from."""

    label: Float32
    margin: Float32
    """Shape (rows,), any stride."""
    weight: Float32
    """Shape (rows,), or (0,) for ones."""
    weight_scale: float
    """Power of two that makes weights integers."""


@njit(inline="always")
def sortable_key(bits: np.uint32) -> np.uint32:
    """Order-preserving key of a float32's bits."""
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@njit(cache=True, nogil=True)
def count_residuals(
    residuals: Residuals, rows: UInt32, prefix: np.uint32, known_bits: int, next_bits: int, counts: Int64
) -> None:
    """Add the integer weights of `rows` whose residual's key starts with `prefix` to `counts`, by the next digit.

    `counts` : int64, shape (2**next_bits,).
    """
    label, margin, weight, weight_scale = residuals.label, residuals.margin, residuals.weight, residuals.weight_scale
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
