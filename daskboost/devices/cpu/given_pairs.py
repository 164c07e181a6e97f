"""Gradients of pairs that users name: each row adds up those of its own pairs.

Every pair is computed for both of its rows, so that nothing is added to from two sides, and rows are divided among
threads as one likes. What a pair adds is computed in float32, as `kernels/given_pairs.cu` does operation by operation,
and summed in integers on a power of two that follows from the number and the largest weight of a row's pairs, so that
their order makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.queries import SUM_BITS, Queries, odds_of, pull_of, query_tasks
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import PlacedPairs
from daskboost.dtypes import Float32, Float64, Int64, UInt32


class PairLists(NamedTuple):
    """Pairs by the rows that have some."""

    rows: Int64
    """Places of these rows among all, shape (rows,)."""
    begins: Int64
    """Where each row's pairs begin, and where the last one's end; shape (rows + 1,)."""
    others: UInt32
    """Place of the other row of each pair."""
    worths: Float32
    """What each pair counts, times its row's scale; negative where the row is the one that should come last."""
    factors: Float64
    """What sums of a row are multiplied by."""


def pair_lists(pairs: PlacedPairs, queries: Queries) -> PairLists:
    """Return the pairs of each row; those of weight 0 are left out."""
    n_rows, counted = len(queries.order), np.flatnonzero(pairs.weight > 0)
    winner, loser, weight = (each[counted] for each in (pairs.winner, pairs.loser, pairs.weight))
    row = np.concatenate([winner, loser])
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=n_rows)
    del row
    rows = np.flatnonzero(counts)
    counts = counts[rows]
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    weights = np.concatenate([weight, weight])[order].astype(np.float64)
    largest = np.maximum.reduceat(weights, begins[:-1]) if len(rows) else np.empty(0)
    scale = np.ldexp(1.0, SUM_BITS - np.frexp(counts * largest)[1])
    is_loser = order >= len(winner)
    weights *= np.repeat(scale, counts)
    worths = weights.astype(np.float32)
    np.negative(worths, out=worths, where=is_loser)
    del weights
    others = np.concatenate([loser, winner])[order]
    of_rows = np.repeat(queries.factor, np.diff(queries.begins))
    return PairLists(
        queries.order[rows], begins, queries.order[others].astype(np.uint32), worths, of_rows[rows] / scale
    )


@njit(cache=True, nogil=True, error_model="numpy")
def fill_pairs(lists: PairLists, margin: Float32, g: Float32, h: Float32, first: int, last: int) -> None:
    """Write the gradients of the rows `[first, last)` to their places; NaN where a score of a pair is not finite.
    `margin`, `g` and `h` : of all rows, shape (rows,)."""
    for i in range(first, last):
        row, slopes, curves = lists.rows[i], np.int64(0), np.int64(0)
        own = margin[row]
        is_finite = np.isfinite(own)
        for k in range(lists.begins[i], lists.begins[i + 1]):
            other, worth = margin[lists.others[k]], lists.worths[k]
            if not np.isfinite(other):
                is_finite = False
            if not is_finite:
                break
            wins = worth > 0
            of_own, of_other = odds_of(own, other)
            of_first, of_last = (of_own, of_other) if wins else (of_other, of_own)
            slope, curve = pull_of(of_first, of_last, abs(worth))
            slopes += -slope if wins else slope
            curves += curve
        if is_finite:
            g[row] = np.float32(np.float64(slopes) * lists.factors[i])
            h[row] = np.float32(np.float64(curves) * lists.factors[i])
        else:
            g[row] = h[row] = np.float32(np.nan)


class PairLoops:
    """Fills the gradients of given pairs, rows side by side on threads."""

    def __init__(self, pairs: PlacedPairs, queries: Queries, threads: Threads) -> None:
        self._threads, self._lists = threads, pair_lists(pairs, queries)
        self._tasks: Sequence[tuple[int, int]] = query_tasks(self._lists.begins, 1, threads.count)

    def fill(self, key: np.uint64, margin: Float32, g: Float32, h: Float32) -> None:
        """Fill `g` and `h` of the rows that have pairs, float32 of shape (rows,); `key` is not read."""
        self._threads.run([
            partial(fill_pairs, self._lists, margin, g, h, first, last) for first, last in self._tasks
        ])  # fmt: skip
