"""A fit over a single remote engine: whole trees grow beside the rows, without a round trip per level.

The tree loop is the coordinator's own (`coordinator.grow_tree`), run in the engine's process over that one engine.
"""

from __future__ import annotations

from typing import Any

from daskboost.cluster import messages as m
from daskboost.cluster.coordinator import FitSpec, grow_tree
from daskboost.cluster.engine import Engine
from daskboost.cluster.outbox import Outbox
from daskboost.cluster.reduce.strategies import AtCoordinator
from daskboost.devices.cpu.threads import Threads
from daskboost.tree.table import TreeTable


class WholeTrees:
    """An engine that answers `GrowTree` too; everything else it passes on.

    Parameters
    ----------
    engine : Engine
    spec : FitSpec
        Of the fit whose only engine this is.
    threads : Threads
        Of the engine; searching and building take turns.
    """

    def __init__(self, engine: Engine, spec: FitSpec, threads: Threads) -> None:
        self._engine, self._spec = engine, spec
        self._outbox = Outbox(_Alone(engine))
        self._reduction = AtCoordinator(self._outbox, spec.layout, spec.rules, threads)

    def handle(self, message: Any) -> Any:
        """Answer one request."""
        if isinstance(message, m.GrowTree):
            return self._grow(message)
        if isinstance(message, m.Several):
            return m.Replies(tuple(self.handle(request) for request in message.requests))
        return self._engine.handle(message)

    def close(self) -> None:
        self._engine.close()

    def _grow(self, message: m.GrowTree) -> TreeTable:
        table = grow_tree(
            self._outbox, self._reduction, self._spec, message.iteration, message.output, message.rounding,
            message.learning_rate,
        )  # fmt: skip
        self._outbox.flush()
        return table


class _Alone:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: Any, /) -> list[Any]:
        return [self._engine.handle(message)]
