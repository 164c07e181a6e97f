"""Row loops of the sketch: present values become order-preserving keys, feature by feature.

A key is a float32's bits with the sign bit flipped (positive values) or all bits flipped (negative ones), so keys
compare as their values do; both zeros share the key of +0.0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.dtypes import Int32, Int64, UInt32

_ROW_BLOCK = 64  # rows per transposed block: 64 rows of 28 features are 7 KB and stay in the first-level cache


@njit(cache=True, nogil=True)
def _key(word: int) -> int:
    """The order-preserving key of a float32's bits; both zeros get the key of +0.0."""
    if word == 0x80000000:
        word = 0
    return (0xFFFFFFFF ^ word) if word >= 0x80000000 else (word | 0x80000000)


@njit(cache=True, nogil=True)
def _is_nan(word: int) -> bool:
    return (word & 0x7FFFFFFF) > 0x7F800000


@njit(cache=True, nogil=True)
def column_keys(
    words: UInt32, weights: Int64, columns: Int64, keys: UInt32, key_weights: Int64, ends: Int64, missing: Int64
) -> None:
    """Copy the present values of some columns, as keys, into one row of the output per column.

    Parameters
    ----------
    words : uint32 array, shape (n, features)
        The bits of float32 values.
    weights : int64 array, shape (n,) or (0,)
        Integer weights, or empty for ones. Rows of weight zero are left out.
    columns : int64 array, shape (g,)
    keys : uint32 array, shape (g * n,), changed
        Column `c` starts at `c * n`.
    key_weights : int64 array, shape (g * n,) or (0,), changed
        The weights beside the keys, where there are weights.
    ends : int64 array, shape (g,), changed
        One past the last key of each column.
    missing : int64 array, shape (g,), changed
        Increased by the number of NaNs, rows of weight zero included.
    """
    n = words.shape[0]
    weighted = len(weights) > 0
    for c in range(len(columns)):
        ends[c] = c * n
    for start in range(0, n, _ROW_BLOCK):
        stop = min(n, start + _ROW_BLOCK)
        for c in range(len(columns)):
            column = columns[c]
            end = ends[c]
            for i in range(start, stop):
                word = int(words[i, column])
                absent = int(_is_nan(word))
                missing[c] += absent
                # Written always, kept by advancing: a branch on NaN would be mispredicted.
                keys[end] = np.uint32(_key(word))
                if weighted:
                    key_weights[end] = weights[i]
                    end += (1 - absent) * int(weights[i] > 0)
                else:
                    end += 1 - absent
            ends[c] = end


@njit(cache=True, nogil=True)
def entry_keys(
    indptr: Int64,
    indices: Int32,
    words: UInt32,
    weights: Int64,
    starts: Int64,
    keys: UInt32,
    key_weights: Int64,
    ends: Int64,
    stored: Int64,
) -> None:
    """Sort the entries of CSR rows by feature, as keys.

    Parameters
    ----------
    indptr : int64 array, shape (n + 1,)
        Row bounds, relative to the other arrays.
    indices, words : int32, uint32 arrays, shape (entries,)
    weights : int64 array, shape (n,) or (0,)
    starts : int64 array, shape (features,)
        Where the keys of each feature begin; negative for features to pass over.
    keys, key_weights : uint32 array, shape (keys,), and int64 array, shape (keys,) or (0,), changed
    ends : int64 array, shape (features,), changed
        One past the last key of each feature.
    stored : int64 array, shape (features,), changed
        Increased by the entries that are not NaN, rows of weight zero included.
    """
    weighted = len(weights) > 0
    ends[:] = starts
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            word = int(words[e])
            feature = indices[e]
            if starts[feature] < 0 or _is_nan(word):
                continue
            stored[feature] += 1
            if weighted:
                if weights[i] <= 0:
                    continue
                key_weights[ends[feature]] = weights[i]
            keys[ends[feature]] = np.uint32(_key(word))
            ends[feature] += 1


@njit(cache=True, nogil=True)
def select_keys(
    keys: UInt32,
    key_weights: Int64,
    starts: Int64,
    ends: Int64,
    series: Int64,
    interval_offsets: Int64,
    lower: UInt32,
    upper: UInt32,
) -> None:
    """Keep, in place, only the keys inside some intervals.

    Parameters
    ----------
    keys, key_weights, starts, ends
        As :func:`column_keys` leaves them; `ends` is lowered.
    series : int64 array, shape (g,)
        Which intervals belong to each run of keys.
    interval_offsets, lower, upper : int64 array, uint32 arrays
        Intervals `lower <= key <= upper`, sorted and disjoint, of all series.
    """
    weighted = len(key_weights) > 0
    for s in range(len(starts)):
        first, last = interval_offsets[series[s]], interval_offsets[series[s] + 1]
        kept = starts[s]
        for i in range(starts[s], ends[s]):
            key = keys[i]
            low, high = first, last
            while low < high:  # the first interval whose upper end is not below the key
                middle = (low + high) >> 1
                if upper[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            if low < last and lower[low] <= key:
                keys[kept] = key
                if weighted:
                    key_weights[kept] = key_weights[i]
                kept += 1
        ends[s] = kept
