"""Which columns of X are the features, in which order, and whether they fit the training data's schema."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from daskboost.data.convert import Columns
from daskboost.data.frontend import OpenedInput
from daskboost.data.rows import FeatureSchema
from daskboost.data.schema import FEATURE_KINDS, dtype_letter, feature_kinds, listed, match_by_count, match_by_name
from daskboost.data.schema import unique_names as unique
from daskboost.errors import DataError, DataTypeError


def choose_features(
    opened: OpenedInput,
    named: Collection[Hashable],
    feature_names: Sequence[str] | None,
    schema: FeatureSchema | None,
) -> tuple[Columns, FeatureSchema]:
    """The features' columns (as `ReadSpec.columns` has them) and the schema they are read with.

    Parameters
    ----------
    opened : OpenedInput
    named : collection
        Columns that are the label, weight or base margin.
    feature_names : sequence of str, or None
        Names for a matrix's columns; the features to take of a frame.
    schema : FeatureSchema, or None
        Of the training data.

    Raises
    ------
    DataTypeError
        Naming columns that are not numbers.
    DataError
        For no columns, duplicate names, or features that do not match.
    """
    if opened.columns is None:
        columns, found = _of_matrix(opened, feature_names, schema)
    else:
        columns, found = _of_frame(opened, opened.columns, named, feature_names, schema)
    return columns, found if schema is None else schema


def _of_frame(
    opened: OpenedInput,
    columns: tuple[Hashable, ...],
    named: Collection[Hashable],
    feature_names: Sequence[str] | None,
    schema: FeatureSchema | None,
) -> tuple[Columns, FeatureSchema]:
    names = unique(columns)
    if schema is not None and schema.names is not None:
        positions = match_by_name(schema, names)
    elif feature_names is not None:
        positions = _positions_of(feature_names, names)
        if taken := [repr(columns[i]) for i in positions if columns[i] in named]:
            raise DataError(f"feature_names has {listed(taken)}, which is the label, weight or base margin.")
    else:
        positions = tuple(i for i, column in enumerate(columns) if column not in named)
    if not positions:
        raise DataError(f"X has no feature columns; it has {listed([repr(n) for n in names])}. Pass at least one.")
    if schema is not None:
        match_by_count(schema, len(positions))
    chosen = tuple(names[i] for i in positions)
    kinds = feature_kinds(chosen, [opened.dtypes[i] for i in positions])
    return tuple(columns[i] for i in positions), FeatureSchema(chosen, kinds)


def _of_matrix(
    opened: OpenedInput, feature_names: Sequence[str] | None, schema: FeatureSchema | None
) -> tuple[Columns, FeatureSchema]:
    n_columns, dtype = opened.n_columns, opened.dtypes[0]
    if n_columns == 0:
        raise DataError("X has 0 columns. Pass at least one feature.")
    letter = dtype_letter(dtype)
    if letter not in FEATURE_KINDS:
        raise DataTypeError(
            f"X is an array of type {dtype}, which is not a number. Convert it, e.g. with X.astype('float32'); "
            "encode strings and dates as numbers first."
        )
    names = None if feature_names is None else unique(feature_names, "feature_names")
    if names is not None and len(names) != n_columns:
        raise DataError(f"feature_names has {len(names)} names, but X has {n_columns} columns. Pass one per column.")
    found = FeatureSchema(names, (FEATURE_KINDS[letter],) * n_columns)
    if schema is None:
        return None, found
    if names is not None and schema.names is not None and names != schema.names:
        positions = match_by_name(schema, names)
        match_by_count(schema, n_columns)
        return positions, found
    match_by_count(schema, n_columns)
    return None, found


def _positions_of(feature_names: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    wanted = unique(feature_names, "feature_names")
    absent = [repr(name) for name in wanted if name not in names]
    if absent:
        raise DataError(
            f"feature_names has names that are no columns of X: {listed(absent)}. "
            f"X has {listed([repr(n) for n in names])}."
        )
    return tuple(names.index(name) for name in wanted)
