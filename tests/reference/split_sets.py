"""Naive twin of the search for sets of categories: every set that is tried, and the gain from the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


Cut = tuple[frozenset[int], bool, int]
"""A set that goes right, whether missing values go left, and the code that was taken last from an end."""


def cuts(rules: split.Rules, limits: SetRules, level: Sequence[split.Rows], feature: int) -> Iterator[Cut]:
    """All sets that are tried for some nodes together, in the order in which ties are decided."""
    n_codes = level[0].n_bins[feature] - 1
    if n_codes < limits.max_onehot:
        for code in range(n_codes):
            yield from ((frozenset({code}), default_left, code) for default_left in (True, False))
        return

    def worth(code: int) -> tuple[float, float]:
        own = [sums_where(rows, rows.symbols[:, feature] == code) for rows in level]
        g, h = (sum(each) for each in zip(*own, strict=True))
        return level[0].worth((g, h))

    ordered = limits.penalised(rules, n_codes + 1, limits.smooth)
    heavy = [code for code in range(n_codes) if worth(code)[1] >= limits.smooth]
    order = sorted(heavy, key=lambda code: split.weight(ordered, *worth(code), (-split.INF, split.INF)))
    most = min(limits.max_threshold, len(order))
    for n_taken in range(1, most):  # the sort is stable
        yield frozenset(order[:n_taken]), True, order[n_taken - 1]
    for n_taken in range(1, most):
        taken = order[len(order) - n_taken :]
        yield frozenset(range(n_codes)) - set(taken), False, taken[0]


def gains(rules: split.Rules, limits: SetRules, rows: split.Rows, feature: int, given: Sequence[Cut]) -> list[float]:
    """What a node's children would gain by each set; -inf where the set is not allowed."""
    found, since, total = [], set[int](), rows.worth(rows.sums)[1]
    several, scored = rows.n_bins[feature] > limits.max_onehot, limits.penalised(rules, rows.n_bins[feature], limits.l2)
    for i, (right, default_left, last) in enumerate(given):
        since = {last} if i == 0 or default_left != given[i - 1][1] else since | {last}
        left = left_of(rows, feature, right, default_left)
        taken = rows.worth(sums_where(rows, np.isin(rows.symbols[:, feature], list(since))))[1]
        others = rows.worth(left)[1] if default_left else total - rows.worth(left)[1]
        gain = split.children(scored, rows, feature, 0, left, monotone=False)
        if several and min(taken, others) < limits.least_group:
            gain = -split.INF
        elif gain > -split.INF:
            since = set()
        found.append(gain)
    return found


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
        given = [*cuts(rules, limits, [rows], feature)]
        for (right, default_left, _), both in zip(given, gains(rules, limits, rows, feature, given), strict=True):
            if both - parent > max(found.gain, 0.0):
                left = left_of(rows, feature, right, default_left)
                found = SetSplit(both - parent, feature, BY_SET, default_left, left, right)
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
        given = [*cuts(rules, limits, level, feature)]
        of_nodes = [gains(rules, limits, rows, feature, given) for rows in level]
        for (right, default_left, _), *of_set in zip(given, *of_nodes, strict=True):
            gain = 0.0
            for rows, both in zip(level, of_set, strict=True):
                if both > -split.INF:
                    gain += both - split.loss_reduction(rules, *rows.worth(rows.sums), rows.bounds)
            if gain > max(found.gain, 0.0):
                found = SetSplit(gain, feature, BY_SET, default_left, (0, 0), right)
    return found


def right_bins_of(found: split.Split) -> frozenset[int]:
    """Bins that go right of a split by a set; none of others."""
    return found.right if isinstance(found, SetSplit) else frozenset()
