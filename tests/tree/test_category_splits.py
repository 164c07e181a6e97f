"""Splits by sets of categories: the sets that are found, the rows that they divide, and the trees of whole fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from devices.backends import EagerThreads, make_layout
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import quantize, split, split_sets
from reference import trees as reference
from tree.test_naive_trees import assert_same_tree

from daskboost import Booster, QuantizedDataset, train
from daskboost.data.categories.encode import CategoryOptions
from daskboost.data.categories.encoder import Encoder
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.source import make_source
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Float32, Int64
from daskboost.objectives.objective_names import make_objective
from daskboost.params import TrainParams
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.set_bins import bins_of_sets, sets_of_bins
from daskboost.tree.split_search import OpenNodes, SetSearch, SplitRules, SplitSearch

UNITS = (2.0**-4, 2.0**-3)


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of one node with a feature of codes and a feature of numbers, and the rules of its split."""

    rows: split.Rows
    rules: split.Rules
    limits: split_sets.SetRules
    others: Sequence[split.Rows] = ()
    """The rows once more for each further output."""

    @property
    def outputs(self) -> list[split.Rows]:
        return [self.rows, *self.others]


@st.composite
def cases(draw: st.DrawFn, missing: bool = True, most_outputs: int = 3) -> Case:
    """Small nodes, in which ties and codes without rows are frequent."""
    n_codes, n_rows = draw(st.integers(0, 40)), draw(st.integers(1, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    rng, n_bins = np.random.default_rng(seed), [n_codes + 1, 3]
    most = n_bins[0] + missing
    symbols = np.stack([rng.integers(0, most, n_rows), rng.integers(0, 3 + missing, n_rows)], axis=1)
    if n_codes:
        symbols[:, 0] = np.where(symbols[:, 0] == n_codes, rng.integers(0, n_codes), symbols[:, 0])
    scale = draw(st.sampled_from([2, 40]))
    outputs = [
        split.Rows(symbols, rng.integers(-scale, scale + 1, n_rows), rng.integers(1, scale, n_rows), n_bins,
                   (UNITS[0] / 2**k, UNITS[1] * 2**k))
        for k in range(draw(st.integers(1, most_outputs)))
    ]  # fmt: skip
    rules = split.Rules(
        draw(st.sampled_from([0.0, 1.0, 3.5])), alpha=draw(st.sampled_from([0.0, 0.4])),
        step=draw(st.sampled_from([0.0, 0.3])), least_h=draw(st.sampled_from([0.0, 0.5, 3.0])),
    )  # fmt: skip
    limits = split_sets.SetRules(
        frozenset({0}), draw(st.integers(1, 50)), draw(st.integers(1, 50)), draw(st.sampled_from([0.0, 0.0, 1.0, 6.0])),
        draw(st.sampled_from([0.0, 0.0, 2.5])), draw(st.sampled_from([0.0, 0.0, 1.0, 6.0])),
    )  # fmt: skip
    return Case(outputs[0], rules, limits, outputs[1:])


def histogram_of(rows: split.Rows, form: str) -> Int64:
    """A histogram of the rows, with a slot for missing values of each feature."""
    offsets = np.cumsum([0, *(n + 1 for n in rows.n_bins)])
    found = np.zeros((offsets[-1], 2), np.int64)
    for feature, first in enumerate(offsets[:-1]):
        np.add.at(found, first + rows.symbols[:, feature], np.stack([rows.g, rows.h], axis=1))
    return (found[:, 0] << 32) + found[:, 1] if form == "words" else found


def side_by_side(outputs: Sequence[split.Rows], form: str) -> Int64:
    """The outputs' histograms in one, with the sums of a slot beside each other."""
    found = np.stack([histogram_of(rows, form) for rows in outputs], axis=1)
    return found.reshape(-1, *found.shape[2:])


def search(case: Case, form: str, max_onehot: int | None = None, level: Sequence[Sequence[split.Rows]] = ()) -> Any:
    """The candidates that kernels find for the case's rows, or for nodes of a level that share a split."""
    of_nodes = level or [case.outputs]
    n_codes, limits = case.rows.n_bins[0] - 1, case.limits
    sets = SetSearch(
        np.array([True, False]), n_codes, max_onehot or limits.max_onehot, limits.max_threshold, limits.smooth,
        limits.l2, limits.least_group,
    )
    monotone, given_rules = np.zeros(2, np.int32), case.rules
    rules = SplitRules(
        given_rules.reg_lambda, given_rules.alpha, given_rules.step, given_rules.least_h, monotone, bool(level), sets
    )
    layout = dataclasses.replace(make_layout(list(case.rows.n_bins)), width=len(case.outputs))
    own = SplitSearch(layout, rules, EagerThreads(1), (0, 2))
    ids, every = np.arange(len(of_nodes), dtype=np.int32), np.ones((1 if level else len(of_nodes), 2), np.uint8)
    bounds = np.tile([-np.inf, np.inf], (len(of_nodes), 1))
    sums = np.array([[part for rows in outputs for part in rows.sums] for outputs in of_nodes], np.int64)
    units = tuple(unit for rows in case.outputs for unit in rows.units)
    nodes = OpenNodes(ids, np.full_like(ids, -1), ids, sums, bounds, every, units)
    return own.search(nodes, np.stack([side_by_side(outputs, form) for outputs in of_nodes]))


def bins_of(right_bins: Any, split_bin: int) -> frozenset[int]:
    return frozenset(sets_of_bins(right_bins[None], np.array([split_bin == BY_SET])).categories.tolist())


@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from(["pairs", "words"]))
def test_the_best_set_is_the_naive_one(case: Case, form: str) -> None:
    found = search(case, form)
    expected = split_sets.best(case.rules, case.limits, case.outputs, [0, 1])
    assert found.gain[0] == expected.gain
    if expected.gain > -np.inf:
        chosen = int(found.feature[0]), int(found.split_bin[0]), bool(found.default_left[0])
        assert chosen == (expected.feature, expected.bin, expected.default_left)
        assert found.left[0].reshape(-1, 2).tolist() == [*map(list, split_sets.lefts_of(case.outputs, expected))]
        assert bins_of(found.right_bins[0], chosen[1]) == split_sets.right_bins_of(expected)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 4), st.sampled_from(["pairs", "words"]))
def test_the_best_set_of_a_level_is_the_naive_one(case: Case, n_nodes: int, form: str) -> None:
    """Nodes without rows, and those too light to be split, included."""
    of_node = np.random.default_rng(n_nodes).integers(0, n_nodes, len(case.rows.g))
    level = [
        [dataclasses.replace(rows, symbols=rows.symbols[own], g=rows.g[own], h=rows.h[own]) for rows in case.outputs]
        for own in (of_node == node for node in range(n_nodes))
    ]
    found = search(case, form, level=level)
    expected = split_sets.best_of_level(case.rules, case.limits, level, [0, 1])
    assert set(found.gain.tolist()) == {expected.gain}
    if expected.gain == -np.inf:
        return
    right = split_sets.right_bins_of(expected)
    for node, outputs in enumerate(level):
        chosen = int(found.feature[node]), int(found.split_bin[node]), bool(found.default_left[node])
        assert chosen == (expected.feature, expected.bin, expected.default_left)
        assert bins_of(found.right_bins[node], chosen[1]) == right
        lefts = split_sets.lefts_of(outputs, expected)
        assert found.left[node].reshape(-1, 2).tolist() == [*map(list, lefts)]


@settings(max_examples=100, deadline=None)
@given(cases(missing=False, most_outputs=1))
def test_no_single_level_gains_more_than_the_best_set(case: Case) -> None:
    """The best set of two sides is a beginning of the order by leaf values, where nothing but the loss counts."""
    free = dataclasses.replace(
        case, rules=split.Rules(0.0, least_h=1e-9), limits=split_sets.SetRules(frozenset({0}), 1, 64)
    )
    best, single = search(free, "pairs"), search(free, "pairs", max_onehot=64)
    assert best.gain[0] >= single.gain[0] * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(cases(most_outputs=1), st.sampled_from(["pairs", "words"]))
def test_two_outputs_that_are_the_same_have_the_set_of_one(case: Case, form: str) -> None:
    """Which gains twice as much."""
    one, two = search(case, form), search(dataclasses.replace(case, others=[case.rows]), form)
    assert two.gain[0] == 2 * one.gain[0]
    for name in ("feature", "split_bin", "default_left", "right_bins"):
        np.testing.assert_array_equal(getattr(two, name), getattr(one, name), err_msg=name)


@given(st.integers(2, 9), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_codes_are_ordered_in_the_direction_in_which_they_differ_most(n_outputs: int, n_codes: int, seed: int) -> None:
    """The twin's projections, which are the kernel's, are on NumPy's first principal component of leaf values, an
    output's times the root of its hessians, where that one is much longer than the others."""
    rng = np.random.default_rng(seed)
    main, h = rng.normal(size=n_outputs), rng.random((n_codes, n_outputs)) + 0.5
    values = rng.normal(size=(n_codes, 1)) * main + rng.normal(size=(n_codes, n_outputs)) / 50
    weights, roots = h.sum(axis=1), np.sqrt(h.sum(axis=0))
    centred = (values - np.average(values, axis=0, weights=weights)) * roots
    lengths, directions = np.linalg.eigh(centred.T @ (weights[:, None] * centred))
    assume(lengths[-1] > 20 * lengths[-2])
    found = split_sets.projections(values.tolist(), weights.tolist(), h.sum(axis=0).tolist())
    expected = values @ (roots * directions[:, -1])
    assert abs(np.corrcoef(found, expected)[0, 1]) > 1 - 1e-6


@given(st.lists(st.sets(st.integers(0, 99)), min_size=1, max_size=5))
def test_sets_become_bins_and_back(sets: list[set[int]]) -> None:
    given_sets = CategorySets.of_nodes([sorted(own) for own in sets])
    bins = bins_of_sets(given_sets, len(sets))
    found = sets_of_bins(bins, np.array([bool(own) for own in sets]))
    assert [found.of(node).tolist() for node in range(len(sets))] == [sorted(own) for own in sets]


LEVELS = {"few": 3, "some": 12, "many": 70}
COLUMNS = list(LEVELS)


def make_rows(seed: int, n_rows: int = 700, missing: float = 0.1) -> tuple[pd.DataFrame, Float32]:
    """Rows of categories and a number, with labels that know of them, and gains that differ."""
    rng = np.random.default_rng(seed)
    columns, y = {}, rng.normal(size=n_rows) / 10
    for name, n_levels in LEVELS.items():
        codes = rng.integers(0, n_levels, n_rows)
        lacks = rng.random(n_rows) < missing
        columns[name] = np.where(lacks, np.nan, codes)
        y += np.where(lacks, 0.4, rng.normal(size=n_levels)[codes])
    columns["number"] = rng.normal(size=n_rows).round(1)
    return pd.DataFrame(columns), (y + columns["number"]).astype(np.float32)


VECTORS: dict[str, Any] = {
    "objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree", "max_depth": 3,
}  # fmt: skip


def labels_of(params: dict[str, Any], y: Float32) -> Float32:
    """Labels as the objective takes them: of several classes these have as many rows each."""
    n_classes = params.get("num_class", 0)
    return (np.argsort(np.argsort(y)) * n_classes // len(y)).astype(np.float32) if n_classes else y


def native(x: pd.DataFrame, y: Any, n_engines: int = 1, reference: QuantizedDataset | None = None, **options: Any
           ) -> QuantizedDataset:  # fmt: skip
    """A data set whose categorical columns are codes."""
    source = make_source(x, y, categorical=COLUMNS, schema=None if reference is None else reference.schema)
    build = BuildOptions(categories=CategoryOptions(encodings="native"), **options)
    return QuantizedDataset.from_source(source, build, n_engines=n_engines, reference=reference)


def codes_of(data: QuantizedDataset, x: pd.DataFrame) -> Float32:
    """The features of rows, as a data set has them."""
    (batch,) = make_source(x, schema=data.schema).batches()
    return batch.features.on_host().matrix()


RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one level": {"max_cat_to_onehot": 100},
    "short sets": {"max_cat_threshold": 4},
    "no penalty": {"reg_lambda": 0.0, "min_child_weight": 5.0},
    "penalties": {"reg_alpha": 2.0, "gamma": 0.5},
    "steps": {"max_delta_step": 0.5},
    "best first": {"grow_policy": "lossguide", "max_leaves": 9},
    "classes": {"objective": "binary:logistic"},
}


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("name", RULES)
def test_trees_are_those_of_xgboost(name: str, missing: float) -> None:
    x, y = make_rows(3, missing=missing)
    params = {"max_depth": 4, "base_score": 0.5, "n_jobs": 2, **RULES[name]}
    y = (y > np.median(y)).astype(np.float32) if name == "classes" else y
    with native(x, y) as data:
        found, codes = train({**params, "device": "cpu"}, data, 3), codes_of(data, x)
    rows = xgb.DMatrix(codes, y, feature_types=["c", "c", "c", "q"], enable_categorical=True)
    theirs = xgb.train({**params, "tree_method": "hist", "device": "cpu"}, rows, 3)
    margins = found.predict(x, output="margin")
    np.testing.assert_allclose(margins, theirs.predict(rows, output_margin=True), rtol=1e-5, atol=2e-6)
    trees = json.loads(theirs.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    for own, other in zip(found.trees, trees, strict=True):
        by_set = own.has_set
        assert by_set.any()
        assert own.n_nodes == len(other["left_children"])
        starts, sizes = other["categories_segments"], other["categories_sizes"]
        sets = {
            node: other["categories"][start : start + size]
            for node, start, size in zip(other["categories_nodes"], starts, sizes, strict=True)
        }
        in_order = name != "best first"  # which numbers nodes as they are split
        for node in np.flatnonzero(by_set).tolist() if in_order else ():
            assert (own.feature[node], own.sets.of(node).tolist()) == (other["split_indices"][node], sets[node])


def naive_trees(params: TrainParams, data: QuantizedDataset, x: pd.DataFrame, y: Float32, n_rounds: int) -> Any:
    objective = make_objective(params.objective, {**dataclasses.asdict(params), "num_class": params.num_class or None})
    symbols = quantize.symbols(DenseRows(codes_of(data, x)), data.cuts)
    codes = frozenset(np.flatnonzero(data.schema.is_code).tolist())
    limits = split_sets.SetRules(
        codes, params.max_cat_to_onehot, params.max_cat_threshold, params.cat_smooth, params.cat_l2,
        params.min_data_per_group,
    )
    return reference.train(reference.Problem(params, objective, data.cuts, symbols, y, limits=limits), n_rounds)


@pytest.mark.parametrize("chosen", [
    {"max_depth": 3}, {"grow_policy": "lossguide", "max_leaves": 7, "colsample_bynode": 0.6},
    {"max_depth": 3, "objective": "reg:absoluteerror", "reg_alpha": 0.3},
    {"max_depth": 3, "grow_policy": "symmetric"},
    {"max_depth": 3, "grow_policy": "symmetric", "objective": "reg:absoluteerror", "max_cat_to_onehot": 20},
    {"max_depth": 3, "max_cat_to_onehot": 20, "max_cat_threshold": 9, "subsample": 0.7},
    {"max_depth": 3, "cat_smooth": 3.0, "cat_l2": 4.0, "min_data_per_group": 9.0},
    VECTORS, {**VECTORS, "grow_policy": "symmetric", "cat_smooth": 2.0},
    {**VECTORS, "grow_policy": "lossguide", "max_leaves": 6, "max_cat_to_onehot": 5, "reg_alpha": 0.3},
    {**VECTORS, "cat_smooth": 2.0, "cat_l2": 1.0, "min_data_per_group": 3.0, "max_delta_step": 0.7},
    {**VECTORS, "num_class": 5, "sketch_outputs": 2},
    {**VECTORS, "objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.6, 0.9], "num_class": 0},
])  # fmt: skip
def test_trees_are_the_naive_ones(chosen: dict[str, Any]) -> None:
    """Also those that grow with the host: adaptive leaves, symmetric vectors."""
    x, y = make_rows(5, 150)
    y = labels_of(chosen, y)
    params = TrainParams.from_mapping({"n_jobs": 2, "device": "cpu", **chosen})
    with native(x, y) as data:
        found = train(params, data, 2)
        expected = naive_trees(params, data, x, y, 2)
    for i, (own, other) in enumerate(zip(found.trees, expected, strict=True)):
        assert own.has_set.any()
        assert_same_tree(own, other, f"tree {i}")


PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one thread": ({}, {"n_jobs": 1}),
    "small chunks": ({"chunk_rows": 192}, {}),
    "sparse": ({"encoding": "csr"}, {}),
    "tight": ({"packing": "tight"}, {}),
    "two engines": ({"n_engines": 2, "chunk_rows": 128}, {"reduction": "coordinator"}),
    "three engines": ({"n_engines": 3}, {"reduction": "peers"}),
}
FITS: dict[str, dict[str, Any]] = {
    "by levels": {"max_depth": 5},
    "best first": {"grow_policy": "lossguide", "max_leaves": 20, "subsample": 0.6},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 4},
    "with the host": {"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.7], "max_depth": 4},
    "limits of sets": {"cat_smooth": 4.0, "cat_l2": 3.0, "min_data_per_group": 20.0, "max_depth": 4},
    "samples": {"out_of_core": "sampled", "subsample": 0.4, "max_depth": 4},
    "certified": {"out_of_core": "certified", "certify_tolerance": 0.03, "resident_share": 0.4, "max_depth": 4},
    "constraints": {"monotone_constraints": {"number": 1}, "interaction_constraints": [["few", "number"], ["many"]]},
    "vectors": {**VECTORS, "max_depth": 4},
    "best-first vectors": {**VECTORS, "grow_policy": "lossguide", "max_leaves": 12, "subsample": 0.6},
    "symmetric vectors": {**VECTORS, "grow_policy": "symmetric"},
}


@pytest.mark.parametrize("fit", FITS)
def test_the_same_bytes_wherever_rows_are(fit: str) -> None:
    x, y = make_rows(7)
    other, labels = make_rows(8, 100)
    other.iloc[:20, 2] = 1000 + np.arange(20)  # which training did not see
    y, labels = labels_of(FITS[fit], y), labels_of(FITS[fit], labels)
    made: list[tuple[bytes, Any]] = []
    for options, params in ({}, {}), *PLACES.values():
        with native(x, y, **options) as data, native(other, labels, reference=data, **options) as valid:
            result: dict[str, Any] = {}
            booster = train({"device": "cpu", "n_jobs": 2, **FITS[fit], **params}, data, 3, evals=[(valid, "valid")],
                            evals_result=result)  # fmt: skip
            made.append((trees_of(booster), result["valid"]))
    assert any(tree.has_set.any() for tree in booster.trees)
    assert all(own == made[0] for own in made[1:])


@pytest.mark.parametrize("more", [
    {}, {"cat_smooth": 4.0, "cat_l2": 3.0, "min_data_per_group": 20.0, "gamma": 0.4},
    {"objective": "multi:softprob", "num_class": 3, "max_cat_threshold": 3},
])  # fmt: skip
def test_certified_trees_without_tolerance_are_the_exact_ones(more: dict[str, Any]) -> None:
    x, y = make_rows(14, 900)
    y = labels_of(more, y)
    params = {"device": "cpu", "n_jobs": 2, "max_depth": 5, **more}
    certified = {"out_of_core": "certified", "resident_share": 0.3}
    with native(x, y) as data:
        expected = train(params, data, 3)
        found, near = (train({**params, **certified, "certify_tolerance": own}, data, 3) for own in (0.0, 0.1))
    assert trees_of(found) == trees_of(expected) != trees_of(near)
    assert all(tree.has_set.any() for tree in near.trees)


def test_certified_sets_lose_what_is_allowed() -> None:
    """By the gains that their trees tell: a first tree gains no more with sets of a sample than with the best ones."""
    x, y = make_rows(15, 2_000)
    params: dict[str, Any] = {"device": "cpu", "max_depth": 1, "cat_l2": 2.0}
    with native(x, y) as data:
        best, own = (
            float(train({**params, **more}, data, 1).trees[0].gain[0])
            for more in ({}, {"out_of_core": "certified", "certify_tolerance": 1.0, "resident_share": 0.05})
        )
    assert own == best, "the last level takes its best splits"


def trees_of(booster: Booster) -> bytes:
    """Everything that trees say, as bytes."""
    told = [
        [each.tolist() for each in (tree.models.feature, tree.models.slope)] if name == "models" else
        tree.sets.lists if name == "sets" else getattr(tree, name).tobytes()
        for tree in booster.trees for name in (each.name for each in dataclasses.fields(tree))
    ]  # fmt: skip
    return repr(told).encode()


def test_evaluation_sees_what_prediction_does() -> None:
    """Missing values go where they did in training, unseen levels left, by bins and by values alike."""
    x, y = make_rows(9)
    other, labels = make_rows(10, 200)
    other.iloc[:50, 1] = np.arange(50) + 50
    with native(x, y) as data, native(other, labels, reference=data) as valid:
        result: dict[str, Any] = {}
        booster = train({"device": "cpu"}, data, 3, evals=[(valid, "valid")], evals_result=result)
        encoder = data.schema.encoder
    assert isinstance(encoder, Encoder) and encoder.schema.names == (*COLUMNS, "number")
    error = float(np.sqrt(np.mean((booster.predict(other) - labels) ** 2)))
    assert result["valid"]["rmse"][-1] == pytest.approx(error, rel=1e-6)


def test_a_fit_goes_on_with_the_sets_of_its_model() -> None:
    x, y = make_rows(11)
    with native(x, y) as data:
        whole, first = train({"device": "cpu"}, data, 4), train({"device": "cpu"}, data, 2)
        longer = train({"device": "cpu"}, data, 2, init_model=first)
    assert trees_of(longer) == trees_of(whole)


def test_vectors_travel_with_their_sets(tmp_path: Path) -> None:
    """Through files, to XGBoost, and from frames of values in another order of columns."""
    x, y = make_rows(12)
    with native(x, labels_of(VECTORS, y)) as data:
        booster, codes = train({"device": "cpu", **VECTORS}, data, 3), codes_of(data, x)
    assert all(tree.has_vectors and tree.has_set.any() for tree in booster.trees)
    expected = booster.predict(x)
    for name in ("model.json", "model.ubj"):
        booster.save_model(tmp_path / name)
        again = Booster.load_model(tmp_path / name)
        assert again == booster
        np.testing.assert_array_equal(again.predict(x[x.columns[::-1]]), expected)
        theirs = xgb.Booster(model_file=tmp_path / name)
        rows = xgb.DMatrix(codes, feature_names=list(booster.schema.names or ()), feature_types=["c", "c", "c", "q"],
                           enable_categorical=True)  # fmt: skip
        np.testing.assert_allclose(theirs.predict(rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("growth", [
    {}, {"grow_policy": "lossguide", "max_leaves": 20, "max_depth": 0}, {"grow_policy": "symmetric"},
])  # fmt: skip
def test_sets_of_vectors_learn_a_real_column(growth: dict[str, Any], data_dir: Path) -> None:
    """The forty kinds of soil of covtype, by which seven kinds of trees are told apart better than without."""
    table = pd.read_parquet(data_dir / "covtype_20k.parquet")
    places = table.columns.str.startswith("Soil_Type")
    x, y = table.iloc[:, :10].copy(), table["Cover_Type"].to_numpy(np.float32) - table["Cover_Type"].min()
    x["soil"] = table.loc[:, places].to_numpy().argmax(axis=1)
    held_out = np.arange(len(y)) % 4 == 0
    params = {**VECTORS, "num_class": 7, "max_depth": 6, "device": "cpu", **growth}
    losses = []
    for columns in (x.columns[:10], x.columns):
        kinds: dict[str, Any] = {"categorical_features": ["soil"], "encodings": "native"} if len(columns) > 10 else {}
        (rows, labels), test = (
            (x.loc[part, columns].reset_index(drop=True), y[part]) for part in (~held_out, held_out)
        )  # fmt: skip
        with (
            QuantizedDataset.from_dask(rows, labels, **kinds) as data,
            QuantizedDataset.from_dask(*test, reference=data) as valid,
        ):
            result: dict[str, Any] = {}
            booster = train(params, data, 20, evals=[(valid, "valid")], evals_result=result)
        losses.append(result["valid"]["mlogloss"][-1])
    assert any(tree.has_set.any() for tree in booster.trees)
    assert losses[1] < losses[0] * 0.95
