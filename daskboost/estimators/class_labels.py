"""Class labels of any type: as codes in the fit, as themselves in predictions, as text in model files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.classes import ClassWeights, class_array
from daskboost.data.input.kinds import DEVICE_KINDS, kind_of
from daskboost.data.input.labels import count_classes, find_classes
from daskboost.data.input.source import Source
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.model.booster import Booster
from daskboost.model.output import class_codes, class_probabilities
from daskboost.model.route import array_module, frame_of
from daskboost.objectives.objective import Objective
from daskboost.objectives.own_objective import CustomObjective
from daskboost.params import shown
from daskboost.training.callbacks import Callback, LearningRateSchedule, RoundInfo

if TYPE_CHECKING:
    import cudf
    import pandas as pd

# Functions of rows, applied to what `Booster.predict` returns: at once to arrays, lazily to Dask collections.

RowFunction = Callable[[Any], Any]
_IN, _OUT = "xy", "op"
"""Names of an array's axes behind its rows, before and after."""


def map_rows(result: Any, function: RowFunction, names: str | Sequence[Any]) -> Any:
    """Apply a function to every row.

    Parameters
    ----------
    result : numpy or CuPy array, Dask Array, Dask Series or DataFrame
    function : callable
        Arrays of shape (rows, ...) to arrays of as many rows; picklable; also called with no rows, for the dtype.
    names : str or sequence
        Of the resulting Series, or of the resulting DataFrame's columns.
    """
    kind = kind_of(result)
    if kind == "numpy" or kind in DEVICE_KINDS:
        return function(result)
    if kind == "dask_dataframe":
        return result.map_partitions(
            _map_frame, function, names, meta=_map_frame(result._meta, function, names), enforce_metadata=False
        )
    import dask.array as da

    empty = function(np.empty_like(result._meta, shape=(0, *result.shape[1:]), dtype=result.dtype))
    return da.blockwise(
        function,
        "r" + _OUT[: empty.ndim - 1],
        result,
        "r" + _IN[: result.ndim - 1],
        new_axes=dict(zip(_OUT, empty.shape[1:], strict=False)),
        concatenate=True,
        dtype=empty.dtype,
        meta=empty,
    )


def _map_frame(
    frame: pd.DataFrame | pd.Series | cudf.DataFrame, function: RowFunction, names: str | Sequence[Any]
) -> pd.DataFrame | pd.Series | cudf.DataFrame:
    if kind_of(frame) == "cudf":
        return frame_of(function(frame.to_cupy()), frame.index, names if isinstance(names, str) else list(names))
    import pandas as pd

    values = function(np.asarray(frame))
    if not isinstance(names, str):
        return pd.DataFrame(values, index=frame.index, columns=list(names))
    # a Series of strings takes pandas' string type, also when it is empty and has nothing to infer it from
    dtype = pd.Series(["a"]).dtype if values.dtype == object else values.dtype
    return pd.Series(values, index=frame.index, name=names, dtype=dtype)


ATTRIBUTE = "daskboost_classes"
"""Model attribute (`learner.attributes` in files) with the labels of the codes, where they are not 0, 1, 2, ..."""
CLASS_OBJECTIVES = ("binary:", "multi:")
"""How names of objectives begin whose outputs are scores of classes."""


def has_classes(booster: Booster) -> bool:
    """Return whether a model tells classes: by its objective, by the labels it keeps, or by a function in memory."""
    objective = booster.objective
    is_custom = isinstance(objective, CustomObjective)
    return is_custom or objective.name.startswith(CLASS_OBJECTIVES) or ATTRIBUTE in booster.attributes


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """The classes of a classifier, in the order of their codes."""

    classes: npt.NDArray[Any]
    """Distinct; booleans, integers, floats, or strings as objects."""

    @classmethod
    def found_in(cls, source: Source) -> ClassLabels:
        """Return the labels of all partitions, sorted; DataError for a single class, a missing or infinite label, or a
        fraction."""
        classes = find_classes(source)
        if classes.dtype.kind == "f" and not np.isfinite(classes).all():
            raise DataError("y has infinite labels, which name no class; replace them or drop these rows")
        fractions = classes[classes != np.rint(classes)] if classes.dtype.kind == "f" else classes[:0]
        if len(fractions):
            raise DataError(
                f"y has {len(classes)} distinct values that are not whole numbers, such as {float(fractions[0])}. "
                "Unknown label type: continuous. Use DaskBoostRegressor, or turn the values into classes."
            )
        if len(classes) < 2:
            raise DataError(
                f"y has only one class, {classes.tolist()[0]!r}, in all rows; a classifier needs at least two. "
                "Pass rows of another class, or check how y was made."
            )
        return cls(classes)

    @classmethod
    def of_model(cls, booster: Booster) -> ClassLabels:
        """Return the labels of a model: its attribute, or else 0, 1, 2, ...

        Raises
        ------
        ParameterError
            The model's predictions are numbers, not classes.
        ModelFormatError
            The attribute is damaged.
        """
        if not has_classes(booster):
            raise ParameterError(
                f"DaskBoostClassifier cannot be a model of objective {booster.objective.name!r}, whose predictions are "
                "numbers, not classes; use DaskBoostRegressor, or Booster.load_model for any model"
            )
        k = max(2, booster.n_outputs)
        text = booster.attributes.get(ATTRIBUTE)
        if text is None:
            return cls(np.arange(k))
        try:
            found = json.loads(text)
            classes = class_array(np.array(found["labels"], dtype=_dtype(found["dtype"])))
        except (ValueError, TypeError, KeyError) as error:
            raise ModelFormatError(f"the model's attribute {ATTRIBUTE!r} is damaged: {error}") from error
        if len(classes) != k:
            raise ModelFormatError(f"the model's attribute {ATTRIBUTE!r} has {len(classes)} classes, its outputs {k}")
        return cls(classes)

    def attributes(self, objective: Objective) -> dict[str, str]:
        """Return what a model file must keep of them; nothing for 0, 1, 2, ..., which every reader assumes.

        A custom objective is stored as one of numbers, so that its classes say that there are any.
        """
        counted = self.classes.dtype.kind in "iu" and np.array_equal(self.classes, np.arange(len(self.classes)))
        if counted and objective.name.startswith(CLASS_OBJECTIVES):
            return {}
        kind = "str" if self.classes.dtype.kind == "O" else self.classes.dtype.name
        return {ATTRIBUTE: json.dumps({"dtype": kind, "labels": self.classes.tolist()})}

    def stored_in(self, booster: Booster) -> Booster:
        """The model with its classes."""
        others = {name: value for name, value in booster.attributes.items() if name != ATTRIBUTE}
        return replace(booster, attributes={**others, **self.attributes(booster.objective)})

    def weighted(self, source: Source, class_weight: str | Mapping[Any, float] | None) -> Source:
        """An encoded source whose rows weigh what their class does, times their own weight.

        Parameters
        ----------
        class_weight : "balanced", mapping of label to weight, or None
            Classes that a mapping lacks weigh 1. "balanced" gives all classes the same sum:
            ``rows / (classes * rows of the class)`` (King and Zeng, "Logistic Regression in Rare Events Data", 2001).
        """
        if class_weight is None:
            return source
        balanced = isinstance(class_weight, str) and class_weight == "balanced"
        given = None if balanced else self._given(class_weight)
        counts = count_classes(source, self.classes)
        if given is None:
            given = [float(counts.sum() / (len(counts) * n)) if n else 1.0 for n in counts.tolist()]
        weights = ClassWeights(tuple(given), tuple(counts.tolist()))
        return replace(source, spec=replace(source.spec, class_weights=weights))

    def _given(self, class_weight: object) -> list[float]:
        if not isinstance(class_weight, Mapping):
            raise ParameterError(
                f"class_weight={shown(class_weight)}: give 'balanced', a mapping of label to weight, or None"
            )
        labels = self.classes.tolist()
        unknown = [label for label in class_weight if label not in labels]
        if unknown:
            raise ParameterError(f"class_weight has labels that y has not: {unknown}; the classes are {labels}")
        weights = []
        for label in labels:
            try:
                weights.append(float(class_weight.get(label, 1.0)))
            except (TypeError, ValueError, OverflowError):
                weights.append(np.nan)
            if not 0 <= weights[-1] < np.inf:
                raise ParameterError(
                    f"class_weight gives {label!r} the weight {shown(class_weight[label])}; weights are finite and "
                    "at least 0"
                )
        return weights

    def of_margins(self, margins: Any) -> Any:
        """The most probable label of every row; `margins` as `Booster.predict` gives them.

        On a GPU where the margins lie there, but for labels that are strings, which NumPy alone has.
        """
        return map_rows(margins, partial(_labels, classes=self.classes), "prediction")

    def probabilities(self, margins: Any) -> Any:
        """The probability of every class, float32, shape (rows, classes)."""
        return map_rows(margins, _probabilities, self.classes.tolist())


def _labels(margins: Float32, classes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    codes = class_codes(margins)
    labels = to_host(codes) if classes.dtype.kind == "O" else codes
    known = classes if classes.dtype.kind == "O" else array_module(margins).asarray(classes)
    found: npt.NDArray[Any] = known[labels]
    return found


def _probabilities(margins: Float32) -> Float32:
    return class_probabilities(margins, array_module(margins))


def _dtype(name: str) -> np.dtype[Any]:
    if name == "str":
        return np.dtype(object)
    dtype = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {name!r} is none of class labels")
    return dtype


class OfClasses(Callback):
    """Another callback, which sees the models of a classifier with their classes, as files of them must have them."""

    def __init__(self, callback: Callback, labels: ClassLabels) -> None:
        self._callback, self._labels = callback, labels

    def before_training(self, n_rounds: int) -> None:
        self._callback.before_training(n_rounds)

    def after_round(self, info: RoundInfo) -> bool:
        return self._callback.after_round(replace(info, snapshot=lambda: self._labels.stored_in(info.snapshot())))

    def after_training(self, booster: Booster) -> None:
        self._callback.after_training(self._labels.stored_in(booster))


def with_classes(callbacks: Sequence[Callback], labels: ClassLabels | None) -> list[Callback]:
    """Return callbacks that see models with these classes, if there are any; schedules, which fits ask for rates, as
    they are."""
    if labels is None:
        return list(callbacks)
    return [each if isinstance(each, LearningRateSchedule) else OfClasses(each, labels) for each in callbacks]
