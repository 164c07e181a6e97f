"""Workers and schedulers that are frozen or killed while something waits for them: every wait has an end.

A process that is stopped by a signal keeps its connections, as a host that vanishes does for a while.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import (
    ask,
    eventually,
    local_cluster,
    map_workers,
    running_fits,
    toy_engines,
    worker_addresses,
)
from cluster.freezing import Strike
from cluster.toys import HoldLock, Sum, hold_lock
from dask import delayed
from distributed import Client

import daskboost as db
from daskboost.cluster import dask_comms, dask_silence, dask_tasks, dask_watch, limits
from daskboost.cluster.channel import ChannelClosedError
from daskboost.cluster.dask_comms import open_channel
from daskboost.cluster.dask_plugins import worker_host
from daskboost.cluster.dask_silence import find_doing, is_stopped, thread_states, wants_processor
from daskboost.cluster.dask_watch import on_loop, scheduler_address
from daskboost.cluster.on_dask import Place, run_fit
from daskboost.devices.budget import partition
from daskboost.errors import ParameterError, SchedulerLostError, WorkerLostError

SILENCE_S = 3.0
"""Enough for workers on a busy machine to be heard."""
SHORT_SILENCE_S = 1.5
"""The limit of tests whose workers are silent, or just at work, for longer. It is no more than `limits.STOPPED_S`, so
that the first look at a worker's process decides already."""
LONGER_S = 4.0
"""Outlasts the limit, the tick until that is seen to be over, the nanny's look, which takes a second, and the verdict:
a worker that is judged wrongly is lost before it shows a sign of life again."""
SOON_S = SILENCE_S + 12.0
"""Until an error must be there: the silence, at most four waits for clean-ups, and a busy machine. Dask takes 300."""
STOPPED = "no sign of life, and its process is stopped"
ROWS, PARTS = 400, 4


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster() as client:
        yield client


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small data sets spread out, and nobody waits for long, the client's search for a lost scheduler included."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    with dask.config.set({limits.SILENCE_KEY: SILENCE_S, "distributed.comm.timeouts.connect": "5s"}):
        yield


def frame(strike: Strike | None = None) -> Any:
    """Rows of two classes in several partitions, whose reading counts for `strike`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3))
    rows = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=(x[:, 0] > 0).astype(np.int64))
    made = dd.from_pandas(rows, npartitions=PARTS)
    return made if strike is None else made.map_partitions(strike, meta=rows[:0])


def soon(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    """The call raises the error in time."""
    started = time.monotonic()
    with pytest.raises(error, match=message):
        call()
    assert time.monotonic() - started < SOON_S


def held(client: Client) -> set[str]:
    """Data sets of which a worker has something; workers that do not answer have to be asked again."""
    found = client.run(lambda dask_worker: worker_host(dask_worker).shards.datasets())
    return {name for names in found.values() for name in names}


class At(db.Callback):
    """Does something after the third round."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action
        self.at = 0.0

    def after_round(self, info: Any) -> bool:
        if info.iteration == 2:
            self.action()
            self.at = time.monotonic()
        return False


def test_an_estimators_fit_ends_soon_after_a_worker_froze_in_mid_round(client: Client) -> None:
    """Closing its three data sets does not wait for the worker, which forgets them once it can."""
    pids = client.run(os.getpid)
    frozen: list[int] = []

    def freeze() -> None:
        engines = client.run(running_fits)
        frozen.append(pids[max(engines, key=engines.__getitem__)])
        os.kill(frozen[0], signal.SIGSTOP)

    strike = At(freeze)
    sets = [(frame(), "label"), (frame(), "label")]
    estimator = db.DaskBoostRegressor(n_estimators=100_000, callbacks=[strike])
    try:
        with pytest.raises(WorkerLostError, match=rf"worker .* was lost in .*{STOPPED}"):
            estimator.fit(frame(), "label", eval_set=sets)
        assert time.monotonic() - strike.at < SOON_S
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: not held(client), 30)
    assert db.DaskBoostRegressor(n_estimators=1).fit(frame(), "label").booster_.n_iterations == 1


@pytest.mark.parametrize(
    ("reads", "step"),
    [(2, "computing"), (PARTS + 2, "reading the partitions"), (2 * PARTS + 2, "quantizing"),
     (3 * PARTS + 1, "reading the partitions"), (4 * PARTS + 2, "quantizing")],
    ids=["classes", "sketching", "quantizing", "sketching-evaluation-rows", "quantizing-evaluation-rows"],
)  # fmt: skip
def test_a_worker_that_freezes_before_the_rounds_is_noticed(
    client: Client, tmp_path: Path, reads: int, step: str
) -> None:
    strike = Strike(tmp_path)
    rows = frame(strike)
    strike.arm(reads)
    sets = [(rows[rows.a < 9], "label")]
    lost = rf"worker tcp://\S+ was lost in {step}: {STOPPED}, by a signal or a debugger\. It is frozen"
    with strike.thawing():
        soon(lambda: db.DaskBoostClassifier(n_estimators=2).fit(rows, "label", eval_set=sets), WorkerLostError, lost)
    assert eventually(lambda: not held(client), 30)


@pytest.mark.parametrize("reads", [2, PARTS + 2], ids=["classes", "predicting"])
def test_a_worker_that_freezes_while_scoring_is_noticed(client: Client, tmp_path: Path, reads: int) -> None:
    strike = Strike(tmp_path)
    rows = frame(strike)
    model = db.DaskBoostClassifier(n_estimators=2).fit(rows, "label")
    strike.arm(reads)
    with strike.thawing():
        soon(lambda: model.score(rows, "label"), WorkerLostError, "lost in computing: no sign of life")
    assert 0.9 < model.score(rows, "label") <= 1.0


def test_a_frozen_worker_is_noticed_by_what_begins_then(client: Client, tmp_path: Path) -> None:
    """Whatever asks workers for something; closing a data set asks as well, and just goes on."""
    pids = client.run(os.getpid)
    data = db.QuantizedDataset.from_dask(frame(), "label")
    victim = data.shards.owners[0]
    os.kill(pids[victim], signal.SIGSTOP)
    try:
        lost = f"worker {victim} was lost in {{}}: no sign of life"
        soon(lambda: db.train({}, data, 1), WorkerLostError, lost.format("announcing the fit to the workers"))
        soon(lambda: data.save(tmp_path / "saved"), WorkerLostError, lost.format("writing the data set"))
        assert client.scheduler is not None
        with Client(client.scheduler.address) as other:
            soon(lambda: map_workers(other, repr, workers=[victim]), WorkerLostError, lost.format(".* the workers"))
        started = time.monotonic()
        data.close()
        assert time.monotonic() - started < limits.CLEAN_UP_S + 2
    finally:
        os.kill(pids[victim], signal.SIGCONT)
    assert eventually(lambda: not held(client), 30)


Process = subprocess.Popen[bytes]


@contextmanager
def own_cluster(directory: Path, *options: str) -> Iterator[tuple[Client, Process, Process]]:
    """Yield a client of a scheduler and of one worker, in processes of their own, and these two.

    Each leads a group of processes: the worker's has its nanny too, if `options` do not forbid it.
    """
    file = directory / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def start(*arguments: str) -> Process:
        command = [sys.executable, "-m", *arguments, "--scheduler-file", str(file), "--dashboard-address", ":0"]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)

    with start("distributed.cli.dask_scheduler", "--port", "0") as scheduler, ExitStack() as stack:
        stack.callback(scheduler.kill)
        assert eventually(lambda: file.exists() and file.read_text().endswith("}"), 60)
        worker = stack.enter_context(start("distributed.cli.dask_worker", *options, "--nthreads", "1"))
        stack.callback(os.killpg, worker.pid, signal.SIGKILL)
        client = stack.enter_context(Client(scheduler_file=str(file)))
        stack.callback(scheduler.kill)
        client.wait_for_workers(1, timeout=60)
        yield client, scheduler, worker


@pytest.fixture
def own_scheduler(tmp_path: Path) -> Iterator[tuple[Client, Process]]:
    """A client of a scheduler in a process of its own, with one worker."""
    with own_cluster(tmp_path, "--no-nanny") as (client, scheduler, _):
        yield client, scheduler


@pytest.mark.parametrize("in_rounds", [False, True], ids=["computing", "in-rounds"])
def test_a_host_that_vanishes_is_noticed(tmp_path: Path, in_rounds: bool) -> None:
    """Its nannies do not answer either; the connections stay."""
    with own_cluster(tmp_path, "--nanny") as (client, _, worker):
        (address,) = worker_addresses(client)
        if in_rounds:
            data = db.QuantizedDataset.from_dask(frame(), "label", client=client)
            strike = At(lambda: os.killpg(worker.pid, signal.SIGSTOP))
            with pytest.raises(WorkerLostError, match=rf"worker {address} .*no sign of life for {SILENCE_S:g} s"):
                db.train({}, data, 100_000, callbacks=[strike])
            data.close()
            ended = strike.at
        else:
            os.killpg(worker.pid, signal.SIGSTOP)
            ended = time.monotonic()
            with pytest.raises(WorkerLostError, match=rf"worker {address} was lost in computing: no sign of life"):
                dask_tasks.compute(client, [delayed(abs)(-1)])
        assert time.monotonic() - ended < SOON_S + limits.OPINION_S


@pytest.mark.parametrize(
    ("reads", "signum"), [(2, signal.SIGKILL), (PARTS + 2, signal.SIGKILL), (PARTS + 2, signal.SIGSTOP)],
    ids=["sketching-killed", "quantizing-killed", "quantizing-frozen"],
)  # fmt: skip
def test_a_scheduler_that_is_lost_before_the_rounds_is_named_at_once(
    own_scheduler: tuple[Client, Process], tmp_path: Path, reads: int, signum: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`CommClosedError` after 20 s is what Dask makes of it."""
    monkeypatch.setattr(dask_watch, "SCHEDULER_PATIENCE", 1)
    client, scheduler = own_scheduler
    strike = Strike(tmp_path, scheduler.pid, signum)
    rows = frame(strike)
    db.QuantizedDataset.from_dask(frame(), "label").close()  # imports of the worker, so that only the loss is timed
    strike.arm(reads)
    step = "reading the partitions" if reads == 2 else "quantizing"
    reason = "(the client is|the connection to it broke)" if signum == signal.SIGKILL else "no answer"
    soon(
        lambda: db.QuantizedDataset.from_dask(rows, "label", client=client),
        SchedulerLostError, f"the scheduler was lost in {step}: {reason}.*make the data set again",
    )  # fmt: skip


def test_a_scheduler_that_freezes_in_mid_round_is_named(
    own_scheduler: tuple[Client, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is in its process, and so is all that watches the workers."""
    monkeypatch.setattr(dask_watch, "SCHEDULER_PATIENCE", 1)
    client, scheduler = own_scheduler
    with db.QuantizedDataset.from_dask(frame(), "label", client=client) as data, ExitStack() as stack:
        stack.callback(lambda: os.kill(scheduler.pid, signal.SIGCONT))
        strike = At(lambda: os.kill(scheduler.pid, signal.SIGSTOP))
        with pytest.raises(SchedulerLostError, match="the scheduler was lost in the fit: no answer for"):
            db.train({}, data, 100_000, callbacks=[strike])
        assert time.monotonic() - strike.at < SOON_S


@pytest.mark.slow
def test_workers_that_hold_pythons_lock_for_longer_than_the_limit_are_not_lost(client: Client) -> None:
    """They show no sign of life meanwhile, neither from their event loops nor from the threads beside their engines;
    their nannies see that they compute."""
    with dask.config.set({limits.SILENCE_KEY: SHORT_SILENCE_S}):
        assert dask_tasks.compute(client, [delayed(hold_lock)(LONGER_S + i) for i in range(2)]) == [None, None]
        places: tuple[Place, ...] = ("scheduler", "client")
        for place in places:
            outcome = run_fit(client, toy_engines(client), ask(HoldLock(LONGER_S), Sum([1])), place=place)
            assert outcome["replies"] == [[None, None], [1, 2]]


@pytest.mark.parametrize(("seen", "expected"), [
    (["SR"] * 9 + ["SS"], "computes"), (["R", "D", "S"] * 4, "waits"), (["SI"] * 10, "waits"), ([""] * 10, "waits"),
    (["TT", "Tt"] * 5, "is stopped"), (["T"] * 9 + ["S"], "waits"), (["TS"] * 10, "waits"),
])  # fmt: skip
def test_what_a_process_does_that_is_looked_at_some_times(
    seen: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for Python's lock wake up now and then to ask for it; one that is traced runs at times."""
    looks = iter(seen)
    monkeypatch.setattr(dask_silence, "thread_states", lambda pid: next(looks))
    monkeypatch.setattr(dask_silence, "LOOK_APART_S", 0.0)
    nanny: Any = SimpleNamespace(pid=1)
    assert asyncio.run(dask_silence.what_it_does(nanny)) == expected


@pytest.mark.parametrize("nanny", [True, False])
def test_nannies_tell_who_computes(nanny: bool, client: Client) -> None:
    def find(client: Client, suspects: list[str]) -> dict[str, str]:
        return {**on_loop(client, find_doing(scheduler_address(client), client.connection_args, suspects))}

    with ExitStack() as stack:
        if not nanny:
            client = stack.enter_context(local_cluster(processes=False))
        first, second = worker_addresses(client)
        at_rest = dict.fromkeys([first, second], "waits") if nanny else {}
        assert find(client, [first, second, "tcp://127.0.0.1:1"]) == at_rest
        held_s, looked_s = (8.0, 6.0) if nanny else (2.0, 1.5)  # without one, this process is held as well
        busy = client.submit(hold_lock, held_s, workers=[first], pure=False)
        assert eventually(lambda: find(client, [first, second]).get(first) == "computes", looked_s) == nanny
        busy.result(60)
        if nanny:
            pid = client.run(os.getpid)[second]
            os.kill(pid, signal.SIGSTOP)
            try:
                stopped = {**at_rest, second: "is stopped"}  # each thread needs a core to stop
                assert eventually(lambda: find(client, [first, second]) == stopped, 6.0)
            finally:
                os.kill(pid, signal.SIGCONT)


def test_a_scheduler_that_does_not_answer_knows_of_nobody_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_silence, "OPINION_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert asyncio.run(asyncio.wait_for(find_doing(address, {}, ["tcp://a"]), SOON_S)) == {}


def test_a_process_that_is_frozen_or_waits_does_not_compute() -> None:
    """One that has no processor for itself does."""
    code = "import sys; print(flush=True); [0 for line in sys.stdin]; print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            assert eventually(lambda: not wants_processor(thread_states(process.pid)), 30)  # it reads
            assert not is_stopped(thread_states(process.pid))
            process.stdin.close()
            process.stdout.readline()
            assert eventually(lambda: all(wants_processor(thread_states(process.pid)) for _ in range(20)), 30)
            os.kill(process.pid, signal.SIGSTOP)
            assert eventually(lambda: is_stopped(thread_states(process.pid)), 30)
            assert not wants_processor(thread_states(process.pid))
        finally:
            process.kill()
    for gone in (thread_states(process.pid), thread_states(None)):
        assert not wants_processor(gone) and not is_stopped(gone)


def test_closing_a_data_set_on_the_clients_event_loop_does_not_wait(client: Client) -> None:
    """Nor does it leave the rows on the workers."""
    data = db.QuantizedDataset.from_dask(frame(), "label")
    assert data.shards.name in held(client)

    async def close() -> None:
        data.close()

    client.sync(close)
    assert data.shards.closed and eventually(lambda: data.shards.name not in held(client), 30)


def test_workers_that_compute_for_longer_than_the_limit_are_not_lost(client: Client) -> None:
    """Signs of life come from their event loops, whatever their tasks do."""

    def long(place: Any) -> int:
        time.sleep(LONGER_S)
        return 1

    workers = worker_addresses(client)
    with dask.config.set({limits.SILENCE_KEY: SHORT_SILENCE_S}):
        assert map_workers(client, long, workers=workers) == dict.fromkeys(workers, 1)
        slow = delayed(time.sleep)(LONGER_S)
        assert dask_tasks.compute(client, [slow, slow]) == [None, None]


@pytest.mark.parametrize("given", ["soon", -1, 0.5, "inf", None, [3]])
def test_a_limit_that_is_none_is_refused_before_any_work(client: Client, given: Any) -> None:
    with (
        dask.config.set({limits.SILENCE_KEY: given}),
        pytest.raises(ParameterError, match=r"daskboost\.silence=.*give at least 1 seconds, e\.g\. '60s'"),
    ):
        db.QuantizedDataset.from_dask(frame(), "label")


def test_the_limit_is_what_dask_says_or_the_default() -> None:
    for given, expected in (("2m", 120.0), (7, 7.0), ("500000 ms", 500.0)):
        with dask.config.set({limits.SILENCE_KEY: given}):
            assert limits.silence_s() == expected
    with dask.config.set({"daskboost": {}}):
        assert limits.silence_s() == limits.SILENCE_S


def test_a_worker_that_takes_a_connection_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process' connections are accepted by its kernel; Dask waits for its first answer without a limit."""
    monkeypatch.setattr(dask_comms, "CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"

        async def connect() -> None:
            await asyncio.wait_for(open_channel(address, {}), SOON_S)

        soon(lambda: asyncio.run(connect()), ChannelClosedError, f"cannot connect to {address}: no answer")


def test_an_event_loop_does_not_wait_for_itself(client: Client) -> None:
    async def nothing() -> None:
        raise AssertionError("run")

    async def wait() -> None:
        on_loop(client, nothing())

    with pytest.raises(RuntimeError, match=r"the client's event loop cannot wait .*asyncio\.to_thread"):
        client.sync(wait)


MAY_END = threading.Event()
"""Set where a task of a worker in this process need not go on."""


def wait_to_end() -> None:
    MAY_END.wait(60)


def test_a_client_that_is_closed_meanwhile_ends_the_wait() -> None:
    with local_cluster(n_workers=1, processes=False) as client, ExitStack() as stack:
        stack.callback(MAY_END.set)
        assert client.scheduler is not None
        other = Client(client.scheduler.address)
        timer = delayed(time.sleep)(1.0)

        def close(place: Any) -> None:
            raise AssertionError("not called")

        closing = threading.Timer(0.5, other.close)
        closing.start()
        soon(lambda: dask_tasks.compute(other, [timer] * 20 + [delayed(wait_to_end)()]), SchedulerLostError, "client")
        closing.join()


def test_all_limits_are_in_one_place() -> None:
    """Numbers of seconds are named there, and nowhere else among what talks to other processes."""
    folder = Path(limits.__file__).parent
    found = {
        path.name: re.findall(r"^\w*(?:_S|_SECONDS|TIMEOUT)\b.*= *[\d.]+", path.read_text(), re.MULTILINE)
        for path in folder.glob("*.py")
    }
    assert [name for name, lines in found.items() if lines] == ["limits.py"]
