"""What nodes of little or no hessian are worth, when they are split off, and that no scale of labels matters.

Every test runs on the CPU and on an emulated GPU, whose kernels grow trees with or without the host.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import xgboost
from kernels.emulation import EmulatedRuntime
from strategies.trees import Data, fit, make_data

from daskboost import Booster
from daskboost.devices.gpu.runtime import cuda

GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 4},
    "few leaves": {"max_depth": 4, "max_leaves": 6},
    "best first": {"max_depth": 4, "grow_policy": "lossguide"},
    "best first by itself": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 9},
    "symmetric": {"max_depth": 3, "grow_policy": "symmetric", "score_function": "newton"},
    "with the host": {"max_depth": 4, "grow_policy": "lossguide", "colsample_bynode": 0.99},
    "certified": {"max_depth": 4, "out_of_core": "certified", "resident_share": 0.9},
    "sampled": {"max_depth": 4, "out_of_core": "sampled", "subsample": 0.9},
    "limited": {"max_depth": 4, "reg_alpha": 1e-30},
}
BY_WEIGHT: dict[str, dict[str, Any]] = {
    "by weight": {"max_depth": 4, "score_function": "l2"},
    "symmetric by weight": {"max_depth": 3, "grow_policy": "symmetric", "score_function": "l2"},
}
HUBER = {"objective": "reg:pseudohubererror", "reg_lambda": 0.0}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.emulated)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where trees grow."""
    if request.param == "cuda":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    name: str = request.param
    return name


def tree_of_xgboost(data: Data, params: dict[str, Any]) -> Any:
    """Return XGBoost's tree, of its JSON; asked on the CPU alone, since sanitizers end the process of XGBoost."""
    given = {"tree_method": "hist", "nthread": 1, "base_score": 0.0, "lambda": params["reg_lambda"], **params}
    booster = xgboost.train({k: v for k, v in given.items() if k != "reg_lambda"}, xgboost.DMatrix(data.X, data.y), 1)
    return json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]


@pytest.mark.parametrize("growth", GROWTH)
def test_a_light_root_is_worth_nothing(growth: str, device: str, rng: np.random.Generator) -> None:
    """Far residuals of pseudo-Huber hardly have hessians, and -G / H of them is no step worth taking."""
    data = make_data(rng, n_rows=50, weighted=False)
    data = dataclasses.replace(data, y=np.float32(1e4) + data.y)
    model = fit(data, {**HUBER, **GROWTH[growth], "base_score": 0.0, "device": device}, 2)
    assert all(tree.n_leaves == 1 and tree.value[0] == 0 and tree.cover[0] < 1 for tree in model.trees)
    if device == "cpu":
        assert tree_of_xgboost(data, {**HUBER, "reg_lambda": 0.0})["base_weights"] == [0.0]


def test_margins_of_sure_rows_stay(device: str, rng: np.random.Generator) -> None:
    """Rows whose base margin is 20, half of them wrong, weigh 4e-7 together."""
    from daskboost import QuantizedDataset, train

    data = make_data(rng, "binary:logistic", n_rows=200, weighted=False)
    margin = np.full(200, 20, np.float32)
    with QuantizedDataset.from_dask(data.X, data.y, base_margin=margin, n_jobs=1) as dataset:
        model = train({"objective": "binary:logistic", "n_jobs": 1, "device": device}, dataset, 3)
    assert [tree.value.tolist() for tree in model.trees] == [[0.0]] * 3


@pytest.mark.parametrize("growth", ["symmetric", *BY_WEIGHT])
@pytest.mark.parametrize("n_rows", [700, 5_000], ids=["small", "large"])
def test_light_leaves_are_worth_nothing(growth: str, n_rows: int, device: str, rng: np.random.Generator) -> None:
    """Symmetric trees have leaves as light as can be. So have trees that are searched by weight, whose
    `min_child_weight` is one of rows and says nothing of hessians: their leaves keep their values."""
    data = make_data(rng, "binary:logistic", n_rows=n_rows, weighted=False)
    least = n_rows / 60
    params = {"objective": "binary:logistic", "min_child_weight": least, "learning_rate": 1.0, "base_score": 0.4,
              "reg_lambda": 0.5, **{**GROWTH, **BY_WEIGHT}[growth], "device": device}  # fmt: skip
    model = fit(data, params, 1)
    (tree,) = model.trees
    leaf_of_row = model.predict(data.X, output="leaf")[:, 0]
    g, h = 0.4 - data.y.astype(np.float64), 0.24
    leaves = np.flatnonzero(tree.is_leaf).tolist()
    sums = {leaf: (float(g[leaf_of_row == leaf].sum()), h * float((leaf_of_row == leaf).sum())) for leaf in leaves}
    light = {leaf for leaf, (_, h) in sums.items() if h < least}
    assert 0 < len(light) < len(leaves)
    for leaf, (sum_g, sum_h) in sums.items():
        worth = growth in BY_WEIGHT or leaf not in light
        assert tree.value[leaf] == (pytest.approx(-sum_g / (sum_h + 0.5), rel=5e-3, abs=5e-3) if worth else 0), leaf


@pytest.mark.parametrize("growth", ["depthwise", "best first by itself", "with the host", "certified", "limited"])
@pytest.mark.parametrize("n_rows", [50, 5_000], ids=["small", "large"])
def test_children_without_hessians_are_split_off(growth: str, n_rows: int, device: str) -> None:
    """What XGBoost divides by is H + lambda with H = 2.5e-8, which rounds to lambda."""
    x = np.repeat(np.array([1, 0], np.float32), n_rows // 2)[:, None]
    data = Data(np.repeat(x, 5, axis=1), 1000 * x[:, 0])
    params = {**HUBER, "min_child_weight": 0.0, "reg_lambda": 1.0, "base_score": 0.0, "learning_rate": 1.0}
    (ours,) = fit(data, {**params, **GROWTH[growth], "device": device}, 1).trees
    assert ours.n_leaves == 2
    if device != "cpu":
        (of_cpu,) = fit(data, {**params, **GROWTH[growth], "device": "cpu"}, 1).trees
        assert (ours.value.tobytes(), ours.gain.tobytes()) == (of_cpu.value.tobytes(), of_cpu.gain.tobytes())
        return
    theirs = tree_of_xgboost(data, params | {"learning_rate": 1.0, "max_depth": 1})
    np.testing.assert_allclose(ours.value[ours.is_leaf], theirs["split_conditions"][1:], rtol=1e-3)
    np.testing.assert_allclose(ours.gain[0], theirs["loss_changes"][0], rtol=2e-3)


def test_nothing_is_divided_by_no_hessian(device: str) -> None:
    """Without lambda, a child whose hessians round to 0 has no value and is not split off."""
    x = np.repeat(np.array([1, 0], np.float32), 25)[:, None]
    params = {**HUBER, "min_child_weight": 0.0, "base_score": 0.0, "device": device}
    (tree,) = fit(Data(np.repeat(x, 5, axis=1), 1000 * x[:, 0]), params, 1).trees
    assert tree.n_leaves == 1 and np.isfinite(tree.value).all()


def shapes(model: Booster) -> list[list[Any]]:
    return [[getattr(tree, name).tolist() for name in ("left_child", "feature", "split_bin")] for tree in model.trees]


@pytest.mark.parametrize("growth", [name for name in GROWTH if name not in ("limited", "sampled")])
@pytest.mark.parametrize("n_rows", [300, 5_000], ids=["small", "large"])
def test_labels_of_any_scale_are_learned_alike(growth: str, n_rows: int, device: str, rng: np.random.Generator
                                               ) -> None:  # fmt: skip
    """Labels times a power of two have the same trees, whose values are that many times as large, to the last bit.

    But for rows that are drawn by g**2 + 0.1 h**2, which are others, and a penalty, which is of one scale.
    """
    data = make_data(rng, n_rows=n_rows)
    params = {"reg_lambda": 0.0, **GROWTH[growth], "device": device}
    model = fit(data, params, 3)
    assert all(tree.n_leaves > 3 for tree in model.trees)
    for scale in (2.0**-40, 2.0**30):
        other = fit(dataclasses.replace(data, y=data.y * np.float32(scale)), params, 3)
        assert shapes(other) == shapes(model)
        assert [tree.value.tolist() for tree in other.trees] == [
            (tree.value * np.float32(scale)).tolist() for tree in model.trees
        ]


@pytest.mark.parametrize("scale", [1e-8, 1e-20])
def test_tiny_labels_are_learned(scale: float, device: str, rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=2_000, weighted=False)
    tiny = dataclasses.replace(data, y=(data.y * scale).astype(np.float32))
    model = fit(tiny, {"reg_lambda": 0.0, "max_depth": 4, "device": device}, 30)
    error = (model.predict(tiny.X).astype(np.float64) - tiny.y).var() / tiny.y.astype(np.float64).var()
    assert error < 0.2


@pytest.mark.parametrize("n_rows", [300, 20_000], ids=["small", "large"])
def test_equal_gradients_are_not_split(n_rows: int, device: str, rng: np.random.Generator) -> None:
    """What rounding makes of gradients that are all the same is noise, however many splits there are to choose from."""
    data = make_data(rng, n_rows=n_rows, n_values=200, weighted=False)
    constant = dataclasses.replace(data, y=np.full(n_rows, 0.7, np.float32))
    model = fit(constant, {"base_score": 0.0, "max_depth": 3, "device": device}, 3, max_bin=256)
    assert [tree.n_leaves for tree in model.trees] == [1, 1, 1]
