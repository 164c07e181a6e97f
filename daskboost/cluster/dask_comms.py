"""Connections to Dask's own ports, taken off the event loop.

A connection to a worker's existing port inherits its TLS, its port and its firewall rules. It starts as a Dask comm;
one request and one answer over it settle that both ends hold a plain or TLS socket, and then each end takes the socket
from its event loop and hands it to a thread as a `Channel`:

    initiator: connect, write {"op": "daskboost_channel", "raw": true} ----------------------> worker's handler
    initiator: read, detach         <----------------------- write {"raw": true}, detach in the same step of the loop
    initiator's thread: send the first message -------------------------------------------------> worker's thread

The worker sends nothing more before that first message, so no byte can get stuck in a buffer of the event loop.
Comms of other kinds (inproc, ucx, ...) stay on the loop, and a pump copies between them and a local socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from distributed.comm import Comm, CommClosedError, connect
from distributed.comm.tcp import TCP

from daskboost.cluster.channel import Channel, ChannelClosedError
from daskboost.cluster.dask_watch import result_of
from daskboost.cluster.limits import CLEAN_UP_S, CONNECT_TIMEOUT_S

logger = logging.getLogger(__name__)

OP = "daskboost_channel"
PUMP_BYTES = 1 << 20

_pumps: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


class UnreachableError(ChannelClosedError):
    """A worker of several could not be connected to."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(reason)
        self.address = address


async def open_channel(address: str, connection_args: dict[str, Any]) -> Channel:
    """Connect to a worker that has our plugin.

    Raises
    ------
    ChannelClosedError
        The worker cannot be reached, or does not know daskboost.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):  # Dask's own ends before the first answer of the other side
            comm = await connect(address, timeout=CONNECT_TIMEOUT_S, **connection_args)
    except OSError as error:
        raise ChannelClosedError(f"cannot connect to {address}: {str(error) or 'no answer'}") from error
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await comm.write({"op": OP, "raw": _can_detach(comm), "reply": True})
            answer = await comm.read()
        if not isinstance(answer, dict) or not isinstance(answer.get("raw"), bool):
            raise ChannelClosedError(f"{address} has no daskboost plugin; is daskboost installed there? ({answer!r})")
        if answer["raw"]:
            return Channel(_detach(comm))
    except (CommClosedError, TimeoutError) as error:
        comm.abort()
        raise ChannelClosedError(f"{address} hung up: {str(error) or 'no answer'}") from error
    except BaseException:
        comm.abort()
        raise
    near, far = socket.socketpair()
    task = asyncio.create_task(_pump(comm, far))
    _pumps.add(task)
    task.add_done_callback(_pumps.discard)
    return Channel(near)


def open_channels(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[str], connection_args: dict[str, Any]
) -> list[Channel]:
    """Connect to several workers at once, to all or to none; from another thread than the loop's.

    Raises
    ------
    UnreachableError
        The first worker that cannot be connected to.
    ChannelClosedError
        This process ends.
    """
    opening = asyncio.run_coroutine_threadsafe(_open_all(addresses, connection_args), loop)
    return result_of(opening, loop, lambda: ChannelClosedError("this process ends"))


async def _open_all(addresses: Sequence[str], connection_args: dict[str, Any]) -> list[Channel]:
    opened = await asyncio.gather(
        *(open_channel(address, connection_args) for address in addresses), return_exceptions=True
    )
    channels = [channel for channel in opened if isinstance(channel, Channel)]
    if len(channels) < len(addresses):
        for channel in channels:
            channel.close()
        address, error = next(
            (address, error)
            for address, error in zip(addresses, opened, strict=True)
            if isinstance(error, BaseException)
        )
        raise UnreachableError(address, str(error)) from error
    return channels


async def accept_channel(comm: Comm, raw: bool, serve: Callable[[Channel], None]) -> None:
    """The handler's side of `open_channel`: hands the channel to `serve`, which must not block."""
    raw = raw and _can_detach(comm)
    await comm.write({"raw": raw})
    if raw:
        serve(Channel(_detach(comm)))
        return
    near, far = socket.socketpair()
    serve(Channel(near))
    await _pump(comm, far)


async def refuse_comm(comm: Comm, reason: str, answer: object = None) -> None:
    """Answer a request that no fit makes, hang up, and log it."""
    logger.warning("refused a request of %s: %s", comm.peer_address, reason)
    with contextlib.suppress(OSError):  # nobody may wait for the answer
        async with asyncio.timeout(CLEAN_UP_S):
            await comm.write({"refused": reason} if answer is None else answer)
            await comm.close()
    comm.abort()


def _can_detach(comm: Comm) -> bool:
    return isinstance(comm, TCP) and comm.stream is not None


def _detach(comm: Comm) -> socket.socket:
    """Take the socket out of a comm, which then counts as closed.

    Tornado has no call for it: its stream must stop watching the file descriptor and believe itself closed without
    closing it, so it is left with another socket to close.
    """
    stream: Any = getattr(comm, "stream", None)
    if stream is None or stream.closed():
        raise ChannelClosedError("the connection closed while it was set up")
    if stream.writing() or stream._read_buffer_size:
        raise ChannelClosedError("the connection carries unexpected bytes")
    if stream._state is not None:
        stream.io_loop.remove_handler(stream.fileno())
        stream._state = None
    sock: socket.socket = stream.socket
    stream.socket = socket.socket()
    comm.abort()
    sock.setblocking(True)
    return sock


async def _pump(comm: Comm, far: socket.socket) -> None:
    """Copy bytes both ways until one side hangs up."""
    loop = asyncio.get_running_loop()
    far.setblocking(False)

    async def outward() -> None:
        while data := await loop.sock_recv(far, PUMP_BYTES):
            await comm.write(data)

    async def inward() -> None:
        while True:
            await loop.sock_sendall(far, await comm.read())

    copies = [asyncio.ensure_future(outward()), asyncio.ensure_future(inward())]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):  # how either side hangs up
                await copy
        far.close()
        comm.abort()
