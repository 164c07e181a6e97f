"""Target statistics in the order of time: against the naive twin, over partitions, and what a label may change."""

from __future__ import annotations

import json
import pickle
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.column_combinations import levels_of
from reference.orders import ordered_statistics

from daskboost.data.categories import combinations as combinations_module
from daskboost.data.categories.category_counts import CategoryCounts, CountedCombinations
from daskboost.data.categories.combinations import Combination, CombinationCounts
from daskboost.data.categories.encode import CategoryOptions, encoded
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.folds import Division, FoldTable
from daskboost.data.categories.orders import EarlierCounts, before_each, earlier_values
from daskboost.data.categories.row_statistics import Codes, TrainedRows
from daskboost.data.categories.statistics import Target
from daskboost.data.chunks.row_folds import LeftOut
from daskboost.data.input.source import Source, make_source
from daskboost.devices.cpu.statistics import NOT_COUNTED, Statistics
from daskboost.dtypes import Bool, Float32, Int32, UInt8
from daskboost.local.in_process import LocalRunner

SEED, FIRST = 3, 70
unhurried = settings(deadline=None, max_examples=60)


class Rows(NamedTuple):
    """Rows of three columns, of which the second has few levels, and their targets."""

    codes: tuple[Int32, Int32, Int32]
    n_codes: tuple[int, int, int]
    levels: UInt8
    target: Target
    most: int

    @property
    def by_columns(self) -> Codes:
        """Return the codes of columns, and of no combination."""
        return Codes({(at,): own for at, own in enumerate(self.codes)}, {})

    @property
    def counted(self) -> CountedCombinations:
        """Return a pair, and the third column joined to its levels that are kept."""
        pair = Combination(((0,), (1,)), (self.n_codes[0] + 1, self.n_codes[1] + 1))
        folds = np.zeros(len(self.levels), np.uint8)
        counts = CombinationCounts.of(pair, self.by_columns, self.most, folds, self.levels, self.target.steps, 1)
        encoder = counts.kept.encoder
        triple = Combination(((0, 1), (2,)), (encoder.n_levels + 1, self.n_codes[2] + 1))
        return CountedCombinations((pair, triple), self.most, {(0, 1): encoder})

    @property
    def statistics(self) -> Statistics:
        return self.target.statistics([0.25 * (1 + j) for j in range(self.target.n_statistics)])

    def counts(self, start: int, stop: int) -> CategoryCounts:
        part = slice(start, stop)
        columns = {at: (own[part], n) for at, (own, n) in enumerate(zip(self.codes, self.n_codes, strict=True))}
        return CategoryCounts.of(
            columns, self.counted, Division(SEED, 1), FIRST + start, self.levels[part], self.target
        )

    def values(self, borders: Sequence[int] = ()) -> list[Float32]:
        """Return the statistics of columns, of the pair and of all, from so many partitions, two tiles of each."""
        edges = [0, *sorted(min(border, len(self.levels)) for border in borders), len(self.levels)]
        parts = [self.counts(*edge) for edge in pairwise(edges)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        encoders = {own.combination.columns: own.kept.encoder for own in total.combinations}
        tiles = []
        each = EarlierCounts.of_first(total).before_each(parts)
        for (start, stop), before in zip(pairwise(edges), each, strict=True):
            codes = Codes(self.by_columns.of_rows(slice(start, stop)), encoders)
            levels = partial(self._levels, start, stop)
            rows = TrainedRows(codes, (0, 1, 2), tuple(encoders.values()), FIRST + start, levels, _none, 2)
            of = pickle.loads(pickle.dumps(before)).by_tile(rows, self.statistics)
            for tile in (slice(0, (stop - start) // 2), slice((stop - start) // 2, stop - start)):
                own = codes.of_rows(tile)
                table = total.columns.tables[0].total
                statistics = of(tile)
                columns = (statistics.of(at, table, own[(at,)]) for at in range(3))
                tiles.append([*columns, *(statistics.of_combination(each, own) for each in encoders.values())])
        return [np.concatenate(each) for each in zip(*tiles, strict=True)]

    def _levels(self, start: int, stop: int) -> UInt8:
        return self.levels[start:stop]


def _none(left_out: LeftOut) -> Bool:
    raise AssertionError(f"in the order of time no rows are left out, such as {left_out}")


@st.composite
def rows(draw: st.DrawFn, least: int = 0) -> Rows:
    """Some rows that share few codes, of few or many."""
    n, n_codes = draw(st.integers(least, 40)), (draw(st.sampled_from([3, 9, 1000])), 3, draw(st.sampled_from([4, 900])))
    most = draw(st.integers(1, 3))
    target = Target(np.arange(most, dtype=np.float32), tuple(draw(st.sets(st.integers(0, most), min_size=1))))
    codes = [
        np.array(draw(st.lists(st.sampled_from([-2, -1, 0, 1, own - 1]), min_size=n, max_size=n)), np.int32)
        for own in n_codes
    ]
    levels = draw(st.lists(st.sampled_from([*range(target.n_levels), NOT_COUNTED]), min_size=n, max_size=n))
    return Rows(
        (codes[0], codes[1], codes[2]), n_codes, np.array(levels, np.uint8), target, draw(st.sampled_from([1, 3, 1000]))
    )


@unhurried
@given(rows(), st.lists(st.integers(0, 40), max_size=4))
def test_values_equal_the_naive_twin_whatever_the_partitions(given_: Rows, borders: list[int]) -> None:
    statistics = given_.statistics
    weights, levels = (given_.levels != NOT_COUNTED).astype(float).tolist(), given_.levels.tolist()
    plain: list[list[int]] = [own.tolist() for own in given_.codes]
    columns: list[list[Hashable]] = [[None if code == -2 else code for code in own] for own in plain]
    for n in (2, 3):
        kept = set(levels_of(plain[:n], [weight > 0 for weight in weights], given_.most))
        columns.append([level if level in kept else None for level in zip(*plain[:n], strict=True)])
    worth, priors = statistics.steps.tolist(), statistics.priors.tolist()
    for found, own in zip(given_.values(borders), columns, strict=True):
        wanted = ordered_statistics(own, levels, weights, worth, priors)
        assert found.dtype == np.float32 and found.tobytes() == wanted.tobytes()


@unhurried
@given(rows(least=1), st.data())
def test_a_label_changes_no_statistic_of_its_row_and_of_earlier_ones(given_: Rows, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(given_.levels) - 1))
    other = given_.levels.copy()
    if other[row] != NOT_COUNTED:
        other[row] = data.draw(st.integers(0, given_.target.n_levels - 1))
    for before, after in zip(given_.values(), given_._replace(levels=other).values(), strict=True):
        assert before[: row + 1].tobytes() == after[: row + 1].tobytes()


def test_a_label_counts_in_later_rows() -> None:
    codes, levels, target = np.zeros(3, np.int32), np.array([1, 0, 0], np.uint8), Target(np.array([0.5], np.float32))
    given_ = Rows((codes, codes, codes), (1, 1, 1), levels, target, 9)
    assert given_.values()[0][:, 0].tolist() == [0.25, 0.625, np.float32(1.25 / 3)]


@pytest.mark.parametrize("n_codes", [3, 500])
def test_partitions_keep_the_counts_of_their_own_codes(n_codes: int) -> None:
    """Tables of few rows stay small, and those of few codes are whole."""
    codes, levels, steps = np.arange(40, dtype=np.int32) % 3, np.ones(10, np.uint8), np.array([[0], [1]], np.uint8)
    each = [codes[start : start + 10] for start in range(0, 40, 10)]
    parts = [FoldTable.of(own, n_codes, np.zeros(10, np.uint8), levels, steps, 1) for own in each]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    found = before_each(FoldTable(n_codes, total.cells, np.zeros_like(total.counts), 1), parts)
    seen = np.zeros_like(total.by_fold)
    for own, part in zip(found, parts, strict=True):
        assert (own.cells is None) == (part.cells is None) == (n_codes == 3)
        assert len(own.counts) == len(part.counts)
        is_there = part.by_fold[..., 0] > 0
        assert own.by_fold[is_there].tolist() == seen[is_there].tolist()
        seen += part.by_fold
    counts = found[1].counts.copy()
    earlier_values(found[1], each[1], levels, Statistics(steps, np.array([0.5])))
    assert found[1].counts.tolist() == counts.tolist(), "partitions are read more than once"


N = 240


@pytest.fixture
def frame(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Three columns, missing now and then, of which any combination is a feature; one has few levels."""
    monkeypatch.setattr(combinations_module, "LEAST_LEVELS", 3)
    town, zone = rng.integers(0, 7, N).astype(float), rng.integers(0, 6, N)
    town[rng.random(N) < 0.1] = np.nan
    text = pd.Series(zone).map(lambda each: f"zone {each}").astype(object)
    text[rng.random(N) < 0.1] = None
    y = ((np.nan_to_num(town, nan=7) * 3 + zone) % 2 == 0).astype(np.float32)
    return pd.DataFrame(
        {"town": town, "size": rng.random(N), "zone": text, "few": rng.choice(["a", "b", "c"], N), "y": y}
    )


def features(source: Source, options: CategoryOptions) -> tuple[Float32, Encoder]:
    """Return the features of a source's rows, and what has made them."""
    made = encoded(source, options, LocalRunner(2))
    assert isinstance(made.schema.encoder, Encoder)
    return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), made.schema.encoder


LABELS = {
    "two classes": lambda y: y,
    "several classes": lambda y: (np.arange(N) * 7 % 3 + y).astype(np.float32),
    "numbers": lambda y: (np.sin(np.arange(N)) + y).astype(np.float32),
}


@pytest.mark.parametrize("complexity", [1, 2, 3])
@pytest.mark.parametrize("labels", LABELS)
def test_features_are_the_naive_ones(
    frame: pd.DataFrame, labels: str, complexity: int, rng: np.random.Generator
) -> None:
    weight = rng.choice([0.0, 0.5, 3.0], N).astype(np.float32)
    y = LABELS[labels](frame["y"].to_numpy())
    options = CategoryOptions(encodings="target", has_time=True, complexity=complexity)
    x = frame.drop(columns="y")
    found, encoder = features(make_source(x, y, weight=weight, categorical=["town"]), options)
    levels, statistics = encoder.target.levels(y).tolist(), encoder.target.statistics(encoder.priors)
    assert encoder.target.is_mean == (labels == "numbers")
    columns = {name: [None if pd.isna(each) else each for each in frame[name]] for name in ("town", "zone", "few")}
    combined = [own for n in range(1, complexity + 1) for own in combinations(columns, n)]
    values = {", ".join(own): list(zip(*(columns[name] for name in own), strict=True)) for own in combined}
    assert encoder.schema.names is not None and len(encoder.combinations) == len(combined) - 3
    for name, own in values.items():
        worth, priors = statistics.steps * statistics.unit, statistics.priors.tolist()
        wanted = ordered_statistics(own, levels, weight.tolist(), worth.tolist(), priors)
        places = [at for at, each in enumerate(encoder.schema.names) if each.startswith(f"{name} (target")]
        assert len(places) == len(priors)
        np.testing.assert_allclose(found[:, places], wanted, rtol=3e-7)  # sums of fractions are rounded


def test_encoders_are_those_of_folds(frame: pd.DataFrame) -> None:
    """Rows that are predicted have statistics of all rows, whatever those of training rows are of; of those of folds as
    if the rows of nine of ten counted."""
    source = make_source(frame, "y", categorical=["town"])
    found, own = features(source, CategoryOptions(has_time=True, complexity=3))
    other, expected = features(source, CategoryOptions(complexity=3))
    assert len(own.combinations) == 4 and not np.array_equal(found, other)
    assert (own.share, expected.share) == (1.0, 0.9)
    whole = replace(expected, share=1.0)
    (rows,), (wanted,) = (make_source(frame, schema=each.schema).batches() for each in (own, whole))
    np.testing.assert_array_equal(rows.features.on_host().matrix(), wanted.features.on_host().matrix())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, N), max_size=20), st.integers(0, 3))
def test_features_do_not_depend_on_partitions(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = pd.DataFrame({"a": rng.choice(list("xyz"), N), "y": rng.integers(0, 3, N).astype(np.float32)})
    edges = [0, *sorted(cuts), N]
    parts = [dask.delayed(own.iloc[start:stop]) for start, stop in pairwise(edges)]
    options = CategoryOptions(has_time=True, encodings="target")
    expected, encoder = features(make_source(own, "y"), options)
    found, other = features(make_source(dd.from_delayed(parts, meta=own.iloc[:0], verify_meta=False), "y"), options)
    assert found.tobytes() == expected.tobytes() and json.dumps(other.to_json()) == json.dumps(encoder.to_json())
