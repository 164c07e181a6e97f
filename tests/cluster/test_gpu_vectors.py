"""Trees of vector leaves on a GPU are those of the CPU, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu
from strategies.trees import Data, make_data, quantized

from daskboost import Booster, train
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.runtime import cuda

SOFTMAX = {"objective": "multi:softprob", "multi_strategy": "multi_output_tree", "min_child_weight": 0.1}
OUTPUTS: dict[str, dict[str, Any]] = {
    "three classes": {"num_class": 3}, "seven classes": {"num_class": 7},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.5, 0.9)},
}  # fmt: skip
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 6, "max_leaves": 19, "gamma": 0.5},
    "symmetric": {"max_depth": 3, "grow_policy": "symmetric"},
    "best first": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 12},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {}, "penalties": {"min_child_weight": 60.0, "reg_alpha": 3.0, "reg_lambda": 0.0, "max_delta_step": 0.2},
}  # fmt: skip
SAMPLES: dict[str, dict[str, Any]] = {
    "all": {}, "samples": {"subsample": 0.4, "colsample_bynode": 0.7, "colsample_bylevel": 0.6}
}  # fmt: skip
STORED: dict[str, dict[str, Any]] = {
    "dense": {"max_bin": 64}, "csr": {"encoding": "csr", "partitions": 3, "chunk_rows": 1_000}
}  # fmt: skip
N_ROUNDS = 2
made_alone: list[bool] = []
"""Whether trees grow without the host on each device that was made in a test."""


@pytest.fixture(autouse=True, params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Which must have taken part: the CPU's bytes would be the CPU's anyway."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    made, make = [], GpuDevice.__init__
    made_alone.clear()

    def noted(self: GpuDevice, *arguments: Any, **how: Any) -> None:
        made.append(self)
        make(self, *arguments, **how)
        made_alone.append(self.without_host)

    monkeypatch.setattr(GpuDevice, "__init__", noted)
    yield
    assert made


def problem(n_rows: int, n_classes: int, *, n_values: int = 60, weighted: bool = False) -> Data:
    """Rows of so many classes, some of which are rare."""
    rng = np.random.default_rng(n_rows)
    data = make_data(rng, "multi:softprob", n_rows, 5, n_values=n_values, missing=0.3, weighted=weighted)
    y = np.minimum(rng.geometric(0.4, n_rows) - 1 + data.y.astype(np.int64) // 2, n_classes - 1)
    return Data(data.X, y.astype(np.float32), data.weight)


def trained(data: Data, params: dict[str, Any], device: str, **how: Any) -> Booster:
    with quantized(data, **how) as dataset:
        return train({**SOFTMAX, **params, "n_jobs": 1, "device": device}, dataset, N_ROUNDS)


def assert_same(found: Booster, expected: Booster) -> None:
    """What a difference is, before the bytes that say only that there is one."""
    for mine, other in zip(found.trees, expected.trees, strict=True):
        for name in ("left_child", "right_child", "feature", "split_bin", "default_left", "gain", "cover", "value"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)
    assert found.to_bytes() == expected.to_bytes()
    assert sum(tree.n_leaves for tree in expected.trees) > N_ROUNDS


@every_pair({
    "outputs": OUTPUTS, "growth": GROWTH, "sketch": [0, 1, 2], "rules": RULES, "samples": SAMPLES, "stored": STORED,
})  # fmt: skip
def test_the_cpus_bytes(outputs: str, growth: str, sketch: int, rules: str, samples: str, stored: str) -> None:
    params = {**OUTPUTS[outputs], **GROWTH[growth], **RULES[rules], **SAMPLES[samples], "sketch_outputs": sketch}
    check_bytes(problem(5_000, params.get("num_class", 3)), params, **STORED[stored])
    with_host = outputs == "quantiles" or growth == "best first" or sketch > 0
    assert set(made_alone) == {not with_host}


def test_more_outputs_than_are_gathered_at_a_time() -> None:
    for sketch, how in ((0, STORED["dense"]), (3, STORED["csr"])):
        check_bytes(problem(5_000, 19), {"num_class": 19, "max_depth": 3, "sketch_outputs": sketch}, **how)


@every_pair({
    "growth": ["depthwise", "symmetric"], "n_rows": [5_000, 700], "weighted": [False, True], "samples": SAMPLES,
    "more": [{}, {"interaction_constraints": [[0, 1, 2], [2, 3]]}, {"max_leaves": 1}, {"max_depth": 9}],
    "stored": STORED,
})  # fmt: skip
def test_the_cpus_bytes_without_the_host(
    growth: str, n_rows: int, weighted: bool, samples: str, more: dict[str, Any], stored: str
) -> None:  # fmt: skip
    params = {"num_class": 5, **GROWTH[growth], **SAMPLES[samples], **more, "min_child_weight": 0}
    if growth == "symmetric":
        params.pop("max_leaves", None)
    data = problem(n_rows, 5, weighted=weighted)
    found, expected = (
        trained(data, params, device, **how)
        for device, how in (("cuda", STORED[stored]), ("cpu", {"max_bin": STORED[stored].get("max_bin", 16)}))
    )
    assert found.to_bytes() == expected.to_bytes()
    assert made_alone == [True]


def check_bytes(data: Data, params: dict[str, Any], **how: Any) -> None:
    assert_same(trained(data, params, "cuda", **how), trained(data, params, "cpu", max_bin=how.get("max_bin", 16)))


@pytest.mark.parametrize(("n_rows", "sketch"), [(2, 0), (41, 0), (41, 2), (SMALL_ROWS, 0), (SMALL_ROWS, 2)])
def test_small_data(n_rows: int, sketch: int) -> None:
    data = problem(n_rows, 4, weighted=True)
    params = {"num_class": 4, "max_depth": 4, "min_child_weight": 0, "sketch_outputs": sketch}
    found, expected = (trained(data, params, device) for device in ("cuda", "cpu"))
    assert found.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("params", [
    {"sketch_outputs": 2}, {"subsample": 0.5}, {"objective": "reg:quantileerror", "quantile_alpha": (0.3, 0.6)},
], ids=["sketch", "samples", "quantiles"])  # fmt: skip
def test_chunks_on_disk_and_evaluation_sets(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are streamed give the same bytes, weights or not, and metrics agree."""
    keep_on_gpu(monkeypatch, 0)
    data, other = problem(4_500, 5, weighted=True), problem(1_500, 5)
    params = {"num_class": 5, "max_depth": 4, **params}
    if "quantile_alpha" in params:
        params.pop("num_class")
    found: list[Any] = []
    for device, limit in (("cpu", None), ("cuda", 0)):
        results: dict[str, Any] = {}
        with quantized(data, limit=limit, partitions=2, directory=tmp_path) as dataset, quantized(
            other, reference=dataset, encoding="csr"
        ) as unseen:
            model = train(
                {**SOFTMAX, **params, "n_jobs": 1, "device": device}, dataset, N_ROUNDS,
                evals=[(dataset, "train"), (unseen, "other")], evals_result=results,
            )  # fmt: skip
        found.append((model.to_bytes(), results))
    assert found[1] == found[0]


def test_a_loss_without_a_kernel_goes_by_its_expressions() -> None:
    def halves(label: Any, margin: Any) -> tuple[Any, Any]:
        k = np.arange(margin.shape[1], dtype=np.float32)
        return margin - (label[:, None] - k / 4), np.ones_like(margin)

    data = problem(5_000, 9)
    for sketch in (0, 2):
        params = {"objective": halves, "num_class": 5, "max_depth": 3, "sketch_outputs": sketch, "base_score": 0.5}
        assert_same(trained(data, params, "cuda"), trained(data, params, "cpu"))


def test_a_model_goes_on() -> None:
    data = problem(5_000, 4)
    params = {**SOFTMAX, "num_class": 4, "max_depth": 3, "n_jobs": 1}
    found = []
    for device in ("cpu", "cuda"):
        with quantized(data) as dataset:
            first = train({**params, "device": device}, dataset, 2)
            found.append(train({**params, "device": device}, dataset, 1, init_model=first).to_bytes())
    assert found[0] == found[1]
