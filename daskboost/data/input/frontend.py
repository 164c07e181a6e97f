"""X as it is opened: its columns and dtypes, without reading a row, and how it is cut into partitions."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.input.blocks import (
    Blocks,
    DaskArrayBlocks,
    DaskFrameBlocks,
    DeviceBlocks,
    LocalBlocks,
    ParquetBlocks,
    even_cuts,
)
from daskboost.data.input.device_read import Columns
from daskboost.data.input.kinds import (
    DEVICE_KINDS,
    SPARSE_KINDS,
    Kind,
    arrayed,
    as_array,
    entries_per_row,
    kind_of,
    readable,
    sliceable,
)
from daskboost.data.input.parquet import ParquetTable, open_parquet
from daskboost.data.input.row_batch import CATEGORICAL, FeatureSchema
from daskboost.data.input.schema import (
    FEATURE_KINDS,
    dtype_letter,
    feature_kinds,
    listed,
    match_by_count,
    match_by_kind,
    match_by_name,
    places_of,
    require_encodable,
    unique_names,
)
from daskboost.errors import DataError, DataTypeError, ParameterError

if TYPE_CHECKING:
    import pyarrow as pa

    from daskboost.data.input.schema import ColumnType

_SPARSE_ENTRY_BYTES = 8  # a float32 value and an int32 column


@dataclass(frozen=True)
class OpenedInput:
    """X with what its metadata tells."""

    kind: Kind
    data: Any
    """The input in the form that is cut: an array, CSR matrix, frame, Table, ParquetTable or Dask collection."""
    columns: tuple[Hashable, ...] | None
    """Column names as the input has them; None for matrices."""
    dtypes: tuple[ColumnType, ...]
    """One per column; a single one for matrices."""
    n_columns: int

    def cut(self, columns: Sequence[Hashable] | None) -> Blocks:
        """The input in partitions; where it saves reading, with these columns only."""
        if isinstance(self.data, ParquetTable):
            names = self.data.names if columns is None else columns
            return ParquetBlocks(tuple(group.select(names) for group in self.data.groups))
        if self.kind == "dask_dataframe":
            narrower = columns is not None and list(columns) != list(self.columns or ())
            return DaskFrameBlocks(self.data[list(columns or ())] if narrower else self.data)
        if self.kind == "dask_array":
            return DaskArrayBlocks(self.data)
        n_rows = self.data.shape[0]
        row_bytes: float = 4 * (self.n_columns if columns is None else len(columns))
        entries = entries_per_row(self.data)
        cuts = even_cuts(n_rows, row_bytes if entries is None else _SPARSE_ENTRY_BYTES * entries)
        if self.kind in DEVICE_KINDS:
            return DeviceBlocks(self.data, (0, n_rows), cuts)
        return LocalBlocks(self.data, cuts)


def open_input(X: object) -> OpenedInput:
    """Look at X without reading it.

    DataTypeError for an unsupported type, DataError for input that is not two-dimensional, a list of unequal rows, an
    unknown number of columns, or a path without readable Parquet files.
    """
    x = readable(X)
    kind = kind_of(x)
    if kind == "parquet":
        return _open_path(x)
    if kind == "pyarrow" and hasattr(x, "column_names"):
        return _open_arrow(x)
    if kind == "pyarrow":  # a single column of Arrow's, which has one dimension
        x = as_array(x)
    x = arrayed(x)
    _require_two_dimensions(x)
    if kind in ("dask_dataframe", "pandas"):
        return OpenedInput(kind, x, tuple(x.columns), tuple(x.dtypes), len(x.columns))
    if kind == "cudf":
        names = tuple(x.dtypes.index)
        return OpenedInput(kind, x, names, tuple(x.dtypes), len(names))
    if kind == "dask_array":
        if np.isnan(x.shape[1]):
            raise DataError("X is a Dask Array with an unknown number of columns. Call X.compute_chunk_sizes() first.")
        x = x.rechunk({1: -1}) if len(x.chunks[1]) > 1 else x
    x = sliceable(x)
    return OpenedInput(kind, x, None, (x.dtype,), int(x.shape[1]))


def _open_path(path: str | os.PathLike[str]) -> OpenedInput:
    if isinstance(path, str) and "://" in path:
        import dask.dataframe as dd

        return open_input(dd.read_parquet(path))
    table = open_parquet(path)
    dtypes = tuple(min(types, key=_generality) for types in table.types)
    return OpenedInput("parquet", table, table.names, dtypes, len(table.names))


def _generality(dtype: ColumnType) -> int:
    """Files may differ in a column's type: one that is no number is to be refused, and a float speaks for integers."""
    letter = dtype_letter(dtype)
    return -1 if letter not in FEATURE_KINDS else "fiubn".index(letter)


def _open_arrow(X: pa.Table | pa.RecordBatch) -> OpenedInput:
    import pyarrow as pa

    table = pa.Table.from_batches([X]) if isinstance(X, pa.RecordBatch) else X
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    kept = [i for i, name in enumerate(table.column_names) if name not in index]
    table = table.select(kept)
    return OpenedInput("pyarrow", table, tuple(table.column_names), tuple(table.schema.types), len(kept))


def _require_two_dimensions(X: Any) -> None:
    if X.ndim != 2:
        raise DataError(
            f"X has {X.ndim} dimension(s), but must have 2: rows and features. Reshape your data with "
            "X.reshape(-1, 1) for a single feature or X.reshape(1, -1) for a single row."
        )


# Which columns of X are the features, in which order, and whether they fit the training data's schema.

def choose_features(
    opened: OpenedInput,
    named: Collection[Hashable],
    feature_names: Sequence[str] | None,
    schema: FeatureSchema | None,
    categorical: Sequence[Hashable] = (),
) -> tuple[Columns, FeatureSchema]:
    """The features' columns (as `ReadSpec.columns` has them) and the schema they are read with.

    Parameters
    ----------
    named : collection
        Columns that are the label, weight or base margin.
    feature_names : sequence of str, or None
        Names for a matrix's columns; the features to take of a frame.
    schema : FeatureSchema, or None
        Of the training data.
    categorical : sequence
        Names or positions of features that hold categories, beside those whose type says so.

    Raises
    ------
    DataTypeError
        Naming columns that cannot be features, and those that are numbers here and were none in training, or the other
        way round.
    DataError
        For no columns, duplicate names, or features that do not match.
    ParameterError
        Categorical features that there are not.
    """
    expected = None if schema is None else schema.columns
    if opened.columns is None:
        columns, found = _of_matrix(opened, feature_names, expected, categorical)
    else:
        columns, found = _of_frame(opened, opened.columns, named, feature_names, expected, categorical)
    return columns, found if schema is None else schema


def _of_frame(
    opened: OpenedInput,
    columns: tuple[Hashable, ...],
    named: Collection[Hashable],
    feature_names: Sequence[str] | None,
    schema: FeatureSchema | None,
    categorical: Sequence[Hashable],
) -> tuple[Columns, FeatureSchema]:
    names = unique_names(columns)
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
    if schema is None:
        require_encodable(chosen)
    places = places_of(categorical, chosen, len(chosen)) if schema is None else schema.categorical
    kinds = feature_kinds(chosen, [opened.dtypes[i] for i in positions], places)
    if schema is not None:
        match_by_kind(schema, kinds, [opened.dtypes[i] for i in positions])
    return tuple(columns[i] for i in positions), FeatureSchema(chosen, kinds)


def _of_matrix(
    opened: OpenedInput, feature_names: Sequence[str] | None, schema: FeatureSchema | None,
    categorical: Sequence[Hashable],
) -> tuple[Columns, FeatureSchema]:  # fmt: skip
    n_columns, dtype = opened.n_columns, opened.dtypes[0]
    if n_columns == 0:
        raise DataError("X has 0 columns. Pass at least one feature.")
    letter = dtype_letter(dtype)
    if letter not in FEATURE_KINDS:
        raise DataTypeError(
            f"X is an array of type {dtype}, which is not a number. Convert it, e.g. with X.astype('float32'), or pass "
            "a DataFrame, whose columns may hold texts and categories beside numbers; turn dates into numbers."
        )
    names = None if feature_names is None else unique_names(feature_names, "feature_names")
    if names is not None and len(names) != n_columns:
        raise DataError(f"feature_names has {len(names)} names, but X has {n_columns} columns. Pass one per column.")
    if schema is None and names is not None:
        require_encodable(names, "feature_names")
    places = places_of(categorical, names, n_columns) if schema is None else schema.categorical
    if places and opened.kind in SPARSE_KINDS:
        raise ParameterError(
            f"categorical_features names {len(places)} columns, but X is a sparse matrix, whose absent entries would "
            "be missing categories. Pass a frame or a dense array."
        )
    kinds = [CATEGORICAL if i in places else FEATURE_KINDS[letter] for i in range(n_columns)] if places else ()
    found = FeatureSchema(names, tuple(kinds) or (FEATURE_KINDS[letter],) * n_columns)
    if schema is None:
        return None, found
    if names is not None and schema.names is not None and names != schema.names:
        positions = match_by_name(schema, names)
        match_by_count(schema, n_columns)
        return positions, found
    match_by_count(schema, n_columns)
    return None, found


def _positions_of(feature_names: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    wanted = unique_names(feature_names, "feature_names")
    absent = [repr(name) for name in wanted if name not in names]
    if absent:
        raise DataError(
            f"feature_names has names that are no columns of X: {listed(absent)}. "
            f"X has {listed([repr(n) for n in names])}."
        )
    return tuple(names.index(name) for name in wanted)
