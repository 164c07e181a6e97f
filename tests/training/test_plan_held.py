"""Engines take what their plans say: at most all of it, and at least 0.7, on CPUs 0.4."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels.tracked import TrackedRuntime
from strategies.device_arrays import EmulatedPlace, Place, place
from training.plan_shapes import CLASSES, LOGISTIC, SHAPES, SHAPES_OF_CPUS, data_of, make_data, within

from daskboost import Plan, QuantizedDataset, plan, train
from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.budget import leaf_order
from daskboost.devices.gpu.quantize import symbols as turned
from daskboost.devices.gpu.rows import views
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import sparse_columns

__all__ = ["place"]

SLOWEST = ("wide sparse best first",)
"""Fits of more than ten seconds in emulation."""
SMS = [75, 80, 86, 90]
"""Architectures, each with other shared memory."""


def fit(params: dict[str, Any], data: dict[str, Any], evaluated: bool, before: Callable[[Plan], None],
        chunk_rows: int = 0) -> Plan:  # fmt: skip
    """Train three rounds on a data set; its plan, which `before` sees."""
    max_bin = params.get("max_bin", 64)
    params = {**params, "max_bin": max_bin, "n_jobs": 1}
    with QuantizedDataset.from_dask(**data, max_bin=max_bin, n_jobs=1, chunk_rows=chunk_rows) as dataset:
        evals = [(dataset, "train")] if evaluated else []
        planned = plan(params, dataset, evals=evals, num_boost_round=3)
        before(planned)
        train(params, dataset, 3, evals=evals)
    return planned


@pytest.mark.emulated
@pytest.mark.parametrize(("name", "n_rows"), [
    pytest.param(name, n_rows, marks=[pytest.mark.large] if n_rows >= 20_000 or name in SLOWEST else [])
    for name, n_rows in (
        *itertools.product(SHAPES, (8_000, 40_000)), ("certified", 12_000), ("sampled", 16_000),
        ("sampled quantiles", 9_000), ("sampled quantiles", 20_000), ("certified without a kernel", 150_000),
    )
])  # fmt: skip
def test_a_fit_stays_within_its_plan(name: str, n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params, given = SHAPES[name]
    if n_rows > 8_000 and "n_rows" in given:
        pytest.skip("as large as it gets")
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    data = data_of(name, n_rows=n_rows)
    planned = fit({**params, "device": "cuda"}, data, "evaluated" in given, lambda _: None)
    within(runtime.meter.pool.total_bytes, planned)
    runtime.recorded.clear()
    assert runtime.meter.bytes == 0, "nothing is left to the garbage collector"


@pytest.mark.parametrize("name", ["evaluation", "sparse", "certified", "sampled"])
def test_chunks_from_disk_that_stay_are_read_once_within_the_plan(
    name: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another evaluation set too; some of the training set's come from RAM."""
    params, given = SHAPES[name]
    params = {**params, "max_bin": 64, "n_jobs": 1, "device": "cuda"}
    runtime = pool = None
    if isinstance(place, EmulatedPlace):
        runtime = TrackedRuntime()
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    else:
        warm_up(params)
        pool = LimitedPool()
    n_rows = 8_000 if pool is None else 20_000
    data, other = data_of(name, n_rows=n_rows), data_of(name, n_rows=n_rows // 3)
    stored = data["X"].nnz * 4 if "density" in given else data["X"].size
    how: dict[str, Any] = {"n_jobs": 1, "spill_directory": tmp_path, "chunk_rows": n_rows // 12}
    with QuantizedDataset.from_dask(**data, max_bin=64, **how, host_memory_limit=stored // 3) as dataset, (
        QuantizedDataset.from_dask(**other, reference=dataset, **how, host_memory_limit=1)
    ) as unseen:
        planned = plan(params, dataset, evals=[(unseen, "unseen")], num_boost_round=3)
        with nullcontext() if pool is None else pool.limited():
            if pool is not None:
                pool.limit(planned)
            train(params, dataset, 3, evals=[(unseen, "unseen")])
        for each in (dataset, unseen):
            (shard,) = each.shards.shards
            tiers = [shard.store.residency(entry.handle) for entry in shard.entries]
            assert shard.store.counters().disk_reads == tiers.count("disk") > 0
            assert ("ram" in tiers) == (each is dataset)
    assert (planned.resident, planned.ring_bytes, planned.planes_bytes) == (None, 0, 0)
    if pool is not None:
        within(pool.taken_bytes, replace(planned, free_bytes=None))
    if runtime is not None:
        within(runtime.meter.pool.total_bytes, planned)
        assert runtime.pinned_peak_bytes == planned.host_pinned_bytes > runtime.pinned_bytes == 0
        runtime.recorded.clear()
        assert runtime.meter.bytes == 0


@pytest.mark.emulated
@pytest.mark.parametrize("n_trees", [1, 2, 4])
def test_trees_that_grow_together_stay_within_their_plan(n_trees: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    monkeypatch.setattr(plans, "trees_together", lambda *_: n_trees)
    planned = fit({**CLASSES, "max_depth": 5, "device": "cuda"}, make_data(num_class=6), False, lambda _: None)
    assert planned.trees_together == n_trees
    within(runtime.meter.peak_bytes, planned)


@pytest.mark.emulated
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("max_bin", [64, 128, 256])
def test_the_copy_that_roots_read_is_made_as_planned(max_bin: int, sm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And changes no byte of the model. Bins beyond 128 take more shared memory than sm_75 and 86 have."""
    models, params, copies = [], {**LOGISTIC, "max_bin": max_bin, "max_depth": 4, "device": "cuda"}, []
    has_room = max_bin <= 128 or sm in (80, 90)

    def turn(*arguments: Any) -> Any:
        copies.append(turned.turn(*arguments))
        return copies[-1]

    monkeypatch.setattr(views, "turn", turn)
    with QuantizedDataset.from_dask(**make_data(n_features=23), max_bin=max_bin, n_jobs=1) as dataset:
        for least_rows in (8_000, 8_001):
            runtime = TrackedRuntime(sm=sm)
            monkeypatch.setattr(cuda, "get_runtime", lambda *_, runtime=runtime: runtime)
            monkeypatch.setattr(turned, "LEAST_ROWS", least_rows)
            planned = plan(params, dataset, num_boost_round=3)
            models.append(train(params, dataset, 3).to_bytes())
            within(runtime.meter.peak_bytes, planned)
            made = sum(copy.nbytes for copy in copies)
            copies.clear()
            assert made == planned.turned_bytes == (24 * 8_000 if has_room and least_rows == 8_000 else 0)
    assert models[0] == models[1]


@pytest.mark.parametrize("name", ["depthwise", "histograms", "classes", "wide", "two bytes a symbol", "by weight",
                                  "quantiles"])  # fmt: skip
@pytest.mark.parametrize("lent", [False, True])
def test_rows_in_the_order_of_leaves_are_planned(
    name: str, lent: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan counts the copy in the order of leaves, whether the first copy is another's and stays, or the fit's own
    and is freed."""
    params, moved = {**SHAPES[name][0], "device": "cuda"}, []
    for limit in ("LEAST_BYTES", "LEAST_ROUNDS", "LEAST_DEPTH"):
        monkeypatch.setattr(leaf_order, limit, 0)
    put_in_order = views.DenseView.put_in_order

    def noted(view: views.DenseView, rows: Any) -> None:
        moved.append(len(rows))
        put_in_order(view, rows)

    monkeypatch.setattr(views.DenseView, "put_in_order", noted)
    data = data_of(name, n_rows=20_000 if isinstance(place, EmulatedPlace) else 100_000)
    if lent:
        data["X"] = place.array(data["X"])
    runtime = pool = None
    if isinstance(place, EmulatedPlace):
        runtime = TrackedRuntime(sm=90)
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    else:
        warm_up(params)
        pool = LimitedPool()
    moved.clear()

    def before(planned: Plan) -> None:
        if runtime is not None:
            runtime.meter.restart()
        if pool is not None:
            pool.limit(planned)

    with nullcontext() if pool is None else pool.limited():
        planned = fit(params, data, False, before)
    assert moved == [len(data["X"])]
    assert planned.ordered_bytes > planned.chunks_bytes == (0 if lent else planned.chunks_bytes)
    if runtime is not None:
        within(runtime.meter.pool.total_bytes, planned)
    if pool is not None:
        within(pool.taken_bytes, replace(planned, free_bytes=None))


@pytest.mark.emulated
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(("n_features", "copied_on"), [(96, []), (160, [75]), (240, [75, 86]), (360, SMS)])
def test_sparse_rows_are_sorted_where_a_block_has_too_little_room(
    n_features: int, copied_on: list[int], sm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histograms take about 49, 81, 122 and 183 KiB; plans count the copy where views make it, and models are the
    CPU's."""
    params, copies = {**LOGISTIC, "max_bin": 64, "max_depth": 5, "device": "cuda", "n_jobs": 1}, []

    def sort(*arguments: Any) -> Any:
        copies.append(sparse_columns.SparseColumns(*arguments))
        return copies[-1]

    monkeypatch.setattr(views, "SparseColumns", sort)
    runtime = TrackedRuntime(sm=sm)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    data = make_data(n_features=n_features, density=0.05)
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1, encoding="csr") as dataset:
        planned = plan(params, dataset, num_boost_round=3)
        found = train(params, dataset, 3).to_bytes()
        taken = runtime.meter.pool.total_bytes
        assert found == train({**params, "device": "cpu"}, dataset, 3).to_bytes()
    within(taken, planned)
    assert (len(copies) == 1) == (planned.columns_bytes > 0) == (sm in copied_on)
    few = sparse_columns.AT_ONCE * sparse_columns.ENTRY_BYTES  # entries that fill up chunks and copies
    assert abs(planned.columns_bytes - sum(copy.nbytes for copy in copies)) < few


class LimitedPool:
    """A pool of CuPy's for a fit alone, with a limit of what it may take; it gives nothing back within the fit.

    CuPy's own has room between arrays that were there before, which a fit would use and nobody would see.
    """

    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._pool = cupy.cuda.MemoryPool()

    def limit(self, planned: Plan) -> None:
        """From here on all arrays are of this pool, which takes no more than the plan."""
        self.limit_bytes(planned.total_bytes)

    def limit_bytes(self, n_bytes: int) -> None:
        """The same of so many bytes."""
        self._pool.set_limit(size=n_bytes)
        self._cuda.set_allocator(self._pool.malloc)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Within it there may be a limit."""
        allocate = self._cuda.get_allocator()
        try:
            yield
        finally:
            self._cuda.set_allocator(allocate)

    @property
    def taken_bytes(self) -> int:
        """Since the limit was set."""
        return int(self._pool.total_bytes())

    @property
    def used_bytes(self) -> int:
        """By arrays, of what was taken."""
        return int(self._pool.used_bytes())


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_a_fit_stays_within_its_plan_on_a_gpu(name: str) -> None:
    """CuPy's pool gets no byte more than the plan, and comes near."""
    params, given = SHAPES[name]
    warm_up(params)
    data, pool = data_of(name, n_rows=20_000), LimitedPool()
    with pool.limited():
        planned = fit({**params, "device": "cuda"}, data, "evaluated" in given, pool.limit)
    within(pool.taken_bytes, replace(planned, free_bytes=None))


def warm_up(params: dict[str, Any]) -> None:
    """Kernels are compiled and what is kept for good is allocated."""
    fit({**params, "device": "cuda"}, make_data(n_rows=5_000, num_class=params.get("num_class", 2)), False,
        lambda _: None)  # fmt: skip


@pytest.mark.parametrize("name", ["depthwise", "wide", "sparse", "evaluation"])
@pytest.mark.parametrize("chunk_rows", [0, 1 << 13])
def test_rows_that_lie_on_the_device_are_not_planned_again(
    name: str, chunk_rows: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, given = SHAPES[name]
    evaluated = "evaluated" in given
    if isinstance(place, EmulatedPlace):
        data, runtime = data_of(name, n_rows=10_000), TrackedRuntime()
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
        data["X"] = (place.csr if "density" in given else place.array)(data["X"])
        planned = fit({**params, "device": "cuda"}, data, evaluated, lambda _: runtime.meter.restart(), chunk_rows)
        assert runtime.meter.pool.total_bytes <= planned.total_bytes
        peak_bytes = runtime.meter.peak_bytes
    else:
        warm_up(params)
        data, pool = data_of(name, n_rows=20_000), LimitedPool()
        data["X"] = (place.csr if "density" in given else place.array)(data["X"])
        with pool.limited():
            planned = fit({**params, "device": "cuda"}, data, evaluated, pool.limit, chunk_rows)
        peak_bytes = pool.taken_bytes
    within(peak_bytes, replace(planned, free_bytes=None))
    assert (planned.chunks_bytes == 0) == ("density" not in given)


@pytest.mark.parametrize("name", [
    "depthwise", "symmetric", "lossguide", "classes", "wide", "sparse", "evaluation", "vectors", "sketched vectors",
    "by weight", "linear leaves", "certified", "certified classes", "sampled", "symmetric trees of few rows",
])  # fmt: skip
def test_a_fit_on_the_cpu_stays_within_its_plan(name: str) -> None:
    params, given = SHAPES_OF_CPUS[name]
    evaluated = "evaluated" in given
    data = data_of(name, n_rows=100_000)
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
    least = 0.2 if name == "symmetric trees of few rows" else 0.4  # which end before their deepest level
    assert least * planned.total_bytes <= peak + stored <= planned.total_bytes, f"{peak:,} and {stored:,} of\n{planned}"
