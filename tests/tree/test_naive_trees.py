"""The engines' trees are those of the naive trainer, to the last bit of every gain and value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import gradients, quantize
from reference import trees as reference
from strategies.pairs import every_pair
from strategies.trees import PARAMS as ANY_PARAMS
from strategies.trees import Data, make_data, quantized

from daskboost import train
from daskboost.data.input.row_batch import DenseRows
from daskboost.fit import scales as rounding
from daskboost.objectives.objective_names import make_objective
from daskboost.params import TrainParams
from daskboost.tree.table import TreeTable

SIZES = ["small data", "large data"]


@pytest.fixture(scope="module", autouse=True, params=SIZES)
def size(request: pytest.FixtureRequest) -> Iterator[None]:
    """A few rows, as they are and as rows of large data."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (rounding, gradients) if request.param == "large data" else ():
            patch.setattr(module, "SMALL_ROWS", 0)
        yield


def assert_same_tree(found: TreeTable, expected: TreeTable, where: str) -> None:
    assert found.sets.lists == expected.sets.lists, where
    for each in dataclasses.fields(TreeTable):
        if each.name == "sets":
            continue
        if each.name == "models":
            assert_same_models(found, expected, where)
            continue
        if each.name == "value" and found.models:  # follows from slopes
            continue
        ours, theirs = getattr(found, each.name), getattr(expected, each.name)
        assert ours.dtype == theirs.dtype, (where, each.name)
        np.testing.assert_array_equal(ours, theirs, err_msg=f"{each.name} of {where}")
        assert ours.tobytes() == theirs.tobytes(), (where, each.name)  # also tells 0 from -0


def assert_same_models(found: TreeTable, expected: TreeTable, where: str) -> None:
    """Features are the same; slopes, and values at position 0, are float64's instead of fractions."""
    np.testing.assert_array_equal(found.models.feature, expected.models.feature, err_msg=where)
    for ours, theirs in ((found.models.slope, expected.models.slope), (found.value, expected.value)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7 * np.abs(theirs).max(initial=0), err_msg=where)


def assert_naive(data: Data, chosen: dict[str, Any], n_rounds: int, **options: Any) -> list[TreeTable]:
    params = TrainParams.from_mapping({"n_jobs": 2, **chosen})
    objective = make_objective(params.objective, {**dataclasses.asdict(params), "num_class": params.num_class or None})
    with quantized(data, **options) as dataset:
        found = train(params, dataset, n_rounds)
        symbols = quantize.symbols(DenseRows(data.X), dataset.cuts)
        monotone, groups = params.monotone_constraints or (), params.interaction_constraints or ()
        problem = reference.Problem(
            params, objective, dataset.cuts, symbols, data.y, data.weight, monotone, groups
        )
        expected = reference.train(problem, n_rounds)
    assert found.base_score == tuple(reference.base_score(problem))
    assert len(found.trees) == len(expected)
    for i, (ours, theirs) in enumerate(zip(found.trees, expected, strict=True)):
        assert_same_tree(ours, theirs, f"tree {i}")
    return list(found.trees)


PARAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_penalty": {"reg_lambda": 0, "min_child_weight": 0},
    "penalties": {"reg_alpha": 0.7, "gamma": 0.5, "min_child_weight": 6, "reg_lambda": 0.3},
    "steps": {"max_delta_step": 0.4, "reg_alpha": 0.2},
    "monotone": {"monotone_constraints": [1, -1, 0, -1, 1]},
    "monotone_steps": {"monotone_constraints": [-1, 0, 1, 1, -1], "max_delta_step": 0.5, "reg_alpha": 0.1},
    "interactions": {"interaction_constraints": [[0, 1], [1, 2, 4]]},
    "samples": {"subsample": 0.6, "colsample_bytree": 0.8, "colsample_bylevel": 0.8, "colsample_bynode": 0.7},
    "ignored": {"ignored_features": [0, 3]},
    "ignored_samples": {"ignored_features": [1], "colsample_bytree": 0.8, "colsample_bynode": 0.7},
    "everything": {
        "subsample": 0.7, "colsample_bynode": 0.6, "interaction_constraints": [[0, 1, 3], [2, 4]],
        "monotone_constraints": [0, 1, 0, 0, -1], "reg_alpha": 0.1, "random_state": 77,
    },
}  # fmt: skip
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"grow_policy": "depthwise", "max_depth": 4},
    "depthwise_leaves": {"grow_policy": "depthwise", "max_depth": 5, "max_leaves": 7},
    "lossguide": {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 9},
    "lossguide_depth": {"grow_policy": "lossguide", "max_depth": 3},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
}


@every_pair({"size": SIZES, "name": PARAMS, "growth": GROWTH}, indirect=["size"])
def test_regression(name: str, growth: str, rng: np.random.Generator) -> None:
    trees = assert_naive(make_data(rng), {**PARAMS[name], **GROWTH[growth]}, 2)
    assert all(tree.n_nodes > 1 for tree in trees)


OBJECTIVES: dict[str, dict[str, Any]] = {
    "binary:logistic": {},
    "multi:softprob": {"num_class": 5},
    "count:poisson": {},
    "reg:absoluteerror": {},
    "reg:quantileerror": {"quantile_alpha": [0.1, 0.8]},
    "reg:pseudohubererror": {},
}


@every_pair(
    {"size": SIZES, "objective": OBJECTIVES, "growth": ["depthwise", "lossguide", "symmetric"]}, indirect=["size"]
)
def test_objectives(objective: str, growth: str, rng: np.random.Generator) -> None:
    params = {"objective": objective, **OBJECTIVES[objective], **GROWTH[growth], "subsample": 0.8}
    assert_naive(make_data(rng, objective, n_rows=200), {**params, "min_child_weight": 0.5}, 2)


SCORES: dict[str, dict[str, Any]] = {
    "plain": {"objective": "binary:logistic"},
    "penalties": {
        "objective": "count:poisson", "reg_alpha": 0.7, "gamma": 0.5, "min_child_weight": 6, "reg_lambda": 0.3,
        "max_delta_step": 0.2,
    },
    "classes": {"objective": "binary:logistic", "scale_pos_weight": 2.7, "subsample": 0.8, "colsample_bynode": 0.7},
    "five classes": {"objective": "multi:softprob", "num_class": 5},
}  # fmt: skip


@every_pair({"size": SIZES, "name": SCORES, "growth": GROWTH}, indirect=["size"])
def test_scores_by_weight(name: str, growth: str, rng: np.random.Generator) -> None:
    """Structure by sums of weights, also where a row has none of its own; values, gains and covers by hessians."""
    for weighted in (True, False):
        data = make_data(rng, SCORES[name]["objective"], n_rows=200, weighted=weighted)
        trees = assert_naive(data, {**SCORES[name], **GROWTH[growth], "score_function": "l2"}, 2)
        assert all(tree.n_nodes > 1 for tree in trees)


LINEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "no penalty": {"linear_lambda": 0, "reg_lambda": 0},
    "penalties": {"reg_alpha": 0.7, "gamma": 0.5, "min_child_weight": 6, "reg_lambda": 0.3, "linear_lambda": 3},
    "classes": {"objective": "binary:logistic", "subsample": 0.7, "colsample_bynode": 0.7},
    "weights": {"objective": "binary:logistic", "score_function": "l2"},
    "five classes": {"objective": "multi:softprob", "num_class": 5},
}  # fmt: skip


@every_pair({"size": SIZES, "name": LINEAR, "growth": GROWTH}, indirect=["size"])
def test_linear_leaves(name: str, growth: str, rng: np.random.Generator) -> None:
    """Equations and slopes are those of exact fractions."""
    for weighted in (True, False):
        data = make_data(rng, LINEAR[name].get("objective", "reg:squarederror"), n_rows=200, weighted=weighted)
        trees = assert_naive(data, {**LINEAR[name], **GROWTH[growth], "linear_leaves": True}, 2)
        assert all(tree.models for tree in trees)


VECTORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"reg_alpha": 0.3, "gamma": 0.2, "min_child_weight": 6, "reg_lambda": 0.3},
    "steps": {"max_delta_step": 0.3, "reg_alpha": 0.1},
    "interactions": {"interaction_constraints": [[0, 1], [1, 2, 4]]},
    "samples": {"subsample": 0.6, "colsample_bytree": 0.8, "colsample_bylevel": 0.8, "colsample_bynode": 0.7},
    "sketch of one": {"sketch_outputs": 1, "subsample": 0.7},
    "sketch": {"sketch_outputs": 2, "min_child_weight": 0},
    "sketch and samples": {"sketch_outputs": 3, "subsample": 0.6, "reg_alpha": 0.1, "colsample_bynode": 0.7},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.8], "num_class": 0},
    "sketched quantiles": {
        "objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.8], "num_class": 0, "sketch_outputs": 2,
        "subsample": 0.8,
    },
}  # fmt: skip


@every_pair({"size": SIZES, "name": VECTORS, "growth": GROWTH}, indirect=["size"])
def test_vectors(name: str, growth: str, rng: np.random.Generator) -> None:
    params = {"objective": "multi:softprob", "num_class": 5, **VECTORS[name], **GROWTH[growth]}
    data = make_data(rng, params["objective"], n_rows=200)
    trees = assert_naive(data, {**params, "multi_strategy": "multi_output_tree"}, 2)
    assert len(trees) == 2 and all(tree.n_nodes > 1 and tree.has_vectors for tree in trees)


STORED: dict[str, dict[str, Any]] = {
    "sparse": {"encoding": "csr", "engines": 2, "partitions": 5, "chunk_rows": 40},
    "dense": {"encoding": "dense", "engines": 3, "partitions": 4, "chunk_rows": 7, "packing": "tight"},
    "whole": {"encoding": "csr", "packing": "tight"},
}


@every_pair({"size": SIZES, "growth": ["depthwise_leaves", "lossguide", "symmetric"], "stored": STORED},
            indirect=["size"])  # fmt: skip
def test_however_it_is_stored(growth: str, stored: str, rng: np.random.Generator) -> None:
    options = STORED[stored]
    assert_naive(make_data(rng, missing=0.6), {**PARAMS["everything"], **GROWTH[growth]}, 2, **options)
    data = make_data(rng, "multi:softprob", n_rows=150, missing=0.6)
    vectors = {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree", **GROWTH[growth]}
    for name in ("samples", "sketch and samples"):
        assert_naive(data, {**vectors, **VECTORS[name]}, 2, **options)
    data = make_data(rng, "binary:logistic", n_rows=150, missing=0.6)
    assert_naive(data, {**SCORES["classes"], **GROWTH[growth], "score_function": "l2"}, 2, **options)


def test_one_feature_of_one_value(rng: np.random.Generator) -> None:
    """Nothing to split on but being missing."""
    X = np.where(rng.random((80, 1)) < 0.5, np.nan, 1).astype(np.float32)
    y = np.isnan(X[:, 0]).astype(np.float32)
    (tree,) = assert_naive(Data(X, y), {"max_depth": 3, "learning_rate": 1, "reg_lambda": 0}, 1)
    assert tree.n_leaves == 2
    assert sorted(tree.value[tree.is_leaf].tolist()) == pytest.approx([y.mean() * -1, 1 - y.mean()], abs=1e-3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    ANY_PARAMS, st.sampled_from(sorted(OBJECTIVES)), st.sampled_from([1, 2, 30, 120]), st.sampled_from([1, 4, 12]),
    st.sampled_from([0.0, 0.3, 0.9]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_problem(params: dict[str, Any], objective: str, n_rows: int, n_values: int, missing: float, weighted: bool,
                     seed: int) -> None:  # fmt: skip
    if objective in ("reg:absoluteerror", "reg:quantileerror"):  # refused: quantiles would break the constraint
        params.pop("monotone_constraints", None)
    if params.get("monotone_constraints"):  # refused for vectors
        params.pop("multi_strategy")
    data = make_data(np.random.default_rng(seed), objective, n_rows, 5, n_values, missing, weighted)
    assert_naive(data, {**params, "objective": objective, **OBJECTIVES[objective]}, 2)
