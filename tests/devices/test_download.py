"""Arrays on their way from a GPU through page-locked pieces: copies that end only when somebody waits for them.

Without a GPU, arrays stand in whose copies are made when an event is waited for: a piece that is read, filled again or
given back too soon then shows.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime import transfers as module
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.runtime.transfers import Download, download
from daskboost.errors import DeviceError

PIECE_BYTES, PIECES = 120, 3


class Stream:
    """Copies that are under way, of all threads."""

    streams: dict[int, Stream]

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking, "kernels of the default stream would come first"
        self.waiting: list[Callable[[], Any]] = []
        self.lock, self.after = threading.Lock(), None
        self.ptr = id(self)
        Stream.streams[self.ptr] = self

    def wait_event(self, event: Any) -> None:
        self.after = event


class Event:
    """As `cupy.cuda.Event`: waiting for it is waiting for what the stream had when it was recorded."""

    stream: Stream | None = None

    def __init__(self, block: bool, disable_timing: bool) -> None:
        assert block and disable_timing

    def record(self, stream: Stream) -> None:
        with stream.lock:
            self.stream, self.last = stream, stream.waiting[-1] if stream.waiting else None

    def synchronize(self) -> None:
        if self.stream is None or self.last is None:
            return
        with self.stream.lock:
            while self.last in self.stream.waiting:
                self.stream.waiting.pop(0)()


class FakeArray:
    """As `cupy.ndarray`, as far as downloads go."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.shape, self.dtype = host.shape, host.dtype
        self.data = SimpleNamespace(ptr=host.ctypes.data)

    def get(self, out: Any) -> None:
        assert out.nbytes < module.DOWN_DIRECT_BYTES
        np.copyto(out, self.host)


def device_array(host: Any) -> Any:
    """The stand-in, which type checkers take for anything."""
    return FakeArray(host)


class Driver:
    """What downloads use of a runtime and of CuPy; page-locked memory is overwritten once it is given back."""

    device = 0

    def __init__(self) -> None:
        self.live = self.most = self.copies = 0
        self.fails_at: int | None = None
        self.refuses = False
        self._lock = threading.RLock()
        cuda = SimpleNamespace(
            Stream=Stream, Event=Event, Device=lambda _: nullcontext(), alloc_pinned_memory=self._allocate,
            runtime=SimpleNamespace(memcpyAsync=self._copy, CUDARuntimeError=MemoryError),
        )  # fmt: skip
        self.xp = SimpleNamespace(
            cuda=cuda, ascontiguousarray=lambda array: device_array(np.ascontiguousarray(array.host))
        )

    def record_event(self) -> str:
        return "what came before"

    def _allocate(self, n_bytes: int) -> Any:
        assert n_bytes == PIECE_BYTES
        if self.refuses:
            raise MemoryError("cudaErrorMemoryAllocation: out of memory")
        memory = np.full(n_bytes, 0xAA, np.uint8)
        lent = (ctypes.c_uint8 * n_bytes).from_buffer(memory.data)  # arrays on a view would not hold it
        weakref.finalize(lent, self._take_back, memory)
        with self._lock:
            self.live += 1
            self.most = max(self.most, self.live)
        return lent

    def _take_back(self, memory: Any) -> None:
        memory[:] = 0x55  # somebody else's now
        with self._lock:
            self.live -= 1

    def _copy(self, target: int, source: int, n_bytes: int, kind: int, stream: int) -> None:
        assert kind == 2 and 0 < n_bytes <= PIECE_BYTES
        with self._lock:
            self.copies += 1
            if self.copies == self.fails_at:
                raise RuntimeError("cudaErrorIllegalAddress")
        to = Stream.streams[stream]
        assert to.after == "what came before"
        with to.lock:
            to.waiting.append(partial(ctypes.memmove, target, source, n_bytes))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """In pieces of 120 bytes, of which there are three."""
    monkeypatch.setattr(module, "DOWN_PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(module, "DOWN_DIRECT_BYTES", 48)
    monkeypatch.setattr(module, "DOWN_PIECES", PIECES)
    monkeypatch.setattr(module, "_FREE", threading.BoundedSemaphore(PIECES))
    monkeypatch.setattr(Stream, "streams", {}, raising=False)
    return Driver()


@pytest.mark.parametrize("threads", [1, 2, 20])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "uint16"])
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (120,), (121,), (97, 3), (3, 997)])
def test_bytes_are_the_same(
    shape: tuple[int, ...], dtype: str, threads: int, driver: Any, rng: np.random.Generator
) -> None:
    values = rng.integers(0, 250, shape).astype(dtype)
    found = download(driver, device_array(values), threads)
    assert found.dtype == values.dtype and found.flags.c_contiguous
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(download(driver, device_array(values.T), threads), values.T)
    gc.collect()
    assert driver.live == 0 and driver.most <= min(threads, PIECES)
    assert driver.most == 0 or values.nbytes >= 48


def test_several_arrays_share_threads(driver: Any, rng: np.random.Generator) -> None:
    arrays = [rng.integers(0, 250, n).astype(dtype) for n, dtype in ((0, "u1"), (301, "u4"), (301, "i8"), (1, "f4"))]
    room = np.full(1000, 7, np.uint32)  # of one, a part of what a caller has
    rooms: list[Any] = [np.empty(0, np.uint8), room[100:401], np.empty(301, np.int64), np.empty(1, np.float32)]
    with Download(driver, [(device_array(own), out) for own, out in zip(arrays, rooms, strict=True)], 3) as whole:
        pass
    whole.wait()  # again: there is nothing left to do
    for own, out in zip(arrays, rooms, strict=True):
        np.testing.assert_array_equal(out, own)
    assert (room[:100] == 7).all() and (room[401:] == 7).all()
    assert 1 <= driver.most <= PIECES


def test_few_pieces_for_many_callers(driver: Any, rng: np.random.Generator) -> None:
    arrays = [rng.integers(0, 2**31, int(n)) for n in rng.integers(1, 3000, 24)]
    with ThreadPoolExecutor(6) as callers:
        found = list(callers.map(lambda values: download(driver, device_array(values), 4), arrays))
    for own, values in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(own, values)
    gc.collect()
    assert driver.live == 0 and driver.most <= PIECES


def test_what_fails_is_told_once_all_have_ended(driver: Any) -> None:
    driver.fails_at = 5
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        download(driver, device_array(np.zeros(5000, np.uint8)), 3)
    gc.collect()
    assert driver.live == 0
    assert driver.copies > 2 * 14, "the other threads' pieces came"
    driver.fails_at = None
    values = np.arange(5000)
    np.testing.assert_array_equal(download(driver, device_array(values), 3), values)


def test_a_host_without_page_locked_memory_is_named(driver: Any) -> None:
    driver.refuses = True
    with pytest.raises(DeviceError, match=r"page-lock 120 bytes.*cudaErrorMemoryAllocation.*ulimit -l"):
        download(driver, device_array(np.zeros(5000, np.uint8)), 3)
    driver.refuses = False
    np.testing.assert_array_equal(download(driver, device_array(np.arange(5000)), 3), np.arange(5000))


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [1, 8])
def test_large_arrays(threads: int, rng: np.random.Generator) -> None:
    runtime = get_runtime()
    values = rng.standard_normal((3_000_001, 3)).astype(np.float32)
    there = runtime.xp.asarray(values)
    for given, expected in ((there, values), (there[::2], values[::2]), (there.T, values.T), (there[:5], values[:5])):
        np.testing.assert_array_equal(download(runtime, given, threads), expected)
    for _ in range(3):  # beside kernels that come later, of what came before
        doubled = there * 2
        out = np.empty_like(values)
        with Download(runtime, [(doubled, out)], threads):
            there.sum()
        np.testing.assert_array_equal(out, values * 2)
