"""Row loops of the sketch: present values become order-preserving keys, feature by feature.

A key is a float32's bits with the sign bit flipped (positive values) or all bits flipped (negative ones), so keys
compare as their values do; both zeros share the key of +0.0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.dtypes import Csr, Int64, UInt8, UInt32, UInt64

# Loops of key counts: sorted keys are counted in as many cells as the capacity allows, and counts are merged.
#
# A cell at resolution r is the set of keys that share their top r bits, a range of keys, so the cells of sorted keys
# are runs. Keys come sorted because NumPy's vectorised sort takes 7 ns a key, less than radix descents or hash tables.

KEY_BITS = 32


class KeyRuns(NamedTuple):
    """Keys of several series, that of series `s` at `keys[starts[s]:ends[s]]`, with gaps between them."""

    keys: UInt32
    weights: Int64
    """What each key counts, shape (keys,), or (keys, columns) to be counted; empty for ones."""
    starts: Int64
    ends: Int64


class CellTable(NamedTuple):
    """Cells of several series, in which keys are counted."""

    bits: UInt8
    """Resolution of each series; 32 means that a cell is a single key."""
    offsets: Int64
    """Where the cells of each series lie, in increasing order, shape (series + 1,)."""
    lower: UInt32
    """The least key seen in each cell."""
    upper: UInt32
    """The greatest."""
    sums: Int64
    """Shape (cells, columns)."""


@njit(cache=True, nogil=True)
def pack_places(keys: UInt32, words: UInt64) -> None:
    """Set each word to a key, above its place in the array; sorting words then sorts places along with keys."""
    for i in range(len(keys)):
        words[i] = np.uint64(keys[i]) << np.uint64(KEY_BITS) | np.uint64(i)


@njit(cache=True, nogil=True)
def unpack_places(words: UInt64, counts: Int64, keys: UInt32, sorted_counts: Int64) -> None:
    """Take sorted words apart: keys in order, and the rows of counts in that order; int64, shape (n, columns)."""
    for i in range(len(words)):
        keys[i] = np.uint32(words[i] >> np.uint64(KEY_BITS))
        place = np.int64(words[i] & np.uint64(0xFFFFFFFF))
        for c in range(counts.shape[1]):
            sorted_counts[i, c] = counts[place, c]


@uncounted()
def _fits(keys: UInt32, first: int, last: int, resolution: int, capacity: int) -> bool:
    """Whether sorted keys occupy at most `capacity` cells at a resolution of 1 to 32."""
    shift = np.uint32(KEY_BITS - resolution)
    cells = 1
    for i in range(first + 1, last):
        cells += int((keys[i] ^ keys[i - 1]) >> shift != 0)
    return cells <= capacity


@uncounted()
def _resolution(keys: UInt32, first: int, last: int, finest: int, capacity: int) -> int:
    """The largest resolution, at most `finest`, at which sorted keys occupy at most `capacity` >= 1 cells."""
    if last - first <= capacity or _fits(keys, first, last, finest, capacity):
        return finest
    fitting, failing = 0, finest
    while failing - fitting > 1:
        middle = (fitting + failing) >> 1
        if _fits(keys, first, last, middle, capacity):
            fitting = middle
        else:
            failing = middle
    return fitting


@uncounted()
def _add(sums: Int64, cell: int, counts: Int64, row: int, fresh: bool) -> None:
    """Add a row of counts to a cell, or put it there if the cell is fresh."""
    for c in range(sums.shape[1]):
        sums[cell, c] = counts[row, c] if fresh else sums[cell, c] + counts[row, c]


@njit(cache=True, nogil=True)
def count_sorted_keys(runs: KeyRuns, capacities: Int64, cells: CellTable) -> None:
    """Count several series of keys, each in the finest cells of which it occupies at most its capacity.

    Parameters
    ----------
    runs : KeyRuns
        Each sorted; weights of shape (keys, columns), or (0, 1) for ones.
    capacities : int64 array, shape (series,)
        Each at least 1.
    cells : CellTable, changed
        With room for as many cells of each series as its capacity, or its keys if these are fewer.
    """
    keys, counts, starts, ends = runs.keys, runs.weights, runs.starts, runs.ends
    bits, offsets, lower, upper, sums = cells.bits, cells.offsets, cells.lower, cells.upper, cells.sums
    offsets[0] = 0
    for s in range(len(starts)):
        first, last = starts[s], ends[s]
        resolution = _resolution(keys, first, last, KEY_BITS, capacities[s])
        bits[s] = resolution
        below = np.uint64(KEY_BITS - resolution)  # a shift by all 32 bits needs the wider type
        end = offsets[s]
        i = first
        while i < last:
            cell = np.uint64(keys[i]) >> below
            start = i
            lower[end] = keys[i]
            while i < last and np.uint64(keys[i]) >> below == cell:
                if len(counts) > 0:
                    _add(sums, end, counts, i, i == start)
                i += 1
            upper[end] = keys[i - 1]
            if len(counts) == 0:
                sums[end, 0] = i - start
            end += 1
        offsets[s + 1] = end


@uncounted()
def _put(source: CellTable, place: int, into: CellTable, n: int) -> None:
    """Copy a cell."""
    into.lower[n], into.upper[n] = source.lower[place], source.upper[place]
    for c in range(into.sums.shape[1]):
        into.sums[n, c] = source.sums[place, c]


@uncounted()
def _interleave(a: CellTable, b: CellTable, series: int, into: CellTable) -> int:
    """Put the cells of a series of both into the order of their least keys; return how many there are.

    Which table the next cell comes from is as good as random: it is selected, since a branch would be mispredicted.
    """
    i, i_end = a.offsets[series], a.offsets[series + 1]
    j, j_end = b.offsets[series], b.offsets[series + 1]
    n = 0
    while i < i_end and j < j_end:
        first = a.lower[i] <= b.lower[j]
        into.lower[n] = min(a.lower[i], b.lower[j])
        into.upper[n] = a.upper[i] if first else b.upper[j]
        for c in range(into.sums.shape[1]):
            into.sums[n, c] = a.sums[i, c] if first else b.sums[j, c]
        i += int(first)
        j += 1 - int(first)
        n += 1
    for place in range(i, i_end):
        _put(a, place, into, n)
        n += 1
    for place in range(j, j_end):
        _put(b, place, into, n)
        n += 1
    return n


@uncounted(cache=True)
def merge_cells(capacities: Int64, a: CellTable, b: CellTable, into: CellTable, room: CellTable) -> None:
    """Merge two sets of counted series, series by series; tables as :func:`count_sorted_keys` leaves them.

    A cell's least key names the cell at its own and at every coarser resolution, so the order of the least keys is
    the order of the cells, and what one cell of the union takes in is a run.

    `room` : changed, for as many cells as both have of any series.
    """
    into.offsets[0] = 0
    for s in range(len(capacities)):
        n = _interleave(a, b, s, room)
        resolution = _resolution(room.lower, 0, n, min(a.bits[s], b.bits[s]), capacities[s])
        into.bits[s] = resolution
        below = np.uint64(KEY_BITS - resolution)
        end = into.offsets[s] - 1
        last = np.uint32(0)
        for i in range(n):
            key = room.lower[i]
            fresh = i == 0 or np.uint64(key ^ last) >> below != 0
            last = key
            end += int(fresh)
            into.lower[end] = key if fresh else into.lower[end]
            into.upper[end] = room.upper[i] if fresh else max(into.upper[end], room.upper[i])
            _add(into.sums, end, room.sums, i, fresh)
        into.offsets[s + 1] = end + 1


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
