"""Short messages among the engines of one host: each writes into a room of its own, in memory that all of them see.

Among n engines, a message to all by connections takes each engine n - 1 sends and as many receives: with 16 engines
more than a millisecond, and making the connections a quarter of a second. Here an engine writes once and reads what
the others have written.

The rooms of a fit are found by names that follow from its token, so that nothing is sent to find them. Either all
engines see all rooms, or none uses them: whoever has opened all rooms says so in its own and reads what the others say;
whoever has not says that, for those that see its room, and all who do not see it know by that. Rooms are made before an
engine's session answers for the first time, and opened later, so that none is missed that will be there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np

from daskboost.cluster.common_memory import Room, names_of
from daskboost.cluster.limits import BOARD_LOOK_S
from daskboost.dtypes import Int64

LINE = 16
"""int64 words between two that different engines read or write: two cache lines."""
MEETINGS, SEES, LEFT, MESSAGES = (LINE * k for k in range(4))
"""Places in a room: how many meetings its engine has come to; whether it sees all rooms; whether it has left; and its
last two messages, the length in bytes and the bytes of each."""
YES, NO = 1, 2
"""What `SEES` says, 0 until that is known."""
MESSAGE_WORDS = 512
"""int64 words of the longest message and its length: 4 KiB."""


class MessageBoard:
    """One engine's side. `close` and `has_left` are for any thread, all else for the one that talks to the others."""

    def __init__(self, token: str, rank: int, n_engines: int) -> None:
        self._rank = rank
        self._keys = [hashlib.sha256(f"{token} {k}".encode()).hexdigest()[:32] for k in range(n_engines)]
        self._room = Room(8 * (MESSAGES + 2 * MESSAGE_WORDS), self._keys[rank])
        self._own = self._room.words
        self._rooms: list[Int64] = []
        self._addresses = np.empty(0, np.int64)
        self._serves: bool | None = None

    def serves(self, check: Callable[[], None]) -> bool:
        """Whether all engines see all rooms; the first call waits until all have looked. Meanwhile `check` is called,
        which raises where that is hopeless."""
        if self._serves is None:
            self._serves = self._look(check)
            self._room.forget_name()  # here all have opened it, or nobody will use it
        return self._serves

    def tell(self, message: bytes, check: Callable[[], None]) -> list[bytes] | None:
        """Return what all engines say, in their order; None for all where a message of one is too long. Collective."""
        from daskboost.devices.cpu.team import meet

        own = self._own
        assert own is not None
        at = MESSAGES + MESSAGE_WORDS * (int(own[MEETINGS]) & 1)  # the last message may still be read
        fits = len(message) <= 8 * (MESSAGE_WORDS - 1)
        own[at] = len(message) if fits else -1
        if fits:
            own[at + 1 : at + MESSAGE_WORDS].view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
        have_come = meet(own, self._addresses, True)
        while not have_come:
            check()
            have_come = meet(own, self._addresses, False)
        lengths = [int(room[at]) for room in self._rooms]
        if min(lengths) < 0:
            return None
        return [room[at + 1 :].view(np.uint8)[:n].tobytes() for room, n in zip(self._rooms, lengths, strict=True)]

    def has_left(self) -> bool:
        """Whether one of the engines has left, or fails."""
        return any(room[LEFT] for room in self._rooms)

    def close(self) -> None:
        """Tell all who look that this engine will come to no further meeting."""
        if self._own is not None:
            self._own[LEFT] = 1

    def release(self) -> None:
        """Leave no file."""
        self._room.forget_name()

    def _look(self, check: Callable[[], None]) -> bool:
        """Open the rooms of all engines; whether all of them could do that."""
        if self._own is None:
            return False
        rooms = self._room.opened(names_of(self._keys), self._rank)
        self._own[SEES] = NO if rooms is None else YES
        if rooms is None:
            return False
        from daskboost.devices.cpu.addressed import host_address

        self._rooms = [room.view(np.int64) for room in rooms]
        while not all(room[SEES] for room in self._rooms):
            check()
            time.sleep(BOARD_LOOK_S)
        self._addresses = np.array([host_address(room) for room in self._rooms], np.int64)
        return all(room[SEES] == YES for room in self._rooms)
