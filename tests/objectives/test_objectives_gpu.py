"""Gradients and predictions on a GPU: the same bytes as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from daskboost.objectives.custom import CustomObjective
from daskboost.objectives.registry import make_objective, objective_names

pytestmark = pytest.mark.gpu
PARAMS = {"num_class": 7, "quantile_alpha": (0.1, 0.5, 0.8), "huber_slope": 2.0, "scale_pos_weight": 3.0,
          "tweedie_variance_power": 1.3}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in objective_names() if not n.startswith("test:")])
def test_gpu_gives_the_cpus_bytes(name: str) -> None:
    import cupy

    objective, rng, n = make_objective(name, PARAMS), np.random.default_rng(0), 100_003
    label = rng.integers(0, 7, n) if name.startswith("multi:") else rng.integers(0, 2, n)
    label = label.astype(np.float32)
    margin = rng.normal(scale=rng.choice([1.0, 30.0], n)[:, None], size=(n, objective.n_outputs)).astype(np.float32)
    on_gpu = cupy.asarray(label), cupy.asarray(margin)
    cpu = [*objective.gradients(label, margin), objective.prediction(margin), objective.evaluation(margin)]
    gpu = [*objective.gradients(*on_gpu, xp=cupy), objective.prediction(on_gpu[1], cupy)]
    gpu.append(objective.evaluation(on_gpu[1], cupy))
    for mine, theirs in zip(gpu, cpu, strict=True):
        assert mine.dtype == theirs.dtype and mine.flags.c_contiguous
        np.testing.assert_array_equal(mine.get().view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32))


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
        np.testing.assert_array_equal(mine.get().view(np.uint32), theirs.view(np.uint32))
