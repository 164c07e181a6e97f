"""Gradients of ranking losses: of a query, every pair of rows with different labels pulls both rows apart.

LambdaMART (Burges, "From RankNet to LambdaRank to LambdaMART: An Overview", 2010), with the pairs, weights and
normalisations of XGBoost 3.2. What a pair adds is computed in float32, as `kernels/ranked_pairs.cuh` does operation by
operation, and summed in integers, so that the order of pairs makes no difference: a GPU may sum them in any order. A
pair adds at most `2**PAIR_BITS`: the scale, a power of two, follows from a bound of all pairs of the query that its
labels and its sorted scores give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.arithmetic import logarithm_of_one_plus, logarithms, short_logarithm_of_one_plus
from daskboost.devices.cpu.gradients import row_bits
from daskboost.devices.cpu.losses import _exp
from daskboost.devices.cpu.positions import IRRELEVANT, RELEVANT, Positions, Ratios, add_cost, no_ratios
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.dtypes import Array, Float32, Float64, Int64, UInt64

LN_2, PER_LN_2 = math.log(2.0), np.float32(1.4426950408889634)
LEAST_SIZE, MOST_SIZE = 2.0**-100, 2.0**100
"""Sums of sizes beyond these count as they do: the least has the limit of the factor, and none reaches the other."""
LEAST_HESSIAN = np.float32(1e-16)
"""Least second derivative of a pair's loss, before its weight (XGBoost's)."""
SCORE_UNIT = np.float32(0.01)
"""What is added to a difference of scores before it divides a pair's weight (LightGBM's, then XGBoost's)."""
MOST_DIFFERENCE = np.float32(1e30)
"""Larger differences of scores, by which pairs add nothing any more, count as this one."""
MOST_RANGE = np.float32(32)
"""Queries whose scores differ by more are wide: exp is computed for each of their pairs rather than for each row, as
the lowest scores would lose too many bits when the highest one is taken away."""
MOST_COST = np.float32(64)
"""Larger differences of scores count as this one in costs of positions that they do not divide, so that sums have
room."""
MOST_LABELS = 32
"""Labels that have an exponential gain, from 0 on: XGBoost's. Larger gains would hide all others."""
SUM_BITS = 61
"""Bits of the sum of all pairs of a query, at most, where pairs are given or those of noisy orders."""
PAIR_BITS = 22
"""Bits of what a pair adds, at most: 1.5 * 2**23 added in float32 rounds numbers of as many to whole ones."""
POSITION_PAIR_BITS = 48
"""The same where positions multiply what pairs count, some of them 2**26 times as much as others."""
SIZE_BITS = 60
"""Bits of the sum of the sizes of all pairs of a query, at most."""
CURVE_UNITS = 4
"""Units of sums of second derivatives in one of sums of first ones, whose bound is at least twice as large."""
BOUND_MARGIN = np.float32(1.001)
"""What bounds of pairs are multiplied by, for the rounding of their factors."""
LEAST_EXPONENT = -64
"""Exponent of the least bound of pairs: smaller ones count as this one, so that no number overflows."""
SHARE_SLACK = np.float32(2.0**-18)
"""By how much rounding may change differences of sums of 1 / place, at most, which are below 2**5."""
SHARE_BITS = 55
"""Bits of 1 in sums of 1 / place, of which 2**31 places have at most 22."""
LEAST_TASK = 2**14
"""Pairs that are worth a task of a thread."""
TASKS_A_THREAD = 4
PLACE_WEIGHT = 0.15
"""What neighbors at the first two places of a noisy order count where `NoisyOrders.decay` tells it (CatBoost's)."""
_ONE, _NDCG, _MAP, _MRR, _ERR = (int(weight) for weight in PairWeight)
_1, _HALF, _QUARTER, _CURVE_UNITS = np.float32(1), np.float32(0.5), np.float32(0.25), np.float32(CURVE_UNITS)


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
    normalized: bool
    by_score: bool
    steps: Float64
    """What is known of each place of a ranking, of as many as the largest query has rows: what a gain counts there, or
    1 / (place + 1) where pairs are weighted by average precision."""
    gain: Float32
    """Gains of rows by query, as parts of a power of two; labels where pairs are not weighted by NDCG."""
    scale: Float64
    """By how much gains of a query differ at most, 1 where pairs do not count by that; 0 where no pair adds anything.
    Where pairs are those of noisy orders, it is the power of two that what they add is multiplied by."""
    worth: Float32
    """What pairs of each query count: all the same, or times the difference of both gains and that of both places'
    discounts, or times the change of a sum of precisions. Of noisy orders times the query's scale."""
    curvature: float
    """What second derivatives are multiplied by."""
    ratios: Ratios
    """What pairs are multiplied by for their positions."""


class Placed(NamedTuple):
    """A query's rows from the highest score to the lowest, and what pairs have added to each."""

    score: Float32
    gain: Float32
    odds: Float32
    """exp of scores less the highest one."""
    inverse: Float32
    """exp of the highest score less each one."""
    as_first: Float32
    """What a row's place counts in pairs with rows of lower places, where pairs differ by their places."""
    as_second: Float32
    """What it counts in pairs with rows of higher places. A pair counts the difference of both."""
    sums: Int64
    """Sums of g and h, shape (rows, 2)."""
    ratio: Float32
    """What pairs are multiplied by for the position of each row where it has the larger gain, and where it has the
    smaller one; shape (2, rows)."""


class Ranked(NamedTuple):
    """A query's rows in a noisy order, and what pairs have added to each."""

    score: Float32
    gain: Float32
    above: Float64
    """What a row's place counts in a pair whose higher row has more gain: its discount; or relevant rows down to it
    over its place, less the sum of 1 / place of relevant ones down to it."""
    below: Float64
    """The same where the higher row has less gain."""
    sums: Int64
    """Sums of g and h, shape (rows, 2)."""


@njit(inline="always", error_model="numpy")
def gain_of(label: float, gains: Float64) -> float:
    """Return a label's gain; `gains` : see `gain_table`."""
    return float(gains[int(label)]) if len(gains) > 0 else float(label)


def gain_table(exponential: bool, label_gain: Sequence[float] = ()) -> Float64:
    """Return the gain of each label: those given, or 2**label - 1; shape (0,) where a label is its gain."""
    own = label_gain if label_gain or not exponential else [2.0**label - 1.0 for label in range(MOST_LABELS)]
    return np.array(own, np.float64)


def discounts_of(n: int) -> Float64:
    """Return 1 / log2(place + 2) of places 0 to `n`."""
    logs = np.empty(n)
    logarithms(np.arange(2.0, n + 2.0), logs)
    discounts: Float64 = LN_2 / logs
    return discounts


@njit(cache=True, nogil=True, error_model="numpy")
def ideal_gains(
    label: Float32, begins: Int64, discounts: Float64, top: int, gains: Float64, out: Float64, first: int, last: int
) -> None:
    """Write the DCG of the first `top` rows (0: of all) of queries `[first, last)` in the order of labels, the highest
    first."""
    for query in range(first, last):
        ordered = np.sort(label[begins[query] : begins[query + 1]])
        n = len(ordered)
        total = 0.0
        for place in range(n if top == 0 else min(n, top)):
            total += discounts[place] * gain_of(ordered[n - 1 - place], gains)
        out[query] = total


@njit(inline="always", error_model="numpy")
def change_of(rows: Ranked, first: int, second: int) -> float:
    """Return what a swap of two places changes, but for the gains."""
    places = rows.above if rows.gain[first] > rows.gain[second] else rows.below
    return float(abs(places[first] - places[second]))


class PairHow(NamedTuple):
    """How the pairs of a query are computed."""

    scale: np.float32
    """Power of two that what pairs add is multiplied by."""
    by_score: bool
    """Whether what a pair counts is divided by the difference of its scores."""
    is_wide: bool
    """Whether scores differ by more than `MOST_RANGE`."""


@njit(inline="always", error_model="numpy")
def odds_of(a: np.float32, b: np.float32) -> tuple[np.float32, np.float32]:
    """Return exp of each of two scores less the higher one."""
    lower = _exp(-min(abs(a - b), MOST_DIFFERENCE))
    return (lower if a < b else _1), (_1 if a < b else lower)


@njit(inline="always", error_model="numpy")
def pull_of(of_first: np.float32, of_last: np.float32, weight: np.float32) -> tuple[np.int64, np.int64]:
    """Return the derivatives of ``weight * log(1 + exp(t - s))`` as integers, the first one without its sign.

    `of_first`, `of_last` : exp of s and of t, each less the same number.
    """
    both = of_first + of_last
    share = _1 / both
    weight *= share
    slope = np.int64(np.rint(weight * of_last))
    return slope, np.int64(np.rint(weight * both * max(of_first * of_last * (share * share), LEAST_HESSIAN)))


@njit(inline="always", error_model="numpy")
def add_pull(rows: Ranked, a: int, b: int, weight: np.float32) -> None:
    """Add the derivatives of ``weight * log(1 + exp(t - s))`` to the sums of two places; s is the score of the row of
    more gain."""
    of_a, of_b = odds_of(rows.score[a], rows.score[b])
    is_right = rows.gain[a] > rows.gain[b]
    of_first, of_last = (of_a, of_b) if is_right else (of_b, of_a)
    slope, curve = pull_of(of_first, of_last, weight)
    high, low = (a, b) if is_right else (b, a)
    rows.sums[high, 0] -= slope
    rows.sums[low, 0] += slope
    rows.sums[high, 1] += curve
    rows.sums[low, 1] += curve


@njit(inline="always", error_model="numpy")
def _change_of(rows: Placed, rule: PairRule, first: int, second: int, scale: np.float32) -> np.float32:
    """Return what a pair of places with different gains counts times a scale, whatever its scores."""
    if rule.weight == _ONE:
        return scale
    change = rows.as_first[first] - rows.as_second[second]
    return np.float32(abs(rows.gain[first] * scale - rows.gain[second] * scale) * change)


@njit(inline="always", error_model="numpy")
def _unit_of(difference: np.float32, by_score: bool) -> np.float32:
    """Return what a pair is divided by for the difference of its scores."""
    return difference + SCORE_UNIT if by_score else _1


@njit(inline="always", error_model="numpy")
def _difference_of(rows: Placed, first: int, second: int, is_wide: bool) -> np.float32:
    """Return by how much the score of a higher place exceeds that of a lower one."""
    difference = rows.score[first] - rows.score[second]
    return min(difference, MOST_DIFFERENCE) if is_wide else difference


@njit(inline="always", error_model="numpy")
def _add_pair(rows: Placed, rule: PairRule, a: int, b: int, how: PairHow, by_position: bool) -> np.int64:
    """Add what a pair of places adds to both rows' sums; the size of its gradient, as an integer.

    With `odds` of the lower place's row against the other one, ``1 / (1 + odds)`` is the chance of the order of scores,
    and its gradient is that times `odds` where this is the order of gains too.
    """
    first, second = min(a, b), max(a, b)
    if rows.gain[first] == rows.gain[second]:
        return np.int64(0)
    is_right = rows.gain[first] > rows.gain[second]
    difference = _difference_of(rows, first, second, how.is_wide)
    odds = _exp(-difference) if how.is_wide else rows.odds[second] * rows.inverse[first]
    unit = _unit_of(difference, how.by_score)
    scaled = odds * unit
    share = _1 / (unit + scaled)
    weight = _change_of(rows, rule, first, second, how.scale)
    if by_position:
        high, low = (first, second) if is_right else (second, first)
        ratio = rows.ratio[RELEVANT, high] * rows.ratio[IRRELEVANT, low]
        weight *= ratio if ratio > 0 else _1
    weight *= share
    pull, bend = (odds if is_right else -_1), scaled * share
    if by_position:
        slope, curve = np.int64(np.rint(weight * pull)), np.int64(np.rint(weight * bend * _CURVE_UNITS))
    else:  # products of two numbers of float32 are exact
        slope = np.int64(np.rint(np.float64(weight) * np.float64(pull)))
        curve = np.int64(np.rint(np.float64(weight) * np.float64(bend) * CURVE_UNITS))
    rows.sums[first, 0] -= slope
    rows.sums[second, 0] += slope
    rows.sums[first, 1] += curve
    rows.sums[second, 1] += curve
    return abs(slope)


@njit(nogil=True, error_model="numpy")
def _scale_of(
    rows: Placed, rule: PairRule, n: int, spread: np.float32, by_score: bool, is_wide: bool, n_bits: int
) -> np.float32:
    """Return the largest power of two that what pairs of a query add may be multiplied by to have at most so many bits,
    by a bound of it; `spread` : by how much gains differ at most.

    The pairs of a row with those 2**j to 2**(j + 1) places below have at least the difference in scores of the nearest
    of these, and at most the difference in places of the last. The chance of the other order that goes with a
    difference, divided by it, is the less the larger that is.
    """
    bound = np.float32(0.0)
    for a in range(min(rule.top, n) if rule.top > 0 else n):
        step = 1
        while a + step < n:
            difference = _difference_of(rows, a, a + step, is_wide)
            chance = min(_QUARTER * difference + _HALF, _1) if by_score else _1  # at least that of the other order
            step *= 2
            last = min(a + step, n - 1)
            change = _1
            if rule.weight == _NDCG:
                change = rows.as_first[a] - rows.as_second[last]
            elif rule.weight == _MAP:
                step_there = np.float32(rule.steps[last]) if rows.gain[last] > 0 else np.float32(0.0)
                change = rows.as_first[a] - (rows.as_second[last] - step_there) + SHARE_SLACK
            bound = max(bound, change * chance * (_1 / _unit_of(difference, by_score)))
    most = bound * spread * BOUND_MARGIN
    exponent = max(math.frexp(most)[1], LEAST_EXPONENT) if most > 0 else LEAST_EXPONENT
    return np.float32(math.ldexp(1.0, n_bits - exponent))


@njit(nogil=True, error_model="numpy")
def _position_pair_bits(rule: PairRule, n: int) -> int:
    """Return the bits of what a pair adds, at most, where positions multiply what it counts."""
    n_pairs, n_bits = n * (rule.drawn if rule.drawn > 0 else min(rule.top, n)), 0
    while n_pairs >> n_bits > 0:
        n_bits += 1
    return min(POSITION_PAIR_BITS, SIZE_BITS - n_bits)


def _top_loop(by_position: bool) -> Callable[[Placed, PairRule, int, PairHow], np.int64]:
    """Return what adds the pairs of the first rows with all that come after each, multiplied for their positions if
    that is asked for: compiled for each case, since to ask takes half as long as a pair."""

    @uncounted(error_model="numpy")  # to count references to the arrays takes twice as long as pairs
    def add_top(rows: Placed, rule: PairRule, n: int, how: PairHow) -> np.int64:
        total = np.int64(0)
        for a in range(min(rule.top, n)):
            for b in range(a + 1, n):
                total += _add_pair(rows, rule, a, b, how, by_position)
        return total

    added: Callable[[Placed, PairRule, int, PairHow], np.int64] = add_top
    return added


_add_top, _add_top_by_position = _top_loop(False), _top_loop(True)


@njit(inline="always", error_model="numpy")
def _cost_of(rows: Placed, rule: PairRule, a: int, b: int, worth: np.float32, by_score: bool) -> float:
    """Return what positions are judged by of a pair of places with different gains: what it counts, times
    ``log(1 + exp(s - t))``, s being the score of the row of more gain."""
    first, second = min(a, b), max(a, b)
    weight = np.float64(worth * _change_of(rows, rule, first, second, _1))
    is_ahead = (rows.gain[first] > rows.gain[second]) == (rows.score[first] >= rows.score[second])
    difference = min(abs(rows.score[first] - rows.score[second]), MOST_DIFFERENCE if by_score else MOST_COST)
    cost = logarithm_of_one_plus(np.float64(_exp(-difference)))
    if is_ahead:
        cost += np.float64(difference)
    return weight * (cost / np.float64(difference + SCORE_UNIT) if by_score else cost)


@njit(nogil=True, error_model="numpy")
def _add_top_costs(
    rows: Placed, rule: PairRule, place: Int64, worth: np.float32, by_score: bool
) -> None:
    """Add the costs of the pairs that `_add_top` has of rows at positions to those of positions; `place` : of rows."""
    ratios = rule.ratios
    n = min(len(place), ratios.of_chances.shape[1])
    sums = np.zeros((2, n))
    for row in range(n):
        for other in range(row + 1, n):
            a, b = place[row], place[other]
            if min(a, b) >= rule.top or rows.gain[a] == rows.gain[b]:
                continue
            cost = _cost_of(rows, rule, a, b, worth, by_score)
            high, low = (row, other) if rows.gain[a] > rows.gain[b] else (other, row)
            sums[RELEVANT, high] += cost * np.float64(ratios.of_chances[IRRELEVANT, low])
            sums[IRRELEVANT, low] += cost * np.float64(ratios.of_chances[RELEVANT, high])
    for row in range(n):
        for side in range(2):
            add_cost(ratios.costs, side, row, sums[side, row])


class Drawn(NamedTuple):
    """What draws the pairs of a query, by row."""

    key: np.uint64
    label: Float32
    ids: UInt64
    """Global ids."""
    by_label: Int64
    """Rows in the order of labels, the highest first, of equal ones the least id."""
    place: Int64
    """Place of each row."""


@uncounted(error_model="numpy")
def _add_drawn(rows: Placed, rule: PairRule, drawn: Drawn, worth: np.float32, how: PairHow) -> np.int64:
    """Add pairs of each row with rows of other labels, drawn by hashes, and the costs of those at positions."""
    n, total, by_label, label = len(drawn.place), np.int64(0), drawn.by_label, drawn.label
    ratios, n_positions = rule.ratios, rule.ratios.of_chances.shape[1]
    begin = 0
    while begin < n:
        end = begin + 1
        while end < n and label[by_label[end]] == label[by_label[begin]]:
            end += 1
        others = np.uint64(n - (end - begin))
        if others > 0:
            for at in range(begin, end):
                row = by_label[at]
                for draw in range(rule.drawn):
                    bits = row_bits(row_bits(drawn.key, drawn.ids[row]), np.uint64(draw))
                    other = np.int64(((bits >> np.uint64(32)) * others) >> np.uint64(32))
                    other = by_label[other if other < begin else other + (end - begin)]
                    a, b = drawn.place[row], drawn.place[other]
                    total += _add_pair(rows, rule, a, b, how, n_positions > 0)
                    if max(row, other) < n_positions:
                        cost = _cost_of(rows, rule, a, b, worth, how.by_score)
                        high, low = (row, other) if rows.gain[a] > rows.gain[b] else (other, row)
                        add_cost(ratios.costs, RELEVANT, high, cost * np.float64(ratios.of_chances[IRRELEVANT, low]))
                        add_cost(ratios.costs, IRRELEVANT, low, cost * np.float64(ratios.of_chances[RELEVANT, high]))
        begin = end
    return total


@njit(nogil=True, error_model="numpy")
def norm_of(rule: PairRule, total: float) -> float:
    """Return what a query's gradients are multiplied by; `total` : twice the sum of the sizes of its pairs'
    gradients."""
    if not rule.normalized:
        return 1.0
    if rule.drawn > 0:
        return 1.0 / rule.drawn
    if total <= 0.0:
        return 1.0
    most = np.float32(min(max(total, LEAST_SIZE), MOST_SIZE))
    return float(short_logarithm_of_one_plus(most) * PER_LN_2 * (_1 / most))


@njit(nogil=True, error_model="numpy")
def order_of(score: Float32) -> Int64:
    """Return which row is at each place, the highest score first; of equal scores the row of the least id."""
    order: Int64 = np.argsort(-score, kind="mergesort")
    return order


@njit(nogil=True, error_model="numpy")
def find_aboves(gain: Float32, order: Int64, steps: Float64, aboves: Float64) -> None:
    """Write relevant rows down to each place over its number, less the sum of 1 / number of those down to it."""
    relevant, shares = 0, np.int64(0)
    for place in range(len(order)):
        if gain[order[place]] > 0:
            relevant += 1
            shares += np.int64(np.rint(math.ldexp(steps[place], SHARE_BITS)))
        aboves[place] = relevant * steps[place] - math.ldexp(np.float64(shares), -SHARE_BITS)


@njit(nogil=True, error_model="numpy")
def _place_rows(rows: Placed, rule: PairRule, gain: Float32, score: Float32, order: Int64, aboves: Float64) -> None:
    """Fill a query's rows by their places; `aboves` : for the use of this function."""
    n = len(order)
    highest = score[order[0]]
    if rule.weight == _MAP:
        find_aboves(gain, order, rule.steps, aboves)
    for place in range(n):
        row, above, below = order[place], rule.steps[place], rule.steps[place]
        if rule.weight == _MAP:
            above, below = aboves[place], aboves[place] + rule.steps[place]
        is_relevant = gain[row] > 0
        rows.score[place], rows.gain[place] = score[row], gain[row]
        rows.odds[place], rows.inverse[place] = _exp(score[row] - highest), _exp(highest - score[row])
        rows.as_first[place] = np.float32(above if is_relevant else below)
        rows.as_second[place] = np.float32(below if is_relevant else above)
        rows.sums[place, 0] = rows.sums[place, 1] = 0


@njit(nogil=True, error_model="numpy")
def _place_ratios(rows: Placed, ratios: Float32, place: Int64) -> None:
    """Fill what pairs are multiplied by for the positions of a query's rows; `place` : of these."""
    for row in range(len(place)):
        for side in range(2):
            rows.ratio[side, place[row]] = ratios[side, row] if row < ratios.shape[1] else np.float32(0.0)


@njit(nogil=True, error_model="numpy")
def largest_query(begins: Int64, first: int, last: int) -> int:
    """Return the rows of the largest query of `[first, last)`."""
    most = 0
    for query in range(first, last):
        most = max(most, begins[query + 1] - begins[query])
    return most


@njit(nogil=True, error_model="numpy")
def _room_for(n: int) -> Placed:
    """Return arrays for the rows of a query of so many."""
    return Placed(
        np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32),
        np.empty(n, np.float32), np.empty(n, np.float32), np.empty((n, 2), np.int64), np.empty((2, n), np.float32),
    )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def has_pairs(rule: PairRule, query: int, places: Int64, scores: Float32, g: Float32, h: Float32) -> bool:
    """Whether a query's rows have gradients; otherwise write 0, or NaN where a score is not finite."""
    is_finite = True
    for i in range(len(places)):
        is_finite = is_finite and np.isfinite(scores[i])
    if rule.scale[query] != 0.0 and is_finite:
        return True
    for i in range(len(places)):
        g[places[i]] = h[places[i]] = np.float32(0.0 if is_finite else np.nan)
    return False


@njit(nogil=True, error_model="numpy")
def _write_gradients(sums: Int64, places: Int64, factor: float, curvature: float, g: Float32, h: Float32) -> None:
    """Write the gradients of rows at these places, second derivatives `curvature` times."""
    of_g, of_h = np.float32(factor), np.float32(factor * curvature / CURVE_UNITS)
    for i in range(len(places)):
        g[places[i]] = np.float32(sums[i, 0]) * of_g
        h[places[i]] = np.float32(sums[i, 1]) * of_h


@njit(cache=True, nogil=True, error_model="numpy")
def fill_queries(
    queries: Queries, rule: PairRule, key: np.uint64, margin: Float32, g: Float32, h: Float32, first: int, last: int
) -> None:
    """Write the gradients of the rows of queries `[first, last)` to their places; NaN where a query's scores are not
    finite. `margin`, `g` and `h` : of all rows, shape (rows,). Costs of positions are added to those of the rule."""
    begins, ratios, n_positions = queries.begins, rule.ratios, rule.ratios.of_chances.shape[1]
    most = largest_query(begins, first, last)
    rows, aboves = _room_for(most), np.empty(most)
    for query in range(first, last):
        begin, end = begins[query], begins[query + 1]
        places, n = queries.order[begin:end], end - begin
        scores = margin[places]
        if not has_pairs(rule, query, places, scores, g, h):
            continue
        order, worth = order_of(scores), rule.worth[query]
        _place_rows(rows, rule, rule.gain[begin:end], scores, order, aboves)
        by_score, has_places = rule.by_score and rows.score[0] != rows.score[n - 1], n_positions > 0 or rule.drawn > 0
        is_wide = not rows.score[0] - rows.score[n - 1] <= MOST_RANGE
        place_of = np.empty(n if has_places else 0, np.int64)
        n_bits = _position_pair_bits(rule, n) if n_positions > 0 else PAIR_BITS
        scale = _scale_of(rows, rule, n, np.float32(rule.scale[query]), by_score, is_wide, n_bits)
        scale *= np.float32(ratios.shrink[min(n, n_positions)])
        how = PairHow(scale, by_score, is_wide)
        if has_places:
            for place in range(n):  # assigned at once, it would take numba 2.5 s more to compile
                place_of[order[place]] = place
        if n_positions > 0:
            _place_ratios(rows, ratios.of_chances, place_of)
        if rule.top > 0:
            if n_positions == 0:
                total = _add_top(rows, rule, n, how)
            else:
                total = _add_top_by_position(rows, rule, n, how)
                _add_top_costs(rows, rule, place_of, worth, by_score)
        else:
            label = queries.label[begin:end]
            by_label = np.argsort(-label, kind="mergesort")
            drawn = Drawn(key, label, queries.ids[begin:end], by_label, place_of)
            total = _add_drawn(rows, rule, drawn, worth, how)
        counted = np.float64(worth) / np.float64(scale)
        factor = norm_of(rule, 2.0 * (np.float64(total) * counted)) * queries.factor[query] * counted
        _write_gradients(rows.sums, places[order], factor, rule.curvature, g, h)


@njit(inline="always", error_model="numpy")
def _gain_by(weight: int, label: float, gains: Float64) -> float:
    """Return what a label counts where pairs are weighted so."""
    if weight == _NDCG:
        return gain_of(label, gains)
    if weight in (_MAP, _MRR):
        return 1.0 if label > 0 else 0.0
    return float(label)


@njit(cache=True, nogil=True, error_model="numpy")
def _weigh_pairs(
    label: Float32, begins: Int64, rule: PairRule, gains: Float64, ideal: Float64, n_neighbors: int, first: int,
    last: int,
) -> None:  # fmt: skip
    """Fill the gains, scales and worths of a rule by its steps, of queries `[first, last)`; `ideal` : what DCG of each
    query is divided by; `n_neighbors` : pairs of a row in a noisy order, or 0.

    Scales of noisy orders follow from bounds of what a pair and a query can add, never from sums.
    """
    for query in range(first, last):
        begin, n = begins[query], begins[query + 1] - begins[query]
        least, most, relevant = np.inf, -np.inf, 0.0
        for row in range(begin, begin + n):
            gain = _gain_by(rule.weight, label[row], gains)
            least, most, relevant = min(least, gain), max(most, gain), relevant + gain
        rule.scale[query], rule.worth[query], exponent = 0.0, np.float32(0.0), 0
        worth, bound = 1.0, 1.0
        if rule.weight == _NDCG and most > 0:
            exponent = math.frexp(most)[1]
            worth = math.ldexp(1.0, exponent) / ideal[query] if ideal[query] > 0 else 0.0
            bound = math.ldexp(most - least, -exponent) * (rule.steps[0] - rule.steps[n - 1]) * worth
        elif rule.weight == _MAP and relevant > 0:
            worth = 1.0 / (min(relevant, float(rule.top)) if n_neighbors > 0 and rule.top > 0 else relevant)
        lowest, highest = np.float32(np.inf), np.float32(-np.inf)
        for row in range(begin, begin + n):
            gain = _gain_by(rule.weight, label[row], gains)
            rule.gain[row] = np.float32(math.ldexp(gain, -exponent))
            lowest, highest = min(lowest, rule.gain[row]), max(highest, rule.gain[row])
        if n == 0 or least == most or bound <= 0:
            continue
        if n_neighbors == 0:
            spread = np.float64(highest - lowest) if rule.weight == _NDCG else 1.0
            rule.scale[query], rule.worth[query] = spread, np.float32(worth)
            continue
        bound *= 2.0 * float(n) * float(rule.drawn) * max(1, min(n_neighbors, n))
        scale = math.ldexp(1.0, SUM_BITS - math.frexp(bound)[1])
        rule.scale[query], rule.worth[query] = scale, np.float32(worth * scale)


def pair_rule(loss: QueryLoss, label: Float32, begins: Int64, threads: Threads) -> PairRule:
    """Return the rule of a loss for queries; `label` and `begins` as of `Queries`."""
    sizes, orders = np.diff(begins), loss.orders
    n_queries, ideal, gains = len(sizes), np.ones(len(sizes)), gain_table(loss.exponential, loss.label_gain)
    steps = _steps_of(loss, int(sizes.max(initial=0)))
    tasks = query_tasks(begins, 1, threads.count)
    if loss.weight == PairWeight.NDCG and (orders is None or orders.by_ideal):
        threads.run([
            partial(ideal_gains, label, begins, steps, loss.top, gains, ideal, first, last) for first, last in tasks
        ])  # fmt: skip
    rule = PairRule(
        int(loss.weight), loss.top, loss.drawn, loss.normalized, loss.by_score, steps,
        np.empty(len(label), np.float32), np.empty(n_queries), np.empty(n_queries, np.float32),
        loss.curvature, no_ratios(0),
    )  # fmt: skip
    n_neighbors = 0 if orders is None else orders.neighbors
    threads.run([
        partial(_weigh_pairs, label, begins, rule, gains, ideal, n_neighbors, first, last) for first, last in tasks
    ])  # fmt: skip
    return rule


def _steps_of(loss: QueryLoss, n: int) -> Float64:
    """Return what is known of places 0 to `n`, see `PairRule.steps`; no place depends on how many follow."""
    orders = loss.orders
    if orders is not None and orders.decay > 0:  # neighbors differ by what their pair counts
        counted = PLACE_WEIGHT * np.cumprod(np.concatenate([np.ones(1), np.full(max(n - 2, 0), orders.decay)]))
        below = np.zeros(n)
        below[1:] = -np.cumsum(counted[: max(n - 1, 0)])
        return below
    steps = discounts_of(n) if loss.weight in (PairWeight.ONE, PairWeight.NDCG) else 1.0 / np.arange(1.0, n + 1.0)
    if orders is not None and loss.top:
        steps[loss.top :] = 0.0
    return steps


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
        self._threads, self._rule = threads, pair_rule(loss, queries.label, queries.begins, threads)
        self._positions = Positions(loss.start, loss.positions)
        self._fill: Callable[..., None] = partial(self._fill_pairs, queries)
        self._tasks: Sequence[tuple[int, int]] = query_tasks(queries.begins, loss.pairs_a_row, threads.count)

    def fill(self, key: np.uint64, margin: Float32, g: Float32, h: Float32) -> None:
        """Fill `g` and `h` of all rows of queries, float32 of shape (rows,); `key` : that of the round's draws."""
        self._threads.run([
            partial(self._fill, key, margin, g, h, first, last)
            for first, last in self._tasks
        ])  # fmt: skip

    def _fill_pairs(
        self, queries: Queries, key: np.uint64, margin: Float32, g: Float32, h: Float32, first: int, last: int
    ) -> None:
        """Do what `fill_queries` does, and add the costs that it finds to those of all threads."""
        ratios = self._positions.of_thread()
        fill_queries(queries, self._rule._replace(ratios=ratios), key, margin, g, h, first, last)
        self._positions.add(ratios.costs)

    @property
    def chances(self) -> Float32:
        """Return the chances of positions as they are now, float32 of shape (2, positions)."""
        return self._positions.chances

    def learn(self, add_up: Callable[[Array], None]) -> None:
        """See `Positions.learn`."""
        self._positions.learn(add_up)
