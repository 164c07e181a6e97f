"""Packed chunks on their way to the device: a ring of buffers that a stream of copies fills and kernels empty, each for
a group of chunks (`devices/budget/set_size.py`), one behind the other.

    copies     1 -> a | 2 -> b | 3 -> c | 4 -> a ...... | 5 -> b | 6 -> c
    kernels             unpack a, use | unpack b, use   | unpack c, use | ...

A copy into a buffer waits on the device for the kernel that unpacks what was there, and unpacking for the copy; the
host waits for neither. While a group is used the next two are on their way, and so are the first of the next pass while
the last one's level is searched, since all passes over a set read its groups in the same order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from daskboost.devices.budget.set_size import places_in_group
from daskboost.devices.gpu.runtime.launches import CopyStream, DeviceArray, Event, Runtime
from daskboost.dtypes import UInt8

T = TypeVar("T")

N_BUFFERS = 3
"""One that is unpacked, and two that copies are under way to."""


@dataclass(frozen=True)
class PackedRows:
    """A chunk in page-locked memory."""

    n_rows: int
    n_entries: int
    """Of CSR rows."""
    memory: UInt8
    """The packed symbols, uint32 words, and of CSR rows the row pointers behind them, uint32."""


PackedGroup = Sequence[PackedRows]
"""Chunks that come together."""


def placed(group: PackedGroup) -> Iterator[tuple[PackedRows, slice]]:
    """Each of a group's chunks, and where its bytes lie in a buffer."""
    begins, _ = places_in_group([rows.memory.nbytes for rows in group])
    for rows, begin in zip(group, begins, strict=True):
        yield rows, slice(begin, begin + rows.memory.nbytes)


class PackedChunks(Protocol):
    """The streamed chunks of a set, in groups. These are numbered through all passes: `len(chunks)` is the first one
    again."""

    most_bytes: int
    """Bytes of a group."""

    def __len__(self) -> int: ...

    def is_ready(self, number: int) -> bool:
        """Whether `take` would not wait."""

    def take(self, number: int) -> PackedGroup:
        """The group of that number; each is taken once, in order."""

    def give_back(self, number: int, copied: Event) -> None:
        """Its memory is free after the event."""

    def restart(self) -> None:
        """The next one to be taken is 0."""

    def close(self) -> None:
        """Let go of its memory, from which copies are no longer made."""


@dataclass
class _Buffer:
    memory: DeviceArray
    """uint8."""
    unpacked: Event
    """When it may be filled again."""
    copied: Event | None = None
    group: PackedGroup | None = None


class Ring:
    """The buffers of an engine, which its sets take in turn; allocated by the first pass."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._copies = runtime.copy_stream()
        self._buffers: list[_Buffer] = []
        self._chunks: PackedChunks | None = None
        """What the buffers are filled with."""
        self._first: PackedChunks | None = None
        """The set of the first pass, with which they are filled between passes."""
        self._n_copied = self._n_used = 0
        self._pass = 0
        """Number of the last pass that has begun."""
        # Memory that copies are under way to may not be anybody else's, however the ring ends.
        self._drain = weakref.finalize(self, _drain, self._copies, self._buffers)
        self._drain.atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(int(buffer.memory.nbytes) for buffer in self._buffers)

    def passing(self, chunks: PackedChunks, use: Callable[[PackedGroup, DeviceArray], T]
                ) -> Generator[T, None, None]:  # fmt: skip
        """A pass over chunks: `use(group, memory)` of each group, which launches what reads it and does not wait.

        What is left early begins anew with the next pass.
        """
        self._first = chunks if self._first is None else self._first
        self._pass += 1
        own = self._pass
        self._turn_to(chunks)
        is_done = False
        try:
            for _ in range(len(chunks)):
                if self._pass != own:
                    raise RuntimeError("a pass over streamed chunks goes on where another one has begun")
                yield self._next(chunks, use)
            is_done = True
        finally:
            if not is_done and self._pass == own:  # else another pass has stopped this one
                self._stop()
        if self._pass == own and self._first is not chunks:
            self._turn_to(self._first)
            self._copy_ahead(self._first, must=-1)

    def close(self) -> None:
        """Wait for copies and free the buffers."""
        self._stop()
        self._first = None
        self._pass += 1
        self._free()

    def _next(self, chunks: PackedChunks, use: Callable[[PackedGroup, DeviceArray], T]) -> T:
        self._copy_ahead(chunks, must=self._n_used)
        buffer = self._buffers[self._n_used % N_BUFFERS]
        assert buffer.copied is not None and buffer.group is not None
        self._runtime.wait_event(buffer.copied)
        try:
            found = use(buffer.group, buffer.memory)
        finally:  # what fails has launched some of it
            buffer.unpacked, buffer.group = self._runtime.record_event(), None
        self._n_used += 1
        self._copy_ahead(chunks, must=-1)
        return found

    def _copy_ahead(self, chunks: PackedChunks, must: int) -> None:
        """Enqueue copies to all buffers that were unpacked, of groups that are there; that of number `must` is waited
        for. Of the next pass only those of the first set, which has the buffers then."""
        end = self._n_used + N_BUFFERS
        end = end if chunks is self._first else min(end, len(chunks))
        while self._n_copied < end:
            number = self._n_copied
            if number > must and not chunks.is_ready(number):
                return
            buffer, group = self._buffers[number % N_BUFFERS], chunks.take(number)
            self._copies.wait(buffer.unpacked)
            for rows, place in placed(group):
                self._copies.copy(buffer.memory[place], rows.memory)
            buffer.copied, buffer.group = self._copies.record(), group
            chunks.give_back(number, buffer.copied)
            self._n_copied += 1

    def _turn_to(self, chunks: PackedChunks) -> None:
        if self._chunks is not chunks or self._n_used % len(chunks):  # of another set, or in the midst of a pass
            self._stop()
            self._chunks = chunks
        if not self._buffers or self._buffers[0].memory.nbytes < chunks.most_bytes:
            self._free()
            for _ in range(N_BUFFERS):
                memory = self._runtime.xp.empty(chunks.most_bytes, np.uint8)
                # Kernels that are queued up may still use what was there.
                self._buffers.append(_Buffer(memory, self._runtime.record_event()))

    def _stop(self) -> None:
        """Forget what was copied ahead. Copies to a buffer keep their order, whatever they are of."""
        chunks, self._chunks = self._chunks, None
        self._n_copied = self._n_used = 0
        for buffer in self._buffers:
            buffer.group = None
        if chunks is not None:
            chunks.restart()

    def _free(self) -> None:
        _drain(self._copies, self._buffers)


def _drain(copies: CopyStream, buffers: list[_Buffer]) -> None:
    if buffers:
        copies.synchronize()
        buffers.clear()
