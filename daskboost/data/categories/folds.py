"""Target statistics by folds: a training row has those of the rows of its category that are in other folds.

    codes, targets of all partitions -> FoldCounts, summed -> values of training rows
                                                   |-> StatisticTable of other rows

Its own label has no part in them, as it has none in ordered statistics (Prokhorenkova et al., CatBoost, 2018), of which
they differ in that nearly all rows of a category count for each of its rows, not half of them on average. They need no
order of rows: sums of integers per category and fold, which partitions add up in any order. A row's fold is a hash of
its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.dtypes import Float32, Int32, Int64, Integers, UInt8, for_kernels
from daskboost.hashing import Purpose, draws, key

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics

FIRST_ROW, FOLD_COUNTS = "first_row", "fold_counts"
"""Names, among what is given with a partition that is trained on, of the id of its first row, and of `FoldCounts` of
all rows."""
N_FOLDS = 10
"""Folds of the rows: with more, tables grow; with fewer, statistics are of fewer rows."""


def folds_of(seed: int, first_row: int, n_rows: int, n_folds: int = N_FOLDS) -> UInt8:
    """Return the fold of each row of a partition, whose rows have ids from `first_row` on; uint8, shape (rows,)."""
    bits = draws(key(seed, Purpose.STATISTIC_FOLDS), np.arange(first_row, first_row + n_rows, dtype=np.uint64))
    return ((bits >> np.uint64(32)) * np.uint64(n_folds) >> np.uint64(32)).astype(np.uint8)


class Division(NamedTuple):
    """How rows are divided into folds, see `folds_of`."""

    seed: int
    n_folds: int = N_FOLDS

    @property
    def share(self) -> float:
        """The part of all rows that is in other folds than a row's own."""
        return 1 - 1 / self.n_folds

    def of(self, first_row: int, n_rows: int) -> UInt8:
        """Return the fold of each row of a partition; uint8, shape (rows,)."""
        return folds_of(self.seed, first_row, n_rows, self.n_folds)


@dataclass(frozen=True, eq=False)
class FoldTable:
    """What the codes of a column have counted in each fold; `a + b` is what they count together, and `a += b` the same
    in the memory of a, where that has all counts.

    Few rows of a column of many levels leave most counts zero. Then a table is of the others alone, so that a partition
    takes memory by its rows, not by the levels of the whole data.

    Parameters
    ----------
    n_codes : int
    cells : int64 array, shape (counts,), or None for all
        Which counts there are, increasing; `code * n_folds + fold`, with `n_codes` for missing values.
    counts : int32 array, shape (counts, 1 + m)
        Rows and the sums of their m statistics; without `cells` shape ((n_codes + 1) * n_folds, 1 + m). Where sums
        could be more than int32 holds they are int64.
    n_rows : int
        Rows that were read, some of which may not count.
    n_folds : int
    most_step : int
        What a row adds to a sum at most.
    """

    n_codes: int
    cells: Int64 | None
    counts: Integers
    n_rows: int
    n_folds: int = N_FOLDS
    most_step: int = 1

    @classmethod
    def of(cls, codes: Integers, n_codes: int, folds: UInt8, levels: UInt8, steps: UInt8, n_folds: int = N_FOLDS
           ) -> FoldTable:  # fmt: skip
        """Count the rows of one partition; parameters as of :func:`~daskboost.devices.cpu.statistics.count_folds`."""
        from daskboost.devices.cpu.sorted_counts import count_rows, pack_rows
        from daskboost.devices.cpu.statistics import count_folds

        width, most_step = 1 + steps.shape[1], int(steps.max(initial=1))
        dtype = _count_type(most_step * len(codes))
        if _is_full(len(codes), n_codes, n_folds):
            table = np.zeros((n_codes + 1, n_folds, width), dtype)
            count_folds(codes.astype(np.int32, copy=False), folds, levels, steps, table)
            return cls(n_codes, None, table.reshape(-1, width), len(codes), n_folds, most_step)
        rows = np.empty(len(codes), np.int64)
        rows = rows[: pack_rows(codes, folds, levels, n_codes, n_folds, rows)]
        rows.sort()
        cells, counts = np.empty(len(rows), np.int64), np.zeros((len(rows), width), dtype)
        n = count_rows(rows, steps, cells, counts)
        return cls(n_codes, cells[:n].copy(), counts[:n].copy(), len(codes), n_folds, most_step)

    def __add__(self, other: FoldTable) -> FoldTable:
        from daskboost.devices.cpu.sorted_counts import count_union, merge_counts

        n_codes, n_folds, n_rows = self.n_codes, self.n_folds, self.n_rows + other.n_rows
        if self.cells is None or other.cells is None or _is_full(len(self.cells) + len(other.cells), n_codes, n_folds):
            counts = self._filled(_count_type(self.most_step * n_rows))
            other._add_to(counts)
            return replace(self, cells=None, counts=counts, n_rows=n_rows)
        cells = np.empty(count_union(self.cells, other.cells), np.int64)
        counts = np.zeros((len(cells), self.counts.shape[1]), _count_type(self.most_step * n_rows))
        merge_counts(self.cells, self.counts, other.cells, other.counts, cells, counts)
        return replace(self, cells=cells, counts=counts, n_rows=n_rows)

    def __iadd__(self, other: FoldTable) -> FoldTable:
        n_rows = self.n_rows + other.n_rows
        if self.cells is not None or self.counts.dtype != _count_type(self.most_step * n_rows):
            return self + other
        other._add_to(self.counts)
        return replace(self, n_rows=n_rows)

    def _add_to(self, counts: Integers) -> None:
        """Add the counts to those of a table of all."""
        counts[slice(None) if self.cells is None else self.cells] += self.counts

    def _filled(self, dtype: type[np.int32 | np.int64]) -> Integers:
        """Return a copy of the counts with those that are zero, shape ((n_codes + 1) * n_folds, 1 + m)."""
        counts = np.zeros(((self.n_codes + 1) * self.n_folds, self.counts.shape[1]), dtype)
        counts[slice(None) if self.cells is None else self.cells] = self.counts
        return counts

    def __reduce__(self) -> tuple[Callable[..., FoldTable], tuple[int, Int64 | None, Integers, int, int, int]]:
        """Leave out what follows from the counts, which would be sent along with them."""
        return _received, (self.n_codes, self.cells, self.counts, self.n_rows, self.n_folds, self.most_step)

    @cached_property
    def by_fold(self) -> Integers:
        """The counts of each fold; shape (n_codes + 1, n_folds, 1 + m)."""
        counts = self.counts if self.cells is None else self._filled(_count_type(self.most_step * self.n_rows))
        return counts.reshape(self.n_codes + 1, self.n_folds, -1)

    @cached_property
    def total(self) -> StatisticTable:
        """The counts of all folds together."""
        return StatisticTable(self.by_fold.sum(axis=1, dtype=np.int64))


def _received(n_codes: int, cells: Int64 | None, counts: Integers, n_rows: int, n_folds: int, most_step: int
              ) -> FoldTable:  # fmt: skip
    cells = None if cells is None else for_kernels(cells)
    return FoldTable(n_codes, cells, for_kernels(counts), n_rows, n_folds, most_step)


def _count_type(most: int) -> type[np.int32 | np.int64]:
    """Return the type that sums up to this one fit: half the memory, but of billions."""
    return np.int32 if most <= np.iinfo(np.int32).max else np.int64


def most_counts(n_rows: int, n_codes: int) -> int:
    """Return how many counts a table of so many rows has at most."""
    return (n_codes + 1) * N_FOLDS if _is_full(n_rows, n_codes, N_FOLDS) else n_rows


def _is_full(n_counts: int, n_codes: int, n_folds: int) -> bool:
    """Whether a table of at most so many counts takes about as much memory as one of all."""
    return 4 * n_counts >= (n_codes + 1) * n_folds


@dataclass(frozen=True, eq=False)
class CountSummary:
    """What categories have counted in all folds together, and all rows: see `FoldCounts`."""

    tables: tuple[StatisticTable, ...]
    rows: Int64

    @property
    def priors(self) -> tuple[float, ...]:
        """Return what rows add to each sum on average."""
        return tuple((self.rows[1:] / max(int(self.rows[0]), 1)).tolist())


@dataclass(frozen=True, eq=False)
class FoldCounts:
    """What categories have counted in each fold; `a + b` is what the rows of both count, in any order the same.

    Parameters
    ----------
    tables : list of FoldTable
        Of each categorical column. `a += b` adds to those of a, one after the other.
    rows : int64 array, shape (1 + m,)
        All rows and the sums of their statistics, those of categories without a code among them.
    """

    tables: list[FoldTable]
    rows: Int64
    division: Division

    @classmethod
    def of(cls, codes: Sequence[Int32], n_codes: Sequence[int], division: Division, folds: UInt8, levels: UInt8,
           target: Target, threads: int = 1, levels_in: Sequence[UInt8] | None = None) -> FoldCounts:  # fmt: skip
        """Count the rows of one partition, so many columns at the same time.

        Parameters
        ----------
        codes : sequence of int32 arrays, shape (rows,)
            Of each column, as `Levels.codes` gives them.
        n_codes : sequence of int
            How many codes each column has.
        division : Division
        folds : uint8 array, shape (rows,)
            What the division gives.
        levels : uint8 array, shape (rows,)
            Of the target, see `Target.levels`.
        levels_in : sequence of uint8 arrays, shape (rows,), optional
            What each column counts, where some rows do not count in all of them.
        """
        from daskboost.devices.cpu.threads import on_threads

        steps, n_folds = target.steps, division.n_folds

        def table(codes: Int32, n_codes: int, levels: UInt8) -> FoldTable:
            return FoldTable.of(codes, n_codes, folds, levels, steps, n_folds)

        columns = list(zip(codes, n_codes, levels_in or [levels] * len(codes), strict=True))
        tables = on_threads(lambda own: table(*own), columns, threads)
        counts = np.bincount(levels, minlength=len(steps))[: len(steps)]
        return cls(tables, np.append(counts.sum(), counts @ steps.astype(np.int64)), division)

    def __add__(self, other: FoldCounts) -> FoldCounts:
        tables = [a + b for a, b in zip(self.tables, other.tables, strict=True)]
        return FoldCounts(tables, self.rows + other.rows, self.division)

    def __iadd__(self, other: FoldCounts) -> FoldCounts:
        for at, table in enumerate(other.tables):
            self.tables[at] += table
        return FoldCounts(self.tables, self.rows + other.rows, self.division)

    @property
    def totals(self) -> tuple[StatisticTable, ...]:
        """The table of each column, of all folds."""
        return tuple(table.total for table in self.tables)

    @property
    def summary(self) -> CountSummary:
        """Return what models need."""
        return CountSummary(self.totals, self.rows)

    def values(self, column: int, codes: Int32, folds: UInt8, statistics: Statistics) -> Float32:
        """Return the statistics of training rows in one column; float32, shape (rows, m)."""
        from daskboost.devices.cpu.statistics import fold_values

        table = self.tables[column]
        values = np.empty((len(codes), table.counts.shape[1] - 1), np.float32)
        fold_values(codes, folds, table.by_fold, table.total.counts, statistics, values)
        return values
