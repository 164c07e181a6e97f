"""Engines in step grow a round ahead, while their replies are on their way: it comes when it is the next."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.test_channels import Cluster, clusters, pair, tls_contexts
from cluster.toys import Echo, ToyEngine, has_ended

from daskboost.engine import whole_rounds
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import DataError
from daskboost.fit import messages as m
from daskboost.local.links import local_peers

__all__ = ["clusters", "pair", "tls_contexts"]

FAILS = 3
"""The round that fails."""


class Grown(list[int]):
    """The numbers of rounds that grew, which are their reports; after them one fails."""

    def rounds(self, *_: Any) -> Iterator[Any]:
        for number in range(FAILS):
            self.append(number)
            yield SimpleNamespace(finished=lambda number=number: m.Round((), (), number))
        raise DataError("gradients that are not finite")


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Grown:
    found = Grown()
    monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda *_: "")
    monkeypatch.setattr(whole_rounds, "_compiled_rounds", found.rounds)
    return found


def rounds_of(n_peers: int) -> tuple[WholeRounds, Any]:
    """Rounds of the first of some engines."""
    engine: Any = SimpleNamespace(device=SimpleNamespace(without_host=False))
    spec: Any = SimpleNamespace(metrics=(), params=SimpleNamespace(reduction="auto"))
    threads: Any = None
    peers = local_peers(n_peers)[0]
    return WholeRounds(engine, spec, threads, peers), peers


def ask(rounds: WholeRounds, n: int) -> list[Any]:
    """Ask for rounds; their numbers."""
    return [each.report for each in rounds.answers[m.GrowRounds](m.GrowRounds(n)).rounds]


def test_a_round_grows_ahead_once_some_have_been_asked_for(grown: Grown) -> None:
    rounds, _ = rounds_of(2)
    rounds.grow_next()
    assert grown == []
    assert ask(rounds, 1) == [0]
    rounds.grow_next()
    assert grown == [0, 1]
    assert ask(rounds, 2) == [1, 2]
    assert grown == [0, 1, 2]


def test_the_only_engine_grows_what_it_is_asked_for(grown: Grown) -> None:
    rounds, _ = rounds_of(1)
    assert ask(rounds, 1) == [0]
    rounds.grow_next()
    assert grown == [0]


def test_a_failure_ahead_comes_when_it_is_the_next(grown: Grown) -> None:
    rounds, peers = rounds_of(2)
    assert ask(rounds, FAILS) == [0, 1, 2]
    rounds.grow_next()
    with pytest.raises(Exception, match="another engine"):
        peers.check()  # nobody waits for the round that does not come
    rounds.grow_next()
    with pytest.raises(DataError, match="not finite"):
        ask(rounds, 1)


def test_a_fit_is_cancelled_while_its_engines_go_on(clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()

    def go_on(self: ToyEngine) -> None:
        going.set()
        while not has_ended(self.peers):
            time.sleep(0.01)

    monkeypatch.setattr(ToyEngine, "go_on", go_on)
    cluster: Cluster = clusters(2)
    assert cluster.engines.ask(Echo(1)) == [1, 1]
    assert going.wait(10)
    assert not any(session.wait(0.2) for session in cluster.sessions)
    cluster.engines.close()
    assert cluster.ended()


def test_an_engine_that_waits_on_its_gpu_is_stopped_with_its_session(
    clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would wake it: it waits in no call of its peers."""
    waiting, stopped = threading.Barrier(3), threading.Event()

    def handle(self: ToyEngine, message: Any) -> Any:
        waiting.wait(10)
        assert stopped.wait(10)

    monkeypatch.setattr(ToyEngine, "handle", handle)
    monkeypatch.setattr(ToyEngine, "stop", lambda self: stopped.set())
    cluster: Cluster = clusters(2)
    asking = threading.Thread(target=suppressed, args=(cluster.engines,))
    asking.start()
    waiting.wait(10)
    cluster.engines.close()
    assert cluster.ended()
    asking.join(10)
    assert not asking.is_alive()


def suppressed(engines: Any) -> None:
    """Ask, whatever comes of it."""
    with contextlib.suppress(Exception):  # its connection is closed under it
        engines.ask(Echo(1))


class NotedStop:
    """A collective that tells when it is aborted."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_what_joins_gpus_is_aborted_when_an_engine_is_stopped(grown: Grown) -> None:
    rounds, _ = rounds_of(2)
    joined: Any = NotedStop()
    rounds._others = joined
    rounds.stop()
    assert joined.is_aborted
