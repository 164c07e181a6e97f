"""Whole fits whose trees split by sets of categories on a GPU: trees and metrics are the CPU's, to the byte."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import TrackedRuntime
from training.plan_shapes import within
from tree.test_category_splits import VECTORS, labels_of, make_rows, native, trees_of

from daskboost import Booster, QuantizedDataset, plan, train
from daskboost.data.input import blocks
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.gpu.rows import row_state
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees.split_sets import CHUNK, MOST_THRESHOLD
from daskboost.errors import ParameterError

FITS: dict[str, dict[str, Any]] = {
    "by levels": {"max_depth": 4},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 4},
    "symmetric with limits": {"grow_policy": "symmetric", "max_depth": 5, "cat_smooth": 4.0, "cat_l2": 3.0,
                              "min_data_per_group": 9.0, "reg_alpha": 0.2, "colsample_bylevel": 0.7},
    "symmetric outputs": {"grow_policy": "symmetric", "objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.7),
                          "max_depth": 3, "max_cat_to_onehot": 100},
    "symmetric samples": {"grow_policy": "symmetric", "out_of_core": "sampled", "subsample": 0.4, "max_depth": 3},
    "few leaves": {"max_depth": 4, "max_leaves": 6, "max_cat_to_onehot": 100, "min_child_weight": 5.0},
    "best first": {"grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
    "several outputs": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.7), "max_depth": 3},
    "by weight": {"score_function": "l2", "objective": "reg:pseudohubererror", "max_depth": 3},
    "limits": {"monotone_constraints": {"number": 1}, "interaction_constraints": [["few", "number"], ["many"]],
               "reg_alpha": 0.3, "max_delta_step": 0.5, "max_cat_threshold": 5, "max_depth": 4},
    "limits of sets": {"cat_smooth": 4.0, "cat_l2": 3.0, "min_data_per_group": 9.0, "max_depth": 4},
    "light levels": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0, "cat_smooth": 30.0},
    "draws": {"subsample": 0.7, "colsample_bynode": 0.6, "max_depth": 4},
    "with the host": {"grow_policy": "lossguide", "max_leaves": 12, "colsample_bynode": 0.6},
    "samples": {"out_of_core": "sampled", "subsample": 0.4, "max_depth": 3},
    "certified": {"out_of_core": "certified", "certify_tolerance": 0.03, "resident_share": 0.4, "max_depth": 4},
    "certified with limits": {"out_of_core": "certified", "certify_tolerance": 0.05, "resident_share": 0.4,
                              "max_depth": 3, "cat_smooth": 3.0, "min_data_per_group": 5.0},
    "certified exactly": {"out_of_core": "certified", "certify_tolerance": 0.0, "resident_share": 0.2, "max_depth": 3},
    "vectors": VECTORS,
    "vectors with limits": {**VECTORS, "cat_smooth": 2.0, "cat_l2": 1.0, "min_data_per_group": 3.0,
                            "max_delta_step": 0.7, "colsample_bynode": 0.6, "subsample": 0.8},
    "few vectors": {**VECTORS, "max_leaves": 5, "max_depth": 4, "min_child_weight": 20.0, "reg_alpha": 0.3},
    "symmetric vectors": {**VECTORS, "grow_policy": "symmetric", "cat_smooth": 2.0, "max_cat_threshold": 7},
    "best-first vectors": {**VECTORS, "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0,
                           "max_cat_to_onehot": 20},
    "vectors of a sketch": {**VECTORS, "num_class": 5, "sketch_outputs": 2},
    "vectors of one sum": {**VECTORS, "sketch_outputs": 1},
    "vectors of quantiles": {**VECTORS, "objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.6, 0.9),
                             "num_class": 0},
    "vectors of samples": {**VECTORS, "out_of_core": "sampled", "subsample": 0.4},
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {"dense": {"chunk_rows": 192}, "sparse": {"encoding": "csr"}}


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    return "cuda"


def outcome(device: str, params: dict[str, Any], place: dict[str, Any]) -> tuple[Booster, bytes, Any]:
    """What a fit gives, with metrics of rows that have levels that training did not see."""
    (x, y), (other, labels) = make_rows(7, 500), make_rows(8, 100)
    y, labels = labels_of(params, y), labels_of(params, labels)
    other.iloc[:20, 2] = 1000 + np.arange(20)
    with native(x, y, **place) as data, native(other, labels, reference=data, **place) as valid:
        result: dict[str, Any] = {}
        booster = train({"n_jobs": 2, **params, "device": device}, data, 3, evals=[(valid, "valid")],
                        evals_result=result)  # fmt: skip
    return booster, trees_of(booster), result["valid"]


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
def test_codes_of_which_no_set_is_tried(growth: str, device: str) -> None:
    params = {"max_cat_threshold": 1, "max_cat_to_onehot": 1, "grow_policy": growth, "max_depth": 3}
    booster, trees, history = outcome(device, params, {})
    assert not any(tree.has_set.any() for tree in booster.trees)
    assert (trees, history) == outcome("cpu", params, {})[1:]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fit", FITS)
def test_trees_are_those_of_a_cpu(fit: str, place: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "daskboost")
    booster, trees, history = outcome(device, FITS[fit], PLACES[place])
    assert any("on GPU" in record.message for record in caplog.records)
    _, expected, expected_history = outcome("cpu", FITS[fit], {})
    assert any(tree.has_set.any() for tree in booster.trees)
    assert trees == expected
    assert history == expected_history


def random_fit(rng: np.random.Generator) -> dict[str, Any]:
    """Parameters of trees of vectors."""
    params: dict[str, Any] = {
        **VECTORS, "num_class": int(rng.choice([3, 5, 19])), "max_depth": int(rng.integers(2, 6)),
        "max_cat_threshold": int(rng.choice([2, 6, 64, MOST_THRESHOLD])),
        "max_cat_to_onehot": int(rng.choice([1, 4, 13, 100], p=[0.4, 0.3, 0.2, 0.1])),
        "min_child_weight": float(rng.choice([0.0, 1.0, 9.0])), "reg_lambda": float(rng.choice([0.0, 1.0, 7.0])),
        "random_state": int(rng.integers(100)), "grow_policy": str(rng.choice(["depthwise", "symmetric", "lossguide"])),
    }  # fmt: skip
    others = {
        "reg_alpha": 0.2, "max_delta_step": 0.4, "gamma": 0.3, "subsample": 0.7, "colsample_bylevel": 0.7,
        "colsample_bynode": 0.6, "cat_smooth": 1.5, "cat_l2": 2.0, "min_data_per_group": 4.0, "sketch_outputs": 2,
        "max_leaves": 0 if params["grow_policy"] == "symmetric" else 9,
    }  # fmt: skip
    return params | {name: value for name, value in others.items() if rng.random() < 0.25}


@pytest.mark.parametrize("seed", range(8))
def test_random_fits_are_those_of_a_cpu(seed: int, device: str) -> None:
    rng = np.random.default_rng(seed)
    params, place = random_fit(rng), PLACES[str(rng.choice(list(PLACES)))]
    x, y = make_rows(seed, int(rng.integers(50, 600)), missing=float(rng.choice([0.0, 0.1, 0.6])))
    with native(x, labels_of(params, y), **place) as data:
        found, expected = (train({"n_jobs": 2, **params, "device": each}, data, 3) for each in (device, "cpu"))
    assert trees_of(found) == trees_of(expected), params


def test_a_fit_goes_on_with_the_sets_of_its_model(device: str) -> None:
    x, y = make_rows(11)
    with native(x, y) as data:
        whole, first = train({"device": "cpu"}, data, 4), train({"device": device}, data, 2)
        longer = train({"device": device}, data, 2, init_model=first)
    assert trees_of(longer) == trees_of(whole)


@pytest.mark.parametrize("others", [{"max_depth": 2}, VECTORS])
def test_the_cpu_has_sets_that_gpus_refuse(others: dict[str, Any], device: str, caplog: pytest.LogCaptureFixture
                                           ) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "daskboost")
    x, y = make_rows(12, 60)
    params = {**others, "max_cat_threshold": MOST_THRESHOLD + 1}
    reason = f"max_cat_threshold=514, of which a GPU takes {MOST_THRESHOLD} at most"
    with native(x, labels_of(params, y)) as data:
        with pytest.raises(ParameterError, match=f"device='cuda' and {reason}"):
            train({**params, "device": device}, data, 1)
        assert train({**params, "device": "auto"}, data, 1).trees[0].has_set.any()
    assert any(f"trains on the CPU: {reason}" in record.message for record in caplog.records)


@pytest.mark.emulated
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("fit", [
    "by levels", "best first", "with the host", "certified", "symmetric", "vectors", "symmetric vectors",
])  # fmt: skip
def test_joined_gpus_find_the_same_sets(fit: str, divided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each searches a share of the nodes, or of a round's trees, and tells the others."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    monkeypatch.setattr(blocks, "MAX_ROWS", 230)  # so that both engines have rows
    if divided:
        monkeypatch.setattr(row_state, "DIVIDED_BYTES", 0)
    params = {**FITS[fit], "objective": "multi:softprob", "num_class": 2} if divided else FITS[fit]
    x, y = make_rows(13, 400)
    y = labels_of(params, y)
    with native(x, y) as plain, native(x, y, n_engines=2) as shared:
        expected = train({**params, "device": "cpu"}, plain, 2)
        shared.shards.gpus = range(2)
        found = train({**params, "device": "cuda", "reduction": "nccl", "n_jobs": 1}, shared, 2)
    assert any(tree.has_set.any() for tree in found.trees)
    assert trees_of(found) == trees_of(expected)


@pytest.mark.emulated
@pytest.mark.parametrize("growth", [
    {"max_depth": 5}, {"max_depth": 5, "grow_policy": "symmetric"},
    {"grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
    {"grow_policy": "lossguide", "max_leaves": 12, "colsample_bynode": 0.6},
    {"max_depth": 5, "out_of_core": "certified", "resident_share": 0.3},
    VECTORS, {**VECTORS, "grow_policy": "symmetric"},
    {**VECTORS, "grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
])  # fmt: skip
def test_a_fit_stays_within_its_plan(growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes in several chunks among them, whose ends take memory of their own."""
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    rng, n_rows = np.random.default_rng(2), 12_000
    x = pd.DataFrame({"few": rng.integers(0, 9, n_rows), "some": rng.integers(0, 90, n_rows),
                      "many": rng.integers(0, CHUNK + 900, n_rows), "number": rng.normal(size=n_rows)})  # fmt: skip
    y = (rng.normal(size=CHUNK + 900)[x["many"]] + x["number"]).to_numpy(np.float32)
    with native(x, labels_of(growth, y)) as data:
        params = {**growth, "device": "cuda", "n_jobs": 1, "max_cat_threshold": 200}
        planned = plan(params, data, num_boost_round=3)
        booster = train(params, data, 3)
        expected = train({**params, "device": "cpu", "n_jobs": 2}, data, 3)
    assert any(tree.has_set.any() for tree in booster.trees)
    assert trees_of(booster) == trees_of(expected)
    assert planned.mixes_widths == ("out_of_core" not in growth)
    within(runtime.meter.pool.total_bytes, planned)


@pytest.mark.emulated
@pytest.mark.parametrize("reduction", ["coordinator", "peers"])
def test_hosts_tell_gpus_sets(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have found them in histograms of all rows."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    monkeypatch.setattr(blocks, "MAX_ROWS", 230)  # so that both engines have rows
    x, y = make_rows(14, 400)
    params = {"max_depth": 4, "reduction": reduction, "n_jobs": 1}
    with native(x, y) as plain, native(x, y, n_engines=2) as shared:
        expected = train({**params, "device": "cpu"}, plain, 2)
        assert trees_of(train({**params, "device": "cuda"}, shared, 2)) == trees_of(expected)


@pytest.mark.emulated
def test_codes_that_a_gpu_has_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins lie on the device before the fit, two bytes each, and are copied to narrower rows, as the plan says."""
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    rng, n_rows = np.random.default_rng(4), 5_000
    x = pd.DataFrame({"many": rng.integers(0, 400, n_rows), "number": rng.normal(size=n_rows)})
    y = (rng.normal(size=400)[x["many"]] + x["number"]).to_numpy(np.float32)
    given: dict[str, Any] = {"categorical_features": ["many"], "encodings": "native", "n_jobs": 1}
    params = {"max_depth": 4, "n_jobs": 1}
    with QuantizedDataset.from_dask(x, y, **given) as host:
        expected = train({**params, "device": "cpu"}, host, 2)
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    with QuantizedDataset.from_dask(x, y, device="cuda", **given) as there:
        (store,) = {shard.store for shard in there.shards.shards}
        assert store.counters().device_bytes > 0
        planned = plan({**params, "device": "cuda"}, there, num_boost_round=2)
        runtime.meter.restart()
        found = train({**params, "device": "cuda"}, there, 2)
        within(runtime.meter.pool.total_bytes, planned)
    assert planned.mixes_widths
    assert trees_of(found) == trees_of(expected)
