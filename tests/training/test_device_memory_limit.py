"""Fits within a part of a GPU's memory: the same model whatever stays there, never more than the limit, clear ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import TrackedRuntime
from strategies.streams import bytes_of_twos, noted_groups, size_with, stream_by_twos
from strategies.trees import Data, make_data, quantized
from training.plan_shapes import LOGISTIC
from training.plan_shapes import make_data as make_rows

from daskboost import DaskBoostClassifier, QuantizedDataset, plan, train, train_many
from daskboost.data.chunks.packing import DenseLayout
from daskboost.devices.budget import gpu_memory as memory
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import DeviceError, ParameterError
from daskboost.local import in_process

PARAMS = {**LOGISTIC, "max_depth": 4, "max_bin": 16, "n_jobs": 1, "device": "cuda"}
HOST = {"device": "cpu"}
SAMPLED = {"out_of_core": "sampled", "subsample": 0.2}
SAMPLES = {"subsample": 0.7, "colsample_bylevel": 0.8, "max_depth": 3}
FITS: dict[str, dict[str, Any]] = {
    "samples": {**SAMPLES, "objective": "binary:logistic"},
    "classes": {"objective": "multi:softprob", "num_class": 5, "max_depth": 2},
    "absolute error": {"objective": "reg:absoluteerror", "max_depth": 3},
    "lossguide": {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 0},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
    "certified": {"out_of_core": "certified", "max_depth": 3},
    "sampled": {**SAMPLED, "max_depth": 3},
    "sampled classes": {**SAMPLED, "objective": "multi:softprob", "num_class": 5, "max_depth": 2},
    "by weight": {**SAMPLES, "objective": "binary:logistic", "score_function": "l2"},
    "vectors": {"objective": "multi:softprob", "num_class": 5, "max_depth": 2, "multi_strategy": "multi_output_tree"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith(("daskboost-read", "daskboost-pin"))] == []


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> TrackedRuntime:
    """A device whose bytes are counted."""
    made = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: made)
    return made


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """More bins than state of rows."""
    return make_rows(n_rows=6_000, n_features=40)


def chunked(rows: dict[str, Any], **options: Any) -> QuantizedDataset:
    return QuantizedDataset.from_dask(**rows, max_bin=16, n_jobs=1, chunk_rows=700, packing="tight", **options)


def least_of(dataset: QuantizedDataset, **more: Any) -> int:
    """The least limit that works."""
    return plan({**PARAMS, "device_memory_limit": 1}, dataset, **more).total_bytes


@pytest.mark.emulated
@pytest.mark.parametrize(("mode", "ram_bytes", "shares"), [
    ({}, None, (0, 0.1, 0.2, 1)), (SAMPLED, None, (0, 0.5, 0.8, 1)), ({}, 60_000, (0, 0.1, 0.2, 1)),
    (SAMPLED, 1, (0, 0.5, 0.8, 1)),
], ids=["exact", "sampled", "exact, disk and RAM", "sampled, disk"])  # fmt: skip
def test_bytes_and_peaks_of_all_budgets(
    mode: dict[str, Any], ram_bytes: int | None, shares: tuple[float, ...], rows: dict[str, Any],
    runtime: TrackedRuntime, tmp_path: Path,
) -> None:  # fmt: skip
    """Chunks on disk stay as others do, before these; what stays is read once."""
    params = {**PARAMS, **mode}
    with chunked(rows, host_memory_limit=ram_bytes, spill_directory=tmp_path) as dataset:
        (shard,) = dataset.shards.shards
        n_on_disk = [shard.store.residency(entry.handle) for entry in shard.entries].count("disk")
        expected = train({**params, **HOST}, dataset, 2).to_bytes()
        least = plan({**params, "device_memory_limit": 1}, dataset).total_bytes
        most = plan(params, dataset).total_bytes
        kept = []
        for share in shares:
            limit = int(least + share * (most - least))
            given = {**params, "device_memory_limit": limit}
            runtime.meter.restart()
            runtime.pinned_peak_bytes, pinned = runtime.pinned_bytes, runtime.pinned_bytes
            reads = shard.store.counters().disk_reads
            planned = plan(given, dataset)
            assert planned.fits
            assert planned.total_bytes <= limit
            assert train(given, dataset, 2).to_bytes() == expected
            assert 0.65 * planned.total_bytes <= runtime.meter.peak_bytes <= planned.total_bytes
            assert runtime.meter.pool.total_bytes <= planned.total_bytes
            more = runtime.pinned_peak_bytes - pinned
            assert more == planned.host_pinned_bytes if share == 0 else more <= planned.host_pinned_bytes
            assert share == 0 or ram_bytes is not None or more == 0, "RAM is page-locked once for all fits"
            if planned.resident is None or planned.resident[0] >= n_on_disk:
                assert shard.store.counters().disk_reads - reads == n_on_disk
            runtime.recorded.clear()
            assert runtime.meter.bytes == 0
            kept.append(9 if planned.resident is None else planned.resident[0])
    assert kept[0] == 0
    assert 0 < kept[1] < kept[2] < kept[3] == 9, "of nine chunks"


@pytest.mark.emulated
@pytest.mark.parametrize(("name", "place"), [
    ("samples", "tight"), ("classes", "disk"), ("absolute error", "csr"), ("lossguide", "disk"), ("symmetric", "csr"),
    ("by weight", "tight"), ("vectors", "csr"), ("certified", "disk"), ("certified", "csr"),
    ("sampled", "tight"), ("sampled classes", "csr"),
])  # fmt: skip
def test_bytes_of_any_residency(name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation sets stream too, and chunks by twos or alone; threads of kernels run out of order."""
    params = {"n_jobs": 1, **FITS[name]}
    data = make_data(np.random.default_rng(2), params.get("objective", "reg:squarederror"), SMALL_ROWS + 4, 6)
    places: dict[str, dict[str, Any]] = {
        "tight": {"packing": "tight"}, "csr": {"encoding": "csr", "packing": "tight", "limit": 1},
        "disk": {"limit": len(data.y) * 2},
    }  # fmt: skip
    outcomes, noted = [], noted_groups(monkeypatch)
    with quantized(data, chunk_rows=1_500, directory=tmp_path, **places[place]) as dataset, quantized(
        Data(data.X[:900], data.y[:900]), chunk_rows=400, reference=dataset, encoding="csr"
    ) as other:
        fits = [("cpu", None, None), ("cuda", 0, bytes_of_twos(dataset)), ("cuda", 1, 0), ("cuda", None, None)]
        for device, n_resident, stream_bytes in fits if place != "tight" else fits[:3]:
            monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
            decided = {"n_resident": n_resident, "stream_bytes": stream_bytes}
            monkeypatch.setattr(in_process, "engine_size", size_with(**decided))
            results: Any = {}
            model = train({**params, "device": device}, dataset, 2, evals=[(other, "o")], evals_result=results)
            outcomes.append((model.to_bytes(), results))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert [noted[0], noted[2]] == [[2, 1], [1, 1]]
    assert len(noted) == 4, "nothing streams where all stays"


@pytest.mark.emulated
def test_small_data_with_weights_and_earlier_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of 64 bits; margins that begin with another model's trees."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    data = make_data(np.random.default_rng(2), "binary:logistic", 400, 6)
    with quantized(data, chunk_rows=150, packing="tight") as dataset:
        first = train({"objective": "binary:logistic", "n_jobs": 1, **HOST}, dataset, 1)
        given = {"objective": "binary:logistic", "max_depth": 3, "n_jobs": 1}
        expected = train({**given, **HOST}, dataset, 2, init_model=first)
        monkeypatch.setattr(in_process, "engine_size", size_with(n_resident=1))
        found = train({**given, "device": "cuda"}, dataset, 2, init_model=first)
    assert found.to_bytes() == expected.to_bytes()


@pytest.mark.emulated
def test_a_limit_below_the_least_is_refused_and_the_least_works(
    rows: dict[str, Any], runtime: TrackedRuntime
) -> None:
    with chunked(rows) as dataset:
        least = least_of(dataset)
        with pytest.raises(DeviceError, match=rf"\({least:,} bytes\) even with all chunks streamed, .* are allowed by "
                                              r"device_memory_limit: use a larger device_memory_limit, "):  # fmt: skip
            train({**PARAMS, "device_memory_limit": least - 1}, dataset, 1)
        assert runtime.meter.peak_bytes == runtime.pinned_bytes == 0
        assert train({**PARAMS, "device_memory_limit": least}, dataset, 1).to_bytes() == train(
            {**PARAMS, **HOST}, dataset, 1
        ).to_bytes()  # fmt: skip


@pytest.mark.emulated
@pytest.mark.parametrize("which", ["another set", "rows trained on", "a fold"])
@pytest.mark.parametrize(("metrics", "classes"), [(["auc", "logloss"], 2), (["mlogloss"], 5)])
def test_streamed_rows_are_evaluated_together(
    which: str, metrics: list[str], classes: int, runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the plan, and to the CPU's values, however many chunks' margins are put together."""
    n_rows = 3 * SMALL_ROWS // 2
    rows = make_rows(n_rows=n_rows, n_features=8, weight=True, num_class=classes)
    params = {**PARAMS, "max_depth": 1, "eval_metric": metrics}
    if classes > 2:
        params |= {"objective": "multi:softprob", "num_class": classes}
    found = []
    for place in ("local.in_process", "training.plan_fit"):
        monkeypatch.setattr(f"daskboost.{place}.engine_size", size_with(n_resident=0))
    with chunked(rows) as whole, chunked(make_rows(n_rows=2_000, n_features=8), reference=whole) as few:
        held_out = np.arange(n_rows) % 3 == 0
        data, other = {
            "another set": (few, whole), "rows trained on": (whole, whole),
            "a fold": (whole.subset(~held_out), whole.subset(held_out)),
        }[which]  # fmt: skip
        evals = [(other, "o")]
        results: Any = {}
        train({**params, **HOST}, data, 2, evals=evals, evals_result=results)
        found.append(results)
        for most_rows in (2**22, 2_500):
            monkeypatch.setattr(memory, "SCORE_ROWS", most_rows)
            monkeypatch.setattr(GpuDevice, "metric_rows", most_rows)
            planned = plan({**params, "device_memory_limit": 1}, data, evals=evals, num_boost_round=2)
            results = {}
            runtime.meter.restart()
            train({**params, "device_memory_limit": planned.total_bytes}, data, 2, evals=evals, evals_result=results)
            found.append(results)
            assert planned.resident == (0, 0)
            assert 0.7 * planned.total_bytes <= runtime.meter.pool.total_bytes <= planned.total_bytes
    assert found[0] == found[1] == found[2]


def test_what_plans_say(rows: dict[str, Any]) -> None:
    with chunked(rows) as dataset:
        least = least_of(dataset, memory="1GB")
        found = plan({**PARAMS, "device_memory_limit": least}, dataset, memory="1GB")
        chunk_bytes = [entry.handle.nbytes for shard in dataset.shards.shards for entry in shard.entries]
        assert found.host_pinned_bytes == sum(chunk_bytes)
        assert found.ring_bytes == 3 * max(chunk_bytes)
        assert 700 * 40 <= found.planes_bytes < 2 * 700 * 40
        assert f"{'page-locked, of the host':<34}{found.host_pinned_bytes:>18,}" in str(found)
        assert "allowed" in str(found)
        assert sum(found.parts.values()) == found.total_bytes
        half = plan({**PARAMS, "device_memory_limit": "1MB"}, dataset, memory=least)
        assert (half.free_bytes, half.limited) == (least, False)
    shape = plan({**PARAMS, "max_bin": 256}, n_rows=80_000_000, n_features=200, memory="10GB")
    assert shape.fits
    assert shape.resident is not None
    assert 0 < shape.resident[0] * 2**25 < 10e9
    evaluated = plan({**PARAMS, "max_bin": 256}, n_rows=30_000_000, n_features=200, evals=[10_000_000], memory="9.1GB")
    assert evaluated.resident is not None
    assert evaluated.resident[0] == 179, "training rows first: they are read once a level"
    assert evaluated.resident[1] < 60


@pytest.mark.emulated
def test_models_that_share_a_stream(runtime: TrackedRuntime) -> None:
    """Two where there is room for both and nothing else; each is that of its own fit."""
    candidates = [{**PARAMS, "max_depth": 2, "learning_rate": rate} for rate in (0.1, 0.9)]
    with chunked(make_rows(n_rows=SMALL_ROWS + 100, n_features=160)) as dataset:
        expected = [train({**params, **HOST}, dataset, 1).to_bytes() for params in candidates]
        least = plan({**candidates[0], "device_memory_limit": 1}, dataset)
        runtime.free_bytes = 2 * least.total_bytes - least.ring_bytes - least.planes_bytes
        assert plan(candidates[0], dataset).resident is not None, "the bins have no room beside one fit"
        found = train_many(candidates, dataset, 1)
        assert [model.booster.to_bytes() for model in found] == expected
        assert runtime.pinned_bytes > 0
        assert runtime.meter.peak_bytes <= runtime.free_bytes


@pytest.mark.emulated
def test_estimators_pack_what_will_be_streamed(runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """By as few bits as need be; the model is the same."""
    layouts = []
    from_source = QuantizedDataset.from_source

    def noted(*arguments: Any, **options: Any) -> QuantizedDataset:
        made = from_source(*arguments, **options)
        layouts.append(made.info.layout)
        return made

    monkeypatch.setattr(QuantizedDataset, "from_source", noted)
    rows = make_rows(n_rows=5_000, n_features=12)
    found = []
    for limit in (None, 170_000):
        model = DaskBoostClassifier(
            n_estimators=0, max_depth=2, max_bin=16, device="cuda", device_memory_limit=limit, n_jobs=1
        )
        if limit is not None:
            with pytest.raises(DeviceError, match="device_memory_limit"):
                model.fit(rows["X"], rows["y"])
        else:
            model.fit(rows["X"], rows["y"])
        found.append(layouts.pop())
    assert found[0] == DenseLayout.aligned(np.full(12, 16))
    assert found[1] == DenseLayout.tight(np.full(12, 16))


@pytest.mark.parametrize("limit", ["much", 0, -3, True])
def test_limits_that_are_none(limit: Any) -> None:
    with pytest.raises(ParameterError, match="device_memory_limit="):
        plan({"device_memory_limit": limit}, n_rows=2, n_features=2)


def test_sizes_say_what_is_kept() -> None:
    from daskboost.devices.budget.set_size import ChunkSize, SparseSet

    chunks = (ChunkSize(10, 20, 99), ChunkSize(10, 12, 70), ChunkSize(10, 18, 90))
    whole = SparseSet(30, 4, 50, chunks=chunks)
    kept = whole.keeping(1)
    assert (kept.resident_rows, kept.resident_entries, kept.streamed_rows) == (10, 20, 20)
    assert kept.streamed == whole.chunks[1:]
    assert replace(kept, chunks=whole.chunks, streamed=(), streamed_rows=0) == whole


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [{}, SAMPLED], ids=["exact", "sampled"])
@pytest.mark.parametrize("options", [{}, {"encoding": "csr"}, {"disk": True}], ids=["dense", "csr", "disk"])
def test_bytes_on_a_gpu(
    options: dict[str, Any], mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(options)
    if options.pop("disk", False):
        options |= {"host_memory_limit": 280_000, "spill_directory": tmp_path}
    rows = make_rows(n_rows=20_000, n_features=40)
    with QuantizedDataset.from_dask(**rows, max_bin=64, chunk_rows=1_400, packing="tight", **options) as dataset:
        (shard,), params = dataset.shards.shards, {**PARAMS, "max_bin": 64, **mode}
        expected = train({**params, **HOST}, dataset, 2).to_bytes()
        least = plan({**params, "device_memory_limit": 1}, dataset).total_bytes
        most = plan(params, dataset).total_bytes
        for share in (0, 0.3, 1):
            limit, reads = int(least + share * max(0, most - least)), shard.store.counters().disk_reads
            assert train({**params, "device_memory_limit": limit}, dataset, 2).to_bytes() == expected
        tiers = [shard.store.residency(entry.handle) for entry in shard.entries]
        assert shard.store.counters().disk_reads - reads == tiers.count("disk"), "all stays"
        stream_by_twos(monkeypatch, dataset)
        noted = noted_groups(monkeypatch)
        monkeypatch.setattr(in_process, "engine_size", size_with(n_resident=1))
        modes: list[dict[str, Any]] = [{}] if mode else [{}, {"out_of_core": "certified"}]
        for more in modes:
            found = [train({**params, **more, **where}, dataset, 2).to_bytes() for where in ({}, HOST)]
            assert found[0] == found[1]
        assert [max(lengths) for lengths in noted] == [2] * len(modes)
