"""Row loops of the sketch: present values become order-preserving keys, feature by feature.

A key is a float32's bits with the sign bit flipped (positive values) or all bits flipped (negative ones), so keys
compare as their values do; both zeros share the key of +0.0.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.key_counts import KeyRuns
from daskboost.dtypes import Csr, Int64, UInt32

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
def column_keys(words: UInt32, weights: Int64, columns: Int64, runs: KeyRuns, missing: Int64) -> None:
    """Copy the present values of some columns, as keys, into one run per column.

    Parameters
    ----------
    words : uint32 array, shape (n, features)
        The bits of float32 values.
    weights : int64 array, shape (n,) or (0,)
        Integer weights, or empty for ones. Rows of weight zero are left out.
    columns : int64 array, shape (g,)
    runs : KeyRuns
        With room for `n` keys of each column; its keys, their weights and the ends of the runs are changed.
    missing : int64 array, shape (g,), changed
        Increased by the number of NaNs, rows of weight zero included.
    """
    n = words.shape[0]
    weighted = len(weights) > 0
    keys, key_weights, starts, ends = runs.keys, runs.weights, runs.starts, runs.ends
    for c in range(len(columns)):
        ends[c] = starts[c]
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
def entry_keys(entries: Csr, weights: Int64, runs: KeyRuns, stored: Int64) -> None:
    """Sort the entries of CSR rows by feature, as keys, into one run per feature.

    Parameters
    ----------
    entries : Csr
        The values as bits; row bounds relative to the other arrays.
    weights : int64 array, shape (n,) or (0,)
        As in `column_keys`.
    runs : KeyRuns
        Changed as in `column_keys`; features whose runs begin at negative places are passed over.
    stored : int64 array, shape (features,), changed
        Increased by the entries that are not NaN, rows of weight zero included.
    """
    indptr, indices, words = entries.indptr, entries.indices, entries.values
    keys, key_weights, starts, ends = runs.keys, runs.weights, runs.starts, runs.ends
    weighted = len(weights) > 0
    for feature in range(len(starts)):
        ends[feature] = starts[feature]
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
def select_keys(runs: KeyRuns, series: Int64, interval_offsets: Int64, lower: UInt32, upper: UInt32) -> None:
    """Keep, in place, only the keys inside some intervals.

    Parameters
    ----------
    runs : KeyRuns
        As :func:`column_keys` leaves them; their ends are lowered.
    series : int64 array, shape (g,)
        Which intervals belong to each run of keys.
    interval_offsets, lower, upper : int64 array, uint32 arrays
        Intervals `lower <= key <= upper`, sorted and disjoint, of all series.
    """
    keys, key_weights, starts, ends = runs.keys, runs.weights, runs.starts, runs.ends
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
