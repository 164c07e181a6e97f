"""Estimators state what their fits take, as `daskboost.plan` does of the same parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskboost import DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, plan
from daskboost.devices.gpu.runtime.ring import N_BUFFERS
from daskboost.estimators import presets


def test_plans_are_those_of_the_parameters() -> None:
    X = np.zeros((5_000, 7), np.float32)
    how: dict[str, Any] = {"max_depth": 5, "max_bin": 32, "device": "cuda"}
    assert DaskBoostRegressor(n_estimators=20, **how).plan(X, memory="1GB") == plan(
        {**how, "objective": "reg:squarederror"}, X, num_boost_round=20, memory="1GB"
    )
    found = DaskBoostClassifier(n_estimators=20, **how).plan(n_rows=5_000, n_features=7, n_classes=4, memory="1GB")
    expected = {**how, "objective": "multi:softprob", "num_class": 4}
    assert found == plan(expected, X, num_boost_round=20, memory="1GB")
    two = DaskBoostClassifier(n_estimators=20, **how).plan(X, weight=True)
    assert two.margins_bytes == found.margins_bytes // 4 and two.labels_bytes == 2 * found.labels_bytes


@pytest.mark.parametrize("memory", ["1GB", 1])
@pytest.mark.parametrize("limit", [5_000, 25_000, 65_000])
def test_shapes_know_the_limit_of_host_memory(limit: int, memory: Any, tmp_path: Path) -> None:
    """Whether a GPU has room for all chunks, on disk or not, or for none."""
    X, y = np.random.default_rng(3).normal(size=(8_000, 10)).astype(np.float32), np.zeros(8_000, np.float32)
    params = {"objective": "binary:logistic", "device": "cuda", "max_bin": 64, "max_depth": 6, "chunk_rows": 1_000}
    with QuantizedDataset.from_dask(
        X, y, max_bin=64, chunk_rows=1_000, host_memory_limit=limit, spill_directory=tmp_path
    ) as dataset:
        expected = plan(params, dataset, memory=memory)
    found = plan({**params, "host_memory_limit": limit}, X, memory=memory)
    assert found.parts == pytest.approx(expected.parts, abs=4 * N_BUFFERS), "a shape's chunk may end with a word more"
    assert found.host_pinned_bytes == pytest.approx(expected.host_pinned_bytes, abs=4 * 8)
    assert found.host_pinned_bytes > 0
    assert (found.resident, found.ring_bytes > 0) == ((None, False) if memory == "1GB" else ((0,), True))


def test_evaluation_sets_have_what_is_left_of_that_limit(tmp_path: Path) -> None:
    X, y = np.random.default_rng(3).normal(size=(8_000, 10)).astype(np.float32), np.zeros(8_000, np.float32)
    params = {"objective": "binary:logistic", "device": "cpu", "max_bin": 64, "chunk_rows": 1_000}
    how: dict[str, Any] = {"host_memory_limit": 125_000, "spill_directory": tmp_path, "max_bin": 64}
    with (
        QuantizedDataset.from_dask(X, y, chunk_rows=1_000, **how) as dataset,
        QuantizedDataset.from_dask(X, y, reference=dataset, chunk_rows=1_000, **how) as other,
    ):
        expected = plan(params, dataset, evals=[(other, "other")], memory="1GB")
    found = plan({**params, "host_memory_limit": 125_000}, X, evals=[X], memory="1GB")
    assert found.parts == pytest.approx(expected.parts, abs=200)  # a chunk may end with a word more


def test_plans_of_quantized_rows_know_what_their_features_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees are deeper where features are target statistics, from as many rows on as have shallower ones by default."""
    monkeypatch.setattr(presets, "MEMBERS_ROWS", 2_000)
    monkeypatch.setattr(presets, "DEEPER_ROWS_OF_STATISTICS", 2_000)
    x = np.random.default_rng(5).integers(0, 30, (3_000, 6))
    how: dict[str, Any] = {"device": "cuda", "random_state": 1}
    made: dict[str, Any] = {"max_bin": DaskBoostRegressor().max_bin, "random_state": 1}
    with QuantizedDataset.from_dask(x, x[:, 0] % 7, categorical_features=range(6), **made) as dataset:
        assert dataset.schema.encoder is not None
        found = DaskBoostRegressor(**how).plan(dataset, memory="1GB")
        deep, shallow = (DaskBoostRegressor(**how, max_depth=own).plan(dataset, memory="1GB") for own in (8, 7))
    assert found == deep != shallow
