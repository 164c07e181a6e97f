"""Trees of a round that grow at the same time, each on one thread or a few, where a tree alone has little to share.

A round of several outputs has a tree for each, and none of them depends on another. Regions of a small tree (`grow.py`)
are over before other threads have come to them; whole trees are work enough for a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu.addressed import array_at
from daskboost.devices.cpu.by_reference import Record, address_of, by_reference, change
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.grow import GROW, Growing
from daskboost.devices.cpu.team import TEAM_WORDS, next_task, part, run_at, start
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import host_address
from daskboost.dtypes import Int64


class Grove(NamedTuple):
    """Trees that grow at the same time."""

    team: Int64
    """Threads that take whole trees."""
    grow: int
    """Address of the part that grows a tree."""
    states: Int64
    """Addresses of what each grows with, `Growing`; shape (trees,), of which the first `n` count."""
    teams: Int64
    """Addresses of the words of each tree's own team; shape (trees,)."""
    n: int


@part
def _grow_each(grove: Grove, thread: int) -> None:
    """Grow whole trees, as far as each gets."""
    while True:
        tree = next_task(grove.team)
        if tree >= grove.n:
            return
        run_at(array_at(grove.teams[tree], grove.states, TEAM_WORDS), 1, grove.grow, grove.states[tree])


class SideBySide:
    """Grows up to `n_trees` trees at a time."""

    def __init__(self, threads: Threads, n_trees: int) -> None:
        self._threads, self._address = threads, 0
        self._states, self._teams = np.zeros(n_trees, np.int64), np.zeros(n_trees, np.int64)
        self._grove = by_reference(Grove(threads.team, 0, self._states, self._teams, 0))

    def grow(self, states: Sequence[Growing]) -> None:
        """Go on with trees, as `grow.grow` does with one; each has its parts, and a status when this returns."""
        for i, state in enumerate(states):
            assert isinstance(state, Record)
            self._states[i], self._teams[i] = address_of(state), host_address(state.team)
        if not self._address:
            (self._address,) = addresses_of([_grow_each], self._grove, 1)
        change(self._grove, n=len(states), grow=int(states[0].parts[GROW]))
        start(self._threads.team, min(self._threads.count, len(states)), self._address, self._grove)
