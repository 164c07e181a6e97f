"""Rounds whose trees and metrics wait on a device until the host fetches those of several together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Event, Runtime, to_host
from daskboost.dtypes import UInt8
from daskboost.tree.table import TreeTable


class Batch:
    """Rounds that follow one another, which the host fetches together.

    The host fetches a closed batch beside what the device has been given since, so that it makes models of its trees
    while the next ones grow.

    Parameters
    ----------
    runtime : Runtime
    ring : uint8 array, shape (places, bytes of a round)
        See `WaitingRounds`.
    first : int
        Number of the first round.
    """

    def __init__(self, runtime: Runtime, ring: DeviceArray, first: int) -> None:
        self._runtime, self._ring, self._begin = runtime, ring, first % len(ring)
        self._end: Event | None = None
        self._fetched: UInt8 | None = None
        self._finished: list[FinishedRound] | None = None
        self.n_grown = 0

    @property
    def is_full(self) -> bool:
        """Whether no other round has room: the next batch takes the other half of the ring."""
        return self.n_grown == max(1, len(self._ring) // 2)

    @property
    def is_closed(self) -> bool:
        """Whether another round needs another batch."""
        return self._end is not None

    def close(self) -> Event:
        """Take no more rounds; return the end of those there are."""
        if self._end is None:
            self._end = self._runtime.record_event()
        return self._end

    def fetched(self) -> UInt8:
        """Return all rounds in the host's memory, uint8, shape (rounds, bytes); the batch is closed then."""
        if self._fetched is None:
            lane, end = self._runtime.lanes[0], self._begin + self.n_grown
            lane.wait_event(self.close())
            parts = [self._ring[self._begin : end], self._ring[: max(0, end - len(self._ring))]]
            with lane:
                found = [to_host(part) for part in parts if len(part)]
            self._fetched = found[0] if len(found) == 1 else np.concatenate(found)
        return self._fetched

    def finished(self, finish: Callable[[UInt8], list[FinishedRound]]) -> list[FinishedRound]:
        """Return what is made of all rounds, once."""
        if self._finished is None:
            self._finished = finish(self.fetched())
        return self._finished


@dataclass(frozen=True)
class FinishedRound:
    """What the host makes of a round's tables."""

    largest: Sequence[Sequence[float]]
    """The largest |g| and h of each output."""
    trees: tuple[TreeTable, ...]


@dataclass(frozen=True)
class KeptRound:
    """A round of a batch."""

    batch: Batch
    place: int

    def fetched(self) -> UInt8:
        """Return its bytes in the host's memory, where all rounds of the batch are then."""
        found: UInt8 = self.batch.fetched()[self.place]
        return found


class WaitingRounds:
    """The ring of places on the device that rounds take in turn, each the place of its number.

    At most two batches are there: one that takes rounds, and one that the host may be fetching.

    Parameters
    ----------
    runtime : Runtime
    n_places, round_bytes : int

    Attributes
    ----------
    ring : uint8 array, shape (n_places, round_bytes)
    """

    def __init__(self, runtime: Runtime, n_places: int, round_bytes: int) -> None:
        self._runtime, self.ring = runtime, runtime.xp.empty((n_places, round_bytes), np.uint8)
        self._batches: deque[Batch] = deque()
        self._n_grown = 0

    @property
    def is_full(self) -> bool:
        """Whether the last batch takes no other round."""
        return bool(self._batches) and self._batches[-1].is_full

    def make_room(self) -> None:
        """Have a place for the next round: if the last batch is closed, the host waits for the one before, whose places
        are the next batch's."""
        if self._batches and not self._batches[-1].is_closed:
            return
        while len(self._batches) >= min(2, len(self.ring)):
            self._batches.popleft().fetched()
        self._batches.append(Batch(self._runtime, self.ring, self._n_grown))

    def add(self) -> None:
        """Count a round that has grown."""
        self._batches[-1].n_grown += 1
        self._n_grown += 1

    def last(self) -> KeptRound:
        """Return the last round."""
        return KeptRound(self._batches[-1], self._batches[-1].n_grown - 1)

    def close(self) -> None:
        """Close the last batch, if there is one."""
        if self._batches:
            self._batches[-1].close()
