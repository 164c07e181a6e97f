"""A fit over a single remote engine: whole rounds grow beside the rows, without a round trip per level or tree.

The loop is the coordinator's own (`coordinator.rounds_of`), run in the engine's process over that one engine, unless
the trees can grow on its device without anybody (`device_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from daskboost.cluster import messages as m
from daskboost.cluster.coordinator import FitSpec, rounds_of
from daskboost.cluster.device_rounds import Alone, device_rounds
from daskboost.cluster.engine import Engine
from daskboost.cluster.outbox import Outbox
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
        self._failure: Exception | None = None
        self._rounds: Callable[[int], Iterator[m.Round]]
        """The next so many."""
        on_device = device_rounds(engine, spec)
        if on_device is not None:
            self._rounds = on_device.take
            return
        outbox = Outbox(Alone(engine))
        rounds = rounds_of(outbox, spec, threads)
        self._rounds = partial(islice, rounds)

    def handle(self, message: Any) -> Any:
        """Answer one request."""
        if isinstance(message, m.GrowRounds):
            return m.Rounds(self._take(message.n))
        if isinstance(message, m.Several):
            return m.Replies(tuple(self.handle(request) for request in message.requests))
        return self._engine.handle(message)

    def _take(self, n: int) -> tuple[m.Round, ...]:
        """At most `n` rounds. One that fails does so when it is the next: the fit may end before it."""
        if self._failure is not None:
            raise self._failure
        taken: list[m.Round] = []
        try:
            taken.extend(self._rounds(n))
        except Exception as error:
            if not taken:
                raise
            self._failure = error
        return tuple(taken)

    def close(self) -> None:
        self._failure = None  # its traceback refers to the engine, whose arrays would wait for the garbage collector
        self._engine.close()
