"""An emulated device whose memory is apart from the host's: whatever the host reads, waits for or launches is noted.

Its arrays are no arrays of NumPy: as CuPy's, they are copied by `get`, read by `int`, `bool`, `item` and the like, and
refuse to become NumPy's unasked. So nothing reaches what is in them but by a way that is noted here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from kernels.emulation import EmulatedRuntime
from kernels.late_copies import LateCopies, Launched
from numpy.lib.mixins import NDArrayOperatorsMixin

from daskboost.devices.gpu.runtime.kernel_source import KernelFile, Variant

READ, UPLOAD, LAUNCH, RECORD, REPLAY = "read", "upload", "launch", "record", "replay"
"""What is noted; a read is anything for which the host waits."""
METADATA = frozenset({"dtype", "shape", "ndim", "size", "nbytes", "itemsize", "strides", "flags"})
"""Of arrays, known to the host."""
VIEWS = frozenset({"view", "reshape", "ravel", "transpose", "T", "swapaxes", "squeeze"})
"""Of the same memory, made without the device."""
READS = frozenset({"item", "tolist", "tobytes", "dump", "dumps", "tofile"})
ALLOCATIONS = frozenset({"empty", "empty_like"})


@dataclass(frozen=True)
class Note:
    """Something that the host did."""

    kind: str
    what: str
    """Name of a kernel or of an array's operation; for reads also the line of the package that asked."""
    recorded: bool
    """Whether it was part of recorded work; the host does it no more when that is replayed, if it may be recorded."""


class Notes(list[Note]):
    """In the order in which things were done."""

    def __init__(self) -> None:
        super().__init__()
        self.in_graph = False

    def add(self, kind: str, what: str) -> None:
        self.append(Note(kind, f"{what} at {_asker()}" if kind == READ else what, self.in_graph))


def _asker() -> str:
    """The innermost line that is not of this file, nor of `to_host` and its like, which have many askers."""
    frame = sys._getframe(2)
    passed_on = ("apart.py", "launches.py", "transfers.py")
    while frame.f_back is not None and Path(frame.f_code.co_filename).name in passed_on:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Apart(NDArrayOperatorsMixin):
    """An array of the device; `own` : what it is in the emulation."""

    def __init__(self, own: np.ndarray[Any, Any], notes: Notes) -> None:
        self._own, self._notes = own, notes

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> Any:
        self._notes.add(READ, "get")
        if out is None:
            return np.array(self._own)
        out[...] = self._own
        return out

    def set(self, values: np.ndarray[Any, Any], stream: Any = None) -> None:
        assert values.shape == self._own.shape
        assert values.dtype == self._own.dtype
        self._notes.add(UPLOAD, "set")
        self._own[...] = values

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self._own.ctypes.data)

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Apart]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Apart:
        """A single element too is an array, which the host has not read."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(each, (Apart, np.ndarray, list)) for each in keys):
            self._notes.add(LAUNCH, "getitem")
        return Apart(self._own[_host(keys) if Ellipsis in map(_plain, keys) else (*_host(keys), ...)], self._notes)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._notes.add(LAUNCH, "setitem")
        self._own[_host(key)] = _host(value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self._notes.add(LAUNCH, ufunc.__name__)
        result = getattr(ufunc, method)(*_host(inputs), **_host(options))
        return options["out"][0] if "out" in options else _device(result, self._notes)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        self._notes.add(LAUNCH, function.__name__)
        return _device(function(*_host(arguments), **_host(options)), self._notes)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")  # as CuPy does

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # such as other libraries' protocols
        found = getattr(self._own, name)
        if name in METADATA:
            return found
        if not callable(found):
            return Apart(found, self._notes)

        def call(*arguments: Any, **options: Any) -> Any:
            if name not in VIEWS:
                self._notes.add(READ if name in READS else LAUNCH, name)
            result = found(*_host(arguments), **_host(options))
            return result if name in READS else _device(result, self._notes)

        return call

    def _read(self, name: str) -> Any:
        self._notes.add(READ, name)
        return self._own.item()

    def __int__(self) -> int:
        return int(self._read("int"))

    def __index__(self) -> int:
        return int(self._read("index"))

    def __float__(self) -> float:
        return float(self._read("float"))

    def __bool__(self) -> bool:
        return bool(self._read("bool"))

    def __repr__(self) -> str:
        self._notes.add(READ, "repr")
        return repr(self._own)


def _plain(key: Any) -> Any:
    """What may be compared."""
    return None if isinstance(key, (Apart, np.ndarray, list)) else key


def _host(value: Any) -> Any:
    """What arguments are in the emulation."""
    if isinstance(value, Apart):
        return value._own
    if isinstance(value, (tuple, list)):
        return type(value)(_host(each) for each in value)
    if isinstance(value, dict):
        return {name: _host(each) for name, each in value.items()}
    return value


def _device(value: Any, notes: Notes) -> Any:
    """Results as arrays of the device, single numbers too."""
    if isinstance(value, (np.ndarray, np.generic)):
        return Apart(np.asarray(value), notes)
    return type(value)(_device(each, notes) for each in value) if isinstance(value, (tuple, list)) else value


class Module:
    """NumPy over such arrays."""

    ndarray = Apart

    def __init__(self, notes: Notes) -> None:
        self._notes, self.cuda = notes, _Cuda(notes)

    def asnumpy(self, array: Any) -> Any:
        return array.get() if isinstance(array, Apart) else np.asarray(array)

    def asarray(self, array: Any, *arguments: Any, **options: Any) -> Apart:
        if isinstance(array, Apart) and not (arguments or options):
            return array
        self._notes.add(LAUNCH if isinstance(array, Apart) else UPLOAD, "asarray")
        return Apart(np.array(_host(array), *arguments, **options), self._notes)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if name not in ALLOCATIONS:
                self._notes.add(LAUNCH, name)
            return _device(found(*_host(arguments), **_host(options)), self._notes)

        return call


class _Cuda:
    """What code on CuPy may use in rounds; anything else is missing."""

    def __init__(self, notes: Notes) -> None:
        def wait() -> None:
            notes.add(READ, "synchronize")

        self._device = _Device(wait)
        self._stream = SimpleNamespace(synchronize=wait)
        self.Stream = SimpleNamespace(null=self._stream)

    def get_current_stream(self) -> Any:
        return self._stream

    def Device(self, device: int = 0) -> _Device:
        return self._device


class _Device(nullcontext[None]):
    """The current one, within it or not."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self.synchronize = synchronize


@dataclass(frozen=True)
class _Moment(Launched):
    """For which the host may wait."""

    notes: Notes

    def synchronize(self) -> None:
        self.notes.add(READ, "synchronize")


class _Copies(LateCopies):
    """To arrays of the device."""

    notes: Notes

    def copy(self, out: Any, values: Any) -> None:
        super().copy(_host(out), values)

    def synchronize(self) -> None:
        self.notes.add(READ, "synchronize")
        super().synchronize()


class ApartRuntime(EmulatedRuntime):
    """An emulated device that notes what the host has to do with it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.notes = Notes()
        self.xp: Any = Module(self.notes)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.notes.add(RECORD, "")

        def replay() -> None:
            self.notes.add(REPLAY, "")
            self.notes.in_graph = True
            try:
                work()
            finally:
                self.notes.in_graph = False

        return replay

    def copy_stream(self) -> LateCopies:
        made = super().copy_stream()
        copies = _Copies(made._launches)
        copies.notes = self.notes
        return copies

    def record_event(self) -> Launched:
        return _Moment(super().record_event().count, self.notes)

    def wait_event(self, event: Any) -> None:
        """The stream does, not the host."""
        if not isinstance(event, Launched):
            super().wait_event(event)

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> Any:
        kernel = super().kernel_of(source, entry, variant)

        def launch(grid: int, block: int, *arguments: Any, shared_bytes: int = 0) -> None:
            assert not any(isinstance(each, np.ndarray) for each in arguments), "the kernel is given the host's memory"
            self.notes.add(LAUNCH, entry)
            kernel(grid, block, *_host(arguments), shared_bytes=shared_bytes)

        return launch
