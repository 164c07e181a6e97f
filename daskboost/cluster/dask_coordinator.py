"""Runs a fit's coordinator in a thread of the scheduler's, or of the client's, process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import reprlib
import selectors
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from daskboost.cluster.channel import Channel, ChannelClosedError, ChannelSilentError, pack
from daskboost.cluster.context import CoordinatorContext, RemoteCall
from daskboost.cluster.dask_comms import UnreachableError, open_channels
from daskboost.cluster.dask_sessions import OpenSession
from daskboost.cluster.dask_silence import Doing, Silence, find_doing
from daskboost.cluster.dask_watch import result_of
from daskboost.cluster.limits import DRAIN_S, GRACE_S, LOOK_S
from daskboost.errors import DaskBoostError, FitCancelledError, WorkerLostError
from daskboost.local.links import Failure
from daskboost.wire import Frame, WireError, encode, register

# The coordinator's end of the channels to all engines, and its judgement on who failed.

@dataclass(eq=False)
class ChannelEngines:
    """`Engines` over channels, one per engine. Every method is for one thread, except `cancel` and `lose`."""

    channels: Sequence[Channel]
    """In engine order; owned from here on."""
    workers: Sequence[str]
    """Where each engine runs, for messages to people."""
    silence_s: float
    """Seconds without a sign of life after which a working engine's worker counts as lost."""
    look_at: Callable[[Sequence[str]], Mapping[str, Doing]] = lambda workers: {}
    """What processes of silent workers do, by their addresses: if one computes it has as many seconds again."""

    def __post_init__(self) -> None:
        self._failure: DaskBoostError | None = None
        self._departed: dict[int, str] = {}
        self._phase = "opening"
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._tick_s = min(LOOK_S, self.silence_s / 4)
        self._silences = [Silence(self.silence_s) for _ in self.channels]
        for rank, channel in enumerate(self.channels):
            channel.limit_silence(self._tick_s, partial(self._bears, rank))
            self._selector.register(channel, selectors.EVENT_READ, rank)

    @property
    def n_engines(self) -> int:
        return len(self.channels)

    def ask(self, message: Any, /) -> list[Any]:
        return self._ask([pack(encode(message))] * self.n_engines, type(message).__name__)

    def ask_each(self, messages: Sequence[Any], /) -> list[Any]:
        if len(messages) != self.n_engines:
            raise ValueError(f"{len(messages)} messages for {self.n_engines} engines")
        return self._ask([pack(encode(message)) for message in messages], type(messages[0]).__name__)

    def cancel(self, reason: str) -> None:
        """From any thread: make the running call, and every later one, raise FitCancelledError."""
        if self._failure is None:
            self._failure = FitCancelledError(f"the fit was cancelled: {reason}")
        self._interrupt()

    def lose(self, worker: str, reason: str) -> None:
        """From any thread: the worker left the cluster; does nothing if no engine runs there."""
        for rank, address in enumerate(self.workers):
            if address == worker:
                self._departed[rank] = reason
                self.channels[rank].interrupt()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + DRAIN_S  # after a failure the connections are closed already: no wait
        for channel in self.channels:
            channel.finish()
        for channel in self.channels:
            channel.drain(max(0.01, deadline - time.monotonic()))
        self._selector.close()
        for channel in self.channels:
            channel.close()

    def _ask(self, packed: Sequence[Sequence[Frame]], phase: str) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("the engines of this fit are closed")
        self._phase = phase
        for rank, pieces in enumerate(packed):
            try:
                self.channels[rank].send_packed(pieces)
            except ChannelClosedError as error:
                self._fail(self._lost(rank, error))
        return self._gather()

    def _gather(self) -> list[Any]:
        replies: list[Any] = [None] * self.n_engines
        pending = set(range(self.n_engines))
        quiet_s = dict.fromkeys(pending, 0.0)
        consequence: DaskBoostError | None = None
        grace_s = GRACE_S
        while pending and grace_s > 0:
            started = time.monotonic()
            ready = self._ready(pending, self._tick_s)
            for rank in ready:
                quiet_s[rank] = 0.0
                try:
                    is_message, reply = self.channels[rank].receive_any()
                except ChannelClosedError as error:
                    self._fail(self._lost(rank, error))
                except WireError as error:
                    self._fail(Failure.of(error).as_engine_error(rank, self.workers[rank], self._phase))
                if not is_message:
                    continue
                pending.discard(rank)
                replies[rank] = reply
                if type(reply) is Failure:
                    error_ = reply.as_error(rank, self.workers[rank], self._phase)
                    if not reply.is_consequence:
                        self._fail(error_)
                    self._selector.unregister(self.channels[rank])  # it hangs up now, and is not to blame
                    consequence = consequence or error_
            # Where this process itself was held up for long, what came meanwhile waits to be read: that is no silence.
            waited_s = min(time.monotonic() - started, self._tick_s)
            silent = {rank: quiet_s[rank] + waited_s for rank in pending.difference(ready)}
            quiet_s |= silent
            for rank in self._given_up(silent):
                self._fail(self._lost(rank, ChannelSilentError("it fell silent")))
            if consequence is not None:
                grace_s -= waited_s
        if consequence is not None:
            self._fail(consequence)
        return replies

    def _ready(self, pending: set[int], timeout_s: float) -> list[int]:
        """Ranks with something to read; one that already replied can only have hung up."""
        buffered = [rank for rank in pending if self.channels[rank].has_buffered()]
        return buffered or [key.data for key, _ in self._selector.select(timeout_s)]

    def _bears(self, rank: int, quiet_s: float) -> bool:
        """Return whether to wait on for an engine from which nothing came for so many seconds."""
        return not self._given_up({rank: quiet_s})

    def _given_up(self, quiet_s: Mapping[int, float]) -> list[int]:
        """Return those of some engines that are waited for no longer, given the seconds since something came."""
        given_up = [rank for rank in quiet_s if self._failure is not None or rank in self._departed]
        suspects = [
            rank for rank, seconds in quiet_s.items()
            if rank not in given_up and self._silences[rank].needs_look(seconds)
        ]  # fmt: skip
        doing = self.look_at([self.workers[rank] for rank in suspects]) if suspects else {}
        for rank in suspects:
            reason = self._silences[rank].why_lost(quiet_s[rank], doing.get(self.workers[rank]))
            if reason and not self.channels[rank].has_bytes():  # they may have come meanwhile
                self._departed.setdefault(rank, reason)
                given_up.append(rank)
        return given_up

    def _lost(self, rank: int, error: Exception) -> WorkerLostError:
        reason = self._departed.get(rank, str(error))
        lost = WorkerLostError(
            f"worker {self.workers[rank]} (engine {rank}) was lost in {self._phase}: {reason}. "
            "Look for the reason (often memory) in the worker's log, then fit again, a QuantizedDataset made anew"
        )
        lost.__cause__ = error
        return lost

    def _fail(self, error: DaskBoostError) -> NoReturn:
        if self._failure is None:  # a cancelled fit's connections break because it was cancelled
            self._failure = error
        self._interrupt()
        raise self._failure

    def _interrupt(self) -> None:
        for channel in self.channels:
            with contextlib.suppress(ValueError):  # closed meanwhile
                channel.interrupt()


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


@dataclass(eq=False)
class CoordinatorRun:
    """One running fit, made and followed on the event loop that opens its connections."""

    request: FitRequest
    place: str
    """"scheduler" or "client"."""
    scheduler: str
    """The scheduler's address."""
    connection_args: dict[str, Any]
    """The process's own, from the cluster's Security."""
    extras: Mapping[str, Any]
    """The fit's Python objects."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._lock = threading.Lock()
        self._cancelled: str | None = None
        self._departed: dict[str, str] = {}
        self._engines: ChannelEngines | None = None

    def start(self) -> None:
        name = f"daskboost-fit-{self.request.fit_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield all events, up to the final one."""
        kind = "progress"
        while kind == "progress":
            event = await self._events.get()
            kind = event[0]
            yield event

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
            logger.debug("fit %s failed", self.request.fit_id, exc_info=True)
            final = ("failure", encode(Failure.of(error)))
        self._emit(final)

    def _emit(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # this process ends
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def _coordinate(self) -> Any:
        request = self.request
        function, argument = request.coordinator.resolve()
        engines = ChannelEngines(self._connect(), request.workers, request.silence_s, self._look_at)
        try:
            self._publish(engines)
            engines.ask_each(
                [
                    OpenSession(request.fit_id, request.token, rank, request.workers, call)
                    for rank, call in enumerate(request.engines)
                ]
            )
            result = function(CoordinatorContext(engines, self.place, self._report, self.extras), argument)
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
            gone = [worker for worker in self.request.workers if worker in self._departed]
        if gone:  # else connecting would be retried until it times out
            raise WorkerLostError(
                f"worker {gone[0]}, which holds part of the data, was lost: {self._departed[gone[0]]}"
            )
        try:
            return open_channels(self._loop, self.request.workers, self.connection_args)
        except UnreachableError as error:
            lost = f"worker {error.address} cannot be reached from the {self.place}: {error}"
            raise WorkerLostError(lost) from error

    def _look_at(self, workers: Sequence[str]) -> Mapping[str, Doing]:
        """Return what processes of silent workers do, as their nannies see it."""
        looking = find_doing(self.scheduler, self.connection_args, workers)
        asked = asyncio.run_coroutine_threadsafe(looking, self._loop)
        return result_of(asked, self._loop, lambda: FitCancelledError("this process ends"))

    def _report(self, event: Mapping[str, Any]) -> None:
        self._emit(("progress", encode(dict(event))))

    def _check_cancelled(self) -> None:
        if self._cancelled is not None:
            raise FitCancelledError(f"the fit was cancelled: {self._cancelled}")
