"""Naive twin of the search for sets of categories: every set that is tried, and the gain from the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from reference import split

from daskboost.devices.row_order import BY_SET


@dataclass(frozen=True)
class SetRules:
    """Which features are split by sets, and how."""

    codes: frozenset[int] = frozenset()
    """Features of codes, whose last bin is of values that are none."""
    max_onehot: int = 4
    max_threshold: int = 64


@dataclass(frozen=True)
class SetSplit(split.Split):
    """A candidate whose bin is `BY_SET`."""

    right: frozenset[int] = frozenset()
    """Bins that go right."""


def sums_where(rows: split.Rows, which: object) -> tuple[int, int]:
    """Sums of g and h of some rows."""
    return int(np.sum(rows.g[which])), int(np.sum(rows.h[which]))


def sets(rules: split.Rules, limits: SetRules, level: Sequence[split.Rows], feature: int
         ) -> Iterator[tuple[frozenset[int], bool]]:  # fmt: skip
    """All sets that are tried for some nodes together, with the default direction, in the order in which ties are
    decided."""
    n_codes = level[0].n_bins[feature] - 1
    if n_codes < limits.max_onehot:
        yield from ((frozenset({code}), default_left) for code in range(n_codes) for default_left in (True, False))
        return

    def value(code: int) -> float:
        own = [sums_where(rows, rows.symbols[:, feature] == code) for rows in level]
        g, h = (sum(each) for each in zip(*own, strict=True))
        return split.weight(rules, *level[0].worth((g, h)), (-split.INF, split.INF))

    order = sorted(range(n_codes), key=value)  # which is stable
    for n_taken in range(1, min(limits.max_threshold, n_codes)):
        yield frozenset(order[:n_taken]), True
    for n_taken in range(1, min(limits.max_threshold, n_codes)):
        yield frozenset(order[: n_codes - n_taken]), False


def left_of(rows: split.Rows, feature: int, right: frozenset[int], default_left: bool) -> tuple[int, int]:
    """Sums of the rows that a set leaves on the left."""
    symbols = rows.symbols[:, feature]
    present = ~np.isin(symbols, list(right))
    return sums_where(rows, np.where(symbols == rows.n_bins[feature], default_left, present))


def best(rules: split.Rules, limits: SetRules, rows: split.Rows, features: Sequence[int]) -> split.Split:
    """The best split of one node, by a set or by a threshold; gain -inf if none gains anything."""
    g, h = rows.worth(rows.sums)
    heavy = rules.plain and rules.heavy(h)
    parent = split.closed_form(rules, g, h) if heavy else split.loss_reduction(rules, g, h, rows.bounds)
    found = split.Split(-split.INF, -1, -1, False, (0, 0))
    for feature in features:
        if feature not in limits.codes:
            other = split.best(rules, rows, [feature])
            found = other if other.gain > found.gain else found
            continue
        for right, default_left in sets(rules, limits, [rows], feature):
            left = left_of(rows, feature, right, default_left)
            gain = split.children(rules, rows, feature, 0, left) - parent
            if gain > max(found.gain, 0.0):
                found = SetSplit(gain, feature, BY_SET, default_left, left, right)
    return found


def best_of_level(rules: split.Rules, limits: SetRules, level: Sequence[split.Rows], features: Sequence[int]
                  ) -> split.Split:  # fmt: skip
    """The one split for all nodes of a level, by a set or by a threshold; `left` is of no use in it."""
    found = split.Split(-split.INF, -1, -1, False, (0, 0))
    for feature in features:
        if feature not in limits.codes:
            other = split.best_of_level(rules, level, [feature])
            found = other if other.gain > found.gain else found
            continue
        for right, default_left in sets(rules, limits, level, feature):
            gain = 0.0
            for rows in level:
                both = split.children(rules, rows, feature, 0, left_of(rows, feature, right, default_left))
                if both > -split.INF:
                    gain += both - split.loss_reduction(rules, *rows.worth(rows.sums), rows.bounds)
            if gain > max(found.gain, 0.0):
                found = SetSplit(gain, feature, BY_SET, default_left, (0, 0), right)
    return found


def right_bins_of(found: split.Split) -> frozenset[int]:
    """Bins that go right of a split by a set; none of others."""
    return found.right if isinstance(found, SetSplit) else frozenset()
