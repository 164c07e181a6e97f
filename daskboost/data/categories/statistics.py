"""Target statistics: a categorical column becomes numbers that tell of its categories' targets.

    labels -> Target: levels 0, 1, ... of each row
    levels of rows and codes of a column -> StatisticTable -> values of other rows

Counts and sums are of integers, so that values are the same bytes for any partitioning, any number of threads and any
number of workers. Values of the rows that are counted would tell their own labels: see `folds.py`.

A column takes 4 bytes a row for its codes and 4 for each of m statistics, and a table 8 x (1 + m) for each code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.cuts.cell_counts import CellCounts
from daskboost.data.cuts.key_counts import KeyTable, values_of
from daskboost.dtypes import Array, Float32, Int32, Int64, UInt8, for_kernels
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics

MOST_TARGET_LEVELS = 255
"""The most levels of a target: they are uint8, and one value is left for rows that are not counted."""
MOST_STATISTICS = 16
"""The most numbers that a category becomes: labels that each have a statistic, or classes, the most frequent ones."""
RANKS = 16
"""Levels of a target whose labels are many numbers: equal parts of the rows, by their labels."""
LABEL_CELLS = 1 << 16
"""Cells in which labels are counted: 1 MB, and each distinct label has its own where there are no more."""


def count_labels(labels: Float32, weight: Float32 | None = None) -> KeyTable:
    """Count the labels of some rows; `+` of the results counts those of all, in any order to the same bytes.

    Parameters
    ----------
    labels : float32 array, shape (rows,)
        Without NaN.
    weight : float32 array, shape (rows,), or None for ones
        Rows of weight 0 leave no trace; others count as one, whatever they weigh.
    """
    return KeyTable.of(labels if weight is None else labels[weight > 0], capacity=LABEL_CELLS)


@dataclass(frozen=True, eq=False)
class Target:
    """How labels become levels, and what of them are a category's statistics: the shares of some, or their mean.

    Parameters
    ----------
    thresholds : float32 array, shape (levels - 1,)
        Strictly increasing. The level of a label is the number of thresholds that are no greater.
    shares : tuple of int
        A statistic for each: the part of a category's rows whose labels are of that level.
    is_mean : bool, default False
        Whether there is one statistic instead, the mean level of a category's rows, from 0 to 1: of labels that are
        many numbers a mean rank, to which no label adds more than others, however large it is.
    """

    thresholds: Float32
    shares: tuple[int, ...] = (1,)
    is_mean: bool = False

    @classmethod
    def of(cls, labels: KeyTable, are_classes: bool = False) -> Target:
        """Choose levels: two of two different labels; one of each label, up to `MOST_STATISTICS` labels; and else
        `RANKS` of numbers, whose mean is the statistic, or those of classes.

        Parameters
        ----------
        labels : KeyTable
            What `count_labels` gives of all rows.
        are_classes : bool, default False
            Whether labels are codes of classes, whose order means nothing: of many, statistics are of the most
            frequent ones.
        """
        from daskboost.data.cuts.cut_points import make_cuts  # which loads numba: models are read without

        cells = CellCounts(labels.offsets, labels.lower, labels.upper, labels.counts[:, 0], np.zeros(1, np.bool_))
        n_labels = len(cells.lower)
        n_levels = n_labels if n_labels <= MOST_STATISTICS else MOST_TARGET_LEVELS if are_classes else RANKS
        found = cls(make_cuts(cells, max(n_levels, 2)).values)
        if found.n_levels <= 2:
            return found if found.n_levels == 2 else replace(found, shares=())
        if n_labels > MOST_STATISTICS and not are_classes:
            return replace(found, is_mean=True)
        counts = np.bincount(found.levels(values_of(cells.lower)), cells.counts, found.n_levels)
        frequent = np.argsort(-counts, kind="stable")[:MOST_STATISTICS]
        return replace(found, shares=tuple(np.sort(frequent).tolist()))

    @property
    def n_levels(self) -> int:
        return len(self.thresholds) + 1

    @property
    def n_statistics(self) -> int:
        """How many numbers a category becomes: none, where all labels are the same."""
        return len(self.shares)

    def levels(self, labels: Float32, weight: Float32 | None = None) -> UInt8:
        """Return the level of each label; rows of weight 0 are marked as not to be counted; uint8, shape (rows,)."""
        levels = np.searchsorted(self.thresholds, labels, side="right").astype(np.uint8)
        if weight is not None:
            from daskboost.devices.cpu.statistics import NOT_COUNTED

            levels[weight == 0] = NOT_COUNTED
        return levels

    def statistics(self, priors: Sequence[float], share: float = 1.0) -> Statistics:
        """Return what kernels take: what levels add to each sum, and how values come of it; priors, one for each
        statistic, are what rows add to its sum on average. `share` : see `Statistics`."""
        from daskboost.devices.cpu.statistics import Statistics

        if len(priors) != self.n_statistics:
            raise DataError(f"priors: {len(priors)} were given for {self.n_statistics} statistics")
        unit = 1.0 / int(self.steps.max(initial=1))
        return Statistics(self.steps, np.array(priors, np.float64) * unit, unit, share)

    @property
    def steps(self) -> UInt8:
        """Return what a row of each level adds to the sums; uint8, shape (levels, statistics)."""
        if self.is_mean:
            return np.arange(self.n_levels, dtype=np.uint8)[:, None]
        steps: UInt8 = (np.arange(self.n_levels)[:, None] == np.array(self.shares, np.int64)).astype(np.uint8)
        return steps

    @property
    def labels(self) -> list[str]:
        """Return what plots call the statistics."""
        return ["target"] if self.shares == (1,) else [f"target {level}" for level in self.shares]

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON values; thresholds are float32 values exactly."""
        kind = {"is_mean": True} if self.is_mean else {}
        return {"thresholds": self.thresholds.tolist(), "shares": list(self.shares), **kind}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Target:
        """Return the target that `to_json` gave; ValueError for thresholds that do not increase and levels that there
        are not."""
        thresholds, shares = np.array(found["thresholds"], np.float32), tuple(map(int, found["shares"]))
        if len(thresholds.shape) != 1 or not (np.diff(thresholds) > 0).all() or len(thresholds) >= MOST_TARGET_LEVELS:
            raise ValueError("the thresholds of the target do not increase")
        if any(not 0 <= level <= len(thresholds) for level in shares) or len(set(shares)) < len(shares):
            raise ValueError("the target has statistics of levels that there are not")
        is_mean = bool(found.get("is_mean", False))
        if is_mean and shares != (1,):
            raise ValueError("the target has shares of levels beside their mean")
        return cls(thresholds, shares, is_mean)


def most_frequent(n_rows: Array, most: int) -> Int64:
    """Return the places of the largest numbers of rows, so many at most, increasing; of equal ones the first."""
    if most >= len(n_rows):
        return np.arange(len(n_rows))
    if most == 0:
        return np.empty(0, np.int64)
    least = np.partition(n_rows, -most)[-most]
    chosen = n_rows > least
    chosen[np.flatnonzero(n_rows == least)[: most - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


@dataclass(frozen=True, eq=False)
class StatisticTable:
    """What the codes of a column have counted; `a + b` is what they count together.

    Parameters
    ----------
    counts : int64 array, shape (codes + 1, 1 + m)
        Rows of each code and the sums of their m statistics; those of missing values come last.
    """

    counts: Int64

    def __reduce__(self) -> tuple[Callable[[Int64], StatisticTable], tuple[Int64]]:
        return _received, (self.counts,)

    def __add__(self, other: StatisticTable) -> StatisticTable:
        return StatisticTable(self.counts + other.counts)

    @property
    def n_codes(self) -> int:
        return len(self.counts) - 1

    def values(self, codes: Int32, statistics: Statistics) -> Float32:
        """Return the statistics of rows that had no part in the table; float32, shape (rows, m).

        `codes` : int32, shape (rows,); -1 for missing values, -2 for categories without a code, which get the priors.
        """
        from daskboost.devices.cpu.statistics import table_values

        values = np.empty((len(codes), self.counts.shape[1] - 1), np.float32)
        table_values(codes, self.counts, statistics, values)
        return values

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {"counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StatisticTable:
        """Return the table that `to_json` gave; ValueError for what is no table of counts."""
        counts = np.array(found["counts"], np.int64)
        if len(counts.shape) != 2 or 0 in counts.shape or (counts < 0).any():
            raise ValueError("counts of categories are no table")
        return cls(counts)


def _received(counts: Int64) -> StatisticTable:
    return StatisticTable(for_kernels(counts))
