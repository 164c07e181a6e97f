"""Naive twin of models of leaves: exact fractions, row by row, rounded once to float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from daskboost.tree.table import TreeTable

REACH, MOST_TERMS = 127, 5
LEAST_VARIANCE = Fraction(1e-9)


def position(n_bins: int, symbol: int) -> int:
    """Position of a bin, in even steps; 0 for the missing value, and in a feature of one bin."""
    if symbol >= n_bins or n_bins == 1:
        return 0
    return math.floor(Fraction(REACH * (2 * symbol - (n_bins - 1)), n_bins - 1) + Fraction(1, 2))


def terms_of(tree: TreeTable, leaf: int, usable: Sequence[bool]) -> list[int]:
    """The last distinct usable features of a leaf's path, from the leaf up."""
    found: list[int] = []
    node = leaf
    while (node := int(tree.parent[node])) >= 0:
        feature = int(tree.feature[node])
        if usable[feature] and feature not in found:
            found.append(feature)
    return found[:MOST_TERMS]


def slopes(x: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]], units: tuple[float, float], ridge: float
           ) -> tuple[list[Fraction], list[Fraction]]:  # fmt: skip
    """Slopes before the learning rate, and weighted means, of the columns of a leaf's rows; no slopes where there are
    none. `pairs` : integers of g and h of each row."""
    unit_g, unit_h = map(Fraction, units)
    g, h = [unit_g * own for own, _ in pairs], [unit_h * own for _, own in pairs]
    total, columns = sum(h), list(zip(*x, strict=True))
    if total <= 0:
        return [], []
    mean = [sum(a * b for a, b in zip(h, column, strict=True)) / total for column in columns]
    centred = [[value - own for value in column] for column, own in zip(columns, mean, strict=True)]
    squares = [sum(a * b * b for a, b in zip(h, column, strict=True)) for column in columns]
    n = len(columns)
    matrix = [
        [sum(w * a * b for w, a, b in zip(h, centred[j], centred[k], strict=True)) for k in range(n)] for j in range(n)
    ]
    used = [j for j in range(n) if matrix[j][j] > LEAST_VARIANCE * squares[j]]
    if not used:
        return [], []
    for j in used:
        matrix[j][j] += Fraction(ridge) * (matrix[j][j] / total)
    right = [-sum(a * b for a, b in zip(g, column, strict=True)) for column in centred]
    values = solved([[matrix[j][k] for k in used] for j in used], [right[j] for j in used])
    found = [Fraction(0)] * n
    for j, value in zip(used, values, strict=False):
        found[j] = value
    return (found, mean) if values else ([], [])


def solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Gauss's elimination of a positive definite matrix; nothing where it is none, but for rounding."""
    n = len(right)
    least = [LEAST_VARIANCE * matrix[j][j] for j in range(n)]
    for j in range(n):
        if matrix[j][j] <= least[j]:
            return []
        for i in range(j + 1, n):
            factor = matrix[i][j] / matrix[j][j]
            matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[j], strict=True)]
            right[i] -= factor * right[j]
    found = [Fraction(0)] * n
    for j in reversed(range(n)):
        found[j] = (right[j] - sum(matrix[j][k] * found[k] for k in range(j + 1, n))) / matrix[j][j]
    return found


def fitted(x: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]], units: tuple[float, float], rates: Any,
           value: np.float32) -> tuple[np.float32, list[np.float32]]:  # fmt: skip
    """A leaf's value at position 0 and its slopes; `rates` : penalty, least hessian and learning rate."""
    ridge, least_h, learning_rate = rates
    if not x or not x[0] or Fraction(units[1]) * sum(own for _, own in pairs) < Fraction(least_h):
        return value, []
    found, mean = slopes(x, pairs, units, ridge)
    if not found:
        return value, []
    rounded = [np.float32(float(slope * Fraction(learning_rate))) for slope in found]
    middle = Fraction(float(value)) - sum(Fraction(float(a)) * b for a, b in zip(rounded, mean, strict=True))
    return np.float32(float(middle)), rounded


def added(tree: TreeTable, leaf: int, positions: Mapping[int, int]) -> np.float32:
    """What a row adds to its margin, given its position in each feature."""
    total = Fraction(float(tree.value[leaf]))
    total += sum((Fraction(slope) * positions[feature] for feature, slope in tree.models.terms(leaf)), Fraction(0))
    return np.float32(float(total))
