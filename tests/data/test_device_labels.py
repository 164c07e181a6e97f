"""Labels looked at on a GPU, or its emulation: what NumPy says of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from daskboost.data.labels import LabelStats
from daskboost.data.rows import DenseRows, DeviceLabels, RowBatch
from daskboost.devices.gpu.labels import summarize_labels
from daskboost.devices.gpu.runtime import Runtime

LABELS: dict[str, Any] = {
    "none": [],
    "one": [-2.5],
    "whole": [3, -1e30, 2**24 + 2, 0, -7],
    "halves below 2**23": [1, 2**22 + 0.5],
    "zero": [-0.0],
    "smallest": [1e-45, 0],
    "largest": [3.4028235e38, 16777217.0, -3.4028235e38],
}


def stats(labels: Any, n: int) -> LabelStats:
    return LabelStats.of(RowBatch(DenseRows(np.empty((n, 0), np.float32)), labels))


@pytest.mark.parametrize("name", LABELS)
def test_stats_are_the_hosts(runtime: Runtime, name: str) -> None:
    labels = np.array(LABELS[name], np.float32)
    there = runtime.xp.asarray(labels)
    found = stats(DeviceLabels(runtime, there, summarize_labels(runtime, there)), len(labels))
    assert repr(found) == repr(stats(labels, len(labels)))


def test_many_labels(runtime: Runtime, rng: np.random.Generator) -> None:
    labels = rng.standard_normal(20_001).astype(np.float32) * 100
    labels[rng.integers(0, 20_001, 99)] = np.nan
    labels[rng.integers(0, 20_001, 9)] = -np.inf
    whole = np.round(labels)
    for values in (labels, whole):
        summary = summarize_labels(runtime, runtime.xp.asarray(values))
        assert summary.n_missing == np.isnan(values).sum()
        assert summary.n_infinite == np.isinf(values).sum()
        assert summary.all_whole == (values is whole)
    finite = np.nan_to_num(labels, neginf=5)
    there = runtime.xp.asarray(finite)
    assert stats(DeviceLabels(runtime, there, summarize_labels(runtime, there)), 20_001) == stats(finite, 20_001)


def test_a_copy_fetches_its_own(runtime: Runtime, rng: np.random.Generator) -> None:
    """What Dask moves to another process is not on its way from a GPU."""
    labels = rng.standard_normal(2_000_001).astype(np.float32)
    there = runtime.xp.asarray(labels)
    found = DeviceLabels(runtime, there, summarize_labels(runtime, there[:5]))
    host, _ = found.fetch(3)
    moved = copy.copy(found)
    for each in (found, moved, found):
        np.testing.assert_array_equal(each.on_host, labels)
    assert found.on_host is host is not moved.on_host
