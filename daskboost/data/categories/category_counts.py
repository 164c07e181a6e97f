"""What categorical columns and combinations of them count together, by fold: of the rows of a partition, and of all.

    codes, targets of all partitions -> CategoryCounts, summed -> KeptCounts: values of training rows
                                                                       |-> CategorySummary: what models need
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.data.categories.combinations import (
    Combination,
    CombinationCounts,
    CombinationEncoder,
    KeptCombination,
)
from daskboost.data.categories.folds import CountSummary, Division, FoldCounts
from daskboost.data.categories.row_statistics import ByTile, Codes, Columns, TrainedRows
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.dtypes import Bool, Float32, Int32, UInt8

if TYPE_CHECKING:
    from daskboost.data.chunks.row_folds import LeftOut
    from daskboost.devices.cpu.statistics import Statistics


@dataclass(frozen=True, eq=False)
class CategorySummary:
    """What columns and combinations have counted in all folds together: see `KeptCounts`."""

    columns: CountSummary
    combinations: tuple[CombinationEncoder, ...]

    @property
    def n_levels(self) -> dict[Combination, int]:
        """Return how many levels each combination has."""
        return {own.combination: own.n_levels for own in self.combinations}


@dataclass(frozen=True, eq=False)
class CountedCombinations:
    """The combinations that a read of the rows counts."""

    combinations: tuple[Combination, ...]
    most_levels: int
    """Levels of each that are kept, see `CombinationCounts`."""
    encoders: Mapping[Columns, CombinationEncoder]
    """What finds codes of those that others are joined to."""


@dataclass(frozen=True, eq=False)
class LeftOutRows:
    """Rows of a partition whose labels other rows must not know.

    Parameters
    ----------
    marks : bool array, shape (rows,)
    are_rare : mapping of bool arrays, shape (codes + 1,)
        By columns, which levels have so few rows that statistics by folds would tell a row's own label.
    """

    marks: Bool
    are_rare: Mapping[Columns, Bool]

    def levels_in(self, columns: Columns, codes: Int32, levels: UInt8) -> UInt8:
        """Return the levels of the rows' targets, those that do not count in their level of some columns marked so."""
        from daskboost.devices.cpu.statistics import NOT_COUNTED

        marked: UInt8 = np.where(self.marks & self.are_rare[columns][codes], np.uint8(NOT_COUNTED), levels)
        return marked


@dataclass(frozen=True, eq=False)
class CategoryCounts:
    """What categorical columns and combinations of them have counted in each fold; `a + b` is what both count, in any
    order the same, and `a += b` the same in the memory of a, one column after the other."""

    columns: FoldCounts
    """One column at least."""
    combinations: list[CombinationCounts]
    """Combinations of fewer columns come first."""

    @property
    def n_rows(self) -> int:
        """Return the rows that were read."""
        return self.columns.tables[0].n_rows

    @classmethod
    def of(cls, columns: Mapping[int, tuple[Int32, int]], counted: CountedCombinations, division: Division,
           first_row: int, levels: UInt8, target: Target, threads: int = 1,
           left_out: LeftOutRows | None = None) -> CategoryCounts:  # fmt: skip
        """Count the rows of one partition, so many columns at the same time.

        Parameters
        ----------
        columns : mapping of (int32 array, int)
            The codes of the rows in each categorical column, by its number, and how many codes it has.
        counted : CountedCombinations
        division : Division
        first_row : int
            The id of the first row, which with the others' tells their folds.
        levels, target
            As of `FoldCounts.of`.
        left_out : LeftOutRows, optional
            Rows that do not count in the levels that are rare.
        """
        from daskboost.devices.cpu.threads import on_threads

        folds, n_folds = division.of(first_row, len(levels)), division.n_folds
        codes = Codes({(at,): own for at, (own, _) in columns.items()}, counted.encoders)
        of_columns, n_codes = [own for own, _ in columns.values()], [n for _, n in columns.values()]
        def levels_in(part: Columns) -> UInt8:
            return levels if left_out is None else left_out.levels_in(part, codes[part], levels)

        each = [levels_in((at,)) for at in columns]
        counts = FoldCounts.of(of_columns, n_codes, division, folds, levels, target, threads, each)

        def of_combination(own: Combination) -> CombinationCounts:
            of_rows = levels_in(own.columns)
            return CombinationCounts.of(own, codes, counted.most_levels, folds, of_rows, target.steps, n_folds)

        return cls(counts, on_threads(of_combination, counted.combinations, threads))

    def __add__(self, other: CategoryCounts) -> CategoryCounts:
        combinations = [a + b for a, b in zip(self.combinations, other.combinations, strict=True)]
        return CategoryCounts(self.columns + other.columns, combinations)

    def __iadd__(self, other: CategoryCounts) -> CategoryCounts:
        columns = self.columns
        columns += other.columns
        for at, own in enumerate(other.combinations):
            self.combinations[at] += own
        return CategoryCounts(columns, self.combinations)

    @property
    def kept(self) -> KeptCounts:
        """Return what features are made of: of combinations those that say something new, of columns that say the same
        only one, and of levels those that are kept."""
        copies = {own.combination.columns[1] for own in self.combinations if own.are_same}  # of a column before them
        kept: dict[Columns, KeptCombination] = {}
        for own in self.combinations:
            columns = own.combination.columns
            parts = (other.encoder.n_levels for part, other in kept.items() if set(columns).issuperset(part))
            if copies.isdisjoint(columns) and own.says_more(parts):
                kept[columns] = own.kept
        return KeptCounts(self.columns, kept)

    def kept_by(self, encoders: Mapping[Columns, CombinationEncoder]) -> KeptCounts:
        """Return what the features of a model's encoders are made of, where all of its combinations are counted."""
        kept = {own.combination.columns: own.kept_as(encoders[own.combination.columns]) for own in self.combinations}
        return KeptCounts(self.columns, kept)


@dataclass(frozen=True, eq=False)
class KeptCounts:
    """What the columns and combinations of which features are made have counted in each fold."""

    columns: FoldCounts
    combinations: Mapping[Columns, KeptCombination]
    """By their columns, in the order of their features."""
    left_out: LeftOut | None = None
    """Rows that have not been counted, and have statistics as rows do that are predicted."""

    @property
    def summary(self) -> CategorySummary:
        """Return what models need."""
        return CategorySummary(self.columns.summary, tuple(own.encoder for own in self.combinations.values()))

    def by_tile(self, rows: TrainedRows, statistics: Statistics) -> ByTile:
        """See `TrainingCounts`."""
        division = self.columns.division
        left_out = None if self.left_out is None else rows.marks(self.left_out)
        of_all = statistics._replace(share=division.share)

        def of(tile: slice) -> OfOtherFolds:
            folds = division.of(rows.first_row + tile.start, tile.stop - tile.start)
            return OfOtherFolds(self, folds, of_all, None if left_out is None else left_out[tile])

        return of


@dataclass(frozen=True, eq=False)
class OfOtherFolds:
    """Statistics of the rows in other folds, of some rows that are trained on; of all rows, of those left out."""

    counts: KeptCounts
    folds: UInt8
    statistics: Statistics
    left_out: Bool | None
    """Which rows are left out, if any are."""

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """See `RowStatistics.of`."""
        columns = self.counts.columns
        values = columns.values(place, codes, self.folds, self.statistics)
        return self._with_left_out(values, columns.tables[place].total, codes)

    def of_combination(self, own: CombinationEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_combination`."""
        columns = own.combination.columns
        kept, places = self.counts.combinations[columns], codes[columns]
        return self._with_left_out(kept.values(places, self.folds, self.statistics), kept.encoder.table, places)

    def _with_left_out(self, values: Float32, table: StatisticTable, codes: Int32) -> Float32:
        """Return the values of rows, where those that are left out have the ones of a table."""
        if self.left_out is not None:
            values[self.left_out] = table.values(codes[self.left_out], self.statistics)
        return values
