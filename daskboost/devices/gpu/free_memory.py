"""Bytes that a fit may take of a GPU: what the driver has left, and what the pool that CuPy allocates from has unused.

That pool is the one behind CuPy's allocator: CuPy's own, another that was set by `cupy.cuda.set_allocator`, or RMM's,
which often takes most of a GPU when a worker starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cupy.cuda import MemoryAsyncPool, MemoryPool
    from rmm.mr import DeviceMemoryResource

RMM_ALLOCATORS = "rmm.allocators"
"""Module of the function that makes CuPy allocate by RMM."""


def free_bytes(xp: ModuleType, device: int) -> int:
    """Return the bytes of the GPU of that index."""
    with xp.cuda.Device(device):
        of_driver = int(xp.cuda.runtime.memGetInfo()[0])
        allocator = xp.cuda.get_allocator()
        pool = getattr(allocator, "__self__", None)
        if isinstance(pool, (xp.cuda.MemoryPool, xp.cuda.MemoryAsyncPool)):
            return _with_pool(of_driver, pool)
        if (getattr(allocator, "__module__", None) or "").startswith(RMM_ALLOCATORS):
            import rmm

            return _with_resources(of_driver, list(_chain(rmm.mr.get_per_device_resource(device))))
        return of_driver


def _with_pool(of_driver: int, pool: MemoryPool | MemoryAsyncPool) -> int:
    """A pool of CuPy's."""
    free, limit = of_driver + int(pool.free_bytes()), int(pool.get_limit())
    return free if limit == 0 else max(0, min(free, limit - int(pool.used_bytes())))


def _chain(resource: DeviceMemoryResource | None) -> Iterator[DeviceMemoryResource]:
    """A memory resource of RMM, and all that it takes its memory from."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream_mr", None)


def _with_resources(of_driver: int, resources: list[DeviceMemoryResource]) -> int:
    """RMM says what a pool holds, and only by a resource that counts allocations what of that is in use.

    Without one all of the pool counts as free. The other way, the pool of a worker that has just started would leave
    nothing to its fits; where it is in use, a fit ends with an error, and `device_memory_limit` says what it may take.
    """
    held = sum(int(resource.pool_size()) for resource in resources if hasattr(resource, "pool_size"))
    used = next((count for count in map(_used_bytes, resources) if count is not None), 0)
    free = of_driver + max(0, held - used)
    limits = [
        int(resource.get_allocation_limit()) - int(resource.get_allocated_bytes())
        for resource in resources if hasattr(resource, "get_allocation_limit")
    ]  # fmt: skip
    return max(0, min([free, *limits]))


def _used_bytes(resource: DeviceMemoryResource) -> int | None:
    """What a resource has given away, if it counts."""
    if hasattr(resource, "get_allocated_bytes"):  # one that limits or tracks
        return int(resource.get_allocated_bytes())
    counts = getattr(resource, "allocation_counts", None)
    return None if counts is None else int(counts.current_bytes)
