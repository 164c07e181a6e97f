"""Compiles parts of regions (`team.py`) side by side, in processes that fill numba's cache on disk.

Numba compiles one function after the other, whatever threads ask for: its lock is the process's. The parts of a tree
take seconds together, so that other processes take some of them from a list while this one does the rest, and it then
loads theirs from the cache. What nearly all fits need is foreseen: where none of it lies on disk, helpers start with
the fit, and compile it until parts are wanted. A helper may be missing, die or take too long: what it leaves is
compiled here.

    this process        [search, move, finish, ...]        a helper
    reads the rows                                         starts; compiles what is foreseen
    compiles `grow`     <- takes the next                  takes the next ->   compiles `search`, keeps it on disk
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from numba import types

from daskboost.devices.cpu import is_kept
from daskboost.devices.cpu.by_reference import Record, kind_of

logger = logging.getLogger(__name__)

MOST_HELPERS = 3
"""Processes that help at once: each takes 250 MB, and the longest part bounds what more of them can spare."""
LEAST_PARTS = 2
"""Parts for each process, for which its start and its imports, a second, are worth it."""
LONGEST_WAIT_S = 60.0
"""Seconds that this process waits for helpers once it has nothing left to compile itself."""
LONGEST_REST_S = 20.0
"""Seconds that a helper waits for something to compile before it ends."""
HELPER = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from daskboost.devices.cpu.compilers import help_out
help_out()
"""
"""The program of a helper. It does not import the user's main module, which may have no guard."""
ANSWER = b"kept\n"


class Part(Hashable, Protocol):
    """A function that numba compiles."""

    py_func: FunctionType
    overloads: Mapping[object, Any]
    """Results of compilations by signature."""
    unread: tuple[str, ...]
    """Attributes of its state that it does not read, see `kind_of`."""

    def compile(self, sig: object) -> object:
        """Compile for a signature, or load that from the cache."""


class Order(NamedTuple):
    """Something to compile."""

    part: Part
    signature: tuple[types.Type, ...]

    @property
    def is_missing(self) -> bool:
        """Whether neither this process nor the disk has it."""
        return self.signature not in self.part.overloads and not is_kept(self.part, self.signature)


def foresee(orders: Sequence[Order], n_processes: int) -> None:
    """Have helpers compile what a fit will need, where none of it lies on disk, as on a machine's first use."""
    if n_processes > 1 and all(order.is_missing for order in orders):
        crew = _crew()
        crew.expect(orders)
        crew.hire(min(n_processes - 1, MOST_HELPERS))


def addresses_of(parts: Sequence[Part], state: object, n_processes: int) -> list[int]:
    """Return the addresses of parts, compiled for states of this type by up to `n_processes` processes.

    `state` is `by_reference`; `parts` are in the order in which they are taken, so the costly ones come first. Parts
    are called by address, so that each is compiled once: linked into their callers, as numba does it, they would be
    compiled again with each of these.
    """
    assert isinstance(state, Record)
    orders = [Order(part, (kind_of(state, part.unread), types.int64)) for part in parts]
    return [*_addresses_of(tuple(orders), n_processes)]


@cache
def _addresses_of(orders: Sequence[Order], n_processes: int) -> tuple[int, ...]:
    """Return the same of parts with their signatures; each fit asks again."""
    missing = [order for order in orders if order.is_missing]
    n_helpers = min(n_processes, len(missing) // LEAST_PARTS, MOST_HELPERS + 1) - 1
    if n_helpers > 0:
        logger.info("%d functions are compiled in %d processes", len(missing), 1 + n_helpers)
        crew = _crew()
        crew.hire(n_helpers)
        crew.compile(missing)
    return tuple([_address_of(order) for order in orders])


def _address_of(order: Order) -> int:
    part, signature = order
    if signature not in part.overloads:  # numba takes a tenth of a millisecond to find that out
        part.compile(signature)
    compiled = part.overloads[signature]
    found: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return found


class Crew:
    """Helpers of this process, and what is yet to be compiled; any number of fits share them."""

    def __init__(self) -> None:
        self._changed, self._here = threading.Condition(), threading.Lock()
        self._wanted, self._foreseen = deque[Order](), deque[Order]()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._under_way: dict[subprocess.Popen[bytes] | None, Order] = {}
        """What each helper compiles, and this process, which is None."""
        self._users, self.is_over = 0, False

    def expect(self, orders: Sequence[Order]) -> None:
        """Have helpers compile orders when nobody waits for another."""
        with self._changed:
            self._foreseen.extend(orders)

    def hire(self, n: int) -> None:
        """Have at least `n` helpers."""
        with self._changed:
            for helper in _started(n - len(self._helpers)):
                self._helpers.append(helper)
                threading.Thread(target=self._feed, args=(helper,), daemon=True).start()

    def compile(self, orders: Sequence[Order]) -> None:
        """Compile orders, here and in helpers, which then end. Fits that start together want the same ones."""
        with self._changed:
            self._users += 1
            known = {*self._wanted, *self._under_way.values()}
            self._wanted.extend(order for order in orders if order not in known)
            self._changed.notify_all()
        try:
            while self._wanted:
                with self._here:  # numba compiles one at a time, and helpers may take the others
                    self._compile_next()
            with self._changed:
                self._changed.wait_for(lambda: not set(orders).intersection(self._under_way.values()), LONGEST_WAIT_S)
        finally:
            self._leave(orders)

    def _compile_next(self) -> None:
        with self._changed:
            if not self._wanted:
                return
            order = self._under_way[None] = self._wanted.popleft()
        try:
            order.part.compile(order.signature)
        finally:
            self._done(None)

    def _done(self, helper: subprocess.Popen[bytes] | None) -> None:
        with self._changed:
            del self._under_way[helper]
            self._changed.notify_all()

    def _leave(self, orders: Sequence[Order]) -> None:
        """Have helpers end that nobody needs any more: at once, but for those that compile what is foreseen."""
        with self._changed:
            self._users -= 1
            if self._users == 0:
                self.is_over = True
                for helper in self._helpers:
                    if self._under_way.get(helper) in (None, *orders):
                        helper.kill()  # it has not begun, rests, or hangs
                self._changed.notify_all()

    def _feed(self, helper: subprocess.Popen[bytes]) -> None:
        """Have a helper compile orders until there are none, or it fails."""
        assert helper.stdin is not None and helper.stdout is not None
        to, answers = helper.stdin, helper.stdout
        with helper, suppress(OSError):
            pickle.dump(sys.path, to)  # as `multiprocessing` speaks to its processes, by a pipe that nobody else has
            to.flush()
            is_well = answers.readline() == ANSWER  # it has begun: until then, this process takes all
            while is_well and (order := self._take(helper)) is not None:
                try:
                    function = order.part.py_func
                    pickle.dump((function.__module__, function.__qualname__, order.signature), to)
                    to.flush()
                    is_well = answers.readline() == ANSWER
                finally:
                    self._done(helper)
        with self._changed:
            self._helpers.remove(helper)

    def _take(self, helper: subprocess.Popen[bytes]) -> Order | None:
        """Return what a helper compiles next; None when it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or self._wanted or self._foreseen, LONGEST_REST_S)
            for orders in (self._wanted, self._foreseen):
                if orders:
                    order = self._under_way[helper] = orders.popleft()
                    return order
        return None


_CREWS: dict[int, Crew] = {}
"""The crew of each process: a forked child has none of its parent's."""


def _crew() -> Crew:
    """Return the crew of this process that is still at work, or a new one."""
    crew = _CREWS.get(os.getpid())
    if crew is None or crew.is_over:
        crew = _CREWS[os.getpid()] = Crew()
    return crew


def _started(n: int) -> list[subprocess.Popen[bytes]]:
    """Start helpers, where the interpreter can be started again: where a program embeds Python, it is the program."""
    is_python = Path(sys.executable or "").name.lower().startswith("python") and not hasattr(sys, "frozen")
    if n < 1 or not is_python:
        return []
    with suppress(OSError):
        return [
            subprocess.Popen(
                [sys.executable, "-c", HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            ) for _ in range(n)
        ]  # fmt: skip
    return []


def help_out() -> None:
    """Compile what the process asks for that has started this one, until it asks no more."""
    said, asked = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # what others print is no answer
    importlib.import_module("daskboost.devices.cpu.grow")
    with suppress(EOFError, OSError):
        said.write(ANSWER)
        said.flush()
        while True:
            module, name, signature = pickle.load(asked)
            getattr(importlib.import_module(module), name).compile(signature)
            said.write(ANSWER)
            said.flush()
