"""Rounds that wait on a device are fetched as they were kept, whatever came after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime

from daskboost.engine.waiting_rounds import KeptRound, WaitingRounds


@dataclass
class Rounds:
    """Rounds whose only byte is their number."""

    waiting: WaitingRounds
    kept: list[KeptRound] = field(default_factory=list)

    def grow(self) -> None:
        if self.waiting.is_full:
            self.waiting.close()
        self.waiting.make_room()
        number, ring = len(self.kept), self.waiting.ring
        ring[number % len(ring)] = number % 256
        self.waiting.add()
        self.kept.append(self.waiting.last())

    def check(self, number: int) -> None:
        assert self.kept[number].fetched().tolist() == [number % 256]


@given(
    st.integers(1, 9), st.lists(st.sampled_from(["grow", "grow", "grow", "close"]) | st.integers(0, 300), max_size=200)
)
def test_each_round_is_found_whatever_the_batches(n_places: int, steps: list[Any]) -> None:
    """Numbers stand for rounds that the host fetches meanwhile."""
    rounds = Rounds(WaitingRounds(EmulatedRuntime(), n_places, 1))
    for step in steps:
        if step == "grow":
            rounds.grow()
        elif step == "close":
            rounds.waiting.close()
        elif rounds.kept:
            rounds.check(step % len(rounds.kept))
    for number in range(len(rounds.kept)):
        rounds.check(number)


@pytest.mark.parametrize("n_places", [2, 5, 6])
def test_half_of_the_rounds_grow_while_others_are_fetched(n_places: int) -> None:
    """The host waits for no round of the last batch, nor of the one before it."""
    rounds = Rounds(WaitingRounds(EmulatedRuntime(), n_places, 1))
    half = n_places // 2
    for _ in range(5 * half):
        rounds.grow()
    is_fetched = [kept.batch._fetched is not None for kept in rounds.kept]
    assert is_fetched == [True] * (3 * half) + [False] * (2 * half)


def test_a_batch_that_goes_round_the_end_of_the_ring_is_of_one_piece() -> None:
    rounds = Rounds(WaitingRounds(EmulatedRuntime(), 6, 1))
    for n in (2, 3, 3):
        for _ in range(n):
            rounds.grow()
        rounds.waiting.close()
    np.testing.assert_array_equal(rounds.kept[-1].batch.fetched(), [[5], [6], [7]])
