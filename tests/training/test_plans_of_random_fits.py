"""Plans of fits of all shapes whose trees grow on a GPU without the host come near to what they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.idle import IdleRuntime
from kernels.tracked import TrackedRuntime

from daskboost import Plan, QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime import cuda

ROUNDING_BYTES = 64 * 512
"""`POOL_ROUNDING_BYTES`: of a small fit's plan a large part."""


def random_fit(rng: np.random.Generator, most_rows: int, most_depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and dense rows."""
    n_rows, n_features = int(rng.integers(most_rows // 4, most_rows)), int(rng.choice([1, 3, 7, 20, 28, 33, 70]))
    k = int(rng.choice([1, 1, 3, 5]))
    params: dict[str, Any] = {
        "max_bin": int(rng.choice([16, 64, 250])), "min_child_weight": 0, "n_jobs": 1, "device": "cuda",
        "grow_policy": str(rng.choice(["depthwise", "symmetric", "lossguide"])),
        "subsample": float(rng.choice([1.0, 0.5], p=[0.8, 0.2])),
    }  # fmt: skip
    if params["grow_policy"] == "lossguide":
        params |= {"max_depth": 0, "max_leaves": int(rng.choice([7, 31, 63]))}
    else:
        params["max_depth"] = int(rng.integers(1, most_depth + 1)) if k == 1 else int(rng.integers(1, 5))
    if k == 1:
        params["objective"] = str(rng.choice(["binary:logistic", "reg:squarederror"]))
    else:
        params |= {"objective": "multi:softprob", "num_class": k}
    if rng.random() < 0.2:
        params["interaction_constraints"] = [[g % n_features, 3 * g % n_features] for g in range(rng.integers(1, 70))]
    if params["grow_policy"] != "lossguide" and rng.random() < 0.2:
        params["colsample_bynode"] = 0.6
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    X[rng.random(X.shape) < rng.choice([0, 0.1])] = np.nan
    weight = rng.uniform(0.5, 2, n_rows).astype(np.float32) if rng.random() < 0.3 else None
    if params["objective"] == "binary:logistic" and rng.random() < 0.7:
        params["eval_metric"] = ["auc", "logloss"]
    return params, {"X": X, "y": rng.integers(0, max(k, 2), n_rows).astype(np.float32), "weight": weight}


def fitted(params: dict[str, Any], data: dict[str, Any], evaluated: bool, runtime: TrackedRuntime,
           monkeypatch: pytest.MonkeyPatch) -> Plan:  # fmt: skip
    """Train three rounds; the plan."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    with QuantizedDataset.from_dask(**data, max_bin=params["max_bin"], n_jobs=1) as dataset:
        evals = [(dataset, "train")] if evaluated else []
        planned = plan(params, dataset, evals=evals, num_boost_round=3)
        train(params, dataset, 3, evals=evals)
    assert planned.without_host
    return planned


@pytest.mark.parametrize("evaluated", [False, True], ids=["alone", "evaluated"])
@pytest.mark.parametrize("seed", range(60))
def test_a_plan_is_near(seed: int, evaluated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are planned to a hundredth, those of metrics as well."""
    check(random_fit(np.random.default_rng(seed), 40_000, 8), evaluated, monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_of_quantiles_is_near(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts residuals of each leaf is planned likewise."""
    rng = np.random.default_rng(seed)
    params, data = random_fit(rng, 40_000, 8)
    k = params.pop("num_class", 1)
    params |= {"objective": "reg:quantileerror", "quantile_alpha": tuple(np.arange(1, k + 1) / (k + 1))}
    if params["grow_policy"] == "lossguide":
        params |= {"grow_policy": "depthwise", "max_depth": 9 if k == 1 else 4}
    params["base_score"] = 0.5  # nothing counts labels here
    params.pop("eval_metric", None)
    check((params, data), seed % 2 == 1, monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_of_linear_leaves_is_near(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sums up the equations of each leaf is planned likewise."""
    params, data = random_fit(np.random.default_rng(seed), 40_000, 8)
    if params["grow_policy"] == "lossguide":
        params |= {"grow_policy": "depthwise", "max_depth": 9 if "num_class" not in params else 4}
    check(({**params, "linear_leaves": True}, data), seed % 2 == 1, monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_of_vectors_is_near(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees whose leaves have a value for each class grow one at a time."""
    rng = np.random.default_rng(seed)
    params, data = random_fit(rng, 40_000, 8)
    k = int(rng.choice([2, 3, 10, 17]))
    params |= {"objective": "multi:softprob", "num_class": k, "multi_strategy": "multi_output_tree"}
    params.pop("eval_metric", None)
    if params["grow_policy"] == "lossguide":
        params |= {"grow_policy": "depthwise", "max_depth": 4}
    params["max_depth"] = min(params["max_depth"], 6)
    data["y"] = rng.integers(0, k, len(data["y"])).astype(np.float32)
    check((params, data), seed % 2 == 1, monkeypatch)


@pytest.mark.parametrize("growth", [
    {"max_depth": 20}, {"max_depth": 20, "max_leaves": 900}, {"max_depth": 11, "grow_policy": "symmetric"},
    {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 1_300},
], ids=str)  # fmt: skip
def test_a_plan_of_large_trees_is_near(growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels have room for as many nodes as there are rows; best-first trees for leaves that wait in device memory."""
    rng = np.random.default_rng(7)
    data = {"X": rng.normal(size=(3_000, 3)).astype(np.float32), "y": rng.integers(0, 2, 3_000).astype(np.float32)}
    params = {"max_bin": 16, "min_child_weight": 0, "n_jobs": 1, "device": "cuda", "objective": "binary:logistic"}
    check(({**params, **growth}, data), False, monkeypatch)


def check(fit: tuple[dict[str, Any], dict[str, Any]], evaluated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare what a fit takes with its plan."""
    runtime = IdleRuntime()
    planned = fitted(*fit, evaluated, runtime, monkeypatch)
    taken, least_bytes = runtime.meter.pool.total_bytes, 0.95 * (planned.total_bytes - ROUNDING_BYTES)
    assert least_bytes <= taken <= planned.total_bytes, f"took {taken:,} bytes of\n{planned}"
    arrays = planned.total_bytes - planned.pool_bytes
    assert 0.99 * arrays - 1_000 <= runtime.meter.peak_bytes <= 1.002 * arrays + 2_000


@pytest.mark.emulated
@pytest.mark.parametrize("seed", range(4))
def test_kernels_take_no_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured without them is what fits take with them, to the byte."""
    params, data = random_fit(np.random.default_rng(seed), 6_000, 4)
    taken: list[tuple[int, int]] = []
    for kind in (IdleRuntime, TrackedRuntime):
        runtime = kind()
        fitted(params, data, seed % 2 == 1, runtime, monkeypatch)
        taken.append((runtime.meter.pool.total_bytes, runtime.meter.peak_bytes))
    assert taken[0] == taken[1]
