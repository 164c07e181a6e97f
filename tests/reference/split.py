"""Naive twin of the split search: every split of a node by its definition, the gain from the rows themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

INF = math.inf


@dataclass(frozen=True)
class Rules:
    """What makes a split allowed and good."""

    reg_lambda: float = 1.0
    alpha: float = 0.0
    step: float = 0.0
    least_h: float = 0.0
    monotone: Sequence[int] = ()
    """Per feature; empty for none."""

    @property
    def plain(self) -> bool:
        return self.step == 0 and not any(self.monotone)

    def heavy(self, h: float) -> bool:
        """Whether a node of that h has a value other than 0, and may be split off."""
        return h >= self.least_h and h + self.reg_lambda > 0

    def direction(self, feature: int) -> int:
        return self.monotone[feature] if self.monotone else 0


@dataclass(frozen=True)
class Split:
    """One candidate; `gain` is -inf where it is not allowed."""

    gain: float
    feature: int
    bin: int
    default_left: bool
    left: tuple[int, int]
    """Integer sums of g and h of the rows that go left."""


@dataclass(frozen=True)
class Rows:
    """The rows of one node, and what limits it."""

    symbols: Any
    """Shape (rows, features); `n_bins[f]` where missing."""
    g: Any
    """Integers, shape (rows,)."""
    h: Any
    n_bins: Sequence[int]
    units: tuple[float, float]
    """What one quantum of g and of h is worth."""
    bounds: tuple[float, float] = (-INF, INF)

    @property
    def sums(self) -> tuple[int, int]:
        return int(np.sum(self.g)), int(np.sum(self.h))

    def worth(self, sums: tuple[int, int]) -> tuple[float, float]:
        return sums[0] * self.units[0], sums[1] * self.units[1]


def weight(rules: Rules, g: float, h: float, bounds: tuple[float, float]) -> float:
    """The leaf value before the learning rate."""
    if not rules.heavy(h):
        return min(max(0.0, bounds[0]), bounds[1])
    soft = max(abs(g) - rules.alpha, 0.0)
    value = (-soft if g > 0 else soft) / (h + rules.reg_lambda)
    if rules.step > 0:
        value = min(max(value, -rules.step), rules.step)
    return min(max(value, bounds[0]), bounds[1])


def loss_reduction(rules: Rules, g: float, h: float, bounds: tuple[float, float]) -> float:
    """What a leaf with the best allowed value gains over one with value 0, twice."""
    w = weight(rules, g, h, bounds)
    return -(2.0 * g * w + (h + rules.reg_lambda) * w * w + 2.0 * rules.alpha * abs(w))


def closed_form(rules: Rules, g: float, h: float) -> float:
    """The same without limits on the value: (|g| - alpha)**2 / (h + lambda)."""
    soft = max(abs(g) - rules.alpha, 0.0)
    return soft * soft / (h + rules.reg_lambda)


def own_gain(rules: Rules, rows: Rows, left: tuple[int, int]) -> float:
    """The gain that the tree records for a split."""
    total = rows.sums
    right = (total[0] - left[0], total[1] - left[1])
    sides = [loss_reduction(rules, *rows.worth(sums), rows.bounds) for sums in (left, right, total)]
    return sides[0] + sides[1] - sides[2]


def left_of(rows: Rows, feature: int, bin_: int, default_left: bool) -> tuple[int, int]:
    """Sums of the rows that a split sends left."""
    symbols = rows.symbols[:, feature]
    goes = np.where(symbols == rows.n_bins[feature], default_left, symbols <= bin_)
    return int(np.sum(rows.g[goes])), int(np.sum(rows.h[goes]))


def children(rules: Rules, rows: Rows, feature: int, bin_: int, left: tuple[int, int], monotone: bool = True
             ) -> float:  # fmt: skip
    """Loss reduction of both children; -inf where the split is not allowed."""
    total = rows.sums
    lg, lh = rows.worth(left)
    rg, rh = rows.worth((total[0] - left[0], total[1] - left[1]))
    if not rules.heavy(min(lh, rh)):
        return -INF
    if rules.plain:
        return closed_form(rules, lg, lh) + closed_form(rules, rg, rh)
    if monotone and breaks_monotone(rules, rows, feature, bin_, left):
        return -INF
    return loss_reduction(rules, lg, lh, rows.bounds) + loss_reduction(rules, rg, rh, rows.bounds)


def breaks_monotone(rules: Rules, rows: Rows, feature: int, bin_: int, left: tuple[int, int]) -> bool:
    """Whether the children's values go against the feature's direction; present against missing never does."""
    if bin_ == rows.n_bins[feature] - 1:
        return False
    total = rows.sums
    low = weight(rules, *rows.worth(left), rows.bounds)
    high = weight(rules, *rows.worth((total[0] - left[0], total[1] - left[1])), rows.bounds)
    return rules.direction(feature) * (high - low) < 0


def places(rows: Rows, features: Sequence[int], missing: Sequence[bool]) -> Iterator[tuple[int, int, bool]]:
    """All (feature, bin, default left), in the order in which ties are decided."""
    for feature in features:
        for default_left in (False, True) if missing[feature] else (False,):
            for bin_ in range(rows.n_bins[feature]):
                yield feature, bin_, default_left


def some_missing(rows: Rows) -> list[bool]:
    """Per feature, whether the node's sums show a row that lacks it."""
    found = []
    for feature, n_bins in enumerate(rows.n_bins):
        lacks = rows.symbols[:, feature] == n_bins
        found.append(bool(np.sum(rows.g[lacks]) != 0 or np.sum(rows.h[lacks]) != 0))
    return found


def best(rules: Rules, rows: Rows, features: Sequence[int]) -> Split:
    """The best split of one node; gain -inf if none gains anything."""
    g, h = rows.worth(rows.sums)
    parent = closed_form(rules, g, h) if rules.plain and rules.heavy(h) else loss_reduction(rules, g, h, rows.bounds)
    found = Split(-INF, -1, -1, False, (0, 0))
    for feature, bin_, default_left in places(rows, features, some_missing(rows)):
        left = left_of(rows, feature, bin_, default_left)
        gain = children(rules, rows, feature, bin_, left) - parent
        if gain > max(found.gain, 0.0):
            found = Split(gain, feature, bin_, default_left, left)
    return found


def best_of_level(rules: Rules, level: Sequence[Rows], features: Sequence[int]) -> Split:
    """The one split for all nodes of a level; `left` is of no use in it."""
    missing = np.any([some_missing(rows) for rows in level], axis=0).tolist()
    found = Split(-INF, -1, -1, False, (0, 0))
    for feature, bin_, default_left in places(level[0], features, missing):
        gain = 0.0
        for rows in level:
            left = left_of(rows, feature, bin_, default_left)
            both = children(rules, rows, feature, bin_, left, monotone=False)
            if both > -INF:
                gain += both - loss_reduction(rules, *rows.worth(rows.sums), rows.bounds)
            if breaks_monotone(rules, rows, feature, bin_, left):
                gain = -INF
        if gain > max(found.gain, 0.0):
            found = Split(gain, feature, bin_, default_left, (0, 0))
    return found


def rough_top(rules: Rules, bins: Any, total: tuple[int, int], units: tuple[float, float], with_empty: bool = True
              ) -> float | None:  # fmt: skip
    """What `kernels/rough.cuh` computes roughly, for a feature's `bins` of shape (bins, 2).

    None if no split is allowed. Splits before the first filled bin, whose left child is empty or which have a mirror
    image behind the last bin, count if `with_empty`. Exact fractions, rounded once; only whether a split is allowed is
    decided in float64, as it is elsewhere.
    """
    penalty = Fraction(rules.reg_lambda) / Fraction(units[1])
    both = total[1] + 2 * penalty
    unit = Fraction(2) ** (math.frexp(float(both))[1] - 1 - 48)
    present = [sum(int(bin_[k]) for bin_ in bins) for k in range(2)]
    missing = [total[k] - present[k] for k in range(2)]
    best = None
    for side in range(2 if any(missing) else 1):
        g, h = (side * missing[0], side * missing[1])
        filled = with_empty
        for bin_ in bins:
            g, h, filled = g + int(bin_[0]), h + int(bin_[1]), filled or bool(np.any(bin_))
            least = min(h * units[1], (total[1] - h) * units[1])
            if not rules.heavy(least) or not filled:
                continue
            gain = (Fraction(g * g) / (h + penalty) + Fraction((total[0] - g) ** 2) / (total[1] - h + penalty)) * unit
            best = gain if best is None else max(best, gain)
    return None if best is None else float(best)
