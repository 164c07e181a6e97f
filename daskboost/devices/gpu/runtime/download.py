"""Arrays on their way from a GPU to the host's memory: through page-locked pieces, by several threads.

A driver's copy into ordinary memory is one thread's, which is the first to touch fresh pages besides: 51 MB took 16 ms
and 185 MB 52 (an H200's host), a fifteenth of what the bus carries. So threads share arrays: each lets a piece come
into page-locked memory of its own, and moves it from there while those of others come. That memory is CuPy's pool's,
which keeps it, since page-locking takes as long as the driver's copy; a process has at most `PIECES` of it for this,
however many threads ask.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.cuda import address_of, staging
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, cuda_of
from daskboost.dtypes import UInt8

if TYPE_CHECKING:
    from cupy.cuda import Stream

PIECE_BYTES = 1 << 20
"""Comes in 20 us where the bus carries 50 GB/s; the driver's one thread took 330 for as much."""
PIECES = 8
"""Threads that copy at the same time in a process, with a piece each: as many as a host's memory has use for."""
DIRECT_BYTES = 1 << 22
"""Less is left to the driver: threads take a while to start."""
DEVICE_TO_HOST = 2
"""`cudaMemcpyDeviceToHost`."""
_FREE = threading.BoundedSemaphore(PIECES)

Pair = tuple[DeviceArray, npt.NDArray[Any]]
"""C-contiguous arrays of the same shape and type: on the device, and on the host to be written."""
Piece = tuple[int, UInt8]
"""Address on the device, and bytes on the host."""


class Download:
    """Copies that begin at once, after what the current stream has been given so far, and beside what comes next.

    A context manager, whose end waits for them. Until then the arrays on the device must not be written, nor those on
    the host read. One `Download` is one thread's.

    Parameters
    ----------
    runtime : Runtime
    pairs : sequence of (array on the device, NumPy array)
    threads : int
        That may copy.
    """

    def __init__(self, runtime: Runtime, pairs: Sequence[Pair], threads: int = 1) -> None:
        self._runtime, self._kept = runtime, pairs
        self._pool: ThreadPoolExecutor | None = None
        emulated = all(isinstance(array, np.ndarray) for array, _ in pairs)
        if emulated or sum(out.nbytes for _, out in pairs) < DIRECT_BYTES:
            for array, out in pairs:
                _copy_directly(array, out)
            return
        pieces = [piece for pair in pairs for piece in _pieces(*pair)]
        self._stream = cuda_of(runtime).Stream(non_blocking=True)
        self._stream.wait_event(runtime.record_event())
        n = min(max(threads, 1), PIECES, len(pieces))
        self._pool = ThreadPoolExecutor(n)
        # Neighbouring pieces are one thread's: several would be given the same huge page.
        runs = [pieces[i * len(pieces) // n : (i + 1) * len(pieces) // n] for i in range(n)]
        self._jobs = [self._pool.submit(self._move, run) for run in runs]

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Until all arrays are on the host."""
        if self._pool is None:
            return
        self._pool.shutdown()  # of a job that fails, others use the arrays as well until they have ended
        self._pool, jobs = None, self._jobs
        for job in jobs:
            job.result()

    def _move(self, pieces: Sequence[Piece]) -> None:
        with _FREE, active(self._runtime):
            _move(cuda_of(self._runtime), self._stream, pieces)  # which has given its memory back when it returns


def _move(cuda: ModuleType, stream: Stream, pieces: Sequence[Piece]) -> None:
    """Pieces one after the other, through page-locked memory."""
    staged = staging(cuda, PIECE_BYTES)
    come = cuda.Event(block=True, disable_timing=True)
    try:
        for address, out in pieces:
            cuda.runtime.memcpyAsync(staged.ctypes.data, address, out.nbytes, DEVICE_TO_HOST, stream.ptr)
            come.record(stream)
            come.synchronize()
            np.copyto(out, staged[: out.nbytes])
    finally:
        come.synchronize()  # the memory goes back to a pool, which does not know of copies under way


def _copy_directly(array: DeviceArray, out: npt.NDArray[Any]) -> None:
    if isinstance(array, np.ndarray):
        np.copyto(out, array)
    else:
        array.get(out=out)


def _pieces(array: DeviceArray, out: npt.NDArray[Any]) -> list[Piece]:
    """Return the pieces of one array."""
    into, address = out.reshape(-1).view(np.uint8), address_of(array)
    return [(address + at, into[at : at + PIECE_BYTES]) for at in range(0, out.nbytes, PIECE_BYTES)]


def download(runtime: Runtime, array: DeviceArray, threads: int = 1) -> npt.NDArray[Any]:
    """Return what `to_host` does, for arrays that may be large; C-contiguous."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C")
    out: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
    with active(runtime), Download(runtime, [(runtime.xp.ascontiguousarray(array), out)], threads):
        return out
