"""Gradients of losses of all rows of a query together: softmax cross-entropy, and squared error about a mean.

Sums over the rows of a query are those of integers, on a power of two that follows from the number of rows and from
their largest value, so that a GPU may add them in any order. `kernels/query_lists.cu` does the same operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.losses import _exp
from daskboost.devices.cpu.queries import Queries, query_tasks
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import ListKernel, ListLoss
from daskboost.dtypes import Float32, Float64, Int64

TERM_BITS = 62
"""Bits of a sum of as many terms as a query has rows, at most."""
_SOFTMAX = int(ListKernel.SOFTMAX)


class ListRule(NamedTuple):
    """`ListLoss` as compiled code takes it, and what is known of each query."""

    kernel: int
    beta: np.float32
    penalty: float
    totals: Float64
    """Sum of the labels of each query, of SOFTMAX; shape (queries,), or (0,)."""
    factors: Float64
    """What gradients of each query are multiplied by, shape (queries,)."""


@njit(inline="always", error_model="numpy")
def term_exponent(n: int) -> int:
    """Return which power of two terms below 1 are multiplied by, so that `n` of them have a sum of `TERM_BITS`."""
    return TERM_BITS - math.frexp(np.float64(n))[1]


@njit(cache=True, nogil=True, error_model="numpy")
def sum_labels(label: Float32, begins: Int64, out: Float64) -> None:
    """Write the sum of each query's labels, none of them below 0, whatever their order."""
    for query in range(len(begins) - 1):
        begin, end = begins[query], begins[query + 1]
        largest = np.float32(0)
        for row in range(begin, end):
            largest = max(largest, label[row])
        exponent = term_exponent(end - begin) - math.frexp(np.float64(largest))[1]
        total = np.int64(0)
        for row in range(begin, end):
            total += np.int64(np.rint(math.ldexp(np.float64(label[row]), exponent)))
        out[query] = math.ldexp(np.float64(total), -exponent)


def list_rule(loss: ListLoss, queries: Queries) -> ListRule:
    """Return the rule of a loss for queries."""
    softmax = loss.kernel == ListKernel.SOFTMAX
    totals = np.zeros(len(queries.factor) if softmax else 0)
    if softmax:
        sum_labels(queries.label, queries.begins, totals)
    beta = np.float32(loss.beta)
    return ListRule(int(loss.kernel), beta, loss.penalty, totals, queries.factor * (float(beta) if softmax else 1.0))


@njit(inline="always", error_model="numpy")
def _fill_softmax(
    rule: ListRule, query: int, places: Int64, label: Float32, margin: Float32, g: Float32, h: Float32
) -> bool:
    """Write the gradients of softmax cross-entropy of a query's rows; whether all scores are finite."""
    largest, is_finite = np.float32(-np.inf), True
    for place in places:
        largest = max(largest, margin[place])
        is_finite = is_finite and np.isfinite(margin[place])
    if not is_finite:
        return False
    scale, total = math.ldexp(1.0, term_exponent(len(places))), np.int64(0)
    for place in places:
        total += np.int64(np.rint(np.float64(_exp(rule.beta * (margin[place] - largest))) * scale))
    share, labels = scale / np.float64(total), rule.totals[query]
    beta, factor = np.float64(rule.beta), rule.factors[query]
    for i in range(len(places)):
        place = places[i]
        p = np.float64(_exp(rule.beta * (margin[place] - largest))) * share
        g[place] = np.float32((labels * p - np.float64(label[i])) * factor)
        h[place] = np.float32(labels * (beta * (p * (1.0 - p)) + rule.penalty) * factor)
    return True


@njit(inline="always", error_model="numpy")
def _fill_rmse(
    rule: ListRule, query: int, places: Int64, label: Float32, margin: Float32, g: Float32, h: Float32
) -> bool:
    """Write the gradients of squared error about the query's mean residual; whether all residuals are finite."""
    largest, is_finite, n = np.float32(0), True, len(places)
    for i in range(n):
        size = abs(np.float32(label[i] - margin[places[i]]))
        largest = max(largest, size)
        is_finite = is_finite and np.isfinite(size)
    if not is_finite:
        return False
    exponent = term_exponent(n) - math.frexp(np.float64(largest))[1]
    scale, total = math.ldexp(1.0, exponent), np.int64(0)
    for i in range(n):
        total += np.int64(np.rint((np.float64(label[i]) - np.float64(margin[places[i]])) * scale))
    mean, factor = np.float64(total) / scale / np.float64(n), rule.factors[query]
    for i in range(n):
        place = places[i]
        residual = np.float64(label[i]) - np.float64(margin[place])
        g[place] = np.float32((mean - residual) * factor)
        h[place] = np.float32(factor)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def fill_lists(
    queries: Queries, rule: ListRule, margin: Float32, g: Float32, h: Float32, first: int, last: int
) -> None:
    """Write the gradients of the rows of queries `[first, last)` to their places; NaN where a query's scores are not
    finite. `margin`, `g` and `h` : of all rows, shape (rows,)."""
    for query in range(first, last):
        begin, end = queries.begins[query], queries.begins[query + 1]
        places, label = queries.order[begin:end], queries.label[begin:end]
        if rule.kernel == _SOFTMAX:
            is_finite = _fill_softmax(rule, query, places, label, margin, g, h)
        else:
            is_finite = _fill_rmse(rule, query, places, label, margin, g, h)
        if not is_finite:
            for place in places:
                g[place] = h[place] = np.float32(np.nan)


class ListLoops:
    """Fills the gradients of a loss of lists, queries side by side on threads."""

    def __init__(self, loss: ListLoss, queries: Queries, threads: Threads) -> None:
        self._queries, self._threads = queries, threads
        self._rule = list_rule(loss, queries)
        self._tasks: Sequence[tuple[int, int]] = query_tasks(queries.begins, 1, threads.count)

    def fill(self, key: np.uint64, margin: Float32, g: Float32, h: Float32) -> None:
        """Fill `g` and `h` of all rows of queries, float32 of shape (rows,); `key` is not read."""
        self._threads.run([
            partial(fill_lists, self._queries, self._rule, margin, g, h, first, last) for first, last in self._tasks
        ])  # fmt: skip
