"""Copies to a CUDA device beside its kernels, and the page-locked memory that they are made from.

Memory that is touched by several threads and then registered took .09 s/GiB, CUDA's own allocation of such memory .28
(one H200's host): so pages are mapped, touched and registered. Each array has pages of its own, since a page can be
registered once only, and forks do not inherit them: their writes would part the host's pages from the device's. What
else a fork may have mapped at such an address is left alone there.
"""

from __future__ import annotations

import mmap
import os
import weakref
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, Event
from daskboost.dtypes import UInt8
from daskboost.errors import DeviceError

HOST_TO_DEVICE = 1
"""`cudaMemcpyHostToDevice`."""
PORTABLE = 1
"""`cudaHostRegisterPortable`: for all devices of the process."""
_of_parent: list[mmap.mmap] = []
"""Pages of a fork that only its parent has, never unmapped."""


def address_of(array: DeviceArray) -> int:
    """Return where in its device's memory a CuPy array begins."""
    memory: Any = array.data  # CuPy's, which has an address
    return int(memory.ptr)


class CudaCopies:
    """A `CopyStream` of CuPy's current device."""

    def __init__(self, cuda: ModuleType) -> None:
        self._cuda = cuda
        self._stream = cuda.Stream(non_blocking=True)

    def copy(self, out: DeviceArray, values: UInt8) -> None:
        self._cuda.runtime.memcpyAsync(
            address_of(out), values.ctypes.data, values.nbytes, HOST_TO_DEVICE, self._stream.ptr
        )

    def wait(self, event: Event) -> None:
        self._stream.wait_event(event)

    def record(self) -> Event:
        event: Event = self._cuda.Event(block=True, disable_timing=True)
        self._stream.record(event)
        return event

    def synchronize(self) -> None:
        self._stream.synchronize()


class Driver(Protocol):
    """CuPy's functions of CUDA that lock pages of the host's memory."""

    @property
    def CUDARuntimeError(self) -> type[Exception]: ...
    def hostRegister(self, address: int, n_bytes: int, flags: int, /) -> None: ...

    def hostUnregister(self, address: int, /) -> None: ...


class _Locked:
    """Registered pages; arrays over them keep this object."""

    def __init__(self, runtime: Driver, n_bytes: int) -> None:
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_DONTFORK)
        touched = np.frombuffer(pages, np.uint8)
        touched[:: mmap.PAGESIZE] = 0
        address = touched.ctypes.data
        try:
            runtime.hostRegister(address, n_bytes, PORTABLE)
        except runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"the host does not page-lock {n_bytes:,} bytes more, to stream chunks to the GPU from ({error}): "
                "raise the limit of locked memory (ulimit -l), or set a lower host_memory_limit with a spill_directory"
            ) from error
        # The finalizer keeps the pages mapped until the driver has let go of them.
        weakref.finalize(self, _unlock, runtime, address, pages, os.getpid()).atexit = False
        self.__array_interface__ = {"data": (address, False), "shape": (n_bytes,), "typestr": "|u1", "version": 3}


def _unlock(runtime: Driver, address: int, pages: mmap.mmap, owner: int) -> None:
    if os.getpid() == owner:
        runtime.hostUnregister(address)
    else:
        _of_parent.append(pages)


def staging(cuda: ModuleType, n_bytes: int) -> UInt8:
    """Page-locked memory for an array's pieces; `cuda` is CuPy's, whose pool has it back when nobody holds the array.

    Raises
    ------
    DeviceError
        The host has none.
    """
    try:
        memory = cuda.alloc_pinned_memory(n_bytes)
    except cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"the host does not page-lock {n_bytes:,} bytes, to copy arrays to and from the GPU through ({error}): "
            "raise the limit of locked memory (ulimit -l), or end what else holds the host's memory"
        ) from error
    return np.ndarray(n_bytes, np.uint8, buffer=memory)


def pinned_bytes(runtime: Driver, n_bytes: int) -> UInt8:
    """See `Runtime.pinned`; `runtime` is CuPy's."""
    n_pages = -(-max(n_bytes, 1) // mmap.PAGESIZE)
    found: UInt8 = np.asarray(_Locked(runtime, n_pages * mmap.PAGESIZE))[:n_bytes]
    return found
