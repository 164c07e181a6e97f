"""What daskboost adds to a cluster: there for everyone who asks at once, for workers that come later, and until the
end is told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from cluster.dask_fixtures import ask, local_cluster, submit_partitions, toy_engines, worker_addresses
from cluster.toys import Die, Sleep, Sum
from dask import delayed
from distributed import Client, Worker

from daskboost.cluster import dask_plugins
from daskboost.cluster.dask_coordinator import ChannelEngines
from daskboost.cluster.on_dask import run_fit
from daskboost.errors import FitCancelledError, WorkerLostError


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster() as client:
        yield client


def test_two_threads_that_come_to_a_new_cluster_at_once_both_find_it_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask answers the second before the workers are ready; its tasks then found no worker with the resource, ever."""
    set_resources = Worker.set_resources

    async def slowly(worker: Worker, **resources: float) -> None:
        await asyncio.sleep(0.5)
        await set_resources(worker, **resources)

    monkeypatch.setattr(Worker, "set_resources", slowly)

    def count(client: Any) -> list[int]:
        done = submit_partitions(client, [delayed(list)([1, 2])] * 4, lambda part, place, index: len(part))
        return [result for result, _ in done]

    with local_cluster(processes=False) as client, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(count, [client] * 2)) == [[2] * 4] * 2


def test_the_replacement_of_the_only_worker_takes_over_its_partitions(tmp_path: Path) -> None:
    """Dask looks for tasks without a worker when one joins, and ours has no resource yet then."""
    died = tmp_path / "died"

    def die_once(partition: Any, place: Any, index: int) -> int:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    with local_cluster(n_workers=1) as client:
        first = worker_addresses(client)
        done = submit_partitions(client, [delayed(list)([index]) for index in range(4)], die_once)
        assert [result for result, _ in done] == [0, 1, 2, 3]
        assert {worker for _, worker in done}.isdisjoint(first)


def test_a_fit_with_extras_ends_soon_after_a_worker_died() -> None:
    """Nobody calls the dead worker for half a minute to forget what it was given."""
    at: list[float] = []
    with local_cluster() as client:
        engines = toy_engines(client)
        run_fit(client, engines, ask(Sum([1])))  # all is imported
        with pytest.raises(WorkerLostError, match=r"\(engine 1\) was lost in Die"):
            run_fit(client, engines, ask(Die(1), report=True), extras={"an": "extra"},
                    on_progress=lambda event: at.append(time.monotonic()))  # fmt: skip
        assert time.monotonic() - at[0] < 10  # CLEAN_UP_S and a slow machine; Dask would call for 30


def test_a_closing_scheduler_first_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the coordinator's thread takes to end."""
    close = ChannelEngines.close

    def slowly(engines: Any) -> None:
        time.sleep(1.0)
        close(engines)

    monkeypatch.setattr(ChannelEngines, "close", slowly)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "5s"}),
        local_cluster() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        cluster: Any = client.cluster
        closing: list[Any] = []

        def close_scheduler(event: dict[str, Any]) -> None:
            closing.append(pool.submit(cluster.sync, cluster.scheduler.close))

        with pytest.raises(FitCancelledError, match="cancelled: the scheduler closes"):
            run_fit(client, toy_engines(client), ask(Sleep(60), report=True), on_progress=close_scheduler)
        closing[0].result(60)


def test_a_scheduler_without_the_package_leaves_the_fit_to_the_client(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unwelcome(dask_plugins.DaskboostScheduler):
        """Raises on the scheduler what a missing package raises when the plugin is unpickled there."""

        idempotent = False

        def __reduce__(self) -> Any:
            return __import__, ("daskboost_is_not_installed",)

    monkeypatch.setattr(dask_plugins, "DaskboostScheduler", Unwelcome)
    with caplog.at_level(logging.WARNING, "daskboost"):
        outcome = run_fit(client, toy_engines(client), ask(Sum([1])))
    assert outcome["replies"] == [[1, 2]]
    assert outcome["place"] == "client"
    assert "coordinated by the client, because the scheduler cannot: ModuleNotFoundError" in caplog.text
    with pytest.raises(RuntimeError, match="the scheduler cannot coordinate the fit: ModuleNotFoundError"):
        run_fit(client, toy_engines(client), ask(Sum([1])), place="scheduler")


def test_a_worker_without_the_package_is_an_error_that_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unwelcome(dask_plugins.DaskboostWorker):
        idempotent = False

        def __reduce__(self) -> Any:
            return __import__, ("daskboost_is_not_installed",)

    monkeypatch.setattr(dask_plugins, "DaskboostWorker", Unwelcome)
    with pytest.raises(RuntimeError, match="install the client's version of daskboost on every worker"):
        run_fit(client, toy_engines(client), ask(Sum([1])))
    monkeypatch.undo()
    assert run_fit(client, toy_engines(client), ask(Sum([1])))["replies"] == [[1, 2]]


def test_a_worker_on_which_the_plugin_never_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client may have begun to set it up, in vain."""
    monkeypatch.setattr(dask_plugins, "SETUP_S", 0.5)
    with local_cluster(processes=False) as client:
        run_fit(client, toy_engines(client), ask(Sum([1])))
        cluster: Any = client.cluster
        worker = cluster.workers[0]
        host = worker.extensions.pop(dask_plugins.PLUGIN)
        assert client.scheduler is not None
        try:
            with (
                Client(client.scheduler.address) as other,
                pytest.raises(RuntimeError, match=f"did not start on worker {worker.address} within 0.5 s"),
            ):
                run_fit(other, toy_engines(client), ask(Sum([1])))
        finally:
            worker.extensions[dask_plugins.PLUGIN] = host
