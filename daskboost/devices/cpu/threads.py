"""Threads for row loops: kernels release the GIL, so plain threads scale, and several fits in one process are safe.

Compiled code shares work with a team of threads (`team.py`). Numba's own parallel loops are not used: its portable
threading layer aborts when two threads enter it at once, and OpenMP's does not survive a fork.
"""

from __future__ import annotations

import atexit
import math
import os
import weakref
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

    from daskboost.dtypes import Int64

# A prefetch hint for row loops that gather: rows of a deep node lie far apart, and the hardware cannot guess them.
#
# Building the histogram of every 8th row of a 28 MB chunk took 1.9 ns per update without it and 0.8 ns with it (AMD
# EPYC, Zen 3), as fast as rows in sequence.

@intrinsic
def _prefetch(
    typing_context: Context, array: types.Array, index: types.Integer
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Ask for the cache line of ``array[index]`` (a flat array), for reading."""

    def generate(
        context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        flat = context.make_array(signature.args[0])(context, builder, args[0])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        insert: Any = cgutils.get_or_insert_function
        function = insert(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(flat.data, [args[1]]), byte)
        read, keep, data_cache = ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = _prefetch  # numba passes the typing context itself, which type checkers cannot know


S = TypeVar("S")
T = TypeVar("T")

LEAST_POSITIONS = 4096
"""Fewer rows than this per task cost more to hand out than to do."""


CPU_LIMITS = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time, or "max", in how many microseconds: what a container may use."""


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_LIMITS.read_text().split()
        limit = cores if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
    return max(1, min(cores, limit))


class Threads:
    """A fixed number of threads, one of which is the caller's; by default as many as there are cores to use."""

    def __init__(self, count: int = 0, of_all: int = 0) -> None:
        self.count = count if count > 0 else usable_cores()
        self.of_all = max(self.count, of_all)
        """Threads of all fits that run side by side, of which these are one fit's."""
        self._team: Team | None = None
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run all tasks, results in order; an exception of any task is raised after all have ended."""
        if self.count == 1 or len(tasks) == 1:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, "daskboost-rows")
        others = [self._pool.submit(task) for task in tasks[1:]]
        try:
            mine = [tasks[0]()] if tasks else []
        finally:
            errors = [future.exception() for future in others]
        for error in errors:
            if error is not None:
                raise error
        return mine + [future.result() for future in others]

    def ranges(self, total: int, least: int = LEAST_POSITIONS) -> list[tuple[int, int]]:
        """Split `range(total)` evenly into at most `count` ranges of at least `least` each (but the last)."""
        parts = max(1, min(self.count, total // max(least, 1)))
        edges = [total * part // parts for part in range(parts + 1)]
        return list(pairwise(edges))

    @property
    def team(self) -> Int64:
        """The words of the team that compiled code shares work with (`team.py`); its threads start when first asked
        for."""
        if self._team is None or self._team.process != os.getpid():  # a forked child has none of its parent's threads
            self._team = Team(self.count)
        return self._team.words

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self._team is not None:
            self._team.close()
            self._team = None


class Team:
    """Threads that serve compiled code until the team is closed or forgotten, or the process ends.

    No fit waits for their start or end: each holds Python's lock for a moment then, and where fits run at once, whoever
    waits for it must wait for the lock as well, twice. The end of the process does.
    """

    def __init__(self, count: int) -> None:
        from daskboost.devices.cpu.team import TEAM_WORDS, serve

        self.process = os.getpid()
        self.words: Int64 = np.zeros(TEAM_WORDS, np.int64)
        members: list[Member] = []
        self.close = weakref.finalize(self, _end_team, self.words, members)
        """Has the threads end."""
        for _ in range(count - 1):
            member = self.process, allocate_lock()
            member[1].acquire()
            start_new_thread(_serve, (serve, self.words, member))
            members.append(member)


Member = tuple[int, LockType]
"""A thread of a team: its process, and the lock that it holds until it ends."""
_leaving: set[Member] = set()
"""Members that are to end."""
LEAVE_S = 1.0
"""Seconds that the end of the process waits for one of them at most."""


def _serve(serve: Callable[[Int64], None], words: Int64, member: Member) -> None:
    try:
        serve(words)
    finally:
        _leaving.discard(member)
        member[1].release()


def _end_team(words: Int64, members: Sequence[Member]) -> None:
    from daskboost.devices.cpu.team import JOIN, STOP

    _leaving.update(members)
    words[JOIN] = STOP


@atexit.register
def _see_off() -> None:
    """Wait for threads that are to end: Python kills those that come back to it later, inside compiled code."""
    for process, lock in tuple(_leaving):
        if process == os.getpid():  # a forked child has none of its parent's threads
            lock.acquire(timeout=LEAVE_S)


def on_threads(function: Callable[[S], T], items: Sequence[S], threads: int) -> list[T]:
    """Return `function(item)` of each item, so many at the same time; raises what the first item raises that does."""
    n_threads = min(threads, len(items))
    if n_threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, items))


def by_ranges(kernel: Callable[[int, int], T], n: int, threads: int, least: int = LEAST_POSITIONS) -> list[T]:
    """Run `kernel(start, stop)` over `0..n` in at most `threads` ranges of at least `least` (but the last).

    Ranges start at multiples of 8.
    """
    step = max(-(-least // 8) * 8, -(-n // max(threads, 1) // 8) * 8 + 8) if threads > 1 else max(n, 1)
    ranges = [(start, min(start + step, n)) for start in range(0, n, step)]
    return on_threads(lambda r: kernel(*r), ranges, len(ranges))
