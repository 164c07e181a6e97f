"""Naive twin of adding leaf values to margins."""

from __future__ import annotations

from collections.abc import Sequence

from daskboost.dtypes import Float32


def add_leaf_values(position: Sequence[int], values: Float32, margin: Float32) -> None:
    """Row by row; a position that is no index of `values` is of a row that grows no tree."""
    for row, node in enumerate(position):
        if node < len(values):
            margin[row] = margin[row] + values[node]


def add_leaf_values_in_order(order: Sequence[int], ends: Sequence[int], values: Float32, margin: Float32) -> None:
    """Segment by segment."""
    begin = 0
    for end, value in zip(ends, values, strict=True):
        for row in order[begin:end]:
            margin[row] = margin[row] + value
        begin = end
