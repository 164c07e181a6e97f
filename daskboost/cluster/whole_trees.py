"""A fit over a single remote engine: whole rounds grow beside the rows, without a round trip per level or tree.

The loop is the coordinator's own (`coordinator.grown_rounds`), run in the engine's process over that one engine.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from daskboost.cluster import messages as m
from daskboost.cluster.coordinator import FitSpec, grown_rounds
from daskboost.cluster.engine import Engine
from daskboost.cluster.outbox import Outbox
from daskboost.cluster.reduce.strategies import make_reduction
from daskboost.devices.cpu.threads import Threads


class WholeTrees:
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
        outbox = Outbox(_Alone(engine))
        reduction = make_reduction(spec.params.reduction, outbox, spec.layout, spec.rules, threads)
        self._rounds = grown_rounds(outbox, reduction, spec)

    def handle(self, message: Any) -> Any:
        """Answer one request."""
        if isinstance(message, m.GrowRounds):
            return m.Rounds(tuple(islice(self._rounds, message.n)))
        if isinstance(message, m.Several):
            return m.Replies(tuple(self.handle(request) for request in message.requests))
        return self._engine.handle(message)

    def close(self) -> None:
        self._engine.close()


class _Alone:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: Any, /) -> list[Any]:
        return [self._engine.handle(message)]
