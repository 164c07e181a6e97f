"""Arrays on their way between the host and a GPU: in page-locked pieces, which several threads fill or empty.

The driver's own copies are one thread's. Into a GPU that is a fifth of what the bus takes. Out of it the thread is the
first to touch fresh pages besides: 51 MB took 16 ms and 185 MB 52 (an H200's host), a fifteenth of what the bus
carries.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain, groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.quantize.bins import TYPES, as_float32, convert, order_of
from daskboost.devices.gpu.runtime.cuda import address_of, staging
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, cuda_of, overwrite
from daskboost.dtypes import UInt8

if TYPE_CHECKING:
    from cupy.cuda import Stream

# Up: numbers, which become float32 on the GPU.
#
# Each thread fills page-locked memory of its own with a piece, and goes on with another while the bus empties it. It is
# given all its pieces of an array at once: to hand one out takes a tenth of a millisecond.

UP_PIECE_BYTES = 1 << 22
"""Bytes of a piece: 80 us of the bus, so that what it costs beside its copies does not count."""
UP_DIRECT_BYTES = 1 << 18
"""Smaller arrays are left to the driver, which copies them at once."""
UP_THREADS = 8
"""Threads that copy: as many as a host's memory has use for."""
UP_BUFFERS = 2
"""Pieces of a thread: one is filled while the other is on its way."""

Values = npt.NDArray[Any] | Sequence[npt.NDArray[Any]]
"""A matrix or vector, or the vectors that are the rows of a matrix."""


class Uploader:
    """Copies arrays to one device, in the order of its current stream; a context manager.

    When a call returns, what it was given may be changed: it is on its way.
    """

    def __init__(self, runtime: Runtime, threads: int = 1) -> None:
        self.runtime, self._threads = runtime, min(max(threads, 1), UP_THREADS)
        self._pool: ThreadPoolExecutor | None = None
        self._buffers: list[list[_Staged]] = [[] for _ in range(self._threads)]
        """Page-locked memory of each thread."""

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for buffer in chain(*self._buffers):
            buffer.wait()  # its memory goes back to CuPy's pool, which does not know of copies under way

    def empty(self, shape: tuple[int, int], order: Literal["C", "F"]) -> DeviceArray:
        """A matrix of float32 on the device, for `columns`."""
        return self.runtime.xp.empty(shape, np.float32, order=order)

    def numbers(self, values: npt.NDArray[Any]) -> DeviceArray:
        """A vector or matrix of numbers of any type as float32 on the device, in the order of axes that it has."""
        return as_float32(self.runtime, self.array(_known(values)))

    def columns(self, vectors: Sequence[npt.NDArray[Any]], out: DeviceArray) -> None:
        """Write vectors of numbers of any types into the columns of a matrix of float32 on the device, each of them
        contiguous there. Neighbours of one type go together."""
        begin, pieces, others = 0, list[PieceUp](), list[tuple[DeviceArray, DeviceArray]]()
        for dtype, group in groupby(map(_known, vectors), lambda vector: vector.dtype):
            some = list(group)
            columns = out[:, begin : begin + len(some)].T
            begin += len(some)
            made = columns
            if dtype != np.float32:
                made = self.runtime.xp.empty(columns.shape, dtype)
                others.append((made, columns))
            pieces.extend(_pieces_up(made, some))
        self._copy(pieces)
        for made, columns in others:
            convert(self.runtime, made, columns)

    def array(self, values: npt.NDArray[Any]) -> DeviceArray:
        """A copy on the device, of the same type, contiguous in the order of axes that the array has."""
        made = self.runtime.xp.empty(values.shape, values.dtype, order=order_of(values))
        whole = (made, values) if made.flags.c_contiguous else (made.T, values.T)
        self._copy(list(_pieces_up(*whole)))
        return made

    def _copy(self, pieces: Sequence[PieceUp]) -> None:
        """Copy all pieces, in whatever order."""
        emulated = all(isinstance(target, np.ndarray) for target, _ in pieces)
        if emulated or sum(target.nbytes for target, _ in pieces) <= UP_DIRECT_BYTES:
            for part, given in pieces:
                overwrite(self.runtime, part, np.asarray(given))
            return
        n = min(self._threads, len(pieces))
        runs = [pieces[i * len(pieces) // n : (i + 1) * len(pieces) // n] for i in range(n)]
        stream = cuda_of(self.runtime).get_current_stream()
        if n == 1:
            self._send(runs[0], self._buffers[0], stream)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        jobs = [
            self._pool.submit(self._send, run, buffers, stream)
            for run, buffers in zip(runs, self._buffers, strict=False)
        ]
        for job in wait(jobs).done:
            job.result()

    def _send(self, pieces: Sequence[PieceUp], buffers: list[_Staged], stream: Stream) -> None:
        """Copy pieces one after the other, through a thread's page-locked memory, in the order of a stream."""
        with active(self.runtime):
            for target, values in pieces:
                if len(buffers) < UP_BUFFERS:
                    buffers.append(_Staged(cuda_of(self.runtime)))
                else:
                    buffers.append(buffers.pop(0))  # the one that was sent first
                buffers[-1].send(target, values, stream)


class _Staged:
    """Pinned memory, and when the device has it."""

    def __init__(self, cuda: ModuleType) -> None:
        self._bytes = staging(cuda, UP_PIECE_BYTES)
        self._sent = cuda.Event(disable_timing=True)

    def send(self, target: DeviceArray, values: Values, stream: Stream) -> None:
        """Begin to copy values into a contiguous array, once what was sent before is on the device."""
        self.wait()
        staged = self._bytes[: target.nbytes].view(target.dtype).reshape(target.shape)
        if isinstance(values, np.ndarray):
            np.copyto(staged, values)
        else:
            for row, vector in zip(staged, values, strict=True):
                np.copyto(row, vector)
        on_device: Any = target  # CuPy's alone has `set`
        on_device.set(staged, stream=stream)
        self._sent.record(stream)

    def wait(self) -> None:
        self._sent.synchronize()  # an event that was never recorded has happened


PieceUp = tuple[DeviceArray, Values]
"""A contiguous array on the device, and what it becomes a copy of."""


def _pieces_up(target: DeviceArray, values: Values) -> Iterator[PieceUp]:
    """Cut a contiguous vector, or a matrix of contiguous rows, into pieces: some of its rows, or parts of one."""
    if not len(values):
        return
    row_bytes = values[0].nbytes
    if 2 * row_bytes > UP_PIECE_BYTES or not target.flags.c_contiguous:
        for row, own in zip(target, values, strict=True):
            yield from _pieces_up(row, own)
        return
    step = max(1, UP_PIECE_BYTES // max(row_bytes, 1))
    for start in range(0, len(values), step):
        yield target[start : start + step], values[start : start + step]


def _known(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same, or, of a type that no kernel knows (other byte orders, 80 bits), as float32."""
    if str(values.dtype) in TYPES:
        return values
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32)


# Down: each thread lets a piece come into page-locked memory of its own, and moves it from there while those of others
# come.
#
# That memory is CuPy's pool's, which keeps it, since page-locking takes as long as the driver's copy; a process has at
# most `DOWN_PIECES` of it for this, however many threads ask.

DOWN_PIECE_BYTES = 1 << 20
"""Comes in 20 us where the bus carries 50 GB/s; the driver's one thread took 330 for as much."""
DOWN_PIECES = 8
"""Threads that copy at the same time in a process, with a piece each: as many as a host's memory has use for."""
DOWN_DIRECT_BYTES = 1 << 22
"""Less is left to the driver: threads take a while to start."""
DEVICE_TO_HOST = 2
"""`cudaMemcpyDeviceToHost`."""
_FREE = threading.BoundedSemaphore(DOWN_PIECES)

Pair = tuple[DeviceArray, npt.NDArray[Any]]
"""C-contiguous arrays of the same shape and type: on the device, and on the host to be written."""
Piece = tuple[int, UInt8]
"""Address on the device, and bytes on the host."""


class Download:
    """Copies that begin at once, after what the current stream has been given so far, and beside what comes next.

    A context manager, whose end waits for them. Until then the arrays on the device must not be written, nor those on
    the host read. One `Download` is one thread's.
    """

    def __init__(self, runtime: Runtime, pairs: Sequence[Pair], threads: int = 1) -> None:
        self._runtime, self._kept = runtime, pairs
        self._pool: ThreadPoolExecutor | None = None
        emulated = all(isinstance(array, np.ndarray) for array, _ in pairs)
        if emulated or sum(out.nbytes for _, out in pairs) < DOWN_DIRECT_BYTES:
            for array, out in pairs:
                _copy_directly(array, out)
            return
        pieces = [piece for pair in pairs for piece in _pieces(*pair)]
        self._stream = cuda_of(runtime).Stream(non_blocking=True)
        self._stream.wait_event(runtime.record_event())
        n = min(max(threads, 1), DOWN_PIECES, len(pieces))
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
    staged = staging(cuda, DOWN_PIECE_BYTES)
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
    return [(address + at, into[at : at + DOWN_PIECE_BYTES]) for at in range(0, out.nbytes, DOWN_PIECE_BYTES)]


def download(runtime: Runtime, array: DeviceArray, threads: int = 1) -> npt.NDArray[Any]:
    """Return what `to_host` does, for arrays that may be large; C-contiguous."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C")
    out: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
    with active(runtime), Download(runtime, [(runtime.xp.ascontiguousarray(array), out)], threads):
        return out
