"""Rows dealt out to folds by hashes of their numbers, wherever they lie.

A row's fold depends on its number, or its query's code, and on a few thresholds. These come from the smallest hashes of
all rows, of which each shard tells its own (`smallest_hashes`); where they are all that there are, folds are equal
(`rule_of`). Chunks, partitions and workers change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from daskboost.data.chunks.shard import Shard, ShardChunk
from daskboost.data.input.labels import LabelStats
from daskboost.dtypes import Array, Bool, Int64, UInt64
from daskboost.hashing import Purpose, draws, key

MOST_HASHES = 2**20
"""Hashes of all groups of rows together, 8 MB; with more rows folds are equal up to 0.3 % of their size."""
LEAST_HASHES = 64
"""Hashes of a group, however many groups there are."""
_LAST = np.uint64(2**64 - 1)


class FoldRule(Protocol):
    """Which fold each row belongs to."""

    def folds_of(self, entry: ShardChunk) -> Int64:
        """Return the folds of a chunk's rows; int64, shape (rows,)."""
        ...


@dataclass(frozen=True)
class LastRows:
    """Fold 1 are the rows from number `first` on, fold 0 those before."""

    first: int

    def folds_of(self, entry: ShardChunk) -> Int64:
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

    def hashes_of(self, entry: ShardChunk) -> UInt64:
        """Return what each row of a chunk is dealt out by; uint64, shape (rows,)."""
        if self.by == "qid":
            assert entry.rows.qid is not None
            numbers = entry.rows.qid.view(np.uint64)
        else:
            numbers = np.arange(entry.n_rows, dtype=np.uint64) + np.uint64(entry.first_row)
        return draws(key(self.seed, Purpose.FOLDS, self.repeat), numbers)

    def groups_of(self, entry: ShardChunk) -> Array:
        """Return the values that keep rows in groups of their own: labels, or zeros."""
        return np.zeros(entry.n_rows, np.float32) if self.by != "label" else np.asarray(entry.rows.label)


@dataclass(frozen=True)
class Hashes:
    """The smallest hashes of each group of rows; `a + b` is that of both parts, in any order.

    Parameters
    ----------
    groups : float32 array, shape (hashes,), increasing
    hashes : uint64 array, shape (hashes,), increasing within each group
    most : int
        How many are kept of each group.
    """

    groups: Array
    hashes: UInt64
    most: int

    @classmethod
    def of(cls, groups: Array, hashes: UInt64, most: int) -> Hashes:
        """Keep the smallest of each group, equal ones once."""
        order = np.lexsort((hashes, groups))
        groups, hashes = groups[order], hashes[order]
        starts = np.concatenate([[True], groups[1:] != groups[:-1]])[: len(groups)]
        new = starts.copy()
        new[1:] |= hashes[1:] != hashes[:-1]
        groups, hashes, starts = groups[new], hashes[new], starts[new]
        firsts = np.flatnonzero(starts)
        place = np.arange(len(groups)) - firsts[np.cumsum(starts) - 1] if len(groups) else np.empty(0, np.int64)
        kept = place < most
        return cls(groups[kept], hashes[kept], most)

    def __add__(self, other: Hashes) -> Hashes:
        return Hashes.of(
            np.concatenate([self.groups, other.groups]), np.concatenate([self.hashes, other.hashes]), self.most
        )


def smallest_hashes(shards: Iterable[Shard], dealing: Dealing) -> Hashes:
    """Return the smallest hashes of the rows of some shards that count."""
    total = Hashes(np.empty(0, np.float32), np.empty(0, np.uint64), dealing.most)
    for shard in shards:
        for entry in shard.entries:
            rows: Bool | slice = slice(None) if entry.selected is None else entry.selected
            total += Hashes.of(dealing.groups_of(entry)[rows], dealing.hashes_of(entry)[rows], dealing.most)
    return total


@dataclass(frozen=True)
class DealtRows:
    """The folds of rows that are dealt out.

    Parameters
    ----------
    values : array, shape (groups,), increasing
        The groups' values.
    thresholds : uint64 array, shape (folds - 1, groups)
        The first hash of each fold but the first.
    turns : int64 array, shape (groups,)
        What is added to a group's folds, which go round, so that what is left over of small groups does not always go
        to the same fold.
    """

    dealing: Dealing
    values: Array
    thresholds: UInt64
    turns: Int64

    def folds_of(self, entry: ShardChunk) -> Int64:
        """See `FoldRule`."""
        hashes = self.dealing.hashes_of(entry)
        group = np.searchsorted(self.values, self.dealing.groups_of(entry))
        group = np.minimum(group, len(self.values) - 1)  # of rows that do not count
        folds = self.turns[group].copy()
        for threshold in self.thresholds:
            folds += hashes >= threshold[group]
        return np.asarray(folds % self.dealing.n_folds)


def rule_of(dealing: Dealing, found: Hashes) -> DealtRows:
    """Return which fold each row belongs to, by the smallest hashes of all rows.

    Of a group all of whose hashes are known folds get equally many, up to one, and the whole does too; of others each
    fold gets an equal share of all hashes that there are.
    """
    n = dealing.n_folds
    values, starts, counts = np.unique(found.groups, return_index=True, return_counts=True)
    thresholds: UInt64 = np.empty((n - 1, len(values)), np.uint64)
    for fold in range(1, n):
        place = fold * (counts // n) + np.minimum(fold, counts % n)
        known = found.hashes[starts + np.minimum(place, counts - 1)]
        equal_share = np.uint64(2**64 * fold // n)
        thresholds[fold - 1] = np.where(counts >= found.most, equal_share, np.where(place < counts, known, _LAST))
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
