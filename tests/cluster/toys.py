"""Engines and coordinators small enough to see through, for tests of what carries their words."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.cluster.context import CALLS, CoordinatorContext, EngineContext
from daskboost.errors import DataError
from daskboost.fit.peers import Peers
from daskboost.local.links import Engines, LocalPeers
from daskboost.wire import register


@register
@dataclass(frozen=True, eq=False)
class Sum:
    """Reply with the sum of the values, plus the engine's rank."""

    values: Any


@register
@dataclass(frozen=True)
class Echo:
    """Reply with the payload."""

    payload: Any = None


@register
@dataclass(frozen=True)
class Raise:
    """The engine of this rank raises ValueError."""

    rank: int
    text: str = "boom"


@register
@dataclass(frozen=True)
class Sleep:
    """Work for so long, unless stopped."""

    seconds: float
    ranks: tuple[int, ...] = (0, 1, 2, 3)


@register
@dataclass(frozen=True)
class HoldLock:
    """Compute for so long without letting other threads of the process have Python's lock."""

    seconds: float


@register
@dataclass(frozen=True)
class Scatter:
    """Exchange parts of `rank * n_peers + peer`, of so many items each; reply with the sum of what came."""

    n_items: int
    rounds: int = 1


@register
@dataclass(frozen=True)
class Die:
    """The engine of this rank kills its process."""

    rank: int


@register
@dataclass(frozen=True)
class FailInScatter:
    """The engine of this rank raises while all others wait in an exchange."""

    rank: int


def hold_lock(seconds: float) -> None:
    """Keep all other threads of the process from running Python, as compiled code may: these loops are all in C."""
    any(map((time.monotonic() + seconds).__lt__, iter(time.monotonic, None)))


def has_ended(peers: Peers) -> bool:
    """Whether the fit ended, which wakes those who wait for peers."""
    return peers._meeting.is_over if isinstance(peers, LocalPeers) else peers._closed  # type: ignore[attr-defined]


class ToyEngine:
    def __init__(self, rank: int, peers: Peers, name: str = "toy") -> None:
        self.rank = rank
        self.peers = peers
        self.name = name
        self.closed = threading.Event()

    def handle(self, message: Any) -> Any:
        match message:
            case Sum(values):
                return np.asarray(values).sum() + self.rank
            case Echo(payload):
                return payload
            case Raise(rank, text) if rank == self.rank:
                raise ValueError(text)
            case Sleep(seconds, ranks) if self.rank in ranks:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    time.sleep(0.01)
                    if has_ended(self.peers):
                        raise RuntimeError("stopped in my sleep")
            case HoldLock(seconds):
                hold_lock(seconds)
            case Scatter(n_items, rounds):
                total = np.zeros(n_items, np.int64)
                for _ in range(rounds):
                    base = self.rank * self.peers.n_peers
                    parts = [np.full(n_items, base + peer, np.int64) for peer in range(self.peers.n_peers)]
                    for part in self.peers.exchange(parts):
                        total += part
                return total
            case Die(rank) if rank == self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            case FailInScatter(rank):
                if rank == self.rank:
                    time.sleep(0.1)
                    raise KeyError("the culprit")
                self.peers.exchange([np.zeros(1)] * self.peers.n_peers)
        return None

    def go_on(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def expected_scatter(rank: int, n_peers: int, n_items: int, rounds: int = 1) -> list[int]:
    return [rounds * sum(sender * n_peers + rank for sender in range(n_peers))] * n_items


def check_conversation(engines: Engines) -> None:
    """What every implementation of Engines must do with ToyEngines."""
    n = engines.n_engines
    values = np.arange(1000, dtype=np.int64)
    assert engines.ask(Sum(values)) == [499500 + rank for rank in range(n)]
    assert engines.ask_each([Sum(np.array([10 * rank])) for rank in range(n)]) == [11 * rank for rank in range(n)]
    assert engines.ask(Echo((1, "two", [3.0], {"four": None}))) == [(1, "two", [3.0], {"four": None})] * n
    for n_items in (0, 1, 100, 200_000):
        for rank, total in enumerate(engines.ask(Scatter(n_items, rounds=3))):
            assert total.tolist() == expected_scatter(rank, n, n_items, rounds=3)


@register
@dataclass(frozen=True)
class Script:
    """What a toy coordinator asks, one message after another."""

    messages: tuple[Any, ...]
    report: bool = False


def open_toy(context: EngineContext, name: str) -> ToyEngine:
    if name == "unopenable":
        raise OSError("no room for an engine")
    engine = ToyEngine(context.peers.rank, context.peers, name)
    context.place.shards.put(f"toy-{name}", "engine", engine)
    return engine


def use_extras(context: EngineContext, name: str) -> ToyEngine:
    context.extras["check"](context.peers.rank)
    return open_toy(context, name)


def coordinate(context: CoordinatorContext, script: Script) -> dict[str, Any]:
    replies = []
    for number, message in enumerate(script.messages):
        if script.report:
            context.report({"step": number, "message": type(message).__name__})
        replies.append(context.engines.ask(message))
    return {"replies": replies, "pid": os.getpid(), "place": context.place}


def coordinate_with_extras(context: CoordinatorContext, script: Script) -> Any:
    return context.extras["scale"](context.engines.n_engines)


def coordinate_badly(context: CoordinatorContext, kind: str) -> Any:
    if kind == "ours":
        raise DataError("labels: nothing but NaN")
    raise ZeroDivisionError("a bug")


def measure_round_trips(context: CoordinatorContext, n: int) -> list[float]:
    times = []
    for _ in range(n):
        start = time.perf_counter()
        context.engines.ask(Echo(1))
        times.append(time.perf_counter() - start)
    return times


def unchecked(kind: type, values: dict[str, Any]) -> Any:
    """A message whose own checks did not run, as a stranger would encode it."""
    made: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def altered(message: Any, **values: Any) -> Any:
    """A message with other values, unchecked."""
    return unchecked(type(message), vars(message) | values)


for _function in (open_toy, use_extras, coordinate, coordinate_with_extras, coordinate_badly, measure_round_trips):
    CALLS[f"toys.{_function.__name__}"] = f"cluster.toys:{_function.__name__}"
