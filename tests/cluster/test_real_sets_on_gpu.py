"""On the real sets a GPU, or its emulation, makes every split that the CPU makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost import Booster, QuantizedDataset, train
from daskboost.devices.gpu import cuda

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
EMULATED_ROWS = 5_000
"""Of a set: the emulation takes seconds for more."""


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def n_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Of a set; None for all."""
    if request.param == "cuda":
        return None
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=2))
    return EMULATED_ROWS


@pytest.mark.parametrize(("name", "growth"), [
    ("higgs_11k", "depthwise"), ("higgs_11k", "lossguide"), ("california_housing", "symmetric"),
    ("california_housing", "lossguide"), ("covtype_20k", "depthwise"), ("letter", "symmetric"),
])  # fmt: skip
def test_every_split_is_the_cpus(name: str, growth: str, n_rows: int | None) -> None:
    table = pd.read_parquet(Path(__file__).parents[1] / "data" / f"{name}.parquet").drop(columns="split")[:n_rows]
    label = table.pop(table.columns[-1])
    y = (np.unique(label, return_inverse=True)[1] if "num_class" in SETS[name] else label).astype(np.float32)
    models: list[Booster] = []
    with QuantizedDataset.from_dask(table, np.asarray(y), n_jobs=1) as rows:
        for device in ("cpu", "cuda"):
            models.append(train({**SETS[name], **GROWTH[growth], "device": device, "n_jobs": 1}, rows, 2))
    expected, found = models
    assert sum(tree.n_leaves for tree in expected.trees) > 10 * len(expected.trees)
    for own, other in zip(found.trees, expected.trees, strict=True):
        for of_splits in ("left_child", "feature", "split_bin", "default_left", "gain"):
            np.testing.assert_array_equal(getattr(own, of_splits), getattr(other, of_splits), err_msg=of_splits)
    assert found.to_bytes() == expected.to_bytes()
