"""Class labels of any type: found per partition, merged, and matched exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.convert import plain_values
from daskboost.data.input.device_read import (
    CACHED_ROWS,
    by_parts,
    exact_doubles,
    looked_at,
    many_values,
    on_device,
    parts,
    unique_values,
)
from daskboost.data.input.row_batch import DeviceColumn, host_column
from daskboost.data.input.schema import LABEL_LETTERS, dtype_letter, listed
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.dtypes import Array, ArrayModule, Float32
from daskboost.errors import DataError, DataTypeError

if TYPE_CHECKING:
    from daskboost.data.input.kinds import Vector

COUNTED_RANGE = 1 << 12
"""Integers from the least label to the greatest, of which it is marked whether they occur."""
_FAMILIES = {"b": "booleans", "i": "numbers", "u": "numbers", "f": "numbers", "O": "strings"}


@dataclass(frozen=True)
class ClassWeights:
    """What rows weigh by their class."""

    factors: tuple[float, ...]
    """Factor of each class, in the order of codes; finite, not negative."""
    counts: tuple[int, ...]
    """Rows of each class in all partitions."""

    @property
    def total(self) -> float:
        """Sum of the factors of all rows."""
        return math.fsum(factor * count for factor, count in zip(self.factors, self.counts, strict=True))

    def weigh(self, codes: Float32 | DeviceColumn, weight: Float32 | DeviceColumn | None) -> Float32 | DeviceColumn:
        """The weight of every row, times its own weight if it has one; on the GPU where both lie, else on the host."""
        if isinstance(codes, DeviceColumn) and (weight is None or isinstance(weight, DeviceColumn)):
            runtime, own = codes.runtime, None if weight is None else weight.values
            if weight is None or weight.runtime.device == runtime.device:
                with on_device(runtime):
                    return looked_at(runtime, self._weigh(codes.values, own, runtime.xp))
        weights: Float32 = self._weigh(host_column(codes), None if weight is None else host_column(weight), np)
        return weights

    def _weigh(self, codes: Float32, weight: Float32 | None, xp: ArrayModule) -> Float32:
        factors = xp.asarray(np.array(self.factors, np.float64))

        def weights(rows: slice) -> Array:
            of_class = factors[codes[rows].astype(np.intp)]
            return of_class if weight is None else of_class * exact_doubles(weight[rows], xp)

        return by_parts(xp, len(codes), np.float32, weights)


def unique_labels(values: Vector) -> npt.NDArray[Any]:
    """The distinct labels of one partition's block, sorted: booleans, integers, floats, or objects that are all `str`.

    Many numbers on a GPU are looked at there. DataError where a label is missing, DataTypeError where labels are
    neither strings, booleans nor numbers, or a mix of these.
    """
    there = many_values(values, "y")
    if there is None:
        found = _unique_values(_plain_labels(plain_values(values, "y")))
    else:
        runtime, labels = there
        with on_device(runtime):
            found = unique_values(runtime, _plain_labels(labels))
    return found + found.dtype.type(0) if found.dtype.kind == "f" else found  # which zero stays depends on their order


def _unique_values(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same as `np.unique`, which sorts: integers of a small range are counted instead, in a tenth of the time."""
    if labels.dtype.kind == "b":
        return _unique_values(labels.view(np.uint8)).astype(np.bool_)
    if labels.dtype.kind not in "iu" or len(labels) == 0:
        return np.unique(labels)
    least, most = int(labels.min()), int(labels.max())
    if most - least >= COUNTED_RANGE:
        return np.unique(labels)
    seen = np.zeros(most - least + 1, np.bool_)
    for part in parts(len(labels), CACHED_ROWS):
        own = labels[part]
        own = own - own.dtype.type(least) if own.dtype.kind == "u" else own.astype(np.int64) - least
        seen |= np.bincount(own.astype(np.intp, copy=False), minlength=len(seen)) > 0
    return np.array([least + place for place in np.flatnonzero(seen).tolist()], labels.dtype)


def merge_classes(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The classes of all partitions, sorted, from what `unique_labels` gives of each, in any order.

    DataError where all partitions are empty, DataTypeError where some have strings and others numbers or booleans.
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
    """The position of every label among `classes`, which are distinct; float32, shape (rows,).

    DataError where a label is missing, or naming labels that are not among the classes.
    """
    known = class_array(classes)
    labels = _plain_labels(values)
    codes: Float32
    if (labels.dtype.kind == "O") != (known.dtype.kind == "O"):
        codes = np.full(len(labels), -1, np.float32)
    elif known.dtype.kind == "O":
        codes = _hashed(labels, known).astype(np.float32)
    elif (own := _own_codes(labels, known)) is not None:
        return own
    else:
        codes = _codes_of_numbers(labels, known, np)
    _require_known(codes, labels, known)
    return codes


def _own_codes(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> Float32 | None:
    """Labels 0 to k - 1 as the codes that they are; None where classes or labels are others, which are searched."""
    if not np.array_equal(known, np.arange(len(known))):
        return None
    codes = np.empty(len(labels), np.float32)
    for part in parts(len(labels), CACHED_ROWS):
        own = labels[part]
        if not (own.min() >= 0 and own.max() < len(known)):
            return None
        if own.dtype.kind != "f":
            codes[part] = own
        elif (np.rint(own) == own).all():
            np.abs(own, out=codes[part], casting="same_kind")  # no code is -0.0
        else:
            return None
    return codes


def read_codes(block: Vector, classes: Sequence[Any]) -> Float32 | DeviceColumn:
    """`class_codes` of a block of labels; many numbers on a GPU stay there. Raises as it does."""
    there, known = many_values(block, "y"), class_array(classes)
    if there is None or not _compares_exactly(known.dtype, there[1].dtype):
        return class_codes(plain_values(block, "y"), classes)
    runtime, labels = there
    with on_device(runtime):
        codes = _codes_of_numbers(_plain_labels(labels), known, runtime.xp)
        _require_known(codes, labels, known)
        return looked_at(runtime, codes)


def _compares_exactly(known: np.dtype[Any], labels: np.dtype[Any]) -> bool:
    """Whether expressions of CuPy compare them as NumPy does, to which float64 is not enough for integers."""
    if known.kind == "O":
        return False
    return np.result_type(known, labels).kind != "f" or "f" in (known.kind, labels.kind)


def _codes_of_numbers(labels: Array, known: npt.NDArray[Any], xp: ArrayModule) -> Float32:
    """float32, -1 for labels that are not known; arrays of `xp`, but `known`, which is on the host."""
    order, floats = np.argsort(known), "f" in (known.dtype.kind, labels.dtype.kind)
    known = known.astype(np.float64) if floats else known
    common = np.result_type(known.dtype, labels.dtype)
    if not _compares_exactly(known.dtype, labels.dtype):
        common = known.dtype  # labels beyond it become others, which are not equal to what is found for them
    if common.kind == "b":
        common = np.dtype(np.uint8)  # which CuPy searches
    ordered, codes = xp.asarray(known[order]), xp.asarray(order.astype(np.float32))
    searched = ordered.astype(common)

    def found(rows: slice) -> Array:
        own = exact_doubles(labels[rows], xp) if floats else labels[rows]
        at = xp.minimum(xp.searchsorted(searched, own.astype(common, copy=False)), len(known) - 1)
        return xp.where(ordered[at] == own, codes[at], np.float32(-1))

    return by_parts(xp, len(labels), np.float32, found)


def _require_known(codes: Float32, labels: Array, known: npt.NDArray[Any]) -> None:
    unknown = codes < 0
    if unknown.any():
        strange = [repr(v) for v in np.unique(to_host(labels[unknown])).tolist()]
        raise DataError(
            f"y has labels that are not among the {len(known)} classes: {listed(strange)}. "
            f"The classes are {listed([repr(v) for v in known.tolist()])}. "
            "Drop these rows, or train on data that has these classes."
        )


def class_array(classes: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Given classes as an array of one type, in the given order.

    DataError where there is none, or one occurs twice, DataTypeError where they are of mixed or other types.
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
    whole = all(issubclass(t, int | np.integer) for t in types)
    for dtype in (np.int64, np.uint64) if whole else (np.float64,):  # NumPy's choice would round the largest
        try:
            return np.array(values.tolist(), dtype)
        except OverflowError:
            continue
    raise DataTypeError("y holds integers beyond 64 bits. Convert the labels to strings.")


def _hashed(labels: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    import pandas as pd

    codes: npt.NDArray[np.intp] = pd.Index(known, dtype=object).get_indexer(pd.Index(labels, dtype=object))
    return codes


def _signed(part: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if part[-1] > np.iinfo(np.int64).max:
        raise DataTypeError(f"y mixes signed integers with {part[-1]}, which is too large. Convert it to one type.")
    return part.astype(np.int64)


def _objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """A sequence as an object array: NumPy itself would turn [1, "a"] into strings."""
    out = np.empty(len(values), dtype=object)
    out[:] = list(values)
    return out


def _missing(count: int) -> str:
    return f"y has {count} missing labels; every label must be present. Drop these rows."
