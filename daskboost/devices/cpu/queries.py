"""Gradients of ranking losses: of a query, every pair of rows with different labels pulls both rows apart.

LambdaMART (Burges, "From RankNet to LambdaRank to LambdaMART: An Overview", 2010), with the pairs, weights and
normalisations of XGBoost 3.2. What pairs add to a row is summed in integers, on a scale that follows from the query's
labels, so that the order of pairs makes no difference: a GPU may sum them in any order, and `top` in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.arithmetic import logarithms
from daskboost.devices.cpu.gradients import row_bits
from daskboost.devices.cpu.losses import _exp
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.dtypes import Float32, Float64, Int64, UInt64

LN_2 = math.log(2.0)
LEAST_HESSIAN = 1e-16
"""Least second derivative of a pair's loss, before its weight (XGBoost's)."""
SCORE_UNIT = 0.01
"""What is added to a difference of scores before it divides a pair's weight (LightGBM's, then XGBoost's)."""
SUM_BITS = 61
"""Bits of the sum of all pairs of a query, at most."""
LEAST_TASK = 2**14
"""Pairs that are worth a task of a thread."""
TASKS_A_THREAD = 4
_ONE, _NDCG, _MAP = int(PairWeight.ONE), int(PairWeight.NDCG), int(PairWeight.MAP)


class Queries(NamedTuple):
    """Rows by their queries."""

    order: Int64
    """Places of rows among all, those of a query side by side, by increasing global id."""
    begins: Int64
    """Where each query begins in `order`, and where the last one ends; shape (queries + 1,)."""
    label: Float32
    """Labels in that order."""
    ids: UInt64
    """Global ids in that order; shape (0,) for a loss that draws no pairs."""
    factor: Float64
    """What the gradients of each query are multiplied by, shape (queries,)."""


class PairRule(NamedTuple):
    """`QueryLoss` as compiled code takes it, and tables of the queries."""

    weight: int
    top: int
    drawn: int
    exponential: bool
    normalized: bool
    by_score: bool
    discounts: Float64
    """What a gain counts at each place of a ranking; of as many places as the largest query has rows."""
    inverse: Float64
    """1 / ideal DCG of each query, 0 where that is 0; shape (0,) unless pairs are weighted by NDCG."""


class Ranked(NamedTuple):
    """A query's rows from the highest score to the lowest, and what pairs have added to each."""

    score: Float32
    label: Float32
    gain: Float64
    relevant: Float64
    """Sum of the labels down to each place."""
    precision: Float64
    """Sum of label / place down to each place."""
    sums: Int64
    """Sums of g and h, shape (rows, 2)."""


@njit(inline="always", error_model="numpy")
def gain_of(label: float, exponential: bool) -> float:
    """Return a label's gain."""
    return math.ldexp(1.0, int(label)) - 1.0 if exponential else float(label)


def discounts_of(n: int) -> Float64:
    """Return 1 / log2(place + 2) of places 0 to `n`."""
    logs = np.empty(n)
    logarithms(np.arange(2.0, n + 2.0), logs)
    discounts: Float64 = LN_2 / logs
    return discounts


@njit(cache=True, nogil=True, error_model="numpy")
def ideal_gains(label: Float32, begins: Int64, discounts: Float64, top: int, exponential: bool, out: Float64) -> None:
    """Write the DCG of each query's first `top` rows (0: of all) in the order of its labels, the highest first."""
    for query in range(len(begins) - 1):
        ordered = np.sort(label[begins[query] : begins[query + 1]])
        n = len(ordered)
        total = 0.0
        for place in range(n if top == 0 else min(n, top)):
            total += discounts[place] * gain_of(ordered[n - 1 - place], exponential)
        out[query] = total


@njit(inline="always", error_model="numpy")
def _change_of_precision(rows: Ranked, first: int, second: int, n: int) -> float:
    """Return how much average precision changes if the rows at two places, the first of which is higher, swap them."""
    at_first, at_second = first + 1.0, second + 1.0
    above, below = rows.relevant[first], rows.relevant[second]
    between = rows.precision[second - 1] - rows.precision[first]
    if rows.label[first] < rows.label[second]:
        change = below / at_second - (above + 1.0) / at_first - between
    else:
        change = above / at_first - below / at_second + between
    return float(change / rows.relevant[n - 1])


@njit(inline="always", error_model="numpy")
def _add_pair(rows: Ranked, rule: PairRule, a: int, b: int, n: int, inverse: float, scale: float) -> np.int64:
    """Add what a pair of places adds to both rows' sums; the size of its gradient, as an integer."""
    if rows.label[a] == rows.label[b]:
        return np.int64(0)
    high, low = (a, b) if rows.label[a] > rows.label[b] else (b, a)
    if rule.weight == _NDCG:
        change = (rows.gain[high] - rows.gain[low]) * (rule.discounts[high] - rule.discounts[low]) * inverse
    elif rule.weight == _MAP:
        change = _change_of_precision(rows, min(a, b), max(a, b), n)
    else:
        change = 1.0
    weight = abs(change)
    difference = np.float32(rows.score[high] - rows.score[low])
    if rule.by_score and rows.score[0] != rows.score[n - 1]:
        weight /= np.float64(abs(difference)) + SCORE_UNIT
    odds = np.float64(_exp(np.float32(-abs(difference))))
    lost = odds / (1.0 + odds) if difference >= 0 else 1.0 / (1.0 + odds)
    slope = np.int64(np.rint(lost * weight * scale))
    curve = np.int64(np.rint(2.0 * max(odds / ((1.0 + odds) * (1.0 + odds)), LEAST_HESSIAN) * weight * scale))
    rows.sums[high, 0] -= slope
    rows.sums[low, 0] += slope
    rows.sums[high, 1] += curve
    rows.sums[low, 1] += curve
    return slope


@uncounted(error_model="numpy")  # to count references to the arrays takes twice as long as pairs
def _add_top(rows: Ranked, rule: PairRule, n: int, inverse: float, scale: float) -> np.int64:
    """Add the pairs of the first rows with all that come after each."""
    total = np.int64(0)
    for a in range(min(rule.top, n)):
        for b in range(a + 1, n):
            total += _add_pair(rows, rule, a, b, n, inverse, scale)
    return total


class Drawn(NamedTuple):
    """What draws the pairs of a query."""

    key: np.uint64
    ids: UInt64
    """Global ids of the rows by their places."""
    by_label: Int64
    """Places in the order of labels, the highest first, of equal ones the higher place."""


@uncounted(error_model="numpy")
def _add_drawn(rows: Ranked, rule: PairRule, drawn: Drawn, n: int, inverse: float, scale: float) -> np.int64:
    """Add pairs of each row with rows of other labels, drawn by hashes."""
    total, by_label = np.int64(0), drawn.by_label
    begin = 0
    while begin < n:
        end = begin + 1
        while end < n and rows.label[by_label[end]] == rows.label[by_label[begin]]:
            end += 1
        others = np.uint64(n - (end - begin))
        if others > 0:
            for place in range(begin, end):
                row = by_label[place]
                for draw in range(rule.drawn):
                    bits = row_bits(row_bits(drawn.key, drawn.ids[row]), np.uint64(draw))
                    other = np.int64(((bits >> np.uint64(32)) * others) >> np.uint64(32))
                    other = other if other < begin else other + (end - begin)
                    total += _add_pair(rows, rule, row, by_label[other], n, inverse, scale)
        begin = end
    return total


@njit(nogil=True, error_model="numpy")
def _scale_of(rows: Ranked, rule: PairRule, n: int, inverse: float) -> float:
    """Return the power of two that pairs are multiplied by, so that the sum of all fits an integer; 0 without pairs.

    It follows from bounds of what a pair and a query can add, never from sums.
    """
    least, most = rows.gain[0], rows.gain[0]
    for place in range(1, n):
        least, most = min(least, rows.gain[place]), max(most, rows.gain[place])
    if least == most:
        return 0.0
    bound = 1.0
    if rule.weight == _NDCG:
        bound = (most - least) * (rule.discounts[0] - rule.discounts[n - 1]) * inverse
    elif rule.weight == _MAP:
        bound = 2.0
    if rule.by_score:
        bound /= SCORE_UNIT
    pairs = float(n) * (min(rule.top, n) if rule.top > 0 else rule.drawn)
    return math.ldexp(1.0, SUM_BITS - math.frexp(2.0 * pairs * bound)[1]) if bound > 0 else 0.0


@njit(nogil=True, error_model="numpy")
def _norm_of(rule: PairRule, total: float) -> float:
    """Return what a query's gradients are multiplied by; `total` : twice the sum of the sizes of its pairs'
    gradients."""
    if not rule.normalized:
        return 1.0
    if rule.top == 0:
        return 1.0 / rule.drawn
    if total <= 0.0:
        return 1.0
    one, logs = np.empty(1), np.empty(1)
    one[0] = 1.0 + total
    logarithms(one, logs)
    return float(logs[0] / LN_2 / total)


@njit(nogil=True, error_model="numpy")
def _rank(rows: Ranked, rule: PairRule, label: Float32, score: Float32) -> Int64:
    """Fill a query's rows by their places; which row is at each."""
    n = len(label)
    order = np.argsort(-score, kind="mergesort")  # of equal scores the row of the least id comes first
    relevant = precision = 0.0
    for place in range(n):
        row = order[place]
        rows.score[place], rows.label[place] = score[row], label[row]
        rows.gain[place] = gain_of(label[row], rule.exponential and rule.weight == _NDCG)
        relevant += np.float64(label[row])
        precision += np.float64(label[row]) / (place + 1.0)
        rows.relevant[place], rows.precision[place] = relevant, precision
        rows.sums[place, 0] = rows.sums[place, 1] = 0
    return order


@njit(cache=True, nogil=True, error_model="numpy")
def fill_queries(
    queries: Queries, rule: PairRule, key: np.uint64, margin: Float32, g: Float32, h: Float32, first: int, last: int
) -> None:
    """Write the gradients of the rows of queries `[first, last)` to their places; NaN where a query's scores are not
    finite. `margin`, `g` and `h` : of all rows, shape (rows,)."""
    begins, most = queries.begins, 0
    for query in range(first, last):
        most = max(most, begins[query + 1] - begins[query])
    rows = Ranked(
        np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most), np.empty(most), np.empty(most),
        np.empty((most, 2), np.int64),
    )  # fmt: skip
    scores, ids = np.empty(most, np.float32), np.empty(most, np.uint64)
    for query in range(first, last):
        begin, n = begins[query], begins[query + 1] - begins[query]
        places = queries.order[begin : begin + n]
        is_finite = True
        for i in range(n):
            scores[i] = margin[places[i]]
            is_finite = is_finite and np.isfinite(scores[i])
        order = _rank(rows, rule, queries.label[begin : begin + n], scores[:n])
        inverse = rule.inverse[query] if rule.weight == _NDCG else 1.0
        scale = _scale_of(rows, rule, n, inverse)
        if scale == 0.0 or not is_finite:
            for i in range(n):
                g[places[i]] = h[places[i]] = np.float32(0.0 if is_finite else np.nan)
            continue
        if rule.top > 0:
            total = _add_top(rows, rule, n, inverse, scale)
        else:
            for place in range(n):
                ids[place] = queries.ids[begin + order[place]]
            drawn = Drawn(key, ids, np.argsort(-rows.label[:n], kind="mergesort"))
            total = _add_drawn(rows, rule, drawn, n, inverse, scale)
        factor = _norm_of(rule, 2.0 * (np.float64(total) / scale)) * queries.factor[query]
        for place in range(n):
            row = places[order[place]]
            g[row] = np.float32(np.float64(rows.sums[place, 0]) / scale * factor)
            h[row] = np.float32(np.float64(rows.sums[place, 1]) / scale * factor)


def query_tasks(begins: Int64, pairs_a_row: int, n_threads: int) -> list[tuple[int, int]]:
    """Return ranges of queries that take about equally long, several for each thread."""
    sizes = np.diff(begins)
    ends = np.cumsum(sizes * np.minimum(sizes, pairs_a_row))
    total = int(ends[-1]) if len(ends) else 0
    n_tasks = 1 if n_threads == 1 else max(1, min(TASKS_A_THREAD * n_threads, total // LEAST_TASK))
    cuts = np.searchsorted(ends, np.arange(1, n_tasks) * (total / n_tasks), side="left") + 1
    edges = np.unique(np.clip([0, *cuts.tolist(), len(sizes)], 0, len(sizes))).tolist()
    return list(pairwise(edges))


class QueryLoops:
    """Fills the gradients of a ranking loss, queries side by side on threads."""

    def __init__(self, loss: QueryLoss, queries: Queries, threads: Threads) -> None:
        sizes = np.diff(queries.begins)
        discounts, inverse = discounts_of(int(sizes.max(initial=0))), np.empty(0)
        if loss.weight == PairWeight.NDCG:
            ideal = np.empty(len(sizes))
            ideal_gains(queries.label, queries.begins, discounts, loss.top, loss.exponential, ideal)
            inverse = np.divide(1.0, ideal, out=np.zeros(len(sizes)), where=ideal != 0)
        self._queries, self._threads = queries, threads
        self._rule = PairRule(
            int(loss.weight), loss.top, loss.drawn, loss.exponential, loss.normalized, loss.by_score, discounts,
            inverse,
        )  # fmt: skip
        self._tasks: Sequence[tuple[int, int]] = query_tasks(queries.begins, loss.top or loss.drawn, threads.count)

    def fill(self, key: np.uint64, margin: Float32, g: Float32, h: Float32) -> None:
        """Fill `g` and `h` of all rows of queries, float32 of shape (rows,); `key` : that of the round's draws."""
        self._threads.run([
            partial(fill_queries, self._queries, self._rule, key, margin, g, h, first, last)
            for first, last in self._tasks
        ])  # fmt: skip
