"""What models of leaves add to the margins of rows of values, whose leaves are known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Csr, Float32, Int8, Int32, Int64


class PackedModels(NamedTuple):
    """Models of the leaves of a forest; nodes are numbered over all trees."""

    node_start: Int64
    """The number of each tree's root, shape (trees,)."""
    output: Int32
    """The output that each tree adds to, shape (trees,)."""
    value: Float32
    """What a leaf adds to the margin of a row in position 0, shape (nodes,)."""
    column: Int32
    """The column of each term's positions, -1 behind the terms; shape (nodes, terms)."""
    slope: Float32
    """Shape (nodes, terms)."""
    column_of: Int32
    """The column of each feature's positions, -1 where models have it not; shape (features,)."""
    cut_begin: Int64
    """Where the cut points of each column begin, shape (columns + 1,)."""
    cuts: Float32
    position_begin: Int64
    """Where the positions of each column's bins begin, shape (columns + 1,)."""
    position: Int8


@njit(nogil=True)
def _position(models: PackedModels, column: np.int32, value: np.float32) -> np.int8:
    """The position of a value that is there: of the bin of as many cut points as are not above it."""
    begin, end = models.cut_begin[column], models.cut_begin[column + 1]
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if models.cuts[middle] <= value:
            low = middle + 1
        else:
            high = middle
    found: np.int8 = models.position[models.position_begin[column] + low - begin]
    return found


@njit(cache=True, nogil=True)
def dense_positions(models: PackedModels, values: Float32, positions: Int8) -> None:
    """Write the positions of rows of a dense matrix, NaN missing; `positions` : int8, shape (rows, columns)."""
    for row in range(len(values)):
        for feature in range(min(len(models.column_of), values.shape[1])):
            column = models.column_of[feature]
            if column >= 0:
                value = values[row, feature]
                positions[row, column] = np.int8(0) if np.isnan(value) else _position(models, column, value)


@njit(cache=True, nogil=True)
def sparse_positions(models: PackedModels, entries: Csr, positions: Int8) -> None:
    """Do what `dense_positions` does for a CSR matrix."""
    positions[:] = 0
    for row in range(len(positions)):
        for entry in range(entries.indptr[row], entries.indptr[row + 1]):
            feature = entries.indices[entry]
            column = models.column_of[feature] if feature < len(models.column_of) else np.int32(-1)
            if column >= 0:
                positions[row, column] = _position(models, column, entries.values[entry])


@njit(cache=True, nogil=True)
def add_models(models: PackedModels, positions: Int8, leaves: Int32, first_tree: int, margins: Float32) -> None:
    """Add trees from `first_tree` on, in order, to margins, shape (rows, outputs).

    `leaves` : int32, shape (rows, trees), the node of each tree in which a row ends, numbered within its tree. The
    arithmetic is that of `leaf_models.add_modelled`.
    """
    for tree in range(leaves.shape[1]):
        start, output = models.node_start[first_tree + tree], models.output[first_tree + tree]
        for row in range(len(leaves)):
            node = start + leaves[row, tree]
            total = np.float64(models.value[node])
            for k in range(models.column.shape[1]):
                column = models.column[node, k]
                if column < 0:
                    break
                total += np.float64(models.slope[node, k]) * np.float64(positions[row, column])
            margins[row, output] += np.float32(total)
