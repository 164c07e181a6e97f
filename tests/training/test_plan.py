"""The plan of a fit's memory: engines take what it says, and fits without room are refused before they begin."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.sparse
from kernels.tracked import Meter, TrackedRuntime

import daskboost
from daskboost import Plan, QuantizedDataset, plan, train
from daskboost.devices.gpu import cuda
from daskboost.devices.gpu.memory import POOL_SHARE
from daskboost.errors import DeviceError, ParameterError

if TYPE_CHECKING:
    from distributed import Client

def squared(label: Any, margin: Any) -> tuple[Any, Any]:
    """A user's own loss."""
    return margin - label, margin * 0 + 1


LOGISTIC = {"objective": "binary:logistic", "min_child_weight": 0}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "depthwise": ({**LOGISTIC, "max_depth": 6}, {}),
    "histograms": ({**LOGISTIC, "max_depth": 8, "max_bin": 256}, {"n_rows": 4_500, "missing": 0.1}),
    "symmetric": ({**LOGISTIC, "max_depth": 6, "grow_policy": "symmetric"}, {}),
    "lossguide": ({**LOGISTIC, "max_depth": 0, "max_leaves": 31, "grow_policy": "lossguide"}, {}),
    "classes": ({"objective": "multi:softprob", "num_class": 6, "max_depth": 3, "min_child_weight": 0}, {}),
    "wide": ({**LOGISTIC, "max_depth": 3}, {"n_features": 70}),
    "two bytes a symbol": ({**LOGISTIC, "max_depth": 2, "max_bin": 500}, {}),
    "sparse": ({**LOGISTIC, "max_depth": 4}, {"n_features": 60, "density": 0.1}),
    "small data": ({**LOGISTIC, "max_depth": 4}, {"n_rows": 4_000}),
    "weights": ({**LOGISTIC, "max_depth": 4}, {"weight": True}),
    "samples": ({**LOGISTIC, "max_depth": 4, "subsample": 0.5}, {}),
    "quantiles": ({"objective": "reg:absoluteerror", "max_depth": 4}, {}),
    "no kernel": ({"objective": squared, "max_depth": 4, "min_child_weight": 0}, {}),
    "evaluation": ({**LOGISTIC, "max_depth": 4}, {"evaluated": True}),
    "scores": ({**LOGISTIC, "max_depth": 3, "eval_metric": ["auc", "logloss"]}, {"evaluated": True, "weight": True}),
}


def test_rows_have_24_bytes_of_state() -> None:
    """Of one output, bins aside."""
    found = plan({**PARAMS, "max_depth": 8}, n_rows=11_000_000, n_features=28)
    state = found.order_bytes + found.gradients_bytes + found.margins_bytes + found.labels_bytes
    assert state == 24 * 11_000_000


def make_data(n_rows: int = 8_000, n_features: int = 10, missing: float = 0.0, density: float = 0.0,
              weight: bool = False, num_class: int = 2) -> dict[str, Any]:  # fmt: skip
    """Rows of random labels, which trees split to the end."""
    rng = np.random.default_rng(7)
    X: Any = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    if density:
        X = scipy.sparse.csr_matrix(np.where(rng.random(X.shape) < density, X, 0))
    y = rng.integers(0, num_class, n_rows).astype(np.float32)
    return {"X": X, "y": y, "weight": rng.uniform(0.5, 2, n_rows).astype(np.float32) if weight else None}


def fit(params: dict[str, Any], data: dict[str, Any], evaluated: bool, before: Callable[[Plan], None]) -> Plan:
    """Train three rounds on a data set; its plan, which `before` sees."""
    max_bin = params.get("max_bin", 64)
    params = {**params, "max_bin": max_bin, "n_jobs": 1}
    with QuantizedDataset.from_dask(**data, max_bin=max_bin, n_jobs=1) as dataset:
        evals = [(dataset, "train")] if evaluated else []
        planned = plan(params, dataset, evals=evals, num_boost_round=3)
        before(planned)
        train(params, dataset, 3, evals=evals)
    return planned


def within(peak_bytes: int, planned: Plan) -> None:
    assert 0.7 * planned.total_bytes <= peak_bytes <= planned.total_bytes, f"took {peak_bytes:,} bytes of\n{planned}"


@pytest.mark.emulated
@pytest.mark.parametrize("name", SHAPES)
def test_a_fit_stays_within_its_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params, given = SHAPES[name]
    evaluated = "evaluated" in given
    data = make_data(**{k: v for k, v in given.items() if k != "evaluated"}, num_class=params.get("num_class", 2))
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda: runtime)
    planned = fit({**params, "device": "cuda"}, data, evaluated, lambda _: None)
    within(runtime.meter.peak_bytes, planned)
    runtime.recorded.clear()
    assert runtime.meter.bytes == 0, "nothing is left to the garbage collector"


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_a_fit_stays_within_its_plan_on_a_gpu(name: str) -> None:
    """CuPy's pool gets no byte more than the plan, and what it hands out comes near."""
    import cupy
    from cupy.cuda.memory_hook import MemoryHook

    class PoolMeter(MemoryHook):  # type: ignore[misc]  # CuPy has no types
        name = "plan"

        def __init__(self) -> None:
            self.meter = Meter()

        def malloc_postprocess(self, **event: Any) -> None:
            self.meter.add(event["mem_size"])

        def free_postprocess(self, **event: Any) -> None:
            self.meter.add(-event["mem_size"])

    params, given = SHAPES[name]
    evaluated = "evaluated" in given
    sizes = {"n_rows": 400_000, **given}
    data = make_data(**{k: v for k, v in sizes.items() if k != "evaluated"}, num_class=params.get("num_class", 2))
    pool, hook = cupy.get_default_memory_pool(), PoolMeter()
    fit({**params, "device": "cuda"}, make_data(n_rows=5_000, num_class=params.get("num_class", 2)), False,
        lambda _: None)  # kernels are compiled and what is kept for good is allocated  # fmt: skip
    gc.collect()
    pool.free_all_blocks()
    room = pool.total_bytes()

    def limit(planned: Plan) -> None:
        pool.set_limit(size=room + planned.total_bytes)

    try:
        with hook:
            planned = fit({**params, "device": "cuda"}, data, evaluated, limit)
    finally:
        pool.set_limit(size=0)
    within(hook.meter.peak_bytes, replace(planned, free_bytes=None))


VECTORS = {"objective": "multi:softprob", "num_class": 6, "multi_strategy": "multi_output_tree", "min_child_weight": 0}
SHAPES_OF_CPUS = SHAPES | {
    "vectors": ({**VECTORS, "max_depth": 5}, {}),
    "sketched vectors": ({**VECTORS, "max_depth": 4, "sketch_outputs": 2}, {}),
}


def test_vectors_are_planned_where_they_are_trained() -> None:
    found = plan(VECTORS, n_rows=100_000, n_features=10)
    assert found.device == "cpu"
    one = plan({**VECTORS, "multi_strategy": "one_output_per_tree", "device": "cpu"}, n_rows=100_000, n_features=10)
    assert found.histograms_bytes == 6 * one.histograms_bytes and found.margins_bytes == one.margins_bytes
    with pytest.raises(ParameterError, match="device='cuda' does not grow trees of vector leaves"):
        plan({**VECTORS, "device": "cuda"}, n_rows=100_000, n_features=10)


@pytest.mark.parametrize("name", [
    "depthwise", "symmetric", "lossguide", "classes", "wide", "sparse", "evaluation", "vectors", "sketched vectors",
])  # fmt: skip
def test_a_fit_on_the_cpu_stays_within_its_plan(name: str) -> None:
    params, given = SHAPES_OF_CPUS[name]
    evaluated = "evaluated" in given
    sizes = {"n_rows": 100_000, **given}
    data = make_data(**{k: v for k, v in sizes.items() if k != "evaluated"}, num_class=params.get("num_class", 2))
    fit({**params, "device": "cpu"}, data, evaluated, lambda _: None)  # what is compiled is kept for good
    stored = 0

    def start(planned: Plan) -> None:
        nonlocal stored
        stored = data["X"].nnz * 4 if "density" in given else data["X"].size
        gc.collect()
        tracemalloc.start()

    try:
        planned = fit({**params, "device": "cpu"}, data, evaluated, start)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.4 * planned.total_bytes <= peak + stored <= planned.total_bytes, f"{peak:,} and {stored:,} of\n{planned}"


@pytest.fixture
def dataset() -> QuantizedDataset:
    return QuantizedDataset.from_dask(**make_data(), max_bin=64, n_jobs=1)


PARAMS = {**LOGISTIC, "max_depth": 6, "device": "cuda", "max_bin": 64}


@pytest.mark.emulated
def test_a_fit_without_room_is_refused_before_it_takes_any(
    dataset: QuantizedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = TrackedRuntime(free_bytes=200_000)
    monkeypatch.setattr(cuda, "get_runtime", lambda: runtime)
    expected = (
        r"the fit needs 0\.00 GB of the GPU's memory, of which \w+ take 0\.00 GB, and 0\.00 GB are free: use .*"
        r" or device='cpu'$"
    )
    with pytest.raises(DeviceError, match=expected):
        train(PARAMS, dataset, 1)
    assert runtime.meter.peak_bytes == 0
    assert plan(PARAMS, dataset).fits is False


@pytest.mark.emulated
def test_auto_takes_the_cpu_where_the_gpu_has_no_room(
    dataset: QuantizedDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = TrackedRuntime(free_bytes=200_000)
    monkeypatch.setattr(cuda, "get_runtime", lambda: runtime)
    with caplog.at_level(logging.INFO):
        model = train({**PARAMS, "device": "auto"}, dataset, 1)
    assert "device='auto' trains on the CPU: the fit needs" in caplog.text
    assert model.to_bytes() == train({**PARAMS, "device": "cpu"}, dataset, 1).to_bytes()
    assert plan({**PARAMS, "device": "auto"}, dataset).device == "cpu"


@pytest.mark.emulated
@pytest.mark.parametrize("left_out", ["columns", "columns and levels of fixed size"])
def test_what_has_no_room_is_left_out(
    left_out: str, dataset: QuantizedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = PARAMS if left_out == "columns" else {**PARAMS, "max_depth": 12, "max_leaves": 40}
    whole, least = (plan(params, dataset, memory=memory) for memory in ("1GB", 1))
    assert least.total_bytes < whole.total_bytes
    free = whole.total_bytes - 1 if left_out == "columns" else least.total_bytes
    runtime = TrackedRuntime(free_bytes=free)
    monkeypatch.setattr(cuda, "get_runtime", lambda: runtime)
    planned = plan(params, dataset)
    assert planned.columns_bytes == 0 < whole.columns_bytes
    assert planned.fits
    train(params, dataset, 2)
    assert runtime.meter.peak_bytes <= planned.total_bytes


@pytest.mark.emulated
def test_chunks_on_disk_take_no_room(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda: runtime)
    how: dict[str, Any] = {"chunk_rows": 1_000, "max_bin": 64, "n_jobs": 1}
    with QuantizedDataset.from_dask(
        **make_data(), **how, host_memory_limit=20_000, spill_directory=tmp_path
    ) as streamed, QuantizedDataset.from_dask(**make_data(), **how) as resident:
        planned = plan(PARAMS, streamed)
        assert planned.chunks_bytes < plan(PARAMS, resident).chunks_bytes / 2
        train(PARAMS, streamed, 2)
        assert runtime.meter.peak_bytes <= planned.total_bytes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_shapes_give_the_plan_of_the_data_set(device: str, dataset: QuantizedDataset) -> None:
    params = {**PARAMS, "device": device, "n_jobs": 2}
    with QuantizedDataset.from_dask(**make_data(), reference=dataset) as other:
        expected = plan(params, dataset, evals=[(other, "other")], memory="1GB")
        of_rows_trained_on = plan(params, dataset, evals=[(dataset, "again")], memory="1GB")
    assert of_rows_trained_on.evaluation_bytes < expected.evaluation_bytes
    X = make_data()["X"]
    for found in (
        plan(params, X, evals=[X], memory=10**9),
        plan(params, n_rows=8_000, n_features=10, evals=[8_000], memory=10**9),
        plan(params, X, evals=[(dataset, "again")], memory=10**9),
    ):
        assert found.parts == pytest.approx(expected.parts, abs=4), "but for a chunk's guard word"
        assert found.free_bytes == expected.free_bytes


def test_sparse_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data(n_features=60, density=0.1)
    with QuantizedDataset.from_dask(**data, max_bin=64) as dataset:
        expected = plan(PARAMS, dataset, memory="1GB")
    found = plan(PARAMS, data["X"], memory="1GB")
    for name in ("chunks", "columns", "order", "margins"):
        assert found.parts[name] == pytest.approx(expected.parts[name], rel=1e-3)
    assert expected.histograms_bytes <= found.histograms_bytes < 1.05 * expected.histograms_bytes
    per_row = data["X"].nnz / 8_000
    assert plan(PARAMS, n_rows=8_000, n_features=60, nonzeros_per_row=per_row, memory="1GB") == found


def test_rows_are_divided_among_workers() -> None:
    alone, one_of_four = (plan(PARAMS, n_rows=10**6, n_features=20, n_workers=n, memory="9GB") for n in (1, 4))
    assert one_of_four.margins_bytes == alone.margins_bytes / 4
    assert one_of_four.chunks_bytes == alone.chunks_bytes / 4


def test_what_a_plan_says() -> None:
    found = plan({**PARAMS, "max_bin": 256}, n_rows=11_000_000, n_features=28, memory="141GB")
    assert found.chunks_bytes == 32 * 11_000_000, "rows of 28 bytes begin at sectors"
    assert found.columns_bytes == 28 * 11_000_000
    assert found.histograms_bytes == 48 * 28 * 256 * 16
    assert found.total_bytes == sum(found.parts.values())
    assert (found.fits, found.remedy) == (True, "")
    lines = str(found).splitlines()
    assert lines[0].split() == ["memory", "of", "a", "fit", "on", "cuda", "bytes"]
    assert lines[1].split() == ["chunks", "352,000,000"]
    assert lines[-2].split() == ["free", "141,000,000,000"]
    assert lines[-1] == "it fits"


def test_the_pool_takes_its_share_of_what_is_left() -> None:
    """Not of the column-major copy, where that was left out for want of room."""
    whole = plan({**PARAMS, "max_bin": 256}, n_rows=11_000_000, n_features=28, memory="141GB")
    found = plan({**PARAMS, "max_bin": 256}, n_rows=11_000_000, n_features=28, memory=whole.total_bytes - 1)
    assert (found.columns_bytes, found.fits) == (0, True)
    assert found.pool_bytes == (found.total_bytes - found.pool_bytes) // POOL_SHARE


def test_what_a_plan_says_without_room() -> None:
    found = plan({**PARAMS, "max_depth": 12, "max_bin": 256}, n_rows=10**6, n_features=200, memory="1GB")
    assert not found.fits
    assert "histograms" in found.remedy or "max_depth" in found.remedy
    text = str(found)
    assert "does not fit" in next(line for line in text.splitlines() if "histograms" in line)
    assert "does not fit" not in next(line for line in text.splitlines() if "chunks" in line)
    assert text.endswith(f"it does not fit: use {found.remedy}")
    rows = plan(PARAMS, n_rows=10**9, n_features=200, memory="1GB")
    assert "spill_directory" in rows.remedy


def test_without_a_gpu_room_is_unknown() -> None:
    found = plan(PARAMS, n_rows=1000, n_features=3, n_workers=2)
    assert (found.device, found.free_bytes, found.fits, found.remedy) == ("cuda", None, None, "")
    assert "free" not in str(found)
    found.check()


def test_the_cpu_knows_its_room() -> None:
    found = plan({"device": "cpu"}, n_rows=1000, n_features=3)
    assert found.device == "cpu"
    assert found.fits
    assert plan({"device": "cpu"}, n_rows=1000, n_features=3, memory=1000).fits is False


def test_rows_on_a_cluster(cluster_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask.array as da

    from daskboost.cluster import dask_data

    monkeypatch.setattr(dask_data, "ONE_WORKER_BYTES", 0)
    rows = make_data(n_rows=8_192)
    X, y = (da.from_array(rows[name], chunks=(2_048, *rows[name].shape[1:])) for name in ("X", "y"))
    with QuantizedDataset.from_dask(X, y, max_bin=64, client=cluster_client) as dataset:
        found = plan(PARAMS, dataset, evals=[(dataset, "train")])
        workers = dataset.shards.owners
    most = 2_048 * max(workers.count(worker) for worker in workers)
    assert found.margins_bytes == 4 * most
    assert found.evaluation_bytes == most * (16 + 4 + 4)
    assert found.free_bytes is None, "what workers have is not known here"


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "list"])
def test_kinds_of_input(kind: str) -> None:
    import pandas as pd
    import pyarrow as pa

    X = make_data(n_rows=200)["X"]
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    given = {"pandas": frame, "pyarrow": pa.Table.from_pandas(frame), "list": X.tolist()}[kind]
    assert plan(PARAMS, given, memory="1GB") == plan(PARAMS, n_rows=200, n_features=10, memory="1GB")


def test_plan_is_public() -> None:
    assert {"plan", "Plan"} <= set(daskboost.__all__)
    assert daskboost.Plan is Plan
