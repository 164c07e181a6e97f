"""The plan of a fit's memory: engines take what it says, and fits without room are refused before they begin."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import TrackedRuntime
from training.plan_shapes import LOGISTIC, VECTORS, make_data

import daskboost
from daskboost import Plan, QuantizedDataset, plan, train
from daskboost.devices.budget.gpu_memory import LEAST_MULTIPROCESSORS
from daskboost.devices.budget.gpu_plans import POOL_ROUNDING_BYTES, POOL_SCRATCH_SHARE, POOL_STILL_SHARE
from daskboost.devices.budget.leaf_order import LEAST_ROUNDS
from daskboost.devices.gpu.rows.metrics import STATE_BYTES, sum_shapes
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.launches import bytes_of
from daskboost.errors import DeviceError, format_bytes

if TYPE_CHECKING:
    from distributed import Client


@pytest.mark.parametrize(("weight", "of_row"), [(False, 24), (True, 28)])
def test_rows_have_24_bytes_of_state(weight: bool, of_row: int) -> None:
    """Of one output, bins and weights aside."""
    found = plan({**PARAMS, "max_depth": 8}, n_rows=11_000_000, n_features=28, weight=weight)
    state = found.order_bytes + found.gradients_bytes + found.margins_bytes + found.labels_bytes
    assert state == of_row * 11_000_000


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_vectors_have_histograms_of_all_outputs(device: str) -> None:
    found = plan({**VECTORS, "device": device}, n_rows=100_000, n_features=10, memory="9GB")
    one = plan({**VECTORS, "num_class": 3, "device": device}, n_rows=100_000, n_features=10, memory="9GB")
    assert found.histograms_bytes == 2 * one.histograms_bytes and found.margins_bytes == 2 * one.margins_bytes


@pytest.fixture
def dataset() -> QuantizedDataset:
    return QuantizedDataset.from_dask(**make_data(), max_bin=64, n_jobs=1)


PARAMS = {**LOGISTIC, "max_depth": 6, "device": "cuda", "max_bin": 64}


@pytest.mark.emulated
def test_a_fit_without_room_is_refused_before_it_takes_any(
    dataset: QuantizedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = TrackedRuntime(free_bytes=200_000)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    planned = plan(PARAMS, dataset)
    largest = max(planned.parts, key=planned.parts.__getitem__)
    sizes = [format_bytes(n_bytes) for n_bytes in (planned.total_bytes, planned.parts[largest], 200_000)]
    assert sizes[2] == "200 kB"
    assert len(set(sizes)) == 3
    expected = (
        rf"the fit needs {sizes[0]} of the GPU's memory, of which {largest} take {sizes[1]}, and {sizes[2]} are free: "
        r"use .* or device='cpu'$"
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
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    with caplog.at_level(logging.INFO):
        model = train({**PARAMS, "device": "auto"}, dataset, 1)
    assert [record.levelname for record in caplog.records if "trains on the CPU: the fit needs" in record.message] == [
        "WARNING"
    ]
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
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    planned = plan(params, dataset)
    assert planned.columns_bytes == 0 < whole.columns_bytes
    assert planned.fits
    train(params, dataset, 2)
    assert runtime.meter.peak_bytes <= planned.total_bytes


def test_chunks_on_disk_are_kept_as_those_in_ram(tmp_path: Any) -> None:
    """The plan is that of chunks in RAM, but for the way to the device; where there is no room, disks come first."""
    data, params = make_data(n_rows=6_000, n_features=40), {**PARAMS, "max_depth": 4}
    how: dict[str, Any] = {"chunk_rows": 500, "max_bin": 64, "n_jobs": 1}
    chunk = 500 * 40 + 4
    with QuantizedDataset.from_dask(
        **data, **how, host_memory_limit=7 * chunk, spill_directory=tmp_path
    ) as on_disk, QuantizedDataset.from_dask(**data, **how) as in_ram:
        found, expected = (plan(params, dataset, memory="1GB") for dataset in (on_disk, in_ram))
        passing = {name: expected.parts[name] for name in ("scratch", "pool")}
        assert {**found.parts, **passing} == expected.parts
        assert expected.scratch_bytes <= found.scratch_bytes <= expected.scratch_bytes + 3 * chunk
        assert (found.resident, found.without_host, found.ring_bytes) == (None, True, 0)
        assert (found.host_pinned_bytes, expected.host_pinned_bytes) == (4 * chunk, 0), "four files at a time"
        cpu = plan({**params, "device": "cpu"}, on_disk)
        assert cpu.chunks_bytes < plan({**params, "device": "cpu"}, in_ram).chunks_bytes
        least, pinned = plan({**params, "device_memory_limit": 1}, on_disk, memory="1GB").total_bytes, {}
        for limit in range(least, found.total_bytes, 10_000):
            planned = plan({**params, "device_memory_limit": limit}, on_disk, memory="1GB")
            if planned.resident is not None:
                pinned[planned.resident[0]] = planned.host_pinned_bytes // chunk
    assert pinned == {
        **{n: 7 + min(5 - n, 4) for n in range(5)},  # files are read to rooms, and what is in RAM streams from there
        **{n: max(12 - n, 4) for n in range(5, 12)},
    }  # fmt: skip


@pytest.mark.parametrize("tiers", ["rrrddd", "dddrrr", "rdrdrd", "ddd", "rrr"])
def test_engines_keep_the_chunks_that_plans_say(tiers: str, tmp_path: Any) -> None:
    from daskboost.engine.chunk_views import streamed_places
    from daskboost.engine.fit_size import shard_size

    data = make_data(n_rows=100 * len(tiers))
    with QuantizedDataset.from_dask(
        **data, chunk_rows=100, n_jobs=1, host_memory_limit=1, spill_directory=tmp_path
    ) as dataset:
        (shard,) = dataset.shards.shards
        chunks = [chunk for _, chunk in shard.chunks()]
        shard.store._ram.budget_bytes = None
        entries = []
        for tier, entry, chunk in zip(tiers, shard.entries, chunks, strict=True):
            entries.append(replace(entry, handle=shard.store.put(chunk)) if tier == "r" else entry)
        shard = replace(shard, entries=tuple(entries))
        size = shard_size(shard, 10)
        for n_kept in range(len(tiers) + 1):
            kept = size.keeping(n_kept)
            places = streamed_places(shard, n_kept)
            assert tuple(sorted(places)) == tuple(chunk.place for chunk in kept.streamed)
            assert kept.resident_rows == 100 * n_kept
            on_disk = {place for place, tier in enumerate(tiers) if tier == "d"}
            assert on_disk.isdisjoint(places) or n_kept < len(on_disk)
        assert streamed_places(shard, None) == frozenset()


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
    assert found.columns_bytes == found.turned_bytes == 28 * 11_000_000
    assert found.ordered_bytes == found.chunks_bytes + 12 * 11_000_000
    assert found.histograms_bytes == 48 * 28 * 256 * 16
    assert found.total_bytes == sum(found.parts.values())
    assert (found.fits, found.remedy) == (True, "")
    lines = str(found).splitlines()
    assert lines[0].split() == ["memory", "of", "a", "fit", "on", "cuda", "bytes"]
    assert lines[1].split() == ["chunks", "352,000,000"]
    assert lines[-4].split() == ["free", "141,000,000,000"]
    assert lines[-3] == "trees grow on all rows; splits are searched on gradients; single leaves are sums of gradients"
    order = "over rows in the order of the first one's leaves"
    assert lines[-2:] == [f"trees grow on the GPU alone, {order}", "it fits"]


def test_a_plan_says_how_trees_grow() -> None:
    def growth(per_row: float | None = None, **more: Any) -> str:
        n_features = 28 if per_row is None else 100_000
        given = {"device": "cuda", **more}
        found = plan(given, n_rows=1_000_000, n_features=n_features, nonzeros_per_row=per_row, memory="141GB")
        assert found.growth == "" or found.growth in str(found).splitlines()
        return found.growth

    stays = "rows stay in their order: they are sparse"
    assert growth(per_row=50) == f"trees grow on the GPU alone, in sorted entries; {stays}"
    assert growth(objective="reg:absoluteerror") == "trees grow on the GPU alone"
    assert growth(objective="reg:quantileerror", quantile_alpha=(0.1, 0.5, 0.9)) == (
        "trees grow on the GPU alone, 3 of a round together"
    )
    assert growth(objective="reg:absoluteerror", grow_policy="lossguide", max_leaves=63) == (
        "trees grow with the host, which is slower: rows of best-first trees do not lie in the order of leaves, which "
        "are quantiles"
    )
    vectors: dict[str, Any] = {"objective": "multi:softprob", "num_class": 7, "multi_strategy": "multi_output_tree"}
    assert growth(**vectors) == "trees grow on the GPU alone"
    assert growth(**vectors, sketch_outputs=2) == (
        "trees grow with the host, which is slower: vectors take exact sums beside the combinations of outputs that "
        "trees are searched on"
    )
    assert growth(**vectors, grow_policy="lossguide", max_leaves=63) == (
        "trees grow with the host, which is slower: best-first trees without the host have no leaves that are vectors"
    )
    vectors = {"objective": "reg:quantileerror", "quantile_alpha": (0.1, 0.9), "multi_strategy": "multi_output_tree"}
    assert growth(**vectors) == "trees grow with the host, which is slower: leaves that are vectors are quantiles"
    assert growth(objective="multi:softprob", num_class=7, max_depth=3) == (
        "trees grow on the GPU alone, 7 of a round together"
    )
    assert growth(device="cpu") == ""


def test_the_pool_takes_its_share_of_what_is_left() -> None:
    """Not of copies that were left out for want of room: that in the order of leaves first, then that for roots, then
    the column-major one."""
    copies = ("ordered", "turned", "columns")
    whole = plan({**PARAMS, "max_bin": 256}, n_rows=11_000_000, n_features=28, memory="141GB")
    for n in (1, 2, 3):
        found = plan({**PARAMS, "max_bin": 256}, n_rows=11_000_000, n_features=28, memory=whole.total_bytes - 1)
        assert tuple(name for name in copies if found.parts[name] == 0) == copies[:n]
        assert found.fits
        assert found.growth == "trees grow on the GPU alone; rows stay in their order: there is no room for their copy"
        of_steps = found.pool_bytes - (found.total_bytes - found.pool_bytes) // POOL_STILL_SHARE
        assert 0 <= of_steps <= found.scratch_bytes // POOL_SCRATCH_SHARE + POOL_ROUNDING_BYTES
        whole = found


@pytest.mark.parametrize(("params", "why"), [
    ({"subsample": 0.5}, "trees leave some out"),
    ({"grow_policy": "lossguide", "max_leaves": 63}, "trees grow best first"),
    ({"num_class": 3, "objective": "multi:softprob", "multi_strategy": "multi_output_tree"}, "leaves are vectors"),
    ({"objective": lambda label, margin: (margin - label, label)}, "gradients have no kernel"),
])  # fmt: skip
def test_a_plan_says_why_rows_stay_in_their_order(params: dict[str, Any], why: str) -> None:
    found = plan({**PARAMS, **params}, n_rows=11_000_000, n_features=28, memory="141GB")
    assert found.ordered_bytes == 0
    assert found.growth.endswith(f"; rows stay in their order: {why}")


def test_rows_stay_in_their_order_where_no_other_one_pays() -> None:
    """Fits of few rows, few rounds or flat trees, and those whose trees wait for the host, say nothing of it."""
    shape: dict[str, Any] = {"n_rows": 11_000_000, "n_features": 28, "memory": "141GB"}
    assert plan(PARAMS, **shape, num_boost_round=LEAST_ROUNDS).ordered_bytes > 0
    assert plan(PARAMS, **shape, n_workers=2).ordered_bytes > 0
    small: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"n_rows": 1_000_000}), ({}, {"num_boost_round": LEAST_ROUNDS - 1}), ({"max_depth": 3}, {}),
        ({"reduction": "peers"}, {"n_workers": 2}), ({"device": "cpu"}, {}),
    ]  # fmt: skip
    for params, other in small:
        found = plan({**PARAMS, **params}, **{**shape, **other})
        assert found.ordered_bytes == 0 and "stay" not in found.growth


def test_only_roots_of_all_rows_in_order_have_a_copy() -> None:
    shape: dict[str, Any] = {"n_rows": 1_100_000, "n_features": 25, "memory": "141GB"}
    assert plan(PARAMS, **shape).turned_bytes == 28 * 1_100_000
    best_first = {"grow_policy": "lossguide", "colsample_bynode": 0.5}
    for params in ({"subsample": 0.5}, {"max_bin": 300}, best_first, {"device": "cpu"}):
        assert plan({**PARAMS, **params}, **shape).turned_bytes == 0, params
    for other in ({"n_features": 32}, {"n_features": 16}, {"n_rows": 10**6}, {"nonzeros_per_row": 5}):
        assert plan(PARAMS, **{**shape, **other}).turned_bytes == 0, other


@pytest.mark.parametrize("sm", [75, 90])
def test_a_gpu_that_is_here_is_asked_for_its_shared_memory(sm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not, as workers' are, is taken to have much of it."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(sm=sm))
    params = {**PARAMS, "max_bin": 256}
    dense: dict[str, Any] = {"n_rows": 2_200_000, "n_features": 25, "memory": "141GB"}
    sparse: dict[str, Any] = {"n_rows": 200_000, "n_features": 50, "nonzeros_per_row": 5, "memory": "141GB"}
    assert plan(params, **dense).turned_bytes == (28 * 2_200_000 if sm == 90 else 0)
    assert (plan(params, **sparse).columns_bytes > 0) == (sm == 75)
    assert plan(params, **sparse, n_workers=2).columns_bytes == 0


def test_what_a_plan_says_without_room() -> None:
    found = plan({**PARAMS, "max_depth": 12, "max_bin": 256}, n_rows=10**6, n_features=200, memory="1GB")
    assert not found.fits
    assert "histograms" in found.remedy or "max_depth" in found.remedy
    text = str(found)
    assert "does not fit" in next(line for line in text.splitlines() if "histograms" in line)
    assert "does not fit" not in next(line for line in text.splitlines() if "chunks" in line)
    assert text.endswith(f"it does not fit: use {found.remedy}")
    rows = plan(PARAMS, n_rows=10**9, n_features=200, memory="1GB")
    assert rows.resident == (0,), "of all chunks none has room, nor has the rows' state"
    assert rows.remedy == "fewer rows per worker (more workers), or device='cpu'"
    rows = plan({**PARAMS, "device": "cpu"}, n_rows=10**9, n_features=200, memory="1GB")
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

    from daskboost.devices.budget import partition

    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    monkeypatch.setitem(partition.SHARE_BYTES, "cuda", 1)
    rows = make_data(n_rows=8_192)
    X, y = (da.from_array(rows[name], chunks=(2_048, *rows[name].shape[1:])) for name in ("X", "y"))
    with QuantizedDataset.from_dask(X, y, max_bin=64, client=cluster_client) as dataset:
        found = plan(PARAMS, dataset, evals=[(dataset, "train")])
        workers = dataset.shards.owners
    most = 2_048 * max(workers.count(worker) for worker in workers)
    assert found.margins_bytes == 4 * most
    sums, watched = bytes_of(sum_shapes(LEAST_MULTIPROCESSORS)), (4 * most + STATE_BYTES) * found.watched
    assert found.evaluation_bytes == most * (16 + 4 + 4) + sums + watched
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_of_evaluation_sets_count_where_training_rows_have_none(
    device: str, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime())
    x, n = rng.normal(size=(500, 2)).astype("f4"), 9_000
    more, weight = rng.normal(size=(n, 2)).astype("f4"), rng.random(n)
    with QuantizedDataset.from_dask(x, x[:, 0]) as rows:
        found = []
        for weights in (None, weight):
            with QuantizedDataset.from_dask(more, more[:, 0], weight=weights, reference=rows) as other:
                found.append(plan({"device": device}, rows, evals=[(other, "other")]))
    assert found[1].evaluation_bytes - found[0].evaluation_bytes == 4 * n
