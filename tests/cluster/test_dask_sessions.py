"""Fits with toy engines on real clusters of Dask: what works, and how it ends when something does not."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from cluster.dask_fixtures import (
    all_freed,
    ask,
    check_prompt,
    during_fit,
    eventually,
    fit_async,
    local_cluster,
    running_fits,
    toy_engines,
    worker_addresses,
)
from cluster.toys import Die, Echo, FailInScatter, Raise, Scatter, Script, Sleep, Sum, expected_scatter
from distributed import Client

from daskboost.cluster import dask_comms, dask_plugins, on_dask
from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_coordinator import FitRequest
from daskboost.cluster.limits import SILENCE_KEY, SILENCE_S
from daskboost.cluster.on_dask import run_fit
from daskboost.errors import (
    DaskBoostError,
    DataError,
    EngineError,
    FitCancelledError,
    SchedulerLostError,
    WorkerLostError,
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster() as client:
        yield client


@pytest.fixture(params=["processes", "threads", "tls"])
def any_client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "processes":
        yield request.getfixturevalue("client")
        return
    with local_cluster(processes=request.param == "tls", tls=request.param == "tls") as client:
        yield client


@pytest.mark.parametrize("place", ["scheduler", "client"])
def test_a_fit_converses_and_reports(any_client: Client, place: Any) -> None:
    values = np.arange(1000)
    seen: list[dict[str, Any]] = []
    messages = (Sum(values), Scatter(10), Scatter(100_000, rounds=2), Echo(("x", {"y": b"z"})))
    outcome = run_fit(
        any_client, toy_engines(any_client), ask(*messages, report=True), on_progress=seen.append, place=place
    )
    sums, small, large, echoes = outcome["replies"]
    assert sums == [499500, 499501]
    assert [total.tolist() for total in small] == [expected_scatter(rank, 2, 10) for rank in range(2)]
    assert [total.tolist() for total in large] == [expected_scatter(rank, 2, 100_000, 2) for rank in range(2)]
    assert echoes == [("x", {"y": b"z"})] * 2
    assert outcome["place"] == place
    assert seen == [{"step": step, "message": type(message).__name__} for step, message in enumerate(messages)]
    assert all_freed(any_client)


def test_large_results_arrive_whole(client: Client) -> None:
    values = np.arange(8_000_000)
    outcome = run_fit(client, toy_engines(client), ask(Echo(values)))
    assert all(np.array_equal(echo, values) for echo in outcome["replies"][0])


def test_only_the_named_workers_take_part(client: Client) -> None:
    outcome = run_fit(client, toy_engines(client, "lonely")[1:], ask(Sum([1]), Scatter(3)))
    assert outcome["replies"][0] == [1]
    having = client.run(lambda dask_worker: dask_plugins.worker_host(dask_worker).shards.datasets())
    assert ["toy-lonely" in datasets for _, datasets in sorted(having.items())] == [False, True]


def test_two_fits_at_once_on_one_thread_workers_both_finish(client: Client) -> None:
    def fit(name: str) -> Any:
        return run_fit(client, toy_engines(client, name), ask(Sleep(0.5), Scatter(20_000, rounds=20), Sum([1])))

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(fit, ["first", "second"]))
    assert [outcome["replies"][2] for outcome in outcomes] == [[1, 2], [1, 2]]


def test_a_fit_runs_while_all_task_threads_are_taken(client: Client, tmp_path: Path) -> None:
    def block(worker: str) -> None:
        (tmp_path / worker).touch()
        while not (tmp_path / "end").exists():
            time.sleep(0.02)

    blockers = [
        client.submit(block, str(index), workers=[worker], pure=False)
        for index, worker in enumerate(worker_addresses(client))
    ]
    try:
        assert eventually(lambda: len(list(tmp_path.iterdir())) == len(blockers), 30)
        assert run_fit(client, toy_engines(client), ask(Sum([1])))["replies"] == [[1, 2]]
        assert not any(blocker.done() for blocker in blockers)
    finally:
        (tmp_path / "end").touch()
        client.gather(blockers)


def test_an_async_client_awaits_fits() -> None:
    async def main() -> None:
        from distributed import LocalCluster

        async with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", asynchronous=True) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.wait_for_workers(2, timeout=60)
            workers = sorted(cluster.scheduler.workers)
            engines = [(worker, RemoteCall.of("toys.open_toy", "toy")) for worker in workers]
            outcome = await fit_async(client, engines, ask(Sum([1])), lambda event: None)
            assert outcome["replies"] == [[1, 2]]

            working = asyncio.Event()
            sleep = ask(Sleep(60), report=True)
            task = asyncio.create_task(fit_async(client, engines, sleep, lambda event: working.set()))
            await working.wait()
            await asyncio.sleep(0.3)
            started = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while any((await client.run(running_fits)).values()):
                await asyncio.sleep(0.02)
            assert time.monotonic() - started < 20  # far from the end of the sleep

    with dask.config.set({"distributed.worker.preload": ["cluster.toys"]}):
        asyncio.run(main())


@pytest.mark.parametrize("place", ["scheduler", "client"])
def test_ctrl_c_ends_a_fit_within_a_second(client: Client, place: Any) -> None:
    def attempt() -> float:
        pressed = []

        def press() -> None:
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        with during_fit(press) as on_progress, pytest.raises(KeyboardInterrupt):
            run_fit(client, toy_engines(client), ask(Sleep(60), report=True), place=place, on_progress=on_progress)
        assert all_freed(client)
        return time.monotonic() - pressed[0]

    check_prompt(attempt, within_s=1.0)


def test_an_exception_in_a_progress_callback_ends_the_fit(client: Client) -> None:
    def fail(event: dict[str, Any]) -> None:
        raise LookupError("the callback's own")

    with pytest.raises(LookupError, match="the callback's own"):
        run_fit(client, toy_engines(client), ask(Sleep(30), report=True), on_progress=fail)
    assert all_freed(client)


def test_a_client_that_leaves_cancels_its_fit(client: Client) -> None:
    async def leave() -> None:
        other = await Client(client.scheduler_info()["address"], asynchronous=True)
        working = asyncio.Event()
        sleep = ask(Sleep(60), report=True)
        fit = asyncio.create_task(fit_async(other, toy_engines(client), sleep, lambda event: working.set()))
        await working.wait()
        await asyncio.sleep(0.3)
        fit.cancel()
        await other.close()
        await asyncio.gather(fit, return_exceptions=True)

    asyncio.run(leave())
    assert all_freed(client)


def test_an_exception_on_one_worker_surfaces_with_its_cause(any_client: Client) -> None:
    with pytest.raises(EngineError, match=r"engine 1 on .* failed in Raise: ValueError: no good") as caught:
        run_fit(any_client, toy_engines(any_client), ask(Raise(1, "no good")))
    assert "toys.py" in str(caught.value.__cause__) and "ValueError: no good" in str(caught.value.__cause__)
    assert all_freed(any_client)
    with pytest.raises(EngineError, match=r"engine 0 .* KeyError: 'the culprit'"):
        run_fit(any_client, toy_engines(any_client), ask(FailInScatter(0)))
    assert all_freed(any_client)


def test_engines_that_cannot_open_say_why(client: Client) -> None:
    with pytest.raises(EngineError, match=r"failed in OpenSession: OSError: no room for an engine"):
        run_fit(client, toy_engines(client, "unopenable"), ask(Sum([1])))
    with pytest.raises(EngineError, match=r"'toys.nowhere' is no function that .*same version"):
        run_fit(client, toy_engines(client, function="nowhere"), ask(Sum([1])))
    assert all_freed(client)


def test_a_coordinators_exceptions_keep_their_type_if_they_are_ours(client: Client) -> None:
    with pytest.raises(DataError, match="labels: nothing but NaN") as caught:
        run_fit(client, toy_engines(client), RemoteCall.of("toys.coordinate_badly", "ours"))
    assert "coordinate_badly" in str(caught.value.__cause__)
    with pytest.raises(DaskBoostError, match="the coordinator failed: ZeroDivisionError: a bug"):
        run_fit(client, toy_engines(client), RemoteCall.of("toys.coordinate_badly", "bug"))
    assert all_freed(client)


@pytest.mark.parametrize("place", ["scheduler", "client"])
@pytest.mark.parametrize("message", [Die(1), Scatter(10)], ids=["working", "exchanging"])
def test_a_killed_worker_ends_the_fit_and_is_named(place: Any, message: Any) -> None:
    with local_cluster() as client:
        engines = toy_engines(client)
        victim = engines[1][0]
        script = (Die(1),) if isinstance(message, Die) else (message, Sleep(1.0, ranks=(0,)), Die(1))
        steps: list[float] = []
        with pytest.raises(WorkerLostError, match=rf"worker {victim} \(engine 1\) was lost in Die"):
            run_fit(client, engines, ask(*script, report=True), place=place,
                    on_progress=lambda event: steps.append(time.monotonic()))  # fmt: skip
        assert time.monotonic() - steps[-1] < SILENCE_S / 2  # seen to hang up, not missed
        assert eventually(lambda: {victim}.isdisjoint(found := worker_addresses(client)) and len(found) == 2, 60)
        assert all_freed(client)
        # The replacement can take part at once.
        assert run_fit(client, toy_engines(client), ask(Sum([1])))["replies"] == [[1, 2]]


def test_a_worker_that_falls_silent_is_lost(client: Client) -> None:
    engines = toy_engines(client)
    victim = engines[0][0]
    pid = client.run(os.getpid)[victim]
    try:
        with (
            dask.config.set({SILENCE_KEY: "2s"}),
            during_fit(lambda: os.kill(pid, signal.SIGSTOP)) as on_progress,
            pytest.raises(WorkerLostError, match=rf"worker {victim} .*no sign of life, and its process is stopped"),
        ):
            run_fit(client, engines, ask(Sleep(60), report=True), on_progress=on_progress)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert all_freed(client)


@pytest.mark.parametrize("place", ["scheduler", "client"])
def test_a_worker_that_is_not_there_is_named(client: Client, place: Any) -> None:
    gone = ("tcp://127.0.0.1:1", RemoteCall.of("toys.open_toy", "toy"))
    with pytest.raises(WorkerLostError, match=rf"worker {gone[0]} was lost, and with it its part of the data"):
        run_fit(client, [gone, *toy_engines(client)], ask(Sum([1])), place=place)


@pytest.mark.parametrize(
    ("place", "message"),
    [("scheduler", "which holds part of the data, was lost: it left"), ("client", "cannot be reached from the client")],
)
def test_a_worker_that_left_since_the_fit_was_announced_is_named(
    client: Client, place: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def announce(client: Client, request: FitRequest, extras: Any, to_scheduler: bool) -> None:
        await announced(client, replace(request, workers=there, engines=request.engines[1:]), extras, to_scheduler)

    announced, there = on_dask._announce, tuple(worker_addresses(client))
    monkeypatch.setattr(on_dask, "_announce", announce)
    monkeypatch.setattr(dask_comms, "CONNECT_TIMEOUT_S", 1.0)
    with socket.socket() as nobody:  # bound, so that nobody else takes the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        gone = (address, RemoteCall.of("toys.open_toy", "toy"))
        with pytest.raises(WorkerLostError, match=rf"worker {address},? {message}"):
            run_fit(client, [gone, *toy_engines(client)], ask(Sum([1])), place=place)


@pytest.mark.parametrize("place", ["scheduler", "client"])
def test_extras_reach_engines_and_coordinator(client: Client, place: Any) -> None:
    factor = 21

    def check(rank: int) -> None:
        assert rank < 2

    outcome = run_fit(
        client,
        toy_engines(client, function="use_extras"),
        RemoteCall.of("toys.coordinate_with_extras", Script(())),
        extras={"check": check, "scale": lambda n: n * factor},
        place=place,
    )
    assert outcome == 42
    left = client.run(lambda dask_worker: len(dask_plugins.worker_host(dask_worker).admissions._extras))
    assert set(left.values()) == {0}


@pytest.fixture
def impatient() -> Iterator[None]:
    """Clients that lost their scheduler look for it for so long."""
    with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
        yield


@pytest.mark.usefixtures("impatient")
def test_a_closing_scheduler_ends_the_fit() -> None:
    with local_cluster() as client:
        cluster: Any = client.cluster
        with (
            during_fit(lambda: cluster.sync(cluster.scheduler.close)) as on_progress,
            pytest.raises(FitCancelledError, match="cancelled: the scheduler closes"),
        ):
            run_fit(client, toy_engines(client), ask(Sleep(60), report=True), on_progress=on_progress)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_of_its_own_process_coordinates_and_may_be_killed(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    preload = {f"DASK_DISTRIBUTED__{role}__PRELOAD": "['cluster.toys']" for role in ("SCHEDULER", "WORKER")}
    environment = os.environ | preload | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *arguments, "--scheduler-file", str(file), "--dashboard-address", ":0"]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    with start("distributed.cli.dask_scheduler", "--port", "0") as scheduler, ExitStack() as stack:
        stack.callback(scheduler.kill)
        assert eventually(lambda: file.exists() and file.read_text().endswith("}"), 60)  # written to its end
        worker = stack.enter_context(start("distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1"))
        stack.callback(worker.kill)
        client = stack.enter_context(Client(scheduler_file=str(file)))
        client.wait_for_workers(1, timeout=60)
        outcome = run_fit(client, toy_engines(client), ask(Sum([1])))
        assert (outcome["place"], outcome["pid"]) == ("scheduler", scheduler.pid)
        killed = []

        def kill() -> None:
            killed.append(time.monotonic())
            scheduler.kill()

        with (
            during_fit(kill) as on_progress,
            pytest.raises(SchedulerLostError, match=r"scheduler (was lost in|broke during) the fit"),
        ):
            run_fit(client, toy_engines(client), ask(Sleep(60), report=True), on_progress=on_progress)
        assert time.monotonic() - killed[0] < 20  # far from the end of the sleep


def test_no_engines_and_repeated_workers_are_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="at least one worker with data"):
        run_fit(client, [], ask())
    with pytest.raises(ValueError, match="names a worker twice"):
        run_fit(client, toy_engines(client) * 2, ask())


def test_sessions_leave_no_threads_or_sockets_behind(client: Client) -> None:
    def count(dask_worker: Any) -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def fits(n: int) -> dict[str, tuple[int, int]]:
        for _ in range(n):
            run_fit(client, toy_engines(client), ask(Scatter(100_000)))
        assert all_freed(client)
        counted: dict[str, tuple[int, int]] = client.run(count)
        return counted

    slack = 4  # Dask's own: threads and connections that it makes when it likes, but once
    before = fits(3)
    after = fits(3 * slack)

    def settled() -> bool:
        after.update(client.run(count))
        return all(
            now < then + slack for worker in after for now, then in zip(after[worker], before[worker], strict=True)
        )

    assert eventually(settled, 20), (before, after)
