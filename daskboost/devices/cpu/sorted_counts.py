"""Counts of cells of which few have rows: the rows are sorted by cell, and those of a cell lie together.

Sorting numbers alone takes a tenth of the time of finding the order that sorts them, so a row is one number: its cell,
and in the lowest bits the level of its target.
"""

from __future__ import annotations

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.statistics import NOT_COUNTED
from daskboost.dtypes import Int32, Int64, Integers, UInt8

LEVEL_BITS = 8
"""Bits of the level of a row's target."""


@uncounted(cache=True)
def pack_rows(codes: Integers, folds: UInt8, levels: UInt8, n_codes: int, n_folds: int, rows: Int64) -> int:
    """Write the number of each row that is counted, one behind the other; return how many there are.

    Parameters
    ----------
    codes : int32 or int64 array, shape (rows,)
        0 to `n_codes - 1`; -1 is missing, which has cells of its own behind those. Rows of lower codes are not counted.
    folds, levels : uint8 arrays, shape (rows,)
        Rows of the level `NOT_COUNTED` are not counted.
    n_codes, n_folds : int
        The cell of a row is `code * n_folds + fold`.
    rows : int64 array, shape (rows,), changed
    """
    n = 0
    for i in range(len(codes)):
        if codes[i] >= -1 and levels[i] != NOT_COUNTED:
            code = n_codes if codes[i] < 0 else codes[i]
            rows[n] = (code * n_folds + folds[i]) << LEVEL_BITS | levels[i]
            n += 1
    return n


@uncounted(cache=True)
def count_rows(rows: Int64, steps: UInt8, cells: Int64, counts: Int32) -> int:
    """Count rows, sorted numbers of `pack_rows`, by cell; return how many cells there are.

    Parameters
    ----------
    rows : int64 array, shape (rows,)
    steps : uint8 array, shape (levels, m)
        What a row of each level of the target adds to the sums.
    cells : int64 array, shape (rows,), changed
        The cells that have rows, increasing.
    counts : int32 array, shape (rows, 1 + m), changed
        Rows of each of these, and their sums; zeros before.
    """
    n = 0
    for i in range(len(rows)):
        cell, level = rows[i] >> LEVEL_BITS, rows[i] & ((1 << LEVEL_BITS) - 1)
        if n == 0 or cells[n - 1] != cell:
            cells[n] = cell
            n += 1
        counts[n - 1, 0] += 1
        for j in range(steps.shape[1]):
            counts[n - 1, 1 + j] += steps[level, j]
    return n


@uncounted(cache=True)
def count_union(first: Int64, second: Int64) -> int:
    """Return how many different cells two increasing arrays have together."""
    i, n = 0, 0
    for j in range(len(second)):
        while i < len(first) and first[i] < second[j]:
            i += 1
        n += i < len(first) and first[i] == second[j]
    return len(first) + len(second) - n


@njit(cache=True, nogil=True)
def merge_counts(first: Int64, first_counts: Integers, second: Int64, second_counts: Integers, cells: Int64,
                 counts: Integers) -> None:  # fmt: skip
    """Add up the counts of two increasing arrays of cells.

    Parameters
    ----------
    first, second : int64 arrays
    first_counts, second_counts : int arrays, shape (cells of each, width)
    cells : int64 array, shape (`count_union`,), changed
    counts : int array, shape (`count_union`, width), changed
        Zeros before.
    """
    i, j = 0, 0
    for n in range(len(cells)):
        has_first = i < len(first) and (j >= len(second) or first[i] <= second[j])
        has_second = j < len(second) and (i >= len(first) or second[j] <= first[i])
        cells[n] = first[i] if has_first else second[j]
        if has_first:
            for k in range(counts.shape[1]):
                counts[n, k] += first_counts[i, k]
            i += 1
        if has_second:
            for k in range(counts.shape[1]):
                counts[n, k] += second_counts[j, k]
            j += 1


@uncounted(cache=True)
def find_starts(cells: Int64, n_folds: int, starts: Int64) -> int:
    """Find where the cells of each code begin; return how many codes there are.

    Parameters
    ----------
    cells : int64 array
        Increasing; the code of a cell is `cell // n_folds`.
    starts : int64 array, changed
        Set as far as it is long: a first call with none tells how long it has to be.
    """
    n = 0
    for i in range(len(cells)):
        if i == 0 or cells[i] // n_folds != cells[i - 1] // n_folds:
            if n < len(starts):
                starts[n] = i
            n += 1
    return n
