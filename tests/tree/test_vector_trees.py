"""Trees of all outputs: laws that need no naive trainer, and XGBoost's trees of the same data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.trees import PARAMS, Data, fit, make_data, quantized
from tree.test_against_xgboost import goes_left

from daskboost import train

VECTORS = {"multi_strategy": "multi_output_tree", "num_class": 5, "objective": "multi:softprob"}


def copies(label: Any, margin: Any) -> tuple[Any, Any]:
    """One loss for all outputs, so that they stay the same."""
    return margin - label.reshape(-1, *[1] * (margin.ndim - 1)), np.ones_like(margin)


def halves(label: Any, margin: Any) -> tuple[Any, Any]:
    """A loss of each output, exact in a few bits."""
    k = np.arange(margin.shape[1], dtype=np.float32)
    return margin - np.round((label[:, None] - k / 3) * 2) / 2, np.broadcast_to(1 + k % 3, margin.shape).astype("f4")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(PARAMS, st.sampled_from([2, 3, 8]), st.sampled_from([0.0, 0.5]), st.integers(0, 9))
def test_identical_outputs_give_the_tree_of_one(params: dict[str, Any], k: int, missing: float, seed: int) -> None:
    """The same splits, and its values in every output; a gain is as many times as large."""
    params = {**params, "base_score": 0.5, "objective": copies, "gamma": 0}
    params.pop("monotone_constraints", None)
    data = make_data(np.random.default_rng(seed), n_rows=150, missing=missing)
    one = fit(data, params, 1)
    (vectors,) = fit(data, {**params, "num_class": k, "multi_strategy": "multi_output_tree"}, 1).trees
    (tree,) = one.trees
    # Sums of k equal gains round, so splits that gain the same may change places only where k is no power of two.
    if k != 3:
        for name in ("left_child", "right_child", "feature", "split_bin", "default_left"):
            np.testing.assert_array_equal(getattr(vectors, name), getattr(tree, name), err_msg=name)
        np.testing.assert_array_equal(vectors.value, np.repeat(tree.value[:, None], k, axis=1))
    assert vectors.cover[0] == pytest.approx(k * tree.cover[0])
    assert vectors.gain[0] == pytest.approx(k * tree.gain[0], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide", "symmetric"])
def test_permuted_classes_permute_the_values(grow_policy: str, rng: np.random.Generator) -> None:
    """Splits of the first tree do not know the classes' numbers; nearest rounding knows none either."""
    data = make_data(rng, "multi:softprob", weighted=False)
    order = np.array([3, 0, 4, 1, 2])
    params = {**VECTORS, "grow_policy": grow_policy, "max_depth": 4}
    (tree,) = fit(data, params, 1).trees
    (other,) = fit(Data(data.X, order[data.y.astype(int)].astype(np.float32)), params, 1).trees
    np.testing.assert_array_equal(tree.split_bin, other.split_bin)
    np.testing.assert_array_equal(tree.feature, other.feature)
    np.testing.assert_array_equal(tree.value, other.value[:, order])
    np.testing.assert_allclose(tree.gain, other.gain, rtol=1e-6)


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide", "symmetric"])
def test_values_of_a_sketched_tree_are_exact(grow_policy: str, rng: np.random.Generator) -> None:
    """Each leaf has the Newton step of its own rows in every output, inner nodes that of theirs."""
    data = make_data(rng, "multi:softprob", n_rows=300)
    params = {**VECTORS, "sketch_outputs": 2, "grow_policy": grow_policy, "max_depth": 4, "base_score": 0.5,
              "learning_rate": 1.0, "min_child_weight": 0.0}  # fmt: skip
    model = fit(data, params, 1)
    (tree,) = model.trees
    assert data.weight is not None
    w, p = data.weight[:, None], 1 / 5
    g, h = w * (p - (data.y[:, None] == np.arange(5))), w * 2 * p * (1 - p) * np.ones(5)
    leaves = model.predict(data.X, output="leaf")[:, 0]
    parents = tree.parent
    for node in range(tree.n_nodes):
        inside = leaves == node
        below = [node]
        for child in range(node + 1, tree.n_nodes):
            if parents[child] in below:
                below.append(child)
                inside |= leaves == child
        expected = -g[inside].sum(axis=0) / (h[inside].sum(axis=0) + 1)
        np.testing.assert_allclose(tree.value[node], expected, rtol=1e-4, atol=1e-5)
        assert tree.cover[node] == pytest.approx(h[inside].sum(), rel=1e-4)
    assert tree.gain[0] > 0  # others are of splits that a sketch took for better than they are, or of empty nodes


def test_sketches_are_drawn_by_the_seed_and_the_round(rng: np.random.Generator) -> None:
    data = make_data(rng, "multi:softprob", n_rows=800)
    params = {**VECTORS, "sketch_outputs": 2, "max_depth": 5}
    files = [fit(data, {**params, "random_state": seed}, 2).to_bytes() for seed in (0, 0, 1)]
    assert files[0] == files[1] != files[2]
    models = [fit(data, {**params, "learning_rate": 1e-9, "random_state": seed}, 3) for seed in (0, 1)]
    # Margins hardly move, so what differs between rounds are the sketches.
    assert len({tree.split_bin.tobytes() + tree.feature.tobytes() for model in models for tree in model.trees}) > 3


@pytest.mark.parametrize("sketch", [0, 1, 2])
def test_weights_of_small_data_are_repeated_rows(sketch: int, rng: np.random.Generator) -> None:
    """The same trees, to the last bit."""
    data = make_data(rng, "multi:softprob", n_rows=300)
    weight = rng.integers(0, 4, 300)
    params = {**VECTORS, "sketch_outputs": sketch, "max_depth": 4}
    weighted = Data(data.X, data.y, weight.astype(np.float32))
    repeated = Data(np.repeat(data.X, weight, axis=0), np.repeat(data.y, weight))
    models = []
    for rows in (weighted, repeated):
        with quantized(data) as bins, quantized(rows, reference=bins) as dataset:
            models.append(train({**params, "n_jobs": 1}, dataset, 3).to_bytes())
    assert models[0] == models[1]


def test_one_output_is_no_vector(rng: np.random.Generator) -> None:
    data = make_data(rng)
    models = [fit(data, {"multi_strategy": strategy}) for strategy in ("one_output_per_tree", "multi_output_tree")]
    for tree, other in zip(*(model.trees for model in models), strict=True):
        assert not other.has_vectors and tree.value.tobytes() == other.value.tobytes()


def test_early_stopping_and_continued_training(rng: np.random.Generator) -> None:
    """In one go, or stopped and resumed, on the same bins or from the margins of a model."""
    data = make_data(rng, "multi:softprob", n_rows=5000)
    for sketch in ({}, {"sketch_outputs": 2}):
        params = {**VECTORS, **sketch, "max_depth": 3, "subsample": 0.7, "n_jobs": 1}
        with quantized(data) as rows, quantized(data, reference=rows, encoding="csr", partitions=3) as other:
            history: dict[str, dict[str, list[float]]] = {}
            whole = train(params, rows, 6, evals=[(rows, "a"), (other, "b")], evals_result=history)
            assert history["a"] == history["b"] and np.diff(history["a"]["mlogloss"]).max() < 0
            first = train(params, rows, 4)
            resumed = train(params, rows, 2, init_model=first)
            assert resumed.to_bytes() == whole.to_bytes()
            assert history["a"]["mlogloss"][-1] == pytest.approx(log_loss(data, whole.predict(data.X)), rel=1e-5)
            stopped = train({**params, "learning_rate": 1.0, "reg_lambda": 0.0}, rows, 60, early_stopping_rounds=2,
                            evals=[(shuffled(data, rng, rows), "noise")])  # fmt: skip
            assert stopped.best_iteration is not None and stopped.n_iterations == stopped.best_iteration + 3 < 60


def log_loss(data: Data, p: Any) -> float:
    assert data.weight is not None
    return float(np.average(-np.log(p[np.arange(len(data.y)), data.y.astype(int)]), weights=data.weight))


def shuffled(data: Data, rng: np.random.Generator, reference: Any) -> Any:
    """Rows whose labels are anybody's, on which no fit gets better for long."""
    return quantized(Data(data.X, rng.permutation(data.y)), reference=reference)


def xgboost_trees(data: Data, params: dict[str, Any], k: int) -> list[dict[str, Any]]:
    """XGBoost's trees of the loss `halves`."""
    matrix = xgboost.DMatrix(data.X, np.repeat(data.y[:, None], k, axis=1), weight=data.weight)
    weight = 1 if data.weight is None else data.weight[:, None]

    def objective(margin: Any, _: Any) -> tuple[Any, Any]:
        g, h = halves(data.y, margin.reshape(len(data.y), k))
        return g * weight, h * weight

    given = {"base_score": 0.25, "max_bin": 64, "tree_method": "hist", "nthread": 1, **params}
    booster = xgboost.train({**given, "multi_strategy": "multi_output_tree"}, matrix, 1, obj=objective)
    found: list[dict[str, Any]] = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    return found


def compare(ours: dict[str, Any], theirs: dict[str, Any], X: Any, k: int, a: int = 0, b: int = 0, rows: Any = None
            ) -> int:  # fmt: skip
    """Walk both trees at once; returns the number of leaves."""
    rows = np.arange(len(X)) if rows is None else rows
    assert ours["sum_hessian"][a] == pytest.approx(theirs["sum_hessian"][b], rel=1e-3, abs=1e-3)
    leaf = ours["left_children"][a] < 0
    assert leaf == (theirs["left_children"][b] < 0), (a, b, ours["loss_changes"][a], theirs["loss_changes"][b])
    if leaf:
        found, expected = (tree["base_weights"][k * node : k * node + k] for tree, node in ((ours, a), (theirs, b)))
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-3)
        return 1
    sides = [goes_left(tree, node, X[rows]) for tree, node in ((ours, a), (theirs, b))]
    assert ours["split_indices"][a] == theirs["split_indices"][b], (a, b)
    mirrored = bool((sides[0] != sides[1]).all())
    assert mirrored or (sides[0] == sides[1]).all()
    assert ours["loss_changes"][a] == pytest.approx(theirs["loss_changes"][b], rel=3e-3, abs=1e-3)
    names = ("right_children", "left_children") if mirrored else ("left_children", "right_children")
    return sum(
        compare(ours, theirs, X, k, ours[own][a], theirs[other][b], rows[side])
        for own, other, side in (("left_children", names[0], sides[0]), ("right_children", names[1], ~sides[0]))
    )


@pytest.mark.parametrize("growth", [
    {"max_depth": 4}, {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 10},
], ids=["depthwise", "lossguide"])  # fmt: skip
@pytest.mark.parametrize("params", [
    {}, {"reg_lambda": 0.0, "min_child_weight": 0.0}, {"gamma": 30.0}, {"reg_alpha": 3.0}, {"min_child_weight": 100.0},
], ids=lambda params: next(iter(params), "plain"))  # fmt: skip
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_xgboost(params: dict[str, Any], growth: dict[str, Any], missing: float, weighted: bool) -> None:
    """Hessians of the outputs are 1, 2 and 3 per row: a weight of 100 keeps the first output of some nodes at 0.

    Steps are left out: with `max_delta_step`, XGBoost's gains of vectors are no loss reductions.
    """
    k, rng = 3, np.random.default_rng(5)
    data = make_data(rng, n_rows=4000, n_values=8, missing=missing, weighted=weighted)
    given = {"learning_rate": 1.0, **params, **growth}
    with quantized(data, max_bin=64) as dataset:
        own = {**given, "objective": halves, "num_class": k, "base_score": 0.25, "n_jobs": 1}
        model = train({**own, "multi_strategy": "multi_output_tree"}, dataset, 1)
    ours = json.loads(model.to_bytes("json"))["learner"]["gradient_booster"]["model"]["trees"]
    theirs = xgboost_trees(data, given, k)
    assert compare(ours[0], theirs[0], data.X, k) == model.trees[0].n_leaves > 3
