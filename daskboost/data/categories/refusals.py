"""What a categorical column must not hold, and what messages say of it: the column, the value, and what to do."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import date, timedelta
from decimal import Decimal

import numpy as np

from daskboost.data.categories.values import BOOLEAN, INTEGER, TEXT
from daskboost.dtypes import Array, Int64
from daskboost.errors import DataError, DataTypeError, shortened

_WORDS = {TEXT: "strings", INTEGER: "numbers", BOOLEAN: "booleans"}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, TEXT), ((bool, np.bool_), BOOLEAN), ((int, float, np.integer, np.floating), INTEGER),
)  # fmt: skip
"""The kind of a Python value: of the first type that it is of."""
_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (
        (float, np.floating, Decimal),
        "Round numbers to integers or cut them into intervals, or leave the column among the numerical ones.",
    ),
    ((date, np.datetime64), "Convert dates to strings, or to integers such as the month."),
    ((timedelta, np.timedelta64), "Convert durations to integers such as whole days."),
    (bytes, "Decode bytes to strings, e.g. with .str.decode('utf-8')."),
    (object, "Convert the column to strings, e.g. with .astype(str)."),
)
"""What to do about values of a type that cannot be levels."""


def whole_numbers(values: Array, dtype: np.dtype[np.floating], name: Hashable) -> Int64:
    """Return float64 values that came as some type of float as the integers that they are.

    DataTypeError where one is no whole number, DataError where one is infinite, or so large that its type rounds
    neighbouring integers to it.
    """
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(
            f"column {name!r} holds {values[infinite][0]}, which is no level of a categorical column. Replace infinite "
            "values, e.g. with NaN, which stands for missing."
        )
    broken = values != np.floor(values)
    if broken.any():
        raise no_level(values[broken][0], dtype, name)
    least_doubtful = 2.0 ** (min(np.finfo(dtype).nmant, np.finfo(values.dtype).nmant) + 1)
    doubtful = np.abs(values) >= least_doubtful
    if doubtful.any():
        raise DataError(
            f"column {name!r} holds {int(values[doubtful][0])} as {dtype}, which cannot tell whole numbers from "
            f"{least_doubtful:.0f} on apart. Read it as integers (where some are missing as pandas' Int64) or strings."
        )
    return values.astype(np.int64)


def require_int64(values: Array, name: Hashable) -> None:
    """Refuse integers that int64 does not hold."""
    for value in values.tolist():
        if not -(2**63) <= int(value) < 2**63:
            raise DataError(
                f"column {name!r} holds {int(value)}, which does not fit 64 bits with a sign. Convert it to strings, "
                "e.g. with .astype(str)."
            )


def mixed_objects(values: Array, name: Hashable) -> DataTypeError:
    """Return what is wrong with Python's objects that are not all of one kind of levels."""
    examples: dict[str, object] = {}
    for value in values:
        kind = next((kind for types, kind in _KINDS if isinstance(value, types)), None)
        if kind is None:
            return no_level(value, type(value).__name__, name)
        examples.setdefault(kind, value)
    return mixed(examples, name)


def no_level(value: object, dtype: object, name: Hashable) -> DataTypeError:
    """Return the error of a column with a value that is of no kind of levels."""
    remedy = next(remedy for types, remedy in _REMEDIES if isinstance(value, types))
    return DataTypeError(
        f"column {name!r} holds {_shown(value)} of type {dtype}, which is no level of a categorical column: "
        f"levels are strings, integers or booleans. {remedy}"
    )


def mixed(examples: Mapping[str, object], name: Hashable) -> DataTypeError:
    """Return the error of a column that has values of several kinds, of each of which there is an example."""
    return DataTypeError(
        f"column {name!r} mixes {' and '.join(with_example(*each) for each in sorted(examples.items()))}. Convert it "
        "to one type in all partitions, e.g. with .astype(str)."
    )


def with_example(kind: str, value: object) -> str:
    """Return what messages call the values of a kind."""
    return f"{_WORDS[kind]} (such as {_shown(value)})"


def _shown(value: object) -> str:
    """Return a value as Python writes it, one of NumPy as that of Python, long ones without their middle."""
    return shortened(repr(value.item() if isinstance(value, np.generic) else value))


def no_unicode(error: UnicodeEncodeError, name: Hashable) -> DataError:
    """Return the error of a column with a text that cannot be encoded."""
    return DataError(
        f"column {name!r} holds the text {_shown(error.object)}, which is no Unicode ({error.reason}). Replace "
        "what cannot be encoded, e.g. with .str.encode('utf-8', 'replace').str.decode('utf-8')."
    )
