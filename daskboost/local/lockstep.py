"""Passes over the same chunks that several fits make together, each fit in a thread of its own.

    fit 1    ask ......| use A | use B | grow | ask ...
    fit 2    ask ...   | use A | use B | grow ...| ask
    chunks             read A    read B

A pass begins when every fit that is still running asks for one, and reads each chunk once; the next is read when all
have let go of the last. So passes are as many as those of the fit that needs most, while the fits know nothing of each
other. Where they ask for different sets, one set at a time is read, evaluation sets first: theirs are the short passes,
after which a fit joins the others again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from daskboost.errors import FitCancelledError

T = TypeVar("T")


class SharedPass(Generic[T]):
    """One pass over a source, on behalf of some fits."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self.members = 0
        self.waiting = 0
        """Members that have let go of the item that was read last."""
        self.n_read = 0
        self.is_reading = False
        self.ended = False
        self.item: T | None = None

    def read(self) -> None:
        """Read the next item; nobody else does meanwhile, and nobody has the last one."""
        self.item = None
        self.item = next(self._items, None)
        self.ended = self.item is None

    def close(self) -> None:
        self.item = None
        self._items.close()


class Ticket(Generic[T]):
    """A fit that asks for a pass."""

    def __init__(self, source: Callable[[], Generator[T, None, None]], rank: int) -> None:
        self.source, self.rank = source, rank
        self.joined: SharedPass[T] | None = None


class _Waiting(NamedTuple):
    """A fit that has no turn."""

    ready: Callable[[], bool]
    """Whether it could go on; if so it is given a turn at once."""
    given: threading.Lock
    """Held until it has one."""


class Lockstep(Generic[T]):
    """Where fits meet.

    A fit that has to wait gives its turn to the one that has waited longest of those that can go on, and wakes nobody
    else: fits change with every chunk, and to wake all of them takes longer than what one does with it.

    Parameters
    ----------
    n_fits : int
        Each enters `fit` in a thread of its own.
    at_once : int
        How many of them may compute at the same time; the others wait their turn. One on a GPU, which has one queue.
    """

    def __init__(self, n_fits: int, at_once: int) -> None:
        self._n_running = n_fits
        self._free_turns = at_once
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._asking: list[Ticket[T]] = []
        self.failure: BaseException | None = None
        """What ended all fits."""

    @contextmanager
    def fit(self) -> Iterator[None]:
        """Within it a fit runs; what it raises ends the others."""
        with self._lock:
            place = self._queue(lambda: True)
            self._hand_out()
        place.given.acquire()
        try:
            self.check()
            yield
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            with self._lock:
                self._n_running -= 1
                self._free_turns += 1
                self._begin()

    def fail(self, error: BaseException) -> None:
        """End all fits; the first failure counts, or what is raised from it, which says more to people."""
        with self._lock:
            if self.failure is None or error.__cause__ is self.failure:
                self.failure = error
            self._hand_out()

    def check(self) -> None:
        """Raise FitCancelledError if another fit has failed."""
        if self.failure is not None:
            raise FitCancelledError("another of the models that are trained together failed")

    def items(self, source: Callable[[], Generator[T, None, None]], rank: int = 0) -> Iterator[T]:
        """A fit's pass over a source: `source()`, which is called and read once for all fits that ask for it.

        Parameters
        ----------
        source : callable
            Equal for those that share it.
        rank : int
            Sources of the lowest rank are read first.
        """
        ticket = Ticket(source, rank)
        with self._lock:
            self._asking.append(ticket)
            self._begin()
            place = self._unless(lambda: ticket.joined is not None)
        try:
            self._wait(place)
            assert ticket.joined is not None
            n_taken = 0
            while self._next_is_there(ticket.joined, n_taken):
                n_taken += 1
                assert ticket.joined.item is not None
                yield ticket.joined.item  # no local name, which would keep it while the next is read
        finally:
            self._leave(ticket)

    def _begin(self) -> None:
        """Begin a pass if all running fits ask for one."""
        if self._asking and len(self._asking) == self._n_running:
            first = min(self._asking, key=lambda ticket: ticket.rank)
            together = [ticket for ticket in self._asking if ticket.source == first.source]
            self._asking = [ticket for ticket in self._asking if ticket.source != first.source]
            begun = SharedPass(first.source())
            begun.members = len(together)
            for ticket in together:
                ticket.joined = begun
        self._hand_out()

    def _next_is_there(self, joined: SharedPass[T], n_taken: int) -> bool:
        """Wait for the item behind those that were taken; the last to let go of these reads it."""

        def ready() -> bool:
            if joined.ended or joined.n_read > n_taken:
                return True
            if joined.waiting < joined.members or joined.is_reading:
                return False
            joined.is_reading = True
            return True

        with self._lock:
            joined.waiting += 1
            place = self._unless(ready)
        self._wait(place)
        if not joined.ended and joined.n_read == n_taken:  # then the turn to read is this fit's
            try:
                joined.read()
            except BaseException as error:
                self.fail(error)  # before others could take the pass for one that has ended
                raise
            with self._lock:
                joined.is_reading = False
                joined.waiting = 0
                joined.n_read += 1
                self._hand_out()
        return not joined.ended

    def _unless(self, ready: Callable[[], bool]) -> _Waiting | None:
        """Give the turn away, unless it is so already: then None. Under the lock, as the next two."""
        if self.failure is not None or ready():
            return None
        self._free_turns += 1
        place = self._queue(ready)
        self._hand_out()
        return place

    def _queue(self, ready: Callable[[], bool]) -> _Waiting:
        place = _Waiting(ready, threading.Lock())
        place.given.acquire()
        self._waiting.append(place)
        return place

    def _hand_out(self) -> None:
        """Give free turns to fits that can go on. Asked whenever that may have changed."""
        for place in tuple(self._waiting):
            if not self._free_turns:
                return
            if self.failure is not None or place.ready():
                self._waiting.remove(place)
                self._free_turns -= 1
                place.given.release()

    def _wait(self, place: _Waiting | None) -> None:
        """Wait for a turn that was given away; raises FitCancelledError if another fit has failed."""
        if place is not None:
            place.given.acquire()
        self.check()

    def _leave(self, ticket: Ticket[T]) -> None:
        joined = ticket.joined
        with self._lock:
            if joined is None:
                self._asking = [other for other in self._asking if other is not ticket]
                return
            joined.members -= 1
            last = joined.members == 0
            self._hand_out()
        if last:
            joined.close()
