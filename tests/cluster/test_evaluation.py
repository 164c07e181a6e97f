"""Evaluation sets on a GPU: the host's states, and margins go to the host for users' own metrics alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost import QuantizedDataset, train
from daskboost.data.chunks.shard import ShardChunk
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_columns import RowColumns
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.protocols import Device
from daskboost.dtypes import Bool, Float32
from daskboost.engine.evaluation import EvaluatedRows, Evaluator
from daskboost.engine.row_groups import row_groups
from daskboost.metrics.metric_names import make_metric
from daskboost.objectives.classification import Logistic, SoftMax, SoftProb
from daskboost.objectives.objective import Objective

LAYOUT = SlotLayout(np.array([0, 3], np.int64), np.array([3], np.int32))


def worst(y_true: Any, y_pred: Any) -> float:
    assert isinstance(y_true, np.ndarray) and isinstance(y_pred, np.ndarray)
    return float(np.abs(y_true - y_pred).max())


@dataclass
class Rows:
    """Of an evaluation set: what each has, and whether it counts."""

    label: Float32
    weight: Float32 | None
    margin: Float32
    selected: Bool | None = None

    @classmethod
    def make(cls, rng: np.random.Generator, n_outputs: int, weighted: bool = False) -> Rows:
        weight = rng.random(441).astype(np.float32) if weighted else None
        label = rng.integers(0, max(n_outputs, 2), 441).astype(np.float32)
        return cls(label, weight, rng.normal(size=(441, n_outputs)).astype(np.float32))

    def evaluated(self, device: Device, sizes: Sequence[int], n_resident: int) -> EvaluatedRows:
        """On a device, in chunks of those sizes, of which the first `n_resident` do not stream."""
        bounds = np.cumsum([0, *sizes]).tolist()
        handle: Any = SimpleNamespace(nbytes=1)
        entries = [
            ShardChunk(handle, RowColumns(self.label[a:b], None if self.weight is None else self.weight[a:b]), a, b - a)
            for a, b in pairwise(bounds)
        ]
        kept: Any = SimpleNamespace(shard=SimpleNamespace(entries=entries))
        kept.groups = row_groups(kept.shard, 2**31, math.inf, frozenset(range(n_resident, len(sizes))))
        places = np.cumsum([0, *(group.n_rows for group in kept.groups)]).tolist()
        kept.margins = [device.xp.asarray(self.margin[a:b]) for a, b in pairwise(places)]
        shard = kept.shard
        if self.selected is not None:
            shard = SimpleNamespace(entries=[
                replace(entry, selected=self.selected[entry.first_row :][: entry.n_rows]) for entry in entries
            ])  # fmt: skip
        return EvaluatedRows(shard, kept, device)


CHUNKS = [((441,), 1), ((100, 41, 300), 0), ((100, 41, 300), 2), ((63,) * 7, 0)]
"""Sizes, and how many of them are one group."""


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("objective", "names"),
    [(Logistic(), ["auc", "logloss", "error", "rmse", "aucpr"]), (SoftProb(3), ["mlogloss", "merror"]),
     (SoftMax(4), ["merror"])],
)  # fmt: skip
def test_states_are_the_hosts(
    runtime: Runtime, objective: Objective, names: list[str], weighted: bool, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """To the byte, whatever the chunks, and however many of them are put together; of a fold's rows as well."""
    rows = Rows.make(rng, objective.n_outputs, weighted)
    metrics = [make_metric(name).prepare(LabelStats(441, max_weight=1.0)) for name in names]
    some = rng.random(441) < 0.4
    some[100:141] = False  # a chunk of which none counts
    for rows.selected in (None, some):
        states = []
        host = CpuDevice(LAYOUT, Threads(1))
        for sizes, n_resident in CHUNKS[:2]:
            states.append(Evaluator(host, objective, metrics, rows.evaluated(host, sizes, n_resident)).states())
        device = GpuDevice(runtime, LAYOUT, Threads(1))
        device.fetch = pytest.fail  # type: ignore[method-assign,assignment]
        for (sizes, n_resident), most_rows in zip(CHUNKS, (2**22, 2**22, 200, 150), strict=True):
            monkeypatch.setattr(GpuDevice, "metric_rows", most_rows)
            evaluator = Evaluator(device, objective, metrics, rows.evaluated(device, sizes, n_resident))
            states += [evaluator.states(), evaluator.states()]
        host.close()
        device.close()
        for other in states[1:]:
            for state, expected in zip(other, states[0], strict=True):
                assert {name: array.tobytes() for name, array in state.items()} == {
                    name: array.tobytes() for name, array in expected.items()
                }


@pytest.mark.parametrize(("objective", "most", "expected"), [
    (Logistic(), 1_000, [range(4)]), (Logistic(), 440, [range(3), range(3, 4)]),
    (Logistic(), 150, [range(2), range(2, 3), range(3, 4)]),
    (Logistic(), 0, [range(1), range(1, 2), range(2, 3), range(3, 4)]), (SoftMax(3), 1_000, [range(2), range(2, 4)]),
])  # fmt: skip
def test_neighbours_are_evaluated_together(
    objective: Objective, most: int, expected: list[range], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many margins at most: labels and weights lie on the device once, and a metric is asked once for each batch."""
    runtime, batches = EmulatedRuntime(), []
    metric = make_metric("rmse" if objective.n_outputs == 1 else "mlogloss")
    partial_on_device = type(metric).partial_on_device

    def noting(self: Any, kernels: Any, *arrays: Any) -> Any:
        batches.append(arrays)
        return partial_on_device(self, kernels, *arrays)

    monkeypatch.setattr(type(metric), "partial_on_device", noting)
    monkeypatch.setattr(GpuDevice, "metric_rows", most)
    rows, device = Rows.make(rng, objective.n_outputs, weighted=True), GpuDevice(runtime, LAYOUT, Threads(1))
    evaluator = Evaluator(device, objective, [metric], rows.evaluated(device, (100, 41, 299, 1), 0))
    evaluator.states()
    assert len(batches) == len(expected)
    assert rows.weight is not None
    bounds = np.array([0, 100, 141, 440, 441])
    for (label, prediction, weight), places in zip(batches, expected, strict=True):
        own = slice(bounds[places.start], bounds[places.stop])
        assert label.tobytes() == rows.label[own].tobytes()
        assert weight.tobytes() == rows.weight[own].tobytes()
        assert prediction.tobytes() == objective.evaluation(rows.margin[own]).tobytes()
    device.close()


@pytest.mark.parametrize("most_rows", [2**22, 150])
def test_metrics_of_the_host_get_a_copy(
    runtime: Runtime, most_rows: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for all of them; users' functions see NumPy, and rows by their global ids."""
    monkeypatch.setattr(GpuDevice, "metric_rows", most_rows)
    rows, device, fetched = Rows.make(rng, 1, weighted=True), GpuDevice(runtime, LAYOUT, Threads(1)), []
    fetch = device.fetch
    device.fetch = lambda array: fetched.append(array) or fetch(array)  # type: ignore[method-assign,func-returns-value]
    metrics = [make_metric(worst), make_metric("poisson-deviance"), make_metric("logloss")]
    arrays = Evaluator(device, Logistic(), metrics, rows.evaluated(device, (100, 41, 300), 0)).states()
    assert len(fetched) == (1 if most_rows == 2**22 else 2)
    device.close()
    host = CpuDevice(LAYOUT, Threads(1))
    expected = Evaluator(host, Logistic(), metrics, rows.evaluated(host, (100, 41, 300), 0)).states()
    host.close()
    assert metrics[0].named_value(metrics[0].state_from_arrays(arrays[0])) == (
        "worst", worst(rows.label, Logistic().evaluation(rows.margin))
    )  # fmt: skip
    for state, wanted in zip(arrays, expected, strict=True):
        assert {name: array.tobytes() for name, array in state.items()} == {
            name: array.tobytes() for name, array in wanted.items()
        }


def test_a_bad_label_is_the_hosts_to_refuse(runtime: Runtime, rng: np.random.Generator) -> None:
    rows, device = Rows.make(rng, 1), GpuDevice(runtime, LAYOUT, Threads(1))
    rows.label[:] = rng.integers(0, 3, 441)
    with pytest.raises(ValueError, match="label 2 for metric 'auc': labels must be 0 or 1"):
        Evaluator(device, Logistic(), [make_metric("auc")], rows.evaluated(device, (100, 341), 0)).states()
    device.close()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("objective", "weighted", "metrics"),
    [("binary:logistic", False, ["auc", "aucpr", "error", "logloss"]), ("multi:softprob", True, ["merror", "mlogloss"]),
     ("reg:squarederror", True, ["mae", "mape", "mphe", "rmse"]),
     ("count:poisson", False, ["rmsle", "poisson-nloglik"])],
)  # fmt: skip
def test_training_stops_at_the_same_round(objective: str, weighted: bool, metrics: list[str]) -> None:
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
