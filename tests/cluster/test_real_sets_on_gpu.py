"""On the real sets a GPU, or its emulation, makes every split that the CPU makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost import Booster, QuantizedDataset, train
from daskboost.devices.gpu.runtime import cuda

SETS: dict[str, dict[str, Any]] = {
    "higgs_11k": {"objective": "binary:logistic"},
    "california_housing": {"objective": "reg:squarederror"},
    "covtype_20k": {"objective": "multi:softprob", "num_class": 7},
    "letter": {"objective": "multi:softprob", "num_class": 26, "multi_strategy": "multi_output_tree"},
}
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 6},
    "symmetric": {"max_depth": 5, "grow_policy": "symmetric"},
    "lossguide": {"max_depth": 0, "max_leaves": 24, "grow_policy": "lossguide"},
}
ROWS_AND_ROUNDS = {"emulated": (5_000, 2), "cuda": (None, 5)}
"""Of a set, None for all: the emulation takes seconds for more. Up to `SMALL_ROWS` are small data."""


CASES = [
    pytest.param(name, growth, device, marks=pytest.mark.emulated if device == "emulated" else pytest.mark.gpu)
    for name in SETS for growth in GROWTH for device in ROWS_AND_ROUNDS
    # Split by split with the host, 26 values a leaf: minutes under racecheck.
    if (name, growth, device) != ("letter", "lossguide", "cuda")
]  # fmt: skip


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=2))
    return str(request.param)


@pytest.mark.parametrize(("name", "growth", "device"), CASES, indirect=["device"])
def test_every_split_is_the_cpus(name: str, growth: str, device: str) -> None:
    n_rows, n_rounds = ROWS_AND_ROUNDS[device]
    table = pd.read_parquet(Path(__file__).parents[1] / "data" / f"{name}.parquet").drop(columns="split")[:n_rows]
    label = table.pop(table.columns[-1])
    y = (np.unique(label, return_inverse=True)[1] if "num_class" in SETS[name] else label).astype(np.float32)
    models: list[Booster] = []
    with QuantizedDataset.from_dask(table, np.asarray(y), n_jobs=1) as rows:
        for where in ("cpu", "cuda"):
            models.append(train({**SETS[name], **GROWTH[growth], "device": where, "n_jobs": 1}, rows, n_rounds))
    expected, found = models
    assert sum(tree.n_leaves for tree in expected.trees) > 10 * len(expected.trees)
    for own, other in zip(found.trees, expected.trees, strict=True):
        for of_splits in ("left_child", "feature", "split_bin", "default_left", "gain"):
            np.testing.assert_array_equal(getattr(own, of_splits), getattr(other, of_splits), err_msg=of_splits)
    assert found.to_bytes() == expected.to_bytes()
