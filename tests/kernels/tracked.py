"""Counts the bytes of device arrays: an emulated device whose arrays know when they come and go.

Arrays of its module are of a class of their own, which expressions and views keep, so that temporary results count as
they would on a GPU; whatever is copied to the host is NumPy's plain array again and does not.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from kernels.emulation import EmulatedRuntime
from kernels.pool import Piece, Pool

from daskboost.devices.gpu.runtime.kernel_source import LEAST_SM


class Meter:
    """Bytes of arrays that are alive, and the most there ever were."""

    def __init__(self) -> None:
        self.bytes = self.peak_bytes = 0

    def add(self, n_bytes: int) -> None:
        self.bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def restart(self) -> None:
        """What is alive already counts no more."""
        self.bytes = self.peak_bytes = 0


class PoolMeter(Meter):
    """And what CuPy's pool would take for them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    def count(self, array: np.ndarray[Any, Any]) -> None:
        """For as long as it lives."""
        n_bytes, piece = array.nbytes, self.pool.take(array.nbytes)
        self.add(n_bytes)
        weakref.finalize(array, self._uncount, self.pool, n_bytes, piece)

    def _uncount(self, pool: Pool, n_bytes: int, piece: Piece) -> None:
        pool.give(piece)
        if pool is self.pool:
            self.add(-n_bytes)

    def restart(self) -> None:
        super().restart()
        self.pool = Pool()


class DeviceLike(np.ndarray[Any, Any]):
    """A NumPy array that a meter counts for as long as it lives, unless it is a view."""

    meter: PoolMeter | None = None
    """Of the runtime that is in use; tests have one at a time. None where nothing is allocated."""
    kept: list[Any] | None = None
    """Gains all arrays that are made while a graph is recorded."""

    def __array_finalize__(self, source: Any) -> None:
        meter = DeviceLike.meter
        if meter is not None and self.base is None and self.nbytes:
            meter.count(self)
            if DeviceLike.kept is not None:
                DeviceLike.kept.append(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Results of operators own their memory, as CuPy's do; NumPy's of a subclass are views, and would not count."""
        if out is not None:
            options["out"] = tuple(_plain(each) for each in out)
        result = getattr(ufunc, method)(*(_plain(each) for each in inputs), **options)
        if out is not None:
            return out[0] if len(out) == 1 else out
        return tuple(_on_device(each) for each in result) if isinstance(result, tuple) else _on_device(result)

    def sort(self, *arguments: Any, **options: Any) -> None:
        """With the piece that Thrust's radix sort takes: another array, and counts by tile."""
        if DeviceLike.meter is not None:
            DeviceLike(self.nbytes + self.nbytes // 20 + 20_000, np.uint8)
        super().sort(*arguments, **options)


class Module:
    """NumPy, all of whose results are counted; as CuPy, it has a word for copies to the host."""

    @staticmethod
    def asnumpy(array: Any) -> Any:
        return np.array(array)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return found if isinstance(found, type) or not callable(found) else _counted(found)


@functools.cache
def _counted(function: Any) -> Any:
    """The function; arrays that it makes in the host's memory are copied to the device's, as an upload is."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return _on_device(function(*arguments, **options))

    return call


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, DeviceLike) else array


def _on_device(result: Any) -> Any:
    if not isinstance(result, np.ndarray) or isinstance(result, DeviceLike):
        return result
    if isinstance(result.base, DeviceLike):
        return result.view(DeviceLike)
    copy = DeviceLike(result.shape, result.dtype)
    copy[...] = result
    return copy


class TrackedRuntime(EmulatedRuntime):
    """An emulated device with a meter."""

    def __init__(self, free_bytes: int = 1 << 30, sm: int = LEAST_SM) -> None:
        super().__init__(sm=sm)
        self.xp: Any = Module()
        self.free_bytes = free_bytes
        self.meter = DeviceLike.meter = PoolMeter()
        self.recorded: list[Callable[[], None]] = []
        """What a CUDA graph has no need of: launches that are replayed, and with them all that they refer to."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph keeps the arrays that were made while it was recorded, and replays make none."""
        self.recorded.append(work)
        return partial(self._replay, len(self.recorded) - 1, [])

    def _replay(self, place: int, kept: list[Any]) -> None:
        try:
            if kept:
                DeviceLike.meter = None
            else:
                DeviceLike.kept = kept
            self.recorded[place]()
        finally:
            DeviceLike.meter, DeviceLike.kept = self.meter, None
