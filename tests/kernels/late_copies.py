"""Copies beside kernels, as unkindly as CUDA allows: what is not waited for has not happened.

Kernels of the emulation run when they are launched. So a copy is made as late as possible, when somebody waits for it,
and what it goes to is full of other bytes from the moment that it is enqueued; and one into memory that a kernel was
given must have waited for an event that was recorded after that kernel's launch.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

POISON = 0xA5


@dataclass
class Launches:
    """The memory that the last launches were given."""

    count: int = 0
    spans: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=4096))
    """(launch, first byte, one after the last)."""

    def note(self, arguments: Any) -> None:
        """A launch with these arguments."""
        self.count += 1
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        self.spans.extend((self.count, *np.lib.array_utils.byte_bounds(array)) for array in arrays)

    def last_with(self, array: Any) -> int:
        """The last launch that was given some of its memory; 0 for none."""
        low, high = np.lib.array_utils.byte_bounds(array)
        return max((count for count, first, end in self.spans if first < high and low < end), default=0)


@dataclass(frozen=True)
class Launched:
    """The end of so many launches, which is when they return."""

    count: int

    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Copied:
    """The end of so many copies of a stream."""

    stream: LateCopies
    count: int

    def synchronize(self) -> None:
        self.stream.run(self.count)


class LateCopies:
    """A `CopyStream`."""

    def __init__(self, launches: Launches) -> None:
        self._launches, self._waited = launches, 0
        self._queue: deque[tuple[Any, Any]] = deque()
        self._n_enqueued = self._n_done = 0
        self._lock = threading.Lock()

    def copy(self, out: Any, values: Any) -> None:
        assert out.nbytes == values.nbytes
        assert out.flags.c_contiguous
        assert values.flags.c_contiguous
        assert self._launches.last_with(out) <= self._waited, "a kernel that was not waited for may use the memory"
        with self._lock:
            out[...] = POISON
            self._queue.append((out, values))
            self._n_enqueued += 1

    def wait(self, event: Any) -> None:
        if isinstance(event, Launched):
            self._waited = max(self._waited, event.count)
        else:
            event.synchronize()

    def record(self) -> Copied:
        return Copied(self, self._n_enqueued)

    def synchronize(self) -> None:
        self.run(self._n_enqueued)

    def run(self, count: int) -> None:
        """Make the copies up to this number."""
        with self._lock:
            for _ in itertools.repeat(None, max(0, count - self._n_done)):
                out, values = self._queue.popleft()
                out[...] = values
                self._n_done += 1
