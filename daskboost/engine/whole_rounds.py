"""A fit over a single engine: whole rounds grow beside the rows, without a round trip per level or tree.

The round loop is the coordinator's own (`fit/rounds.py`), run in the engine's process over that one engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.memory import ROUNDS_AT_ONCE
from daskboost.engine.device_grower import DeviceGrower, RowsOnDevice
from daskboost.engine.engine import Engine
from daskboost.fit import messages as m
from daskboost.fit.base_score import total_weight_of
from daskboost.fit.outbox import Outbox
from daskboost.fit.rounds import AsGrown, GrownRound, Parts, grow_rounds, rounds_of
from daskboost.fit.spec import FitSpec

R = TypeVar("R")


class Alone:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: m.Request[R], /) -> list[R]:
        """Return the engine's reply."""
        return [self._engine.handle(message)]


class WholeRounds:
    """An engine that answers `GrowRounds` too; everything else it passes on.

    Parameters
    ----------
    engine : Engine
    spec : FitSpec
        Of the fit whose only engine this is.
    threads : Threads
        Of the engine; searching and building take turns.
    """

    def __init__(self, engine: Engine, spec: FitSpec, threads: Threads) -> None:
        self._engine = engine
        self._failure: Exception | None = None
        outbox = Outbox(Alone(engine))
        self._rounds = _rounds_on_device(engine, spec, outbox) if engine.device.without_host else (
            rounds_of(spec, outbox, threads))  # fmt: skip

    def handle(self, message: m.Request[R]) -> R:
        """Answer one request."""
        reply: object
        if isinstance(message, m.GrowRounds):
            reply = m.Rounds(self._take(min(message.n, ROUNDS_AT_ONCE)))
        elif isinstance(message, m.Several):
            reply = m.Replies(tuple(self.handle(request) for request in message.requests))
        else:
            return self._engine.handle(message)
        return reply  # type: ignore[return-value]  # each request's own

    def _take(self, n: int) -> tuple[m.Round, ...]:
        """Return at most `n` rounds. One that fails does so when it is the next: the fit may end before it."""
        if self._failure is not None:
            raise self._failure
        grown: list[GrownRound] = []
        taken: list[m.Round] = []
        try:
            grown.extend(islice(self._rounds, n))
        except Exception as error:
            self._failure = error
        try:
            taken.extend(each.finished() for each in grown)
        except Exception as error:
            self._failure = error
        if not taken and self._failure is not None:
            raise self._failure
        return tuple(taken)

    def close(self) -> None:
        """Free what the engine holds."""
        self._failure = None  # its traceback refers to the engine, whose arrays would wait for the garbage collector
        self._rounds = iter(())
        self._engine.close()


def _rounds_on_device(engine: Engine, spec: FitSpec, outbox: Outbox) -> Iterator[GrownRound]:
    """Give the rounds of a fit whose trees grow on the engine's device."""
    total_weight = total_weight_of(outbox) if spec.recipe.small_data else None
    with engine.device.errors():
        grower = DeviceGrower(engine, spec, total_weight)
    return grow_rounds(spec, outbox, Parts(RowsOnDevice(), grower, AsGrown()))
