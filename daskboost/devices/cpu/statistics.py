"""Target statistics of categories: counts and sums per code, and the values of rows that come of them.

The counts of a row's code lie at a place as good as random. They are asked for some rows ahead, or loops over columns
of many levels would wait for each: with 50,000 levels in ten folds they took three times as long without. Counts are
integers, so that a value depends on which rows were counted and on nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.threads import prefetch
from daskboost.dtypes import Float32, Float64, Int32, Int64, Integers, UInt8

NOT_COUNTED = 255
"""Marks rows that get values and are not counted, in place of the level of their target: levels are lower."""
_AHEAD = 32
"""How many rows ahead memory is asked for."""


class Statistics(NamedTuple):
    """What is computed of each row's category: `(unit * sum + prior) / (count + 1)` for each of m sums."""

    steps: UInt8
    """What a row of each level of the target adds to the sums, shape (levels, m)."""
    priors: Float64
    """Shape (m,)."""
    unit: float = 1.0
    """What sums are multiplied by."""
    share: float = 1.0
    """The part of all rows that count for each row that is trained on. Rows that are predicted, for which all count,
    have values as if the same part did, so that the count, of which values tell, is alike for both."""


@njit(inline="always")
def _add(own: Integers, level: np.uint8, steps: UInt8) -> None:
    """Count a row in the count and sums of its code."""
    if level != NOT_COUNTED:
        own[0] += 1
        for j in range(steps.shape[1]):
            own[1 + j] += steps[level, j]


@njit(inline="always")
def _place(code: np.int32, n_codes: int) -> np.int64:
    """Return where a code of at least -1 lies in a table; for lower ones a place that is not theirs."""
    return np.int64(n_codes if code < 0 else code)


@njit(inline="always")
def _ask(flat_table: Integers, place: np.int64, width: int) -> None:
    """Ask for a row of a table, which lies in two cache lines at most if it is of no more than eight counts."""
    prefetch(flat_table, place * width)
    prefetch(flat_table, (place + 1) * width - 1)


@njit(inline="always")
def _value(own: Integers, j: int, statistics: Statistics, share: float) -> np.float32:
    """Return a statistic by a share of the count and the sums of a code."""
    return np.float32((own[1 + j] * statistics.unit * share + statistics.priors[j]) / (own[0] * share + 1.0))


@njit(cache=True, nogil=True)
def count_folds(codes: Int32, folds: UInt8, levels: UInt8, steps: UInt8, table: Integers) -> None:
    """Add rows to a table of their folds.

    Parameters
    ----------
    codes : int32 array, shape (rows,)
        0 to `len(table) - 2`; -1 is missing, which is counted as a code of its own. Rows of lower codes are not
        counted.
    folds : uint8 array, shape (rows,)
    levels : uint8 array, shape (rows,)
        Of the target; rows of `NOT_COUNTED` add nothing.
    steps : uint8 array, shape (levels, m)
        As in `Statistics`.
    table : int32 or int64 array, shape (codes + 1, folds, 1 + m), changed
        Count and sums of each code in each fold; those of missing values come last.
    """
    n, n_codes, n_folds, width = len(codes), len(table) - 1, table.shape[1], table.shape[2]
    flat_table = table.reshape(-1)
    for i in range(n):
        if i + _AHEAD < n:
            later = i + _AHEAD
            _ask(flat_table, _place(codes[later], n_codes) * n_folds + folds[later], width)
        if codes[i] >= -1:
            _add(table[_place(codes[i], n_codes), folds[i]], levels[i], steps)


@njit(cache=True, nogil=True)
def table_values(codes: Int32, table: Int64, statistics: Statistics, values: Float32) -> None:
    """Set the statistics of rows, float32 of shape (rows, m), by the share that is asked of all that their codes have
    counted.

    `table` : int64, shape (codes + 1, 1 + m), the counts of `count_folds` in all folds together. Codes below -1 have
    counted nothing.
    """
    n, n_codes, width, flat_table = len(codes), len(table) - 1, table.shape[1], table.reshape(-1)
    nothing = np.zeros(width, table.dtype)
    for i in range(n):
        if i + _AHEAD < n:
            _ask(flat_table, _place(codes[i + _AHEAD], n_codes), width)
        own = table[_place(codes[i], n_codes)] if codes[i] >= -1 else nothing
        for j in range(values.shape[1]):
            values[i, j] = _value(own, j, statistics, statistics.share)


@njit(cache=True, nogil=True)
def fold_values(
    codes: Int32, folds: UInt8, table: Integers, totals: Int64, statistics: Statistics, values: Float32
) -> None:
    """Set the statistics of rows, float32 of shape (rows, m), by what their codes have counted in the other folds.

    Parameters
    ----------
    codes, folds, table
        As in `count_folds`.
    totals : int64 array, shape (codes + 1, 1 + m)
        The sums of `table` over folds.
    """
    n, n_codes, n_folds, width = len(codes), len(table) - 1, table.shape[1], table.shape[2]
    others, flat_table, flat_totals = np.zeros(width, np.int64), table.reshape(-1), totals.reshape(-1)
    for i in range(n):
        if i + _AHEAD < n:
            later = i + _AHEAD
            _ask(flat_table, _place(codes[later], n_codes) * n_folds + folds[later], width)
            _ask(flat_totals, _place(codes[later], n_codes), width)
        place, is_counted = _place(codes[i], n_codes), codes[i] >= -1
        for j in range(width):
            others[j] = totals[place, j] - table[place, folds[i], j] if is_counted else 0
        for j in range(values.shape[1]):
            values[i, j] = _value(others, j, statistics, 1.0)


@njit(cache=True, nogil=True)
def sparse_fold_values(
    codes: Int32, folds: UInt8, starts: Int64, cell_folds: UInt8, counts: Integers, totals: Int64,
    statistics: Statistics, values: Float32,
) -> None:
    """Set what `fold_values` does, by a table that has only the folds in which a code has counted something.

    Parameters
    ----------
    codes : int32 array, shape (rows,)
        Negative ones have counted nothing.
    folds : uint8 array, shape (rows,)
    starts : int64 array, shape (codes + 1,)
        Where the cells of each code begin, and behind the last one.
    cell_folds : uint8 array, shape (cells,)
    counts : int32 or int64 array, shape (cells, 1 + m)
    totals : int64 array, shape (codes + 1, 1 + m)
        The sums of each code's cells.
    """
    width = counts.shape[1]
    others = np.zeros(width, np.int64)
    for i in range(len(codes)):
        code = codes[i]
        for j in range(width):
            others[j] = totals[code, j] if code >= 0 else 0
        for cell in range(starts[code], starts[code + 1]) if code >= 0 else range(0):
            if cell_folds[cell] == folds[i]:
                for j in range(width):
                    others[j] -= counts[cell, j]
        for j in range(values.shape[1]):
            values[i, j] = _value(others, j, statistics, 1.0)


@njit(cache=True, nogil=True)
def earlier_values(places: Int64, levels: UInt8, counts: Integers, statistics: Statistics, values: Float32) -> None:
    """Set the statistics of rows, float32 of shape (rows, m), each by what was counted before it, and count it.

    Parameters
    ----------
    places : int64 array, shape (rows,)
        Where the counts of each row lie; -1 for rows that have the priors and are not counted.
    levels : uint8 array, shape (rows,)
        As in `count_folds`.
    counts : int32 or int64 array, shape (places, 1 + m), changed
        What came before the first row; in the end what these rows have counted, too.
    """
    n, width, flat_counts = len(places), counts.shape[1], counts.reshape(-1)
    nothing = np.zeros(width, counts.dtype)
    for i in range(n):
        if i + _AHEAD < n:
            _ask(flat_counts, max(places[i + _AHEAD], np.int64(0)), width)
        own = counts[places[i]] if places[i] >= 0 else nothing
        for j in range(values.shape[1]):
            values[i, j] = _value(own, j, statistics, 1.0)
        if places[i] >= 0:
            _add(own, levels[i], statistics.steps)
