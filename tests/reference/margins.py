"""Naive twin of adding leaf values to margins."""

from __future__ import annotations

from collections.abc import Sequence

from daskboost.dtypes import Float32


def add_leaf_values(order: Sequence[int], bounds: Sequence[Sequence[int]], nodes: Sequence[int], values: Float32,
                    margin: Float32) -> None:  # fmt: skip
    """Node by node; `bounds` and `values` are by node, and -1 is none."""
    for node in nodes:
        if node < 0:
            continue
        begin, end = bounds[node]
        for row in order[begin:end]:
            margin[row] = margin[row] + values[node]
