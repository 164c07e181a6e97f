"""Every loss, wherever kernels compute its gradients from labels and margins: models are the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from objectives.losses import KERNELS, PARAMS
from strategies.trees import Data, make_data, quantized

from daskboost import train
from daskboost.devices.gpu import cuda
from daskboost.devices.losses import LossKernel

pytestmark = pytest.mark.emulated

N_ROWS = 4_500
FITS: dict[str, dict[str, Any]] = {
    "trees of the device": {},
    "packed trees of the host": {"gradient_precision": "packed", "interaction_constraints": [[0, 1, 2], [2, 3, 4]]},
    "samples": {"out_of_core": "sampled", "subsample": 0.3},
}
"""That quantize gradients, add them up by leaf, and draw rows by them."""
PARAMETERS = {
    "binary:logistic": "scale_pos_weight", "count:poisson": "max_delta_step", "reg:pseudohubererror": "huber_slope",
    "reg:quantileerror": "quantile_alpha", "reg:tweedie": "tweedie_variance_power",
}  # fmt: skip
NAMES = [name for name, loss in KERNELS.items() if loss is not None and loss.kernel != LossKernel.SOFTMAX]


LABELS: dict[str, Callable[[Any], Any]] = {
    "reg:gamma": lambda y: np.exp(y / 50), "reg:tweedie": lambda y: np.maximum(y, 0),
    "reg:logistic": lambda y: y > 0, "binary:logitraw": lambda y: y > 0,
}  # fmt: skip
"""Where not every number is one."""


def data_of(objective: str) -> Data:
    data = make_data(np.random.default_rng(6), objective, N_ROWS, n_values=60)
    return replace(data, y=LABELS[objective](data.y).astype(np.float32)) if objective in LABELS else data


@pytest.mark.parametrize("how", FITS)
@pytest.mark.parametrize("objective", NAMES)
def test_models_are_the_cpus(objective: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=7))
    own = {name: PARAMS[name] for name in [PARAMETERS.get(objective)] if name}
    params = {**own, **FITS[how], "objective": objective, "max_depth": 3, "n_jobs": 1}
    with quantized(data_of(objective)) as rows:
        expected, found = (train({**params, "device": device}, rows, 2) for device in ("cpu", "cuda"))
    assert max(tree.n_leaves for tree in expected.trees) > 4
    assert found.to_bytes() == expected.to_bytes()
