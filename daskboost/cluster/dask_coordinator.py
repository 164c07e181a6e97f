"""Runs a fit's coordinator in a thread of the scheduler's, or of the client's, process."""

from __future__ import annotations

import asyncio
import logging
import math
import reprlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from daskboost.cluster.channel import Channel
from daskboost.cluster.channel_engines import ChannelEngines
from daskboost.cluster.context import CoordinatorContext, RemoteCall
from daskboost.cluster.dask_comms import UnreachableError, open_channels
from daskboost.cluster.dask_nannies import find_computing
from daskboost.cluster.dask_sessions import OpenSession
from daskboost.cluster.dask_watch import result_of
from daskboost.cluster.links import Failure
from daskboost.cluster.wire import Frame, encode, register
from daskboost.errors import FitCancelledError, WorkerLostError

logger = logging.getLogger(__name__)

Event = tuple[str, list[Frame]]
"""("progress" | "result" | "failure", an encoded value); the last two are final."""


@register
@dataclass(frozen=True)
class FitRequest:
    """All that a fit needs, apart from its extras."""

    fit_id: str
    token: str
    workers: tuple[str, ...]
    """In engine order, each once."""
    engines: tuple[RemoteCall, ...]
    """One per worker."""
    coordinator: RemoteCall
    silence_s: float

    def __post_init__(self) -> None:
        if not 0 < len(self.workers) == len(set(self.workers)) == len(self.engines):
            raise ValueError(f"{len(self.engines)} engines for the workers {reprlib.repr(self.workers)}")
        if not 0 < self.silence_s < math.inf:
            raise ValueError(f"silence_s is {self.silence_s}, not a number of seconds")


class CoordinatorRun:
    """One running fit.

    Parameters
    ----------
    request : FitRequest
    place : str
        "scheduler" or "client".
    scheduler : str
        The scheduler's address.
    loop : asyncio event loop
        Where connections are opened; it must keep running, and must not be this fit's thread.
    connection_args : dict
        The process's own, from the cluster's Security.
    extras : mapping
        The fit's Python objects.
    emit : callable
        Called with every event from the fit's thread.
    """

    def __init__(
        self,
        request: FitRequest,
        place: str,
        scheduler: str,
        loop: asyncio.AbstractEventLoop,
        connection_args: dict[str, Any],
        extras: Mapping[str, Any],
        emit: Callable[[Event], None],
    ) -> None:
        self._request = request
        self._place = place
        self._scheduler = scheduler
        self._loop = loop
        self._connection_args = connection_args
        self._extras = extras
        self._emit = emit
        self._lock = threading.Lock()
        self._cancelled: str | None = None
        self._departed: dict[str, str] = {}
        self._engines: ChannelEngines | None = None

    def start(self) -> None:
        name = f"daskboost-fit-{self._request.fit_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def cancel(self, reason: str) -> None:
        """End the fit soon, from any thread; it still emits its final event."""
        with self._lock:
            self._cancelled = self._cancelled or reason
            if self._engines is not None:
                self._engines.cancel(reason)

    def lose(self, worker: str, reason: str) -> None:
        """Note that a worker left the cluster, from any thread."""
        with self._lock:
            self._departed[worker] = reason
            if self._engines is not None:
                self._engines.lose(worker, reason)

    def _run(self) -> None:
        try:
            final: Event = ("result", encode(self._coordinate()))
        except BaseException as error:  # all of it is the client's to know
            logger.debug("fit %s failed", self._request.fit_id, exc_info=True)
            final = ("failure", encode(Failure.of(error)))
        self._emit(final)

    def _coordinate(self) -> Any:
        request = self._request
        function, argument = request.coordinator.resolve()
        engines = ChannelEngines(self._connect(), request.workers, request.silence_s, self._is_computing)
        try:
            self._publish(engines)
            engines.ask_each(
                [
                    OpenSession(request.fit_id, request.token, rank, request.workers, call)
                    for rank, call in enumerate(request.engines)
                ]
            )
            context = CoordinatorContext(
                engines, request.workers, self._place, self._report, self._check_cancelled, self._extras
            )
            result = function(context, argument)
            self._check_cancelled()
            return result
        finally:
            engines.close()

    def _publish(self, engines: ChannelEngines) -> None:
        """From here on `cancel` and `lose` reach the engines; what came before is caught up on."""
        with self._lock:
            self._engines = engines
            if self._cancelled is not None:
                engines.cancel(self._cancelled)
            for worker, reason in self._departed.items():
                engines.lose(worker, reason)

    def _connect(self) -> list[Channel]:
        self._check_cancelled()
        with self._lock:
            gone = [worker for worker in self._request.workers if worker in self._departed]
        if gone:  # else connecting would be retried until it times out
            raise WorkerLostError(
                f"worker {gone[0]}, which holds part of the data, was lost: {self._departed[gone[0]]}"
            )
        try:
            return open_channels(self._loop, self._request.workers, self._connection_args)
        except UnreachableError as error:
            lost = f"worker {error.address} cannot be reached from the {self._place}: {error}"
            raise WorkerLostError(lost) from error

    def _is_computing(self, worker: str) -> bool:
        """Return whether a silent worker's process computes, as its nanny sees it."""
        asking = find_computing(self._scheduler, self._connection_args, [worker])
        asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return worker in result_of(asked, self._loop, lambda: FitCancelledError("this process ends"))

    def _report(self, event: Mapping[str, Any]) -> None:
        self._emit(("progress", encode(dict(event))))

    def _check_cancelled(self) -> None:
        if self._cancelled is not None:
            raise FitCancelledError(f"the fit was cancelled: {self._cancelled}")
