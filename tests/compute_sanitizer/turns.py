"""A plugin of pytest for racecheck: engines that are threads of this process launch one at a time.

Where two threads launch at once, racecheck says that it failed to track a kernel launch and hangs, sooner or later.
What is checked, shared memory of a block, does not depend on what other launches do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from daskboost.local.links import Engine, LocalEngines, LocalPeers


def pytest_configure() -> None:
    take_turns(pytest.MonkeyPatch())


class _InTurn:
    """An engine that answers when no other of its process does."""

    def __init__(self, engine: Engine, turn: threading.Lock) -> None:
        self._engine, self._turn = engine, turn

    def handle(self, message: Any) -> Any:
        with self._turn:
            return self._engine.handle(message)

    def stop(self) -> None:
        self._engine.stop()

    def close(self) -> None:
        self._engine.close()


def take_turns(patch: pytest.MonkeyPatch) -> None:
    """From here on, several engines of one fit answer in turn; whoever waits for the others' parts lets them go on."""
    make, exchange, turn = LocalEngines.__init__, LocalPeers._exchange, threading.Lock()

    def in_turn(made: Callable[[], Engine]) -> Engine:
        with turn:
            return _InTurn(made(), turn)

    def make_in_turn(engines: LocalEngines, given: Sequence[Callable[[], Engine]], *peers: Any, **more: Any) -> None:
        alone = len(given) == 1
        make(engines, given if alone else [partial(in_turn, each) for each in given], *peers, **more)

    def exchange_out_of_turn(peers: LocalPeers, parts: Sequence[Any]) -> list[Any]:
        if peers.n_peers == 1:
            return exchange(peers, parts)
        turn.release()
        try:
            return exchange(peers, parts)
        finally:
            turn.acquire()

    patch.setattr(LocalEngines, "__init__", make_in_turn)
    patch.setattr(LocalPeers, "_exchange", exchange_out_of_turn)
