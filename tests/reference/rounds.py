"""The rounds of a fit, counted by the host: what `devices/gpu/rows/rounds.py` counts on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskboost.fit.scales import tree_keys


class Rounds:
    """What launches of each round should find and leave."""

    def __init__(self, learning_rates: Sequence[float], first_iteration: int, seed: int, ring: Any) -> None:
        self.learning_rates, self.first_iteration, self.seed, self.ring = learning_rates, first_iteration, seed, ring
        self.current = self.last = -1

    def begin(self) -> float:
        """The learning rate of the round that begins."""
        self.current = self.last + 1
        return self.learning_rates[self.current]

    def keys(self, n_outputs: int) -> Any:
        iteration = self.first_iteration + self.current
        return np.array([tree_keys(self.seed, iteration, output) for output in range(n_outputs)], np.uint64)

    def keep(self, values: Any, begin: int) -> None:
        """Keep what the round that ends has left, from one byte of its place on."""
        self.last = self.current
        self.keep_of_last(values, begin)

    def keep_of_last(self, values: Any, begin: int) -> None:
        if self.last >= 0:
            self.ring[self.last % len(self.ring), begin : begin + len(values)] = values
