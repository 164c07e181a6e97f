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
    terms = np.empty((len(left), n_terms), np.int32)
    write_terms(left, right, feature, usable, terms)
    return terms


@njit(nogil=True)
def write_terms(left: Int32, right: Int32, feature: Int32, usable: Bool, terms: Int32) -> None:
    """Do that in memory that is there."""
    terms[:] = -1
    n_terms = terms.shape[1]
    for node in range(len(left)):
        if left[node] < 0:
            continue
        for side in range(2):
            child = left[node] if side == 0 else right[node]
            n, own = 0, feature[node]
            if usable[own] and n_terms > 0:
                terms[child, 0] = own
                n = 1
            for k in range(n_terms):
                if n < n_terms and terms[node, k] >= 0 and not (usable[own] and terms[node, k] == own):
                    terms[child, n] = terms[node, k]
                    n += 1


@njit(nogil=True)
def add_row(
    bins: DenseBins | SparseBins, positions: Positions, terms: Int32, row: np.uint64, pair: tuple[np.int64, np.int64],
    x: Int64, into: Int64,
) -> None:  # fmt: skip
    """Add a row, of quantized g and h, to the normal equations of its leaf, see `n_sums`.

    `terms` : features of the leaf's model, shape (terms,). `x` : room for a position more, the first of which is 1.
    """
    (qg, qh), n_terms, n = pair, len(terms), 1
    while n <= n_terms and terms[n - 1] >= 0:
        x[n] = position_of(bins, positions, row, terms[n - 1])
        n += 1
    place = n_terms + 1
    for j in range(n):
        into[j] += qg * x[j]
        hx = qh * x[j]
        for k in range(j + 1):
            into[place + k] += hx * x[k]
        place += j + 1


@njit(cache=True, nogil=True)
def add_equations(
    bins: DenseBins | SparseBins, positions: Positions, terms: Int32, gradients: Gradients, quanta: Quanta,
    rows: RowRange, leaf: Int32, sums: Int64,
) -> None:  # fmt: skip
    """Add a range of rows to the normal equations of their leaves, `sums[leaf[row]]`.

    `terms` : features of each leaf's model, shape (leaves, terms). `leaf` : int32, shape (rows,), -1 for rows that did
    not grow the tree.
    """
    x = np.ones(terms.shape[1] + 1, np.int64)
    add_rows(bins, positions, Equations(terms, leaf, x, sums), gradients, quanta, rows)


class Equations(NamedTuple):
    """Normal equations of leaves, and what rows are added to them by."""

    terms: Int32
    leaf: Int32
    x: Int64
    """Room for positions, see `add_row`."""
    sums: Int64


@njit(nogil=True)
def add_rows(
    bins: DenseBins | SparseBins, positions: Positions, into: Equations, gradients: Gradients, quanta: Quanta,
    rows: RowRange,
) -> None:  # fmt: skip
    """Do what `add_equations` does, which has each of these arrays."""
    g, h, weight, first_row = gradients.g, gradients.h, gradients.weight, rows.first_row
    terms, leaf, x, sums = into.terms, into.leaf, into.x, into.sums
    for row in range(rows.begin, rows.end):
        at = leaf[row]
        if at < 0:
            continue
        pair = _quantized(g[row], h[row], _weight_of(weight, row), global_id(first_row, row), quanta)
        add_row(bins, positions, terms[at], np.uint64(row), pair, x, sums[at])


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


_RIGHT, _MEANS, _SLOPES, _USED = range(MOST_TERMS, MOST_TERMS + 4)
"""Rows of the room for a leaf's equations, behind those of a matrix: the right side, means of positions, slopes, and
whether each is one of the equations' unknowns."""
ROOM_SHAPE = (MOST_TERMS + 4, MOST_TERMS)
"""Shape of the room in which `fit_leaf` works, float64."""


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
    room = np.empty(ROOM_SHAPE)
    for leaf in range(len(sums)):
        fit_leaf(sums[leaf], terms[leaf], rule, values[leaf : leaf + 1], slopes[leaf], room)


@njit(nogil=True)
def fit_leaf(sums: Int64, terms: Int32, rule: Ridge, value: Float32, slopes: Float32, room: Float64) -> None:
    """Do that for one leaf; `value` : shape (1,)."""
    slopes[:] = 0
    if not _has_slopes(sums, terms, rule, value, slopes, room):
        terms[:] = -1
        slopes[:] = 0


@njit(nogil=True)
def _has_slopes(sums: Int64, terms: Int32, rule: Ridge, value: Float32, slopes: Float32, room: Float64) -> bool:
    """Find the slopes of a leaf; return whether it has a model."""
    n_terms = len(terms)
    weight = np.float64(sums[n_terms + 1])
    if terms[0] < 0 or not (weight > 0.0 and weight * rule.unit_h >= rule.least_h):
        return False
    room[:] = 0.0
    unit = rule.unit_g / rule.unit_h
    begin = n_terms + 1  # of the row of sums that a term's squares stand in
    for j in range(n_terms):
        begin += j + 1
        of_x = np.float64(sums[begin])
        room[_MEANS, j] = of_x / weight
        if terms[j] < 0:
            break
        room[_RIGHT, j] = (np.float64(sums[j + 1]) - np.float64(sums[0]) * room[_MEANS, j]) * unit
        for k in range(j + 1):
            room[j, k] = np.float64(sums[begin + k + 1]) - of_x * room[_MEANS, k]
        if room[j, j] > LEAST_VARIANCE * np.float64(sums[begin + j + 1]):
            room[_USED, j] = 1.0
    for j in range(n_terms):
        room[j, j] = room[j, j] + rule.ridge / rule.unit_h * (room[j, j] / weight)
    if not _solve(room):
        return False
    middle, most = np.float64(value[0]), abs(np.float64(value[0]))
    for j in range(n_terms):
        found = -room[_SLOPES, j] * rule.learning_rate
        if not abs(found) < LARGEST:
            return False
        slopes[j] = np.float32(found)
        step = np.float64(slopes[j])
        middle = middle - step * room[_MEANS, j]
        most += abs(step) * 256.0
    if not most < LARGEST:
        return False
    value[0] = np.float32(middle)
    return True


@njit(nogil=True)
def _solve(room: Float64) -> bool:
    """Solve the equations of a leaf for the slopes that are used, others staying 0, by factors L D L' without pivots.
    Return whether the matrix, of which the lower triangle is there, is positive definite, and any slope is used."""
    n, any_used, x = MOST_TERMS, False, room[_SLOPES]
    for j in range(n):
        if room[_USED, j] == 0.0:
            continue
        any_used, least = True, LEAST_VARIANCE * room[j, j]
        for k in range(j):  # [j, k] becomes L D, then L
            if room[_USED, k] != 0.0:
                for i in range(k):
                    if room[_USED, i] != 0.0:
                        room[j, k] = room[j, k] - room[j, i] * room[k, i]
        pivot, right = room[j, j], room[_RIGHT, j]
        for k in range(j):
            if room[_USED, k] != 0.0:
                factor = room[j, k] / room[k, k]
                pivot = pivot - room[j, k] * factor
                right = right - factor * x[k]
                room[j, k] = factor
        if not pivot > least:
            return False
        room[j, j], x[j] = pivot, right
    for j in range(n):
        if room[_USED, j] != 0.0:
            x[j] = x[j] / room[j, j]
    for j in range(n - 1, -1, -1):
        if room[_USED, j] != 0.0:
            for k in range(j + 1, n):
                if room[_USED, k] != 0.0:
                    x[j] = x[j] - room[k, j] * x[k]
    return any_used


class Models(NamedTuple):
    """Models of leaves by node, and the value of position 0."""

    feature: Int32
    """Shape (nodes, terms)."""
    slope: Float32
    """Shape (nodes, terms)."""
    value: Float32
    """Shape (nodes,)."""


@njit(nogil=True)
def value_of(bins: DenseBins | SparseBins, positions: Positions, models: Models, node: np.int64, row: np.uint64
             ) -> np.float32:  # fmt: skip
    """What a leaf adds to the margin of a row; products are exact in float64, so that a fused multiplication gives the
    same."""
    total = np.float64(models.value[node])
    for k in range(models.feature.shape[1]):
        feature = models.feature[node, k]
        if feature < 0:
            break
        total += np.float64(models.slope[node, k]) * np.float64(position_of(bins, positions, row, feature))
    return np.float32(total)


@njit(cache=True, nogil=True)
def add_modelled(
    bins: DenseBins | SparseBins, positions: Positions, models: Models, node: Float32, rows: UInt32, first: int,
    last: int, margin: Float32,
) -> None:  # fmt: skip
    """Add what leaves' models give to the margins of `rows[first:last]`.

    `node` : the node in which each row of the chunk ends, float32 of integers, shape (rows,). `margin` : float32, shape
    (rows,).
    """
    for i in range(first, last):
        row = rows[i]
        margin[row] += value_of(bins, positions, models, np.int64(node[row]), np.uint64(row))
