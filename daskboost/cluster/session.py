"""The engine's end of a channel: its thread, its heartbeat, and its end.

A session answers one message at a time until the coordinator hangs up or a message fails. While it works, a second
thread tells the coordinator so several times a second, and watches for the coordinator hanging up, which is how a fit
is cancelled: then the engine is told to stop, and whoever waits for peers wakes up.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol

from daskboost.cluster.channel import Channel, ChannelClosedError, pack
from daskboost.cluster.limits import HEARTBEAT_S
from daskboost.errors import FitCancelledError
from daskboost.local.links import Engine, Failure, close_engine, stop_engine
from daskboost.wire import WireError, encode

logger = logging.getLogger(__name__)


def _raise(error: Exception) -> NoReturn:
    raise error


class Releasable(Protocol):
    """Peers, as far as a session is concerned."""

    def close(self) -> None:
        """Wake whoever waits in them; from any thread."""

    def release(self) -> None:
        """Free their connections; from the session's thread, after the last exchange."""


class EngineSession:
    """Serves one engine over one channel.

    Parameters
    ----------
    channel : Channel
        Owned by the session.
    open_engine : callable
        Makes the engine; runs in the session's thread and may take its time.
    peers : Releasable
        Closed as soon as the engine fails, is stopped, or ends.
    heartbeat_s : float
        Seconds between signs of life.
    """

    def __init__(
        self, channel: Channel, open_engine: Callable[[], Engine], peers: Releasable, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._channel = channel
        self._open_engine = open_engine
        self._peers = peers
        self._heartbeat_s = heartbeat_s
        self._engine: Engine | None = None
        self._lock = threading.Lock()  # guards _busy against a sign of life after the reply
        self._busy = True
        self._stopping = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        """Serve until the end; blocking, in a thread of its own."""
        watcher = threading.Thread(target=self._watch, name="daskboost-heartbeat", daemon=True)
        watcher.start()
        try:
            if self._answer(self._open):
                self._serve()
        except ChannelClosedError as error:
            logger.debug("the coordinator left: %s", error)
        finally:
            self._end()

    def stop(self) -> None:
        """End the session from another thread, also in the middle of a message."""
        self._stopping.set()
        self._channel.interrupt()
        self._peers.close()
        engine = self._engine
        if engine is not None:
            stop_engine(engine)

    def wait(self, timeout_s: float) -> bool:
        """Whether the session ended, engine closed, within the timeout."""
        return self._ended.wait(timeout_s)

    def _serve(self) -> None:
        engine = self._engine
        assert engine is not None
        while True:
            try:
                message = self._channel.receive()
                work = partial(engine.handle, message)
            except WireError as error:
                logger.warning("refused a message: %s", error)
                work = partial(_raise, error)
            with self._lock:
                self._busy = True
            if not self._answer(work):
                return

    def _open(self) -> bool:
        self._engine = self._open_engine()
        if self._stopping.is_set():
            raise FitCancelledError("the fit ended while its engines were opened")
        return True

    def _answer(self, work: Callable[[], Any]) -> bool:
        """Send the work's result, or the exception it raised; False for the latter."""
        try:
            pieces = pack(encode(work()))
            failed = False
        except BaseException as caught:  # all of it is the coordinator's to know
            logger.debug("engine failed", exc_info=True)
            stopped = self._stopping.is_set()
            pieces = pack(encode(Failure.of(FitCancelledError("the engine was stopped") if stopped else caught)))
            failed = True
        with self._lock:
            self._busy = False
            self._channel.send_packed(pieces)
        return not failed

    def _watch(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            if not self._busy or self._stopping.is_set():
                continue
            if self._channel.hung_up():
                self.stop()
                continue
            with self._lock:
                if self._busy:
                    with contextlib.suppress(ChannelClosedError):  # seen as hung up next time
                        self._channel.send_alive()

    def _end(self) -> None:
        self._peers.close()
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                close_engine(engine)
        except Exception:  # nobody is left to tell
            logger.exception("an engine failed to close")
        finally:
            self._peers.release()
            self._ended.set()
            self._channel.close()
