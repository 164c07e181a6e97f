"""Loops of losses on CPUs: the bits of the objectives' array expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskboost.devices.cpu.losses import LOSSES, GradientLoops
from daskboost.devices.cpu.threads import Threads
from daskboost.objectives.objective import kernel_of
from daskboost.objectives.objective_names import make_objective, objective_names

PARAMETERS: dict[str, dict[str, Any]] = {
    "binary:logistic": {"scale_pos_weight": 2.5}, "reg:tweedie": {"tweedie_variance_power": 1.3},
    "reg:pseudohubererror": {"huber_slope": 0.7}, "count:poisson": {"max_delta_step": 0.4},
}  # fmt: skip


CLASSES = {"num_class": 3}


def _with_loops() -> list[str]:
    found = []
    for name in objective_names():
        loss = kernel_of(make_objective(name, {**CLASSES, "quantile_alpha": [0.5]}))
        if loss is not None and loss.kernel in LOSSES:
            found.append(name)
    return found


def test_each_loop_has_an_objective() -> None:
    losses = [kernel_of(make_objective(name, CLASSES)) for name in _with_loops()]
    assert {loss.kernel for loss in losses if loss is not None} == set(LOSSES)


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("name", _with_loops())
def test_loops_have_the_bits_of_expressions(name: str, n_threads: int, parameters: bool) -> None:
    objective = make_objective(name, {**CLASSES, **(PARAMETERS.get(name, {}) if parameters else {})})
    rng, n, k = np.random.default_rng(0), 20_011, objective.n_outputs
    label, weight = rng.random(n).astype(np.float32), rng.random(n).astype(np.float32)
    label[::3] = 1
    if k > 1:
        label = rng.integers(0, k, n).astype(np.float32)
    margin = (rng.normal(size=(n, k)) * 30).astype(np.float32)
    extremes = [0, -0.0, 1e30, -1e30, 88, -88, 80, -80, 1e-30, 1e-44]
    margin[: len(extremes), 0] = extremes
    if k == 1:
        margin[len(extremes) : len(extremes) + 2, 0] = [np.inf, -np.inf]  # of classes, they would be NaN
    loss = kernel_of(objective)
    assert loss is not None
    own = Threads(n_threads)
    loops = GradientLoops(loss, own.team, n_threads)
    g, h = np.empty((n, k), np.float32), np.empty((n, k), np.float32)
    with np.errstate(all="ignore"):
        expected = objective.gradients(label, margin)
        for given in (None, weight):
            tops = loops.fill(label, margin, given, g, h)
            for own_part, whole, top in zip((g, h), expected, tops, strict=True):
                wanted = whole if given is None else whole * weight[:, None]
                assert own_part.tobytes() == wanted.tobytes()
                assert top.tolist() == np.abs(wanted).max(axis=0).tolist()
        margin[5, k - 1] = np.nan
        assert np.isnan(loops.fill(label, margin, None, g, h)[0]).all()
        assert np.isnan(g[5]).all()
    own.close()
