"""Where rows get target statistics from: from all rows, from those in other folds, or from those before them.

    counts of the training rows, TrainedRows -> by tile of a partition's rows: RowStatistics -> values

Rows that are predicted have statistics of all rows. Of a row that is trained on, its own label must have no part in
them: `CategoryCounts` keep it out by folds, `EarlierCounts` by an order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from daskboost.dtypes import Float32, Int32, UInt8

if TYPE_CHECKING:
    from daskboost.data.categories.pairs import PairEncoder
    from daskboost.data.categories.statistics import StatisticTable
    from daskboost.devices.cpu.statistics import Statistics

Codes: TypeAlias = Mapping[int, Int32]
"""The codes of some rows in each categorical column, by its number; see `Levels.codes`."""


class RowStatistics(Protocol):
    """How the rows of a tile get target statistics."""

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """Return the statistics of rows in one column; float32, shape (rows, statistics).

        `place` : that of the column among those that have tables.
        """
        ...

    def of_pair(self, own: PairEncoder, codes: Codes) -> Float32:
        """Return the statistics of rows in a pair of columns, by the codes of each column; shape as of `of`."""
        ...


ByTile: TypeAlias = Callable[[slice], RowStatistics]
"""Returns how some of a partition's rows get statistics."""


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """The rows of a partition that is trained on."""

    codes: Codes
    tabled: tuple[int, ...]
    """Columns whose features are made of statistics, in order."""
    pairs: tuple[PairEncoder, ...]
    """Pairs of columns that are features."""
    first_row: int
    """The id of the first row."""
    levels: Callable[[], UInt8]
    """Reads the levels of their targets, see `Target.levels`."""
    threads: int


class TrainingCounts(Protocol):
    """What the training rows have counted, in such a way that a row's own label can be kept out."""

    def by_tile(self, rows: TrainedRows, statistics: Statistics) -> ByTile:
        """Return how the rows of a partition get statistics."""
        ...


@dataclass(frozen=True)
class OfAllRows:
    """Statistics of all training rows, for rows that had no part in them."""

    statistics: Statistics

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """See `RowStatistics.of`."""
        return table.values(codes, self.statistics)

    def of_pair(self, own: PairEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_pair`."""
        return own.values(codes, self.statistics)
