"""Laws of trees, over random problems and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_interactions, check_model, check_monotone, paths
from strategies.trees import PARAMS, fit, make_data

from daskboost.params import TrainParams


@settings(max_examples=60, deadline=None, derandomize=True)
@given(PARAMS, st.sampled_from(["reg:squarederror", "binary:logistic"]), st.sampled_from([0.0, 0.5]), st.integers(0, 9))
def test_every_tree_obeys(params: dict[str, Any], objective: str, missing: float, seed: int) -> None:
    data = make_data(np.random.default_rng(seed), objective, n_rows=150, missing=missing)
    model = fit(data, {"objective": objective, **params}, 2)
    check_model(model, TrainParams.from_mapping(params))
    check_interactions(model, params.get("interaction_constraints", [list(range(5))]))
    check_monotone(model, data.X[:40], params.get("monotone_constraints", []))


@pytest.mark.parametrize("growth", [
    {"max_depth": 6}, {"max_depth": 4, "grow_policy": "symmetric"}, {"max_leaves": 30, "grow_policy": "lossguide"},
    {"max_depth": 6, "max_leaves": 20},
])  # fmt: skip
@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "count:poisson"])
def test_monotone_constraints(objective: str, growth: dict[str, Any], rng: np.random.Generator) -> None:
    """Against the data's own directions, so that the constraints bind."""
    data = make_data(rng, objective, n_rows=1500, missing=0.4, n_values=30)
    directions = [-1, 1, 0, 1, -1]
    params = {"objective": objective, "learning_rate": 1.0, "reg_lambda": 0, **growth}
    model = fit(data, {**params, "monotone_constraints": directions}, 5)
    assert {int(f) for tree in model.trees for f in tree.feature[~tree.is_leaf]} & {0, 1, 3, 4}
    check_monotone(model, data.X[:60], directions)
    with pytest.raises(AssertionError):
        check_monotone(fit(data, params, 5), data.X[:60], directions)


def test_a_monotone_feature_may_tell_missing_values_apart(rng: np.random.Generator) -> None:
    """Being missing is no value, so either side may be the higher."""
    data = make_data(rng, n_rows=400, n_features=1)
    lost = rng.random(400) < 0.5
    data.X[lost] = np.nan
    for sign in (-1, 1):
        data.y[:] = sign * lost
        model = fit(data, {"monotone_constraints": [1], "max_depth": 1, "learning_rate": 1}, 1)
        assert model.predict(np.array([[np.nan], [0.0]], np.float32)) == pytest.approx([sign, 0], abs=0.05)


def test_interaction_constraints_bind(rng: np.random.Generator) -> None:
    data, groups = make_data(rng, n_rows=1000), [[0, 1], [2, 3]]
    model = fit(data, {"max_depth": 5, "interaction_constraints": groups}, 5)
    check_interactions(model, [*groups, [4]])  # a feature of no group stays alone
    with pytest.raises(AssertionError):
        check_interactions(fit(data, {"max_depth": 5}, 5), [*groups, [4]])


@pytest.mark.parametrize("policy", ["depthwise", "symmetric"])
def test_column_samples_have_their_size(policy: str, rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=2000, n_features=10, missing=0, n_values=40)
    common = {"grow_policy": policy, "max_depth": 4}
    by_tree = fit(data, {**common, "colsample_bytree": 0.35}, 8)
    sets = [set(tree.feature[~tree.is_leaf].tolist()) for tree in by_tree.trees]
    assert all(len(used) <= 3 for used in sets) and len(set.union(*sets)) > 3
    by_level = fit(data, {**common, "colsample_bylevel": 0.25}, 8)
    for tree in by_level.trees:
        for depth in range(4):
            assert len(set(tree.feature[(tree.depth == depth) & ~tree.is_leaf].tolist())) <= 2
    assert max(len(path) for tree in by_level.trees for path in paths(tree)) > 2
    one = fit(data, {**common, "colsample_bynode": 0.01}, 8)
    assert len({int(tree.feature[0]) for tree in one.trees}) > 2  # at least one feature is left, not always the same


def test_column_samples_nest(rng: np.random.Generator) -> None:
    """A node's features are among its level's, which are among the tree's."""
    data = make_data(rng, n_rows=2000, n_features=10, missing=0, n_values=40)
    shares = {"colsample_bytree": 0.6, "colsample_bylevel": 0.5, "colsample_bynode": 0.5}  # 6, 3 and 1 features
    model = fit(data, {**shares, "max_depth": 5}, 6)
    for tree in model.trees:
        inner = ~tree.is_leaf
        assert len(set(tree.feature[inner].tolist())) <= 6
        for depth in range(int(tree.depth.max())):
            assert len(set(tree.feature[inner & (tree.depth == depth)].tolist())) <= 3


def test_max_leaves_keeps_the_best_splits_of_a_level(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=800)
    (whole,) = fit(data, {"max_depth": 3}, 1).trees
    (short,) = fit(data, {"max_depth": 3, "max_leaves": 7}, 1).trees
    assert (whole.n_leaves, short.n_leaves) == (8, 7)
    level = np.flatnonzero(whole.depth == 2)
    assert level[short.is_leaf[level]].tolist() == [level[np.argmin(whole.gain[level])]]


def test_covers_and_leaf_values_are_those_of_the_rows(rng: np.random.Generator) -> None:
    """By brute force from float gradients: 15 bits of rounding apart."""
    data = make_data(rng, n_rows=2000)
    model = fit(data, {"max_depth": 4, "learning_rate": 1.0, "reg_lambda": 2.0, "base_score": 0.0}, 1)
    assert data.weight is not None
    (tree,), leaves = model.trees, np.asarray(model.predict(data.X, output="leaf")).reshape(-1)
    for leaf in np.unique(leaves):
        rows = leaves == leaf
        h = data.weight[rows].sum(dtype=np.float64)
        g = -(data.weight[rows] * data.y[rows]).sum(dtype=np.float64)
        assert tree.cover[leaf] == pytest.approx(h, rel=1e-3)
        assert tree.value[leaf] == pytest.approx(-g / (h + 2), rel=1e-3, abs=1e-3)
