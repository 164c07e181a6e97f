"""Folds of cross-validation: rows that a model trains on, and rows held out from it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Literal, overload

import numpy as np

from daskboost.data.chunks.row_folds import Dealing, DealtRows, FoldRule, GivenFolds
from daskboost.data.input.labels import LabelStats
from daskboost.data.saved.subset import row_mask
from daskboost.dtypes import Array
from daskboost.errors import ParameterError
from daskboost.training.dataset import QuantizedDataset

Fold = tuple[QuantizedDataset, QuantizedDataset]
"""Training rows and held-out rows."""


class Folds(Sequence[Fold]):
    """Rows divided into folds: each pair is all other rows, to train on, and a fold's own.

    Target statistics of the rows of a pair know no labels of its fold. They would tell them: of the rows of a level,
    those have larger statistics whose own fold has smaller labels. For this the rows are read again for each pair, when
    that is first asked for (`QuantizedDataset.unaware_of`).

    Parameters
    ----------
    data : QuantizedDataset
    rule : FoldRule
    folds : sequence of int
        Those that are to be held out.
    """

    def __init__(self, data: QuantizedDataset, rule: FoldRule, folds: Sequence[int]) -> None:
        self._data, self._rule = data, rule
        self._whole = dict(zip(folds, data.divided(rule, folds), strict=True))
        self._made: dict[int, Fold] = {}

    @property
    def stats(self) -> list[tuple[LabelStats, LabelStats]]:
        """The summaries of each pair's halves."""
        return [(rows.info.stats, held_out.info.stats) for rows, held_out in self._whole.values()]

    def __len__(self) -> int:
        return len(self._whole)

    @overload
    def __getitem__(self, number: int) -> Fold: ...
    @overload
    def __getitem__(self, number: slice) -> list[Fold]: ...
    def __getitem__(self, number: int | slice) -> Fold | list[Fold]:
        if isinstance(number, slice):
            return [self[own] for own in range(*number.indices(len(self)))]
        fold = list(self._whole)[number]
        if fold not in self._made:
            n_others = self._whole[fold][0].info.stats.positive_weight_rows
            own = self._data.unaware_of(self._rule, fold, n_others)
            self._made[fold] = self._whole[fold] if own is self._data else own.divided(self._rule, [fold])[0]
        return self._made[fold]

    def counting(self) -> Folds:
        """Return the pairs of which both halves have rows that count."""
        found = copy(self)
        each = zip(self._whole.items(), self.stats, strict=True)
        found._whole = dict(own for own, stats in each if all(half.positive_weight_rows for half in stats))
        found._made = {}
        return found

    def free(self, number: int) -> None:
        """Forget the rows that were read again for a pair, which frees them once nobody has it."""
        self._made.pop(list(self._whole)[number], None)


def make_folds(
    data: QuantizedDataset, folds: Any, random_state: int = 0, repeat: int = 0, *, stratified: bool = False
) -> Sequence[Fold]:
    """Folds from a number of them, or from pairs of rows.

    Parameters
    ----------
    data : QuantizedDataset
        In this process where pairs are given, anywhere where a number is.
    folds : int, or iterable of (training rows, held-out rows)
        Rows by positions or marks, such as ``KFold(5).split(X)`` gives. A number makes as many of equal sizes, by
        hashes of the rows' positions; where rows have queries, as many of equal numbers of whole queries.
    random_state, repeat : int
        What the hashes depend on.
    stratified : bool
        With a number of folds: deal out the rows by label, so that each fold has all labels in about equal shares.

    Raises
    ------
    ParameterError
        Fewer than two folds or fewer rows than folds, no pairs, rows in both halves of a pair, halves without rows, a
        query with rows in both halves.
    """
    if isinstance(folds, bool) or isinstance(folds, str) or folds is None:
        raise ParameterError(f"folds={folds!r}: give their number, or pairs of training rows and held-out rows")
    if isinstance(folds, int | np.integer):
        return _dealt(data, int(folds), random_state, repeat, stratified)
    if not isinstance(folds, Iterable):
        raise ParameterError(
            f"folds is {type(folds).__name__}; give a number, or pairs such as KFold(5).split(X) gives"
        )
    if stratified:
        raise ParameterError("stratified=True has no effect on folds that are given; give their number instead")
    pairs = list(folds)
    if not pairs:
        raise ParameterError("folds is empty; give at least one pair of training rows and held-out rows")
    return _subsets(data, pairs)


def _subsets(data: QuantizedDataset, pairs: Sequence[Any]) -> list[Fold]:
    found, qid = [], _column(data, "qid") if data.info.has("qid") else None
    for number, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ParameterError(f"folds[{number}] must be a pair of training rows and held-out rows")
        train, held_out = (
            row_mask(rows, data.n_rows, f"folds[{number}][{half}]") for half, rows in enumerate(pair)
        )
        both = np.flatnonzero(train & held_out)
        if len(both):
            raise ParameterError(
                f"folds[{number}] has row {both[0]} in both halves; rows held out must not be trained on"
            )
        split = np.empty(0, np.int64) if qid is None else np.flatnonzero(held_out & np.isin(qid, qid[train]))
        if len(split):
            raise ParameterError(
                f"folds[{number}] holds out row {split[0]}, but trains on others of its query; keep queries whole, "
                "by the number of folds, or pairs such as GroupKFold(5).split(X, groups=qid) gives"
            )
        folds = np.full(data.n_numbered_rows, -1, np.int8)
        numbers = np.flatnonzero(data.shards.marks(len(folds)))
        folds[numbers[train]], folds[numbers[held_out]] = 0, 1
        halves = data.subset(train), data.subset(held_out)
        found.append((train, held_out, GivenFolds(folds), halves[0].info.stats.positive_weight_rows))
    made = []
    for train, held_out, rule, n_others in found:  # rows are read again once all pairs are right
        own = data.unaware_of(rule, 1, n_others)
        made.append((own.subset(train), own.subset(held_out)))
    return made


def _dealt(data: QuantizedDataset, n: int, random_state: int, repeat: int, stratified: bool) -> Folds:
    """Rows, or whole queries where rows have these, dealt out by their hashes; rows within their label where folds are
    stratified."""
    if stratified and data.info.has("qid"):
        raise ParameterError("stratified=True deals out rows by label, and queries stay whole; leave it out")
    if stratified and not data.info.has("label"):
        raise ParameterError("stratified=True needs labels; make the data set with y")
    if n < 2:
        raise ParameterError(f"folds={n} must lie between 2 and the number of rows, {data.n_rows}")
    made = Folds(data, dealt_rows(data, n, random_state, repeat, stratified=stratified), range(n))
    for half in (half for pair in made.stats for half in pair):
        half.check_trainable()
    return made


def dealt_rows(data: QuantizedDataset, n: int, random_state: int, repeat: int = 0, *, stratified: bool) -> DealtRows:
    """Deal rows out to `n` folds: those of a query together; of rows without queries, `stratified` ones within their
    label."""
    by: Literal["label", "qid"] | None = "qid" if data.info.has("qid") else "label" if stratified else None
    return data.dealt(Dealing.of(n, random_state, repeat, by, data.info.stats))


def _column(data: QuantizedDataset, name: str) -> Array:
    """Return a column of all rows, in order, by the name of its field."""
    every = [entry for shard in data.shards.shards for entry in shard.entries]
    entries = sorted(every, key=operator.attrgetter("first_row"))
    columns = [(getattr(entry.rows, name), entry.selected) for entry in entries]
    return np.concatenate([own if selected is None else own[selected] for own, selected in columns])
