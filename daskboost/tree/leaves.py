"""Leaf values and gains from exact sums, of one output or of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.cpu import split, split_vectors
from daskboost.dtypes import Float64, Int64
from daskboost.tree.split import SplitRules


def leaf_weights(rules: SplitRules, sums: Int64, units: Sequence[float], bounds: Float64) -> Float64:
    """Leaf values before the learning rate; float64, shape (nodes,), or (nodes, outputs) of several outputs.

    Parameters
    ----------
    sums : int64, shape (nodes, 2 * outputs)
    units : sequence of float
        What one quantum of each is worth.
    bounds : float64, shape (nodes, 2)
        Limits of the values of one output; vectors have none.
    """
    if len(units) > 2:
        return split_vectors.vector_weights(sums, np.array(units), rules.regular)
    return split.leaf_weights(sums, units[0], units[1], rules.regular, bounds)


def split_values(rules: SplitRules, sums: Int64, left: Int64, units: Sequence[float], bounds: Float64
                 ) -> tuple[Float64, Float64, Float64]:  # fmt: skip
    """Gains of splits, and the values of their left and of their right children; `left` are the left ones' sums."""
    if len(units) > 2:
        gain = split_vectors.vector_gains(sums, left, np.array(units), rules.regular)
        return gain, leaf_weights(rules, left, units, bounds), leaf_weights(rules, sums - left, units, bounds)
    return split.split_values(sums, left, units[0], units[1], rules.regular, bounds)
