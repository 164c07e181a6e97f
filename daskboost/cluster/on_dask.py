"""Fits on a Dask cluster, from the client's side.

    client                    scheduler (or the client itself)          workers
    run_fit --- request --->  coordinator's thread  --- messages --->   engine's thread, one per worker with data
            <-- progress ---                        <-- replies ----    engine <--- exchange ---> engine
            <-- result -----

The client's connection stands for the fit: when it closes, because of Ctrl-C, cancellation or the client's death, the
fit is cancelled and everything is freed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from daskboost import errors
from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_coordinator import CoordinatorRun, Event, FitRequest
from daskboost.cluster.dask_plugins import (
    FIT_OP,
    ensure_scheduler_plugin,
    ensure_worker_plugin,
    scheduler_plugin,
    worker_host,
)
from daskboost.cluster.dask_watch import check_loop, clean_up, event_loop, heard, scheduler_address
from daskboost.cluster.limits import CANCEL_S, CLEAN_UP_S, CONNECT_TIMEOUT_S, LOOK_S, silence_s
from daskboost.errors import DaskBoostError, SchedulerLostError, WorkerLostError
from daskboost.local.links import Failure, RemoteError
from daskboost.wire import decode, encode

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker

logger = logging.getLogger(__name__)

Place = Literal["auto", "scheduler", "client"]
Progress = Callable[[dict[str, Any]], None]


def run_fit(
    client: Client,
    engines: Sequence[tuple[str, RemoteCall]],
    coordinator: RemoteCall,
    *,
    extras: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
    place: Place = "auto",
) -> Any:
    """Run one fit on the cluster, and wait for it.

    Parameters
    ----------
    client : distributed.Client
        Synchronous or asynchronous; for asynchronous ones not from their event loop's thread.
    engines : sequence of (worker address, RemoteCall)
        One engine per worker that takes part, in engine order; the call's function gets an `EngineContext`.
    coordinator : RemoteCall
        Its function gets a `CoordinatorContext`, and returns any message.
    extras : mapping, optional
        Python objects that both functions find in their context. They travel by Dask's own serialization.
    on_progress : callable, optional
        Called with every event that the coordinator reports, in the caller's thread. An exception in it cancels the
        fit.
    place : {"auto", "scheduler", "client"}
        Where the coordinator runs; "auto" prefers the scheduler's process, and takes the client's where the scheduler
        lacks the package.

    Returns
    -------
    object
        What the coordinator's function returned.

    Raises
    ------
    EngineError
        An engine raised; the message and the cause tell what. What it raised about the data stays a `DataError`.
    WorkerLostError
        A worker died, left, or fell silent.
    SchedulerLostError
        The scheduler died.
    DaskBoostError
        Errors of the coordinator keep their type if they are ours.
    """
    request = _make_request(engines, coordinator)
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    future = asyncio.run_coroutine_threadsafe(
        _run_fit(client, request, extras or {}, events.put, place), event_loop(client)
    )
    future.add_done_callback(lambda _: events.put({}))  # wakes the wait below
    try:
        while not future.done():  # in the caller's thread, which so serves its own callbacks and sees Ctrl-C at once
            _serve(events, on_progress, wait_s=LOOK_S)
            check_loop(client, future)
        _serve(events, on_progress, wait_s=0.0)
        check_loop(client, future)
        return future.result()
    except BaseException:
        future.cancel()
        concurrent.futures.wait([future], timeout=CANCEL_S)
        raise


def _make_request(engines: Sequence[tuple[str, RemoteCall]], coordinator: RemoteCall) -> FitRequest:
    workers = tuple(worker for worker, _ in engines)
    if not workers:
        raise ValueError("engines is empty: a fit needs at least one worker with data")
    if len(set(workers)) != len(workers):
        raise ValueError(f"engines names a worker twice: {sorted(workers)}")
    calls = tuple(call for _, call in engines)
    return FitRequest(secrets.token_hex(4), secrets.token_hex(16), workers, calls, coordinator, silence_s())


def _serve(events: SimpleQueue[dict[str, Any]], on_progress: Progress | None, wait_s: float) -> None:
    with contextlib.suppress(Empty):
        while event := events.get(timeout=wait_s):
            if on_progress is not None:
                on_progress(event)


async def _run_fit(
    client: Client, request: FitRequest, extras: Mapping[str, Any], on_progress: Progress, place: Place
) -> Any:
    await ensure_worker_plugin(client)
    reason = "the caller chose the client" if place == "client" else await ensure_scheduler_plugin(client)
    if reason is not None and place == "scheduler":
        raise RuntimeError(f"the scheduler cannot coordinate the fit: {reason}")
    if reason is not None and place == "auto":
        logger.warning("the fit is coordinated by the client, because the scheduler cannot: %s", reason)
    try:
        await _announce(client, request, extras, to_scheduler=reason is None)
        events = _on_scheduler(client, request) if reason is None else _in_client(client, request, extras)
        # The coordinator watches the workers; here it is the scheduler that must live.
        return await heard(client, _result(events, on_progress), "the fit", ())
    except BaseException as error:
        await _withdraw(client, request, 0.0 if isinstance(error, WorkerLostError) else CLEAN_UP_S)
        raise


async def _result(events: AsyncGenerator[Event, None], on_progress: Progress) -> Any:
    """What the coordinator returns, or raise what it raised; pass its reports on."""
    async with contextlib.aclosing(events):
        async for kind, frames in events:
            value = decode(frames)
            if kind == "progress":
                on_progress(value)
            elif kind == "failure":
                raise _as_exception(value)
            else:
                return value
    raise SchedulerLostError("the coordinator ended without a result")


async def _on_scheduler(client: Client, request: FitRequest) -> AsyncGenerator[Event, None]:
    from distributed.comm import CommClosedError, connect

    assert client.scheduler is not None
    try:
        comm = await connect(client.scheduler.address, timeout=CONNECT_TIMEOUT_S, **client.connection_args)
        try:
            frames = [bytes(frame) for frame in encode(request)]
            await comm.write({"op": FIT_OP, "request": frames, "reply": False})
            while True:
                event = await comm.read()
                yield event["event"], [bytearray(frame) for frame in event["frames"]]
        finally:
            comm.abort()  # which cancels a fit that still runs
    except (CommClosedError, OSError) as error:
        raise SchedulerLostError(f"the connection to the scheduler broke during the fit: {error}") from error


async def _in_client(client: Client, request: FitRequest, extras: Mapping[str, Any]) -> AsyncGenerator[Event, None]:
    run = CoordinatorRun(request, "client", scheduler_address(client), client.connection_args, extras)
    run.start()
    try:
        async for event in run.events():
            yield event
    finally:
        run.cancel("its caller left")


def _as_exception(failure: Failure) -> Exception:
    """Our own exceptions come back as what they were; others as a failure of the coordinator."""
    cls = getattr(errors, failure.error_type, None)
    if isinstance(cls, type) and issubclass(cls, DaskBoostError):
        error: DaskBoostError = cls(failure.message)
    else:
        error = DaskBoostError(f"the coordinator failed: {failure.error_type}: {failure.message}")
    error.__cause__ = RemoteError(failure.traceback)
    return error


async def _announce(client: Client, request: FitRequest, extras: Mapping[str, Any], to_scheduler: bool) -> None:
    """Tell all who take part the fit's token, by Dask's own messages: without it they let no connection in."""
    workers = list(request.workers)
    calls: list[Awaitable[Any]] = [client.run(_announce_to_worker, request.token, extras, workers=workers)]
    if to_scheduler:
        calls.append(client.run_on_scheduler(_announce_to_scheduler, request.token, extras))
    await heard(client, asyncio.gather(*calls), "announcing the fit to the workers", workers)


async def _withdraw(client: Client, request: FitRequest, within_s: float) -> None:
    """Have workers forget a fit that failed before its sessions opened, which they do themselves; lost workers do not
    answer."""
    await clean_up(
        client,
        lambda: client.run(_withdraw_from_worker, request.token, workers=list(request.workers), on_error="ignore"),
        within_s,
    )


def _announce_to_worker(token: str, extras: Mapping[str, Any], dask_worker: Worker) -> None:
    worker_host(dask_worker).admissions.announce(token, extras)


def _withdraw_from_worker(token: str, dask_worker: Worker) -> None:
    worker_host(dask_worker).admissions.withdraw(token)


def _announce_to_scheduler(token: str, extras: Mapping[str, Any], dask_scheduler: Scheduler) -> None:
    scheduler_plugin(dask_scheduler).admissions.announce(token, extras)
