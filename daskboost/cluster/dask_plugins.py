"""What daskboost adds to a cluster's scheduler and workers, once per cluster, by name.

The scheduler may lack the package, or forbid plugins; then fits are coordinated by their clients. Workers need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any

from distributed.comm import Comm, CommClosedError
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.protocol.pickle import dumps

from daskboost.cluster.dask_comms import OP, refuse_comm
from daskboost.cluster.dask_coordinator import CoordinatorRun, Event, FitRequest
from daskboost.cluster.dask_sessions import Admissions, WorkerHost
from daskboost.cluster.dask_watch import clean_up, heard
from daskboost.cluster.limits import FAREWELL_S, SETUP_S
from daskboost.errors import DaskBoostError
from daskboost.local.links import Failure
from daskboost.wire import WireError, decode_as, encode

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker

logger = logging.getLogger(__name__)

PLUGIN = "daskboost"
FIT_OP = "daskboost_fit"
RESOURCE = "daskboost"
"""Worker resource of which a quantizing task takes one, so that one at a time runs per worker (dask.md, 'Memory')."""

_sure: weakref.WeakSet[Client] = weakref.WeakSet()
"""Clients that know the plugin to be set up on all workers; it stays, and comes to later workers before tasks do."""


class DaskboostWorker(WorkerPlugin):
    """Lets engines be opened on a worker, and keeps its shards."""

    idempotent = True

    async def setup(self, worker: Worker) -> None:
        host = WorkerHost(worker)
        worker.extensions[PLUGIN] = host
        worker.handlers[OP] = host.accept
        if RESOURCE not in worker.state.total_resources:
            await worker.set_resources(**{RESOURCE: 1})
            _ask_for_tasks(worker)
        host.ready.set()

    def teardown(self, worker: Worker) -> None:
        worker.handlers.pop(OP, None)
        host = worker.extensions.pop(PLUGIN, None)
        if host is not None:
            host.close()


def _ask_for_tasks(worker: Worker) -> None:
    """Make the scheduler reconsider tasks that found no worker with the resource.

    It does so for workers that join, which lack the resource at that moment, and for those that resume, but not when
    resources are added: after the loss of the only worker its tasks would wait for ever beside the replacement.
    """
    if worker.status is Status.running:
        worker.status = Status.paused
        worker.status = Status.running


class DaskboostScheduler(SchedulerPlugin):
    """Coordinates fits in the scheduler's process, each in a thread of its own."""

    idempotent = True

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None
        self._runs: set[CoordinatorRun] = set()
        self._untold: set[CoordinatorRun] = set()
        self._farewells: set[asyncio.Task[object]] = set()

    async def start(self, scheduler: Scheduler) -> None:
        self._scheduler, self.admissions = scheduler, Admissions()  # only now: the plugin came here pickled
        scheduler.handlers[FIT_OP] = self.fit

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        for run in self._runs:
            run.lose(worker, "it left the cluster")

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Have workers drop what they keep for a client, which it cannot ask for any longer, however it left."""
        message = {
            "op": "run", "function": dumps(_drop_of), "args": dumps((client,)), "kwargs": dumps({}), "wait": True,
        }  # fmt: skip
        farewell = asyncio.ensure_future(scheduler.broadcast(msg=message, on_error="ignore"))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    async def before_close(self) -> None:
        for run in self._runs:
            run.cancel("the scheduler closes")
        deadline = time.monotonic() + FAREWELL_S
        while self._untold and time.monotonic() < deadline:  # the connections close next
            await asyncio.sleep(0.01)

    async def fit(self, comm: Comm, request: Any = None, **rest: Any) -> Any:
        """Dask handler: run a fit for the client on the other end, whose hanging up cancels it."""
        try:
            spec = decode_as(FitRequest, request)
            extras = None if rest else self.admissions.take(spec.token)
            if extras is None:
                raise WireError("no client has announced such a fit to this scheduler")
        except WireError as error:
            await refuse_comm(comm, str(error), event_message(("failure", encode(Failure.of(error)))))
            return Status.dont_reply
        assert self._scheduler is not None
        address, connection_args = self._scheduler.address, self._scheduler.connection_args
        run = CoordinatorRun(spec, "scheduler", address, connection_args, extras)
        for worker in spec.workers:
            if worker not in self._scheduler.workers:
                run.lose(worker, "it left the cluster before the fit")
        self._runs.add(run)
        self._untold.add(run)
        listener = asyncio.create_task(_cancel_when_left(comm, run))
        run.start()
        try:
            async for event in run.events():
                with contextlib.suppress(CommClosedError):  # without a client, the final event is still waited for
                    await comm.write(event_message(event))
            self._untold.discard(run)
            await listener  # the client hangs up once it has the final event, which may be a large model
        finally:
            run.cancel("its client left")
            self._runs.discard(run)
            self._untold.discard(run)
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
            comm.abort()
        return Status.dont_reply


async def _cancel_when_left(comm: Comm, run: CoordinatorRun) -> None:
    """A client never writes during a fit: whatever `read` ends with means that it is gone."""
    with contextlib.suppress(OSError):
        await comm.read()
    run.cancel("its client left")


async def _drop_of(client: str, dask_worker: Worker) -> None:
    """Run beside the worker's event loop, which must not wait for files that are removed."""
    host = dask_worker.extensions.get(PLUGIN)
    if isinstance(host, WorkerHost):
        await asyncio.to_thread(host.shards.leave, client)


def event_message(event: Event) -> dict[str, Any]:
    """An event as a message of Dask's."""
    kind, frames = event
    return {"event": kind, "frames": [bytes(frame) for frame in frames]}


def worker_host(worker: Worker) -> WorkerHost:
    """What daskboost keeps on a worker.

    Raises
    ------
    RuntimeError
        The plugin is not there.
    """
    host = worker.extensions.get(PLUGIN)
    if not isinstance(host, WorkerHost):
        raise RuntimeError(f"worker {worker.address} has no daskboost plugin")
    return host


def scheduler_plugin(scheduler: Scheduler) -> DaskboostScheduler:
    plugin = scheduler.plugins[PLUGIN]
    assert isinstance(plugin, DaskboostScheduler)
    return plugin


async def ensure_worker_plugin(client: Client) -> None:
    """Set the worker plugin up on all present and future workers; costs one message where it is there already.

    Raises
    ------
    RuntimeError
        A worker cannot import daskboost, or takes longer than `SETUP_S` to.
    """
    step = "setting up the workers"
    try:
        await heard(client, client.register_plugin(DaskboostWorker(), name=PLUGIN), step)
    except DaskBoostError:
        raise
    except Exception as error:
        # Else a later attempt would find the name and believe that all is well.
        await clean_up(client, lambda: client.unregister_worker_plugin(PLUGIN))
        raise RuntimeError(
            f"daskboost cannot start on the workers ({type(error).__name__}: {error}); "
            "install the client's version of daskboost on every worker"
        ) from error
    if client not in _sure:
        await ensure_scheduler_plugin(client)  # without which workers keep what a client leaves behind
        # Dask answers at once while another client's or thread's registration is still on its way to the workers.
        found = await heard(client, client.run(_is_set_up, on_error="ignore"), step)
        late = [worker for worker, is_there in found.items() if not is_there]
        if late:
            raise RuntimeError(
                f"daskboost did not start on worker {late[0]} within {SETUP_S:g} s, which another client began; look "
                "for the reason in the worker's log, and restart it"
            )
        _sure.add(client)


async def _is_set_up(dask_worker: Worker) -> bool:
    """Return whether the plugin is there within `SETUP_S`."""
    deadline = time.monotonic() + SETUP_S
    while time.monotonic() < deadline:
        host = dask_worker.extensions.get(PLUGIN)
        if isinstance(host, WorkerHost) and host.ready.is_set():
            return True
        await asyncio.sleep(0.01)
    return False


async def ensure_scheduler_plugin(client: Client) -> str | None:
    """Register the scheduler plugin; None, or the reason why the scheduler cannot have it."""
    try:
        await heard(client, client.register_plugin(DaskboostScheduler(), name=PLUGIN), "setting up the fit", ())
    except DaskBoostError:
        raise
    except Exception as error:  # whatever its unpickling raises there: the package may be missing, or pickles forbidden
        return f"{type(error).__name__}: {error}"
    return None
