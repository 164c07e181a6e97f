"""All-to-all among engines on different workers, the communication of a reduce-scatter.

    rank 0: [00 01 02]      rank 0: [00 10 20]
    rank 1: [10 11 12]  ->  rank 1: [01 11 21]
    rank 2: [20 21 22]      rank 2: [02 12 22]

Every pair of engines has two connections, one per direction, so sending and receiving overlap without two threads on
one TLS socket. They are made on the first exchange: fits that never exchange pay nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Protocol

from daskboost.cluster.channel import Channel, ChannelClosedError
from daskboost.dtypes import Array
from daskboost.local.links import PeerLostError, check_parts

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
    """`Peers` over channels. Its `close` may be called from any thread."""

    def __init__(self, rank: int, n_peers: int, connector: PeerConnector) -> None:
        self.rank = rank
        self.n_peers = n_peers
        self._connector = connector
        self._lock = threading.Lock()
        self._closed = False
        self._outbound: dict[int, Channel] = {}
        self._inbound: dict[int, Channel] = {}
        self._to_send: SimpleQueue[list[Array] | None] = SimpleQueue()
        self._sent: SimpleQueue[Exception | None] = SimpleQueue()
        self._sender: threading.Thread | None = None

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        check_parts(parts, self.n_peers)
        received = list(parts)
        if self.n_peers == 1:
            return received
        self._ensure_connected()
        inline = max(part.nbytes for part in parts) <= INLINE_BYTES
        try:
            if inline:
                self._send(received)
            else:
                self._to_send.put(list(parts))
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
        """Hang up on all peers; whoever exchanges with this engine gets PeerLostError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._to_send.put(None)
            channels = [*self._outbound.values(), *self._inbound.values()]
        self._connector.close()
        for channel in channels:
            channel.interrupt()

    def release(self) -> None:
        """Free all connections. Only after `close`, from the thread that exchanges."""
        if self._sender is not None:
            self._sender.join()
        for channel in (*self._outbound.values(), *self._inbound.values()):
            channel.close()
        self._connector.release()

    def _send(self, parts: Sequence[Array]) -> None:
        for step in range(1, self.n_peers):
            peer = (self.rank + step) % self.n_peers
            self._outbound[peer].send(parts[peer])

    def _send_queued(self) -> None:
        while (parts := self._to_send.get()) is not None:
            try:
                self._send(parts)
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
