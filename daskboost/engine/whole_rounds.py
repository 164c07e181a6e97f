"""A fit over a single engine: whole rounds grow beside the rows, without a round trip per level or tree.

The round loop is the coordinator's own (`fit/rounds.py`), run in the engine's process over that one engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from daskboost.devices.budget.gpu_memory import ROUNDS_AT_ONCE
from daskboost.devices.cpu.threads import Threads
from daskboost.engine.compiled_grower import CompiledGrower, why_not_compiled
from daskboost.engine.device_grower import DeviceGrower, RowsOnDevice, WatchedMetrics
from daskboost.engine.engine import Engine
from daskboost.engine.setup import Answers
from daskboost.engine.watching import Watch
from daskboost.fit import messages as m
from daskboost.fit.base_score import weight_of_small_data
from daskboost.fit.messages import Outbox
from daskboost.fit.rounds import AsGrown, GrownRound, Parts, evaluation_of, grow_rounds, rounds_of
from daskboost.fit.samplers import AllRows
from daskboost.fit.spec import FitSpec

logger = logging.getLogger(__name__)

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
    """What an engine answers where it is the only one of its fit: it grows whole rounds, on its own threads, since
    searching and building take turns."""

    def __init__(self, engine: Engine, spec: FitSpec, threads: Threads) -> None:
        self._failure: Exception | None = None
        outbox = Outbox(Alone(engine))
        self.grows_alone = engine.device.without_host
        """Whether trees grow on a device alone."""
        if self.grows_alone:
            self._rounds = _rounds_on_device(engine, spec, outbox)
            return
        reason = why_not_compiled(engine, spec)
        logger.info("trees grow %s", f"with the host: {reason}" if reason else "in one compiled call each")
        self._rounds = rounds_of(spec, outbox, threads) if reason else _compiled_rounds(engine, spec, outbox)

    @property
    def answers(self) -> Answers:
        """What answers requests for rounds."""
        return {m.GrowRounds: self._grow}

    def _grow(self, message: m.GrowRounds) -> m.Rounds:
        return m.Rounds(self._take(min(message.n, ROUNDS_AT_ONCE)))

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
        """Forget the rounds, which hold the engine."""
        self._failure = None  # its traceback refers to the engine, whose arrays would wait for the garbage collector
        self._rounds = iter(())


def _compiled_rounds(engine: Engine, spec: FitSpec, outbox: Outbox) -> Iterator[GrownRound]:
    """Give the rounds of a fit whose trees grow on a CPU, in one call each."""
    sampler = AllRows(outbox, spec, weight_of_small_data(outbox, spec))
    grower = CompiledGrower(engine, spec)
    return grow_rounds(spec, Parts(sampler, grower, AsGrown(), evaluation_of(spec, outbox)))


def _rounds_on_device(engine: Engine, spec: FitSpec, outbox: Outbox) -> Iterator[GrownRound]:
    """Give the rounds of a fit whose trees grow on the engine's device."""
    total_weight = weight_of_small_data(outbox, spec)
    with engine.device.errors():
        watch = Watch(engine.device, engine.sets.evaluators if engine.device.watches else ())
        grower = DeviceGrower(engine, spec, total_weight, watch)
    evaluation = WatchedMetrics(grower) if engine.device.watches else evaluation_of(spec, outbox)
    return grow_rounds(spec, Parts(RowsOnDevice(), grower, AsGrown(), evaluation))
