"""Gradients and metrics of rankings, query by query and pair by pair, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from daskboost.devices.losses import Noise, PairWeight, QueryLoss
from daskboost.dtypes import Float64
from daskboost.hashing import draws


class Positions:
    """Chances of clicks by position, and what the pairs of a round cost at each, divided by the other row's chance."""

    def __init__(self, n: int, norm: float) -> None:
        self.relevant, self.irrelevant = np.ones(n), np.ones(n)
        self.norm, self.n = norm, n
        self._costs = np.zeros((2, n))

    def divisor(self, high: int, low: int) -> float:
        """Return what a pair of rows at two positions is divided by, the first of which has the larger label."""
        if max(high, low) >= self.n or 0 in (self.relevant[high], self.irrelevant[low]):
            return 1.0
        return float(clipped(self.relevant[high]) * clipped(self.irrelevant[low]))

    def add(self, high: int, low: int, cost: float) -> None:
        """Add what a pair of two positions costs to both."""
        if max(high, low) < self.n:
            self._costs[0, high] += cost / clipped(self.irrelevant[low]) if self.irrelevant[low] else 0.0
            self._costs[1, low] += cost / clipped(self.relevant[high]) if self.relevant[high] else 0.0

    def learn(self) -> None:
        """Take the chances that the costs of a round tell."""
        for chances, costs in zip((self.relevant, self.irrelevant), self._costs, strict=True):
            if self.n and costs[0] > 0:
                chances[:] = (costs / costs[0]) ** (1 / (1 + self.norm))
        self._costs[:] = 0


def clipped(chance: float) -> float:
    """Return what a chance divides by."""
    return min(max(chance, 2.0**-13), 2.0**13)


def ranking_gradients(
    loss: QueryLoss, qid: Any, label: Any, margin: Any, weight: Any = None, key: int = 0, ids: Any = None,
    positions: Positions | None = None,
) -> tuple[Float64, Float64]:  # fmt: skip
    """Return g and h of rows of any order; rows of weight 0 are of no query. `key` : that of the round's draws. `ids` :
    global ids, by default the rows' places. `positions` : what pairs are divided by, which learn from them."""
    g, h = np.zeros(len(label)), np.zeros(len(label))
    counted = np.ones(len(label), bool) if weight is None else np.asarray(weight) > 0
    queries = [np.flatnonzero((qid == query) & counted) for query in np.unique(qid[counted])]
    own = [1.0 if weight is None else float(weight[rows[0]]) for rows in queries]
    positions = positions or Positions(0, 0.0)
    of_one = partial(query_gradients, positions) if loss.orders is None else order_gradients
    for rows, of_query in zip(queries, own, strict=True):
        found = np.array(of_one(loss, label[rows], margin[rows], rows if ids is None else ids[rows], key))
        g[rows], h[rows] = found * of_query * len(queries) / sum(own)
    positions.learn()
    return g, h


def query_gradients(
    positions: Positions, loss: QueryLoss, label: Any, margin: Any, rows: Any, key: int
) -> tuple[Float64, Float64]:
    """Return g and h of the rows of one query, in the order of their positions."""
    n = len(label)
    order = sorted(range(n), key=lambda i: (-margin[i], i))
    g, h, sizes = np.zeros(n), np.zeros(n), 0.0
    for a, b in pairs(loss, [float(label[i]) for i in order], [int(rows[i]) for i in order], key):
        if label[order[a]] == label[order[b]]:
            continue
        high, low = (a, b) if label[order[a]] > label[order[b]] else (b, a)
        difference = float(margin[order[high]]) - float(margin[order[low]])
        change = abs(metric_change(loss, [float(label[i]) for i in order], a, b))
        if loss.by_score and margin[order[0]] != margin[order[-1]]:
            change /= abs(difference) + 0.01
        chance = 1 / (1 + math.exp(-difference))
        positions.add(order[high], order[low], change * float(np.logaddexp(0, difference)))
        change /= positions.divisor(order[high], order[low])
        g[order[high]] -= (1 - chance) * change
        g[order[low]] += (1 - chance) * change
        h[[order[high], order[low]]] += loss.curvature * max(chance * (1 - chance), 1e-16) * change
        sizes += 2 * (1 - chance) * change
    if loss.normalized and loss.drawn:
        g, h = g / loss.drawn, h / loss.drawn
    elif loss.normalized and sizes > 0:
        g, h = g * math.log2(1 + sizes) / sizes, h * math.log2(1 + sizes) / sizes
    return g, h


def pairs(loss: QueryLoss, labels: Sequence[float], ids: Sequence[int], key: int) -> Iterator[tuple[int, int]]:
    """Yield the places of each pair; labels and ids are by place."""
    n = len(labels)
    if loss.top:
        yield from ((a, b) for a in range(min(loss.top, n)) for b in range(a + 1, n))
        return
    by_label = sorted(range(n), key=lambda place: (-labels[place], ids[place]))
    for place in by_label:
        others = [other for other in by_label if labels[other] != labels[place]]
        first = draws(np.uint64(key), np.array([ids[place]], np.uint64))[0]
        for draw in range(loss.drawn if others else 0):
            bits = int(draws(first, np.array([draw], np.uint64))[0])
            yield place, others[(bits >> 32) * len(others) >> 32]


def metric_change(loss: QueryLoss, labels: Sequence[float], a: int, b: int) -> float:
    """Return how much the loss's metric changes if the rows at two places swap them."""
    if loss.weight == PairWeight.ONE:
        return 1.0
    swapped = list(labels)
    swapped[a], swapped[b] = labels[b], labels[a]
    if loss.weight == PairWeight.MAP:
        return average_precision(swapped, len(labels)) - average_precision(labels, len(labels))
    n, gains = len(labels), loss.label_gain or loss.exponential
    ideal = dcg(sorted(labels, reverse=True), loss.top or n, gains)
    return (dcg(swapped, n, gains) - dcg(labels, n, gains)) / ideal if ideal > 0 else 0.0


Gains = bool | Sequence[float]
"""Whether the gain of a label is 2**label - 1, rather than the label; or the gain of each label."""


def dcg(labels: Sequence[float], top: int, exponential: Gains) -> float:
    """Return the discounted gains of the first `top` labels of a ranking."""
    if isinstance(exponential, bool):
        gains = [2.0**label - 1 if exponential else label for label in labels]
    else:
        gains = [exponential[int(label)] for label in labels]
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains[:top]))


def order_gradients(loss: QueryLoss, label: Any, margin: Any, rows: Any, key: int) -> tuple[Float64, Float64]:
    """Return g and h of the rows of one query, of pairs of neighbors in noisy orders."""
    orders, n = loss.orders, len(label)
    assert orders is not None
    g, h = np.zeros(n), np.zeros(n)
    keys = draws(np.uint64(key), np.asarray(rows, np.uint64))
    for number in range(loss.drawn):
        noisy = [np.float32(float(margin[i]) + orders.power * noise(orders.noise, int(own[0])))
                 for i, own in enumerate(draws(each, np.array([number], np.uint64)) for each in keys)]  # fmt: skip
        order = sorted(range(n), key=lambda i: (-noisy[i], i))
        labels = [float(label[i]) for i in order]
        for a in range(n):
            for b in range(a + 1, min(n, a + 1 + orders.neighbors)):
                if labels[a] == labels[b]:
                    continue
                swapped = list(labels)
                swapped[a], swapped[b] = labels[b], labels[a]
                change = abs(order_value(loss, swapped) - order_value(loss, labels))
                high, low = (order[a], order[b]) if labels[a] > labels[b] else (order[b], order[a])
                chance = 1 / (1 + math.exp(float(margin[low]) - float(margin[high])))
                g[high] -= (1 - chance) * change / loss.drawn
                g[low] += (1 - chance) * change / loss.drawn
                h[[high, low]] += chance * (1 - chance) * change / loss.drawn
    return g, h


def noise(kind: Noise, bits: int) -> float:
    """Return what is added to a score by 64 random bits."""
    u = ((bits >> 32) + 0.5) / 2**32
    return -math.log(-math.log(u)) if kind == Noise.GUMBEL else math.log(u / (1 - u))


def order_value(loss: QueryLoss, labels: Sequence[float]) -> float:
    """Return the metric of a loss of noisy orders, for labels by place."""
    orders, n = loss.orders, len(labels)
    assert orders is not None
    top = loss.top or n
    if orders.decay:  # neighbors k and k + 1 change it by 0.15 * decay**k times the difference of their labels
        shares = 0.15 * orders.decay ** np.arange(n)
        return float(np.asarray(labels) @ shares[::-1].cumsum()[::-1])
    if loss.weight == PairWeight.MAP:
        return average_precision(labels, top) if any(labels) else 0.0
    if loss.weight == PairWeight.MRR:
        return next((1 / (place + 1) for place, label in enumerate(labels[:top]) if label > 0), 0.0)
    if loss.weight == PairWeight.ERR:
        value, looks = 0.0, 1.0
        for place, label in enumerate(labels[:top]):
            value += looks * label / (place + 1)
            looks *= 1 - label
        return value
    gains = loss.label_gain or loss.exponential
    return dcg(labels, top, gains) / (dcg(sorted(labels, reverse=True), top, gains) if orders.by_ideal else 1.0)


def average_precision(labels: Sequence[float], top: int) -> float:
    """Return the mean, over the relevant rows, of the share of relevant rows down to each, of the first `top`."""
    hits = [place for place, label in enumerate(labels) if label > 0]
    found = [(number + 1) / (place + 1) for number, place in enumerate(hits) if place < top]
    return sum(found) / min(len(hits), top)


def reader_value(chances: Sequence[float], *, patience: float, by_place: bool) -> float:
    """Return what a user has of a ranking, who reads from the first place on until a row satisfies: 1, or 1 / place."""
    looks, found = 1.0, 0.0
    for place, chance in enumerate(chances):
        found += looks * chance / (place + 1 if by_place else 1)
        looks *= (1 - chance) * patience
    return found


def area(label: Any, score: Any) -> float:
    """Return the share of pairs of a relevant row and another in the order of their scores; NaN without pairs."""
    found = [
        1.0 if score[a] > score[b] else 0.5 if score[a] == score[b] else 0.0
        for a in np.flatnonzero(label > 0) for b in np.flatnonzero(label == 0)
    ]  # fmt: skip
    return sum(found) / len(found) if found else math.nan


def ranking_metric(name: str, top: int, minus: bool, exponential: Gains, queries: Sequence[tuple[Any, Any, float]]
                   ) -> float:  # fmt: skip
    """Return the weighted mean over queries, (label, score, weight) each, whose rows of equal scores stay in order."""
    values = []
    largest = max(float(label.max()) for label, _, _ in queries)
    for label, score, _ in queries:
        ranked = [float(label[i]) for i in sorted(range(len(label)), key=lambda i: (-score[i], i))]
        k = top or len(ranked)
        hits = [place for place, own in enumerate(ranked) if own > 0]
        if name == "query-auc":
            values.append(area(label, score))
        elif not hits:
            values.append(1.0 if name in ("ndcg", "map", "recall") and not minus else 0.0)
        elif name == "ndcg":
            values.append(dcg(ranked, k, exponential) / dcg(sorted(ranked, reverse=True), k, exponential))
        elif name == "map":
            values.append(average_precision(ranked, k))
        elif name == "pre":
            values.append(sum(place < k for place in hits) / min(k, len(ranked)))
        elif name == "recall":
            values.append(sum(place < k for place in hits) / len(hits))
        elif name == "err":
            chances = [(2**own - 1) / 2**largest for own in ranked[:k]]
            values.append(reader_value(chances, patience=1, by_place=True))
        elif name == "pfound":
            values.append(reader_value(ranked[:k], patience=0.85, by_place=False))
        else:
            values.append(1 / (hits[0] + 1) if hits[0] < k else 0.0)
    counted = [(value, weight) for value, (_, _, weight) in zip(values, queries, strict=True) if not math.isnan(value)]
    return sum(value * weight for value, weight in counted) / sum(weight for _, weight in counted)
