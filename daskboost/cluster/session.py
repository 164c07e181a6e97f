"""An engine's ends of channels: the conversation with its coordinator, and exchanges with the other engines.

A session answers one message at a time until the coordinator hangs up or a message fails. While it works, a second
thread tells the coordinator so several times a second, and watches for the coordinator hanging up, which is how a fit
is cancelled: then whoever waits for peers wakes up, and the session ends with the message that is worked on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar

from daskboost.cluster.channel import Channel, ChannelClosedError, pack, unpack_all
from daskboost.cluster.common_memory import Room
from daskboost.cluster.limits import HEARTBEAT_S
from daskboost.cluster.message_board import MessageBoard
from daskboost.dtypes import Array, UInt8
from daskboost.errors import FitCancelledError
from daskboost.local.links import Engine as AnsweringEngine
from daskboost.local.links import Failure, PeerLostError, check_parts
from daskboost.wire import Frame, WireError, encode

Pieces = Sequence[Frame]
V = TypeVar("V")

logger = logging.getLogger(__name__)

# All-to-all among engines on different workers, the communication of a reduce-scatter.
#
#     rank 0: [00 01 02]      rank 0: [00 10 20]
#     rank 1: [10 11 12]  ->  rank 1: [01 11 21]
#     rank 2: [20 21 22]      rank 2: [02 12 22]
#
# Every pair of engines has two connections, one per direction, so sending and receiving overlap without two threads on
# one TLS socket. They are made on the first exchange: fits that never exchange pay nothing.

INLINE_BYTES = 1 << 14
"""Parts up to this size go out from the caller's thread: two of them always fit into a socket's buffers, and no engine
is ever more than two exchanges ahead of another, so such a send cannot block for ever."""


class PeerConnector(Protocol):
    """Makes the connections of one engine; blocking."""

    def connect(self) -> tuple[dict[int, Channel], dict[int, Channel]]:
        """(channels to send to, channels to receive from), by rank; raises PeerLostError."""

    def close(self) -> None:
        """Make a running `connect` raise, and refuse further ones; from any thread."""

    def release(self) -> None:
        """Free connections that `connect` never handed out."""


class ChannelPeers:
    """`Peers` over channels, and by a board for short messages to all. Its `close` may be called from any thread."""

    def __init__(self, rank: int, n_peers: int, connector: PeerConnector, board: MessageBoard | None = None) -> None:
        self.rank = rank
        self.n_peers = n_peers
        self._connector = connector
        self._board = board
        self._lock = threading.Lock()
        self._closed = False
        self._outbound: dict[int, Channel] = {}
        self._inbound: dict[int, Channel] = {}
        self._to_send: SimpleQueue[Sequence[Pieces] | None] = SimpleQueue()
        self._sent: SimpleQueue[Exception | None] = SimpleQueue()
        self._sender: threading.Thread | None = None

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        check_parts(parts, self.n_peers)
        return self._exchange(parts, [[] if rank == self.rank else packed(part) for rank, part in enumerate(parts)])

    def share(self, message: V, /) -> list[V]:
        if self.n_peers == 1:
            return [message]
        pieces = packed(message)
        if self._board is not None and self._board.serves(self.check):
            said = self._board.tell(b"".join(pieces), self.check)
            if said is not None:
                return unpack_all(said, message, self.rank)
        return self._exchange([message] * self.n_peers, [pieces] * self.n_peers)

    def common_memory(self, n_bytes: int, /) -> list[UInt8] | None:
        room = Room(n_bytes)
        try:
            rooms = room.opened(self.share(room.name), self.rank)
            are_common = all(self.share(rooms is not None))
        finally:
            room.forget_name()
        if not are_common:
            logger.info("engines send each other histograms: they are on several hosts, or common memory is too small")
        return rooms if are_common else None

    def check(self) -> None:
        has_left = self._board is not None and self._board.has_left()
        if self._closed or has_left or any(channel.hung_up() for channel in self._inbound.values()):
            self.close()
            raise PeerLostError(f"engine {self.rank} lost another engine that it waited for")

    def _exchange(self, parts: Sequence[V], pieces: Sequence[Pieces]) -> list[V]:
        """Send each engine its pieces; return what came, and one's own part."""
        received = list(parts)
        if self.n_peers == 1:
            return received
        self._ensure_connected()
        inline = max(sum(map(len, own)) for own in pieces) <= INLINE_BYTES
        try:
            if inline:
                self._send(pieces)
            else:
                self._to_send.put(pieces)
            for step in range(1, self.n_peers):
                peer = (self.rank - step) % self.n_peers
                received[peer] = self._inbound[peer].receive()
            error = None if inline else self._sent.get()
            if error is not None:
                raise error
        except (ChannelClosedError, OSError) as error:
            self.close()
            raise PeerLostError(f"engine {self.rank} lost another engine in an exchange: {error}") from error
        return received

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._to_send.put(None)
            channels = [*self._outbound.values(), *self._inbound.values()]
        if self._board is not None:
            self._board.close()
        self._connector.close()
        for channel in channels:
            channel.interrupt()

    def release(self) -> None:
        """Free all connections. Only after `close`, from the thread that exchanges."""
        if self._sender is not None:
            self._sender.join()
        for channel in (*self._outbound.values(), *self._inbound.values()):
            channel.close()
        if self._board is not None:
            self._board.release()
        self._connector.release()

    def _send(self, pieces: Sequence[Pieces]) -> None:
        for step in range(1, self.n_peers):
            peer = (self.rank + step) % self.n_peers
            self._outbound[peer].send_packed(pieces[peer])

    def _send_queued(self) -> None:
        while (pieces := self._to_send.get()) is not None:
            try:
                self._send(pieces)
            except Exception as error:  # goes to the exchanging thread
                self._sent.put(error)
            else:
                self._sent.put(None)

    def _ensure_connected(self) -> None:
        if self._closed:
            raise PeerLostError("the exchange was closed")
        if self._outbound:
            return
        outbound, inbound = self._connector.connect()
        with self._lock:
            self._outbound, self._inbound = outbound, inbound
            if self._closed:  # while connecting
                for channel in (*outbound.values(), *inbound.values()):
                    channel.interrupt()
                raise PeerLostError("the exchange was closed")
        self._sender = threading.Thread(target=self._send_queued, name=f"daskboost-exchange-{self.rank}", daemon=True)
        self._sender.start()


def packed(message: object) -> Pieces:
    """Return what goes over a socket for a message."""
    return pack(encode(message))


def _raise(error: Exception) -> NoReturn:
    raise error


class Engine(AnsweringEngine, Protocol):
    """An engine whose coordinator is elsewhere."""

    def go_on(self) -> None:
        """Do what is likely to be asked for next, while the last reply is on its way."""


@dataclass(eq=False)
class EngineSession:
    """Serves one engine over one channel."""

    channel: Channel
    """Owned by the session."""
    open_engine: Callable[[], Engine]
    """Makes the engine; runs in the session's thread and may take its time."""
    peers: ChannelPeers
    """Closed as soon as the engine fails or ends, or the session is stopped; released after the last exchange."""
    heartbeat_s: float = HEARTBEAT_S
    """Seconds between signs of life."""

    def __post_init__(self) -> None:
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
        self.channel.interrupt()
        self.peers.close()
        if (engine := self._engine) is not None:
            engine.stop()

    @property
    def is_left(self) -> bool:
        """Whether its coordinator has hung up, or it was stopped: it ends with the message that it works on."""
        return self._stopping.is_set() or self.channel.hung_up()

    def wait(self, timeout_s: float) -> bool:
        """Whether the session ended, engine closed, within the timeout."""
        return self._ended.wait(timeout_s)

    def _serve(self) -> None:
        engine = self._engine
        assert engine is not None
        while True:
            try:
                message = self.channel.receive()
                work = partial(engine.handle, message)
            except WireError as error:
                logger.warning("refused a message: %s", error)
                work = partial(_raise, error)
            with self._lock:
                self._busy = True
            if not self._answer(work):
                return
            with self._lock:
                self._busy = True  # a coordinator that has asked meanwhile sees signs of life
            engine.go_on()
            with self._lock:
                self._busy = False

    def _open(self) -> bool:
        self._engine = self.open_engine()
        if self._stopping.is_set():
            raise FitCancelledError("the fit ended while its engines were opened")
        return True

    def _answer(self, work: Callable[[], Any]) -> bool:
        """Send the work's result, or the exception it raised; False for the latter."""
        try:
            pieces = packed(work())
            failed = False
        except BaseException as caught:  # all of it is the coordinator's to know
            logger.debug("engine failed", exc_info=True)
            stopped = self._stopping.is_set()
            pieces = packed(Failure.of(FitCancelledError("the engine was stopped") if stopped else caught))
            failed = True
        with self._lock:
            self._busy = False
            self.channel.send_packed(pieces)
        return not failed

    def _watch(self) -> None:
        while not self._ended.wait(self.heartbeat_s):
            if not self._busy or self._stopping.is_set():
                continue
            if self.channel.hung_up():
                self.stop()
                continue
            with self._lock:
                if self._busy:
                    with contextlib.suppress(ChannelClosedError):  # seen as hung up next time
                        self.channel.send_alive()

    def _end(self) -> None:
        self.peers.close()
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
        except Exception:  # nobody is left to tell
            logger.exception("an engine failed to close")
        finally:
            self.peers.release()
            self._ended.set()
            self.channel.close()
