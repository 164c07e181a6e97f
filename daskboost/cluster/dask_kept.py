"""Values that workers keep, outside of Dask's own store and graphs: what stands for one is its name and its owner.

    client --- made(function, a) ---> worker A   keeps the value
    task   --- value() -------------> worker B   asks A for it once, and keeps it too
    client --- told(a, function) ---> worker A   only what the function returns travels

A worker that needs a value gets it from its owner, whatever its tasks, and has it once; the client and the scheduler
have names. All forget a value once what the client got for it is gone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar, cast

from daskboost.cluster.context import WorkerShards, name_of
from daskboost.cluster.dask_exchange import asked
from daskboost.cluster.dask_plugins import ensure_worker_plugin, worker_host
from daskboost.cluster.dask_tasks import drop, drop_later, workers_of
from daskboost.cluster.dask_watch import heard, on_loop, result_of
from daskboost.data.input.held import Held, Parted, PartOf, T_co
from daskboost.errors import WorkerLostError

if TYPE_CHECKING:
    from distributed import Client, Worker

P = TypeVar("P", bound=Parted)
R = TypeVar("R")
T = TypeVar("T")
VALUE = "value"
"""Under which a worker keeps a value, of a data set of the value's name."""
LOAD_BYTES = 1 << 25
"""Bytes of pieces that travel together: scheduler and client hold them twice for a moment."""
GONE = "a worker was lost that kept what categories were counted; call again"

_on: ContextVar[Worker | None] = ContextVar("daskboost_worker", default=None)
"""The worker for which a thread computes that runs none of its tasks."""


@dataclass(frozen=True, eq=False)
class KeptValue(Held[T_co]):
    """Stands for a value that a worker keeps."""

    name: str
    owner: str
    """The worker's address."""

    def value(self) -> T_co:
        """Return the value on any worker, which keeps it from then on; WorkerLostError where its owner lacks it."""
        from distributed import get_worker

        worker = _on.get() or get_worker()
        shards = worker_host(worker).shards
        return cast("T_co", shards.made(self.name, VALUE, lambda: _asked_for(self, worker)))


def kept(client: Client, name: str, owner: str) -> KeptValue[T]:
    """Return what stands for a value that its owner has put into its shards; all workers drop it once that is gone."""
    found: KeptValue[T] = KeptValue(name, owner)
    weakref.finalize(found, drop_later, weakref.ref(client), name)
    return found


def new_name(client: Client) -> str:
    """Return a name for a value that workers keep for a client."""
    return name_of("kept", client.id)


def put(shards: WorkerShards, name: str, value: object) -> None:
    """Keep a value here."""
    shards.put(name, VALUE, value)


def keep(name: str, value: object) -> str:
    """Keep a value on the worker whose task this is; return the worker's address."""
    from distributed import get_worker

    place = worker_host(get_worker()).place
    put(place.shards, name, value)
    return place.address


def made(client: Client, function: Callable[..., R], *held: Held[object]) -> KeptValue[R]:
    """Return what a function makes of values on the worker that made the first of them, which keeps it."""
    name, owner = new_name(client), owner_of(held[0])
    try:
        run_on(client, {owner: partial(_make, name=name, function=function, held=held)})
    except BaseException:
        on_loop(client, drop(client, name))
        raise
    return kept(client, name, owner)


def told(client: Client, held: Held[T], function: Callable[[T], R]) -> R:
    """Return what a function tells of a value where that was made: it travels as Dask's own results do."""
    (found,) = run_on(client, {owner_of(held): partial(_tell, function=function, held=held)})
    return found


def fetched(client: Client, held: Held[P]) -> P:
    """Return a value, some pieces at a time."""
    kind, sizes = told(client, held, _kind_of)
    parts = [told(client, held, methodcaller("pieces", numbers)) for numbers in _loads(sizes)]
    return kind.joined([piece for part in parts for piece in part])


def sent(client: Client, value: P) -> KeptValue[P]:
    """Have a worker keep a value of this process, which goes there as arguments of Dask's calls do, some pieces at a
    time."""
    name, owner = new_name(client), min(on_loop(client, workers_of(client)))
    taken: KeptValue[Pieces] = kept(client, name, owner)
    for numbers in _loads(value.sizes):
        run_on(client, {owner: partial(_take, name=name, part=value.pieces(numbers))})
    return made(client, partial(_whole, kind=type(value)), taken)


def _loads(sizes: Sequence[int]) -> list[range]:
    """Return neighbouring pieces of such sizes that travel together."""
    loads, first, n_bytes = list[range](), 0, 0
    for number, size in enumerate(sizes):
        n_bytes += size
        if n_bytes >= LOAD_BYTES or number == len(sizes) - 1:
            loads.append(range(first, number + 1))
            first, n_bytes = number + 1, 0
    return loads


@dataclass
class Pieces:
    """Pieces of a value that is on its way."""

    pieces: list[object]


def _take(worker: Worker, name: str, part: Sequence[object]) -> None:
    taken = worker_host(worker).shards.made(name, VALUE, lambda: Pieces([]))
    taken.pieces.extend(part)


def _whole(taken: Pieces, kind: type[P]) -> P:
    return kind.joined(taken.pieces)


def owner_of(held: Held[object]) -> str:
    """Return the worker that made a value, or what it is a part of."""
    while isinstance(held, PartOf):
        held = held.whole
    assert isinstance(held, KeptValue)
    return held.owner


def run_on(client: Client, functions: Mapping[str, Callable[[Worker], R]]) -> list[R]:
    """Call a function on each of some workers, in a thread, where it may have values and ask other workers; return what
    they give, in order."""

    async def called() -> list[R]:
        await ensure_worker_plugin(client)
        asked_for = client.run(_in_thread, functions, workers=list(functions))
        found: dict[str, R] = await heard(client, asked_for, "counting categories")
        return [found[worker] for worker in functions]

    return on_loop(client, called())


async def _in_thread(functions: Mapping[str, Callable[[Worker], object]], dask_worker: Worker) -> object:
    _on.set(dask_worker)
    return await asyncio.to_thread(functions[dask_worker.address], dask_worker)


def _make(worker: Worker, name: str, function: Callable[..., object], held: Sequence[Held[object]]) -> None:
    put(worker_host(worker).shards, name, function(*(own.value() for own in held)))


def _tell(worker: Worker, function: Callable[[T], R], held: Held[T]) -> R:
    return function(held.value())


def _kind_of(value: P) -> tuple[type[P], Sequence[int]]:
    return type(value), value.sizes


def ask(own: Worker, other: str, function: Callable[..., object], *arguments: object) -> object:
    """Do what `asked` does, from a thread; WorkerLostError where the other worker is gone."""
    loop: asyncio.AbstractEventLoop = own.loop.asyncio_loop  # type: ignore[attr-defined]
    future = asyncio.run_coroutine_threadsafe(asked(own, other, function, *arguments), loop)
    try:
        return result_of(future, loop, lambda: WorkerLostError(GONE))
    except OSError as error:
        raise WorkerLostError(GONE) from error


def _asked_for(wanted: KeptValue[object], worker: Worker) -> object:
    if worker.address == wanted.owner:
        raise WorkerLostError(GONE)
    return ask(worker, wanted.owner, _give, wanted.name)


def _give(name: str, dask_worker: Worker) -> object:
    found: object = worker_host(dask_worker).shards.parts(name).get(VALUE)
    if found is None:
        raise WorkerLostError(GONE)
    return found
