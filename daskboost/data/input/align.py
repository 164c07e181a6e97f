"""What goes with rows (`RowColumns`): as columns of X, or as collections cut at the same rows as X."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.input.blocks import Blocks, DaskArrayBlocks, DaskFrameBlocks, LocalBlocks, cuts_of
from daskboost.data.input.kinds import MATRIX_KINDS, arrayed, is_lazy, kind_of, readable
from daskboost.data.input.row_columns import ColumnRule
from daskboost.data.input.schema import FEATURE_KINDS, LABEL_LETTERS, dtype_letter, listed
from daskboost.errors import DataError, DataTypeError

if TYPE_CHECKING:
    from daskboost.data.input.schema import ColumnType


def column_named(value: object, columns: Sequence[Hashable] | None, name: str) -> Hashable | None:
    """The column of X that an argument names; None when the argument is a collection (or None).

    Parameters
    ----------
    value : str, int or collection
    columns : sequence, or None
        Column names of X; None when it has none.
    name : str
        The argument, as of `ColumnRule`.

    Raises
    ------
    DataError
        When there is no such column.
    """
    if not isinstance(value, str | int | np.integer):
        return None
    if columns is None:
        raise DataError(f"{name} is {value!r}, but X has no column names. Pass {name} as a collection aligned with X.")
    by_name = {str(column): column for column in columns}
    if str(value) not in by_name:
        close = difflib.get_close_matches(str(value), by_name, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Columns: {listed([repr(c) for c in by_name])}."
        raise DataError(f"{name} is {value!r}, but X has no such column. {hint}")
    return by_name[str(value)]


def columns_named(value: object, columns: Sequence[Hashable] | None, rule: ColumnRule) -> tuple[Hashable, ...] | None:
    """The columns of X that an argument names, several only where the rule has it so; None as of `column_named`."""
    name = rule.argument
    if rule.several and isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return tuple(found for item in value if (found := column_named(item, columns, name)) is not None)
    found = column_named(value, columns, name)
    return None if found is None else (found,)


def aligned(value: object, x: Blocks, rule: ColumnRule) -> Blocks:
    """A collection cut into the partitions of X.

    Parameters
    ----------
    value : Dask Series, DataFrame or Array; Series or DataFrame of pandas, polars or cuDF; NumPy, CuPy or pyarrow array
        Or a list; with a column per output where the rule has several.
    x : Blocks
        The features.
    rule : ColumnRule

    Raises
    ------
    DataError
        When the number of rows or partitions differs, a local and a Dask collection cannot be aligned, or there is more
        than one column where the rule has one.
    DataTypeError
        When the type cannot serve the purpose.
    """
    name = rule.argument
    value = readable(value, name)
    blocks = _dask_blocks(value, x, name) if is_lazy(value) else _local_blocks(value, x, name)
    width = width_of(blocks.data)
    if width != 1 and not rule.several:
        raise DataError(f"{name} has {width} columns, but must have one. Pass a single column.")
    for dtype in dtypes_of(blocks.data):
        check_dtype(dtype, rule)
    return blocks


def _dask_blocks(value: Any, x: Blocks, name: str) -> DaskArrayBlocks | DaskFrameBlocks:
    if isinstance(x, LocalBlocks) or (x.lengths is not None and not isinstance(x, DaskArrayBlocks)):
        raise DataError(f"{name} is a Dask collection, but X is not. Pass {name}.compute(), or X as a Dask collection.")
    if kind_of(value, name) == "dask_array":
        several = value.ndim == 2 and len(value.chunks[1]) > 1
        blocks: DaskArrayBlocks | DaskFrameBlocks = DaskArrayBlocks(value.rechunk({1: -1}) if several else value)
    else:
        blocks = DaskFrameBlocks(value)
    if blocks.n_partitions != x.n_partitions:
        raise DataError(
            f"{name} has {blocks.n_partitions} partitions, but X has {x.n_partitions}. "
            f"Cut both at the same rows, e.g. by taking {name} from X's own collection, or pass it as a column of X."
        )
    if blocks.lengths is not None and x.lengths is not None and blocks.lengths != x.lengths:
        raise DataError(
            f"{name} has partitions of {listed([str(n) for n in blocks.lengths])} rows, but X of "
            f"{listed([str(n) for n in x.lengths])}. Cut both at the same rows, e.g. with rechunk."
        )
    return blocks


def _local_blocks(value: Any, x: Blocks, name: str) -> LocalBlocks:
    if kind_of(value, name) in MATRIX_KINDS:
        raise DataTypeError(f"{name} is of type {type(value).__name__}. Pass a dense one-dimensional collection.")
    value = arrayed(value, name)
    if getattr(value, "ndim", 1) not in (1, 2):
        raise DataError(f"{name} has {value.ndim} dimensions, but must have one. Pass a one-dimensional collection.")
    if x.lengths is None:
        raise DataError(
            f"{name} is a {type(value).__name__}, but X is a Dask collection whose partition lengths are not known, so "
            f"they cannot be aligned. Pass {name} as a Dask collection with X's partitions or as a column of X."
        )
    if len(value) != sum(x.lengths):
        raise DataError(f"{name} has {len(value)} rows, but X has {sum(x.lengths)}. Pass one value per row of X.")
    return LocalBlocks(value, cuts_of(x.lengths))


def width_of(data: Any) -> int:
    """Columns of an aligned collection; 1 for a one-dimensional one."""
    shape: tuple[Any, ...] = getattr(data, "shape", ())
    return int(shape[1]) if len(shape) == 2 else 1


def dtypes_of(data: Any) -> list[ColumnType]:
    """The dtypes of an aligned collection."""
    if hasattr(data, "dtypes") and getattr(data, "ndim", 1) == 2:
        return list(data.dtypes)
    if hasattr(data, "schema"):
        return list(data.schema.types)
    return [data.dtype if hasattr(data, "dtype") else data.type]


def check_dtype(dtype: ColumnType, rule: ColumnRule) -> None:
    """Refuse a dtype that cannot be such a column; DataTypeError with both names."""
    letter, name = dtype_letter(dtype), rule.argument
    if rule.takes_text and letter not in LABEL_LETTERS:
        raise DataTypeError(
            f"{name} is of type {dtype}. Labels are numbers, booleans or strings, ids of queries whole numbers or "
            "strings: convert them."
        )
    if not rule.takes_text and letter not in FEATURE_KINDS:
        raise DataTypeError(f"{name} is of type {dtype}, but must be a number. Convert it, e.g. with `.astype(float)`.")


def is_text(dtype: ColumnType) -> bool:
    """Whether a dtype holds strings and nothing else, so that it can only be a class label."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "UST"
    return dtype_letter(dtype) == "s"
