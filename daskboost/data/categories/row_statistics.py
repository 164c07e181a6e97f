"""Where rows get target statistics from: from all rows, from those in other folds, or from those before them.

    counts of the training rows, TrainedRows -> by tile of a partition's rows: RowStatistics -> values

Rows that are predicted have statistics of all rows. Of a row that is trained on, its own label must have no part in
them: `CategoryCounts` keep it out by folds, `EarlierCounts` by an order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from daskboost.dtypes import Bool, Float32, Int32, UInt8

if TYPE_CHECKING:
    from daskboost.data.categories.combinations import CombinationEncoder
    from daskboost.data.categories.statistics import StatisticTable
    from daskboost.data.chunks.row_folds import LeftOut
    from daskboost.devices.cpu.statistics import Statistics

Columns: TypeAlias = tuple[int, ...]
"""The numbers of one categorical column or of several, increasing."""


class Codes(dict[Columns, Int32]):
    """The codes of some rows in categorical columns, see `Levels.codes`, and in combinations of columns, which are
    found when they are first asked for; int32, shape (rows,)."""

    def __init__(self, found: Mapping[Columns, Int32], encoders: Mapping[Columns, CombinationEncoder]) -> None:
        """Take the codes of columns, and what finds those of combinations."""
        super().__init__(found)
        self._encoders = encoders

    def __missing__(self, columns: Columns) -> Int32:
        found = self[columns] = self._encoders[columns].places(self)
        return found

    def of_rows(self, rows: slice) -> Self:
        """Return the codes of some of the rows, as views."""
        return type(self)({columns: own[rows] for columns, own in self.items()}, self._encoders)


class RowStatistics(Protocol):
    """How the rows of a tile get target statistics."""

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """Return the statistics of rows in one column; float32, shape (rows, statistics).

        `place` : that of the column among those that have tables.
        """
        ...

    def of_combination(self, own: CombinationEncoder, codes: Codes) -> Float32:
        """Return the statistics of rows in a combination of columns; shape as of `of`."""
        ...


ByTile: TypeAlias = Callable[[slice], RowStatistics]
"""Returns how some of a partition's rows get statistics."""


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """The rows of a partition that is trained on."""

    codes: Codes
    tabled: tuple[int, ...]
    """Columns whose features are made of statistics, in order."""
    combinations: tuple[CombinationEncoder, ...]
    """Combinations of columns that are features."""
    first_row: int
    """The id of the first row."""
    levels: Callable[[], UInt8]
    """Reads the levels of their targets, see `Target.levels`."""
    marks: Callable[[LeftOut], Bool]
    """Finds which of them are left out."""
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

    def of_combination(self, own: CombinationEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_combination`."""
        return own.table.values(codes[own.combination.columns], self.statistics)
