"""Sets of bins as GPUs have them: lists of the few bins that a set has, or lacks (`kernels/bin_lists.cuh`).

A list has how many bins there are, then these, increasing; it has as many numbers as the longest, and one more where
that makes them even. In place of the last bin on the left, `BY_SET` says that the listed bins go right, `ALL_BUT` that
all others do: then the last one listed is a bin of no code, behind all codes.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.row_order import ALL_BUT, BITS, BY_SET
from daskboost.dtypes import Bool, Int32, UInt8, UInt32


def list_width(most_bins: int) -> int:
    """Return the numbers of a list of at most so many bins: even, so that two are one of 64 bits."""
    return most_bins + 1 + (most_bins + 1) % 2


def lists_of_bins(split_bin: Int32, right_bins: UInt32, splits: Bool, n_bins: Int32) -> tuple[Int32, Int32]:
    """Return what nodes have as their last bin on the left, and their lists.

    Parameters
    ----------
    split_bin : int32 array, shape (nodes,)
        The last bin on the left, `BY_SET` of those that split by sets.
    right_bins : uint32 array, shape (nodes, words)
        A bit for each bin that goes right, of nodes that split by a set; bins that it has no bits for go left.
    splits : bool array, shape (nodes,)
        Whether a node splits; what others have is kept.
    n_bins : int32 array, shape (nodes,)
        Bins of the feature that a node splits, the last one of no code.

    Returns
    -------
    split_bin : int32 array, shape (nodes,)
        `BY_SET` or `ALL_BUT` in place of `BY_SET`, whichever has the shorter list.
    lists : int32 array, shape (nodes, width)
        Of nodes that do not split by a set, anything; of width 0 where none does.
    """
    by_set = splits & (split_bin == BY_SET)
    if not by_set.any():
        return split_bin, np.zeros((len(split_bin), 0), np.int32)
    words = np.ascontiguousarray(right_bins).astype("<u4")
    bits: UInt8 = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    n_right = bits.sum(axis=1, dtype=np.int64)
    lacks = n_right > n_bins - n_right
    kinds = np.where(by_set, np.where(lacks, ALL_BUT, BY_SET), split_bin).astype(np.int32)
    bins = [
        np.setdiff1d(np.arange(n), right, assume_unique=True) if is_short else right
        for n, right, is_short in zip(n_bins[by_set], map(np.flatnonzero, bits[by_set]), lacks[by_set], strict=True)
    ]
    lists = np.zeros((len(bits), list_width(max(map(len, bins)))), np.int32)
    for node, own in zip(np.flatnonzero(by_set).tolist(), bins, strict=True):
        lists[node, 0], lists[node, 1 : len(own) + 1] = len(own), own
    return kinds, lists


def codes_of_list(kind: int, own: Int32) -> Int32:
    """Return the codes that go right, increasing."""
    bins = own[1 : own[0] + 1]
    if kind == BY_SET:
        return bins
    goes = np.ones(bins[-1], np.bool_)
    goes[bins[:-1]] = False
    return np.flatnonzero(goes).astype(np.int32)


def bins_of_lists(kinds: Int32, lists: Int32, by_set: Bool, words: int) -> UInt32:
    """Return a bit for each bin that goes right; uint32, shape (nodes, words), zeros of nodes without a set."""
    found = np.zeros((len(kinds), words * BITS), np.uint8)
    for node in np.flatnonzero(by_set).tolist():
        found[node, codes_of_list(kinds[node], lists[node])] = 1
    return np.packbits(found, axis=1, bitorder="little").view("<u4").astype(np.uint32)
