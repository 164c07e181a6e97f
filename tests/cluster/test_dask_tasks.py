"""Tasks that turn partitions into shards on workers."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import (
    drop_shards,
    eventually,
    local_cluster,
    map_workers,
    submit_partitions,
    worker_addresses,
)
from cluster.partition_functions import (
    alone_here,
    closed,
    closed_shards,
    datasets,
    describe,
    die_on_two,
    fail_on_two,
    keep,
    keep_with_plan,
    late_may_end,
    n_begun,
    outlive,
    read,
    rows,
)
from dask import delayed
from distributed import Client, wait

from daskboost.cluster import dask_tasks
from daskboost.cluster.context import WorkerShards
from daskboost.cluster.dask_plugins import worker_host
from daskboost.cluster.dask_tasks import submit, submit_and_end
from daskboost.errors import DataError, WorkerLostError


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(threads_per_worker=2) as client:
        yield client


def owners(done: list[tuple[Any, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, (_, worker) in enumerate(done):
        found.setdefault(worker, []).append(index)
    return found


@pytest.mark.parametrize("how", ["arguments", "shared"])
def test_shards_stay_where_their_partitions_were_read_one_at_a_time(client: Client, how: str) -> None:
    partitions = [delayed(read)(index) for index in range(20)]
    if how == "arguments":
        done = submit_partitions(client, partitions, keep, how, 3)
    else:
        plan = {"dataset": how, "factor": 3}
        done = submit_partitions(client, partitions, keep_with_plan, shared=plan)
    assert [result for result, _ in done] == [3 * index for index in range(20)]
    here = map_workers(client, describe, how, workers=worker_addresses(client))
    assert {worker: found for worker, (found, *_) in here.items() if found} == owners(done)
    # Two threads per worker, yet never two partitions in memory: reading is part of the task. (Which worker reads how
    # many is Dask's choice.)
    assert max(most for _, most, *_ in here.values()) == 1
    assert all(n_threads == 2 and memory > 0 for _, _, n_threads, memory in here.values())
    drop_shards(client, how)
    here = map_workers(client, describe, how, workers=worker_addresses(client))
    assert [found for found, *_ in here.values()] == [[], []]
    gone = map_workers(client, closed_shards, workers=worker_addresses(client))
    assert sum(map(len, gone.values())) % 20 == 0


@pytest.mark.parametrize("persisted", [False, True])
def test_partitions_of_a_dataframe_lazy_or_persisted(client: Client, persisted: bool) -> None:
    frame = pd.DataFrame({"x": np.arange(100.0), "y": 1})
    lazy = dd.from_pandas(frame, npartitions=7).map_partitions(lambda part: part[part.x % 10 != 3])
    if persisted:
        lazy = lazy.persist()
        wait(lazy)
    done = submit_partitions(client, lazy.to_delayed(), rows)
    lengths = lazy.map_partitions(len).compute().tolist()
    assert [result for result, _ in done] == list(enumerate(lengths))
    joined = [delayed(list)([x, y]) for x, y in zip(lazy.to_delayed(), lazy["y"].to_delayed(), strict=True)]
    assert [result for result, _ in submit_partitions(client, joined, rows)] == [(i, 2) for i in range(7)]


@pytest.fixture
def no_stealing(client: Client) -> Iterator[None]:
    """Tasks stay with the worker that the scheduler first chose; else an idle one may take them and copy their data."""

    async def switch(on: bool, dask_scheduler: Any) -> None:
        stealing = dask_scheduler.extensions["stealing"]
        await (stealing.start() if on else stealing.stop())

    client.run_on_scheduler(switch, False)
    yield
    client.run_on_scheduler(switch, True)


@pytest.mark.usefixtures("no_stealing")
def test_persisted_partitions_are_read_where_they_lie(client: Client) -> None:
    workers = worker_addresses(client)
    futures = [
        client.submit(np.ones, 2_000_000, workers=[workers[index % 2]], pure=False, allow_other_workers=False)
        for index in range(6)
    ]
    wait(futures)
    done = submit_partitions(client, [delayed(future) for future in futures], rows)
    assert [worker for _, worker in done] == [workers[index % 2] for index in range(6)]


@pytest.mark.parametrize("kind", ["delayed", "futures"])
def test_partitions_of_a_dataframe_of_other_parts(client: Client, kind: str) -> None:
    parts = [pd.DataFrame({"x": np.arange(float(n))}) for n in range(1, 5)]
    lazy = [delayed(part) for part in parts] if kind == "delayed" else client.scatter(parts, hash=False)
    frame = dd.from_delayed(lazy, meta=parts[0][:0], verify_meta=False)
    done = submit_partitions(client, frame.to_delayed(), rows)
    assert [result for result, _ in done] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_partitions_of_released_futures_are_refused(client: Client) -> None:
    futures = client.scatter([np.ones(3), np.ones(4)], hash=False)
    frame = dd.from_delayed([delayed(pd.Series)(future) for future in futures], meta=(None, float), verify_meta=False)
    partitions = frame.to_delayed()
    futures[1].release()
    assert eventually(lambda: not client.run_on_scheduler(is_known, futures[1].key), 5)
    with pytest.raises(WorkerLostError, match=r"partitions cannot be read: .*make the collection again"):
        submit_partitions(client, partitions, rows)


def is_known(key: str, dask_scheduler: Any) -> bool:
    return key in dask_scheduler.tasks


def test_a_tasks_exception_is_raised_as_it_was_and_stops_the_rest(client: Client) -> None:
    with pytest.raises(DataError, match="partition 2: labels are missing"):
        submit_partitions(client, [delayed(list)([index]) for index in range(50)], fail_on_two)

    def idle() -> bool:
        return not any(client.processing().values())

    assert eventually(idle, 20)


def test_a_lost_worker_is_named_and_not_called_for_half_a_minute(client: Client) -> None:
    with socket.socket() as nobody:  # bound, so that nobody else takes the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        gone = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(WorkerLostError, match=f"worker {gone} was lost"):
            map_workers(client, describe, "any", workers=[*worker_addresses(client), gone])
        with pytest.raises(WorkerLostError, match=f"worker {gone} was lost"):
            client.sync(submit, client, [delayed(list)([1])], rows, (), owners=[gone], step="reading")
        assert time.monotonic() - started < 20


def test_tasks_bound_to_a_worker_need_no_package_on_the_scheduler(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ModuleNotFoundError("No module named 'daskboost'")

    monkeypatch.setattr(Client, "run_on_scheduler", refuse)
    chosen = worker_addresses(client)[1]
    done = client.sync(submit, client, [delayed(list)([1])] * 3, rows, (), owners=[chosen] * 3, step="reading")
    assert done == [((index, 1), chosen) for index in range(3)]


def test_a_task_that_outlives_its_data_set_leaves_nothing() -> None:
    """Cancelling does not stop it."""
    with local_cluster(processes=False) as client:
        workers = worker_addresses(client)
        with pytest.raises(DataError, match="partition 0 is bad"):
            submit_partitions(client, [delayed(list)([index]) for index in range(2)], outlive, "outlived")
        drop_shards(client, "outlived")
        before = len(closed)
        late_may_end.set()
        assert eventually(lambda: closed[before:] == [1], 30)
        assert not any("outlived" in names for names in map_workers(client, datasets, workers=workers).values())


def test_no_partitions_are_no_work(client: Client) -> None:
    assert submit_partitions(client, [], rows) == []


def test_an_async_client_awaits() -> None:
    async def main() -> None:
        async with Client(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", asynchronous=True
        ) as client:
            done = await submit_partitions(client, [delayed(list)([1, 2])], rows)
            assert done[0][0] == (0, 2)

    asyncio.run(main())


def test_workers_of_one_process_keep_apart_and_drop_all_when_they_close() -> None:
    with local_cluster(processes=False) as client:
        done = submit_partitions(client, [delayed(read)(index) for index in range(1, 9)], keep, "apart")
        cluster: Any = client.cluster
        hosts = {worker.address: worker_host(worker) for worker in cluster.workers.values()}
        for worker, found in owners(done).items():
            assert sorted(hosts[worker].shards.parts("apart")) == found
    assert all(host.shards.datasets() == [] for host in hosts.values())


def test_a_users_own_amount_of_the_resource_is_respected() -> None:
    with dask.config.set({"distributed.worker.resources": {"daskboost": 3}}), local_cluster(processes=False) as client:
        submit_partitions(client, [delayed(list)([1])], rows)
        cluster: Any = client.cluster
        assert all(worker.state.total_resources == {"daskboost": 3} for worker in cluster.workers.values())


def test_shards_close_what_is_replaced_or_dropped() -> None:
    class Part:
        def __init__(self, fails: bool = False) -> None:
            self.fails = fails
            self.closed = 0

        def close(self) -> None:
            self.closed += 1
            if self.fails:
                raise OSError("disk gone")

    shards = WorkerShards()
    first, second, other = Part(), Part(fails=True), Part()
    shards.put("a", 0, first)
    shards.put("a", 0, first)
    assert first.closed == 0
    shards.put("a", 0, second)
    shards.put("b", 0, other)
    shards.drop("gone")
    late = Part()
    shards.put("gone", 0, late)
    assert late.closed == 1
    assert (first.closed, shards.datasets(), shards.parts("a")) == (1, ["a", "b"], {0: second})
    with pytest.raises(OSError, match="disk gone"):
        shards.close()
    assert (second.closed, other.closed, shards.datasets()) == (1, 1, [])


@pytest.fixture
def no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be given to Dask as a task."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a task was made")

    monkeypatch.setattr(Client, "get", refuse)


def pinned(client: Client, n: int, lengths: int = 3) -> list[Any]:
    """Partitions in the memory of the workers in turn."""
    workers = worker_addresses(client)
    futures = [client.submit(np.ones, lengths, workers=[workers[i % 2]], pure=False) for i in range(n)]
    wait(futures)
    return [delayed(future) for future in futures]


@pytest.mark.parametrize("shared", [None, {"dataset": "called with a plan", "factor": 2}])
@pytest.mark.usefixtures("no_tasks")
def test_workers_that_have_partitions_are_called(client: Client, shared: dict[str, Any] | None) -> None:
    workers, partitions = worker_addresses(client), pinned(client, 5)
    name = "called" if shared is None else shared["dataset"]
    function, arguments = (keep, (name, 2)) if shared is None else (keep_with_plan, ())
    done, ended = client.sync(
        submit_and_end, client, partitions, function, arguments, shared, step="reading", end=datasets
    )
    assert done == [(6, workers[index % 2]) for index in range(5)]
    assert all(name in ended[worker] for worker in workers)
    drop_shards(client, name)


def test_partitions_on_one_worker_are_left_to_dask(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have others read them, which are idle."""
    asked: list[Any] = []
    get: Any = Client.get

    def noted(self: Client, graph: Any, keys: Any, **options: Any) -> Any:
        asked.append(keys)
        return get(self, graph, keys, **options)

    monkeypatch.setattr(Client, "get", noted)
    first = worker_addresses(client)[0]
    futures = [client.submit(np.ones, 3, workers=[first], pure=False) for _ in range(4)]
    wait(futures)
    done, ended = client.sync(
        submit_and_end, client, list(map(delayed, futures)), rows, (), None, step="reading", end=datasets
    )
    assert [result for result, _ in done] == [(index, 3) for index in range(4)]
    assert ended.keys() == {worker for _, worker in done}
    assert asked


def test_only_owners_that_have_their_partitions_are_called(client: Client) -> None:
    workers, partitions = worker_addresses(client), pinned(client, 4)
    owners = [workers[0]] * 3 + [workers[1]]  # the second lies elsewhere
    done, ended = client.sync(
        submit_and_end, client, partitions, rows, (), None, step="reading", owners=owners, end=datasets
    )
    assert done == [((index, 3), owner) for index, owner in enumerate(owners)]
    assert ended.keys() == set(workers)


def test_what_was_moved_before_a_call_comes_by_a_task(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, partitions = worker_addresses(client), pinned(client, 4)

    async def outdated(*arguments: Any) -> list[str | None]:
        return [workers[1], workers[1], workers[0], workers[0]]

    monkeypatch.setattr(dask_tasks, "places_of", outdated)
    done, ended = client.sync(
        submit_and_end, client, partitions, rows, (), None, step="reading", end=datasets
    )
    assert [result for result, _ in done] == [(index, 3) for index in range(4)]
    assert [done[index][1] for index in (1, 2)] == [workers[1], workers[0]]
    assert ended.keys() == {worker for _, worker in done}


@pytest.mark.usefixtures("no_tasks")
def test_a_calls_exception_is_raised_as_it_was_and_stops_the_rest(client: Client) -> None:
    before = max(map_workers(client, n_begun, workers=worker_addresses(client)).values())
    with pytest.raises(DataError, match="partition 2: labels are missing"):
        submit_partitions(client, pinned(client, 60), fail_on_two)
    time.sleep(0.3)
    begun = map_workers(client, n_begun, workers=worker_addresses(client))
    time.sleep(0.3)
    assert map_workers(client, n_begun, workers=worker_addresses(client)) == begun
    assert max(begun.values()) - before < 25


@pytest.mark.usefixtures("no_tasks")
def test_calls_of_one_worker_take_turns_and_know_their_worker(client: Client) -> None:
    async def both(lists: list[list[Any]]) -> list[Any]:
        return list(await asyncio.gather(*(
            submit(client, partitions, alone_here, (), step="reading") for partitions in lists
        )))  # fmt: skip

    found = client.sync(both, [pinned(client, 6), pinned(client, 6)])
    assert all(is_alone for done in found for (_, is_alone), _ in done)
    assert all(named == worker for done in found for (named, _), worker in done)


def test_a_worker_that_dies_in_a_call_is_lost() -> None:
    with local_cluster() as client:
        with pytest.raises(WorkerLostError, match="was lost"):
            submit_partitions(client, pinned(client, 4), die_on_two)


@pytest.mark.parametrize("n_turns", range(1, 6))
def test_steps_cancelled_as_they_begin_leave_nothing_unawaited(client: Client, n_turns: int) -> None:
    """asyncio reports a coroutine that was made and never awaited, which tests turn into failures."""

    async def cancelled() -> None:
        step = asyncio.ensure_future(submit(client, [delayed(list)([1])], rows, (), step="reading"))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        assert step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        gc.collect()

    client.sync(cancelled)
