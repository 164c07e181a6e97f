"""A chunk's bins as compiled row loops read them, in either encoding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Int32, Int64, Symbols


class DenseBins(NamedTuple):
    """A matrix of symbols; that of (row, feature) is `symbols[row * row_stride + feature * column_stride]`."""

    symbols: Symbols
    """uint8 or uint16, shape (rows * features,); the bin, or the feature's number of bins for a missing value."""
    row_stride: int
    column_stride: int
    offsets: Int64
    """First slot of each feature in a histogram, shape (features + 1,)."""
    n_bins: Int32
    """Per feature, without the missing slot."""
    blocks: Int64
    """Bounds of ranges of features whose slots fit a scratch array."""
    scratch_entries: int
    """Sums in the largest of these ranges."""


class SparseBins(NamedTuple):
    """CSR rows whose entries are histogram slots, in increasing order; what is missing has no entry."""

    indptr: Int64
    slots: Int32
    offsets: Int64
    """First slot of each feature, shape (features + 1,)."""


@njit(inline="always")
def sparse_symbol(indptr: Int64, slots: Int32, row: np.uint64, low: int, high: int) -> int:
    """Return the bin of the feature that owns slots `[low, high)` in a CSR row, or -1 if the row lacks it."""
    left, end = indptr[row], indptr[row + np.uint64(1)]
    right = end
    while left < right:
        middle = (left + right) >> 1
        if slots[middle] < low:
            left = middle + 1
        else:
            right = middle
    if left < end and slots[left] < high:
        return int(slots[left] - low)
    return -1
