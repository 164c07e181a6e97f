"""Base scores of several classes: what they are, and that everything that knows base scores knows vectors of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from kernels.emulation import EmulatedRuntime
from strategies.trees import Data, fit, make_data, quantized

from daskboost import Booster, cv, train, train_many
from daskboost.devices.gpu.runtime import cuda
from daskboost.dtypes import Float32
from daskboost.model.serialize import document

SOFTPROB = {"objective": "multi:softprob", "num_class": 5, "max_depth": 3}


def unbalanced(rng: np.random.Generator, n_rows: int = 600, weighted: bool = True) -> Data:
    """Five classes, the last of which has no rows."""
    data = make_data(rng, n_rows=n_rows, weighted=weighted)
    shares = np.cumsum([0.7, 0.2, 0.07])
    return dataclasses.replace(data, y=np.searchsorted(np.quantile(data.y, shares), data.y).astype(np.float32))


def scores_of(model: xgboost.Booster) -> Float32:
    param = json.loads(model.save_raw("json"))["learner"]["learner_model_param"]
    return np.array(json.loads(param["base_score"]), np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["multi:softprob", "multi:softmax"])
def test_it_is_xgboosts(name: str, weighted: bool, rng: np.random.Generator) -> None:
    data = unbalanced(rng, weighted=weighted)
    params = {"objective": name, "num_class": 5}
    theirs = scores_of(xgboost.train(params, xgboost.DMatrix(data.X, data.y, weight=data.weight), 1))
    ours = fit(data, params, 1).base_score
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    weight = np.ones(len(data.y)) if data.weight is None else data.weight
    shares = np.bincount(data.y.astype(int), weight, minlength=5) / weight.sum()
    odds = np.exp(np.array(ours))
    np.testing.assert_allclose(odds / odds.sum(), shares, atol=1e-5)


def test_the_first_round_begins_with_the_shares(rng: np.random.Generator) -> None:
    """Classes of 90 and 10 % that nothing tells apart: their entropy, in place of the log-loss of equal shares."""
    y = (np.arange(1000) % 10 == 0).astype(np.float32)
    history: dict[str, dict[str, list[float]]] = {}
    with quantized(Data(np.zeros((1000, 1), np.float32), y)) as data:
        train({"objective": "multi:softprob", "num_class": 2}, data, 1, evals=[(data, "train")], evals_result=history)
    assert history["train"]["mlogloss"][0] == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1), rel=1e-3)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_nobody_sees_how_rows_lie(strategy: str, rng: np.random.Generator) -> None:
    data, params = unbalanced(rng), {**SOFTPROB, "multi_strategy": strategy}
    expected = fit(data, params).to_bytes("ubj")
    assert fit(data, params, partitions=3, engines=2, chunk_rows=97).to_bytes("ubj") == expected
    assert fit(data, params, partitions=4, engines=4).to_bytes("ubj") == expected


@pytest.mark.emulated
@pytest.mark.parametrize("n_rows", [600, 5_000], ids=["small", "large"])
def test_a_gpu_begins_as_the_cpu_does(n_rows: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    data = unbalanced(rng, n_rows)
    expected = fit(data, SOFTPROB)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime())
    found = fit(data, {**SOFTPROB, "device": "cuda"})
    assert found.base_score == expected.base_score and len(set(found.base_score)) == 5
    assert [tree.value.tolist() for tree in found.trees] == [tree.value.tolist() for tree in expected.trees]


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_files_keep_it(strategy: str, ending: str, rng: np.random.Generator, tmp_path: Path) -> None:
    data = unbalanced(rng)
    model = fit(data, {**SOFTPROB, "multi_strategy": strategy})
    model.save_model(path := tmp_path / f"model.{ending}")
    assert Booster.load_model(path) == model
    theirs = xgboost.Booster(model_file=path)
    rows = xgboost.DMatrix(data.X)
    np.testing.assert_array_equal(scores_of(theirs), np.array(model.base_score, np.float32))
    np.testing.assert_allclose(
        theirs.predict(rows, output_margin=True), model.predict(data.X, output="margin"), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(theirs.predict(rows), model.predict(data.X), rtol=1e-5, atol=1e-6)


def test_one_number_is_one_for_all_classes(rng: np.random.Generator) -> None:
    """As models have it that were trained before, and those of users who give a base score."""
    data = unbalanced(rng)
    model = fit(data, {**SOFTPROB, "base_score": 0.5})
    assert document(model)["learner"]["learner_model_param"]["base_score"] == "0.5"
    loaded = Booster.from_bytes(model.to_bytes("json"))
    assert loaded.base_margin.tolist() == [0.5] * 5
    np.testing.assert_array_equal(loaded.predict(data.X), model.predict(data.X))


def test_contributions_contain_it(rng: np.random.Generator) -> None:
    data = unbalanced(rng)
    model = fit(data, SOFTPROB)
    found = model.predict(data.X[:50], output="contributions")
    np.testing.assert_allclose(
        found.sum(axis=-1), model.predict(data.X[:50], output="margin"), rtol=1e-4, atol=1e-5
    )
    none = dataclasses.replace(model, trees=(), tree_outputs=(), iteration_indptr=(0,))
    np.testing.assert_array_equal(none.predict(data.X[:2], output="margin"), np.tile(model.base_margin, (2, 1)))


def test_a_continued_fit_keeps_it(rng: np.random.Generator) -> None:
    """Also where the new rows have other shares."""
    data = unbalanced(rng)
    model = fit(data, SOFTPROB, 2)
    other = dataclasses.replace(data, y=4 - data.y)
    with quantized(other) as dataset:
        longer = train({"n_jobs": 1, **SOFTPROB}, dataset, 2, init_model=model)
    assert longer.base_score == model.base_score and longer.n_iterations == 4


def test_several_fits_have_their_own(rng: np.random.Generator) -> None:
    """Models of `train_many` begin as those of `train` do, and those of folds with their rows' shares."""
    data = unbalanced(rng)
    with quantized(data) as dataset:
        expected = train({"n_jobs": 1, **SOFTPROB}, dataset, 2)
        found = train_many([SOFTPROB, {**SOFTPROB, "max_depth": 2}], dataset, 2)
        assert found[0].booster.base_score == found[1].booster.base_score == expected.base_score
        scores = cv(SOFTPROB, dataset, 1)
        half = np.arange(len(data.y)) % 2 == 0
        of_half = train({"n_jobs": 1, **SOFTPROB}, dataset.subset(half), 1)
    assert data.weight is not None
    alone = fit(Data(data.X[half], data.y[half], data.weight[half]), SOFTPROB, 1)
    assert of_half.base_score == alone.base_score != expected.base_score
    assert scores["valid-mlogloss-mean"].iloc[0] < 0.85  # 1.1 from equal shares


@pytest.mark.parametrize(("name", "params", "ours", "theirs"), [
    ("binary:logitraw", {}, np.log(0.3 / 0.7), 0.3),
    ("reg:pseudohubererror", {}, 1000.3, None),
    ("reg:absoluteerror", {}, 1000.0, 1000.0),
    ("reg:quantileerror", {"quantile_alpha": 0.7}, 1000.0, 1000.7),
])  # fmt: skip
def test_where_they_differ_from_xgboosts(name: str, params: dict[str, Any], ours: float, theirs: float | None,
                                         rng: np.random.Generator) -> None:  # fmt: skip
    """As docs/growth.md says, with the reasons."""
    y = np.repeat(np.array([0, 1], np.float32), [7, 3]) + (0 if name.startswith("binary") else np.float32(1000))
    X = rng.normal(size=(10, 2)).astype(np.float32)
    assert fit(Data(X, y), {"objective": name, **params}, 1).base_score == pytest.approx((ours,), rel=1e-6)
    found = scores_of(xgboost.train({"objective": name, **params}, xgboost.DMatrix(X, label=y), 1))
    if theirs is None:
        assert abs(found[0]) > 1e5  # a Newton step from 0, where labels of 1,000 have hardly a hessian
    else:
        assert found == pytest.approx([theirs], rel=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_medians_of_even_numbers_are_the_lower_middle(weighted: bool, rng: np.random.Generator) -> None:
    """Whether rows have weights or not; XGBoost's are the mean of the middle two where they have none."""
    y, X = np.arange(8, dtype=np.float32), rng.normal(size=(8, 2)).astype(np.float32)
    weight = np.ones(8, np.float32) if weighted else None
    assert fit(Data(X, y, weight), {"objective": "reg:absoluteerror"}, 1).base_score == (3.0,)
    data = xgboost.DMatrix(X, label=y, weight=weight)
    assert scores_of(xgboost.train({"objective": "reg:absoluteerror"}, data, 1)) == [3.0 if weighted else 3.5]
