"""Dask tasks that read partitions where they lie and leave shards on their workers, one at a time per worker.

Quantizing a partition needs about five times its size. So each such task takes the worker resource `daskboost`, of
which a worker has one, is fused with the reading of its partition, so that no two partitions wait in memory, and its
small result is released as soon as it is known. A task whose partition lies in a worker's memory is called there
instead (`dask_calls.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
from dask.optimization import cull

from daskboost.cluster.context import WorkerPlace
from daskboost.cluster.dask_calls import Call, call, places_of, stop
from daskboost.cluster.dask_plugins import RESOURCE, ensure_worker_plugin, worker_host
from daskboost.cluster.dask_watch import clean_up, event_loop, heard, on_loop
from daskboost.errors import WorkerLostError

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future, Worker

PartitionFunction = Callable[..., Any]
"""`function(partition, place, index, *arguments)`; small result."""


async def call_on_workers(
    client: Client, function: Callable[..., Any], arguments: tuple[Any, ...], workers: list[str], step: str
) -> dict[str, Any]:
    """Call `function(place, *arguments)` once on each of some workers, in a thread; return {address: result}.

    The coroutine is for the client's own event loop; `step` says in messages what it is for.

    Raises
    ------
    WorkerLostError
        One of the workers is gone, or shows no sign of life.
    """
    await ensure_worker_plugin(client)
    called = client.run(_call_with_place, function, arguments, workers=workers)
    results: dict[str, Any] = await heard(client, called, step, workers)
    return results


async def _call_with_place(function: Callable[..., Any], arguments: tuple[Any, ...], dask_worker: Worker) -> Any:
    """Run beside the worker's event loop, which must not wait for disks."""
    return await asyncio.to_thread(function, worker_host(dask_worker).place, *arguments)


async def drop(client: Client, *datasets: str) -> None:
    """Drop data sets' shards on all workers (see `WorkerShards.drop`); those that do not answer do it when they can.

    The coroutine is for the client's own event loop.
    """
    await clean_up(client, lambda: client.run(_drop, *datasets, on_error="ignore"))


def drop_later(client_ref: Callable[[], Client | None], name: str) -> None:
    """Drop a data set without waiting: one that is garbage-collected may be so in any thread."""
    client = client_ref()
    if client is not None and client.status == "running":
        asyncio.run_coroutine_threadsafe(drop(client, name), event_loop(client))


def _drop(*datasets: str, dask_worker: Worker) -> None:
    for dataset in datasets:
        worker_host(dask_worker).shards.drop(dataset)


async def submit(
    client: Client,
    partitions: Sequence[Delayed],
    function: PartitionFunction,
    arguments: tuple[Any, ...],
    shared: Any = None,
    *,
    step: str,
    owners: Sequence[str] | None = None,
) -> list[tuple[Any, str]]:
    """Run a function on every partition, on whichever worker is best placed, and forget the partitions.

    Parameters
    ----------
    client : distributed.Client
        On whose event loop the coroutine runs.
    partitions : sequence of dask.delayed.Delayed
        Lazy, or of persisted data; each is read where the function runs.
    function : callable
        `function(partition, place, index, *arguments)`: of an importable module; `place` is a `WorkerPlace`, whose
        shards it may fill; its result must be small. It may run twice for one partition, if a worker dies.
    arguments : tuple
        Passed on to every call; each task carries its own copy.
    shared
        Passed on to every call before `arguments`, if not None; sent to each worker once.
    step : str
        What the function is for, in messages.
    owners : sequence of str, optional
        The worker of each partition, which it is bound to.

    Returns
    -------
    list of (result, worker address)
        In the order of the partitions.

    Raises
    ------
    WorkerLostError
        A worker shows no sign of life, or one that partitions are bound to, or lie on, is gone.
    SchedulerLostError
        The scheduler is gone.
    Exception
        What the function raised, as it was; what has not begun is cancelled.
    """
    return (await submit_and_end(client, partitions, function, arguments, shared, step=step, owners=owners))[0]


async def submit_and_end(
    client: Client, partitions: Sequence[Delayed], function: PartitionFunction, arguments: tuple[Any, ...], shared: Any,
    *, step: str, owners: Sequence[str] | None = None, end: Callable[[WorkerPlace], Any] | None = None,
) -> tuple[list[tuple[Any, str]], dict[str, Any]]:  # fmt: skip
    """`submit`, and then `end(place)` on each worker that ran the function; also return what it gives there, by worker.

    The result of `end` must be small; one without it gives nothing.
    """
    work = _Work(client, *_build_graph(partitions, function, arguments, shared), step, owners)
    _, places = await asyncio.gather(ensure_worker_plugin(client), work.places())
    at: dict[str, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        if place is not None:
            at[place].append(index)
    calls = [call(client, worker, work.call(indices, end), step) for worker, indices in at.items()]
    try:
        others = [index for index, place in enumerate(places) if place is None]
        by_tasks, *answers = await together(work.by_tasks(others), *calls)
        by_calls = {
            index: (result, worker) for worker, (results, _) in zip(at, answers, strict=True)
            for index, result in results.items()
        }  # fmt: skip
        # What was moved away just before its worker read it comes by a task.
        moved = [index for indices in at.values() for index in indices if index not in by_calls]
        by_tasks |= await work.by_tasks(moved)
    except BaseException:
        await clean_up(client, lambda: stop(client, work.run, list(at)))
        raise
    done = by_calls | by_tasks
    results = [done[index] for index in range(len(partitions))]
    if end is None:
        return results, {}
    late = sorted({worker for _, worker in by_tasks.values()})
    ended = {worker: given for worker, (_, given) in zip(at, answers, strict=True)}
    if late:
        ended |= await call_on_workers(client, end, (), late, step)
    return results, {worker: ended[worker] for worker in {worker for _, worker in results}}


async def together(*works: Awaitable[Any]) -> list[Any]:
    """Await several at once; where one fails, end the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


@dataclass(frozen=True)
class _Work:
    """Partitions that a function is to be run on."""

    client: Client
    run: str
    graph: dict[Any, GraphNode]
    """A task for each key, and what it reads that is not in some worker's memory."""
    keys: list[str]
    step: str
    owners: Sequence[str] | None

    async def places(self) -> list[str | None]:
        """Return the worker that may be called for each partition; None for those that are left to Dask."""
        # Made only here: a coroutine that is never awaited, as this method was cancelled first, would be reported.
        asked = places_of(self.client, self.graph, self.keys, self.owners)
        return await heard(self.client, asked, self.step, ())

    def call(self, indices: Sequence[int], end: Callable[[WorkerPlace], Any] | None) -> Call:
        """Return what a worker is asked that has some partitions in its memory."""
        tasks = {index: self.graph[self.keys[index]] for index in indices}
        taken = {name: self.graph.get(name) for task in tasks.values() for name in task.dependencies}
        shared = {name: node.value for name, node in taken.items() if isinstance(node, DataNode)}
        return Call(self.run, tasks, shared, end)

    async def by_tasks(self, indices: Sequence[int]) -> dict[int, tuple[Any, str]]:
        """Have Dask run the tasks of some partitions; return what each gives, and its worker."""
        client, owners = self.client, self.owners
        if not indices:
            return {}
        futures: dict[str, Future[Any]] = {}
        keys = [self.keys[index] for index in indices]
        bound = None if owners is None else [owners[index] for index in indices]
        try:
            for worker, some in _by_owner(keys, bound).items():
                part, workers = cull(self.graph, some)[0], None if worker is None else [worker]
                asked = client.get(part, some, sync=False, resources={RESOURCE: 1}, workers=workers)
                futures.update(zip(some, asked, strict=True))
            # Tasks bound to a worker that died would wait for ever; whatever they read may lie on any worker.
            needed = None if bound is None else sorted(set(bound))
            found = await heard(client, _collect(client, [futures[key] for key in keys]), self.step, needed)
            return dict(zip(indices, found, strict=True))
        except BaseException:
            await clean_up(client, lambda: client.cancel(list(futures.values())))
            raise


def _by_owner(keys: Sequence[str], owners: Sequence[str] | None) -> dict[str | None, list[str]]:
    """Return the keys of tasks by the worker that they are bound to; None of those that are bound to none."""
    if owners is None:
        return {None: [*keys]}
    found: dict[str | None, list[str]] = defaultdict(list)
    for key, owner in zip(keys, owners, strict=True):
        found[owner].append(key)
    return found


async def _collect(client: Client, futures: list[Future[Any]]) -> list[Any]:
    """Results in the futures' order, each released as soon as it is there."""
    from distributed import as_completed

    positions = {future.key: index for index, future in enumerate(futures)}
    results: list[Any] = [None] * len(futures)
    async for future, result in as_completed(futures, loop=client.loop, with_results=True):
        if future.cancelled():  # then the result is an exception, which is not raised
            raise WorkerLostError(
                "partitions cannot be read: what they are computed from was released, or lost with a worker "
                f"({result}); make the collection again"
            )
        results[positions[future.key]] = result
        future.release()
    return results


async def workers_of(client: Client) -> list[str]:
    """Return the addresses of the cluster's workers: what every scheduler tells, which may lack this package."""
    assert client.scheduler is not None
    found = await heard(client, client.scheduler.identity(n_workers=-1), "looking for workers", ())
    return list(found["workers"])


def compute(client: Client, lazy: Sequence[Any]) -> list[Any]:
    """Compute Dask objects on the client's cluster, in one go; from any thread but its event loop's.

    Raises
    ------
    WorkerLostError
        A worker shows no sign of life.
    """

    async def computed() -> list[Any]:
        futures = client.compute(list(lazy))
        try:
            results: list[Any] = await heard(client, client.gather(futures, asynchronous=True), "computing")
        except BaseException:
            await clean_up(client, lambda: client.cancel(futures))
            raise
        return results

    return on_loop(client, computed())


def _build_graph(
    partitions: Sequence[Delayed], function: PartitionFunction, arguments: tuple[Any, ...], shared: Any
) -> tuple[str, dict[Any, GraphNode], list[str]]:
    """A name, and one task per partition, fused with what reads it; the result's keys follow from the name, which is
    new, so nothing is reused."""
    parts: dict[int, Any] = {}
    for partition in partitions:  # partitions of one collection share its graph
        graph = partition.__dask_graph__()
        parts.setdefault(id(graph), graph)
    merged: dict[Any, Any] = {}
    for graph in parts.values():
        merged.update(graph)
    tasks = {  # `from_delayed` makes aliases that are filed under one key and call themselves by another
        key: Alias(key, node.target) if isinstance(node, Alias) and node.key != key else node
        for key, node in convert_legacy_graph(merged).items()
    }
    run = secrets.token_hex(8)
    keys = [f"daskboost-partition-{run}-{index}" for index in range(len(partitions))]
    fixed = set(keys)
    if shared is not None:
        shared_key = f"daskboost-shared-{run}"
        tasks[shared_key] = DataNode(shared_key, shared)
        fixed.add(shared_key)
        arguments = (TaskRef(shared_key), *arguments)
    for index, (key, partition) in enumerate(zip(keys, partitions, strict=True)):
        tasks[key] = Task(key, run_on_partition, TaskRef(partition.key), function, index, *arguments)
    culled, _ = cull(tasks, keys)
    return run, fuse_private(culled, keys, fixed), keys


def fuse_private(graph: Mapping[Any, GraphNode], keys: Sequence[Any], fixed: Collection[Any]) -> dict[Any, GraphNode]:
    """Fuse into each key's task everything that only it needs, and so that it is never done ahead of it.

    Dask's own fusing stops at tasks with several inputs: features and labels of a partition would wait in memory for
    their turn. Tasks in `fixed`, and those that forbid it, stay on their own.
    """
    dependents: dict[Any, set[Any]] = defaultdict(set)
    for key, node in graph.items():
        for dependency in node.dependencies:
            dependents[dependency].add(key)
    result = dict(graph)
    for key in keys:
        inside = {key: graph[key]}
        open_nodes = [graph[key]]
        while open_nodes:
            for name in open_nodes.pop().dependencies:
                needed = graph.get(name)  # None: the result of a future
                if needed is None or name in inside or name in fixed or needed.block_fusion:
                    continue
                if dependents[name] <= inside.keys():
                    inside[name] = needed
                    open_nodes.append(needed)
        for name in inside:
            del result[name]
        result[key] = GraphNode.fuse(*inside.values(), key=key) if len(inside) > 1 else graph[key]
    return result


def run_on_partition(partition: Any, function: PartitionFunction, index: int, *arguments: Any) -> tuple[Any, str]:
    """The task: calls the function with this worker's place."""
    from distributed import get_worker

    place: WorkerPlace = worker_host(get_worker()).place
    return function(partition, place, index, *arguments), place.address
