"""Page-locked memory of a CUDA host, by a driver that only notes what it is told."""

from __future__ import annotations

import gc
import mmap
import os

import pytest

from daskboost.devices.gpu.runtime import cuda as cuda_copies
from daskboost.devices.gpu.runtime.cuda import pinned_bytes
from daskboost.errors import DeviceError


class Driver:
    """What CuPy's runtime module has of page-locking."""

    class CUDARuntimeError(RuntimeError): ...

    def __init__(self, most: int = 1 << 30) -> None:
        self.locked: dict[int, int] = {}
        self.most = most

    def hostRegister(self, address: int, n_bytes: int, flags: int) -> None:
        if n_bytes > self.most:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation")
        assert (address % mmap.PAGESIZE, n_bytes % mmap.PAGESIZE, flags) == (0, 0, 1)
        self.locked[address] = n_bytes

    def hostUnregister(self, address: int) -> None:
        del self.locked[address]


@pytest.mark.parametrize("n_bytes", [1, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 7])
def test_pages_are_locked_as_long_as_an_array_needs_them(n_bytes: int) -> None:
    driver = Driver()
    memory = pinned_bytes(driver, n_bytes)
    other = pinned_bytes(driver, n_bytes)
    assert len(driver.locked) == 2
    memory[:] = 7
    part = memory[-1:]
    address = memory.ctypes.data
    del memory, other
    assert driver.locked == {address: -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE}
    part += 1
    assert part.tolist() == [8]
    del part
    gc.collect()
    assert driver.locked == {}


def test_a_host_that_refuses() -> None:
    driver = Driver(most=mmap.PAGESIZE)
    with pytest.raises(DeviceError, match=r"does not page-lock 8,192 bytes more.*ulimit -l"):
        pinned_bytes(driver, mmap.PAGESIZE + 1)
    assert driver.locked == {}


def test_a_fork_leaves_what_it_does_not_have_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the driver there told, nor what lies at the address by then unmapped."""
    driver, mine = Driver(), os.getpid()
    memory = pinned_bytes(driver, 5)
    monkeypatch.setattr(cuda_copies, "_of_parent", [])
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    del memory
    gc.collect()
    assert len(driver.locked) == 1
    assert [len(pages) for pages in cuda_copies._of_parent] == [mmap.PAGESIZE]
