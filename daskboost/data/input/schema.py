"""What the columns are: dtypes are judged here, from metadata alone, before any row is read.

A dtype of any library is reduced to one letter, NumPy's `kind`, and a letter to XGBoost's feature type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from daskboost.data.input.row_batch import CATEGORICAL, CATEGORY_CODE, FeatureSchema
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from pandas.api.extensions import ExtensionDtype
    from pyarrow import DataType

    ColumnType: TypeAlias = np.dtype[Any] | ExtensionDtype | DataType
    """The type of a column, of any library."""

FEATURE_KINDS = {"f": "float", "i": "int", "u": "int", "b": "i", "n": "float"}
"""Letter of a dtype (`dtype_letter`) to XGBoost's `feature_types`; "n" is a column of nulls only."""

CATEGORY_LETTERS = frozenset("sOC")
"""Letters of columns that hold categories: dictionaries, and texts or objects, which are looked into when read."""
LABEL_LETTERS = frozenset("fiubnsOC")
"""Letters a label may have; objects, strings and categories are looked into when they are read."""

_NAMES_SHOWN = 10  # a message lists at most this many columns

_REMEDIES = {
    "M": "turn dates into numbers, e.g. `(x - x.min()).dt.total_seconds()`",
    "m": "turn durations into numbers, e.g. `x.dt.total_seconds()`",
    "c": "pass real and imaginary parts as two features",
    "V": "drop them, or make them numbers or texts",
}


def dtype_letter(dtype: ColumnType) -> str:
    """NumPy's `kind` letter of a NumPy, pandas or Arrow dtype: ``f i u b c M m O`` as in NumPy; ``n`` for Arrow's null
    type; ``s`` for texts; ``C`` for categories; ``V`` for all else."""
    if type(dtype).__module__.split(".")[0] == "pyarrow":
        return _arrow_letter(dtype)
    arrow = getattr(dtype, "pyarrow_dtype", None)
    if arrow is not None:
        return _arrow_letter(arrow)
    if hasattr(dtype, "categories"):
        return "C"
    if str(dtype) in ("str", "string"):  # pandas' own, whose kind is that of objects
        return "s"
    letter = str(getattr(dtype, "kind", "V"))
    if letter in "UT":
        return "s"
    return letter if letter in "fiubcMm" or (letter == "O" and isinstance(dtype, np.dtype)) else "V"


def _arrow_letter(dtype: DataType) -> str:
    from pyarrow import types

    tests = {
        "f": types.is_floating,
        "i": types.is_signed_integer,
        "u": types.is_unsigned_integer,
        "b": types.is_boolean,
        "n": types.is_null,
        "C": types.is_dictionary,
        "s": lambda dtype: types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype),
        "m": types.is_duration,
        "M": types.is_temporal,
    }
    return next((letter for letter, test in tests.items() if test(dtype)), "V")


def require_number(dtype: ColumnType, what: str) -> None:
    """Refuse a column that holds no numbers; DataTypeError with its name and type."""
    if dtype_letter(dtype) not in FEATURE_KINDS:
        raise DataTypeError(
            f"{what} is of type {dtype}, which is not a number. Encode it as numbers (strings and categories, e.g. "
            "with `.astype('category').cat.codes`; dates as seconds) or drop it."
        )


def feature_kinds(
    names: Sequence[str], dtypes: Iterable[ColumnType], categorical: Collection[int] = (), what: str = "X"
) -> tuple[str, ...]:
    """Return XGBoost's feature type of every column.

    Texts, objects and dictionaries are categories, as are the columns (by their places) that users call `categorical`.
    DataTypeError with all columns that cannot be features: dates, durations, complex numbers.
    """
    dtypes = list(dtypes)
    letters = [dtype_letter(dtype) for dtype in dtypes]
    as_named = ["C" if i in categorical and letter in "iubf" else letter for i, letter in enumerate(letters)]
    refused = [i for i, letter in enumerate(as_named) if letter not in FEATURE_KINDS and letter not in CATEGORY_LETTERS]
    if refused:
        columns = listed([f"{names[i]!r} ({dtypes[i]})" for i in refused])
        remedies = dict.fromkeys(_REMEDIES.get(letters[i], _REMEDIES["V"]) for i in refused)
        raise DataTypeError(
            f"{what} has {len(refused)} column(s) of a type that cannot be a feature: {columns}. "
            f"Features are numbers, booleans or categories: {'; '.join(remedies)}."
        )
    return tuple(FEATURE_KINDS.get(letter, CATEGORICAL) for letter in as_named)


def listed(items: Sequence[str]) -> str:
    """A comma-separated list for a message, cut after the first few."""
    more = len(items) - _NAMES_SHOWN
    return ", ".join(items[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def unique_names(columns: Iterable[Hashable], what: str = "X") -> tuple[str, ...]:
    """Column names as strings; DataError where two are the same, also when they only differ in type (1 and "1")."""
    names = tuple(str(column) for column in columns)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"{what} has duplicate column names: {listed([repr(n) for n in twice])}. Rename or drop the duplicates, "
            "since columns are matched by name when predicting."
        )
    return names


def require_encodable(names: Sequence[str], what: str = "X") -> None:
    """Refuse names that no model file can hold, as UTF-8 has no lone surrogates; DataError with these."""
    try:
        "\n".join(names).encode()
    except UnicodeEncodeError as error:
        refused = [repr(name) for name in names if any("\ud800" <= letter <= "\udfff" for letter in name)]
        raise DataError(
            f"{what} has column names with lone surrogates, which model files cannot hold: {listed(refused)}. Rename "
            "these columns."
        ) from error


def match_by_name(schema: FeatureSchema, names: Sequence[str]) -> tuple[int, ...]:
    """Positions in `names` of a schema's features, in the schema's order; further names are ignored. DataError with the
    features that are missing."""
    assert schema.names is not None
    position = {name: i for i, name in enumerate(names)}
    absent = [name for name in schema.names if name not in position]
    if absent:
        raise DataError(
            f"X lacks {len(absent)} of the {schema.n_features} feature columns used in training: "
            f"{listed([repr(n) for n in absent])}. It has: {listed([repr(n) for n in names])}."
        )
    return tuple(position[name] for name in schema.names)


def match_by_count(schema: FeatureSchema, n_features: int) -> None:
    """Refuse a matrix whose number of columns is not the schema's; DataError with both numbers."""
    if n_features != schema.n_features:
        names = "" if schema.names is None else f" ({listed([repr(n) for n in schema.names])})"
        raise DataError(
            f"X has {n_features} features, but {schema.n_features} were used in training{names}. "
            "Pass the same columns in the same order, or a frame whose columns can be matched by name."
        )


def place_of(column: object, names: Sequence[str] | None, n_features: int) -> int | None:
    """Return the position of the feature that is meant by its name or its position; None where there is none."""
    if isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < n_features:
        return int(column)
    return names.index(column) if names is not None and isinstance(column, str) and column in names else None


def places_of(categorical: Sequence[Hashable], names: Sequence[str] | None, n_features: int) -> tuple[int, ...]:
    """Return the positions of the features that `categorical_features` names, in increasing order.

    Raises
    ------
    ParameterError
        A name or a position that no feature has.
    """
    found = set()
    for each in categorical:
        place = place_of(each, names, n_features)
        if place is None:
            known = f"columns 0 to {n_features - 1}" if names is None else listed([repr(name) for name in names])
            raise ParameterError(f"categorical_features names {shown(each)}, no feature of X; it has {known}.")
        found.add(place)
    return tuple(sorted(found))


def match_by_kind(schema: FeatureSchema, kinds: Sequence[str], dtypes: Sequence[ColumnType]) -> None:
    """Refuse columns that hold categories where those of the training data are numbers; DataTypeError with the first.

    Whether categories are of the kind that they were in training is seen when they are read.
    """
    for feature, (was, kind) in enumerate(zip(schema.kinds, kinds, strict=True)):
        if kind == CATEGORICAL != was:
            held = "codes of categories" if was == CATEGORY_CODE else "numbers"
            raise DataTypeError(
                f"column {schema.label(feature)!r} is of type {dtypes[feature]}, but held {held} in training. "
                f"Convert it to {held.split()[0]}."
            )
