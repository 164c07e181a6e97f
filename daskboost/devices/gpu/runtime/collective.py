"""Where the partial results of several GPUs meet: enqueued as kernels are, so that a CUDA graph of a round holds it.

All GPUs of a fit enqueue the same in the same order. `nccl.py` has what joins real ones; those of `tests/kernels` are
joined by their host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol, TypeVar

from daskboost.dtypes import Array

V = TypeVar("V")


class Members(Protocol):
    """The engines whose GPUs are joined, as one of them sees them (`fit/peers.py`)."""

    @property
    def rank(self) -> int:
        """This engine's place in their order."""

    @property
    def n_peers(self) -> int:
        """How many there are, this one included."""

    def share(self, message: V, /) -> list[V]:
        """Return what each engine says, in their order; collective."""

    def check(self) -> None:
        """Raise if another engine is known to have failed, for those that wait for it otherwise."""


class Turn:
    """One fit's at a time, of a GPU: kernels of two that wait for other GPUs could keep each other from running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def is_taken(self, name: str, names: tuple[str, ...], members: Members) -> bool:
        """Whether the GPU of this name and all others are this fit's from now on, or none is; collective.

        They are taken in the order of their names, so that of several fits that want them one gets all.
        """
        is_mine = False
        is_all = False
        try:
            for each in sorted(names):
                if each == name:
                    is_mine = self._lock.acquire(blocking=False)
                if not all(members.share(is_mine or each != name)):
                    return False
            is_all = True
        finally:  # another engine may fail meanwhile
            if is_mine and not is_all:
                self.end()
        return True

    def end(self) -> None:
        """Let other fits take the GPU."""
        self._lock.release()


class Collective(Protocol):
    """One GPU's side of what all GPUs of a fit enqueue in the same order."""

    n_members: int
    """How many GPUs are joined."""
    rank: int
    """This GPU's place in their order."""

    def add_up(self, values: Array) -> None:
        """Enqueue: integers become their sums over all GPUs; C-contiguous, of one shape everywhere."""

    def add_up_shares(self, values: Array) -> None:
        """Enqueue: the share of each GPU, of equal shares one behind the other, becomes the sums of integers over all
        GPUs, there alone; what the other shares become is undefined. C-contiguous, of one shape everywhere."""

    def find_largest(self, values: Array) -> None:
        """Enqueue: integers become the largest of all GPUs', likewise."""

    def gather(self, values: Array, out: Array) -> None:
        """Enqueue: `out` becomes the values of each GPU, one behind the other; C-contiguous, of one shape everywhere.
        The values may be this GPU's part of `out`."""

    def check(self) -> None:
        """Raise if it was aborted: what was enqueued may have ended without the other GPUs' numbers."""

    def abort(self) -> None:
        """Have everything that waits for other GPUs end, in vain, from any thread: one of them does not come. It does
        not wait for that."""

    def close(self) -> None:
        """Give back what joins the GPUs; called once, by the engine's thread, when nothing else is enqueued and graphs
        are gone."""


class Alone:
    """The only GPU of a fit."""

    n_members, rank = 1, 0

    def add_up(self, values: Array) -> None:
        """Leave them as they are."""

    def add_up_shares(self, values: Array) -> None:
        """Leave them as they are."""

    def find_largest(self, values: Array) -> None:
        """Leave them as they are."""

    def gather(self, values: Array, out: Array) -> None:
        """Copy the values of the only GPU."""
        out[0] = values

    def check(self) -> None:
        """Never fail: nobody else has numbers."""

    def abort(self) -> None:
        """Wait for nobody."""

    def close(self) -> None:
        """Have nothing to give back."""


ALONE = Alone()


def share_of(joined: Collective, n: int) -> slice:
    """Return this GPU's share of `n` things: all of them where they cannot be shared equally."""
    if n % joined.n_members:
        return slice(0, n)
    each = n // joined.n_members
    return slice(each * joined.rank, each * (joined.rank + 1))


@dataclass(frozen=True)
class Sharing:
    """How the GPUs of a fit share its rows or its features; one that is alone has all of both."""

    rows: Collective = ALONE
    """Joins GPUs that have other rows, which add up what they know of theirs."""
    features: Collective = ALONE
    """Joins GPUs that search other features of the same rows."""
    sides: Collective = ALONE
    """Joins GPUs that have other features of the same rows, one of which knows a split's sides. Those that have the
    symbols of all features need nobody for that."""

    def check(self) -> None:
        """See `Collective.check`, of all."""
        for each in (self.rows, self.features, self.sides):
            each.check()
