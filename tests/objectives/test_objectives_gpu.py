"""Gradients, predictions and models on a GPU: the same bytes as on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from objectives.losses import OF_ROWS, PARAMS
from strategies.trees import make_data, quantized

from daskboost import train
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.objectives.classification import Logistic
from daskboost.objectives.objective import Objective, kernel_of
from daskboost.objectives.objective_names import make_objective
from daskboost.objectives.own_objective import CustomObjective


@pytest.mark.gpu
@pytest.mark.parametrize("name", OF_ROWS)
def test_gpu_gives_the_cpus_bytes(name: str) -> None:
    import cupy

    objective, rng, n = make_objective(name, PARAMS), np.random.default_rng(0), 100_003
    classes = rng.integers(0, 7, n) if name.startswith("multi:") else rng.integers(0, 2, n)
    label = classes.astype(np.float32)
    margin = rng.normal(scale=rng.choice([1.0, 30.0], n)[:, None], size=(n, objective.n_outputs)).astype(np.float32)
    on_gpu = cupy.asarray(label), cupy.asarray(margin)
    cpu = [*objective.gradients(label, margin), objective.prediction(margin), objective.evaluation(margin)]
    gpu = [*objective.gradients(*on_gpu, xp=cupy), objective.prediction(on_gpu[1], cupy)]
    gpu.append(objective.evaluation(on_gpu[1], cupy))
    for mine, theirs in zip(gpu, cpu, strict=True):
        assert mine.dtype == theirs.dtype and mine.flags.c_contiguous
        np.testing.assert_array_equal(cupy.asnumpy(mine).view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32))


@pytest.mark.gpu
def test_a_users_function_gets_numpy_arrays() -> None:
    import cupy

    def loss(label: object, margin: object) -> tuple[object, object]:
        assert isinstance(label, np.ndarray) and isinstance(margin, np.ndarray)
        return np.exp(margin) - label, np.exp(margin)

    rng = np.random.default_rng(0)
    label, margin = rng.random(1_000).astype(np.float32), rng.normal(size=(1_000, 1)).astype(np.float32)
    objective = CustomObjective(loss)
    for mine, theirs in zip(
        objective.gradients(cupy.asarray(label), cupy.asarray(margin), cupy), objective.gradients(label, margin),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(cupy.asnumpy(mine).view(np.uint32), theirs.view(np.uint32))


@dataclass(frozen=True)
class Flatter(Logistic):
    """Half the gradient of its parent, whose kernel does not know."""

    name = "flatter"

    def gradients(self, label: Any, margin: Any, xp: Any = np) -> tuple[Any, Any]:
        g, h = super().gradients(label, margin, xp)
        return g / np.float32(2), h


@dataclass(frozen=True)
class Renamed(Logistic):
    """Its parent's loss."""

    name = "renamed"


def test_a_kernel_is_lost_with_the_gradients_it_computes() -> None:
    assert kernel_of(Flatter()) is None
    assert kernel_of(Renamed(2.0)) == DeviceLoss(LossKernel.LOGISTIC, ((2.0, 0.0),))
    assert kernel_of(CustomObjective(lambda label, margin: (margin, margin))) is None


NAMES = [*OF_ROWS, "flatter"]
HOW: dict[str, dict[str, Any]] = {
    "by weight": {"score_function": "l2", "interaction_constraints": [[0, 1], [1, 2, 3]]},
    "samples": {"out_of_core": "sampled", "subsample": 0.3},
}
"""That sum leaves up, and draw rows, by what their kernels compute of labels and margins."""


@pytest.mark.parametrize("where", [
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_rows", [300, 5_000])
def test_models_have_the_cpus_bytes(name: str, n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large data, weighted, through the messages of an engine."""
    if where == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=2))
    check_bytes(name, n_rows, {"subsample": 0.7})


@pytest.mark.emulated
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", HOW)
def test_models_have_the_cpus_bytes_where_other_kernels_know_the_loss(
    how: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=7))
    check_bytes(name, 5_000, HOW[how])


def with_hessians(objective: Objective) -> Objective:
    """Return the loss without what it says of its hessians, so that scores by weight sum its leaves by its kernel."""
    kind = type(objective)
    found: Objective = type(kind.__name__, (kind,), {"constant_hessian": False})(**vars(objective))
    return found


def check_bytes(name: str, n_rows: int, more: dict[str, Any]) -> None:
    """Of a model of weighted rows."""
    data = make_data(np.random.default_rng(1), "binary:logistic", n_rows, 4, n_values=20, missing=0.1, weighted=True)
    data.y[:] += name == "reg:gamma"
    objective = Flatter() if name == "flatter" else make_objective(name, PARAMS)
    params = {"objective": objective, "max_depth": 2, "n_jobs": 1, **more}
    if "score_function" in more:
        params["objective"] = with_hessians(objective)
    if name.startswith("multi:"):
        params |= {"objective": name, "num_class": 3}
    found = []
    for device in ("cpu", "cuda"):
        with quantized(data) as dataset:
            found.append(train({**params, "device": device}, dataset, 2).to_bytes())
    assert found[0] == found[1]
