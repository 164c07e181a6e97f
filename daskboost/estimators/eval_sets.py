"""The evaluation sets of a fit, as its arguments give them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from daskboost.data.input.kinds import NAMED_KINDS, as_array, kind_of
from daskboost.data.input.labels import computed, label_stats
from daskboost.data.input.row_batch import host_column
from daskboost.data.input.row_columns import COLUMNS
from daskboost.data.input.source import Source
from daskboost.dtypes import flat
from daskboost.engine.placed_pairs import placed_pairs
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.metrics.metric import AnyMetric
from daskboost.objectives.objective import Objective
from daskboost.objectives.pair_logit import PairLogitOfPairs

ROUTING = (
    "Searches and cross-validation of scikit-learn pass it on with sklearn.set_config(enable_metadata_routing=True) "
    "and DaskBoostRanker().set_fit_request(qid=True).set_score_request(qid=True); GroupKFold keeps queries whole"
)
"""What messages say to scikit-learn's users whose rows came without queries."""

# What scikit-learn's users expect of input in memory beyond what every input gets: their wording, their leniency.

def features_of(X: Any, owner: str, n_expected: int | None = None) -> Any:
    """X, arrays of objects turned into numbers; anything that has column names, and Dask collections, as they are.

    Parameters
    ----------
    X : any input of `fit` or `predict`
    owner : str
        The estimator, for messages.
    n_expected : int, optional
        Features of the training data.

    Raises
    ------
    DataError, DataTypeError
        No features, another number of them than in training; complex numbers, objects that are no numbers.
    """
    kind = kind_of(X)
    if kind == "numpy":
        X = _real_array(X)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if kind in NAMED_KINDS or len(shape) != 2:
        return X
    if shape[1] == 0:
        raise DataError(
            f"X has 0 feature(s) (shape=({shape[0]}, 0)) while a minimum of 1 is required. Pass at least one column."
        )
    if n_expected is not None and shape[1] != n_expected:
        raise DataError(
            f"X has {shape[1]} features, but {owner} is expecting {n_expected} features as input. Pass the columns of "
            "the training data, in its order."
        )
    return _numbers(X) if kind == "numpy" else X


def labels_of(y: object) -> object:
    """Return labels; arrays of shape (rows, 1) as vectors, with scikit-learn's DataConversionWarning."""
    if not isinstance(y, np.ndarray):
        return y
    labels = flat(np.asarray(y))
    if labels.shape != y.shape:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Change its shape to (n_samples,), e.g. with "
            "y.ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
    return labels


def _real_array(X: object) -> npt.NDArray[Any]:
    """Return features as an array; DataTypeError where its numbers are complex."""
    array = as_array(X)
    if array.dtype.kind == "c":
        raise DataTypeError(
            f"X is of type {array.dtype}. Complex data not supported: pass real and imaginary parts as two features."
        )
    return array


def _numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an array of objects, any other as it is; DataTypeError where some are no numbers."""
    try:
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError) as error:
        message = f"X is an array of objects that are not all numbers: {error}. Encode them as numbers."
        raise DataTypeError(message) from error


class RowSet(NamedTuple):
    """Rows of a fit, as its arguments give them."""

    X: object
    y: object
    beside: Mapping[str, Any]
    """What else goes with the rows, by the arguments of `make_source`; the same names in all sets of a fit."""

    def same_as(self, other: RowSet) -> bool:
        """Whether it is made of the very same objects, so that it need not be quantized again."""
        own = all(self.beside[name] is other.beside[name] for name in self.beside)
        return own and self.X is other.X and self.y is other.y


def evaluation_sets(eval_set: object, beside: Mapping[str, tuple[str, object]]) -> list[RowSet]:
    """Join the arguments that `fit` has for evaluation sets; ParameterError where they are no list of pairs, or lists
    of different lengths.

    Parameters
    ----------
    eval_set : list of (X, y), or None
    beside : mapping
        Argument and value, a list of one entry per set, of what else goes with the rows, by the names of `RowSet`.
    """
    pairs = [] if eval_set is None else eval_set
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ParameterError(f"eval_set is {_shape(eval_set)}; pass a list of pairs: eval_set=[(X_valid, y_valid)]")
    columns = {name: _per_set(argument, values, len(pairs)) for name, (argument, values) in beside.items()}
    return [RowSet(X, y, {name: own[i] for name, own in columns.items()}) for i, (X, y) in enumerate(pairs)]


def check_labels(sources: Sequence[Source], objective: Objective) -> None:
    """Judge the labels of local sets before the training rows are quantized: DataError with the set where the objective
    is not defined for labels, they are missing, or are no known class.

    Those of a Dask collection may cost as much as reading all of it, and are judged when that happens.
    """
    for i, source in enumerate(sources):
        if source.is_dask:
            continue
        try:
            objective.check_labels(label_stats(source))
        except DataError as error:
            raise type(error)(f"eval_set[{i}]: {error}") from error


def check_queries(source: Source, sets: Sequence[Source], objective: Objective, metrics: Sequence[AnyMetric]) -> None:
    """Refuse rows without queries before any is read, where the objective or a metric needs these: DataError."""
    of_metrics = [f"eval_metric={metric.name!r}" for metric in metrics if metric.by_query]
    if objective.query_loss is not None:
        of_metrics.insert(0, f"objective={objective.name!r}")
        if not source.has("qid"):
            raise DataError(f"{of_metrics[0]} ranks the rows of queries; pass qid, the query of each row. {ROUTING}")
        _check_weights(source, objective)
    for i, own in enumerate(sets if of_metrics else ()):
        if not own.has("qid"):
            raise DataError(f"eval_set[{i}] has no queries, which {of_metrics[0]} needs; pass them in eval_qid")
        try:
            _check_weights(own)
        except DataError as error:
            raise DataError(f"eval_set[{i}]: {error}") from error


def _check_weights(source: Source, objective: Objective | None = None) -> None:
    """Refuse local rows of a query with different weights, and given pairs of an objective that are not of rows of a
    query; these are read without features: DataError."""
    of_pairs = isinstance(objective, PairLogitOfPairs)
    if source.is_dask or not (source.has("qid") and (of_pairs or source.has("weight"))):
        return
    qid, weight = (
        [host_column(COLUMNS[name].read(computed(block), source.spec)) for block in source.blocks_of(name)]
        if source.has(name) else [] for name in ("qid", "weight")
    )
    if not qid:
        return
    rows = QueryRows.of(
        np.concatenate(qid).astype(np.int64), np.zeros(sum(map(len, qid)), np.float32),
        np.concatenate(weight) if weight else None,
    )  # fmt: skip
    if isinstance(objective, PairLogitOfPairs):
        objective.check_rows(sum(map(len, qid)))
        placed_pairs(objective.pairs, rows)


def _per_set(name: str, values: object, n_sets: int) -> Sequence[Any]:
    if values is None:
        return [None] * n_sets
    if not isinstance(values, list | tuple) or len(values) != n_sets:
        raise ParameterError(f"{name} is {_shape(values)}, but eval_set has {n_sets} sets; give one entry for each")
    return values


def _shape(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(item).__name__ for item in value)}"
    return f"of type {type(value).__name__}"
