"""What is free of a GPU: the driver's bytes, and those of the pool that CuPy allocates from, whose ever it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from training.plan_shapes import LOGISTIC, make_data

from daskboost import QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime.cuda import free_bytes

OF_DRIVER = 1_000


class Pool:
    """As CuPy's, of 500 bytes, 300 of which are in use."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit

    def malloc(self, n_bytes: int) -> Any:
        raise AssertionError("what is free is not tried out")

    def free_bytes(self) -> int:
        return 200

    def used_bytes(self) -> int:
        return 300

    def get_limit(self) -> int:
        return self._limit


class AsyncPool(Pool):
    pass


def xp_with(allocator: Any) -> Any:
    runtime = SimpleNamespace(memGetInfo=lambda: (OF_DRIVER, 10 * OF_DRIVER))
    cuda = SimpleNamespace(
        Device=lambda _: nullcontext(), runtime=runtime, get_allocator=lambda: allocator, MemoryPool=Pool,
        MemoryAsyncPool=AsyncPool,
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize("make", [Pool, AsyncPool])
@pytest.mark.parametrize(("limit", "expected"), [(0, 1_200), (5_000, 1_200), (900, 600), (200, 0)])
def test_the_pool_behind_the_allocator_counts(make: type[Pool], limit: int, expected: int) -> None:
    assert free_bytes(xp_with(make(limit).malloc), 0) == expected


def test_an_allocator_without_a_pool() -> None:
    assert free_bytes(xp_with(lambda n_bytes: None), 0) == OF_DRIVER
    assert free_bytes(xp_with(SimpleNamespace(free_bytes=lambda: 7).free_bytes), 0) == OF_DRIVER


def resource(upstream: Any = None, **methods: Any) -> Any:
    """Of RMM, which has these methods, or attributes."""
    made = SimpleNamespace(**{name: (lambda value=value: value) for name, value in methods.items()})
    if upstream is not None:
        made.upstream_mr = upstream
    return made


def counting(upstream: Any, n_bytes: int) -> Any:
    return SimpleNamespace(upstream_mr=upstream, allocation_counts=SimpleNamespace(current_bytes=n_bytes))


RESOURCES = {
    "the driver's": (resource(), 1_000),
    "a pool": (resource(resource(), pool_size=5_000), 6_000),
    "a pool whose use is counted": (counting(resource(resource(), pool_size=5_000), 3_000), 3_000),
    "a pool whose use is tracked": (
        resource(resource(resource(), pool_size=5_000), get_allocated_bytes=4_000), 2_000
    ),
    "a pool and a limit": (
        resource(resource(resource(), pool_size=5_000), get_allocated_bytes=2_000, get_allocation_limit=2_500), 500
    ),
    "a limit that is passed": (resource(resource(), get_allocated_bytes=9, get_allocation_limit=8), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", RESOURCES)
def test_rmm_as_the_allocator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = RESOURCES[name]
    rmm: Any = ModuleType("rmm")
    rmm.mr = SimpleNamespace(get_per_device_resource={3: found}.__getitem__)
    monkeypatch.setitem(sys.modules, "rmm", rmm)

    def rmm_cupy_allocator(n_bytes: int) -> Any:
        raise AssertionError("what is free is not tried out")

    rmm_cupy_allocator.__module__ = "rmm.allocators.cupy"
    assert free_bytes(xp_with(rmm_cupy_allocator), 3) == expected


@pytest.fixture
def allocators() -> Iterator[Any]:
    """CuPy, whose allocator is the one of before afterwards."""
    import cupy

    allocate = cupy.cuda.get_allocator()
    yield cupy
    cupy.cuda.set_allocator(allocate)


@pytest.mark.gpu
def test_a_pool_of_cupys(allocators: Any) -> None:
    pool, limit = allocators.cuda.MemoryPool(), 64 << 20
    pool.set_limit(size=limit)
    allocators.cuda.set_allocator(pool.malloc)
    assert free_bytes(allocators, 0) == limit
    array = allocators.zeros(1 << 20, dtype=np.uint8)
    assert free_bytes(allocators, 0) == limit - array.nbytes


@pytest.mark.gpu
def test_a_fit_within_a_pool_of_rmms(allocators: Any) -> None:
    """What the pool holds is free though the driver has given it away, and a fit takes no more of it than its plan."""
    rmm = pytest.importorskip("rmm")
    from rmm.allocators.cupy import rmm_cupy_allocator

    params, size = {**LOGISTIC, "max_depth": 4, "device": "cuda", "n_jobs": 1}, 256 << 20
    with QuantizedDataset.from_dask(**make_data(n_rows=20_000), n_jobs=1) as dataset:
        expected = train({**params, "device": "cpu"}, dataset, 3).to_bytes()
        before = rmm.mr.get_per_device_resource(0)
        counts = rmm.mr.StatisticsResourceAdaptor(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), size, size))
        rmm.mr.set_per_device_resource(0, rmm.mr.LimitingResourceAdaptor(counts, size))
        try:
            allocators.cuda.set_allocator(rmm_cupy_allocator)
            assert free_bytes(allocators, 0) == size
            array = allocators.zeros(1 << 20, dtype=np.uint8)
            assert free_bytes(allocators, 0) == size - array.nbytes
            del array
            counts.push_counters()
            planned = plan(params, dataset, num_boost_round=3)
            assert planned.free_bytes == size
            assert train(params, dataset, 3).to_bytes() == expected
            peak = counts.pop_counters().peak_bytes
            assert 0 < peak <= planned.total_bytes
        finally:
            rmm.mr.set_per_device_resource(0, before)
