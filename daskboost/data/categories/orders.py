"""Target statistics in the order of time: a training row has those of the rows of its category that come before it.

    counts of each partition by code -> EarlierCounts: what came before it -> values of its rows, one after the other
                              |-> StatisticTable of other rows

These are CatBoost's ordered statistics (Prokhorenkova et al., CatBoost: unbiased boosting with categorical features,
2018): (sum over earlier rows + prior) / (earlier rows + 1). What came before a partition's rows is an exclusive scan
of what partitions count, in their order: of integers, by the same tables as those of folds, with one fold of all rows.
So partitions, threads and workers do not show. Rows of no weight, which do not count, have the priors.

Each partition keeps the counts of the codes that its rows have, 8 x (2 + m) bytes each for m statistics, or of all
codes where these are few beside its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daskboost.data.categories.category_counts import CategoryCounts
from daskboost.data.categories.combinations import Combination, CombinationEncoder
from daskboost.data.categories.folds import FoldTable
from daskboost.data.categories.levels import UNKNOWN
from daskboost.data.categories.row_statistics import ByTile, Codes, TrainedRows
from daskboost.data.categories.statistics import StatisticTable
from daskboost.devices.cpu.threads import on_threads
from daskboost.dtypes import Float32, Int32, Int64, UInt8

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics


def before_each(before: FoldTable, parts: Sequence[FoldTable]) -> list[FoldTable]:
    """Return what came before each of some parts of rows that follow each other, of the cells of that part.

    `before` : what came before all of them, of all their cells.
    """
    found, counts = [], before.counts.copy()
    for part in parts:
        own = _places(before, part.cells)
        found.append(replace(part, counts=counts[own].copy(), n_rows=before.n_rows))
        counts[own] += part.counts
    return found


def _places(table: FoldTable, cells: Int64 | None) -> Int64 | slice:
    """Return where a table has the counts of these cells, which it has; None are all there could be."""
    if cells is None:
        return slice(None)
    return cells if table.cells is None else np.searchsorted(table.cells, cells)


def _tables(counts: CategoryCounts) -> tuple[FoldTable, ...]:
    """Return the tables of columns, then those of combinations."""
    return (*counts.columns.tables, *(own.by_key for own in counts.combinations))


@dataclass(frozen=True, eq=False)
class EarlierCounts:
    """What came before the rows of one or several partitions, of the categories that these rows have.

    Parameters
    ----------
    tables : tuple of FoldTable
        Of each categorical column, then of the keys of each combination.
    combinations : tuple of Combination
    """

    tables: tuple[FoldTable, ...]
    combinations: tuple[Combination, ...]

    @classmethod
    def of_first(cls, total: CategoryCounts) -> EarlierCounts:
        """Return what came before the first of all rows, which is nothing, of the categories that all rows have."""
        tables = (replace(own, counts=np.zeros_like(own.counts)) for own in _tables(total))
        return cls(tuple(tables), tuple(own.combination for own in total.combinations))

    def before_each(self, parts: Sequence[CategoryCounts]) -> list[EarlierCounts]:
        """Return what came before each of the parts that the rows are cut into, by what each part counts."""
        by_table = zip(self.tables, zip(*map(_tables, parts), strict=True), strict=True)
        by_part = zip(*(before_each(*own) for own in by_table), strict=True)
        return [EarlierCounts(tables, self.combinations) for tables in by_part]

    def by_tile(self, rows: TrainedRows, statistics: Statistics) -> ByTile:
        """See `TrainingCounts`; all rows of the partition get their values at once, as they follow each other."""
        levels = rows.levels()

        def values(own: tuple[FoldTable, Int32 | Int64]) -> Float32:
            return earlier_values(*own, levels, statistics)

        n_columns = len(rows.tabled)
        tables = dict(zip(self.combinations, self.tables[n_columns:], strict=True))
        wanted: list[tuple[FoldTable, Int32 | Int64]] = [
            *zip(self.tables, (rows.codes[(at,)] for at in rows.tabled), strict=False),
            *((tables[own.combination], _keys(own.combination, rows.codes)) for own in rows.combinations),
        ]
        found = on_threads(values, wanted, rows.threads)
        of_each = dict(zip((own.combination for own in rows.combinations), found[n_columns:], strict=True))
        return lambda tile: OfEarlierRows(found[:n_columns], of_each, tile)


@dataclass(frozen=True, eq=False)
class OfEarlierRows:
    """Statistics of the rows before each, of some of a partition's rows."""

    columns: Sequence[Float32]
    """The statistics of all of its rows in each column that has a table."""
    combinations: Mapping[Combination, Float32]
    tile: slice

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """See `RowStatistics.of`."""
        return self.columns[place][self.tile]

    def of_combination(self, own: CombinationEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_combination`."""
        return self.combinations[own.combination][self.tile]


def _keys(own: Combination, codes: Codes) -> Int64:
    """Return the keys of a combination's levels that are kept, `UNKNOWN` in rows of others."""
    return np.where(codes[own.columns] == UNKNOWN, UNKNOWN, own.keys(codes))


def earlier_values(before: FoldTable, codes: Int32 | Int64, levels: UInt8, statistics: Statistics) -> Float32:
    """Return the statistics of a partition's rows by those before them; float32, shape (rows, m).

    Parameters
    ----------
    before : FoldTable
        What came before the partition, of the cells that its rows have.
    codes : int32 or int64 array, shape (rows,)
        -1 is missing, a code of its own; lower ones have the priors and do not count.
    levels : uint8 array, shape (rows,)
        See `Target.levels`; rows that are not to be counted have the priors.
    """
    from daskboost.devices.cpu.statistics import NOT_COUNTED
    from daskboost.devices.cpu.statistics import earlier_values as set_values

    cells = np.where(codes < 0, before.n_codes, codes).astype(np.int64)
    places = cells if before.cells is None else np.searchsorted(before.cells, cells)
    places[(codes < -1) | (levels == NOT_COUNTED)] = -1
    values = np.empty((len(codes), before.counts.shape[1] - 1), np.float32)
    set_values(places, levels, before.counts.copy(), statistics, values)
    return values
