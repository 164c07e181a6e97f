"""Engines of one process answer in turn, and get their peers' parts all the same."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from compute_sanitizer.turns import take_turns

from daskboost.errors import EngineError
from daskboost.local.links import LocalEngines, LocalPeers, local_peers


class Busy:
    """Notes how many are at work, itself included; exchanges its number for the others'."""

    at_work, most = 0, 0
    lock = threading.Lock()

    def __init__(self, peers: LocalPeers) -> None:
        self._peers = peers

    def handle(self, message: Any) -> list[int]:
        self._work()
        if message == "fail" and self._peers.rank == 1:
            raise ValueError("on purpose")
        found = self._peers.exchange([np.array([self._peers.rank])] * self._peers.n_peers)
        self._work()
        return [int(part[0]) for part in found]

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _work(self) -> None:
        with Busy.lock:
            Busy.at_work += 1
            Busy.most = max(Busy.most, Busy.at_work)
        time.sleep(0.02)
        with Busy.lock:
            Busy.at_work -= 1


@pytest.mark.parametrize("in_turn", [False, True])
def test_one_is_at_work_at_a_time(in_turn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_turn:
        take_turns(monkeypatch)
    Busy.most = 0
    peers = local_peers(3)
    engines = LocalEngines([partial(Busy, each) for each in peers], peers)
    assert [engines.ask("go") for _ in range(3)] == [[[0, 1, 2]] * 3] * 3
    assert (Busy.most == 1) == in_turn
    with pytest.raises(EngineError, match=r"engine 1 .* on purpose"):
        engines.ask("fail")
    engines.close()
