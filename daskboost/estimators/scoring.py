"""`score` of estimators: summed exactly per partition, so that no division into partitions changes the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import TypeVar

import numpy as np

from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_batch import DenseRows, host_column
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.data.input.source import Source
from daskboost.dtypes import Float32, Float64, Int64
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, ParameterError
from daskboost.estimators.eval_sets import ROUTING
from daskboost.exact_sum import ExactSum
from daskboost.metrics.metric_names import make_metric
from daskboost.model.output import PredictRequest, class_codes
from daskboost.model.route import run

T = TypeVar("T")


@dataclass(frozen=True)
class Sums:
    """Some sums over rows; `+` merges partitions in any order."""

    n_rows: int
    sums: tuple[ExactSum, ...]

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.n_rows + other.n_rows, tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)))


def accuracy(source: Source, request: PredictRequest) -> float:
    """Weighted share of rows whose class is predicted.

    Parameters
    ----------
    source : Source
        Labelled rows; labels are codes of classes, those the model does not know behind its own.
    request : PredictRequest
        For margins.
    """
    total = _summed(source, partial(_hits, request=request))
    return total.sums[0].ratio(total.sums[1])


def r2(source: Source, request: PredictRequest) -> float:
    """Coefficient of determination, 1 - squared errors / squared deviations from the weighted mean of the labels.

    As in scikit-learn, of labels that are all the same it is 1 where predictions are perfect and else 0, and of less
    than two rows it is NaN.

    Raises
    ------
    ParameterError
        When the model predicts several values per row.
    """
    if request.empty().ndim > 1:
        raise ParameterError("score needs one prediction per row, but the model predicts several; score each by itself")
    # labels are taken relative to a constant near them, or the sum of squares would lose the deviations' digits
    shift = float(np.mean(request.booster.base_score))
    total = _summed(source, partial(_squares, request=request, shift=shift))
    if total.n_rows < 2:
        return float("nan")
    weights, errors, labels, squares = (part.value() for part in total.sums)
    deviations = squares - labels * labels / weights
    if deviations <= 1e-15 * squares:
        return 1.0 if errors == 0 else 0.0
    return 1.0 - errors / deviations


def ndcg(source: Source, request: PredictRequest, defaults: Mapping[str, object]) -> float:
    """NDCG of whole rankings, averaged over queries by their weights; `defaults` of metrics say what labels gain.

    Raises
    ------
    DataError
        Rows without queries, labels without gains, weights that differ within a query or are all 0.
    """
    if not source.has("qid"):
        raise DataError(f"score needs qid: the name of a column of X, or a collection aligned with X. {ROUTING}")
    parts = _mapped(source, partial(_ranked, request=request))
    label, weight, qid, prediction = map(np.concatenate, zip(*parts, strict=True))
    metric = make_metric("ndcg", defaults)
    if not np.any(weight > 0):
        why = "sample_weight is 0 in all rows; give a weight above 0 to some query" if len(weight) else "X has no rows"
        raise DataError(f"score has no query to average over: {why}")
    metric.prepare(LabelStats.of(RowBatch(DenseRows(np.empty((len(label), 0), np.float32)), RowColumns(label))))
    found: float = metric.value(metric.of_queries(QueryRows.of(qid, label, weight), prediction))
    return found


def _ranked(batch: RowBatch, request: PredictRequest) -> tuple[Float32, Float32, Int64, Float32]:
    """Return labels, weights, queries and predictions of a partition's rows."""
    label, weight, qid = batch.columns.label, batch.columns.weight, batch.columns.qid
    assert label is not None and qid is not None
    weights = np.ones(batch.n_rows, np.float32) if weight is None else host_column(weight)
    return host_column(label), weights, qid, run(request, [batch])


def _hits(batch: RowBatch, request: PredictRequest) -> Sums:
    codes = class_codes(run(request, [batch]))
    weights, labels = _weights_and_labels(batch)
    return Sums(batch.n_rows, (ExactSum.of(weights[codes == labels]), ExactSum.of(weights)))


def _squares(batch: RowBatch, request: PredictRequest, shift: float) -> Sums:
    weights, labels = _weights_and_labels(batch)
    errors = weights * (labels - run(request, [batch])) ** 2
    labels = labels - shift
    parts = (weights, errors, weights * labels, weights * labels**2)
    return Sums(batch.n_rows, tuple(ExactSum.of(part) for part in parts))


def _weights_and_labels(batch: RowBatch) -> tuple[Float64, Float64]:
    label, weight = batch.columns.label, batch.columns.weight
    assert label is not None
    weights = np.ones(batch.n_rows) if weight is None else host_column(weight).astype(np.float64)
    return weights, host_column(label).astype(np.float64)


def _summed(source: Source, function: Callable[[RowBatch], Sums]) -> Sums:
    return reduce(add, _mapped(source, function))


def _mapped(source: Source, function: Callable[[RowBatch], T]) -> Sequence[T]:
    """Return what a function makes of each partition, in order."""
    if not source.has("label"):
        raise DataError("score needs y: the name of a column of X, or a collection aligned with X")
    source = source.read_late()
    if not source.is_dask:
        return list(map(function, source.batches()))
    from dask import delayed

    one = delayed(function)
    parts: Sequence[T] = source.compute([one(batch) for batch in source.delayed()])
    return parts
