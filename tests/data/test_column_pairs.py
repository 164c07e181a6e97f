"""Pairs of categorical columns: against the naive twin, which ones there are, and the laws of what they count."""

from __future__ import annotations

import functools
import json
import operator
import pickle
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import pairs as reference
from reference.folds import fold_statistics

from daskboost.data.categories import pairs as module
from daskboost.data.categories.encode import CategoryOptions, encoded
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.folds import folds_of
from daskboost.data.categories.level_rooms import MOST_BYTES
from daskboost.data.categories.pairs import (
    MOST_PAIRS,
    Pair,
    PairCounts,
    PairEncoder,
    check_complexity,
    chosen_pairs,
)  # fmt: skip
from daskboost.data.categories.statistics import Target
from daskboost.data.input.source import Source, make_source
from daskboost.devices.cpu.statistics import NOT_COUNTED
from daskboost.dtypes import Float32, Int32, UInt8
from daskboost.errors import ParameterError
from daskboost.local.in_process import LocalRunner

N, SEED = 300, 5
TARGET = Target(np.array([0.5], np.float32))
STATISTICS = TARGET.statistics((0.25,))
unhurried = settings(deadline=None, max_examples=60)


@st.composite
def coded(draw: st.DrawFn) -> tuple[Pair, dict[int, Int32], UInt8, int]:
    """A pair of few or many keys, rows of it, the levels of their targets, and how many levels are kept."""
    n, sizes = draw(st.integers(1, 40)), draw(st.sampled_from([(4, 4), (900, 4), (4, 900)]))
    columns = [
        np.array(draw(st.lists(st.sampled_from([-2, -1, 0, 1, size - 2]), min_size=n, max_size=n)), np.int32)
        for size in sizes
    ]
    levels = np.array(draw(st.lists(st.sampled_from([0, 1, NOT_COUNTED]), min_size=n, max_size=n)), np.uint8)
    return Pair((1, 3), sizes), dict(zip((1, 3), columns, strict=True)), levels, draw(st.sampled_from([1, 3, 1000]))


def counted(pair: Pair, codes: dict[int, Int32], levels: UInt8, most: int, start: int = 0, stop: int | None = None
            ) -> PairCounts:  # fmt: skip
    part = slice(start, stop)
    own, folds = {at: column[part] for at, column in codes.items()}, folds_of(SEED, 0, len(levels))[part]
    return PairCounts.of(pair, own, most, folds, levels[part], TARGET.steps)


def labels_of(levels: UInt8) -> list[int | None]:
    return [None if level == NOT_COUNTED else level for level in levels.tolist()]


@unhurried
@given(coded())
def test_values_equal_the_naive_twin(given_: tuple[Pair, dict[int, Int32], UInt8, int]) -> None:
    pair, codes, levels, most = given_
    first, second = (codes[at].tolist() for at in pair.columns)
    counts, folds = counted(*given_), folds_of(SEED, 0, len(levels))
    wanted = reference.levels_of(first, second, [label is not None for label in labels_of(levels)], most)
    keys = [(first + 1) * pair.sizes[1] + second + 1 for first, second in wanted]
    assert counts.kept.encoder.keys.tolist() == keys
    found = counts.kept.values(codes, folds, STATISTICS)
    expected = reference.values(first, second, folds.tolist(), labels_of(levels), 0.25, most)
    np.testing.assert_array_equal(found[:, 0], np.array(expected, np.float32))
    later = counts.kept.encoder.values(codes, STATISTICS)  # of rows that had no part: those in a fold of their own
    expected = reference.values(
        first * 2, second * 2, [*folds.tolist(), *[-1] * len(first)], [*labels_of(levels), *[None] * len(first)],
        0.25, most,
    )  # fmt: skip
    np.testing.assert_array_equal(later[:, 0], np.array(expected[len(first) :], np.float32))


@unhurried
@given(coded(), st.lists(st.integers(0, 40), max_size=3), st.sampled_from([operator.add, operator.iadd]))
def test_partitions_count_what_the_whole_does(
    given_: tuple[Pair, dict[int, Int32], UInt8, int], borders: list[int], added: Any
) -> None:
    pair, codes, levels, most = given_
    edges = [0, *sorted(min(border, len(levels)) for border in borders), len(levels)]
    parts = [counted(pair, codes, levels, most, *edge) for edge in pairwise(edges)]
    assert all(part.kept.encoder.keys.dtype == np.int64 for part in parts)
    found = functools.reduce(added, (pickle.loads(pickle.dumps(part)) for part in reversed(parts)))
    wanted, folds = counted(*given_), folds_of(SEED, 0, len(levels))
    assert json.dumps(found.kept.encoder.to_json()) == json.dumps(wanted.kept.encoder.to_json())
    assert found.is_new == wanted.is_new
    values = [own.kept.values(codes, folds, STATISTICS).tobytes() for own in (found, wanted)]
    assert values[0] == values[1]


@unhurried
@given(coded(), st.data())
def test_a_rows_own_label_does_not_show(
    given_: tuple[Pair, dict[int, Int32], UInt8, int], data: st.DataObject
) -> None:
    pair, codes, levels, most = given_
    row, folds = data.draw(st.integers(0, len(levels) - 1)), folds_of(SEED, 0, len(levels))
    changed = levels.copy()
    if changed[row] != NOT_COUNTED:
        changed[row] = 1 - changed[row]
    counts = (counted(pair, codes, each, most).kept for each in (levels, changed))
    before, after = (own.values(codes, folds, STATISTICS) for own in counts)
    assert before[row].tobytes() == after[row].tobytes()


@pytest.fixture
def frame(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Two columns of many levels, one that tells another, one of few, missing now and then; pairs may be of few."""
    monkeypatch.setattr(module, "LEAST_LEVELS", 4)
    town, zone = rng.integers(0, 7, N).astype(float), rng.integers(0, 6, N)
    town[rng.random(N) < 0.1] = np.nan
    text = pd.Series(zone).map(lambda each: f"zone {each}").astype(object)
    text[rng.random(N) < 0.1] = None
    twin = text.map(lambda each: "none" if each in (None, "zone 3") else f"{each}, again")
    y = ((np.nan_to_num(town, nan=7) * 3 + zone) % 2 == 0).astype(np.float32)
    return pd.DataFrame(
        {"town": town, "size": rng.random(N), "zone": text, "twin": twin, "few": rng.choice(["a", "b", "c"], N), "y": y}
    )


def features(source: Source, options: CategoryOptions | None = None) -> tuple[Float32, Encoder]:
    """Return the features of a source's rows, and what has made them."""
    made = encoded(source, options or CategoryOptions(), LocalRunner(1))
    assert isinstance(made.schema.encoder, Encoder)
    return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), made.schema.encoder


def test_features_are_the_naive_ones(frame: pd.DataFrame, rng: np.random.Generator) -> None:
    weight = rng.choice([0.0, 0.5, 3.0], N).astype(np.float32)
    found, encoder = features(make_source(frame, "y", weight=weight, categorical=["town"]))
    assert [own.pair.columns for own in encoder.pairs] == [(0, 2), (0, 3)], "zone tells twin"
    assert encoder.schema.names is not None
    assert encoder.schema.names[-2:] == ("town, zone (target)", "town, twin (target)")
    folds, labels = folds_of(0, 0, N).tolist(), frame["y"].tolist()
    towns, zones = ([None if pd.isna(each) else each for each in frame[name]] for name in ("town", "zone"))
    pairs = list(zip(towns, zones, strict=True))
    np.testing.assert_array_equal(
        found[:, -2], fold_statistics(pairs, folds, labels, weight.tolist(), [1.0])[:, 0]
    )
    source = make_source(frame, "y", weight=weight, categorical=["town"])
    single, alone = features(source, CategoryOptions(complexity=1))
    np.testing.assert_array_equal(single, found[:, :-2])
    assert alone.pairs == () and "pairs" not in alone.to_json()


def test_columns_that_say_the_same_have_one_pair_with_another(frame: pd.DataFrame) -> None:
    copy = frame["zone"].map(lambda each: None if each is None else f"{each}, again")
    _, encoder = features(make_source(frame.assign(copy=copy, twin="x"), "y", categorical=["town"]))
    assert [own.pair.columns for own in encoder.pairs] == [(0, 2)], "copy is as good as zone"


def test_unseen_pairs_have_the_prior(frame: pd.DataFrame) -> None:
    _, encoder = features(make_source(frame, "y", categorical=["town"]))
    zones = [1, 1, None, 99]
    rows = pd.DataFrame({"town": [2.0, 55, 2, np.nan], "size": 0.0, "few": "a", "twin": None})
    rows["zone"] = [None if zone is None else f"zone {zone}" for zone in zones]
    (batch,) = make_source(rows, schema=encoder.schema).batches()
    found = batch.features.on_host().matrix()[:, -2]
    y, prior = frame["y"], float(frame["y"].mean())

    def statistic(own: Any) -> float:
        return float((y[own].sum() + prior) / (own.sum() + 1))

    town = frame["town"] == 2
    expected = [statistic(town & (frame["zone"] == "zone 1")), prior, statistic(town & frame["zone"].isna()), prior]
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-6)


def test_rare_pairs_are_pooled(frame: pd.DataFrame) -> None:
    found, encoder = features(make_source(frame, "y", categorical=["town"]), CategoryOptions(most_levels=9))
    own = encoder.pairs[0]
    counts = frame.fillna(-1).groupby(["town", "zone"]).size().sort_values()
    assert len(own.keys) == 9 and own.table.counts[:, 0].min() == 0 < counts.iloc[-9] == own.table.counts[:-1, 0].min()
    assert (found[:, -2] == np.float32(encoder.priors[0])).sum() >= (N - counts.iloc[-9:].sum())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, N), max_size=4), st.integers(0, 3))
def test_features_do_not_depend_on_partitions(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = pd.DataFrame({"a": rng.integers(0, 7, N), "b": rng.integers(0, 9, N), "y": rng.integers(0, 3, N) * 1.0})
    edges = [0, *sorted(cuts), N]
    parts = [dask.delayed(own.iloc[start:stop]) for start, stop in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_LEVELS", 4)
        expected, encoder = features(make_source(own, "y", categorical=["a", "b"]), CategoryOptions(seed))
        lazy = dd.from_delayed(parts, meta=own.iloc[:0], verify_meta=False)
        found, other = features(make_source(lazy, "y", categorical=["a", "b"]), CategoryOptions(seed))
    np.testing.assert_array_equal(found, expected)
    assert other.to_json() == encoder.to_json() and len(encoder.pairs) == 1 and encoder.schema.n_features == 11


def test_an_encoder_reads_what_it_writes(frame: pd.DataFrame) -> None:
    _, encoder = features(make_source(frame, "y", categorical=["town"]))
    text = json.dumps(encoder.to_json())
    again = Encoder.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text and again.schema.names == encoder.schema.names


DAMAGES: dict[str, Any] = {
    "keys that do not increase": lambda pair: pair["keys"].reverse(),
    "a key too many": lambda pair: pair["keys"].append(pair["keys"][-1] + 1),
    "a key of no columns": lambda pair: pair.update(keys=[*pair["keys"][:-1], 10**9]),
    "a negative key": lambda pair: pair.update(keys=[-1, *pair["keys"][1:]]),
    "no text": lambda pair: pair.update(keys="x"),
    "a column of numbers": lambda pair: pair.update(columns=[0, 1]),
    "the same column": lambda pair: pair.update(columns=[0, 0]),
    "three columns": lambda pair: pair.update(columns=[0, 2, 3]),
    "no table": lambda pair: pair.pop("table"),
    "a table of two statistics": lambda pair: [row.append(0) for row in pair["table"]["counts"]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pairs_are_refused(frame: pd.DataFrame, damage: str) -> None:
    _, encoder = features(make_source(frame, "y", categorical=["town"]))
    values = encoder.to_json()
    DAMAGES[damage](values["pairs"][0])
    with pytest.raises((KeyError, TypeError, ValueError)):
        Encoder.from_json(values)


def columns_of(n_levels: dict[int, int], n_rows: int = 10**6, n_statistics: int = 1, complexity: int = 2,
               n_bytes: int = MOST_BYTES) -> Any:  # fmt: skip
    return [pair.columns for pair in chosen_pairs(n_levels, n_rows, n_statistics, complexity, n_bytes)]


def test_pairs_are_of_columns_with_many_levels() -> None:
    levels = {0: 127, 2: 128, 3: 900, 5: 2, 7: 4000}
    assert columns_of(levels) == [(2, 3), (2, 7), (3, 7)]
    assert columns_of(levels, complexity=1) == columns_of(levels, n_statistics=0) == []
    assert columns_of(levels, n_rows=6000) == [(2, 3)], "4,000 levels of 6,000 rows cannot have pairs of 1.5 times more"
    assert columns_of(levels, n_rows=10**5, n_statistics=45) == [(2, 3), (2, 7)], "those of fewest possible levels"
    assert len(columns_of(levels, n_rows=10**5, n_statistics=200)) == 1


def test_there_are_no_more_pairs_than_memory_is_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daskboost")
    many = {column: 200 + column for column in range(30)}
    assert len(columns_of(many)) == MOST_PAIRS
    assert columns_of(many)[0] == (0, 1)
    assert "of 435 pairs of categorical columns 45 are counted, those of fewest possible levels" in caplog.text
    one = 2 * 10**6 * 8 * 3  # of a pair that may have as many levels as there are rows
    large = {column: 2000 + column for column in range(4)}
    assert columns_of(large, n_bytes=3 * one) == [(0, 1), (0, 2), (0, 3)]
    assert columns_of(large, n_rows=10**9) == []


def test_a_pair_must_have_more_levels_than_its_columns() -> None:
    codes = {0: np.arange(80, dtype=np.int32) % 8, 1: np.arange(80, dtype=np.int32) % 10}
    levels = np.zeros(80, np.uint8)
    for period, expected in ((8, False), (16, True)):  # 8 or 16 of 80 pairs
        own = {0: codes[0], 1: (np.arange(80, dtype=np.int32) % period) // 2}
        pair = Pair((0, 1), (9, int(own[1].max()) + 2))
        counts = counted(pair, own, levels, 1000)
        assert counts.is_new == expected == reference.is_new(len(counts.kept.encoder.keys), 8, pair.sizes[1] - 1)


@pytest.mark.parametrize("value", [0, 3, 1.5, "2", None, True])
def test_what_combinations_are_possible_is_said(value: object) -> None:
    with pytest.raises(ParameterError, match=r"max_ctr_complexity=.* is not possible: 1 makes .* 2 of pairs"):
        check_complexity(value)
    assert (check_complexity(1), check_complexity(np.int64(2))) == (1, 2)


def test_a_pair_without_rows_is_no_feature() -> None:
    codes = {0: np.array([-2], np.int32), 1: np.zeros(1, np.int32)}
    empty = counted(Pair((0, 1), (3, 3)), codes, np.zeros(1, np.uint8), 9)
    assert not empty.is_new and not empty.are_same and len(empty.kept.encoder.keys) == 0
    assert PairEncoder.from_json(empty.kept.encoder.to_json(), {0: 2, 1: 2}).keys.tolist() == []
