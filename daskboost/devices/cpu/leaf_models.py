"""Models of leaves on CPUs: their terms, sums of their normal equations, slopes, and what they add to margins.

A leaf's slopes are those of a ridge regression about its weighted mean, where the row of that mean gets what the
constant leaf gives: with h, g the rows' hessians and gradients and x their positions (`devices/leaf_models.py`),

    C = sum h x x' - sum h x sum h x' / H,    b = sum g x - G sum h x / H,    (C + P) slope = -b

where P is diagonal: `ridge` times the weighted variance of each x in the leaf. So the penalty is `ridge` rows' worth of
hessians, whatever the feature's range within the leaf.

Sums are integers, hence the same in any order. The rest is arithmetic of float64 in one order, here alone.
Source: Shi, Li and Li, "Gradient Boosting with Piece-Wise Linear Regression Trees", IJCAI 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.gradients import Gradients, Quanta, RowRange, _quantized, _weight_of, global_id
from daskboost.devices.cpu.histogram import DenseBins, SparseBins, sparse_symbol
from daskboost.devices.leaf_models import MOST_TERMS
from daskboost.dtypes import Bool, Float32, Float64, Int8, Int32, Int64, UInt32

LEAST_VARIANCE = 1e-9
"""Share of a term's squares that its variance must be, or it has none in a leaf, but for rounding; and share of a
term's variance that others must leave unexplained."""
LARGEST = float(np.finfo(np.float32).max)


class Positions(NamedTuple):
    """The positions of bins, see `PositionTable`."""

    begin: Int64
    position: Int8


def symbol_of(bins: DenseBins | SparseBins, row: np.uint64, feature: int) -> np.int64:
    """The bin of a row's feature; a missing value has none, or the one behind the last."""
    raise NotImplementedError("for compiled code only")


@overload(symbol_of, inline="always", strict=False)
def _typed_symbol_of(bins: types.NamedTuple, row: types.Type, feature: types.Type) -> Callable[..., np.int64]:
    return SYMBOL_OF[bins.instance_class]


def _dense_symbol(bins: DenseBins, row: np.uint64, feature: int) -> np.int64:
    return np.int64(bins.symbols[row * np.uint64(bins.row_stride) + np.uint64(feature) * np.uint64(bins.column_stride)])


def _sparse_symbol(bins: SparseBins, row: np.uint64, feature: int) -> np.int64:
    return np.int64(sparse_symbol(bins.indptr, bins.slots, row, bins.offsets[feature], bins.offsets[feature + 1]))


SYMBOL_OF: Mapping[type, Callable[..., np.int64]] = {DenseBins: _dense_symbol, SparseBins: _sparse_symbol}


@njit(nogil=True)
def position_of(bins: DenseBins | SparseBins, positions: Positions, row: np.uint64, feature: int) -> np.int64:
    """The position of a row's bin."""
    symbol = symbol_of(bins, row, feature)
    return np.int64(positions.position[positions.begin[feature] + symbol]) if symbol >= 0 else np.int64(0)


@njit(cache=True, nogil=True)
def find_terms(left: Int32, right: Int32, feature: Int32, usable: Bool, n_terms: int) -> Int32:
    """The features of each node's model: the last distinct usable ones of the splits above it, the nearest first, -1
    behind them; shape (nodes, terms). Children come after their parents."""
    terms = np.full((len(left), n_terms), np.int32(-1))
    for node in range(len(left)):
        if left[node] < 0:
            continue
        for child in (left[node], right[node]):
            n, own = 0, feature[node]
            if usable[own] and n_terms > 0:
                terms[child, 0] = own
                n = 1
            for k in range(n_terms):
                if n < n_terms and terms[node, k] >= 0 and not (usable[own] and terms[node, k] == own):
                    terms[child, n] = terms[node, k]
                    n += 1
    return terms


@njit(cache=True, nogil=True)
def add_equations(
    bins: DenseBins | SparseBins, positions: Positions, terms: Int32, gradients: Gradients, quanta: Quanta,
    rows: RowRange, leaf: Int32, sums: Int64,
) -> None:  # fmt: skip
    """Add a range of rows to the normal equations of their leaves, `sums[leaf[row]]`, see `n_sums`.

    `terms` : features of each leaf's model, shape (leaves, terms). `leaf` : int32, shape (rows,), -1 for rows that did
    not grow the tree.
    """
    g, h, weight, first_row = gradients.g, gradients.h, gradients.weight, rows.first_row
    n_terms = terms.shape[1]
    x = np.ones(n_terms + 1, np.int64)
    for row in range(rows.begin, rows.end):
        at = leaf[row]
        if at < 0:
            continue
        qg, qh = _quantized(g[row], h[row], _weight_of(weight, row), global_id(first_row, row), quanta)
        n = 1
        while n <= n_terms and terms[at, n - 1] >= 0:
            x[n] = position_of(bins, positions, np.uint64(row), terms[at, n - 1])
            n += 1
        into, place = sums[at], n_terms + 1
        for j in range(n):
            into[j] += qg * x[j]
            hx = qh * x[j]
            for k in range(j + 1):
                into[place + k] += hx * x[k]
            place += j + 1


class Ridge(NamedTuple):
    """What slopes depend on beside sums."""

    unit_g: float
    """What a quantum of g is worth."""
    unit_h: float
    ridge: float
    """Penalty of slopes, in hessians."""
    least_h: float
    """Leaves of less hessian are constant."""
    learning_rate: float


@njit(cache=True, nogil=True)
def fit_leaves(sums: Int64, terms: Int32, rule: Ridge, values: Float32, slopes: Float32) -> None:
    """Find the slopes of leaves from their normal equations; change values to those of position 0.

    Parameters
    ----------
    sums : int64 array, shape (leaves, `n_sums(terms)`)
    terms : int32 array, shape (leaves, terms)
        Changed to -1 in leaves that stay constant: of too little hessian, or whose equations tell no slopes.
    rule : Ridge
    values : float32 array, shape (leaves,)
        Of constant leaves, learning rate included; changed.
    slopes : float32 array, shape (leaves, terms); written
    """
    for leaf in range(len(sums)):
        slopes[leaf] = 0
        if not _fit_leaf(sums[leaf], terms[leaf], rule, values[leaf : leaf + 1], slopes[leaf]):
            terms[leaf], slopes[leaf] = -1, 0


@njit(nogil=True)
def _fit_leaf(sums: Int64, terms: Int32, rule: Ridge, value: Float32, slopes: Float32) -> bool:
    """Fit one leaf; return whether it has a model. `value` : shape (1,)."""
    n_terms = len(terms)
    weight = np.float64(sums[n_terms + 1])
    if terms[0] < 0 or not (weight > 0.0 and weight * rule.unit_h >= rule.least_h):
        return False
    means, b, slope = np.zeros(MOST_TERMS), np.zeros(MOST_TERMS), np.zeros(MOST_TERMS)
    a = np.zeros((MOST_TERMS, MOST_TERMS))
    is_used = np.zeros(MOST_TERMS, np.bool_)
    unit = rule.unit_g / rule.unit_h
    begin = n_terms + 1  # of the row of sums that a term's squares stand in
    for j in range(n_terms):
        begin += j + 1
        of_x = np.float64(sums[begin])
        means[j] = of_x / weight
        if terms[j] < 0:
            break
        b[j] = (np.float64(sums[j + 1]) - np.float64(sums[0]) * means[j]) * unit
        for k in range(j + 1):
            a[j, k] = np.float64(sums[begin + k + 1]) - of_x * means[k]
        is_used[j] = a[j, j] > LEAST_VARIANCE * np.float64(sums[begin + j + 1])
    for j in range(n_terms):
        a[j, j] = a[j, j] + rule.ridge / rule.unit_h * (a[j, j] / weight)
    if not _solve(a, b, is_used, slope):
        return False
    middle, most = np.float64(value[0]), abs(np.float64(value[0]))
    for j in range(n_terms):
        found = -slope[j] * rule.learning_rate
        if not abs(found) < LARGEST:
            return False
        slopes[j] = np.float32(found)
        step = np.float64(slopes[j])
        middle = middle - step * means[j]
        most += abs(step) * 256.0
    if not most < LARGEST:
        return False
    value[0] = np.float32(middle)
    return True


@njit(nogil=True)
def _solve(a: Float64, b: Float64, is_used: Bool, x: Float64) -> bool:
    """Solve `a x = b` for the rows and columns that are used, others of x staying 0, by factors L D L' without
    pivots; `a` : symmetric, its lower triangle, changed. Return whether it is positive definite, and any row is used.
    """
    n, any_used = len(b), False
    for j in range(n):
        if not is_used[j]:
            continue
        any_used, least = True, LEAST_VARIANCE * a[j, j]
        for k in range(j):  # a[j, k] becomes L D, then L
            if is_used[k]:
                for i in range(k):
                    if is_used[i]:
                        a[j, k] = a[j, k] - a[j, i] * a[k, i]
        pivot, right = a[j, j], b[j]
        for k in range(j):
            if is_used[k]:
                factor = a[j, k] / a[k, k]
                pivot = pivot - a[j, k] * factor
                right = right - factor * x[k]
                a[j, k] = factor
        if not pivot > least:
            return False
        a[j, j], x[j] = pivot, right
    for j in range(n):
        if is_used[j]:
            x[j] = x[j] / a[j, j]
    for j in range(n - 1, -1, -1):
        if is_used[j]:
            for k in range(j + 1, n):
                if is_used[k]:
                    x[j] = x[j] - a[k, j] * x[k]
    return any_used


@njit(cache=True, nogil=True)
def add_modelled(
    bins: DenseBins | SparseBins, positions: Positions, models: tuple[Int32, Float32, Float32], node: Float32,
    rows: UInt32, first: int, last: int, margin: Float32,
) -> None:  # fmt: skip
    """Add what leaves' models give to the margins of `rows[first:last]`.

    `models` : features and slopes of nodes, shape (nodes, terms), and their values, shape (nodes,). `node` : the node
    in which each row of the chunk ends, float32 of integers, shape (rows,). `margin` : float32, shape (rows,).
    """
    feature, slope, value = models
    for i in range(first, last):
        row = rows[i]
        at = np.int64(node[row])
        total = np.float64(value[at])
        for k in range(feature.shape[1]):
            if feature[at, k] < 0:
                break
            # Exact in float64, so that a fused multiplication gives the same.
            total += np.float64(slope[at, k]) * np.float64(
                position_of(bins, positions, np.uint64(row), feature[at, k])
            )
        margin[row] += np.float32(total)
