"""Engines and peers within one process."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest
from cluster.toys import Echo, FailInScatter, Raise, Sleep, ToyEngine, check_conversation, has_ended

from daskboost.errors import EngineError, FitCancelledError
from daskboost.local.links import Failure, LocalEngines, Meeting, PeerLostError, local_peers
from daskboost.wire import decode, encode


def start(n_engines: int) -> tuple[LocalEngines, list[ToyEngine]]:
    peers = local_peers(n_engines)
    toys = [ToyEngine(rank, peers[rank]) for rank in range(n_engines)]
    return LocalEngines([partial(toys.__getitem__, rank) for rank in range(n_engines)], peers), toys


@pytest.mark.parametrize("n_engines", [1, 2, 3])
def test_engines_converse(n_engines: int) -> None:
    engines, toys = start(n_engines)
    check_conversation(engines)
    engines.close()
    engines.close()
    assert all(toy.closed.is_set() for toy in toys)
    with pytest.raises(RuntimeError, match="are closed"):
        engines.ask(Echo())


@pytest.mark.parametrize("n_engines", [1, 3])
def test_an_engines_exception_names_it_and_keeps_its_cause(n_engines: int) -> None:
    engines, toys = start(n_engines)
    culprit = n_engines - 1
    with pytest.raises(EngineError, match=rf"engine {culprit} on .* failed in Raise: ValueError: boom") as caught:
        engines.ask(Raise(culprit))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(EngineError, match="boom"):  # nothing goes on after a failure
        engines.ask(Echo())
    engines.close()
    assert all(toy.closed.is_set() for toy in toys)


def test_the_culprit_is_blamed_and_not_those_who_waited_for_it() -> None:
    engines, _ = start(3)
    with pytest.raises(EngineError, match=r"engine 1 .* KeyError: 'the culprit'"):
        engines.ask(FailInScatter(1))
    engines.close()


def test_a_failure_stops_the_other_engines() -> None:
    engines, toys = start(2)
    with pytest.raises(EngineError, match=r"engine 0 .*boom"):
        toys[0].handle = lambda message: ToyEngine.handle(toys[0], Raise(0))  # type: ignore[method-assign]
        engines.ask(Sleep(30))
    assert has_ended(toys[1].peers)
    engines.close()


@pytest.mark.parametrize("n_engines", [1, 2])
def test_cancelling_ends_the_running_call(n_engines: int) -> None:
    engines, _ = start(n_engines)
    timer = threading.Timer(0.1, engines.cancel)
    timer.start()
    started = time.monotonic()
    with pytest.raises(FitCancelledError, match="cancelled"):
        engines.ask(Sleep(60))
    assert time.monotonic() - started < 20  # far from the end of the sleep
    engines.close()


def test_messages_and_parts_are_counted() -> None:
    engines, _ = start(2)
    with pytest.raises(ValueError, match="1 messages for 2 engines"):
        engines.ask_each([Echo()])
    engines.close()
    with pytest.raises(ValueError, match="one part per engine: 2, got 1"):
        local_peers(2)[0].exchange([np.zeros(1)])


def test_an_engine_whose_code_exits_is_not_waited_for() -> None:
    """A callable of the user's may call `sys.exit`, which ends a thread without a word."""
    engines, toys = start(2)

    def leave(message: object) -> None:
        raise SystemExit(3)

    toys[0].handle = leave  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=r"engine 0 .* failed in Echo: SystemExit: 3"):
        engines.ask(Echo())
    engines.close()


class Unreadable(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [OSError("/data/caf\udce9"), Unreadable()], ids=["surrogate", "unreadable"])
def test_every_failure_can_be_sent(error: Exception) -> None:
    """Somebody waits for it; a name of a file need not be text, and an exception of others may have none."""
    failure = decode([bytearray(frame) for frame in encode(Failure.of(error))])
    assert failure == Failure.of(error)
    assert failure.message in (r"/data/caf\udce9", "<its text cannot be had>")


def test_who_was_met_goes_on_though_another_gives_up() -> None:
    """An engine that fails once it has gone on must not seem to have failed before: its own failure is the cause."""
    meeting, passed = Meeting(2), threading.Event()

    def first() -> None:
        meeting.wait()
        passed.set()

    waiting = threading.Thread(target=first)
    waiting.start()
    while meeting._n_here == 0:
        time.sleep(0.001)
    with meeting._changed:  # so that the other one wakes when all is over
        meeting.wait()
        meeting.give_up()
    waiting.join()
    assert passed.is_set()
    with pytest.raises(PeerLostError):
        meeting.wait()
