"""Whatever a stranger sends over a connection to a worker: one refusal, a line in the log, and it closes."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster import toys
from cluster.dask_fixtures import eventually
from cluster.toys import altered, unchecked
from hypothesis import given, settings
from hypothesis import strategies as st

from daskboost import wire
from daskboost.cluster import dask_fit, dask_sessions
from daskboost.cluster.channel import MAGIC, MESSAGE, PRELUDE, Channel, ChannelClosedError, ChannelSilentError, pack
from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_sessions import Admissions, OpenSession, PeerHello, WorkerHost, find_token
from daskboost.local.links import Failure
from daskboost.wire import WireError, decode, encode

assert dask_fit.OpenFit in wire._names  # its import registers every message of a fit
MESSAGES = sorted(wire._names, key=lambda kind: kind.__name__)
TOY = RemoteCall.of("toys.open_toy", "toy")


@pytest.fixture
def host() -> Iterator[WorkerHost]:
    """A worker's side, without the worker."""
    worker: Any = SimpleNamespace(
        address="tcp://here", local_directory="", connection_args={}, state=SimpleNamespace(nthreads=1),
        memory_manager=SimpleNamespace(memory_limit=None),
    )  # fmt: skip
    made = WorkerHost(worker)
    yield made
    made.close()


def call_on(host: WorkerHost) -> Channel:
    """A connection to a worker, of which the worker knows nothing yet."""
    near, far = socket.socketpair()
    host._start(Channel(far))
    channel = Channel(near)
    channel.limit_silence(20.0)
    return channel


def check_refused(channel: Channel, match: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = channel.receive()
    assert type(answer) is Failure and match in answer.message
    with pytest.raises(ChannelClosedError, match="hung up"):
        channel.receive()
    channel.close()
    refusals = [record for record in caplog.records if "refused a connection" in record.message]
    assert len(refusals) == 1 and match in refusals[0].message
    assert len(refusals[0].message) < 1000
    caplog.clear()


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (None, "cannot start with NoneType"),
        ("hello", "cannot start with str"),
        ([PeerHello("a", 0)], "cannot start with list"),
        (np.arange(9), "cannot start with ndarray"),
        (TOY, "cannot start with RemoteCall"),
        (OpenSession("fit", "unknown", 0, ("tcp://here",), TOY), "no client has announced such a fit"),
        (OpenSession("fit", "tökén", 0, ("tcp://here",), TOY), "no client has announced such a fit"),
        (PeerHello("unknown", 0), "no engine of that fit waits"),
    ],
)
def test_one_refusal_that_is_logged(
    host: WorkerHost, message: Any, match: str, caplog: pytest.LogCaptureFixture
) -> None:
    channel = call_on(host)
    channel.send(message)
    check_refused(channel, match, caplog)
    assert not host._sessions


SESSION = OpenSession("fit", "token", 0, ("tcp://here",), TOY)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (altered(PeerHello("token", 0), token=5), "message 'PeerHello' has int as its 'token', where str belongs"),
        (altered(PeerHello("token", 0), rank="0"), "message 'PeerHello' has str as its 'rank', where int belongs"),
        (altered(SESSION, workers=3), "has int as its 'workers', where tuple[str, ...] belongs"),
        (altered(SESSION, workers=("a", 3)), "has tuple as its 'workers'"),
        (altered(SESSION, call=None), "has NoneType as its 'call', where RemoteCall belongs"),
        (altered(SESSION, token=np.zeros(2)), "has an array of float64 as its 'token'"),
        (altered(SESSION, call=altered(TOY, argument=(2**40,))), "'RemoteCall' has tuple as its 'argument'"),
        (altered(SESSION, rank=-1), "refused its values: ValueError: rank -1 of 1 workers"),
        (altered(SESSION, rank=1), "refused its values: ValueError: rank 1 of 1 workers"),
    ],
)
def test_fields_of_other_types_are_refused_when_decoded(
    host: WorkerHost, message: Any, match: str, caplog: pytest.LogCaptureFixture
) -> None:
    channel = call_on(host)
    channel.send(message)
    check_refused(channel, match, caplog)


@pytest.mark.parametrize("function", ["os:getcwd", "subprocess:getoutput", "builtins:eval", "nowhere", "x" * 10**6])
def test_an_announced_fit_opens_registered_functions_only(host: WorkerHost, function: str) -> None:
    host.admissions.announce("token", {})
    channel = call_on(host)
    channel.send(altered(SESSION, call=altered(TOY, function=function)))
    answer = channel.receive()
    assert answer.error_type == "WireError" and "is no function that other processes may call here" in answer.message
    assert len(answer.message) < 500
    assert eventually(lambda: not host._sessions and not host.admissions._extras, 10)
    channel.close()


def test_a_message_that_is_none_ends_an_open_session_with_one_refusal(
    host: WorkerHost, caplog: pytest.LogCaptureFixture
) -> None:
    host.admissions.announce("token", {})
    channel = call_on(host)
    channel.send(SESSION)
    assert channel.receive() is True
    broken = [bytes(frame) for frame in encode(toys.Raise(0, "boom"))]
    broken[0] = broken[0].replace(b"boom", b"\xff\xff\xff\xff")
    channel.send_packed(pack(broken))
    answer = channel.receive()
    assert answer.error_type == "WireError" and "corrupt message header" in answer.message
    with pytest.raises(ChannelClosedError):
        channel.receive()
    channel.close()
    assert "refused a message" in caplog.text
    assert eventually(lambda: not host._sessions, 10)


def test_a_fits_token_opens_one_session_and_none_when_that_ended(
    host: WorkerHost, caplog: pytest.LogCaptureFixture
) -> None:
    host.admissions.announce("token", {})
    first = call_on(host)
    first.send(SESSION)
    assert first.receive() is True
    second = call_on(host)
    second.send(SESSION)
    check_refused(second, "has an engine on this worker already", caplog)
    first.close()
    assert eventually(lambda: not host._sessions and not host.admissions._extras, 10)
    third = call_on(host)
    third.send(SESSION)
    check_refused(third, "no client has announced such a fit", caplog)


def test_tokens_are_found_by_what_they_are() -> None:
    assert find_token("b", ["a", "b", "bb"]) == "b" and find_token("", ["a"]) is None and find_token("ä", ["ä"]) == "ä"
    known = Admissions()
    known.announce("a", {"x": 1})
    assert known.take("") is None and known.take("aa") is None
    assert known.take("a") == {"x": 1} and known.take("a") is None
    known.announce("a", {})
    known.withdraw("a")
    known.withdraw("a")
    assert known.take("a") is None


def test_a_slow_stranger_is_not_waited_for(host: WorkerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if it says something all the time."""
    monkeypatch.setattr(dask_sessions, "HELLO_S", 0.5)
    channel = call_on(host)
    with pytest.raises(ChannelClosedError):
        for _ in range(200):
            channel.send_alive()
            time.sleep(0.1)
    channel.close()
    assert not host._silent


def test_a_first_message_is_small(host: WorkerHost, caplog: pytest.LogCaptureFixture) -> None:
    channel = call_on(host)
    channel._socket.sendall(PRELUDE.pack(MAGIC, MESSAGE, 1, 0, 1 << 39))
    check_refused(channel, "a first message of 549755813888 bytes is larger than", caplog)


def test_silent_connections_are_limited(host: WorkerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_sessions, "SILENT_CONNECTIONS", 3)
    silent = [call_on(host) for _ in range(8)]
    for channel in silent[:5]:  # the oldest go
        with pytest.raises(ChannelClosedError, match="hung up"):
            channel.receive()
    assert eventually(lambda: len(host._silent) == 3, 10)
    host.admissions.announce("token", {})
    late = call_on(host)  # a fit gets in all the same
    late.send(SESSION)
    assert late.receive() is True
    for channel in (*silent, late):
        channel.close()
    assert eventually(lambda: not host._silent and not host._sessions, 10)


def test_engines_of_a_fit_may_all_connect_at_once(host: WorkerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_sessions, "SILENT_CONNECTIONS", 1)
    host.admissions.announce("token", {})
    coordinator = call_on(host)
    coordinator.send(altered(SESSION, workers=tuple(f"tcp://{rank}" for rank in range(6))))
    assert coordinator.receive() is True
    peers = [call_on(host) for _ in range(5)]
    for rank, peer in enumerate(peers, 1):
        peer.send(PeerHello("token", rank))
        assert peer.receive() is True
    for channel in (*peers, coordinator):
        channel.close()
    assert eventually(lambda: not host._sessions, 10)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
arrays = st.sampled_from([np.zeros(0), np.arange(3), np.ones((2, 2), np.float32), np.zeros(1, "S3")])
junk = st.recursive(
    leaves | st.binary(max_size=9) | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def of_junk(draw: Any, kind: type) -> Any:
    """A message of this kind with any values at all."""
    return unchecked(kind, {field.name: draw(junk) for field in dataclasses.fields(kind)})


@settings(max_examples=400)
@given(kind=st.sampled_from(MESSAGES), data=st.data())
def test_what_decodes_has_the_types_that_are_annotated(kind: type, data: st.DataObject) -> None:
    message = of_junk(data.draw, kind)
    try:
        decoded = decode(encode(message))
    except WireError as error:
        assert "belongs" in str(error) or "refused its values" in str(error)
        return
    for (_, holds), field in zip(wire._field_checks(kind), dataclasses.fields(kind), strict=True):
        assert holds(getattr(decoded, field.name))


def test_every_message_has_annotations_that_decoding_knows() -> None:
    for kind in MESSAGES:
        assert len(wire._field_checks(kind)) == len(dataclasses.fields(kind))

    @wire.register
    @dataclasses.dataclass(frozen=True)
    class Odd:
        value: complex

    with pytest.raises(TypeError, match=r"cannot be annotated with .*complex"):
        decode(encode(Odd(1)))
    del wire._names[Odd], wire._registry["Odd"]


@settings(max_examples=150)
@given(kind=st.sampled_from([OpenSession, PeerHello, RemoteCall, toys.Echo, None]), data=st.data())
def test_a_worker_answers_every_first_message(kind: type | None, data: st.DataObject) -> None:
    host = WorkerHost(SimpleNamespace())  # type: ignore[arg-type]
    host.admissions.announce("token", {})
    message = data.draw(junk) if kind is None else of_junk(data.draw, kind)
    channel = call_on(host)
    channel.send(message)
    assert type(channel.receive()) is Failure
    with pytest.raises(ChannelClosedError):
        channel.receive()
    channel.close()


@settings(max_examples=150)
@given(noise=st.binary(max_size=200), prelude=st.booleans())
def test_a_worker_hangs_up_on_noise(noise: bytes, prelude: bool) -> None:
    host = WorkerHost(SimpleNamespace())  # type: ignore[arg-type]
    channel = call_on(host)
    channel._socket.sendall((PRELUDE.pack(MAGIC, MESSAGE, 1, 0, len(noise)) if prelude else b"") + noise)
    channel.finish()
    with pytest.raises(ChannelClosedError) as caught:  # at once, or after one refusal
        assert type(channel.receive()) is Failure
        channel.receive()
    assert not isinstance(caught.value, ChannelSilentError)
    channel.close()
    assert eventually(lambda: not host._silent, 10)
