"""Waiting for a cluster, with a limit: whoever is waited for must show signs of life meanwhile.

    heard(client, work, step) ---- awaits ----> work: Dask's messages, tasks, a fit
             `--- looks, over a connection of its own ---> scheduler: which workers are there, when was each heard last

Dask itself notices that a worker is frozen or its host gone after five minutes, and tasks, messages and data there are
waited for until then. The scheduler tells everybody when a worker's last heartbeat came; it needs no package of ours.
A worker whose heartbeats stay out is judged only once its nanny was asked (`dask_silence.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from distributed.comm import Comm, CommClosedError, connect
from distributed.scheduler import heartbeat_interval

from daskboost.cluster.awaited import check_awaited
from daskboost.cluster.dask_silence import Silence, find_doing
from daskboost.cluster.limits import (
    CLEAN_UP_S,
    CONNECT_TIMEOUT_S,
    FIRST_LOOK_S,
    GRACE_S,
    HEARTBEATS,
    LOOK_S,
    LOST_LOOK_S,
    SCHEDULER_PATIENCE,
    SILENCE_KEY,
    STOPPED_S,
    silence_s,
)
from daskboost.errors import DaskBoostError, SchedulerLostError, WorkerLostError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerSilentError(WorkerLostError):
    """A worker is still in the cluster, but shows no sign of life."""


class SchedulerSilentError(SchedulerLostError):
    """The scheduler's connections are open, but it does not answer."""


async def heard(client: Client, work: Awaitable[T], step: str, workers: Collection[str] | None = None) -> T:
    """Await work on a cluster as long as those live who do it.

    Parameters
    ----------
    client : distributed.Client
        The coroutine must run on its event loop.
    work : awaitable
        It is cancelled when the wait ends otherwise.
    step : str
        What is waited for, for the error's message: "quantizing".
    workers : collection of str, optional
        Addresses of the workers that are needed, which must be there; none if empty. By default those that are in the
        cluster, whichever these are at the time.

    Raises
    ------
    WorkerLostError
        A worker that is needed is not there, or its process is stopped, or it showed no sign of life for `silence_s`.
    SchedulerLostError
        The scheduler hung up, or gave no answer for `SCHEDULER_PATIENCE` times as long.
    """
    working = asyncio.ensure_future(work)
    try:
        with contextlib.closing(Watch(client, step, workers)) as watch:
            watching = asyncio.ensure_future(watch.run())
            try:
                await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    watching.result()  # raises
            finally:
                await _end(watching)
            try:
                return working.result()
            except (Exception, asyncio.CancelledError) as error:
                await watch.explain(error)
                raise
    finally:
        await _end(working)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it ended; one that does not end goes on behind."""
    task.cancel()
    task.add_done_callback(_seen)
    await asyncio.wait([task], timeout=CLEAN_UP_S)


def _seen(task: asyncio.Future[Any]) -> None:
    """Take note of a task's exception, which asyncio would report as lost."""
    if not task.cancelled():
        task.exception()


class Watch:
    """Looks at a scheduler and its workers at intervals, on behalf of one wait."""

    def __init__(self, client: Client, step: str, workers: Collection[str] | None) -> None:
        self._client = client
        self._step = step
        self._workers = workers
        self._silence_s = silence_s()
        self._patience_s = SCHEDULER_PATIENCE * self._silence_s
        self._tick_s = min(LOOK_S, self._silence_s / 4)
        self._comm: Comm | None = None
        self._last_heard: dict[str, float] = {}
        self._quiet_s: dict[str, float] = {}
        self._silences: dict[str, Silence] = {}

    async def run(self) -> None:
        """Return never; raise what `heard` does."""
        await asyncio.sleep(FIRST_LOOK_S)
        while True:
            found = await self._look()
            look_s = max(self._tick_s, heartbeat_interval(len(found)))  # nothing is new before
            await self._judge(found, look_s)
            await asyncio.sleep(look_s)

    async def explain(self, error: BaseException) -> None:
        """Raise the reason why work failed if that is a process that is gone; else return."""
        self._patience_s = GRACE_S  # a scheduler that is merely busy explains nothing
        try:
            found = await self._look()
            if isinstance(error, OSError):
                self._check_there(found)
            deadline = time.monotonic() + GRACE_S
            while self._workers and isinstance(error, CommClosedError) and time.monotonic() < deadline:
                await asyncio.sleep(LOST_LOOK_S)  # the scheduler may hear a little later that a worker hung up
                self._check_there(await self._look())
        except SchedulerSilentError:
            return
        except DaskBoostError as reason:
            raise reason from error

    def close(self) -> None:
        """Free the connection; the next look makes another."""
        if self._comm is not None:
            self._comm.abort()
            self._comm = None

    async def _look(self) -> Mapping[str, Any]:
        """Ask the scheduler for its workers: what it knows of each, by address."""
        try:
            if self._comm is None:
                self._comm = await self._answer(self._connect())
            workers: Mapping[str, Any] = (await self._answer(self._ask(self._comm)))["workers"]
        except OSError as error:
            raise SchedulerLostError(self._scheduler_lost(f"the connection to it broke: {error}")) from error
        return workers

    async def _connect(self) -> Comm:
        comm: Comm = await connect(self._scheduler(), timeout=CONNECT_TIMEOUT_S, **self._client.connection_args)
        return comm

    def _scheduler(self) -> str:
        if self._client.scheduler is None:
            raise SchedulerLostError(self._scheduler_lost("the client was closed"))
        return scheduler_address(self._client)

    async def _ask(self, comm: Comm) -> dict[str, Any]:
        wants_none = self._workers is not None and not self._workers
        await comm.write({"op": "identity", "n_workers": 0 if wants_none else -1, "reply": True})
        answer: dict[str, Any] = await comm.read()
        return answer

    async def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        """Wait for the scheduler; time during which this process itself was held up does not count."""
        task = asyncio.ensure_future(asking)
        try:
            waited_s = 0.0
            while not task.done():
                if self._client.status != "running":
                    raise SchedulerLostError(self._scheduler_lost(f"the client is {self._client.status}"))
                if waited_s > self._patience_s:
                    raise SchedulerSilentError(self._scheduler_lost(f"no answer for {waited_s:.0f} s"))
                started = time.monotonic()
                await asyncio.wait([task], timeout=self._tick_s)
                waited_s += min(time.monotonic() - started, self._tick_s)
            return task.result()
        finally:
            if not task.done():  # a connection whose answer was not awaited is of no more use
                task.cancel()
                task.add_done_callback(_seen)
                self.close()

    async def _judge(self, found: Mapping[str, Any], look_s: float) -> None:
        """Take in one look; raise if a worker that is needed is gone, or was silent for too long."""
        self._check_there(found)
        missed_s = HEARTBEATS * heartbeat_interval(len(found))
        needed = found if self._workers is None else self._workers
        suspects: list[str] = []
        for worker in needed:
            at = found[worker]["last_seen"]
            # Where the scheduler was held up for long, heartbeats wait to be read: a look counts as one interval.
            quiet_s = self._quiet_s.get(worker, 0.0) + look_s
            self._quiet_s[worker] = quiet_s if self._last_heard.get(worker) == at else 0.0
            self._last_heard[worker] = at
            silence = self._silences.setdefault(
                worker, Silence(max(self._silence_s, missed_s), max(STOPPED_S, missed_s))
            )
            if silence.needs_look(self._quiet_s[worker]):
                suspects.append(worker)
        if suspects:
            doing = await find_doing(self._scheduler(), self._client.connection_args, suspects)
            for worker in suspects:
                reason = self._silences[worker].why_lost(self._quiet_s[worker], doing.get(worker))
                if reason and not await self._was_heard(worker):
                    raise WorkerSilentError(self._worker_lost(worker, reason))

    async def _was_heard(self, worker: str) -> bool:
        """Return whether a worker has shown a sign of life since the last look."""
        found = (await self._look()).get(worker)
        return found is not None and found["last_seen"] != self._last_heard[worker]

    def _worker_lost(self, worker: str, reason: str) -> str:
        return (
            f"worker {worker} was lost in {self._step}: {reason}. It is frozen, its host is gone, or, where no nanny "
            "can tell, it holds Python's lock. End it and fit again, a QuantizedDataset made anew; where reading a "
            "partition takes so long, raise the limit: "
            f"dask.config.set({{{SILENCE_KEY!r}: '{4 * self._silence_s:g}s'}})"
        )

    def _check_there(self, found: Mapping[str, Any]) -> None:
        gone = [worker for worker in self._workers or () if worker not in found]
        if gone:
            raise WorkerLostError(
                f"worker {gone[0]} was lost, and with it its part of the data; make the data set again"
            )

    def _scheduler_lost(self, reason: str) -> str:
        return (
            f"the scheduler was lost in {self._step}: {reason}. Connect a client to a living one, make the data set "
            "again, and fit"
        )


_unfinished: weakref.WeakKeyDictionary[Client, set[asyncio.Future[Any]]] = weakref.WeakKeyDictionary()
"""Clean-ups that still go on, of each client; touched on its event loop alone."""


async def clean_up(client: Client, begin: Callable[[], Awaitable[Any]], within_s: float = CLEAN_UP_S) -> None:
    """Begin what only tidies up, and wait for it, but for some seconds at most; it goes on behind.

    While an earlier clean-up still goes on, somebody does not answer: then there is no wait at all.
    """
    if client.status != "running":
        return
    others = _unfinished.setdefault(client, set())
    task = asyncio.ensure_future(_quietly(begin))
    try:
        await asyncio.wait([task], timeout=0.0 if others else within_s)
    finally:
        if not task.done():
            others.add(task)
            task.add_done_callback(others.discard)


async def _quietly(begin: Callable[[], Awaitable[Any]]) -> None:
    try:
        await begin()
    except Exception:  # nobody can do more about it
        logger.debug("a clean-up failed", exc_info=True)


def on_loop(client: Client, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the client's event loop and wait for it, from any other thread.

    Raises
    ------
    RuntimeError
        This is the event loop's own thread, which would wait for itself.
    """
    loop = event_loop(client)
    if is_on_loop(client):
        work.close()
        raise RuntimeError("the client's event loop cannot wait for its cluster: call this by asyncio.to_thread")
    return result_of(asyncio.run_coroutine_threadsafe(work, loop), loop, _client_closed)


def result_of(
    future: concurrent.futures.Future[T], loop: asyncio.AbstractEventLoop, ended: Callable[[], Exception]
) -> T:
    """Wait for what another thread's event loop does, which has limits of its own; cancelled if the wait is.

    Raises
    ------
    Exception
        What `ended` returns, if the loop ended, or cancelled all that it did, before there was a result.
    FitCancelledError
        Nobody awaits this thread's call any longer.
    """
    try:
        while not future.done() and loop.is_running():
            check_awaited()
            concurrent.futures.wait([future], timeout=LOOK_S)
    except BaseException:
        future.cancel()
        raise
    if future.cancelled() or not future.done():
        raise ended()
    return future.result()


def scheduler_address(client: Client) -> str:
    """Return the address of the scheduler that a client is connected to."""
    assert client.scheduler is not None
    address: Any = client.scheduler.address
    return str(address)


def check_loop(client: Client, future: concurrent.futures.Future[Any]) -> None:
    """Raise if a future of the client's event loop will never have a result.

    Raises
    ------
    SchedulerLostError
        The client was closed meanwhile: it cancels what it does, and its event loop ends.
    """
    if future.cancelled() or (not future.done() and not event_loop(client).is_running()):
        raise _client_closed()


def _client_closed() -> SchedulerLostError:
    return SchedulerLostError("the client was closed during the call; keep it open until the call returns")


def is_on_loop(client: Client) -> bool:
    """Return whether this thread runs the client's event loop, and so must not wait for it."""
    return asyncio._get_running_loop() is event_loop(client)


def event_loop(client: Client) -> asyncio.AbstractEventLoop:
    """Return the event loop on which a client lives."""
    loop: Any = client.loop
    found: asyncio.AbstractEventLoop = loop.asyncio_loop
    return found
