"""Engines behind sockets, without a cluster: socket pairs, plain and TLS, and threads for both ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster.toys import Echo, FailInScatter, Raise, Sleep, ToyEngine, check_conversation

from daskboost.cluster import dask_sessions
from daskboost.cluster.channel import ALIVE, MAGIC, MESSAGE, PRELUDE, Channel, ChannelClosedError, ChannelSilentError
from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_coordinator import ChannelEngines
from daskboost.cluster.dask_sessions import DaskConnector, OpenSession
from daskboost.cluster.dask_silence import Doing, Silence
from daskboost.cluster.limits import STOPPED_S
from daskboost.cluster.session import ChannelPeers, EngineSession
from daskboost.errors import EngineError, FitCancelledError, WorkerLostError
from daskboost.local.links import PeerLostError
from daskboost.wire import WireError

TLS = Path(__file__).parent / "tls"  # a key that guards nothing but these tests
Pair = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture(scope="module")
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return server, client


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Pair:
    def make() -> tuple[socket.socket, socket.socket]:
        left, right = socket.socketpair()
        if request.param == "plain":
            return left, right
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=lambda: accepted.append(tls_contexts[0].wrap_socket(right, server_side=True)))
        thread.start()
        wrapped = tls_contexts[1].wrap_socket(left)
        thread.join()
        return wrapped, accepted[0]

    return make


class PairConnector:
    """Connections between peers of one test, made ahead."""

    def __init__(self, out: dict[int, Channel], into: dict[int, Channel]) -> None:
        self.out, self.into = out, into

    def connect(self) -> tuple[dict[int, Channel], dict[int, Channel]]:
        return self.out, self.into

    def close(self) -> None:
        pass

    def release(self) -> None:
        for channel in (*self.out.values(), *self.into.values()):
            channel.close()


class Cluster:
    def __init__(self, pair: Pair, n: int, silence_s: float = 10.0) -> None:
        pipes = {(i, j): tuple(map(Channel, pair())) for i in range(n) for j in range(n) if i != j}
        self.toys: list[ToyEngine] = []
        self.sessions: list[EngineSession] = []
        self.near: list[Channel] = []
        for rank in range(n):
            out = {j: pipes[rank, j][0] for j in range(n) if j != rank}
            into = {j: pipes[j, rank][1] for j in range(n) if j != rank}
            peers = ChannelPeers(rank, n, PairConnector(out, into))
            toy = ToyEngine(rank, peers)
            near, far = map(Channel, pair())
            session = EngineSession(far, lambda toy=toy: toy, peers, heartbeat_s=0.05)  # type: ignore[misc]
            self.toys.append(toy)
            self.sessions.append(session)
            self.near.append(near)
            threading.Thread(target=session.run, daemon=True).start()
        self.engines = ChannelEngines(self.near, [f"tcp://worker:{rank}" for rank in range(n)], silence_s)
        assert self.engines._gather() == [True] * n  # every session first says that its engine is open

    def ended(self) -> bool:
        return all(session.wait(20) for session in self.sessions) and all(toy.closed.is_set() for toy in self.toys)


@pytest.fixture
def clusters(pair: Pair) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(n: int, silence_s: float = 10.0) -> Cluster:
        made.append(Cluster(pair, n, silence_s))
        return made[-1]

    yield make
    for cluster in made:
        cluster.engines.close()
        assert cluster.ended()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_engines_converse(clusters: Callable[..., Cluster], n: int) -> None:
    cluster = clusters(n)
    check_conversation(cluster.engines)
    big = np.arange(3_000_000)
    for echoed in cluster.engines.ask(Echo(big)):
        assert np.array_equal(echoed, big)
    cluster.engines.close()
    assert all(toy.closed.is_set() for toy in cluster.toys)  # closing waits for what engines free
    with pytest.raises(RuntimeError, match="are closed"):
        cluster.engines.ask(Echo())


def test_an_engines_exception_names_it_and_carries_its_traceback(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2)
    with pytest.raises(EngineError, match="engine 1 on tcp://worker:1 failed in Raise: ValueError: no good") as caught:
        cluster.engines.ask(Raise(1, "no good"))
    assert "toys.py" in str(caught.value.__cause__)
    assert cluster.ended()  # the other one as well


def test_the_culprit_is_blamed_and_not_those_who_waited_for_it(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(3)
    with pytest.raises(EngineError, match=r"engine 1 .* KeyError: 'the culprit'"):
        cluster.engines.ask(FailInScatter(1))
    assert cluster.ended()


def test_a_broken_connection_is_a_lost_worker(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2)
    threading.Timer(0.1, cluster.sessions[1].channel.interrupt).start()
    with pytest.raises(WorkerLostError, match=r"worker tcp://worker:1 \(engine 1\) was lost in Sleep"):
        cluster.engines.ask(Sleep(20))
    assert cluster.ended()


def test_a_departed_worker_is_named_with_the_reason(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2)
    threading.Timer(0.1, cluster.engines.lose, ("tcp://worker:0", "the scheduler removed it")).start()
    with pytest.raises(WorkerLostError, match=r"tcp://worker:0 .*the scheduler removed it"):
        cluster.engines.ask(Sleep(20))


def test_silence_is_a_lost_worker_and_work_is_not_silence(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2, silence_s=1.0)
    assert cluster.engines.ask(Sleep(2.0)) == [None, None]
    for channel in (cluster.sessions[1].channel,):
        channel.send_alive = lambda: None  # type: ignore[method-assign]
    with pytest.raises(WorkerLostError, match=r"tcp://worker:1 .*no sign of life for 1 s"):
        cluster.engines.ask(Sleep(60))


def test_who_hangs_up_after_blaming_another_is_not_lost(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2)
    culprit_may_speak = threading.Event()

    def accuse(message: object) -> None:
        raise PeerLostError("engine 1 is gone")

    def fail(message: object) -> None:
        culprit_may_speak.wait(20)
        raise KeyError("the culprit")

    cluster.toys[0].handle = accuse  # type: ignore[method-assign]
    cluster.toys[1].handle = fail  # type: ignore[method-assign]

    def let_the_culprit_speak() -> None:
        cluster.sessions[0].wait(20)  # engine 0 has hung up
        time.sleep(0.2)
        culprit_may_speak.set()

    speaker = threading.Thread(target=let_the_culprit_speak)
    speaker.start()
    with pytest.raises(EngineError, match=r"engine 1 .* KeyError: 'the culprit'"):
        cluster.engines.ask(Echo())
    speaker.join()


def test_a_coordinator_that_was_held_up_reads_before_it_judges(
    clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(2, silence_s=0.5)
    ready, held_up = cluster.engines._ready, threading.Event()

    def hold_up(pending: set[int], timeout_s: float) -> list[int]:
        if held_up.is_set():
            return ready(pending, timeout_s)
        held_up.set()
        time.sleep(1.0)  # the process stands still after it found nothing to read
        return []

    monkeypatch.setattr(cluster.engines, "_ready", hold_up)
    assert cluster.engines.ask(Sleep(1.2)) == [None, None]


def test_cancelling_ends_the_running_call_and_the_engines(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2)
    threading.Timer(0.1, cluster.engines.cancel, ("just because",)).start()
    started = time.monotonic()
    with pytest.raises(FitCancelledError, match="just because"):
        cluster.engines.ask(Sleep(60))
    assert cluster.ended()
    assert time.monotonic() - started < 20  # far from the end of the sleep


def test_an_engine_that_cannot_open_says_why(pair: Pair) -> None:
    near, far = map(Channel, pair())

    def fail() -> ToyEngine:
        raise MemoryError("too small a worker")

    peers = ChannelPeers(0, 1, PairConnector({}, {}))
    threading.Thread(target=EngineSession(far, fail, peers).run, daemon=True).start()
    engines = ChannelEngines([near], ["tcp://w"], 5.0)
    with pytest.raises(EngineError, match="failed in opening: MemoryError: too small a worker"):
        engines._gather()
    engines.close()


def test_a_peer_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_sessions, "HELLO_S", 0.2)
    near, far = socket.socketpair()
    request = OpenSession("fit", "token", 0, ("tcp://a", "tcp://b"), RemoteCall.of("toys.open_toy", "toy"))

    monkeypatch.setattr(dask_sessions, "open_channels", lambda *arguments: [Channel(near)])
    worker: Any = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=None), connection_args={})
    with far, pytest.raises(PeerLostError, match="fell silent"):
        DaskConnector(worker, request).connect()


async def ended_tasks() -> None:
    """Wait for all other tasks of the event loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


def test_nobody_waits_for_an_event_loop_that_ended() -> None:
    """As at the end of a process, whose other threads still go on."""
    loop, request = asyncio.new_event_loop(), OpenSession("fit", "token", 0, ("tcp://a", "tcp://b"), RemoteCall("", ()))
    worker: Any = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=loop), connection_args={})
    try:
        with pytest.raises(PeerLostError, match="this process ends"):
            DaskConnector(worker, request).connect()
    finally:
        loop.run_until_complete(asyncio.sleep(0))  # begins what was asked of it
        loop.run_until_complete(ended_tasks())
        loop.close()


def test_closed_peers_raise_at_once() -> None:
    peers = ChannelPeers(0, 2, PairConnector({}, {}))
    peers.close()
    with pytest.raises(PeerLostError, match="closed"):
        peers.exchange([np.zeros(1)] * 2)


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", WireError, "something else than daskboost"),
        (PRELUDE.pack(MAGIC, 7, 1, 0, 8), WireError, "something else"),
        (PRELUDE.pack(MAGIC, MESSAGE, 0, 0, 8), WireError, "something else"),
        (PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 2**63), WireError, "something else"),
        (PRELUDE.pack(MAGIC, MESSAGE, 2, 0, 8) + bytes(8), WireError, "within its table of lengths"),
        (PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 8) + struct.pack("<Q", 2**60), WireError, "longer than the message"),
        (PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 65) + struct.pack("<Q", 0) + bytes(57), WireError, "after its last|follow"),
        (PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 2**30) + bytes(100), ChannelClosedError, "hung up"),
        (PRELUDE.pack(MAGIC, ALIVE, 0, 0, 0), ChannelClosedError, "hung up"),
    ],
)
def test_foreign_bytes_are_refused(raw: bytes, error: type[Exception], message: str) -> None:
    left, right = socket.socketpair()
    left.sendall(raw)
    left.close()
    with pytest.raises(error, match=message):
        Channel(right).receive()
    right.close()


def test_a_silent_sender_is_not_waited_for() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(ChannelSilentError, match="fell silent"):
        left.sendall(b"Dk")
        channel = Channel(right)
        channel.limit_silence(0.1)
        channel.receive()


def test_a_message_may_take_longer_than_the_limit_of_silence(pair: Pair) -> None:
    """Large ones over a slow network: each part comes in time."""
    near, far = map(Channel, pair())
    limit_s, parts, payload = 1.5, 40, bytes(8 << 20)
    near.limit_silence(limit_s)

    def read_slowly() -> None:
        read = far._read

        def pausing(view: memoryview) -> None:
            for begin in range(0, len(view), len(payload) // parts):
                if len(view) > PRELUDE.size:
                    time.sleep(2 * limit_s / parts)
                read(view[begin : begin + len(payload) // parts])

        far._read = pausing  # type: ignore[method-assign]
        received.append(far.receive())

    received: list[Any] = []
    reader = threading.Thread(target=read_slowly)
    reader.start()
    started = time.monotonic()
    near.send(payload)
    assert time.monotonic() - started > limit_s
    reader.join()
    assert received == [payload]
    near.close()
    far.close()


def test_silence_with_an_excuse_is_borne_again(pair: Pair) -> None:
    """In the middle of a message too, whose other end was held up."""
    near, far = map(Channel, pair())
    excuses = [True, True, False]
    told: list[float] = []

    def bears(quiet_s: float) -> bool:
        told.append(quiet_s)
        return excuses.pop(0)

    far.limit_silence(0.2, bears)
    with closing(near), closing(far), pytest.raises(ChannelSilentError, match="fell silent"):
        near._socket.sendall(PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 100))
        far.receive()
    assert not excuses
    assert told == pytest.approx([0.2, 0.4, 0.6])


@pytest.mark.parametrize("doing", ["computes", "waits", None])
def test_a_silent_worker_that_computes_is_waited_for(clusters: Callable[..., Cluster], doing: Doing | None) -> None:
    cluster = clusters(2, silence_s=1.0)
    asked: list[str] = []

    def look_at(workers: Sequence[str]) -> dict[str, Doing]:
        asked.extend(workers)
        return {} if doing is None else dict.fromkeys(workers, doing)

    cluster.engines.look_at = look_at
    cluster.sessions[1].channel.send_alive = lambda: None  # type: ignore[method-assign]
    if doing == "computes":
        assert cluster.engines.ask(Sleep(3.5)) == [None, None]
    else:
        with pytest.raises(WorkerLostError, match=r"tcp://worker:1 .*no sign of life for 1 s"):
            cluster.engines.ask(Sleep(60))
    assert set(asked) == {"tcp://worker:1"}


@pytest.mark.parametrize("in_message", [False, True])
def test_a_worker_whose_process_is_stopped_is_lost_long_before_the_limit(
    clusters: Callable[..., Cluster], in_message: bool
) -> None:
    cluster = clusters(2, silence_s=60.0)
    cluster.engines.look_at = lambda workers: {"tcp://worker:0": "waits", "tcp://worker:1": "is stopped"}
    channel = cluster.sessions[1].channel
    channel.send_alive = lambda: None  # type: ignore[method-assign]
    if in_message:
        with channel._write_lock:  # the session's own signs of life come from another thread
            channel._socket.sendall(PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 100))
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match=r"tcp://worker:1 .*its process is stopped, by a signal or a debugger"):
        cluster.engines.ask(Sleep(60))
    assert STOPPED_S < time.monotonic() - started < STOPPED_S + 3


def test_a_worker_is_not_lost_that_was_heard_while_somebody_looked(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2, silence_s=1.0)
    channel = cluster.sessions[1].channel
    send_alive = channel.send_alive
    channel.send_alive = lambda: None  # type: ignore[method-assign]
    looks: list[list[str]] = []

    def look_at(workers: Sequence[str]) -> dict[str, Doing]:
        looks.append([*workers])
        send_alive()
        return dict.fromkeys(workers, "is stopped" if len(looks) == 1 else "waits")

    cluster.engines.look_at = look_at
    assert cluster.engines.ask(Sleep(3.5)) == [None, None]
    assert len(looks) > 1 and all(each == ["tcp://worker:1"] for each in looks)


def test_when_a_silent_workers_process_is_looked_at() -> None:
    """Once soon, whether it is stopped; then at the limit, and after as long again while it computes."""
    silence = Silence(limit_s=10.0, first_s=1.5)
    looks: list[float] = []
    for tick in range(1, 80):
        quiet_s = tick / 2
        if silence.needs_look(quiet_s):
            looks.append(quiet_s)
            assert silence.why_lost(quiet_s, "waits" if len(looks) == 1 else "computes") == ""
    assert looks == [2.0, 10.5, 21.0, 31.5]
    assert not silence.needs_look(0.5) and silence.needs_look(2.0)  # something came
    assert silence.why_lost(2.0, None) == "" and not silence.needs_look(10.0) and silence.needs_look(10.1)
    assert silence.why_lost(10.1, "waits") == silence.why_lost(10.1, None) == "no sign of life for 10 s"
    assert "its process is stopped" in Silence(10.0).why_lost(2.0, "is stopped")
    impatient = Silence(limit_s=1.0)
    assert not impatient.needs_look(1.0) and impatient.needs_look(1.1)
    assert impatient.why_lost(1.1, None) == "no sign of life for 1 s"


def test_who_hung_up_is_noticed_before_what_it_said_is_read(pair: Pair) -> None:
    """A coordinator may have asked for more when it hangs up, and its engine waits for others meanwhile."""
    near, far = map(Channel, pair())
    near.send("more")
    assert not far.hung_up()
    near.finish()
    assert far.hung_up()
    assert far.receive() == "more" and far.hung_up()
    near.close()
    far.close()
    assert far.hung_up()


def test_draining_ends_however_much_comes() -> None:
    near, far = map(Channel, socket.socketpair())
    ended = threading.Event()

    def chatter() -> None:
        while not ended.wait(0.05):
            far.send_alive()

    chatting = threading.Thread(target=chatter)
    chatting.start()
    started = time.monotonic()
    near.drain(1.0)
    assert time.monotonic() - started < 20
    ended.set()
    chatting.join()
    near.close()
    far.close()
