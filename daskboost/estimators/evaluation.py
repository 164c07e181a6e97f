"""The evaluation sets of a fit, as its arguments give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from daskboost.data.labels import label_stats
from daskboost.data.source import Source
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.base import Objective


class EvaluationSet(NamedTuple):
    """One set: the arguments of the same names in `fit`."""

    X: object
    y: object
    sample_weight: object
    base_margin: object

    def same_as(self, other: EvaluationSet) -> bool:
        """Whether it is made of the very same objects, so that it need not be quantized again."""
        return all(a is b for a, b in zip(self, other, strict=True))


def evaluation_sets(eval_set: object, sample_weights: object, base_margins: object) -> list[EvaluationSet]:
    """Join the arguments `eval_set`, `sample_weight_eval_set` and `base_margin_eval_set`.

    Raises
    ------
    ParameterError
        No list of pairs; lists of different lengths.
    """
    pairs = [] if eval_set is None else eval_set
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ParameterError(f"eval_set is {_shape(eval_set)}; pass a list of pairs: eval_set=[(X_valid, y_valid)]")
    weights = _per_set("sample_weight_eval_set", sample_weights, len(pairs))
    margins = _per_set("base_margin_eval_set", base_margins, len(pairs))
    return [EvaluationSet(X, y, w, m) for (X, y), w, m in zip(pairs, weights, margins, strict=True)]


def check_labels(sources: Sequence[Source], objective: Objective) -> None:
    """Judge the labels of local sets before the training rows are quantized.

    Those of a Dask collection may cost as much as reading all of it, and are judged when that happens.

    Raises
    ------
    DataError
        Naming the set: labels that the objective is not defined for, that are missing, or that are no known class.
    """
    for i, source in enumerate(sources):
        if source.is_dask:
            continue
        try:
            objective.check_labels(label_stats(source))
        except DataError as error:
            raise type(error)(f"eval_set[{i}]: {error}") from error


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
