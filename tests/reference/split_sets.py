"""Naive twin of the search for sets of categories: every set that is tried, and the gain from the rows themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from reference import split, split_vectors
from reference.split_vectors import Outputs

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
STEPS = 4
"""Steps of the power iteration that finds the direction in which codes differ most."""


def total(values: Iterable[float]) -> float:
    """The sum of floats, one added after the other (Python's own is more exact)."""
    found = 0.0
    for value in values:
        found += value
    return found


def projections(leaves: Sequence[Sequence[float]], weights: Sequence[float], hessians: Sequence[float]) -> list[float]:
    """By what numbers codes are ordered, given their leaf values in each output, their weights, and the hessians of
    outputs: their values, or of vectors the projections on the direction in which they differ most."""
    codes, outputs = range(len(leaves)), range(len(hessians))

    def mean(values: Sequence[float]) -> float:
        return total(w * v for w, v in zip(weights, values, strict=True)) / (total(weights) or 1.0)

    def spread(k: int) -> float:
        values = [own[k] for own in leaves]
        middle = mean(values)
        return hessians[k] * total(w * ((v - middle) * (v - middle)) for w, v in zip(weights, values, strict=True))

    def projected(direction: Sequence[float]) -> list[float]:
        return [total(d * v for d, v in zip(direction, own, strict=True)) for own in leaves]

    spreads = [spread(k) for k in outputs]
    direction = [float(k == spreads.index(max(spreads))) for k in outputs]
    for _ in range(STEPS if len(outputs) > 1 and max(spreads) > 0 else 0):
        found = projected(direction)
        middle = mean(found)
        direction = [
            hessians[k] * total(weights[code] * (found[code] - middle) * leaves[code][k] for code in codes)
            for k in outputs
        ]
        most = max(map(abs, direction)) or 1.0
        direction = [d / most for d in direction]
    return projected(direction)


def cuts(rules: split.Rules, limits: SetRules, level: Sequence[Outputs], feature: int) -> Iterator[Cut]:
    """All sets that are tried for some nodes together, in the order in which ties are decided."""
    n_codes = level[0][0].n_bins[feature] - 1
    if n_codes < limits.max_onehot:
        for code in range(n_codes):
            yield from ((frozenset({code}), default_left, code) for default_left in (True, False))
        return

    def worth(code: int) -> list[tuple[float, float]]:
        found = []
        for of_nodes in zip(*level, strict=True):
            own = [sums_where(rows, rows.symbols[:, feature] == code) for rows in of_nodes]
            g, h = (sum(each) for each in zip(*own, strict=True))
            found.append(of_nodes[0].worth((g, h)))
        return found

    ordered, worths = limits.penalised(rules, n_codes + 1, limits.smooth), [worth(code) for code in range(n_codes)]
    heavy = [code for code in range(n_codes) if max(h for _, h in worths[code]) >= limits.smooth]
    leaves = [[split.weight(ordered, g, h, (-split.INF, split.INF)) for g, h in own] for own in worths]
    weights = [total(h for _, h in own) if code in heavy else 0.0 for code, own in enumerate(worths)]
    places = projections(leaves, weights, [total(own[k][1] for own in worths) for k in range(len(level[0]))])
    order = sorted(heavy, key=lambda code: places[code])
    most = min(limits.max_threshold, len(order))
    for n_taken in range(1, most):  # the sort is stable
        yield frozenset(order[:n_taken]), True, order[n_taken - 1]
    for n_taken in range(1, most):
        taken = order[len(order) - n_taken :]
        yield frozenset(range(n_codes)) - set(taken), False, taken[0]


def gains(rules: split.Rules, limits: SetRules, outputs: Outputs, feature: int, given: Sequence[Cut]) -> list[float]:
    """What a node's children would gain by each set; -inf where the set is not allowed."""
    found, since, n_bins = [], set[int](), outputs[0].n_bins[feature]
    several, scored = n_bins > limits.max_onehot, limits.penalised(rules, n_bins, limits.l2)
    for i, (right, default_left, last) in enumerate(given):
        since = {last} if i == 0 or default_left != given[i - 1][1] else since | {last}
        lefts, taken, others = [], [], []
        for rows in outputs:
            left = left_of(rows, feature, right, default_left)
            lefts.append(left)
            taken.append(rows.worth(sums_where(rows, np.isin(rows.symbols[:, feature], list(since))))[1])
            others.append(rows.worth((0, left[1] if default_left else rows.sums[1] - left[1]))[1])
        gain = children(scored, outputs, feature, lefts)
        if several and min(max(taken), max(others)) < limits.least_group:
            gain = -split.INF
        elif gain > -split.INF:
            since = set()
        found.append(gain)
    return found


def children(rules: split.Rules, outputs: Outputs, feature: int, lefts: Sequence[tuple[int, int]]) -> float:
    """Loss reduction of both children in all outputs; -inf where the split is not allowed."""
    if len(outputs) == 1:
        return split.children(rules, outputs[0], feature, 0, lefts[0], monotone=False)
    return split_vectors.children(rules, outputs, lefts)


def left_of(rows: split.Rows, feature: int, right: frozenset[int], default_left: bool) -> tuple[int, int]:
    """Sums of the rows that a set leaves on the left."""
    symbols = rows.symbols[:, feature]
    present = ~np.isin(symbols, list(right))
    return sums_where(rows, np.where(symbols == rows.n_bins[feature], default_left, present))


def lefts_of(outputs: Outputs, chosen: split.Split) -> list[tuple[int, int]]:
    """Sums of the rows that a split, by a set or by a threshold, sends left, in each output."""
    if isinstance(chosen, SetSplit):
        return [left_of(rows, chosen.feature, chosen.right, chosen.default_left) for rows in outputs]
    return split_vectors.lefts_of(outputs, chosen.feature, chosen.bin, chosen.default_left)


def parent_of(rules: split.Rules, outputs: Outputs, plain: bool) -> float:
    """Loss reduction of a node in all outputs; by the closed form if `plain`."""
    if len(outputs) > 1:
        return split_vectors.parent(rules, outputs, plain)
    (rows,) = outputs
    g, h = rows.worth(rows.sums)
    closed = plain and rules.heavy(h)
    return split.closed_form(rules, g, h) if closed else split.loss_reduction(rules, g, h, rows.bounds)


def by_threshold(rules: split.Rules, outputs: Outputs, feature: int) -> split.Split:
    """The best split of one node by a threshold."""
    if len(outputs) > 1:
        return split_vectors.best(rules, outputs, [feature])[0]
    (rows,) = outputs
    return split.best(rules, rows, [feature])


def best(rules: split.Rules, limits: SetRules, outputs: Outputs, features: Sequence[int]) -> split.Split:
    """The best split of one node, by a set or by a threshold; gain -inf if none gains anything. `left` is that of the
    first output."""
    parent = parent_of(rules, outputs, rules.plain)
    found = split.Split(-split.INF, -1, -1, False, (0, 0))
    for feature in features:
        if feature not in limits.codes:
            other = by_threshold(rules, outputs, feature)
            found = other if other.gain > found.gain else found
            continue
        given = [*cuts(rules, limits, [outputs], feature)]
        for (right, default_left, _), both in zip(given, gains(rules, limits, outputs, feature, given), strict=True):
            if both - parent > max(found.gain, 0.0):
                left = left_of(outputs[0], feature, right, default_left)
                found = SetSplit(both - parent, feature, BY_SET, default_left, left, right)
    return found


def best_of_level(rules: split.Rules, limits: SetRules, level: Sequence[Outputs], features: Sequence[int]
                  ) -> split.Split:  # fmt: skip
    """The one split for all nodes of a level, by a set or by a threshold; `left` is of no use in it."""
    found, one = split.Split(-split.INF, -1, -1, False, (0, 0)), len(level[0]) == 1
    for feature in features:
        if feature not in limits.codes:
            other = split.best_of_level(rules, [rows for (rows,) in level], [feature]) if one else (
                split_vectors.best_of_level(rules, level, [feature])
            )  # fmt: skip
            found = other if other.gain > found.gain else found
            continue
        given = [*cuts(rules, limits, level, feature)]
        of_nodes = [gains(rules, limits, outputs, feature, given) for outputs in level]
        for (right, default_left, _), *of_set in zip(given, *of_nodes, strict=True):
            gain = 0.0
            for outputs, both in zip(level, of_set, strict=True):
                if both > -split.INF:
                    gain += both - parent_of(rules, outputs, rules.plain and not one)
            if gain > max(found.gain, 0.0):
                found = SetSplit(gain, feature, BY_SET, default_left, (0, 0), right)
    return found


def right_bins_of(found: split.Split) -> frozenset[int]:
    """Bins that go right of a split by a set; none of others."""
    return found.right if isinstance(found, SetSplit) else frozenset()
