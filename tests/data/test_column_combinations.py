"""Combinations of categorical columns: against the naive twin, which ones there are, and the laws of their counts."""

from __future__ import annotations

import functools
import json
import operator
import pickle
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import column_combinations as reference
from reference.folds import fold_statistics

from daskboost.data.categories import combinations as module
from daskboost.data.categories.category_counts import CategoryCounts, CountedCombinations
from daskboost.data.categories.combinations import (
    MOST_COMBINATIONS,
    Combination,
    CombinationChoice,
    CombinationCounts,
    CombinationEncoder,
    check_complexity,
)
from daskboost.data.categories.encode import CategoryOptions, encoded
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.folds import Division, folds_of
from daskboost.data.categories.row_statistics import Codes, Columns
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.data.input.source import Source, make_source
from daskboost.devices.cpu.statistics import NOT_COUNTED
from daskboost.dtypes import Float32, Int32, UInt8
from daskboost.errors import ParameterError
from daskboost.local.in_process import LocalRunner

N, SEED = 300, 5
TARGET = Target(np.array([0.5], np.float32))
STATISTICS = TARGET.statistics((0.25,))
unhurried = settings(deadline=None, max_examples=60)


class Rows(NamedTuple):
    """Rows of two to four columns, of which a combination is counted."""

    columns: dict[int, Int32]
    """Codes by the number of the column, in the order in which they are joined."""
    sizes: dict[int, int]
    """Codes of each, that of missing values among them."""
    levels: UInt8
    """The levels of their targets."""
    most: int
    """How many levels are kept."""

    @property
    def folds(self) -> UInt8:
        return folds_of(SEED, 0, len(self.levels))

    @property
    def labels(self) -> list[int | None]:
        return [None if level == NOT_COUNTED else level for level in self.levels.tolist()]

    @property
    def plain(self) -> list[list[int]]:
        """Return the codes as the naive twin takes them."""
        return [own.tolist() for own in self.columns.values()]

    def kept_levels(self, n_columns: int) -> list[tuple[int, ...]]:
        """Return the naive levels of the columns that are joined first."""
        return reference.levels_of(self.plain[:n_columns], [label is not None for label in self.labels], self.most)

    @property
    def joined(self) -> tuple[Combination, Codes]:
        """Return the combination of all columns, and codes of those that it is joined of, counted one by one."""
        order, encoders = list(self.columns), dict[Columns, CombinationEncoder]()
        codes = Codes({(at,): own for at, own in self.columns.items()}, encoders)
        base: Columns = (order[0],)
        size = self.sizes[order[0]]
        for n, column in enumerate(order[1:], 2):
            combination = Combination((base, (column,)), (size, self.sizes[column]))
            if n < len(order):
                base = combination.columns
                encoders[base] = self.counted(combination, codes).kept.encoder
                size = encoders[base].n_levels + 1
        return combination, codes

    def counted(self, combination: Combination, codes: Codes, start: int = 0, stop: int | None = None
                ) -> CombinationCounts:  # fmt: skip
        part = slice(start, stop)
        return CombinationCounts.of(
            combination, codes.of_rows(part), self.most, self.folds[part], self.levels[part], TARGET.steps
        )

    def values(self) -> tuple[CombinationCounts, Float32]:
        """Return what all rows count, and their statistics."""
        combination, codes = self.joined
        kept = (counts := self.counted(combination, codes)).kept
        return counts, kept.values(kept.encoder.places(codes), self.folds, STATISTICS)


@st.composite
def rows_of(draw: st.DrawFn) -> Rows:
    """A combination of few or many keys, rows of it, the levels of their targets, and how many levels are kept."""
    n, numbers = draw(st.integers(1, 40)), draw(st.sampled_from([(1, 3), (1, 3, 5), (3, 5, 1), (1, 5, 3, 2)]))
    sizes = draw(st.lists(st.sampled_from([4, 900]), min_size=len(numbers), max_size=len(numbers)))
    columns = [
        np.array(draw(st.lists(st.sampled_from([-2, -1, 0, 1, size - 2]), min_size=n, max_size=n)), np.int32)
        for size in sizes
    ]
    levels = np.array(draw(st.lists(st.sampled_from([0, 1, NOT_COUNTED]), min_size=n, max_size=n)), np.uint8)
    by_number = dict(zip(numbers, columns, strict=True)), dict(zip(numbers, sizes, strict=True))
    return Rows(*by_number, levels, draw(st.sampled_from([1, 3, 1000])))


@unhurried
@given(rows_of())
def test_values_equal_the_naive_twin(given_: Rows) -> None:
    (_, codes), (counts, found) = given_.joined, given_.values()
    n_columns, encoder, folds, labels = len(given_.columns), counts.kept.encoder, given_.folds.tolist(), given_.labels
    base = given_.kept_levels(n_columns - 1) if n_columns > 2 else []
    firsts = [base.index(own[:-1]) if base else own[0] for own in given_.kept_levels(n_columns)]
    lasts = [own[-1] for own in given_.kept_levels(n_columns)]
    size = given_.sizes[list(given_.columns)[-1]]
    assert encoder.keys.tolist() == [(a + 1) * size + b + 1 for a, b in zip(firsts, lasts, strict=True)]
    expected = reference.values(given_.plain, folds, labels, 0.25, given_.most)
    np.testing.assert_array_equal(found[:, 0], np.array(expected, np.float32))
    later = encoder.table.values(encoder.places(codes), STATISTICS)  # of rows that had no part: as in a fold apart
    expected = reference.values(
        [own * 2 for own in given_.plain], [*folds, *[-1] * len(folds)], [*labels, *[None] * len(folds)], 0.25,
        given_.most,
    )  # fmt: skip
    np.testing.assert_array_equal(later[:, 0], np.array(expected[len(folds) :], np.float32))


@unhurried
@given(rows_of(), st.lists(st.integers(0, 40), max_size=3), st.sampled_from([operator.add, operator.iadd]))
def test_partitions_count_what_the_whole_does(given_: Rows, borders: list[int], added: Any) -> None:
    edges = [0, *sorted(min(border, len(given_.levels)) for border in borders), len(given_.levels)]
    (combination, codes), (wanted, values) = given_.joined, given_.values()
    parts = [given_.counted(combination, codes, *edge) for edge in pairwise(edges)]
    assert all(part.kept.encoder.keys.dtype == np.int64 for part in parts)
    found = functools.reduce(added, (pickle.loads(pickle.dumps(part)) for part in reversed(parts)))
    assert json.dumps(found.kept.encoder.to_json()) == json.dumps(wanted.kept.encoder.to_json())
    assert found.says_more([]) == wanted.says_more([])
    places = found.kept.encoder.places(codes)
    assert found.kept.values(places, given_.folds, STATISTICS).tobytes() == values.tobytes()


@unhurried
@given(rows_of(), st.data())
def test_a_rows_own_label_does_not_show(given_: Rows, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(given_.levels) - 1))
    changed = given_.levels.copy()
    if changed[row] != NOT_COUNTED:
        changed[row] = 1 - changed[row]
    (_, before), (_, after) = (own.values() for own in (given_, given_._replace(levels=changed)))
    assert before[row].tobytes() == after[row].tobytes()


def test_keys_of_most_levels_have_room() -> None:
    """A million kept levels joined to a million others, in the last of ten folds."""
    most = 2**20
    pair, keys = Combination(((0,), (1,)), (most + 1, most + 1)), np.arange(1, most + 1) * (most + 1) + 1
    encoder = CombinationEncoder(pair, keys, StatisticTable(np.zeros((most + 1, 2), np.int64)))
    first, second = np.array([0, most - 1, most - 1], np.int32), np.zeros(3, np.int32)
    codes = Codes({(0,): first, (1,): second, (2,): first}, {(0, 1): encoder})
    triple = Combination(((0, 1), (2,)), (most + 1, most + 1))
    counts = CombinationCounts.of(triple, codes, most, np.full(3, 9, np.uint8), np.ones(3, np.uint8), TARGET.steps)
    assert counts.kept.encoder.keys.tolist() == [most + 2, (most + 1) * most + most] and counts.kept.folds.max() == 9
    assert counts.kept.encoder.places(codes).tolist() == [0, 1, 1]


@pytest.fixture
def frame(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Two columns of many levels, one that tells another, one of few, missing now and then; combinations may be of
    few."""
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


@pytest.fixture
def crowd(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Four columns of which any combination has many levels, missing now and then; one is of numbers."""
    monkeypatch.setattr(module, "LEAST_LEVELS", 3)
    own = pd.DataFrame({
        "age": rng.integers(0, 4, N).astype(float), "n": rng.random(N), "job": rng.choice(list("uvw"), N),
        "town": rng.choice(list("abcd"), N), "pet": rng.choice(list("xyz"), N),
    })  # fmt: skip
    own.loc[rng.random(N) < 0.05, "age"] = np.nan
    own.loc[rng.random(N) < 0.05, "town"] = None
    return own.assign(y=((own["age"].fillna(9) + own["job"].map(ord) + own["pet"].map(ord)) % 3 > 0).astype(float))


NAMED = ("age", "job", "town", "pet")
"""Its categorical columns."""


def features(source: Source, options: CategoryOptions | None = None) -> tuple[Float32, Encoder]:
    """Return the features of a source's rows, and what has made them."""
    made = encoded(source, options or CategoryOptions(), LocalRunner(1))
    assert isinstance(made.schema.encoder, Encoder)
    return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), made.schema.encoder


def columns_of(encoder: Encoder) -> list[Columns]:
    return [own.combination.columns for own in encoder.combinations]


def test_features_of_pairs_are_the_naive_ones(frame: pd.DataFrame, rng: np.random.Generator) -> None:
    weight = rng.choice([0.0, 0.5, 3.0], N).astype(np.float32)
    found, encoder = features(make_source(frame, "y", weight=weight, categorical=["town"]))
    assert columns_of(encoder) == [(0, 2), (0, 3)], "zone tells twin"
    assert encoder.schema.names is not None
    assert encoder.schema.names[-2:] == ("town, zone (target)", "town, twin (target)")
    folds, labels = folds_of(0, 0, N).tolist(), frame["y"].tolist()
    towns, zones = ([None if pd.isna(each) else each for each in frame[name]] for name in ("town", "zone"))
    pairs = list(zip(towns, zones, strict=True))
    np.testing.assert_array_equal(
        found[:, -2], fold_statistics(pairs, folds, labels, weight.tolist(), [1.0])[:, 0]
    )


@pytest.mark.parametrize("complexity", [1, 2, 3, 4])
def test_features_are_the_naive_ones(crowd: pd.DataFrame, complexity: int, rng: np.random.Generator) -> None:
    weight = rng.choice([0.0, 0.5, 3.0], N).astype(np.float32)
    source = make_source(crowd, "y", weight=weight, categorical=["age"])
    found, encoder = features(source, CategoryOptions(complexity=complexity))
    wanted = [own for n in range(2, complexity + 1) for own in combinations(NAMED, n)]
    assert encoder.schema.names is not None
    names = [f"{', '.join(own)} (target)" for own in wanted]
    assert encoder.schema.names[encoder.edges[-1] :] == tuple(names)
    folds, labels = folds_of(0, 0, N).tolist(), crowd["y"].tolist()
    for feature, columns in enumerate(wanted, encoder.edges[-1]):
        levels = [tuple(None if pd.isna(own) else own for own in row) for row in crowd[list(columns)].values.tolist()]
        expected = fold_statistics(levels, folds, labels, weight.tolist(), [1.0])[:, 0]
        np.testing.assert_array_equal(found[:, feature], expected)
    single, alone = features(source, CategoryOptions(complexity=1))
    np.testing.assert_array_equal(single, found[:, : encoder.edges[-1]])
    assert alone.combinations == () and "pairs" not in alone.to_json()


def test_columns_that_say_the_same_have_one_pair_with_another(frame: pd.DataFrame) -> None:
    copy = frame["zone"].map(lambda each: None if each is None else f"{each}, again")
    _, encoder = features(make_source(frame.assign(copy=copy, twin="x"), "y", categorical=["town"]))
    assert columns_of(encoder) == [(0, 2)], "copy is as good as zone"


def test_a_column_that_another_tells_is_in_no_combination_with_it(crowd: pd.DataFrame) -> None:
    """The pair says nothing new, and so it is part of no longer one."""
    own = crowd.assign(kind=crowd["town"].map(lambda each: "d" if each in (None, "a") else each))
    options = CategoryOptions(complexity=4)
    found = columns_of(features(make_source(own.drop(columns="y"), own["y"], categorical=["age"]), options)[1])
    town, kind = 3, 5
    assert {len(columns) for columns in found} == {2, 3, 4}
    assert any(kind in columns for columns in found) and not any({town, kind} <= set(columns) for columns in found)


@pytest.mark.parametrize("complexity", [2, 3, 4])
def test_unseen_levels_have_the_prior(crowd: pd.DataFrame, complexity: int) -> None:
    known = crowd[~((crowd["age"] == 1) & (crowd["job"] == "u"))]  # whose pair is unseen, each of the two is not
    _, encoder = features(make_source(known, "y", categorical=["age"]), CategoryOptions(complexity=complexity))
    rows = pd.DataFrame([
        (2.0, "v", "a", "x"), (1, "v", None, "y"), (np.nan, "w", "b", "z"), (1, "u", "a", "x"), (2, "v", "new", "x"),
        (99, "v", "a", "x"),
    ], columns=list(NAMED)).assign(n=0.0)  # fmt: skip
    (batch,) = make_source(rows[["pet", "town", "n", "job", "age"]], schema=encoder.schema).batches()
    found, y, prior = batch.features.on_host().matrix(), known["y"], float(known["y"].mean())
    for feature, own in enumerate(encoder.combinations, encoder.edges[-1]):
        names = [encoder.columns.label(at) for at in own.combination.columns]
        like = [
            np.logical_and.reduce([known[name].isna() if pd.isna(row[name]) else known[name] == row[name]
                                   for name in names]) for _, row in rows.iterrows()
        ]  # fmt: skip
        expected = [(0.9 * y[each].sum() + prior) / (0.9 * each.sum() + 1) for each in like]
        np.testing.assert_allclose(found[:, feature], np.array(expected, np.float32), rtol=1e-6)
        assert found[5, feature] == np.float32(prior) or "age" not in names


@pytest.mark.parametrize("complexity", [2, 3])
def test_rare_levels_are_pooled(crowd: pd.DataFrame, complexity: int) -> None:
    options = CategoryOptions(most_levels=7, complexity=complexity)
    own = crowd.assign(age=crowd["age"].fillna(9), town=crowd["town"].fillna("none"))
    found, encoder = features(make_source(own, "y", categorical=["age"]), options)
    for place, last in enumerate(encoder.combinations, encoder.edges[-1]):
        columns = [encoder.columns.label(at) for at in last.combination.columns]
        counts = own.groupby(columns).size().sort_values()
        assert last.n_levels == 7 and last.table.counts[-1, 0] == 0 < last.table.counts[:-1, 0].min()
        if len(columns) == 2:
            assert last.table.counts[:-1, 0].min() == counts.iloc[-7]
            pooled = N - counts.iloc[-7:].sum()
            assert (found[:, place] == np.float32(encoder.priors[0])).sum() >= pooled > 0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, N), max_size=4), st.integers(0, 3), st.sampled_from([2, 3, 4]), st.booleans())
def test_features_do_not_depend_on_partitions(cuts: list[int], seed: int, complexity: int, has_time: bool) -> None:
    rng = np.random.default_rng(seed)
    own = pd.DataFrame({name: rng.integers(0, n, N) for name, n in zip("abcd", (6, 4, 4, 4), strict=True)})
    own["y"] = rng.integers(0, 3, N) * 1.0
    edges = [0, *sorted(cuts), N]
    parts = [dask.delayed(own.iloc[start:stop]) for start, stop in pairwise(edges)]
    options = CategoryOptions(seed, complexity=complexity, has_time=has_time, encodings="target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_LEVELS", 4)
        expected, encoder = features(make_source(own, "y", categorical=list("abcd")), options)
        lazy = dd.from_delayed(parts, meta=own.iloc[:0], verify_meta=False)
        found, other = features(make_source(lazy, "y", categorical=list("abcd")), options)
    np.testing.assert_array_equal(found, expected)
    assert other.to_json() == encoder.to_json() and len(encoder.combinations) == {2: 6, 3: 10, 4: 11}[complexity]


@pytest.mark.parametrize("complexity", [2, 3, 4])
@pytest.mark.parametrize("has_time", [False, True])
def test_a_label_changes_no_feature_of_its_row(crowd: pd.DataFrame, complexity: int, has_time: bool) -> None:
    """Which combinations there are depends on no label either. The prior is that of all rows, so a later row of the
    same fold, and of other levels, gets the label."""
    options, y, folds = CategoryOptions(complexity=complexity, has_time=has_time), crowd["y"], folds_of(0, 0, N)
    row, later = next(
        (a, b) for a, b in combinations(range(100, N), 2)
        if folds[a] == folds[b] and (crowd.loc[a, [*NAMED, "y"]] != crowd.loc[b, [*NAMED, "y"]]).all()
    )  # fmt: skip
    other = y.mask(y.index == row, y[later]).mask(y.index == later, y[row])
    (before, own), (after, its) = (
        features(make_source(crowd.assign(y=labels), "y", categorical=["age"]), options) for labels in (y, other)
    )
    assert columns_of(own) == columns_of(its) and own.priors == its.priors
    first = 0 if has_time else row
    np.testing.assert_array_equal(before[first : row + 1], after[first : row + 1])
    changed = (before != after)[:, own.edges[-1] :]
    assert changed.any(axis=0).all(), "other rows see it"


def test_an_encoder_reads_what_it_writes(crowd: pd.DataFrame) -> None:
    for complexity in (2, 3, 4):
        options = CategoryOptions(complexity=complexity)
        _, encoder = features(make_source(crowd, "y", categorical=["age"]), options)
        text = json.dumps(encoder.to_json())
        again = Encoder.from_json(json.loads(text))
        assert json.dumps(again.to_json()) == text and again.schema.names == encoder.schema.names
        joined = Encoder.joined(encoder.pieces(range(len(encoder.sizes))))
        assert json.dumps(joined.to_json()) == text
        assert ("joined" in text) == (complexity > 2)


DAMAGES: dict[str, Any] = {
    "keys that do not increase": lambda own: own["keys"].reverse(),
    "a key too many": lambda own: own["keys"].append(own["keys"][-1] + 1),
    "a key of no columns": lambda own: own.update(keys=[*own["keys"][:-1], 10**9]),
    "a negative key": lambda own: own.update(keys=[-1, *own["keys"][1:]]),
    "no text": lambda own: own.update(keys="x"),
    "a column of numbers": lambda own: own.update(columns=[0, 1]),
    "the same column": lambda own: own.update(columns=[0, 0]),
    "columns that do not increase": lambda own: own.update(columns=own["columns"][::-1]),
    "one column": lambda own: own.update(columns=[0]),
    "columns of which none is joined": lambda own: own.update(columns=[0, 2, 3, 4], joined=1),
    "columns of another one": lambda own: own.update(columns=[0, 2]),
    "no table": lambda own: own.pop("table"),
    "a table of two statistics": lambda own: [row.append(0) for row in own["table"]["counts"]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_combinations_are_refused(crowd: pd.DataFrame, damage: str) -> None:
    options = CategoryOptions(complexity=3)
    _, encoder = features(make_source(crowd, "y", categorical=["age"]), options)
    values = encoder.to_json()
    for place in (1, -1):  # a pair, and the last of three columns
        damaged = json.loads(json.dumps(values))
        DAMAGES[damage](damaged["pairs"][place])
        with pytest.raises((KeyError, TypeError, ValueError)):
            Encoder.from_json(damaged)
    values["pairs"] = values["pairs"][-1:]
    with pytest.raises(KeyError):
        Encoder.from_json(values)


def chosen(n_levels: dict[int, int], n_columns: int = 2, kept: Any = None, **more: int) -> list[Columns]:
    choice = CombinationChoice(n_levels, **{"n_rows": 10**6, "n_statistics": 1, "complexity": 4, **more})
    return [own.columns for own in choice.of(n_columns, kept or {})]


def test_pairs_are_of_columns_with_many_levels() -> None:
    levels = {0: 127, 2: 128, 3: 900, 5: 2, 7: 4000}
    assert chosen(levels) == chosen(levels, complexity=2) == [(2, 3), (2, 7), (3, 7)]
    assert chosen(levels, complexity=1) == chosen(levels, n_statistics=0) == []
    assert chosen(levels, n_rows=6000) == [(2, 3)], "4,000 levels of 6,000 rows cannot have pairs of 1.5 times more"
    assert chosen(levels, n_rows=10**5, n_statistics=45) == [(2, 3), (2, 7)], "those of fewest possible levels"
    assert len(chosen(levels, n_rows=10**5, n_statistics=200)) == 1


PAIRS = {Combination(((a,), (b,)), (0, 0)): 1000 for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 4))}
"""Pairs that are kept."""


def test_longer_combinations_are_of_kept_ones() -> None:
    levels = dict.fromkeys(range(5), 200)
    assert chosen(levels, 3, PAIRS) == [(0, 1, 2), (0, 1, 3)], "of (0, 2, 3) the part (2, 3) is not kept"
    assert chosen(levels, 3, PAIRS, complexity=2) == chosen(levels, 3) == []
    many = {pair: 700 if pair.columns == (1, 2) else n for pair, n in PAIRS.items()}
    assert chosen(levels, 3, many, n_rows=1200) == [], "1,000 levels of 1,200 rows cannot have 1.5 times more"
    assert chosen(levels, 3, PAIRS, n_rows=10**5, n_statistics=90) == [(0, 1, 2)]
    triples = {Combination((own[:2], own[2:]), (0, 0)): 5000 for own in combinations(range(4), 3)}
    assert chosen(levels, 4, PAIRS | triples) == [(0, 1, 2, 3)]
    assert chosen(levels, 4, PAIRS) == [], "none of three columns is kept"


def test_a_column_is_joined_so_that_there_are_fewest_possible_levels() -> None:
    levels = {0: 200, 1: 300, 2: 400}
    kept = {Combination(((a,), (b,)), (0, 0)): n for a, b, n in ((0, 1, 900), (0, 2, 500), (1, 2, 800))}
    (own,) = CombinationChoice(levels, 10**6, 1, 3).of(3, kept)
    assert own == Combination(((0, 2), (1,)), (501, 301)) and own.columns == (0, 1, 2)


def test_there_are_no_more_combinations_than_memory_is_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daskboost")
    many = {column: 200 + column for column in range(30)}
    assert len(chosen(many)) == MOST_COMBINATIONS and chosen(many)[0] == (0, 1)
    assert "of 435 combinations of 2 categorical columns 45 are counted, those of fewest possible levels" in caplog.text
    one = 2 * 10**6 * 8 * 3  # of a combination that may have as many levels as there are rows
    large = {column: 2000 + column for column in range(4)}
    assert chosen(large, n_bytes=3 * one) == [(0, 1), (0, 2), (0, 3)]
    assert chosen(large, n_rows=10**9) == []
    kept = {Combination(((a,), (b,)), (2001, 2001)): 10**5 for a, b in combinations(range(4), 2)}
    for n, expected in ((5, []), (6, []), (7, [(0, 1, 2)]), (8, [(0, 1, 2), (0, 1, 3)])):
        assert chosen(large, 3, kept, n_bytes=n * one) == expected, "beside those that are kept"
    assert "of 4 combinations of 3 categorical columns 2 are counted" in caplog.text


def test_a_pair_must_have_more_levels_than_its_columns() -> None:
    levels, rows = np.zeros(80, np.uint8), np.arange(80, dtype=np.int32)
    for period, expected in ((8, False), (16, True)):  # 8 or 16 of 80 pairs
        codes = Codes({(0,): rows % 8, (1,): rows % period // 2}, {})
        pair = Combination(((0,), (1,)), (9, period // 2 + 1))
        counts = CombinationCounts.of(pair, codes, 1000, levels, levels, TARGET.steps)
        assert counts.says_more([]) == expected
        assert expected == reference.says_more(counts.kept.encoder.n_levels, [size - 1 for size in pair.sizes])


def test_three_columns_must_have_more_levels_than_each_pair_of_them(rng: np.random.Generator) -> None:
    """A combination of three has more levels than each of its pairs, not only than the pair that it was joined to."""
    outcomes = set()
    for n in (40, 60, 120, 300):
        rows = rng.integers(0, (4, 4, 12), (n, 3)).astype(np.int32)
        codes, levels = Codes({(at,): rows[:, at].copy() for at in range(3)}, {}), np.zeros(n, np.uint8)
        pairs = [Combination(((a,), (b,)), ((4, 4, 12)[a] + 1, (4, 4, 12)[b] + 1)) for a, b in ((0, 1), (0, 2), (1, 2))]
        base = CombinationCounts.of(pairs[0], codes, 1000, levels, levels, TARGET.steps).kept.encoder
        triple, each = Combination(((0, 1), (2,)), (base.n_levels + 1, 13)), {own: codes[own,] for own in range(3)}
        counts = CategoryCounts.of(
            {at: (own, (4, 4, 12)[at]) for at, own in each.items()},
            CountedCombinations((*pairs, triple), 1000, {(0, 1): base}), Division(SEED), 0, levels, TARGET,
        )  # fmt: skip
        n_levels = {own.columns: len(np.unique(rows[:, own.columns], axis=0)) for own in (*pairs, triple)}
        of_pairs = [n for own, n in n_levels.items() if len(own) == 2]
        expected = reference.says_more(n_levels[0, 1, 2], of_pairs)
        assert list(counts.kept.combinations) == [own.columns for own in pairs] + [(0, 1, 2)] * expected
        outcomes.add((reference.says_more(n_levels[0, 1, 2], of_pairs[:1]), expected))
    assert outcomes >= {(True, False), (True, True)}


@pytest.mark.parametrize("value", [0, 5, 1.5, "2", None, True])
def test_what_combinations_are_possible_is_said(value: object) -> None:
    match = r"max_ctr_complexity=.* is not possible: 1 makes .* 2 to 4 of combinations .* make a column of them"
    with pytest.raises(ParameterError, match=match):
        check_complexity(value)
    assert [check_complexity(own) for own in (1, np.int64(2), 3, 4)] == [1, 2, 3, 4]


def test_a_combination_without_rows_is_no_feature() -> None:
    codes = Codes({(0,): np.array([-2], np.int32), (1,): np.zeros(1, np.int32)}, {})
    pair, levels = Combination(((0,), (1,)), (3, 3)), np.zeros(1, np.uint8)
    empty = CombinationCounts.of(pair, codes, 9, levels, levels, TARGET.steps)
    assert not empty.says_more([]) and not empty.are_same and empty.kept.encoder.n_levels == 0
    found = CombinationEncoder.from_json(empty.kept.encoder.to_json(), {(0,): 2, (1,): 2})
    assert found.keys.tolist() == [] and found.combination == pair
