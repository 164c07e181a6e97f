"""Rounds in one compiled call: gradients, their range, and the trees of all outputs (`grow.py`), then the next round's.

Nothing returns to Python between two rounds, unless trees need something of it. So a round of small data costs what its
arithmetic costs, and fits of several threads of a process do not wait for each other. The trees of a round that has
several do not depend on each other: where one alone has little to share among threads, as many grow side by side as
there are rooms, each on one thread or a few. Regions of a small tree are over before other threads have come to them;
whole trees are work enough for a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.addressed import array_at, host_address
from daskboost.devices.cpu.by_reference import address_of, by_reference
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.grow import GROW, WRITE_LOG
from daskboost.devices.cpu.growing import (
    DONE,
    FILLED,
    FIRST,
    GROWING,
    GROWS,
    IS_TOLD,
    LOGGED,
    MOST,
    N_COUNTS,
    ROUND,
    STAGE,
    STARTS,
    STATUS,
    TREE,
    WANTED,
    Growing,
    Rounds,
)
from daskboost.devices.cpu.losses import GradientLoops, Job
from daskboost.devices.cpu.team import TEAM_WORDS, next_task, part, run, run_at, start
from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Int32, Int64


class Grove(NamedTuple):
    """Rooms in which the trees of rounds grow, and what fills their gradients."""

    team: Int64
    """Threads that fill gradients, and that take whole trees where there are several rooms."""
    n_threads: int
    rounds: Rounds
    jobs: Int64
    """Addresses of jobs of `losses.py`, one for each chunk."""
    job_threads: Int64
    """How many threads each of them is worth."""
    tops: Int32
    """Bits of the largest |g| and h that each thread has come upon, shape (threads, 2, outputs); of no threads where
    the caller fills gradients and finds their range before each call."""
    parts: Int64
    """Addresses: two parts of this module, that of jobs, two of `grow.py`."""
    states: Int64
    """Addresses of what the trees of each room grow with, `Growing`; shape (rooms,)."""
    teams: Int64
    """Addresses of the words of each room's team, shape (rooms,)."""
    counts: Int64
    """Addresses of each room's `Step.counts`, shape (rooms,)."""


GROW_ROUNDS, GROW_EACH, FILL, GROW_TREE, LOG_TREE = range(5)
"""Places in `Grove.parts`."""


@njit(inline="always")
def _counts_of(grove: Grove, room: int) -> Int64:
    found: Int64 = array_at(grove.counts[room], grove.states, N_COUNTS)
    return found


@uncounted()
def _trees_of_round(grove: Grove) -> int:
    """Return how many trees a round has."""
    return int(grove.rounds.n_trees)


@uncounted()
def _run_in(grove: Grove, room: int, part: int) -> None:
    """Run a part of a room's tree, which shares its work itself."""
    run_at(array_at(grove.teams[room], grove.states, TEAM_WORDS), 1, grove.parts[part], grove.states[room])


@uncounted()
def _fill(grove: Grove) -> None:
    """Fill the gradients of a round, and find their range."""
    tops, largest = grove.tops, grove.rounds.largest
    if len(tops) == 0:
        return
    tops[:] = 0
    for chunk in range(len(grove.jobs)):
        run_at(grove.team, grove.job_threads[chunk], grove.parts[FILL], grove.jobs[chunk])
    for s in range(2):
        for output in range(largest.shape[1]):
            top = np.int32(0)
            for thread in range(len(tops)):
                top = max(top, tops[thread, s, output])
            largest[s, output] = np.int32(top).view(np.float32)


@uncounted()
def _begin_trees(grove: Grove) -> None:
    """Have the trees of the next outputs begin, as many as there are rooms."""
    counts, n_trees = grove.rounds.counts, _trees_of_round(grove)
    counts[GROWING] = min(len(grove.states), n_trees - counts[FIRST])
    for room in range(counts[GROWING]):
        own = _counts_of(grove, room)
        own[TREE] = counts[ROUND] * n_trees + counts[FIRST] + room
        own[STAGE] = FILLED if counts[FIRST] == 0 else STARTS
        own[STATUS], own[IS_TOLD] = GROWS, 0


@part
def _grow_each(grove: Grove, thread: int) -> None:
    """Grow whole trees, as far as each gets."""
    while True:
        room = next_task(grove.team)
        if room >= grove.rounds.counts[GROWING]:
            return
        if _counts_of(grove, room)[STATUS] != DONE:
            _run_in(grove, room, GROW_TREE)


@uncounted()
def _go_on(grove: Grove) -> bool:
    """Go on with the trees that have begun; return whether all are done."""
    n_growing, are_done = grove.rounds.counts[GROWING], True
    if len(grove.states) == 1:
        _run_in(grove, 0, GROW_TREE)
    else:
        run(grove.team, min(grove.n_threads, n_growing), grove.parts[GROW_EACH], grove)
    for room in range(n_growing):
        are_done = are_done and _counts_of(grove, room)[STATUS] == DONE
    return are_done


@uncounted()
def _may_begin(grove: Grove) -> bool:
    """Whether another round is wanted, and the log has room for it."""
    counts = grove.rounds.counts
    return bool(counts[ROUND] < counts[WANTED] and counts[LOGGED] + counts[MOST] <= len(grove.rounds.log.left))


@part
def _grow_rounds(grove: Grove, thread: int) -> None:
    """Grow rounds; the caller is needed where the trees that grow are not all `DONE`."""
    counts = grove.rounds.counts
    while True:
        if counts[FIRST] < 0:
            if not _may_begin(grove):
                return
            _fill(grove)
            counts[FIRST] = 0
            _begin_trees(grove)
        if not _go_on(grove):
            return
        for room in range(counts[GROWING]):
            _run_in(grove, room, LOG_TREE)
        counts[FIRST] += counts[GROWING]
        if counts[FIRST] < _trees_of_round(grove):
            _begin_trees(grove)
        else:
            counts[FIRST] = -1
            counts[ROUND] += 1


class Filling(NamedTuple):
    """What fills the gradients of an engine's rows in compiled code."""

    loops: GradientLoops
    jobs: Sequence[Job]
    """What the loops work on, of each chunk."""


class RoundsCall:
    """Grows rounds over an engine's rows; parameters are those of `Grove`. `filling` is None where the caller fills
    gradients."""

    def __init__(self, threads: Threads, rounds: Rounds, filling: Filling | None, n_rooms: int) -> None:
        self._filling, self._parts = filling, np.zeros(5, np.int64)  # compiled code has the addresses of jobs alone
        self._states, self._teams, self._counts = np.zeros((3, n_rooms), np.int64)
        jobs, tops, of_jobs = [], np.zeros((int(filling is not None), *rounds.largest.shape), np.int32), []
        if filling is not None and filling.jobs:
            jobs, tops = [address_of(job) for job in filling.jobs], filling.loops.tops
            of_jobs = [filling.loops.threads_for(job) for job in filling.jobs]
            self._parts[FILL] = filling.loops.address(filling.jobs[0])
        self._threads, self._grove = threads, by_reference(Grove(
            threads.team, threads.count, rounds, np.array(jobs, np.int64), np.array(of_jobs, np.int64), tops,
            self._parts, self._states, self._teams, self._counts,
        ))  # fmt: skip

    def grow(self, states: Sequence[Growing]) -> None:
        """Go on with rounds; `states` are those of all rooms, which have their parts."""
        for room, state in enumerate(states):
            self._states[room], self._teams[room] = address_of(state), host_address(state.team)
            self._counts[room] = host_address(state.step.counts)
        if not self._parts[GROW_ROUNDS]:
            own = [_grow_rounds, _grow_each][: len(states)]
            self._parts[: len(own)] = addresses_of(own, self._grove, 1)
            self._parts[GROW_TREE], self._parts[LOG_TREE] = states[0].parts[[GROW, WRITE_LOG]]
        start(self._threads.team, 1, self._parts[GROW_ROUNDS], self._grove)
