"""Naive twin of the search for sets of categories: every set that is tried, and the gain from the rows themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

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
    smooth: float = 0.0
    l2: float = 0.0
    least_group: float = 0.0

    def penalised(self, rules: split.Rules, feature_bins: int, more: float) -> split.Rules:
        """The rules with a larger lambda, where sets of a feature may have several codes."""
        return rules if feature_bins - 1 < self.max_onehot else replace(rules, reg_lambda=rules.reg_lambda + more)


@dataclass(frozen=True)
class SetSplit(split.Split):
    """A candidate whose bin is `BY_SET`."""

    right: frozenset[int] = frozenset()
    """Bins that go right."""


def sums_where(rows: split.Rows, which: object) -> tuple[int, int]:
    """Sums of g and h of some rows."""
    return int(np.sum(rows.g[which])), int(np.sum(rows.h[which]))


def sets(rules: split.Rules, limits: SetRules, rows: split.Rows, feature: int) -> Iterator[tuple[frozenset[int], bool]]:
    """All sets that are tried, with the default direction, in the order in which ties are decided."""
    n_codes, symbols = rows.n_bins[feature] - 1, rows.symbols[:, feature]
    if n_codes < limits.max_onehot:
        yield from ((frozenset({code}), default_left) for code in range(n_codes) for default_left in (True, False))
        return

    def worth(codes: Iterable[int]) -> tuple[float, float]:
        return rows.worth(sums_where(rows, np.isin(symbols, list(codes))))

    ordered = limits.penalised(rules, n_codes + 1, limits.smooth)
    heavy = [code for code in range(n_codes) if worth({code})[1] >= limits.smooth]
    order = sorted(heavy, key=lambda code: split.weight(ordered, *worth({code}), (-split.INF, split.INF)))
    total = rows.worth(rows.sums)[1]
    for default_left in (True, False):  # the sort is stable
        since = set[int]()
        for n_taken in range(1, min(limits.max_threshold, len(order))):
            taken = order[:n_taken] if default_left else order[len(order) - n_taken :]
            since.add(taken[-1] if default_left else taken[0])
            right = frozenset(taken) if default_left else frozenset(range(n_codes)) - set(taken)
            left = rows.worth(left_of(rows, feature, right, default_left))[1]
            others = left if default_left else total - left
            if worth(since)[1] < limits.least_group or others < limits.least_group:
                continue
            if rules.heavy(min(left, total - left)):
                since.clear()
            yield right, default_left


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
        for right, default_left in sets(rules, limits, rows, feature):
            left = left_of(rows, feature, right, default_left)
            scored = limits.penalised(rules, rows.n_bins[feature], limits.l2)
            gain = split.children(scored, rows, feature, 0, left) - parent
            if gain > max(found.gain, 0.0):
                found = SetSplit(gain, feature, BY_SET, default_left, left, right)
    return found


def right_bins_of(found: split.Split) -> frozenset[int]:
    """Bins that go right of a split by a set; none of others."""
    return found.right if isinstance(found, SetSplit) else frozenset()
