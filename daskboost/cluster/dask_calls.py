"""Partitions that lie in a worker's memory, read there by one call on each worker.

A task of Dask's goes from the client to the scheduler and to a worker, its state back to the scheduler and the client,
and its result by the same way once more; each of these messages waits for others that may go with it. A step of tasks
takes 20 to 40 ms however small its partitions are. Persisted ones need no scheduling: who has them is asked once, and
their workers are called.

Calls keep Dask's rules: partitions are read one after the other in the worker's own threads for tasks, and each worker
runs one call at a time. (Beside it, one task may run that holds the worker's resource.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from dask._task_spec import DataNode, GraphNode
from distributed import worker as dask_workers

from daskboost.cluster.context import WorkerPlace
from daskboost.cluster.dask_plugins import worker_host
from daskboost.cluster.dask_watch import heard

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Client, Worker

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """What a worker is asked to do."""

    run: str
    """The name of all calls that belong together."""
    tasks: Mapping[int, GraphNode] = field(repr=False)
    """Tasks by the numbers of their partitions; all that they take lies in the worker's memory, or is shared."""
    shared: Mapping[Key, Any] = field(repr=False)
    """What tasks take besides, by its key."""
    end: Callable[[WorkerPlace], Any] | None = None
    """What is called once all tasks have run."""


Answer = tuple[dict[int, Any], Any]
"""Results by partition, without those that were moved away meanwhile; what the call's end gave."""


async def places_of(
    client: Client, graph: Mapping[Any, GraphNode], keys: Sequence[str], owners: Sequence[str] | None
) -> list[str | None]:
    """Return, of each key's task, the worker in whose memory all lies that it reads; None where a task is better.

    Parameters
    ----------
    client : distributed.Client
        On whose event loop the coroutine runs.
    graph : mapping
        Tasks by their keys; what they take that is not in it is the result of a future.
    keys : sequence of str
    owners : sequence of str, optional
        The worker of each task, if it is bound to one: only what lies there counts. Without, workers that have none of
        the partitions may be given some by Dask, so that all is left to it where there are such.
    """
    read = [_read_from_memory(graph, key) for key in keys]
    wanted = {name for names in read for name in names}
    if not wanted or not hasattr(dask_workers, "_worker_cvar"):
        return [None] * len(keys)
    assert client.scheduler is not None
    has, found = await asyncio.gather(
        client.scheduler.who_has(keys=list(wanted)), client.scheduler.identity(n_workers=0)
    )
    places: list[str | None] = []
    n_tasks: Counter[str] = Counter()
    for number, names in enumerate(read):
        common = set[str].intersection(*(set(has.get(name, ())) for name in names)) if names else set[str]()
        # Dask may have copied some partitions: of the workers that have one, that is called which has fewest so far.
        least = min(common, key=lambda worker: (n_tasks[worker], worker), default=None)
        own = least if owners is None else owners[number]
        places.append(own if own in common else None)
        n_tasks.update([own] if own in common else [])
    if owners is None and len({*places} - {None}) < min(found["n_workers"], len(keys)):
        return [None] * len(keys)
    return places


def _read_from_memory(graph: Mapping[Any, GraphNode], key: str) -> list[Any]:
    """Return what a task reads that a worker may have; nothing where other tasks come before it."""
    taken = graph[key].dependencies
    if any(name in graph and not isinstance(graph[name], DataNode) for name in taken):
        return []
    return [name for name in taken if name not in graph]


async def call(client: Client, worker: str, asked: Call, step: str) -> Answer:
    """Call a worker, whose plugin is there.

    Raises
    ------
    WorkerLostError
        It is gone, or shows no sign of life.
    Exception
        What a task raised, as it was.
    """
    found: dict[str, Answer] = await heard(client, client.run(_called, asked, workers=[worker]), step, [worker])
    return found[worker]


async def stop(client: Client, run: str, workers: list[str]) -> None:
    """Let calls begin no further tasks."""
    if workers:
        await client.run(_stop, run, workers=workers, on_error="ignore")


def _stop(run: str, dask_worker: Worker) -> None:
    worker_host(dask_worker).stopped.append(run)


async def _called(asked: Call, dask_worker: Worker) -> Answer:
    host, results = worker_host(dask_worker), dict[int, Any]()
    async with host.turn:
        for index, task in asked.tasks.items():
            if asked.run in host.stopped:
                break
            try:
                given = {name: _given(name, asked, dask_worker) for name in task.dependencies}
            except KeyError:
                continue
            results[index], _ = await _in_thread(dask_worker, task, given)
            del given
        return results, None if asked.end is None else await _in_thread(dask_worker, asked.end, host.place)


def _given(name: Key, asked: Call, worker: Worker) -> object:
    return asked.shared[name] if name in asked.shared else worker.data[name]


async def _in_thread(worker: Worker, function: Callable[[A], T], argument: A) -> T:
    """Call a function as a task is called: in one of the worker's threads, which knows its worker."""

    def run() -> T:
        token = dask_workers._worker_cvar.set(worker)
        try:
            return function(argument)
        finally:
            dask_workers._worker_cvar.reset(token)

    return await asyncio.get_running_loop().run_in_executor(worker.executors["default"], run)
