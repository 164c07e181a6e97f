"""Numbers on their way from the host's memory to a GPU, where they become float32.

An array goes through two pinned buffers, piece by piece: threads fill one of them while the bus empties the other.
Copies from ordinary memory would leave that to one thread of the driver, a fifth of what the bus takes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.quantize.bins import TYPES, as_float32, convert, order_of
from daskboost.devices.gpu.runtime.cuda import staging
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, cuda_of, overwrite

PIECE_BYTES = 1 << 24
"""Bytes of a pinned buffer: .3 ms of the bus, so that what a piece costs beside its copies does not count."""
DIRECT_BYTES = 1 << 18
"""Smaller arrays are left to the driver, which copies them at once."""
MOST_THREADS = 8
"""Threads that fill a buffer: as many as a host's memory has use for."""


class Uploader:
    """Copies arrays to one device, in the order of its current stream; a context manager.

    Parameters
    ----------
    runtime : Runtime
    threads : int
        That may fill buffers.
    """

    def __init__(self, runtime: Runtime, threads: int = 1) -> None:
        self._runtime, self._threads = runtime, min(max(threads, 1), MOST_THREADS)
        self._pool: ThreadPoolExecutor | None = None
        self._buffers: list[_Buffer] = []

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._buffers:
            buffer.wait()  # its memory goes back to CuPy's pool, which does not know of copies under way
        if self._pool is not None:
            self._pool.shutdown()

    def numbers(self, values: npt.NDArray[Any]) -> DeviceArray:
        """A vector or matrix of numbers of any type as float32 on the device, in the order of axes that it has."""
        return as_float32(self._runtime, self.array(_known(values)))

    def column(self, values: npt.NDArray[Any], out: DeviceArray) -> None:
        """Write a vector of numbers of any type into a contiguous vector of float32 on the device."""
        values = _known(values)
        if values.dtype == np.float32:
            self._copy(out, values)
        else:
            convert(self._runtime, self.array(values), out)

    def array(self, values: npt.NDArray[Any]) -> DeviceArray:
        """A copy on the device, of the same type, contiguous in the order of axes that the array has."""
        made = self._runtime.xp.empty(values.shape, values.dtype, order=order_of(values))
        self._copy(made, values)
        return made

    def _copy(self, target: DeviceArray, values: npt.NDArray[Any]) -> None:
        """Into a contiguous array of the same shape and type."""
        if not target.flags.c_contiguous:
            target, values = target.T, values.T
        if isinstance(target, np.ndarray) or values.nbytes <= DIRECT_BYTES:
            overwrite(self._runtime, target, values)
            return
        row_bytes = values.nbytes // len(values)
        if row_bytes > PIECE_BYTES:
            for i in range(len(values)):
                self._copy(target[i], values[i])
            return
        step = PIECE_BYTES // row_bytes
        for start in range(0, len(values), step):
            part = values[start : start + step]
            buffer = self._next_buffer()
            staged = buffer.room(part)
            self._fill(staged, part)
            buffer.send(target[start : start + step], staged)

    def _next_buffer(self) -> _Buffer:
        """The one that was sent first."""
        if len(self._buffers) < 2:
            self._buffers.append(_Buffer(cuda_of(self._runtime)))
        else:
            self._buffers.reverse()
        return self._buffers[-1]

    def _fill(self, staged: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        if self._threads == 1:
            np.copyto(staged, values)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        step = -(-len(values) // self._threads)
        jobs = [
            self._pool.submit(np.copyto, staged[start : start + step], values[start : start + step])
            for start in range(0, len(values), step)
        ]
        for job in wait(jobs).done:
            job.result()


class _Buffer:
    """Pinned memory, and when the device has it."""

    def __init__(self, cuda: ModuleType) -> None:
        self._cuda = cuda
        self._bytes = staging(cuda, PIECE_BYTES)
        self._sent = cuda.Event(disable_timing=True)

    def room(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of that shape and type, once what was in its place is on the device."""
        self.wait()
        return self._bytes[: values.nbytes].view(values.dtype).reshape(values.shape)

    def send(self, target: DeviceArray, staged: npt.NDArray[Any]) -> None:
        stream = self._cuda.get_current_stream()
        on_device: Any = target  # CuPy's alone has `set`
        on_device.set(staged, stream=stream)
        self._sent.record(stream)

    def wait(self) -> None:
        self._sent.synchronize()  # an event that was never recorded has happened


def _known(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same, or, of a type that no kernel knows (other byte orders, 80 bits), as float32."""
    if str(values.dtype) in TYPES:
        return values
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32)
