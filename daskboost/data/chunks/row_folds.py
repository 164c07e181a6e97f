"""Rows dealt out to folds by hashes of their numbers, wherever they lie.

A row's fold depends on its number, or its query's code, and on a few thresholds. Where a group of rows is small, all
its hashes are known, of which each shard tells its own (`known_hashes`), and folds are equal; large groups get about
equal ones (`rule_of`). Chunks, partitions and workers change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from daskboost.data.chunks.shard import Shard, ShardChunk
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_columns import ChunkRows
from daskboost.dtypes import Array, Bool, Int8, Int64, UInt64
from daskboost.hashing import Purpose, draws, key

MOST_HASHES = 2**17
"""Hashes of all groups of rows together, 1 MB; with more rows folds are equal up to 1 % of their size."""
LEAST_HASHES = 64
"""Hashes of a group, however many groups there are."""
BLOCK_ROWS = 2**15
"""Rows dealt out at a time, whose hashes stay in a core's cache."""
_LAST = np.uint64(2**64 - 1)


class NumberedRows(Protocol):
    """Rows that have numbers: those of a chunk, or of a partition."""

    @property
    def first_row(self) -> int:
        """Return the number of the first row; those of others follow."""
        ...

    @property
    def n_rows(self) -> int:
        """Return how many rows there are."""
        ...

    @property
    def rows(self) -> ChunkRows:
        """Return what rows have beside features."""
        ...


@dataclass(frozen=True)
class PartitionRows:
    """The rows of a partition, see `NumberedRows`."""

    first_row: int
    n_rows: int
    rows: ChunkRows


class FoldRule(Protocol):
    """Which fold each row belongs to."""

    def folds_of(self, entry: NumberedRows) -> Array:
        """Return the folds of some rows, -1 of rows that are in none; integers, shape (rows,)."""
        ...


@dataclass(frozen=True)
class LeftOut:
    """Rows whose labels other rows must not know: those of one fold, and those that are in none.

    Parameters
    ----------
    rule : FoldRule
    fold : int
        The fold whose rows are held out.
    """

    rule: FoldRule
    fold: int

    def marks(self, entry: NumberedRows) -> Bool:
        """Return which of some rows are left out; bool, shape (rows,)."""
        folds = self.rule.folds_of(entry)
        marks: Bool = (folds == self.fold) | (folds < 0)
        return marks


@dataclass(frozen=True, eq=False)
class GivenFolds:
    """Folds that are given for each row; `folds` : int8 array, shape (all rows,), by their numbers."""

    folds: Int8

    def folds_of(self, entry: NumberedRows) -> Array:
        """See `FoldRule`."""
        return self.folds[entry.first_row : entry.first_row + entry.n_rows]


@dataclass(frozen=True, eq=False)
class OfSubset:
    """The folds of the rows of a subset, of which other rows are in none; `marks` : bool array, shape (all rows,)."""

    rule: FoldRule
    marks: Bool

    def folds_of(self, entry: NumberedRows) -> Array:
        """See `FoldRule`."""
        own = self.marks[entry.first_row : entry.first_row + entry.n_rows]
        return np.where(own, self.rule.folds_of(entry), -1)


@dataclass(frozen=True)
class LastRows:
    """Fold 1 are the rows from number `first` on, fold 0 those before."""

    first: int

    def folds_of(self, entry: NumberedRows) -> Int64:
        """See `FoldRule`."""
        return (np.arange(entry.n_rows) + entry.first_row >= self.first).astype(np.int64)


@dataclass(frozen=True)
class Dealing:
    """How rows are to be dealt out.

    Parameters
    ----------
    n_folds : int
    seed, repeat : int
        What hashes depend on, with the numbers of rows or the codes of queries.
    by : {None, "label", "qid"}
        Rows one by one; those of each label by themselves, so that folds have all labels in equal shares; or whole
        queries, so that folds have equally many.
    most : int
        Hashes that are told of each label, or of all rows.
    """

    n_folds: int
    seed: int
    repeat: int
    by: Literal["label", "qid"] | None
    most: int

    @classmethod
    def of(cls, n_folds: int, seed: int, repeat: int, by: Literal["label", "qid"] | None, stats: LabelStats) -> Dealing:
        """Return how rows whose labels have that summary are dealt out."""
        most = MOST_HASHES
        if by == "label":
            span = stats.maximum - stats.minimum + 1 if stats.all_integer else float(stats.n_rows)
            most = max(int(MOST_HASHES / max(span, 1.0)), LEAST_HASHES)
        return cls(n_folds, seed, repeat, by, most)

    def numbers_of(self, entry: NumberedRows, begin: int = 0, end: int | None = None) -> UInt64:
        """Return the numbers of a chunk's rows, or of some of them, or the codes of their queries; uint64, shape
        (rows,)."""
        end = entry.n_rows if end is None else end
        if self.by == "qid":
            assert entry.rows.qid is not None
            return entry.rows.qid[begin:end].view(np.uint64)
        return np.arange(entry.first_row + begin, entry.first_row + end, dtype=np.uint64)

    def hashes_of(self, numbers: UInt64) -> UInt64:
        """Return what rows, or queries, of those numbers are dealt out by; uint64, shape (rows,)."""
        return draws(key(self.seed, Purpose.FOLDS, self.repeat), numbers)

    def groups_of(self, entry: NumberedRows) -> Array:
        """Return the values that keep rows in groups of their own: labels, or zeros."""
        return np.zeros(entry.n_rows, np.float32) if self.by != "label" else np.asarray(entry.rows.label)


@dataclass(frozen=True)
class Hashes:
    """All hashes of each group of rows that has few; `a + b` is that of both parts, in any order.

    Parameters
    ----------
    groups : float32 array, shape (hashes,), increasing
    hashes : uint64 array, shape (hashes,), increasing within each group
    full : float32 array, shape (full groups,), increasing
        Groups of `most` hashes or more, of which none is kept.
    most : int
    """

    groups: Array
    hashes: UInt64
    full: Array
    most: int

    @property
    def fewest(self) -> int:
        """Return how many hashes there are at the least."""
        return len(self.hashes) + self.most * len(self.full)

    @classmethod
    def of(cls, groups: Array, hashes: UInt64, most: int, full: Array) -> Hashes:
        """Keep equal ones once, of groups none of which is `full`."""
        order = np.lexsort((hashes, groups))
        groups, hashes = groups[order], hashes[order]
        new = np.ones(len(groups), np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (hashes[1:] != hashes[:-1])
        groups, hashes = groups[new], hashes[new]
        more = _of_many(groups, most)
        kept = _rows_without(groups, more)
        return cls(groups[kept], hashes[kept], np.union1d(full, more), most)

    def __add__(self, other: Hashes) -> Hashes:
        groups, full = np.concatenate([self.groups, other.groups]), np.union1d(self.full, other.full)
        kept = _rows_without(groups, full)
        return Hashes.of(groups[kept], np.concatenate([self.hashes, other.hashes])[kept], self.most, full)


def _rows_without(groups: Array, dropped: Array) -> Bool | slice:
    """Return which rows are of none of the dropped groups."""
    return ~np.isin(groups, dropped) if len(dropped) else slice(None)


def _of_many(groups: Array, most: int) -> Array:
    """Return the groups of `most` rows or more, increasing."""
    values, counts = np.unique(groups, return_counts=True)
    return values[counts >= most]


def known_hashes(shards: Iterable[Shard], dealing: Dealing) -> Hashes:
    """Return the hashes of the rows of some shards that count, of groups that have few."""
    none = np.empty(0, np.float32)
    total = Hashes(none, np.empty(0, np.uint64), none, dealing.most)
    for shard in shards:
        for entry in shard.entries:
            groups, numbers = dealing.groups_of(entry), dealing.numbers_of(entry)
            counting = slice(None) if entry.selected is None else entry.selected
            groups, numbers = groups[counting], numbers[counting]
            kept = _rows_without(groups, total.full)
            groups, numbers = groups[kept], numbers[kept]
            full = total.full
            if dealing.by != "qid":  # rows have numbers of their own, so that counting them is enough
                full = np.union1d(full, _of_many(groups, dealing.most))
                kept = _rows_without(groups, full)
                groups, numbers = groups[kept], numbers[kept]
            total += Hashes.of(groups, dealing.hashes_of(numbers), dealing.most, full)
    return total


@dataclass(frozen=True)
class DealtRows:
    """The folds of rows that are dealt out: of groups all of whose hashes are known folds get equally many, up to one,
    and the whole of these groups does too; of others each fold gets an equal share of all hashes that there are.

    Parameters
    ----------
    values : array, shape (groups,), increasing
        The values of groups whose hashes are known.
    thresholds : uint64 array, shape (folds - 1, groups)
        Their first hash of each fold but the first.
    turns : int64 array, shape (groups,)
        What is added to a group's folds, which go round, so that what is left over of small groups does not always go
        to the same fold.
    """

    dealing: Dealing
    values: Array
    thresholds: UInt64
    turns: Int64

    def folds_of(self, entry: NumberedRows) -> Int64:
        """See `FoldRule`."""
        folds, groups = np.empty(entry.n_rows, np.int64), self.dealing.groups_of(entry)
        for begin in range(0, entry.n_rows, BLOCK_ROWS):
            own = slice(begin, min(begin + BLOCK_ROWS, entry.n_rows))
            hashes = self.dealing.hashes_of(self.dealing.numbers_of(entry, own.start, own.stop))
            folds[own] = self._folds(hashes, groups[own])
        return folds

    def _folds(self, hashes: UInt64, groups: Array) -> Int64:
        half, n = np.uint64(32), self.dealing.n_folds
        folds = ((hashes >> half) * np.uint64(n) >> half).astype(np.int64)
        if not len(self.values):
            return folds
        group = np.minimum(np.searchsorted(self.values, groups), len(self.values) - 1)
        few = np.flatnonzero(self.values[group] == groups)
        hashes, group = hashes[few], group[few]
        places = self.turns[group]
        for threshold in self.thresholds:
            places += hashes >= threshold[group]
        folds[few] = places % n
        return folds


def rule_of(dealing: Dealing, found: Hashes) -> DealtRows:
    """Return which fold each row belongs to, by the hashes of all rows."""
    n = dealing.n_folds
    values, starts, counts = np.unique(found.groups, return_index=True, return_counts=True)
    thresholds: UInt64 = np.empty((n - 1, len(values)), np.uint64)
    for fold in range(1, n):
        place = fold * (counts // n) + np.minimum(fold, counts % n)
        known = found.hashes[starts + np.minimum(place, counts - 1)]
        thresholds[fold - 1] = np.where(place < counts, known, _LAST)
    return DealtRows(dealing, values, thresholds, np.cumsum(counts) - counts)


def divided(shard: Shard, rule: FoldRule, folds: Sequence[int]) -> list[tuple[Shard, Shard]]:
    """For each of some folds a shard of the rows of all others, and one of its own, which share the shard's chunks."""
    folds_of = {entry.first_row: rule.folds_of(entry) for entry in shard.entries}

    def half(fold: int, is_own: bool) -> Shard:
        def marks_of(entry: ShardChunk) -> Bool:
            marks: Bool = (folds_of[entry.first_row] == fold) == is_own
            return marks if entry.selected is None else marks & entry.selected

        return shard.selecting(marks_of)

    return [(half(fold, False), half(fold, True)) for fold in folds]
