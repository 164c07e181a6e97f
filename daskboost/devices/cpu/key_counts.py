"""Loops of key counts: sorted keys are counted in as many cells as the capacity allows, and counts are merged.

A cell at resolution r is the set of keys that share their top r bits, a range of keys, so the cells of sorted keys
are runs. Keys come sorted because NumPy's vectorised sort takes 7 ns a key, less than radix descents or hash tables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Int64, UInt8, UInt32, UInt64

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


@njit(cache=True, nogil=True)
def _fits(keys: UInt32, first: int, last: int, resolution: int, capacity: int) -> bool:
    """Whether sorted keys occupy at most `capacity` cells at a resolution of 1 to 32."""
    shift = np.uint32(KEY_BITS - resolution)
    cells = 1
    for i in range(first + 1, last):
        cells += int((keys[i] ^ keys[i - 1]) >> shift != 0)
    return cells <= capacity


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _interleave(
    lower_a: UInt32, a: int, a_end: int, lower_b: UInt32, b: int, b_end: int, keys: UInt32, order: Int64
) -> int:
    """Merge two sorted ranges of cells: their least keys, and their places (`~place` for those of b)."""
    n = 0
    while a < a_end or b < b_end:
        if b == b_end or (a < a_end and lower_a[a] <= lower_b[b]):
            keys[n], order[n] = lower_a[a], a
            a += 1
        else:
            keys[n], order[n] = lower_b[b], ~b
            b += 1
        n += 1
    return n


@njit(cache=True, nogil=True)
def merge_cells(capacities: Int64, a: CellTable, b: CellTable, into: CellTable) -> None:
    """Merge two sets of counted series, series by series; tables as :func:`count_sorted_keys` leaves them.

    A cell's least key names the cell at its own and at every coarser resolution, so the order of the least keys is
    the order of the cells, and what one cell of the union takes in is a run.
    """
    offsets_a, upper_a, sums_a = a.offsets, a.upper, a.sums
    offsets_b, upper_b, sums_b = b.offsets, b.upper, b.sums
    bits, offsets, lower, upper, sums = into.bits, into.offsets, into.lower, into.upper, into.sums
    longest = np.int64(0)
    for s in range(len(capacities)):
        longest = max(longest, offsets_a[s + 1] - offsets_a[s] + offsets_b[s + 1] - offsets_b[s])
    keys, order = np.empty(longest, np.uint32), np.empty(longest, np.int64)
    offsets[0] = 0
    for s in range(len(capacities)):
        n = _interleave(a.lower, offsets_a[s], offsets_a[s + 1], b.lower, offsets_b[s], offsets_b[s + 1], keys, order)
        resolution = _resolution(keys, 0, n, min(a.bits[s], b.bits[s]), capacities[s])
        bits[s] = resolution
        below = np.uint64(KEY_BITS - resolution)
        end = offsets[s] - 1
        for i in range(n):
            fresh = i == 0 or np.uint64(keys[i]) >> below != np.uint64(keys[i - 1]) >> below
            if fresh:
                end += 1
                lower[end] = keys[i]
                upper[end] = 0
            if order[i] >= 0:
                upper[end] = max(upper[end], upper_a[order[i]])
                _add(sums, end, sums_a, order[i], fresh)
            else:
                upper[end] = max(upper[end], upper_b[~order[i]])
                _add(sums, end, sums_b, ~order[i], fresh)
        offsets[s + 1] = end + 1
