"""Fits whose workers have a GPU: the model file of a fit in this process on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pytest
from strategies.trees import make_data

from daskboost import QuantizedDataset, train
from daskboost.cluster import dask_data
from daskboost.devices.gpu import cuda
from daskboost.errors import DaskBoostError

if TYPE_CHECKING:
    from distributed import Client

ROWS = 20_000


def on_dask(rows: Any) -> dict[str, Any]:
    X, y, weight = (da.from_array(a, chunks=(ROWS // 4, *a.shape[1:])) for a in (rows.X, rows.y, rows.weight))
    return {"X": X, "y": y, "weight": weight}


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", ["auto", "coordinator", "peers"])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_workers_with_a_gpu(
    n_workers: int, reduction: str, cluster_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_data, "ONE_WORKER_BYTES", 2**30 if n_workers == 1 else 0)
    rows = make_data(np.random.default_rng(8), "binary:logistic", ROWS, 6, n_values=500, missing=0.3)
    params = {"objective": "binary:logistic", "max_depth": 5, "subsample": 0.8}
    files = []
    for data in ({"X": rows.X, "y": rows.y, "weight": rows.weight}, on_dask(rows)):
        device = "cuda" if isinstance(data["X"], da.Array) else "cpu"
        results: Any = {}
        client = cluster_client if device == "cuda" else None
        with QuantizedDataset.from_dask(**data, client=client) as dataset:
            given = {**params, "device": device, "reduction": reduction}
            model = train(given, dataset, 4, evals=[(dataset, "train")], evals_result=results)
        files.append((model.to_bytes(), results))
    assert files[0] == files[1]


def test_a_worker_without_a_gpu_says_so(cluster_client: Client) -> None:
    """Whatever this machine has: the workers see none."""
    cluster_client.run(_hide_cupy)
    try:
        with QuantizedDataset.from_dask(**on_dask(make_data(np.random.default_rng(1), n_rows=ROWS))) as data:
            with pytest.raises(DaskBoostError, match="needs CuPy, which is not installed"):
                train({"device": "cuda"}, data, 1)
            assert train({"device": "auto"}, data, 1).n_iterations == 1
    finally:
        cluster_client.run(_show_cupy)


def _hide_cupy() -> None:
    """Make a worker believe that CuPy is not installed."""
    cuda.make_runtime.cache_clear()
    importlib.util.find_spec = lambda name, package=None: None


def _show_cupy() -> None:
    """Undo that."""
    importlib.reload(importlib.util)
