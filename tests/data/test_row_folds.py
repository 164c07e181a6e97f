"""Rows are dealt out to folds by hashes, alike wherever they lie."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskboost import QuantizedDataset
from daskboost.data.chunks import row_folds
from daskboost.data.chunks.row_folds import Dealing, Hashes, LastRows, known_hashes, rule_of
from daskboost.dtypes import Int64
from daskboost.errors import DataError
from daskboost.hashing import Purpose, draws, key

By = Literal["label", "qid"] | None


def rows(n_rows: int, chunk_rows: int, by: By, seed: int = 0) -> QuantizedDataset:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, n_rows) if by != "qid" else rng.random(n_rows)
    query = rng.integers(0, max(n_rows // 5, 5), n_rows) if by == "qid" else None
    return QuantizedDataset(rng.random((n_rows, 2)), label, qid=query, chunk_rows=chunk_rows, n_jobs=1, device="cpu")


def column(data: QuantizedDataset, name: str) -> Any:
    return np.concatenate([getattr(entry.rows, name) for shard in data.shards.shards for entry in shard.entries])


def folds_of(data: QuantizedDataset, dealing: Dealing) -> Int64:
    rule = data.dealt(dealing)
    return np.concatenate([rule.folds_of(entry) for shard in data.shards.shards for entry in shard.entries])


def naive_folds(data: QuantizedDataset, n: int, by: By) -> Int64:
    """Sort by group and hash, and deal contiguous shares out, going on where the group before ended."""
    numbers = column(data, "qid").view(np.uint64) if by == "qid" else np.arange(data.n_rows, dtype=np.uint64)
    hashes = draws(key(3, Purpose.FOLDS, 1), numbers)
    group = column(data, "label") if by == "label" else np.zeros(data.n_rows)
    folds, turn = np.empty(data.n_rows, np.int64), 0
    for value in np.unique(group):
        own = np.flatnonzero(group == value)
        distinct = np.unique(hashes[own])
        for fold, part in enumerate(np.array_split(distinct, n)):  # the first parts have one more
            folds[own[np.isin(hashes[own], part)]] = (fold + turn) % n
        turn += len(distinct)
    return folds


@settings(max_examples=40)
@given(n_rows=st.integers(8, 90), n=st.integers(2, 5), by=st.sampled_from([None, "label", "qid"]),
       chunk_rows=st.sampled_from([7, 1000]))  # fmt: skip
def test_folds_are_those_of_sorted_hashes(n_rows: int, n: int, by: By, chunk_rows: int) -> None:
    with rows(n_rows, chunk_rows, by) as data:
        found = folds_of(data, Dealing.of(n, 3, 1, by, data.info.stats))
        np.testing.assert_array_equal(found, naive_folds(data, n, by))


@pytest.mark.parametrize("by", [None, "label", "qid"])
def test_more_rows_than_hashes_have_about_equal_folds(monkeypatch: pytest.MonkeyPatch, by: By) -> None:
    monkeypatch.setattr(row_folds, "MOST_HASHES", 200)
    with rows(40_000, 3000, by) as data:
        dealing = Dealing.of(5, 3, 1, by, data.info.stats)
        assert dealing.most == (64 if by == "label" else 200)
        folds = folds_of(data, dealing)
        shares = np.bincount(folds, minlength=5) / len(folds)
        assert np.abs(shares - 0.2).max() < 0.015
        if by == "qid":
            query = column(data, "qid")
            assert all(len(np.unique(folds[query == own])) == 1 for own in np.unique(query)[:50])


def test_a_rare_label_is_in_all_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_folds, "MOST_HASHES", 200)
    label = np.zeros(5000, np.float32)
    label[17::500] = 1  # ten rows, all of whose hashes are known
    with QuantizedDataset(np.ones((5000, 1)), label, n_jobs=1, device="cpu") as data:
        folds = folds_of(data, Dealing.of(5, 0, 0, "label", data.info.stats))
    assert np.bincount(folds[label == 1], minlength=5).tolist() == [2] * 5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=60), st.integers(0, 9),
       st.integers(1, 8))  # fmt: skip
def test_sums_of_hashes_have_no_order(pairs: list[tuple[int, int]], seed: int, most: int) -> None:
    def hashes_of(some: list[tuple[int, int]]) -> Hashes:
        groups, values = np.array(some, np.uint64).reshape(-1, 2).T
        return Hashes.of(groups.astype(np.float32), values, most, np.empty(0, np.float32))

    cuts = sorted(np.random.default_rng(seed).integers(0, len(pairs) + 1, 2).tolist())
    parts = [pairs[: cuts[0]], pairs[cuts[1] :], pairs[cuts[0] : cuts[1]]]
    expected = hashes_of(pairs)
    for order in (parts, parts[::-1]):
        found = reduce(add, map(hashes_of, order))
        np.testing.assert_array_equal(found.groups, expected.groups)
        np.testing.assert_array_equal(found.hashes, expected.hashes)
        np.testing.assert_array_equal(found.full, expected.full)
    every = [sorted({value for group, value in pairs if group == own}) for own in range(3)]
    assert expected.hashes.tolist() == [value for own in every for value in own if len(own) < most]
    assert expected.full.tolist() == [own for own, values in enumerate(every) if len(values) >= most]
    assert expected.fewest == sum(min(len(own), most) for own in every)


@pytest.mark.parametrize("chunk_rows", [7, 60, 1000])
def test_groups_of_many_are_told_alike_by_any_chunks(monkeypatch: pytest.MonkeyPatch, chunk_rows: int) -> None:
    monkeypatch.setattr(row_folds, "LEAST_HASHES", 20)
    monkeypatch.setattr(row_folds, "MOST_HASHES", 20)
    label = np.repeat([0.0, 1.0, 2.0], [100, 20, 19])[np.random.default_rng(2).permutation(139)]
    with QuantizedDataset(np.ones((139, 1)), label, chunk_rows=chunk_rows, n_jobs=1, device="cpu") as data:
        dealing = Dealing.of(3, 0, 0, "label", data.info.stats)
        found = known_hashes(data.shards.shards, dealing)
        folds = folds_of(data, dealing)
    assert found.full.tolist() == [0, 1]
    assert found.groups.tolist() == [2] * 19
    assert found.fewest == 20 + 20 + 19
    assert sorted(np.bincount(folds[label == 2]).tolist()) == [6, 6, 7]
    hashes = dealing.hashes_of(np.arange(139, dtype=np.uint64))
    expected = [int(own) * 3 >> 64 for own in hashes]
    np.testing.assert_array_equal(folds[label != 2], np.array(expected)[label != 2])


def test_halves_share_chunks_and_know_their_labels() -> None:
    with rows(100, 30, "label") as data:
        rule = data.dealt(Dealing.of(4, 0, 0, None, data.info.stats))
        halves = data.divided(rule, [0, 2])
        folds, label = folds_of(data, Dealing.of(4, 0, 0, None, data.info.stats)), column(data, "label")
        for fold, (others, own) in zip([0, 2], halves, strict=True):
            for half, marks in ((others, folds != fold), (own, folds == fold)):
                np.testing.assert_array_equal(half.shards.marks(100), marks)
                assert half.n_rows == marks.sum() and half.info.stats.maximum == label[marks].max()
                assert half.is_subset and half.n_numbered_rows == 100
        others, _ = halves[0]
        (kept, last), = others.divided(LastRows(80), [1])
        np.testing.assert_array_equal(last.shards.marks(100), (folds != 0) & (np.arange(100) >= 80))
        assert kept.n_rows + last.n_rows == others.n_rows
        hashes = known_hashes(last.shards.shards, Dealing.of(2, 0, 0, None, data.info.stats)).hashes
        assert len(hashes) == last.n_rows
        assert rule_of(rule.dealing, known_hashes(last.shards.shards, rule.dealing)).thresholds.shape == (3, 1)
    with pytest.raises(DataError, match="the data set was closed"):
        data.divided(rule, [0])
