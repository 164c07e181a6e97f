"""Evaluation sets on a GPU: the host's states, and margins go to the host for users' own metrics alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskboost import QuantizedDataset, train
from daskboost.cluster.evaluation import Evaluator
from daskboost.cluster.row_groups import RowGroup
from daskboost.data.chunk import ChunkRows
from daskboost.data.labels import LabelStats
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.runtime import Runtime
from daskboost.metrics.registry import make_metric
from daskboost.objectives.base import Objective
from daskboost.objectives.binary import Logistic
from daskboost.objectives.multiclass import SoftMax, SoftProb

LAYOUT = SlotLayout(np.array([0, 3], np.int64), np.array([3], np.int32))


def worst(y_true: Any, y_pred: Any) -> float:
    assert isinstance(y_true, np.ndarray) and isinstance(y_pred, np.ndarray)
    return float(np.abs(y_true - y_pred).max())


def groups(rng: np.random.Generator, n_classes: int, weighted: bool) -> list[RowGroup]:
    """Two, the first of two chunks."""
    found, first_row = [], 0
    for sizes in ((100, 41), (300,)):
        n = sum(sizes)
        weight = rng.random(n).astype(np.float32) if weighted else None
        rows = ChunkRows(rng.integers(0, n_classes, n).astype(np.float32), weight, None)
        begins = np.cumsum([0, *sizes[:-1]]).tolist()
        found.append(RowGroup(range(len(sizes)), n, tuple((begin, first_row + begin) for begin in begins), rows))
        first_row += n
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("objective", "names"),
    [(Logistic(), ["auc", "logloss", "error", "rmse", "aucpr"]), (SoftProb(3), ["mlogloss", "merror"]),
     (SoftMax(4), ["merror"])],
)  # fmt: skip
def test_states_are_the_hosts(
    runtime: Runtime, objective: Objective, names: list[str], weighted: bool, rng: np.random.Generator
) -> None:
    k = objective.n_outputs
    parts = groups(rng, max(k, 2), weighted)
    margins = [rng.normal(size=(group.n_rows, k)).astype(np.float32) for group in parts]
    stats = LabelStats(441, max_weight=1.0)
    metrics = [make_metric(name).prepare(stats) for name in names]
    states = []
    for device in (CpuDevice(LAYOUT, Threads(1)), GpuDevice(runtime, LAYOUT, Threads(1))):
        if isinstance(device, GpuDevice):
            device.fetch = pytest.fail  # type: ignore[method-assign,assignment]
        on_device = [device.xp.asarray(margin) for margin in margins]
        evaluated: Any = SimpleNamespace(groups=parts, margins=on_device)
        evaluator = Evaluator(device, objective, metrics, evaluated)
        states += [evaluator.states(), evaluator.states()]
        device.close()
    for other in states[1:]:
        for state, expected in zip(other, states[0], strict=True):
            assert {name: array.tobytes() for name, array in state.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }


def test_metrics_of_the_host_get_a_copy(runtime: Runtime, rng: np.random.Generator) -> None:
    """One for all of them; users' functions see NumPy."""
    parts = groups(rng, 2, False)
    device, fetched = GpuDevice(runtime, LAYOUT, Threads(1)), []
    fetch = device.fetch
    device.fetch = lambda array: fetched.append(array) or fetch(array)  # type: ignore[method-assign,func-returns-value]
    margins = [rng.normal(size=(group.n_rows, 1)).astype(np.float32) for group in parts]
    evaluated: Any = SimpleNamespace(groups=parts, margins=[device.xp.asarray(margin) for margin in margins])
    metrics = [make_metric(worst), make_metric("poisson-deviance"), make_metric("logloss")]
    arrays = Evaluator(device, Logistic(), metrics, evaluated).states()
    assert len(fetched) == len(parts)
    label = np.concatenate([group.label for group in parts])
    prediction = Logistic().evaluation(np.concatenate(margins))
    assert metrics[0].named_value(metrics[0].state_from_arrays(arrays[0])) == ("worst", worst(label, prediction))
    device.close()


def test_a_bad_label_is_the_hosts_to_refuse(runtime: Runtime, rng: np.random.Generator) -> None:
    parts = groups(rng, 3, False)
    device = GpuDevice(runtime, LAYOUT, Threads(1))
    margins = [device.xp.zeros((group.n_rows, 1), np.float32) for group in parts]
    evaluated: Any = SimpleNamespace(groups=parts, margins=margins)
    with pytest.raises(ValueError, match="label 2 for metric 'auc': labels must be 0 or 1"):
        Evaluator(device, Logistic(), [make_metric("auc")], evaluated).states()
    device.close()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("objective", "metrics"),
    [("binary:logistic", ["auc", "aucpr", "error", "logloss"]), ("multi:softprob", ["merror", "mlogloss"]),
     ("reg:squarederror", ["mae", "mape", "mphe", "rmse"]), ("count:poisson", ["rmsle", "poisson-nloglik"])],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True])
def test_training_stops_at_the_same_round(objective: str, metrics: list[str], weighted: bool) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(6_000, 5)).astype(np.float32)
    y = np.clip(np.rint(X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=6_000)), 0, 1 if "binary" in objective else 2)
    weight = rng.random(6_000) if weighted else None
    params: dict[str, Any] = {
        "objective": objective,
        "num_class": 3,
        "eval_metric": metrics,
        "learning_rate": 0.5,
        "max_depth": 4,
    }
    if "multi" not in objective:
        del params["num_class"]
    runs = []
    for device in ("cpu", "cuda"):
        results: Any = {}
        fit, test = (slice(0, 4_000), slice(4_000, None))
        given = [None if weight is None else weight[rows] for rows in (fit, test)]
        with (
            QuantizedDataset.from_dask(X[fit], y[fit], weight=given[0]) as data,
            QuantizedDataset.from_dask(X[test], y[test], weight=given[1], reference=data) as other,
        ):
            model = train(
                {**params, "device": device}, data, 40, evals=[(data, "train"), (other, "test")],
                evals_result=results, early_stopping_rounds=3,
            )  # fmt: skip
        runs.append((model.to_bytes(), results, model.best_iteration))
    assert runs[0] == runs[1]
