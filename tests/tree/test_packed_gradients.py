"""What choosing splits on packed gradients may change, and what it may not; the trees themselves have a naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from invariants import check_monotone
from strategies.trees import fit, make_data, quantized

from daskboost import Booster, train
from daskboost.devices.plan import SMALL_ROWS
from daskboost.errors import ParameterError
from daskboost.estimators import DaskBoostRegressor

PACKED = {"gradient_precision": "packed"}


def values_of(model: Booster) -> list[list[float]]:
    """Model files tell parameters apart, too."""
    return [tree.value.tolist() for tree in model.trees]


@pytest.mark.parametrize(("n_rows", "is_same"), [(SMALL_ROWS, True), (SMALL_ROWS + 1, False)])
def test_small_data_are_always_exact(n_rows: int, is_same: bool, rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=n_rows)
    models = [fit(data, {"gradient_precision": precision}) for precision in ("exact", "packed")]
    assert (values_of(models[0]) == values_of(models[1])) == is_same


@pytest.mark.parametrize("growth", [
    {"max_depth": 5}, {"max_depth": 4, "grow_policy": "symmetric"}, {"max_leaves": 20, "grow_policy": "lossguide"},
], ids=["depthwise", "symmetric", "lossguide"])  # fmt: skip
def test_values_and_covers_are_those_of_the_rows(growth: dict[str, Any], rng: np.random.Generator) -> None:
    """Newton steps of squared errors: means of residuals, to the noise of 15 bits and not of 3."""
    data = make_data(rng, n_rows=6_000, weighted=False)
    model = fit(data, {**PACKED, **growth, "learning_rate": 1.0, "reg_lambda": 0.0, "base_score": 0.5}, 1)
    (tree,) = model.trees
    leaf_of_row = model.predict(data.X, output="leaf")[:, 0]
    assert tree.n_leaves > 8
    for leaf in np.flatnonzero(tree.is_leaf).tolist():
        residuals = (data.y - 0.5)[leaf_of_row == leaf]
        assert tree.cover[leaf] == pytest.approx(len(residuals), rel=1e-3)
        assert tree.value[leaf] == pytest.approx(residuals.mean() if len(residuals) else 0, abs=1e-3)
    assert tree.cover[0] == pytest.approx(6_000, rel=1e-3)
    variances = [((data.y - data.y[rows].mean()) ** 2)[rows].sum() for rows in sides(tree, data.X, model)]
    assert tree.gain[0] == pytest.approx(variances[0] - variances[1] - variances[2], rel=1e-2)


def sides(tree: Any, X: Any, model: Any) -> list[Any]:
    """All rows, those left of the root and those right of it."""
    leaf_of_row, parents = model.predict(X, output="leaf")[:, 0], tree.parent
    def below(node: int) -> bool:
        while parents[node] != 0:
            node = parents[node]
        return bool(node == tree.left_child[0])

    left = np.array([below(leaf) for leaf in leaf_of_row.tolist()])
    return [np.ones(len(X), bool), left, ~left]


def test_monotone_constraints_hold_for_exact_values(rng: np.random.Generator) -> None:
    """Limits come from packed sums, values from others: these are kept within."""
    data = make_data(rng, n_rows=5_000, missing=0.4, n_values=30)
    directions = [-1, 1, 0, 1, -1]
    params = {**PACKED, "learning_rate": 1.0, "reg_lambda": 0, "max_depth": 6, "monotone_constraints": directions}
    check_monotone(fit(data, params, 5), data.X[:60], directions)


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic"])
def test_it_learns_as_much(objective: str, rng: np.random.Generator) -> None:
    data, unseen = (make_data(rng, objective, n_rows=12_000, n_values=60, weighted=False) for _ in range(2))
    losses = []
    for precision in ("exact", "packed"):
        results: dict[str, Any] = {}
        with quantized(data, max_bin=64) as rows, quantized(unseen, reference=rows) as others:
            params = {"objective": objective, "max_depth": 5, "learning_rate": 0.2, "gradient_precision": precision}
            train({**params, "n_jobs": 1}, rows, 30, evals=[(others, "unseen")], evals_result=results)
        losses.append(next(iter(results["unseen"].values())))
    assert losses[1][-1] < 0.8 * losses[1][0]
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.02)


def test_estimators_pass_it_on(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=5_000, missing=0.0, weighted=False)
    models = [
        DaskBoostRegressor(n_estimators=2, n_jobs=1, device="cpu", gradient_precision=precision).fit(data.X, data.y)
        for precision in ("exact", "packed")
    ]
    assert values_of(models[0].booster_) != values_of(models[1].booster_)
    with pytest.raises(ParameterError, match="gradient_precision='coarse' must be one of 'exact', 'packed'"):
        DaskBoostRegressor(gradient_precision="coarse").fit(data.X, data.y)
