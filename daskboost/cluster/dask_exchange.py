"""What each worker has for each of some owners goes there directly, and each owner makes something of it: an owner of
several parts of all at the same time.

    client --- a call ---> owner --- asks each worker for its part ---> worker
                           owner <------------ the part --------------- worker

Within a host, parts of many bytes lie in common memory (`common_memory.py`), where the owner reads them in place; else,
and where there is no such memory or too little, they go over the connections of Dask's workers. A room has a name only
until its owner has opened it. One that is not opened goes with what its worker keeps under the exchange's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from daskboost.cluster.balance import host_of
from daskboost.cluster.common_memory import Written, forget, opened
from daskboost.cluster.context import WorkerPlace
from daskboost.cluster.dask_plugins import worker_host
from daskboost.cluster.dask_watch import heard
from daskboost.wire import decode, encode, register

if TYPE_CHECKING:
    from distributed import Client, Worker

LEAST_ROOM_BYTES = 1 << 18
"""Parts of fewer bytes are sent: that takes a millisecond, and a room half of one."""
ALIGNMENT = 64
"""Frames begin at multiples of so many bytes, as kernels' arrays do."""


@register
@dataclass(frozen=True)
class InRoom:
    """A part that lies in common memory."""

    room: str
    lengths: tuple[int, ...]
    """Bytes of each frame of the message that the part is."""


@dataclass(frozen=True)
class Given:
    """What an exchange does; of importable functions."""

    part: Callable[[WorkerPlace, int], Any]
    """`part(place, index)`: what a worker has for the owner of that index, a message."""
    whole: Callable[[WorkerPlace, int, list[Any]], Any]
    """`whole(place, index, parts)` on the owner, with the parts of all workers in order; its result must be small."""
    owners: tuple[str, ...]
    """Addresses; a worker that comes several times owns what several indices stand for."""
    workers: tuple[str, ...]
    name: str
    """Under which workers keep what goes to others, until it is dropped."""


async def exchange(client: Client, given: Given, step: str) -> list[Any]:
    """Give each owner its part of what all workers have; return what they make of them.

    The coroutine is for the client's own event loop; workers have the plugin. `step` says in messages what it is for.

    Raises
    ------
    WorkerLostError
        One of the workers is gone, or shows no sign of life.
    Exception
        What a part or a whole raised, as it was.
    """
    owners = sorted(set(given.owners))
    asked = client.run(_wholes, given, workers=owners)
    found = await heard(client, asked, step, sorted({*owners, *given.workers}))
    return [found[owner][index] for index, owner in enumerate(given.owners)]


async def _wholes(given: Given, dask_worker: Worker) -> dict[int, object]:
    """What this worker makes of its parts, by their index."""
    place = worker_host(dask_worker).place

    async def made(index: int) -> object:
        parts = await asyncio.gather(*[_part_of(worker, given, index, dask_worker) for worker in given.workers])
        return await asyncio.to_thread(_whole, given, place, index, parts)

    own = [index for index, owner in enumerate(given.owners) if owner == place.address]
    return dict(zip(own, await asyncio.gather(*map(made, own)), strict=True))


def _whole(given: Given, place: WorkerPlace, index: int, parts: list[object]) -> object:
    """What an owner makes of its parts, which are freed here: that of a room takes a while."""
    own = parts.copy()
    parts.clear()
    return given.whole(place, index, own)


async def _part_of(worker: str, given: Given, index: int, own: Worker) -> object:
    """The part of a worker."""
    if worker == own.address:
        return await asyncio.to_thread(given.part, worker_host(own).place, index)
    name = given.name if host_of(worker) == host_of(own.address) else ""
    part = await asked(own, worker, _give, given.part, index, name)
    if not isinstance(part, InRoom):
        return part
    taken = await asyncio.to_thread(_taken, part)
    return await asked(own, worker, _give, given.part, index, "") if taken is None else taken[0]


async def asked(own: Worker, other: str, function: Callable[..., object], *arguments: object) -> object:
    """Have another worker call a function of a module, with its worker; raise what that raised, as it was.

    The coroutine is for the worker's own event loop.
    """
    from distributed.core import clean_exception
    from distributed.protocol.pickle import dumps

    answer = await own.rpc(other).run(function=dumps(function), args=dumps(arguments))
    if answer["status"] == "error":
        _, error, trace = clean_exception(**answer)
        assert error is not None
        raise error.with_traceback(trace)
    found: object = answer["result"]
    return found


async def _give(part: Callable[[WorkerPlace, int], object], index: int, name: str, dask_worker: Worker) -> object:
    """This worker's part, or where it lies in common memory; kept under the name."""
    return await asyncio.to_thread(_given, part, index, name, worker_host(dask_worker).place)


def _given(part: Callable[[WorkerPlace, int], object], index: int, name: str, place: WorkerPlace) -> object:
    found = part(place, index)
    return (_put(found, name, place) if name else None) or found


def _put(part: object, name: str, place: WorkerPlace) -> InRoom | None:
    """Put a part into a room; None where it is too small, or there is no room."""
    frames = encode(part)
    lengths = tuple(map(len, frames))
    starts = _starts(lengths)
    if starts[-1] < LEAST_ROOM_BYTES:
        return None
    room = Written(frames, starts)
    if not room.name:
        return None
    place.shards.put(name, ("room", room.name), room)
    return InRoom(room.name, lengths)


def _taken(part: InRoom) -> tuple[object] | None:
    """The part that lies in a room, whose name is forgotten; None if it cannot be opened here."""
    starts = _starts(part.lengths)
    room = opened(part.room, starts[-1])
    if room is None:
        return None
    forget(part.room)
    memory = room.data
    return (decode([memory[a : a + length] for a, length in zip(starts, part.lengths, strict=False)]),)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where frames begin, and the end."""
    return list(accumulate((-(-length // ALIGNMENT) * ALIGNMENT for length in lengths), initial=0))
