"""Fits whose workers have a GPU: the model file of a fit in this process on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import local_cluster, map_workers
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.trees import make_data

from daskboost import QuantizedDataset, train
from daskboost.cluster.context import WorkerPlace
from daskboost.data.chunks import quantizer
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.budget import partition
from daskboost.devices.gpu.quantize import sketch
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import DaskBoostError

if TYPE_CHECKING:
    from distributed import Client

ROWS = 20_000
KEPT_SHARE = quantizer.KEPT_SHARE


def on_dask(rows: Any, n_rows: int = ROWS) -> dict[str, Any]:
    X, y, weight = (da.from_array(a, chunks=(n_rows // 4, *a.shape[1:])) for a in (rows.X, rows.y, rows.weight))
    return {"X": X, "y": y, "weight": weight}


@pytest.mark.gpu
@every_pair(
    {"mode": ["exact", "certified", "sampled"], "n_workers": [1, 2], "reduction": ["auto", "coordinator", "peers"]}
)
def test_workers_with_a_gpu(
    mode: str, n_workers: int, reduction: str, cluster_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 2**30 if n_workers == 1 else 0)
    monkeypatch.setitem(partition.SHARE_BYTES, "cuda", 1)
    rows = make_data(np.random.default_rng(8), "binary:logistic", ROWS, 6, n_values=500, missing=0.3)
    params = {"objective": "binary:logistic", "max_depth": 5, "subsample": 0.8, "out_of_core": mode}
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


@pytest.mark.gpu
@pytest.mark.parametrize("on_workers", [False, True])
def test_frames_of_dask_cudf(on_workers: bool, request: pytest.FixtureRequest) -> None:
    cudf, dask_cudf = pytest.importorskip("cudf"), pytest.importorskip("dask_cudf")
    rows = make_data(np.random.default_rng(8), "binary:logistic", ROWS, 6, n_values=500, missing=0.3)
    frame = pd.DataFrame(rows.X, columns=list("abcdef"))
    there = dask_cudf.from_cudf(cudf.from_pandas(frame.assign(y=rows.y, weight=rows.weight)), npartitions=4)
    client = request.getfixturevalue("cluster_client") if on_workers else None
    params = {"objective": "binary:logistic", "max_depth": 5, "subsample": 0.8}
    with QuantizedDataset.from_dask(frame, rows.y, weight=rows.weight) as data:
        expected = train({**params, "device": "cpu"}, data, 4).to_bytes()
    with QuantizedDataset.from_dask(there[list("abcdef")], there["y"], weight=there["weight"], client=client) as data:
        assert train({**params, "device": "cuda"}, data, 4).to_bytes() == expected


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpu_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of two workers: of processes with GPUs, or of threads of this process, where the emulation is."""
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    monkeypatch.setitem(partition.SHARE_BYTES, "cuda", 1)
    if request.param == "cuda":
        yield request.getfixturevalue("cluster_client")
        return
    monkeypatch.setattr(sketch, "FIRST_BITS", 14)  # fewer words to visit, which takes the emulation long
    runtime = EmulatedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    with local_cluster(processes=False) as client:
        yield client


@pytest.mark.parametrize("share", [KEPT_SHARE, 0.0])
def test_workers_quantize_rows_of_the_host_on_their_gpu(share: float, gpu_workers: Client) -> None:
    """Bins stay on the GPU, or go to the host where its memory has no share for them."""
    gpu_workers.run(_set_kept_share, share)
    try:
        _compare_with_the_cpu(gpu_workers, share > 0)
    finally:
        gpu_workers.run(_set_kept_share, KEPT_SHARE)


def _compare_with_the_cpu(client: Client, kept: bool) -> None:
    rows = make_data(np.random.default_rng(8), "binary:logistic", 3_000, 6, n_values=500, missing=0.3)
    params = {"objective": "binary:logistic", "max_depth": 3, "device": "cpu"}
    with QuantizedDataset.from_dask(rows.X, rows.y, weight=rows.weight) as here:
        expected = train(params, here, 2).to_bytes()
    with QuantizedDataset.from_dask(**on_dask(rows, 3_000), client=client, device="cuda") as there:
        stored = sum(map_workers(client, _device_bytes, there.shards.name, workers=there.shards.owners).values())
        assert (stored > 0) == kept
        assert train(params, there, 2).to_bytes() == expected


def _set_kept_share(share: float) -> None:
    quantizer.KEPT_SHARE = share


def _device_bytes(place: WorkerPlace, name: str) -> int:
    device_bytes: int = place.shards.parts(name)["store"].counters().device_bytes
    return device_bytes


def test_workers_draw_rows_on_their_gpu(gpu_workers: Client) -> None:
    """Each its own, and more where gradients are larger; the bytes and the report are those of the CPU."""
    rows = make_data(np.random.default_rng(8), "multi:softprob", 3_000, 6, n_values=500, missing=0.3)
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 3, "out_of_core": "sampled", "subsample": 0.3}
    found: list[Any] = []
    for client in (None, gpu_workers):
        data = {"X": rows.X, "y": rows.y, "weight": rows.weight} if client is None else on_dask(rows, 3_000)
        report: dict[str, Any] = {}
        with QuantizedDataset.from_dask(**data, client=client) as dataset:
            given = {**params, "device": "cpu" if client is None else "cuda"}
            found.append((train(given, dataset, 2, evals_result=report).to_bytes(), report))
    assert found[0] == found[1]


def test_a_worker_without_a_gpu_says_so(cluster_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: the workers see none."""
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    cluster_client.run(_hide_cupy)
    try:
        rows = on_dask(make_data(np.random.default_rng(1), n_rows=ROWS))
        with pytest.raises(DaskBoostError, match="needs CuPy, which is not installed"):
            QuantizedDataset.from_dask(**rows, device="cuda")
        QuantizedDataset.from_dask(**rows, device="auto").close()
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
