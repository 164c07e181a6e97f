"""What scoring splits by weights changes, what it leaves alone, and where it is refused; trees have a naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies.trees import Data, fit, make_data, quantized

from daskboost import Booster, cv, train, train_many
from daskboost.errors import ParameterError
from daskboost.estimators import DaskBoostClassifier
from daskboost.objectives.objective import has_constant_hessian
from daskboost.objectives.objective_names import make_objective
from daskboost.objectives.regression import SquaredError

LOGISTIC = {"objective": "binary:logistic", "max_depth": 4, "learning_rate": 1.0}
SYMMETRIC = {**LOGISTIC, "grow_policy": "symmetric"}
L2, NEWTON = {"score_function": "l2"}, {"score_function": "newton"}


def trees_of(model: Booster) -> list[list[Any]]:
    """Model files tell parameters apart, too."""
    names = ("left_child", "feature", "split_bin", "default_left", "value", "gain", "cover")
    return [[getattr(tree, name).tolist() for name in names] for tree in model.trees]


@pytest.mark.parametrize(("params", "same_as"), [
    (SYMMETRIC, L2), ({**SYMMETRIC, "objective": "reg:logistic"}, L2), (LOGISTIC, NEWTON),
    ({**SYMMETRIC, "objective": "count:poisson"}, NEWTON), ({**LOGISTIC, "grow_policy": "lossguide"}, NEWTON),
    ({**SYMMETRIC, "objective": "multi:softprob", "num_class": 3}, NEWTON),
    ({**SYMMETRIC, "monotone_constraints": [0, 1, 0, 0, 0]}, NEWTON),
])  # fmt: skip
@pytest.mark.parametrize("n_rows", [700, 5_000], ids=["small", "large"])
def test_what_auto_is(params: dict[str, Any], same_as: dict[str, Any], n_rows: int, rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic", n_rows=n_rows)
    found = trees_of(fit(data, params, 5))
    assert found == trees_of(fit(data, {**params, **same_as}, 5))
    if "monotone_constraints" not in params:
        assert found != trees_of(fit(data, {**params, **(L2 if same_as == NEWTON else NEWTON)}, 5))


@pytest.mark.parametrize("objective", ["reg:squarederror", "reg:absoluteerror", "reg:quantileerror"])
def test_hessians_that_are_weights_make_no_difference(objective: str, rng: np.random.Generator) -> None:
    """Also where weights could not be scored by: for vectors and under constraints."""
    data, params = make_data(rng, n_rows=5_000), {"objective": objective, "grow_policy": "symmetric", "max_depth": 3}
    more: list[dict[str, Any]] = [{}]
    if objective == "reg:quantileerror":
        more = [{"quantile_alpha": [0.2, 0.7], "multi_strategy": "multi_output_tree"}]
    elif objective == "reg:squarederror":
        more += [{"monotone_constraints": [0, 1, 0, 0, 0]}]
    for each in more:
        found = [trees_of(fit(data, {**params, **each, **score})) for score in ({}, L2, NEWTON)]
        assert found[0] == found[1] == found[2]


def test_only_what_has_its_own_gradients_says_what_their_hessians_are() -> None:
    class Halved(SquaredError):
        def gradients(self, label: Any, margin: Any, xp: Any = np) -> tuple[Any, Any]:
            g, h = super().gradients(label, margin, xp)
            return g, h / 2

    assert has_constant_hessian(make_objective("reg:squarederror"))
    assert not has_constant_hessian(Halved()) and not has_constant_hessian(make_objective("reg:pseudohubererror"))


@pytest.mark.parametrize(("params", "what"), [
    ({"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree"}, "multi_output_tree"),
    ({**SYMMETRIC, "monotone_constraints": [0, 1, 0, 0, 0]}, "monotone_constraints"),
    ({**LOGISTIC, "out_of_core": "certified"}, "certified"),
])  # fmt: skip
def test_what_does_not_go_with_weights(params: dict[str, Any], what: str, rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic")
    with pytest.raises(ParameterError, match=rf"score_function='l2' does not go with .*{what}.*; use .*'newton'"):
        fit(data, {**params, **L2})
    assert fit(data, params, 1).n_iterations == 1


@pytest.mark.parametrize("growth", [{"max_depth": 5}, {"max_depth": 4, "grow_policy": "symmetric"}])
@pytest.mark.parametrize("n_rows", [900, 6_000], ids=["small", "large"])
def test_leaves_are_newton_steps(growth: dict[str, Any], n_rows: int, rng: np.random.Generator) -> None:
    """Of the rows that are in them, and so are covers and the gain of the root."""
    data = make_data(rng, "binary:logistic", n_rows=n_rows)
    assert data.weight is not None
    params = {**LOGISTIC, **growth, **L2, "learning_rate": 1.0, "reg_lambda": 0.5, "base_score": 0.3,
              "min_child_weight": 0}  # fmt: skip
    model = fit(data, params, 1)
    (tree,) = model.trees
    leaf_of_row, g, h = model.predict(data.X, output="leaf")[:, 0], (0.3 - data.y) * data.weight, 0.21 * data.weight
    assert tree.n_leaves > 8
    for leaf in np.flatnonzero(tree.is_leaf).tolist():
        own = leaf_of_row == leaf
        assert tree.cover[leaf] == pytest.approx(h[own].sum(), rel=1e-3)
        assert tree.value[leaf] == pytest.approx(-g[own].sum() / (h[own].sum() + 0.5), abs=5e-3)

    def gain_of(rows: Any) -> float:
        return float(g[rows].sum() ** 2 / (h[rows].sum() + 0.5))

    parents, right = tree.parent, []
    for leaf in leaf_of_row.tolist():
        while parents[leaf] != 0:
            leaf = parents[leaf]
        right.append(leaf == tree.right_child[0])
    sides = np.array(right)
    found = gain_of(sides) + gain_of(~sides) - gain_of(np.ones(n_rows, bool))
    assert tree.gain[0] == pytest.approx(found, rel=1e-2)


def test_child_weights_are_those_of_rows(rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic", n_rows=5_000, weighted=False)
    for weight in (5, 50):
        model = fit(data, {**LOGISTIC, **L2, "max_depth": 9, "min_child_weight": weight}, 1)
        (tree,) = model.trees
        counts = np.bincount(model.predict(data.X, output="leaf")[:, 0], minlength=tree.n_nodes)[tree.is_leaf]
        assert weight <= counts.min() < 4 * weight, "by hessians, which are at most 1/4, it would be four times as many"


def test_steps_are_limited_in_leaves_alone(rng: np.random.Generator) -> None:
    data = make_data(rng, "count:poisson", n_rows=5_000)
    params = {"objective": "count:poisson", "max_depth": 4, **L2, "learning_rate": 1.0}
    free, limited = (fit(data, {**params, "max_delta_step": step}, 1).trees[0] for step in (0, 0.05))
    assert free.feature.tolist() == limited.feature.tolist() and free.split_bin.tolist() == limited.split_bin.tolist()
    assert np.abs(limited.value).max() == np.float32(0.05) < np.abs(free.value).max()


def test_a_weight_counts_rows(rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic", n_rows=400, weighted=False)
    times = rng.integers(1, 4, 400)
    repeated = Data(np.repeat(data.X, times, axis=0), np.repeat(data.y, times))
    weighted = Data(data.X, data.y, times.astype(np.float32))
    params = {**SYMMETRIC, "scale_pos_weight": 1.5}
    assert trees_of(fit(weighted, params)) == trees_of(fit(repeated, params))


def test_fits_of_every_kind_are_the_same_trees(rng: np.random.Generator) -> None:
    """Continued, one of many, and stopped early; a fold is a fit of its rows."""
    data = make_data(rng, "binary:logistic", n_rows=5_000)
    params = {**SYMMETRIC, "n_jobs": 1}
    with quantized(data, partitions=3) as dataset:
        whole = train(params, dataset, 4)
        assert trees_of(train(params, dataset, 2, init_model=train(params, dataset, 2))) == trees_of(whole)
        many = [trained.booster for trained in train_many([params, {**params, **NEWTON}], dataset, 4)]
        assert trees_of(many[0]) == trees_of(whole) != trees_of(many[1])
        stopped = train(params, dataset, 4, evals=[(dataset, "train")], early_stopping_rounds=2)
        assert trees_of(stopped)[:4] == trees_of(whole)[: len(stopped.trees)]
        scores = [cv({**params, **score}, dataset, 4, folds=2).to_numpy().tolist() for score in ({}, L2, NEWTON)]
        assert scores[0] == scores[1] != scores[2]


def test_splits_without_marginal_effects_are_found(rng: np.random.Generator) -> None:
    """Rows that are settled weigh nothing by hessians, and hide what the others have in common."""
    def draw(n_rows: int) -> Data:
        X = rng.normal(size=(n_rows, 6)).astype(np.float32)
        margin = 4 * (X[:, 0] > 0) - 2 + 1.5 * np.sign(X[:, 1] * X[:, 2])
        return Data(X, (rng.random(n_rows) < 1 / (1 + np.exp(-margin))).astype(np.float32))

    data, unseen, losses = draw(12_000), draw(12_000), []
    for score in (L2, NEWTON):
        results: dict[str, Any] = {}
        with quantized(data, max_bin=64) as rows, quantized(unseen, reference=rows) as others:
            params = {**SYMMETRIC, **score, "learning_rate": 0.2, "n_jobs": 1}
            train(params, rows, 30, evals=[(others, "unseen")], evals_result=results)
        losses.append(results["unseen"]["logloss"])
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=0.03)


def test_estimators_pass_it_on(rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic", n_rows=1_000, missing=0.0, weighted=False)
    models = [
        DaskBoostClassifier(
            n_estimators=5, n_jobs=1, device="cpu", grow_policy="symmetric", learning_rate=1, max_depth=4,
            score_function=score,
        ).fit(data.X, data.y)
        for score in ("auto", "l2", "newton")
    ]
    found = [trees_of(model.booster_) for model in models]
    assert found[0] == found[1] != found[2]
    assert models[1].get_params()["score_function"] == "l2"
    with pytest.raises(ParameterError, match="score_function='cosine' must be one of 'auto', 'newton', 'l2'"):
        DaskBoostClassifier(score_function="cosine").fit(data.X, data.y)
