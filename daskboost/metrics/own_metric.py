"""A user's own metric, as a function of all labels and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, flat
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.metric import Arrays, Metric
from daskboost.params import check_call, keyword_of, shown

OF_WEIGHTS = "sample_weight"
"""The parameter by which functions take weights, as those of scikit-learn do."""
MetricFunction = Callable[..., float | tuple[str, float]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows whose global ids follow each other.

    Parameters
    ----------
    first_row : int
        Global id of the first one.
    label : array, shape (n,), n >= 1
    prediction : array, shape (n,) or (n, outputs)
    weight : array, shape (n,), or None
    """

    first_row: int
    label: Array
    prediction: Array
    weight: Array | None

    @property
    def end(self) -> int:
        """Global id behind the last row."""
        return self.first_row + len(self.label)


@dataclass(frozen=True, eq=False)
class RowsState:
    """Segments of rows in order of their global ids; joined only on the wire and for the value."""

    segments: tuple[Rows, ...] = ()

    def __add__(self, other: RowsState) -> RowsState:
        segments = sorted((*self.segments, *other.segments), key=lambda rows: rows.first_row)
        for rows, following in pairwise(segments):
            if rows.end > following.first_row:
                raise DataError(
                    f"first_row: two partitions claim row {following.first_row}; number the rows of a data set once"
                )
            if (rows.weight is None) != (following.weight is None):
                raise DataError("weight: given for some partitions of a data set only; give it for all or for none")
        return RowsState(tuple(segments))

    def joined(self) -> Rows:
        """The columns of all segments in order; there must be one. Its ids follow each other once all are merged."""
        first, *others = self.segments
        if not others:
            return first
        weights = [rows.weight for rows in self.segments if rows.weight is not None]
        return Rows(
            first.first_row,
            np.concatenate([rows.label for rows in self.segments]),
            np.concatenate([rows.prediction for rows in self.segments]),
            np.concatenate(weights) if weights else None,
        )

    def to_arrays(self) -> Arrays:
        arrays: Arrays = {
            "first_rows": np.array([rows.first_row for rows in self.segments], dtype=np.int64),
            "lengths": np.array([len(rows.label) for rows in self.segments], dtype=np.int64),
        }
        if not self.segments:
            return arrays
        rows = self.joined()
        arrays |= {"label": rows.label, "prediction": rows.prediction}
        return arrays if rows.weight is None else {**arrays, "weight": rows.weight}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RowsState:
        """The inverse of `to_arrays`; raises DataError where arrays are absent or contradict each other."""
        has_rows = len(arrays.get("lengths", ())) > 0
        missing = {"first_rows", "lengths", *(("label", "prediction") if has_rows else ())} - arrays.keys()
        if missing:
            raise DataError(f"arrays: {sorted(missing)} are absent; pass what RowsState.to_arrays returned")
        lengths, columns = arrays["lengths"], [arrays[k] for k in ("label", "prediction", "weight") if k in arrays]
        if len(arrays["first_rows"]) != len(lengths) or any(len(column) != lengths.sum() for column in columns):
            raise DataError("arrays: their lengths contradict each other; pass what RowsState.to_arrays returned")
        ends = np.cumsum(lengths).tolist()
        parts = (
            (int(first), slice(end - int(length), end))
            for first, length, end in zip(arrays["first_rows"], lengths, ends, strict=True)
        )
        weight = arrays.get("weight")
        return cls(
            tuple(
                Rows(first, arrays["label"][at], arrays["prediction"][at], None if weight is None else weight[at])
                for first, at in parts
            )
        )


@dataclass(frozen=True)
class CustomMetric(Metric[RowsState]):
    """The number that a function gives of all rows.

    Every evaluation gathers labels and predictions of the whole evaluation set, 8 bytes a row and more, in global
    row order; the built-in metrics gather sums instead.

    Parameters
    ----------
    function : callable
        ``f(y_true, y_pred) -> float`` or ``-> (name, float)``; weights are passed where it has a parameter
        ``sample_weight``, None where rows have none and it has no default. `y_true` has shape (n,), `y_pred` (n,) or
        (n, outputs): probabilities or means, not margins.
    maximize_it : bool, default False
        Whether larger is better: the function's attribute `maximize` where it has one, else whether it is one of
        scikit-learn's ``..._score``, which by its convention are to be maximised.
    """

    base_name: ClassVar[str] = "custom"
    needs_rows: ClassVar[bool] = True
    function: MetricFunction
    maximize_it: bool = False

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def maximize(self) -> bool:
        return self.maximize_it

    def partial(self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0) -> RowsState:
        if len(prediction) != len(label):
            raise DataError(f"prediction has {len(prediction)} rows, labels have {len(label)}; they must be aligned")
        if len(label) == 0:
            return RowsState()
        return RowsState((Rows(first_row, label, np.ascontiguousarray(flat(prediction)), weight),))

    def value(self, state: RowsState) -> float:
        return self.named_value(state)[1]

    def named_value(self, state: RowsState) -> tuple[str, float]:
        if not state.segments:
            return self.name, math.nan
        rows = state.joined()
        keywords, weight = {}, keyword_of(self.function, OF_WEIGHTS)
        if weight is not None and (rows.weight is not None or weight.default is weight.empty):
            keywords = {OF_WEIGHTS: None if rows.weight is None else np.array(rows.weight)}
        result = self.function(np.array(rows.label), np.array(rows.prediction), **keywords)  # which may write to them
        name, number = result if isinstance(result, tuple) and len(result) == 2 else (self.name, result)
        try:
            return str(name), float(number)
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"metric {self.name!r} returned {result!r}; it must return a number, or a name and a number"
            ) from error

    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> RowsState:
        return RowsState.from_arrays(arrays)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        function = params.get("function")
        if not callable(function):
            raise ParameterError(f"eval_metric={shown(function)} is no name and no function f(y_true, y_pred)")
        weight = keyword_of(function, OF_WEIGHTS)
        check_call(
            "eval_metric", function, "f(y_true, y_pred)", *([] if weight is None else [OF_WEIGHTS]),
            remedy="take these two arguments, and sample_weight=None where weights shall count",
        )  # fmt: skip
        return cls(function, bool(getattr(function, "maximize", _is_score(function))))


def _is_score(function: MetricFunction) -> bool:
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__name__", ""))
    return module.split(".")[:2] == ["sklearn", "metrics"] and name.endswith("_score")
