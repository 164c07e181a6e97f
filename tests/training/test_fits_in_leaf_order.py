"""Fits whose rows a GPU, or one that is emulated, puts in the order of the first tree's leaves: models are those of
rows in their own order, and of CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies.device_arrays import Place, place
from strategies.trees import Data, make_data

from daskboost import QuantizedDataset, train, train_many
from daskboost.devices.budget import gpu_plans
from daskboost.devices.budget import leaf_order as rule
from daskboost.devices.gpu.rows.views import DenseView
from daskboost.fit import scales as rounding

__all__ = ["place"]

N_ROWS, ROUNDS = 1_500, 4
LOGISTIC = {"objective": "binary:logistic", "max_depth": 5}
CLASSES = {"objective": "multi:softprob", "num_class": 5, "max_depth": 4}


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each view that is put in order; that pays for the smallest fits."""
    monkeypatch.setattr(rule, "LEAST_BYTES", 0)
    monkeypatch.setattr(rule, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(rounding, "SMALL_ROWS", 0)
    found: list[int] = []
    put_in_order = DenseView.put_in_order

    def noted(view: DenseView, rows: Any) -> None:
        found.append(len(rows))
        put_in_order(view, rows)

    monkeypatch.setattr(DenseView, "put_in_order", noted)
    return found


def rows_of(params: dict[str, Any], rng: np.random.Generator, n_features: int = 6, weighted: bool = True) -> Data:
    return make_data(rng, params["objective"], N_ROWS, n_features, n_values=900, missing=0.3, weighted=weighted)


def model(dataset: QuantizedDataset, params: dict[str, Any], device: str, **more: Any) -> bytes:
    return train({**params, "device": device, "n_jobs": 1}, dataset, ROUNDS, **more).to_bytes()


def quantized(put: Any, data: Data, **options: Any) -> QuantizedDataset:
    weight = None if data.weight is None else put(data.weight)
    return QuantizedDataset.from_dask(put(data.X), put(data.y), weight=weight, n_jobs=1, **{"max_bin": 64, **options})


FITS: dict[str, dict[str, Any]] = {
    "logistic": LOGISTIC,
    "few leaves": {"objective": "reg:squarederror", "max_depth": 7, "max_leaves": 19, "reg_lambda": 0.0},
    "no splits": {**LOGISTIC, "gamma": 1e9},
    "symmetric": {**LOGISTIC, "grow_policy": "symmetric"},
    "by weight": {**LOGISTIC, "score_function": "l2"},
    "quantiles": {"objective": "reg:absoluteerror", "max_depth": 4},
    "counts": {"objective": "count:poisson", "max_depth": 4, "colsample_bytree": 0.7, "colsample_bylevel": 0.7},
    "heavy positives": {**LOGISTIC, "scale_pos_weight": 3.0},
    "classes": CLASSES,
    "classes by weight": {**CLASSES, "score_function": "l2"},
    "features of nodes": {**LOGISTIC, "colsample_bynode": 0.6, "interaction_constraints": [[0, 1, 2], [2, 3, 4, 5]]},
    "monotone": {**LOGISTIC, "monotone_constraints": [1, -1, 0, 1, 0, -1], "reg_alpha": 0.3, "max_delta_step": 0.5},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_models_are_those_of_rows_in_their_order(
    name: str, weighted: bool, place: Place, moves: list[int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = FITS[name]
    with quantized(np.asarray, rows_of(params, rng, weighted=weighted)) as dataset:
        found = model(dataset, params, "cuda")
        assert moves == [N_ROWS]
        monkeypatch.setattr(rule, "LEAST_BYTES", 1 << 40)
        assert found == model(dataset, params, "cuda")
        assert moves == [N_ROWS]
        assert weighted or found == model(dataset, params, "cpu")


@pytest.mark.parametrize("together", [1, 2])
def test_trees_of_a_round_that_grow_in_groups(
    together: int, place: Place, moves: list[int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move when all trees of the first round have grown, since these share gradients."""
    monkeypatch.setattr(gpu_plans, "trees_together", lambda *_: together)
    with quantized(np.asarray, rows_of(CLASSES, rng)) as dataset:
        assert model(dataset, CLASSES, "cuda") == model(dataset, CLASSES, "cpu")
    assert moves == [N_ROWS]


@pytest.mark.parametrize(("n_features", "max_bin"), [(25, 64), (39, 256), (5, 400)])
@pytest.mark.parametrize("lent", [False, True])
def test_rows_of_any_width(
    n_features: int, max_bin: int, lent: bool, place: Place, moves: list[int], rng: np.random.Generator
) -> None:
    """Rows that lie on the device already are others' as well, and serve the next fit."""
    data = rows_of(LOGISTIC, rng, n_features)
    with quantized(place.array if lent else np.asarray, data, max_bin=max_bin, chunk_rows=400) as dataset:
        found = [model(dataset, LOGISTIC, device) for device in ("cuda", "cuda", "cpu")]
    assert found[0] == found[1] == found[2]
    assert moves == [N_ROWS] * 2


def test_rows_bring_margins(place: Place, moves: list[int], rng: np.random.Generator) -> None:
    data = rows_of(CLASSES, rng)
    with quantized(np.asarray, data, base_margin=rng.normal(size=(N_ROWS, 5)).astype(np.float32)) as dataset:
        assert model(dataset, CLASSES, "cuda") == model(dataset, CLASSES, "cpu")
    assert moves == [N_ROWS]


def test_watched_fits_stop_at_the_same_round(place: Place, moves: list[int], rng: np.random.Generator) -> None:
    """Evaluation sets have rows of their own, which stay; earlier models are added before."""
    data, other = rows_of(LOGISTIC, rng), make_data(rng, "binary:logistic", 400, 6, n_values=900, missing=0.3)
    params = {**LOGISTIC, "eval_metric": ["auc", "logloss"]}
    with quantized(np.asarray, data) as dataset, quantized(np.asarray, other, reference=dataset) as unseen:
        outcomes = []
        for device in ("cuda", "cpu"):
            results: Any = {}
            more: Any = {"evals": [(unseen, "unseen")], "evals_result": results, "early_stopping_rounds": 2}
            first = train({**params, "device": device, "n_jobs": 1}, dataset, 2)
            outcomes.append((model(dataset, params, device, init_model=first, **more), results))
    assert outcomes[0] == outcomes[1]
    assert moves == [N_ROWS] * 2


@pytest.mark.parametrize("evaluated", [False, True])
def test_rows_that_are_evaluated_stay(
    evaluated: bool, place: Place, moves: list[int], rng: np.random.Generator
) -> None:
    """Metrics have labels in the given order, and some of the rows may be all that an evaluation set has."""
    with quantized(np.asarray, rows_of(LOGISTIC, rng)) as dataset:
        outcomes = []
        for device in ("cuda", "cpu"):
            results: Any = {}
            evals = [(dataset, "train")] if evaluated else []
            outcomes.append((model(dataset, LOGISTIC, device, evals=evals, evals_result=results), results))
    assert outcomes[0] == outcomes[1]
    assert moves == ([] if evaluated else [N_ROWS])


def test_rows_that_fits_share_stay(place: Place, moves: list[int], rng: np.random.Generator) -> None:
    params = {**LOGISTIC, "n_jobs": 1}
    with quantized(np.asarray, rows_of(LOGISTIC, rng)) as dataset:
        for device in ("cuda", "cpu"):
            kept = [{**params, "device": device, "learning_rate": rate} for rate in (0.1, 0.3)]
            models = [each.booster.to_bytes() for each in train_many(kept, dataset, ROUNDS)]
            assert models == [train(own, dataset, ROUNDS).to_bytes() for own in kept]
    assert moves == [N_ROWS] * 2, "those of the fits alone"


STAYING: dict[str, dict[str, Any]] = {
    "samples": {**LOGISTIC, "subsample": 0.7},
    "best first": {**LOGISTIC, "grow_policy": "lossguide", "max_leaves": 9},
    "vectors": {**CLASSES, "multi_strategy": "multi_output_tree"},
    "certified": {**LOGISTIC, "out_of_core": "certified"},
}


@pytest.mark.parametrize("name", STAYING)
def test_rows_of_other_trees_stay(name: str, place: Place, moves: list[int], rng: np.random.Generator) -> None:
    params = STAYING[name]
    with quantized(np.asarray, rows_of(params, rng)) as dataset:
        assert model(dataset, params, "cuda") == model(dataset, params, "cpu")
    assert moves == []
