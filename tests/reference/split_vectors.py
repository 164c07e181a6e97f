"""Naive twin of the split search of trees whose leaves are vectors: every split tried on the rows of every output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from reference import split
from reference.split import INF, Rows, Rules, Split

FREE = (-INF, INF)
"""Bounds of leaf values: vectors have none."""
Outputs = Sequence[Rows]
"""The rows of a node once for each output: the same symbols with each output's gradients."""


def reduction(rules: Rules, g: float, h: float, plain: bool) -> float:
    """Loss reduction of one output's value."""
    if not rules.heavy(h):
        return 0.0
    return split.closed_form(rules, g, h) if plain else split.loss_reduction(rules, g, h, FREE)


def parent(rules: Rules, outputs: Outputs, plain: bool) -> float:
    """Loss reduction of a node, summed over outputs."""
    found = 0.0
    for rows in outputs:
        found += reduction(rules, *rows.worth(rows.sums), plain)
    return found


def totals(rules: Rules, outputs: Outputs, lefts: Sequence[tuple[int, int]], plain: bool) -> tuple[float, float]:
    """Loss reductions of both children and of their parent, summed over outputs."""
    both = 0.0
    for rows, left in zip(outputs, lefts, strict=True):
        right = (rows.sums[0] - left[0], rows.sums[1] - left[1])
        both += reduction(rules, *rows.worth(left), plain) + reduction(rules, *rows.worth(right), plain)
    return both, parent(rules, outputs, plain)


def lefts_of(outputs: Outputs, feature: int, bin_: int, default_left: bool) -> list[tuple[int, int]]:
    return [split.left_of(rows, feature, bin_, default_left) for rows in outputs]


def children(rules: Rules, outputs: Outputs, lefts: Sequence[tuple[int, int]]) -> float:
    """Loss reduction of both children; -inf where some child has no output that weighs enough."""
    pairs = list(zip(outputs, lefts, strict=True))
    left = any(rules.heavy(rows.worth(sums)[1]) for rows, sums in pairs)
    right = any(rules.heavy((rows.sums[1] - sums[1]) * rows.units[1]) for rows, sums in pairs)
    return totals(rules, outputs, lefts, rules.plain)[0] if left and right else -INF


def gain(rules: Rules, outputs: Outputs, lefts: Sequence[tuple[int, int]]) -> float:
    return children(rules, outputs, lefts) - parent(rules, outputs, rules.plain)


def some_missing(outputs: Outputs) -> list[bool]:
    found: list[bool] = np.any([split.some_missing(rows) for rows in outputs], axis=0).tolist()
    return found


def best(rules: Rules, outputs: Outputs, features: Sequence[int]) -> tuple[Split, list[tuple[int, int]]]:
    """The best split of one node, and the sums of its left child for each output."""
    found, found_lefts = Split(-INF, -1, -1, False, (0, 0)), [(0, 0)] * len(outputs)
    for feature, bin_, default_left in split.places(outputs[0], features, some_missing(outputs)):
        lefts = lefts_of(outputs, feature, bin_, default_left)
        own = gain(rules, outputs, lefts)
        if own > max(found.gain, 0.0):
            found, found_lefts = Split(own, feature, bin_, default_left, (0, 0)), lefts
    return found, found_lefts


def best_of_level(rules: Rules, level: Sequence[Outputs], features: Sequence[int]) -> Split:
    """The one split for all nodes of a level."""
    missing = np.any([some_missing(outputs) for outputs in level], axis=0).tolist()
    found = Split(-INF, -1, -1, False, (0, 0))
    for feature, bin_, default_left in split.places(level[0][0], features, missing):
        gains = [gain(rules, outputs, lefts_of(outputs, feature, bin_, default_left)) for outputs in level]
        total = 0.0
        for own in gains:
            total += own if own > -INF else 0.0
        if total > max(found.gain, 0.0):
            found = Split(total, feature, bin_, default_left, (0, 0))
    return found
