"""A worker's side: its shards, its engines' sessions, and the connections between engines.

Whoever connects first says what it wants. `OpenSession` comes from a fit's coordinator and starts an engine in a
thread of its own; `PeerHello` comes from another engine of the same fit. Both carry the fit's random token, which the
fit's client has announced by a message of Dask's (`Admissions`). Whatever else comes gets one refusal, and a line in
the log.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from daskboost.cluster.channel import Channel, ChannelClosedError
from daskboost.cluster.context import EngineContext, RemoteCall, WorkerPlace, WorkerShards
from daskboost.cluster.dask_comms import accept_channel, open_channels, refuse_comm
from daskboost.cluster.limits import DRAIN_S, HELLO_S
from daskboost.cluster.message_board import MessageBoard
from daskboost.cluster.session import ChannelPeers, Engine, EngineSession
from daskboost.local.links import Failure, PeerLostError
from daskboost.wire import WireError, register

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm import Comm

# Fits that a process takes part in: announced by Dask's own messages, and known by their secret tokens after that.
#
# Whoever can send Dask's messages to a scheduler or worker may run anything there; Dask decides who that is (TLS,
# firewalls). A fit's connections are opened beside those messages. So a client first announces the fit by one of them,
# with a random token, and a connection is served only if it shows that token. Nobody can name a token that was never
# announced.

def find_token(token: str, known: Iterable[str]) -> str | None:
    """The equal one among the known tokens; the time it takes tells nothing of how alike others are."""
    shown, found = token.encode(), None
    for each in known:
        if hmac.compare_digest(each.encode(), shown):
            found = each
    return found


class Admissions:
    """Announced fits by their tokens, each with its Python objects. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._extras: dict[str, Mapping[str, Any]] = {}

    def announce(self, token: str, extras: Mapping[str, Any]) -> None:
        """Let connections in that show this token, and keep the fit's Python objects for it."""
        with self._lock:
            self._extras[token] = extras

    def withdraw(self, token: str) -> None:
        """Forget a fit, if it is known."""
        with self._lock:
            self._extras.pop(token, None)

    def take(self, token: str) -> Mapping[str, Any] | None:
        """Return an announced fit's Python objects, and forget it: it starts once. None where nobody announced it."""
        with self._lock:
            found = find_token(token, self._extras)
            return None if found is None else self._extras.pop(found)


logger = logging.getLogger(__name__)

HELLO_BYTES = 1 << 24
"""Bytes that a new connection's first message may have: addresses of a hundred thousand workers."""
SILENT_CONNECTIONS = 64
"""New connections that may be silent at the same time, each with a thread, beside those that the running fits' engines
may open to one another. With one more, the oldest is dropped: those of fits speak at once."""


STOPPED_CALLS = 1000
"""How many stopped calls a worker remembers: more than may still run."""


@register
@dataclass(frozen=True)
class OpenSession:
    """First message of a coordinator; answered by True once the engine is open, or by a Failure."""

    fit_id: str
    """For logs."""
    token: str
    """The fit's secret; peers must show it."""
    rank: int
    workers: tuple[str, ...]
    """Addresses of all engines' workers, in engine order."""
    call: RemoteCall
    """Opens the engine."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.workers):
            raise ValueError(f"rank {self.rank} of {len(self.workers)} workers")


@register
@dataclass(frozen=True)
class PeerHello:
    """First message of engine `rank` on a connection over which it will send; answered by True or a Failure."""

    token: str
    rank: int


class WorkerHost:
    """Everything of daskboost on one Dask worker. Workers of one process have one each."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._connectors: dict[str, DaskConnector] = {}
        self._sessions: dict[str, EngineSession] = {}
        self._silent: list[Channel] = []
        self.admissions = Admissions()
        self.shards = WorkerShards()
        self.ready = threading.Event()
        """Set once the scheduler knows of the worker's resource."""
        self.turn = asyncio.Lock()
        """Held by the call that reads partitions here (`dask_calls.py`)."""
        self.stopped: deque[str] = deque(maxlen=STOPPED_CALLS)
        """Names of calls that are to go on no longer."""

    @property
    def place(self) -> WorkerPlace:
        memory_limit = self._worker.memory_manager.memory_limit
        return WorkerPlace(
            address=self._worker.address,
            n_threads=self._worker.state.nthreads,
            memory_limit_bytes=memory_limit or None,
            local_directory=self._worker.local_directory,
            shards=self.shards,
        )

    async def accept(self, comm: Comm, **request: Any) -> Any:
        """Dask handler of new connections: it never replies, and the connection is no longer Dask's afterwards."""
        from distributed.core import Status

        raw = request.get("raw")
        if len(request) == 1 and isinstance(raw, bool):
            await accept_channel(comm, raw, self._start)
        else:
            await refuse_comm(comm, "a request for a channel says whether it is raw, and nothing else")
        return Status.dont_reply

    def close(self) -> None:
        """Stop all sessions and drop all shards. Does not wait for engines: it is called on the event loop."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        self.shards.close()

    def _start(self, channel: Channel) -> None:
        with self._lock:
            self._silent.append(channel)
            expected = sum(connector.n_peers for connector in self._connectors.values())
            excess = self._silent[: max(0, len(self._silent) - SILENT_CONNECTIONS - expected)]
        for silent in excess:
            logger.warning("too many connections are silent: the oldest is dropped")
            silent.interrupt()
        try:
            threading.Thread(target=self._serve, args=(channel,), name="daskboost-session", daemon=True).start()
        except BaseException:
            self._heard(channel)
            channel.close()
            raise

    def _heard(self, channel: Channel) -> None:
        with self._lock:
            self._silent.remove(channel)

    def _serve(self, channel: Channel) -> None:
        try:
            try:
                first = channel.receive_first(HELLO_S, HELLO_BYTES)
            finally:
                self._heard(channel)
            match first:
                case OpenSession():
                    self._run_session(channel, first)
                case PeerHello():
                    self._accept_peer(channel, first)
                case _:
                    raise WireError(f"a connection cannot start with {type(first).__name__}")
        except ChannelClosedError as error:
            logger.warning("dropped a connection: %s", error)
            channel.close()
        except WireError as error:
            _refuse(channel, error)

    def _run_session(self, channel: Channel, request: OpenSession) -> None:
        with self._lock:
            taken = find_token(request.token, self._sessions) is not None
        if taken:
            _refuse(channel, WireError("the fit has an engine on this worker already: list every worker once"))
            return
        extras = self.admissions.take(request.token)
        if extras is None:
            _refuse(channel, WireError("no client has announced such a fit to this worker"))
            return
        connector = DaskConnector(self._worker, request)
        n_engines = len(request.workers)
        board = MessageBoard(request.token, request.rank, n_engines) if n_engines > 1 else None
        peers = ChannelPeers(request.rank, n_engines, connector, board)
        session = EngineSession(channel, lambda: self._open_engine(request, peers, extras), peers)
        with self._lock:
            self._sessions[request.token] = session
            self._connectors[request.token] = connector
        logger.info("fit %s: engine %d of %d opens", request.fit_id, request.rank, len(request.workers))
        try:
            session.run()
        finally:
            with self._lock:
                del self._sessions[request.token], self._connectors[request.token]
            logger.info("fit %s: engine %d ended", request.fit_id, request.rank)

    def _open_engine(self, request: OpenSession, peers: ChannelPeers, extras: Mapping[str, Any]) -> Engine:
        self._await_endings(request.token)
        function, argument = request.call.resolve()
        engine: Engine = function(EngineContext(self.place, peers, extras), argument)
        return engine

    def _await_endings(self, token: str) -> None:
        """Wait for engines of fits that have ended, as after Ctrl-C: they free what the next one plans to have."""
        with self._lock:
            ending = [session for own, session in self._sessions.items() if own != token and session.is_left]
        deadline = time.monotonic() + DRAIN_S
        for session in ending:
            session.wait(max(0.0, deadline - time.monotonic()))

    def _accept_peer(self, channel: Channel, hello: PeerHello) -> None:
        with self._lock:
            token = find_token(hello.token, self._connectors)
            connector = None if token is None else self._connectors[token]
        if connector is None or not connector.admit(hello.rank, channel):
            _refuse(channel, PeerLostError("no engine of that fit waits for such a peer here"))


def _refuse(channel: Channel, error: Exception) -> None:
    logger.warning("refused a connection: %s", error)
    try:
        channel.limit_silence(HELLO_S)
        channel.send(Failure.of(error))
    except ChannelClosedError:
        logger.debug("nobody waited for the refusal", exc_info=True)
    finally:
        channel.close()


class DaskConnector:
    """Connects one engine with its peers on other workers; a `PeerConnector`."""

    def __init__(self, worker: Worker, request: OpenSession) -> None:
        self._worker = worker
        self._request = request
        self._changed = threading.Condition()
        self._closed = False
        self._inbound: dict[int, Channel] = {}

    @property
    def n_peers(self) -> int:
        """Engines of the fit, this one included."""
        return len(self._request.workers)

    def admit(self, rank: int, channel: Channel) -> bool:
        """Take a connection over which peer `rank` will send; False if there is no such peer, or it is here already."""
        with self._changed:
            known = 0 <= rank < len(self._request.workers) and rank != self._request.rank
            if self._closed or not known or rank in self._inbound:
                return False
            channel.send(True)
            self._inbound[rank] = channel
            self._changed.notify_all()
            return True

    def connect(self) -> tuple[dict[int, Channel], dict[int, Channel]]:
        others = [rank for rank in range(len(self._request.workers)) if rank != self._request.rank]
        loop: asyncio.AbstractEventLoop = self._worker.loop.asyncio_loop  # type: ignore[attr-defined]
        outbound: dict[int, Channel] = {}
        try:
            workers = [self._request.workers[rank] for rank in others]
            channels = open_channels(loop, workers, self._worker.connection_args)
            outbound = dict(zip(others, channels, strict=True))
            for rank, channel in outbound.items():
                channel.limit_silence(HELLO_S)  # a host may vanish just now, and `close` does not know this channel
                channel.send(PeerHello(self._request.token, self._request.rank))
                if channel.receive() is not True:
                    raise PeerLostError(f"engine {rank} on {self._request.workers[rank]} refused the connection")
                channel.limit_silence(None)
            return outbound, self._await_inbound(len(others))
        except BaseException as error:
            for channel in outbound.values():
                channel.close()
            if isinstance(error, ChannelClosedError):
                raise PeerLostError(f"another engine of the fit is gone: {error}") from error
            raise

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for channel in self._inbound.values():
                channel.interrupt()

    def release(self) -> None:
        with self._changed:
            for channel in self._inbound.values():
                channel.close()

    def _await_inbound(self, n_others: int) -> dict[int, Channel]:
        with self._changed:
            # Without a limit in time: another engine may compute for long before it exchanges. The coordinator
            # notices dead ones and then closes this connector.
            self._changed.wait_for(lambda: self._closed or len(self._inbound) == n_others)
            if self._closed:
                raise PeerLostError("the fit ended while its engines connected")
            return dict(self._inbound)
