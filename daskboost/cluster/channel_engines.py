"""The coordinator's end of the channels to all engines, and its judgement on who failed."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from daskboost.cluster.channel import Channel, ChannelClosedError, ChannelSilentError, pack
from daskboost.cluster.limits import DRAIN_S, GRACE_S, LOOK_S
from daskboost.cluster.links import Failure
from daskboost.cluster.wire import Frame, WireError, encode
from daskboost.errors import DaskBoostError, FitCancelledError, WorkerLostError


class ChannelEngines:
    """`Engines` over channels, one per engine.

    Every method is for one thread, except `cancel` and `lose`.

    Parameters
    ----------
    channels : sequence of Channel
        In engine order; owned from here on.
    workers : sequence of str
        Where each engine runs, for messages to people.
    silence_s : float
        Seconds without a sign of life after which a working engine's worker counts as lost.
    is_computing : callable
        Asked whether a silent worker computes, by its address: then it has as many seconds again.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        workers: Sequence[str],
        silence_s: float,
        is_computing: Callable[[str], bool] = lambda worker: False,
    ) -> None:
        self._channels = list(channels)
        self._workers = list(workers)
        self._silence_s = silence_s
        self._is_computing = is_computing
        self._failure: DaskBoostError | None = None
        self._departed: dict[int, str] = {}
        self._phase = "opening"
        self._closed = False
        self._selector = selectors.DefaultSelector()
        for rank, channel in enumerate(self._channels):
            channel.limit_silence(silence_s, partial(self._excuses, rank))
            self._selector.register(channel, selectors.EVENT_READ, rank)

    @property
    def n_engines(self) -> int:
        return len(self._channels)

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
        for rank, address in enumerate(self._workers):
            if address == worker:
                self._departed[rank] = reason
                self._channels[rank].interrupt()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + DRAIN_S  # after a failure the connections are closed already: no wait
        for channel in self._channels:
            channel.finish()
        for channel in self._channels:
            channel.drain(max(0.01, deadline - time.monotonic()))
        self._selector.close()
        for channel in self._channels:
            channel.close()

    def _ask(self, packed: Sequence[Sequence[Frame]], phase: str) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("the engines of this fit are closed")
        self._phase = phase
        for rank, pieces in enumerate(packed):
            try:
                self._channels[rank].send_packed(pieces)
            except ChannelClosedError as error:
                self._fail(self._lost(rank, error))
        return self._gather()

    def _gather(self) -> list[Any]:
        replies: list[Any] = [None] * self.n_engines
        pending = set(range(self.n_engines))
        quiet_s = [0.0] * self.n_engines
        consequence: DaskBoostError | None = None
        grace_s = GRACE_S
        tick_s = min(LOOK_S, self._silence_s / 4)
        while pending and grace_s > 0:
            started = time.monotonic()
            ready = self._ready(pending, tick_s)
            for rank in ready:
                quiet_s[rank] = 0.0
                try:
                    is_message, reply = self._channels[rank].receive_any()
                except ChannelClosedError as error:
                    self._fail(self._lost(rank, error))
                except WireError as error:
                    self._fail(Failure.of(error).as_engine_error(rank, self._workers[rank], self._phase))
                if not is_message:
                    continue
                pending.discard(rank)
                replies[rank] = reply
                if type(reply) is Failure:
                    error_ = reply.as_engine_error(rank, self._workers[rank], self._phase)
                    if not reply.is_consequence:
                        self._fail(error_)
                    self._selector.unregister(self._channels[rank])  # it hangs up now, and is not to blame
                    consequence = consequence or error_
            # Where this process itself was held up for long, what came meanwhile waits to be read: that is no silence.
            waited_s = min(time.monotonic() - started, tick_s)
            for rank in pending.difference(ready):
                quiet_s[rank] += waited_s
                if quiet_s[rank] <= self._silence_s:
                    continue
                if not self._excuses(rank):
                    self._fail(self._lost(rank, ChannelSilentError(f"no sign of life for {self._silence_s:g} s")))
                quiet_s[rank] = 0.0
            if consequence is not None:
                grace_s -= waited_s
        if consequence is not None:
            self._fail(consequence)
        return replies

    def _ready(self, pending: set[int], timeout_s: float) -> list[int]:
        """Ranks with something to read; one that already replied can only have hung up."""
        buffered = [rank for rank in pending if self._channels[rank].has_buffered()]
        return buffered or [key.data for key, _ in self._selector.select(timeout_s)]

    def _excuses(self, rank: int) -> bool:
        """Return whether an engine has a reason to be silent, and nobody a reason not to wait for it."""
        return self._failure is None and rank not in self._departed and self._is_computing(self._workers[rank])

    def _lost(self, rank: int, error: Exception) -> WorkerLostError:
        reason = self._departed.get(rank, str(error))
        lost = WorkerLostError(
            f"worker {self._workers[rank]} (engine {rank}) was lost in {self._phase}: {reason}. "
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
        for channel in self._channels:
            with contextlib.suppress(ValueError):  # closed meanwhile
                channel.interrupt()
