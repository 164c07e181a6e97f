"""The sum of all weights, read before anything else: the sketch scales weights to integers by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from daskboost.data.convert import float_vector
from daskboost.data.device_columns import device_column, exact_sum, many_values
from daskboost.data.source import Source
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum


def total_weight(source: Source, apply: Callable[[Sequence[Any], Callable[[Any], ExactSum]], list[ExactSum]]
                 ) -> float | None:  # fmt: skip
    """Sum of the weights of all rows, reading nothing else; None where rows have none.

    Where rows have weights of their own and weights by class, a bound on it: the sum of the former times the largest of
    the latter. `apply(blocks, function)` runs a function on raw blocks, some of them lazy.

    Raises
    ------
    DataError
        The weights sum to nothing a scale could be made from: NaN, infinite or negative ones among them.
    """
    by_class = source.spec.class_weights
    if not source.has_weights:
        return None if by_class is None else by_class.total
    column = source.spec.weight_column
    if column is not None:
        blocks = source.x.column_blocks(column)
    else:
        assert source.weight is not None
        blocks = source.weight.blocks()
    parts = apply(blocks, _sum)
    total = reduce(add, parts, ExactSum()).value()
    if not 0 <= total < float("inf"):
        raise DataError(f"weight sums to {total}. Give every row a finite weight of at least 0.")
    return total if by_class is None else total * max(by_class.factors)


def _sum(block: Any) -> ExactSum:
    column = None if many_values(block, "weight") is None else device_column(block, "weight")
    return ExactSum.of(float_vector(block, "weight")) if column is None else exact_sum(column)
