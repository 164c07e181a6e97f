"""Ordered target statistics: a training row has those of the rows of its category that come before it.

    counts of each partition by code and fold -> EarlierCounts: what came before -> values of its rows, one by one
                                       |-> StatisticTable of other rows

These are CatBoost's (Prokhorenkova et al., CatBoost: unbiased boosting with categorical features, 2018): (sum over
earlier rows + prior) / (earlier rows + 1). Rows are in the order of their folds, and within a fold of their ids. With
one fold that is the order in which rows are given, as `has_time` asks for; with several it is a permutation that a hash
of the seed and the ids defines. What comes before a partition's rows of a fold is all lower folds, and of the same one
the partitions before: an exclusive scan of the counts by code and fold that `FoldCounts` has, of integers, so that
partitions, threads and workers do not show.

Each partition keeps the counts of codes that its rows have, 8 x (1 + m) bytes each for m statistics and as many to
find them, or of all codes, where these are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.data.categories.folds import N_FOLDS, FoldTable, folds_of
from daskboost.data.categories.levels import UNKNOWN
from daskboost.data.categories.pairs import CategoryCounts, Pair, PairEncoder
from daskboost.data.categories.row_statistics import ByTile, Codes, TrainedRows
from daskboost.data.categories.statistics import StatisticTable
from daskboost.devices.cpu.threads import on_threads
from daskboost.dtypes import Float32, Int32, Int64, UInt8

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics

FOLDS, PERMUTATION, TIME = "folds", "permutation", "time"
"""From which rows a training row's statistics come: those in other folds; those before it in a permutation; those
before it in the order in which rows are given."""


def order_of(has_time: bool) -> str:
    """Return where statistics of training rows come from, by whether these are given in the order of time."""
    return TIME if has_time else FOLDS


def n_folds_of(order: str) -> int:
    """Return how many folds rows are counted in."""
    return 1 if order == TIME else N_FOLDS


def in_lower_folds(table: FoldTable) -> FoldTable:
    """Return what each code has counted in the folds below each, where there are counts."""
    counts = table.counts
    codes = (np.arange(len(counts)) if table.cells is None else table.cells) // table.n_folds
    before = np.cumsum(counts, axis=0, dtype=np.int64) - counts
    is_first = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(codes)), 0))
    return FoldTable(table.n_codes, table.cells, before - before[first], table.n_folds)


def before_each(before: FoldTable, parts: Sequence[FoldTable]) -> list[FoldTable]:
    """Return what came before each of some parts of rows that follow each other, of the cells of that part.

    `before` : what came before all of them, of all their cells.
    """
    found, counts = [], before.counts.copy()
    for part in parts:
        own = _places(before, part.cells)
        found.append(FoldTable(part.n_codes, part.cells, counts[own].copy(), part.n_folds))
        counts[own] += part.counts
    return found


def _places(table: FoldTable, cells: Int64 | None) -> Int64 | slice:
    """Return where a table has the counts of these cells, which it has; None are all there could be."""
    if cells is None:
        return slice(None)
    return cells if table.cells is None else np.searchsorted(table.cells, cells)


def _tables(counts: CategoryCounts) -> tuple[FoldTable, ...]:
    """Return the tables of columns, then those of pairs."""
    return (*counts.columns.tables, *(own.by_key for own in counts.pairs))


@dataclass(frozen=True, eq=False)
class EarlierCounts:
    """What came before the rows of one or several partitions, of the categories that these rows have.

    Parameters
    ----------
    tables : tuple of FoldTable
        Of each categorical column, then of the keys of each pair.
    pairs : tuple of Pair
    seed, n_folds : int
        See `folds_of`.
    """

    tables: tuple[FoldTable, ...]
    pairs: tuple[Pair, ...]
    seed: int
    n_folds: int

    @classmethod
    def of(cls, total: CategoryCounts) -> EarlierCounts:
        """Return what comes before the first row of each fold, by the counts of all rows."""
        tables = tuple(map(in_lower_folds, _tables(total)))
        columns = total.columns
        return cls(tables, tuple(own.pair for own in total.pairs), columns.seed, columns.n_folds)

    def before_each(self, parts: Sequence[CategoryCounts]) -> list[EarlierCounts]:
        """Return what came before each of the parts that the rows are cut into, by what each part counts."""
        by_table = zip(self.tables, zip(*map(_tables, parts), strict=True), strict=True)
        by_part = zip(*(before_each(*own) for own in by_table), strict=True)
        return [EarlierCounts(tables, self.pairs, self.seed, self.n_folds) for tables in by_part]

    def by_tile(self, rows: TrainedRows, statistics: Statistics) -> ByTile:
        """See `TrainingCounts`; all rows of the partition get their values at once, as they follow each other."""
        levels = rows.levels()
        folds = folds_of(self.seed, rows.first_row, len(levels), self.n_folds)

        def values(own: tuple[FoldTable, Int32 | Int64]) -> Float32:
            return earlier_values(*own, folds, levels, statistics)

        n_columns, of_pairs = len(rows.tabled), dict(zip(self.pairs, self.tables[len(rows.tabled) :], strict=True))
        wanted: list[tuple[FoldTable, Int32 | Int64]] = [
            *zip(self.tables, (rows.codes[at] for at in rows.tabled), strict=False),
            *((of_pairs[own.pair], _keys(own, rows.codes)) for own in rows.pairs),
        ]
        found = on_threads(values, wanted, rows.threads)
        by_pair = dict(zip((own.pair for own in rows.pairs), found[n_columns:], strict=True))
        return lambda tile: OfEarlierRows(found[:n_columns], by_pair, tile)


@dataclass(frozen=True, eq=False)
class OfEarlierRows:
    """Statistics of the rows before each, of some of a partition's rows."""

    columns: Sequence[Float32]
    """The statistics of all of its rows in each column that has a table."""
    pairs: Mapping[Pair, Float32]
    tile: slice

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """See `RowStatistics.of`."""
        return self.columns[place][self.tile]

    def of_pair(self, own: PairEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_pair`."""
        return self.pairs[own.pair][self.tile]


def _keys(own: PairEncoder, codes: Codes) -> Int64:
    """Return the keys of a pair's levels that are kept, `UNKNOWN` in rows of others."""
    return np.where(own.places(codes) == UNKNOWN, UNKNOWN, own.pair.keys(codes))


def earlier_values(
    before: FoldTable, codes: Int32 | Int64, folds: UInt8, levels: UInt8, statistics: Statistics
) -> Float32:
    """Return the statistics of a partition's rows by those before them; float32, shape (rows, m).

    Parameters
    ----------
    before : FoldTable
        What came before the partition, of the cells that its rows have.
    codes : int32 or int64 array, shape (rows,)
        -1 is missing, a code of its own; lower ones have the priors and do not count.
    folds, levels : uint8 arrays, shape (rows,)
        See `folds_of`, `Target.levels`.
    """
    from daskboost.devices.cpu.statistics import earlier_values as set_values

    cells = np.where(codes < 0, before.n_codes, codes).astype(np.int64) * before.n_folds + folds
    places = cells if before.cells is None else np.searchsorted(before.cells, cells)
    places[codes < -1] = -1
    values = np.empty((len(codes), before.counts.shape[1] - 1), np.float32)
    set_values(places, levels, before.counts.copy(), statistics, values)
    return values
