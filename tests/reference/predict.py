"""Prediction in the plainest words: one row, one tree, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.dtypes import Float32, Int32
from daskboost.tree.table import TreeTable


def leaf_of(tree: TreeTable, row: Float32) -> int:
    """The leaf in which a row ends."""
    node = 0
    while tree.left_child[node] >= 0:
        value, codes = row[tree.feature[node]], tree.sets.of(node).tolist()
        if np.isnan(value):
            goes_left = bool(tree.default_left[node])
        elif codes:
            goes_left = not (0 <= value < 2**24 and int(value) in codes)
        else:
            goes_left = bool(value < tree.threshold[node])
        node = int(tree.left_child[node] if goes_left else tree.right_child[node])
    return node


def leaves(trees: Sequence[TreeTable], rows: Float32) -> Int32:
    """Shape (rows, trees)."""
    return np.array([[leaf_of(tree, row) for tree in trees] for row in rows], np.int32).reshape(len(rows), len(trees))


def margins(trees: Sequence[TreeTable], outputs: Sequence[int], rows: Float32, start: Float32) -> Float32:
    """Float32 sums in tree order, from margins of shape (rows, outputs)."""
    result = start.copy()
    for i, row in enumerate(rows):
        for tree, output in zip(trees, outputs, strict=True):
            value = tree.value[leaf_of(tree, row)]
            for k, own in enumerate(value) if tree.value.ndim == 2 else [(output, value)]:  # vectors are of all outputs
                result[i, k] = np.float32(result[i, k] + own)
    return result
