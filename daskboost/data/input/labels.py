"""What a fit must know about its labels before it starts: their range, their weights, their classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from daskboost.data.input.classes import merge_classes, read_codes, unique_labels
from daskboost.data.input.convert import float_vector
from daskboost.data.input.device_read import code_counts, count_nonzero, device_column, exact_sum, many_values
from daskboost.data.input.kinds import is_lazy
from daskboost.data.input.row_batch import DenseRows, DeviceColumn
from daskboost.data.input.row_columns import RowBatch, RowColumns, read_label
from daskboost.data.input.source import Source
from daskboost.dtypes import Float32
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum

T = TypeVar("T")

# The sum of all weights, read before anything else: the sketch scales weights to integers by it.

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
    if not source.has("weight"):
        return None if by_class is None else by_class.total
    parts = apply(source.blocks_of("weight"), _sum)
    total = reduce(add, parts, ExactSum()).value()
    if not 0 <= total < float("inf"):
        raise DataError(f"weight sums to {total}. Give every row a finite weight of at least 0.")
    return total if by_class is None else total * max(by_class.factors)


def _sum(block: Any) -> ExactSum:
    column = None if many_values(block, "weight") is None else device_column(block, "weight")
    return ExactSum.of(float_vector(block, "weight")) if column is None else exact_sum(column)


MAX_CLASSES = 2**16
"""Most classes of a classifier: what `num_class` may be."""


@dataclass(frozen=True)
class LabelStats:
    """A summary of labels and weights; `a + b` is that of both parts, in any order."""

    n_rows: int = 0
    minimum: float = math.inf
    """Smallest label; infinity without rows."""
    maximum: float = -math.inf
    """Largest label; minus infinity without rows."""
    all_integer: bool = True
    """Whether every label is a whole number."""
    max_weight: float = 0.0
    """Largest weight: 1 where rows have none, 0 without rows."""
    positive_weight_rows: int = 0
    """Rows whose weight is above 0: those that count."""

    @classmethod
    def of(cls, batch: RowBatch) -> LabelStats:
        """The summary of one partition; a batch without labels counts its rows and weights only."""
        if batch.n_rows == 0:
            return cls()
        weight = batch.columns.weight
        weights = (1.0, batch.n_rows) if weight is None else _weights(weight)
        return cls(batch.n_rows, *_range(batch.columns.label), *weights)

    def __add__(self, other: LabelStats) -> LabelStats:
        return LabelStats(
            self.n_rows + other.n_rows,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.all_integer and other.all_integer,
            max(self.max_weight, other.max_weight),
            self.positive_weight_rows + other.positive_weight_rows,
        )

    def check_trainable(self) -> None:
        """Refuse data that has nothing to learn from: DataError where there are no rows, or every weight is 0."""
        if self.n_rows == 0:
            raise DataError("X has no rows in any partition. Pass at least one row.")
        if self.positive_weight_rows == 0:
            raise DataError(
                f"weight is 0 in all {self.n_rows} rows. Give at least one row a positive weight; rows whose weight is "
                "zero do not count."
            )


def _range(label: Float32 | DeviceColumn | None) -> tuple[float, float, bool]:
    """Least and greatest label, zero never negative, and whether all are whole numbers."""
    if label is None:
        return math.inf, -math.inf, True
    if isinstance(label, DeviceColumn):
        return *label.ends, label.summary.all_whole
    minimum, maximum = label.min(initial=np.float32(np.inf)), label.max(initial=np.float32(-np.inf))
    return float(minimum) + 0.0, float(maximum) + 0.0, bool((label == np.rint(label)).all())


def _weights(weight: Float32 | DeviceColumn) -> tuple[float, int]:
    """The largest weight, zero never negative, and how many are above 0."""
    if isinstance(weight, DeviceColumn):
        return weight.ends[1], count_nonzero(weight)
    return float(weight.max()) + 0.0, int(np.count_nonzero(weight))


def column_labels(source: Source) -> list[Any]:
    """The raw labels of every partition, or a Delayed for each that reads no features; DataError where there are
    none."""
    if not source.has("label"):
        raise DataError("y is missing. Pass labels as the name of a column of X, or as a collection aligned with X.")
    return source.blocks_of("label")


def _of_labels(source: Source, function: Callable[[Any], T]) -> list[T]:
    """Return what a function gives of each partition's raw labels, where they lie."""
    blocks = column_labels(source)
    if not source.is_dask:
        return [function(computed(block)) for block in blocks]
    from dask import delayed

    return list(source.compute([delayed(function)(block) for block in blocks]))


def label_stats(source: Source) -> LabelStats:
    """The range of a local source's labels, found without reading its features and weights.

    DataError where there are no labels, and for those that `ReadSpec.read` refuses; DataTypeError for text without
    classes.
    """
    source.require_numeric_labels()
    labels = _of_labels(source, partial(read_label, spec=source.spec))
    nothing = (DenseRows(np.empty((len(each), 0), np.float32)) for each in labels)
    parts = (LabelStats.of(RowBatch(none, RowColumns(own))) for none, own in zip(nothing, labels, strict=True))
    return sum(parts, LabelStats())


def find_classes(source: Source) -> npt.NDArray[Any]:
    """The distinct labels of a source, sorted; errors as of `merge_classes`, and DataError for more than a classifier
    can have."""
    return merge_classes(_of_labels(source, _few_labels))


def _few_labels(block: Any) -> npt.NDArray[Any]:
    """The labels of one partition; refused here where they are too many to be sent about."""
    found = unique_labels(block)
    if len(found) > MAX_CLASSES:
        raise DataError(
            f"y has {len(found)} different labels in one partition; at most {MAX_CLASSES} classes are possible. "
            "Unknown label type: continuous. Use DaskBoostRegressor for numbers."
        )
    return found


def count_classes(source: Source, classes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Rows of every class in all partitions; int64, shape (classes,). DataError where a label is none of the
    classes."""
    parts = _of_labels(source, partial(_class_counts, classes=classes))
    total: npt.NDArray[np.int64] = np.sum(parts, axis=0, dtype=np.int64)
    return total


def _class_counts(block: Any, classes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    codes = read_codes(block, classes.tolist())
    if isinstance(codes, DeviceColumn):
        return code_counts(codes, len(classes))
    counts: npt.NDArray[np.int64] = np.bincount(codes.astype(np.intp), minlength=len(classes)).astype(np.int64)
    return counts


def computed(block: Any) -> Any:
    """A block of local input: itself, or what its Delayed (a column of a Parquet file) yields in this thread."""
    return block.compute(scheduler="synchronous") if is_lazy(block) else block
