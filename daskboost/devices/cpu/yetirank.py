"""Gradients of YetiRank: pairs are neighbors in the orders of a query's noisy scores.

Gulin, Kuralenok and Pavlov, "Winning the transfer learning track of Yahoo!'s learning to rank challenge with YetiRank",
2011; what pairs count by a metric is of Lyzhin, Ustimenko, Gulin and Prokhorenkova, "Which tricks are important for
learning to rank?", 2023. Noise places rows, and a pair's loss is that of the scores without it. Draws are hashes of the
round, the row and the number of the order; sums are integers, as in `queries.py`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.arithmetic import logarithms
from daskboost.devices.cpu.gradients import row_bits
from daskboost.devices.cpu.losses import _exp
from daskboost.devices.cpu.queries import (
    PairRule,
    Queries,
    QueryLoops,
    Ranked,
    add_pull,
    change_of,
    find_aboves,
    has_pairs,
    largest_query,
    norm_of,
    order_of,
)
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import Noise, PairWeight, QueryLoss
from daskboost.dtypes import Float32, Int64, UInt64

FADE_BITS = 25
"""Bits of 1 in sums of ``-log(1 - label)``, each at most `MOST_FADE`, of which 2**31 rows have less than 2**62."""
MOST_FADE = 64.0
_MAP, _MRR, _ERR, _GUMBEL = int(PairWeight.MAP), int(PairWeight.MRR), int(PairWeight.ERR), int(Noise.GUMBEL)


class OrderRule(NamedTuple):
    """`NoisyOrders` as compiled code takes it."""

    pairs: PairRule
    neighbors: int
    noise: int
    power: float
    fades: Int64
    """-log(1 - label) of rows by query where pairs are weighted by expected reciprocal rank, else of shape (0,)."""


def fades_of(loss: QueryLoss, label: Float32) -> Int64:
    """Return `OrderRule.fades`; `label` : by query."""
    logs = np.empty(len(label) * (loss.weight == PairWeight.ERR))
    logarithms(1.0 - label[: len(logs)].astype(np.float64), logs)
    fades: Int64 = np.rint(np.ldexp(np.minimum(-logs, MOST_FADE), FADE_BITS)).astype(np.int64)
    return fades


@njit(nogil=True, error_model="numpy")
def _add_noise(rule: OrderRule, key: np.uint64, ids: UInt64, number: int, scores: Float32, noisy: Float32) -> None:
    """Write scores with the noise of the order of this number."""
    n = len(ids)
    drawn, logs = np.empty(n), np.empty(n)
    for i in range(n):
        bits = row_bits(row_bits(key, ids[i]), np.uint64(number))
        drawn[i] = (np.float64(bits >> np.uint64(32)) + 0.5) * 2.0**-32
        if rule.noise != _GUMBEL:
            drawn[i] /= 1.0 - drawn[i]
    logarithms(drawn, logs)
    if rule.noise == _GUMBEL:
        for i in range(n):
            drawn[i] = -logs[i]
        logarithms(drawn, logs)
        for i in range(n):
            logs[i] = -logs[i]
    for i in range(n):
        noisy[i] = np.float32(np.float64(scores[i]) + rule.power * logs[i])


@njit(nogil=True, error_model="numpy")
def _room_for(n: int) -> Ranked:
    """Return arrays for the rows of a query of so many."""
    of_pairs = np.empty((n, 2), np.int64)
    return Ranked(np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n), np.empty(n), of_pairs)


@njit(nogil=True, error_model="numpy")
def _place_rows(rows: Ranked, rule: PairRule, gain: Float32, score: Float32, order: Int64) -> None:
    """Fill a query's rows by their places."""
    n = len(order)
    for place in range(n):
        rows.above[place] = rule.steps[place]
    if rule.weight == _MAP:
        find_aboves(gain, order, rule.steps, rows.above)
    for place in range(n):
        rows.score[place], rows.gain[place] = score[order[place]], gain[order[place]]
        rows.below[place] = rows.above[place] + (rule.steps[place] if rule.weight == _MAP else 0.0)
        rows.sums[place, 0] = rows.sums[place, 1] = 0


@njit(nogil=True, error_model="numpy")
def _look_down(rows: Ranked, rule: PairRule, fades: Int64, order: Int64) -> None:
    """Write what depends on the rows above a place.

    Of a reciprocal rank, the step of the first relevant place, which a swap may take the place of. Of an expected one,
    the chance that no row above satisfies: exp of a sum of integers, which has no order.
    """
    n = len(order)
    if rule.weight == _MRR:
        first = second = n
        for place in range(n - 1, -1, -1):
            if rows.gain[place] > 0:
                first, second = place, first
        for place in range(n):
            rows.above[place], rows.below[place] = rule.steps[min(place, second)], rule.steps[min(place, first)]
    elif rule.weight == _ERR:
        total = np.int64(0)
        for place in range(n):
            rows.above[place] = np.float64(_exp(np.float32(-math.ldexp(np.float64(total), -FADE_BITS))))
            total += fades[order[place]]


@uncounted(error_model="numpy")
def _add_neighbors(rows: Ranked, rule: PairRule, n_neighbors: int, n: int, worth: np.float32) -> None:
    """Add the pairs of each place with those that follow it."""
    steps, gain = rule.steps, rows.gain
    for a in range(min(rule.top, n) if rule.top > 0 else n):
        between, looks = 0.0, 1.0  # expected reciprocal rank, and the chance to look on, of the places between both
        for b in range(a + 1, min(n, a + 1 + n_neighbors)):
            if gain[a] != gain[b]:
                if rule.weight == _ERR:
                    change = rows.above[a] * (steps[a] - between - looks * steps[b])
                else:
                    change = change_of(rows, a, b)
                weight = worth * np.float32(change) * abs(gain[a] - gain[b])
                add_pull(rows, a, b, weight)
            if rule.weight == _ERR:
                between += looks * np.float64(gain[b]) * steps[b]
                looks *= 1.0 - np.float64(gain[b])


@njit(nogil=True, error_model="numpy")
def _write_gradients(sums: Int64, places: Int64, scale: float, factor: float, g: Float32, h: Float32) -> None:
    """Write the gradients of rows at these places."""
    for i in range(len(places)):
        g[places[i]] = np.float32(np.float64(sums[i, 0]) / scale * factor)
        h[places[i]] = np.float32(np.float64(sums[i, 1]) / scale * factor)


@njit(cache=True, nogil=True, error_model="numpy")
def fill_orders(
    queries: Queries, orders: OrderRule, key: np.uint64, margin: Float32, g: Float32, h: Float32, first: int, last: int
) -> None:
    """Write the gradients of the rows of queries `[first, last)`: `fill_queries` for pairs of noisy orders."""
    rule, begins = orders.pairs, queries.begins
    most = largest_query(begins, first, last)
    rows, noisy, sums = _room_for(most), np.empty(most, np.float32), np.empty((most, 2), np.int64)
    for query in range(first, last):
        begin, end = begins[query], begins[query + 1]
        places, n = queries.order[begin:end], end - begin
        scores = margin[places]
        if not has_pairs(rule, query, places, scores, g, h):
            continue
        sums[:n] = 0
        for number in range(rule.drawn):
            _add_noise(orders, key, queries.ids[begin:end], number, scores, noisy)
            order = order_of(noisy[:n])
            _place_rows(rows, rule, rule.gain[begin:end], scores, order)
            _look_down(rows, rule, orders.fades[begin:end], order)
            _add_neighbors(rows, rule, orders.neighbors, n, rule.worth[query])
            for place in range(n):
                sums[order[place], 0] += rows.sums[place, 0]
                sums[order[place], 1] += rows.sums[place, 1]
        _write_gradients(sums, places, rule.scale[query], norm_of(rule, 0.0) * queries.factor[query], g, h)


class OrderLoops(QueryLoops):
    """`QueryLoops` for pairs of noisy orders."""

    def __init__(self, loss: QueryLoss, queries: Queries, threads: Threads) -> None:
        super().__init__(loss, queries, threads)
        orders, fades = loss.orders, fades_of(loss, queries.label)
        assert orders is not None
        rule = OrderRule(self._rule, orders.neighbors, int(orders.noise), orders.power, fades)
        self._fill = partial(fill_orders, queries, rule)
