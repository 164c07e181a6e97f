"""Arrays on their way to a GPU through pinned buffers: copies that end only when somebody waits for them.

Without a GPU, arrays stand in whose copies are made when an event is waited for: a buffer that is filled again or given
back too soon then shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime import transfers
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.gpu.runtime.transfers import Uploader


class Stream:
    """Copies that are under way, of all threads."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.lock = threading.RLock()

    def run(self, n: int) -> None:
        with self.lock:
            for copy in self.waiting[:n]:
                copy()
            del self.waiting[:n]


class Event:
    """As `cupy.cuda.Event`: waiting for it is waiting for what the stream had when it was recorded."""

    stream: Stream | None = None

    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing

    def record(self, stream: Stream) -> None:
        with stream.lock:
            self.stream, self.after = stream, stream.waiting[-1] if stream.waiting else None

    def synchronize(self) -> None:
        if self.stream is None:
            return
        with self.stream.lock:
            if self.after in self.stream.waiting:
                self.stream.run(self.stream.waiting.index(self.after) + 1)


class Array:
    """As `cupy.ndarray`, as far as uploads go."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.flags, self.dtype, self.shape = host.flags, host.dtype, host.shape
        self.nbytes, self.ndim = host.nbytes, host.ndim

    @property
    def T(self) -> Array:
        return Array(self.host.T)

    def __getitem__(self, key: Any) -> Array:
        return Array(self.host[key])

    def __iter__(self) -> Iterator[Array]:
        return map(Array, self.host)

    def set(self, values: Any, stream: Stream) -> None:
        assert values.dtype == self.dtype and values.shape == self.shape and values.flags.c_contiguous
        assert self.flags.c_contiguous
        if values.base is None or values.nbytes <= transfers.UP_DIRECT_BYTES:  # what CUDA reads at once
            values = values.copy()
        with stream.lock:
            stream.waiting.append(lambda: np.copyto(self.host, values))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A runtime whose arrays are such, in pieces of 120 bytes."""
    monkeypatch.setattr(transfers, "UP_PIECE_BYTES", 120)
    monkeypatch.setattr(transfers, "UP_DIRECT_BYTES", 48)
    stream = Stream()
    made: list[Any] = []

    def allocate(n_bytes: int) -> Any:
        made.append(np.full(n_bytes, 0xAA, np.uint8))
        return made[-1]

    module = SimpleNamespace(
        empty=lambda shape, dtype, order="C": Array(np.empty(shape, dtype, order)),
        cuda=SimpleNamespace(
            Event=Event, alloc_pinned_memory=allocate, get_current_stream=lambda: stream,
            Device=lambda _: nullcontext(),
        ),
    )  # fmt: skip
    return SimpleNamespace(xp=module, device=0, stream=stream, pinned=made)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 3), (97, 3), (3, 97), (400,), (1,)])
def test_pieces(shape: tuple[int, ...], dtype: str, threads: int, device: Any, rng: np.random.Generator) -> None:
    whole = (100 * rng.standard_normal([3 * n for n in shape])).astype(dtype)
    part, spaced = (whole[tuple(slice(0, step * n, step) for n in shape)] for step in (1, 3))
    for values in (np.ascontiguousarray(part), np.asfortranarray(part), spaced):
        with Uploader(device, threads) as uploader:
            made: Any = uploader.array(values)
        for buffer in device.pinned:
            buffer[:] = 0x55  # somebody else's now
        device.stream.run(len(device.stream.waiting))
        np.testing.assert_array_equal(made.host, values)
        assert len(device.pinned) <= 2 * threads
        device.pinned.clear()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 9), (12, 1), (15, 4), (16, 7), (100, 3)])
def test_columns(shape: tuple[int, int], threads: int, device: Any, rng: np.random.Generator) -> None:
    """Several to a buffer, or one to several buffers; also of a part of a matrix's rows, where they do not adjoin."""
    values = rng.standard_normal((2 * shape[0], shape[1])).astype(np.float32)
    vectors = [np.ascontiguousarray(values[::2, 0]), *values[::2, 1:].T]
    for rows in (slice(None), slice(2, None)):
        with Uploader(device, threads) as uploader:
            whole: Any = uploader.empty((shape[0] + (rows.start or 0), shape[1]), "F")
            uploader.columns(vectors, whole[rows])
        for buffer in device.pinned:
            buffer[:] = 0x55  # somebody else's now
        device.stream.run(len(device.stream.waiting))
        np.testing.assert_array_equal(whole.host[rows], values[::2])
        assert len(device.pinned) <= 2 * threads
        device.pinned.clear()


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [1, 4])
def test_large_arrays(threads: int, rng: np.random.Generator) -> None:
    runtime = get_runtime()
    values = rng.standard_normal((3_000_000, 5)).astype(np.float32)
    with Uploader(runtime, threads) as uploader:
        for given in (values, np.asfortranarray(values), values[::3, ::2], values[:, 0], values.T):
            np.testing.assert_array_equal(to_host(uploader.array(given)), given)
        for dtype in ("float64", "float16", "int32"):
            with np.errstate(over="ignore", invalid="ignore"):
                given = (values * 1000).astype(dtype)
            np.testing.assert_array_equal(to_host(uploader.numbers(given)), given.astype(np.float32))
            columns = [given[:, 1], given[:, 4], values[:, 0], given[:, 1]]
            out = uploader.empty((len(given), 4), "F")
            uploader.columns(columns, out)
            np.testing.assert_array_equal(to_host(out), np.stack(columns, axis=1).astype(np.float32))
