"""Class labels of any type: found per partition, merged, and matched exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.data.convert import plain_values
from daskboost.data.schema import LABEL_LETTERS, dtype_letter, listed
from daskboost.dtypes import Float32
from daskboost.errors import DataError, DataTypeError

_FAMILIES = {"b": "booleans", "i": "numbers", "u": "numbers", "f": "numbers", "O": "strings"}


@dataclass(frozen=True)
class ClassWeights:
    """What rows weigh by their class."""

    factors: tuple[float, ...]
    """Of each class, in the order of codes; finite, not negative."""
    counts: tuple[int, ...]
    """Rows of each class in all partitions."""

    @property
    def total(self) -> float:
        """Sum of the factors of all rows."""
        return math.fsum(factor * count for factor, count in zip(self.factors, self.counts, strict=True))

    def weigh(self, codes: Float32, weight: Float32 | None) -> Float32:
        """The weight of every row, times its own weight if it has one; float32, shape (rows,)."""
        factors = np.asarray(self.factors, np.float64)[codes.astype(np.intp)]
        return np.asarray(factors if weight is None else factors * weight, np.float32)


def unique_labels(values: Any) -> npt.NDArray[Any]:
    """The distinct labels of one partition.

    Parameters
    ----------
    values : 1-D block of labels: array, pandas Series, pyarrow array, list

    Returns
    -------
    array, shape (classes of the partition,)
        Sorted; boolean, integer, float, or objects that are all `str`. Empty for an empty partition.

    Raises
    ------
    DataError
        When a label is missing.
    DataTypeError
        When labels are neither strings, booleans nor numbers, or a mix of these.
    """
    return np.unique(_plain_labels(plain_values(values, "y")))


def merge_classes(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The classes of all partitions from those of each; the order of `parts` does not matter.

    Parameters
    ----------
    parts : sequence of arrays
        From `unique_labels`.

    Returns
    -------
    array, shape (classes,)
        Sorted.

    Raises
    ------
    DataError
        When all partitions are empty.
    DataTypeError
        When some partitions have strings and others numbers or booleans.
    """
    full = [np.asarray(part) for part in parts if len(part)]
    if not full:
        raise DataError("y has no rows, so there are no classes. Pass at least one labelled row.")
    families = sorted({_FAMILIES[part.dtype.kind] for part in full})
    if len(families) > 1:
        raise DataTypeError(f"y mixes {' and '.join(families)} in its partitions. Convert it to one type.")
    if {part.dtype.kind for part in full} >= {"i", "u"}:  # NumPy would round both to float64
        full = [_signed(part) if part.dtype.kind == "u" else part for part in full]
    return np.unique(np.concatenate(full))


def class_codes(values: npt.NDArray[Any], classes: Sequence[Any]) -> Float32:
    """The position of every label among `classes`.

    Parameters
    ----------
    values : array, shape (rows,)
    classes : sequence, distinct

    Returns
    -------
    float32 array, shape (rows,)
        Integers from 0 to `len(classes) - 1`.

    Raises
    ------
    DataError
        When a label is missing, or naming labels that are not among the classes.
    """
    known = class_array(classes)
    labels = _plain_labels(values)
    if len(labels) == 0:
        return np.zeros(0, dtype=np.float32)
    if (labels.dtype.kind == "O") != (known.dtype.kind == "O"):
        codes = np.full(len(labels), -1)
    elif known.dtype.kind == "O":
        codes = _hashed(labels, known)
    else:
        order = np.argsort(known)
        codes = order[np.minimum(np.searchsorted(known[order], labels), len(known) - 1)]
        codes[known[codes] != labels] = -1
    unknown = codes < 0
    if unknown.any():
        strange = [repr(v) for v in np.unique(labels[unknown]).tolist()]
        raise DataError(
            f"y has labels that are not among the {len(known)} classes: {listed(strange)}. "
            f"The classes are {listed([repr(v) for v in known.tolist()])}. "
            "Drop these rows, or train on data that has these classes."
        )
    return codes.astype(np.float32)


def class_array(classes: Any) -> npt.NDArray[Any]:
    """Given classes as an array of one type, in the given order.

    Raises
    ------
    DataError
        When there is none, or one occurs twice.
    DataTypeError
        When they are of mixed or other types.
    """
    known = _plain_labels(plain_values(classes if isinstance(classes, np.ndarray) else _objects(classes), "classes"))
    if len(known) == 0 or len(np.unique(known)) < len(known):
        raise DataError(f"classes must be distinct and at least one, but are {known.tolist()}.")
    return known


def _plain_labels(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels as booleans, numbers, or objects that are all `str`; none missing."""
    kind = values.dtype.kind
    if kind in "iub":
        return values
    if kind == "f":
        if np.isnan(values).any():
            raise DataError(_missing(int(np.isnan(values).sum())))
        return values
    if kind == "U" or kind == "T":
        return values.astype(object)
    if dtype_letter(values.dtype) not in LABEL_LETTERS or kind != "O":
        raise DataTypeError(f"y is of type {values.dtype}. Labels are strings, booleans or numbers: convert them.")
    return _of_objects(values)


def _of_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import pandas as pd

    missing = int(np.asarray(pd.isna(values)).sum())
    if missing:
        raise DataError(_missing(missing))
    types = sorted({type(value) for value in values}, key=lambda t: t.__name__)
    if all(issubclass(t, str) for t in types):
        return values
    if all(issubclass(t, bool | np.bool_) for t in types):
        return values.astype(np.bool_)
    numeric = all(issubclass(t, int | float | np.integer | np.floating) and t is not bool for t in types)
    if not numeric:
        raise DataTypeError(
            f"y holds labels of the types {', '.join(t.__name__ for t in types)}. "
            "Labels must all be strings, all be booleans or all be numbers: convert them, e.g. with `.astype(str)`."
        )
    numbers = np.array(values.tolist())
    if len(numbers) and numbers.dtype.kind not in "iuf":
        raise DataTypeError("y holds integers beyond 64 bits. Convert the labels to strings.")
    return numbers


def _hashed(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    import pandas as pd

    codes: npt.NDArray[np.intp] = pd.Index(known, dtype=object).get_indexer(pd.Index(labels, dtype=object))
    return codes


def _signed(part: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if part[-1] > np.iinfo(np.int64).max:
        raise DataTypeError(f"y mixes signed integers with {part[-1]}, which is too large. Convert it to one type.")
    return part.astype(np.int64)


def _objects(values: Any) -> npt.NDArray[Any]:
    """A sequence as an object array: NumPy itself would turn [1, "a"] into strings."""
    out = np.empty(len(values), dtype=object)
    out[:] = list(values)
    return out


def _missing(count: int) -> str:
    return f"y has {count} missing labels; every label must be present. Drop these rows."
