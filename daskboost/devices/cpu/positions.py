"""How likely rows are to be clicked by the position that they were shown at, as the pairs of each round tell it.

Hu et al., "Unbiased LambdaMART", 2019, as in XGBoost 3.2: a row's position is its place among the rows of its query in
the order of global ids. A pair counts what it would for relevance, divided by the chance of the position of its row
with the larger label, and by that of the other. Both kinds of chances follow from the costs of the pairs of each
position, divided by the other chance of these pairs as it was, in proportion to the first position.
`kernels/positions.cuh` and `positions.cu` do the same, operation by operation.

Costs are added up as integers, a number's in two words, so that neither the order of queries nor their division among
threads and engines can show.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.arithmetic import logarithms
from daskboost.devices.cpu.losses import _exp
from daskboost.devices.losses import PositionStart
from daskboost.dtypes import Array, Float32, Float64, Int64

WORD_BITS = 8
"""Bits after the point of the first word of a sum of costs, which has room for those of 2**34 rows, each 2**20."""
NEXT_BITS = 32
"""Bits that the second word has beyond these."""
LEAST_CHANCE = np.float32(2.0**-13)
"""Chances below this divide as this one, so that no pair hides all others; and those above its reciprocal as that."""
NO_CHANCE = np.float32(1e-16)
"""Chances below this divide nothing, since no pairs have told them (XGBoost's)."""
NO_COST = 1e-16
"""Costs of the first position below this say nothing about others (XGBoost's)."""
RELEVANT, IRRELEVANT = 0, 1
"""Chances of the rows of pairs that have the larger label, and of the others."""


class Ratios(NamedTuple):
    """What pairs are multiplied by, as compiled code takes it, and what they cost."""

    of_chances: Float32
    """Reciprocals of both chances of each position, 0 where these are not known; shape (2, positions)."""
    shrink: Float64
    """Power of two that sums of a query are multiplied by which has so many of the positions, so that they have room
    for the largest product of two ratios; shape (positions + 1,)."""
    costs: Int64
    """Sums of what pairs of a thread cost at each position, in two words; shape (2, positions, 2)."""


@njit(nogil=True, error_model="numpy")
def ratio_of(chance: np.float32) -> np.float32:
    """Return what a pair is multiplied by for a chance."""
    if chance < NO_CHANCE:
        return np.float32(0.0)
    return np.float32(1.0) / min(max(chance, LEAST_CHANCE), np.float32(1.0) / LEAST_CHANCE)


@njit(cache=True, nogil=True, error_model="numpy")
def find_ratios(chances: Float32, ratios: Ratios) -> None:
    """Fill ratios by the chances, shape (2, positions)."""
    most_relevant, most_irrelevant, shrink = np.float32(1.0), np.float32(1.0), 1.0
    ratios.shrink[0] = shrink
    for position in range(chances.shape[1]):
        relevant, irrelevant = ratio_of(chances[0, position]), ratio_of(chances[1, position])
        ratios.of_chances[0, position], ratios.of_chances[1, position] = relevant, irrelevant
        most_relevant, most_irrelevant = max(most_relevant, relevant), max(most_irrelevant, irrelevant)
        while np.float64(most_relevant) * np.float64(most_irrelevant) * shrink > 1.0:
            shrink *= 0.5
        ratios.shrink[position + 1] = shrink


@njit(inline="always", error_model="numpy")
def add_cost(costs: Int64, side: int, position: int, cost: float) -> None:
    """Add a cost to that of a position, shape (2, positions, 2)."""
    scaled = cost * 2.0**WORD_BITS
    whole = math.floor(scaled)
    costs[side, position, 0] += np.int64(whole)
    costs[side, position, 1] += np.int64(np.rint((scaled - whole) * 2.0**NEXT_BITS))


@njit(cache=True, nogil=True, error_model="numpy")
def find_chances(costs: Int64, power: float, chances: Float32) -> None:
    """Make chances, shape (2, positions), those that the costs of a round tell; they stay where the first position has
    none."""
    n = chances.shape[1]
    sums, logs = np.empty(n), np.empty(n)
    for side in range(2):
        for position in range(n):
            first, second = np.float64(costs[side, position, 0]), np.float64(costs[side, position, 1])
            sums[position] = first * 2.0**-WORD_BITS + second * 2.0 ** -(WORD_BITS + NEXT_BITS)
        if n == 0 or sums[0] < NO_COST:
            continue
        for position in range(n):
            logs[position] = sums[position] / sums[0]
        logarithms(logs, sums)
        for position in range(n):
            exponent = power * sums[position]
            rounded = np.float32(exponent)
            found = np.float64(_exp(rounded)) * (1.0 + (exponent - np.float64(rounded)))
            chances[side, position] = np.float32(found if sums[position] > -np.inf else 0.0)


def no_ratios(n: int) -> Ratios:
    """Return ratios of so many positions that are still to be filled, and no costs."""
    return Ratios(np.empty((2, n), np.float32), np.ones(n + 1), np.zeros((2, n, 2), np.int64))


class Positions:
    """The chances of positions, as rounds estimate them on a CPU.

    Parameters
    ----------
    start : PositionStart, optional
        What is known before the first round.
    n : int
        How many positions there are; 0 where none is corrected for.
    """

    def __init__(self, start: PositionStart | None, n: int) -> None:
        self.chances = chances_at(start, n)
        """float32, shape (2, positions)."""
        self.ratios = no_ratios(n)
        """With the costs of all threads."""
        self._power = 1.0 if start is None else start.power
        self._lock = threading.Lock()
        find_ratios(self.chances, self.ratios)

    def of_thread(self) -> Ratios:
        """Return the ratios with no costs, for a thread to add to."""
        return self.ratios._replace(costs=np.zeros_like(self.ratios.costs))

    def add(self, costs: Int64) -> None:
        """Add what a thread has found; from any thread."""
        with self._lock:
            self.ratios.costs[:] += costs

    def learn(self, add_up: Callable[[Array], None]) -> None:
        """Estimate the chances from the costs since the last time; `add_up` adds up those of all engines in place."""
        costs = self.ratios.costs
        add_up(costs)
        find_chances(costs, self._power, self.chances)
        find_ratios(self.chances, self.ratios)
        costs[:] = 0


def chances_at(start: PositionStart | None, n: int) -> Float32:
    """Return the chances of so many positions before the first round, float32 of shape (2, positions)."""
    chances = np.ones((2, n), np.float32)
    for side, known in enumerate(() if start is None else (start.relevant, start.irrelevant)):
        chances[side, : len(known)] = known[:n]
    return chances
