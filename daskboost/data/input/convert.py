"""One raw block (NumPy, pandas, Arrow, scipy.sparse, a Parquet row group) becomes plain float32 arrays.

Every route rounds once, straight from the input's own type to float32, so the same number gives the same feature value
whichever container or nullable type a partition happens to have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from daskboost.data.input.device_read import Columns, host_block
from daskboost.data.input.kinds import is_pandas, kind_of
from daskboost.data.input.parquet import RowGroup
from daskboost.data.input.row_batch import by_rows
from daskboost.data.input.schema import FEATURE_KINDS, dtype_letter, require_number
from daskboost.devices.gpu.runtime.user_arrays import device_kind
from daskboost.dtypes import Bool, Float32, flat, in_columns
from daskboost.errors import DataError, DataTypeError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from daskboost.data.input.kinds import Table, Vector

_TILE_ROWS = 4096  # rows filled at a time: a tile of 4096 x 64 float32 stays in a core's second-level cache


def dense_values(block: Table | RowGroup, columns: Columns, threads: int = 1) -> Float32:
    """Features of a block as a matrix; null and masked entries are NaN.

    Parameters
    ----------
    block : 2-D array, pandas DataFrame, pyarrow Table or RowGroup
    columns : tuple or None
        Column names of a frame, column positions of an array; None for all.
    threads : int, default 1
        Row ranges converted at the same time.

    Returns
    -------
    float32 array, C-contiguous, shape (rows, columns)
        Shares the block's memory where that already has this form. Values beyond float32 have become infinite.

    Raises
    ------
    DataTypeError
        When a column's actual type is not a number, whatever the input's metadata said.
    """
    with np.errstate(over="ignore"):
        if isinstance(block, RowGroup):
            return _fill_batches(block.n_rows, columns or block.columns, block.batches(columns))
        values = raw_values(block, columns)
    if isinstance(values, list):
        return _filled(values, np.empty((len(block), len(values)), np.float32), threads)
    if values.dtype == np.float32 and values.flags.c_contiguous:
        return values
    return _filled(values, np.empty(values.shape, np.float32), threads)


def _filled(values: npt.NDArray[Any] | Sequence[npt.NDArray[Any]], out: Float32, threads: int) -> Float32:
    """Copy a matrix, or columns, into a row-major one of as many rows."""
    def fill(start: int, stop: int) -> None:
        part = out[start:stop]
        with np.errstate(over="ignore"):  # which each thread has to say
            if isinstance(values, np.ndarray):
                np.copyto(part, values[start:stop], casting="unsafe")
            else:
                _fill([column[start:stop] for column in values], part)

    by_rows(fill, out, threads)
    return out


def raw_values(block: Table, columns: Columns) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
    """Features of a block in the types that they have: a matrix, or a vector for each column of a frame.

    Parameters and errors as of `dense_values`; null and masked entries are NaN, their columns then float32 or float64.
    """
    if _is_table(block):
        names = block.column_names if columns is None else columns
        return [arrow_column(column_of(block, name), name) for name in names]
    if is_pandas(block):
        frame = part_of_frame(block, columns)
        return [pandas_column(frame.iloc[:, i], name) for i, name in enumerate(frame.columns)]
    array = _unmask(block) if isinstance(block, np.ma.MaskedArray) else np.asarray(block)
    require_number(array.dtype, "X")
    return array if columns is None else array[:, np.asarray(columns, dtype=np.intp)]


def _fill(columns: Sequence[npt.NDArray[Any]], out: Float32) -> Float32:
    """Copy columns into a row-major matrix, tile by tile, so that each cache line of `out` is written once."""
    for start in range(0, len(out), _TILE_ROWS):
        tile = out[start : start + _TILE_ROWS]
        for i, column in enumerate(columns):
            tile[:, i] = column[start : start + _TILE_ROWS]
    return out


def _fill_batches(n_rows: int, names: Sequence[Hashable], batches: Iterable[pa.RecordBatch]) -> Float32:
    """Decode record batches one by one into a matrix: a row group is never in memory twice."""
    out, start = np.empty((n_rows, len(names)), dtype=np.float32), 0
    for batch in batches:
        columns = [arrow_column(batch.column(name), name) for name in names]
        _fill(columns, out[start : start + len(batch)])
        start += len(batch)
    return out


def pandas_column(series: pd.Series, name: Hashable) -> npt.NDArray[Any]:
    """A pandas Series of numbers as a NumPy array, NaN where it has nulls.

    DataTypeError for any other content than numbers and booleans; a column of nulls only is allowed whatever its type.
    """
    dtype = series.dtype
    letter = dtype_letter(dtype)
    if letter not in FEATURE_KINDS:
        if len(series) == 0 or bool(series.isna().all()):
            return np.full(len(series), np.nan, dtype=np.float32)
        require_number(dtype, f"column {name!r}")
    if isinstance(dtype, np.dtype):
        return np.asarray(series)
    if hasattr(dtype, "pyarrow_dtype"):
        return arrow_column(series.array.__arrow_array__(), name)
    if hasattr(dtype, "fill_value"):
        return np.asarray(series.array.to_dense())
    if not series.hasnans:
        return np.asarray(series, dtype=getattr(dtype, "numpy_dtype", None))
    filled: Float32 = series.to_numpy(dtype=np.float32, na_value=np.nan)
    return filled


def arrow_column(column: pa.Array | pa.ChunkedArray, name: Hashable) -> npt.NDArray[Any]:
    """A pyarrow Array or ChunkedArray of numbers as a NumPy array, NaN where it has nulls; DataTypeError for any other
    content than numbers and booleans."""
    import pyarrow as pa

    require_number(column.type, f"column {name!r}")
    if isinstance(column, pa.ChunkedArray):  # of which a single chunk would be copied too
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # pyarrow keeps the wrapper where the chunks do not fit into one array
        return np.concatenate([arrow_column(chunk, name) for chunk in column.chunks])
    if column.null_count == 0 or pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if column.null_count == len(column):
        return np.full(len(column), np.nan, dtype=np.float32)
    # Arrow's own conversion goes through float64, which would round large integers twice
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    values = np.asarray(filled.to_numpy(zero_copy_only=False)).astype(np.float32)
    values[np.asarray(column.is_null().to_numpy(zero_copy_only=False))] = np.nan
    return values


def float_vector(block: Vector, name: str) -> Float32:
    """A column of numbers (label, weight) as float32, NaN where it has nulls; shape (rows,). DataTypeError where it
    holds anything else, or more than one column."""
    values = plain_values(block, name)
    if values.dtype.kind == "O":
        values = _numbers_of_objects(values, name)
    require_number(values.dtype, name)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def plain_values(block: Vector, name: str) -> npt.NDArray[Any]:
    """A one-column block as a 1-D NumPy array of its own type; DataTypeError where it has more columns.

    Nulls of numeric and boolean columns become NaN (and the array float32); those of others stay null objects.
    """
    block = host_block(block)
    if not isinstance(block, np.ndarray):  # plain arrays do without pandas, whose import takes a quarter of a second
        block = _column_values(block, name)
    values = _unmask(block) if isinstance(block, np.ma.MaskedArray) else np.asarray(block)
    values = flat(values)
    _require_one_column(values.shape, name)
    return values


def _require_one_column(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 1 and shape[1:] != (1,):
        raise DataTypeError(f"{name} must have one column, but has shape {shape}. Pass a single column.")


def _column_values(block: Any, name: str) -> Any:
    """Values of a pandas or Arrow column as a NumPy array; anything else as it is."""
    import pandas as pd

    if isinstance(block, pd.DataFrame):
        block = block.squeeze("columns")
    if kind_of(block, name) == "pyarrow":
        if _is_table(block):
            _require_one_column(block.shape, name)
            block = block.column(0)
        if dtype_letter(block.type) in FEATURE_KINDS:
            return arrow_column(block, name)
        block = pd.Series(block.to_pandas())
    if isinstance(block, pd.Series | pd.api.extensions.ExtensionArray):
        series = pd.Series(block)
        if dtype_letter(series.dtype) in FEATURE_KINDS:
            return pandas_column(series, name)
        return np.asarray(series, dtype=object) if dtype_letter(series.dtype) in "sOC" else np.asarray(series)
    return block


def margin_values(block: Any, columns: Columns) -> Float32:
    """Base margins of a block as float32, shape (rows, outputs); one column for a 1-D block. DataTypeError where it
    holds anything but numbers."""
    block = host_block(block[list(columns)] if columns is not None and device_kind(block) == "cudf" else block)
    one_dimensional = getattr(block, "ndim", 1) == 1 and not _is_table(block) and not isinstance(block, RowGroup)
    if one_dimensional:
        return in_columns(float_vector(block, "base_margin"))
    return dense_values(block, columns)


def column_of(block: Any, name: Hashable) -> Any:
    """One column of a frame-like block."""
    if isinstance(block, RowGroup):
        return block.column(name)
    try:
        return block.column(name) if _is_table(block) else block[name]
    except KeyError as error:
        raise _lacks(name) from error


def part_of_frame(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return some columns of a pandas frame, or all."""
    if columns is None:
        return frame
    try:
        return frame[list(columns)]
    except KeyError as error:
        absent = [name for name in columns if name not in frame.columns]
        if absent:
            raise _lacks(absent[0]) from error
        names = list(frame.columns)
        return frame.iloc[:, [names.index(name) for name in columns]]  # of a name None, which a list makes NaN


def _lacks(name: Hashable) -> DataError:
    """Return the error of a block that lacks a column: partitions may lie about what they have."""
    return DataError(f"X lacks column {name!r}, which its other partitions, its meta or the model have")


def _is_table(block: object) -> TypeGuard[pa.Table]:
    return kind_of(block) == "pyarrow" and hasattr(block, "column_names")


def _unmask(block: Any) -> npt.NDArray[Any]:
    if not np.ma.getmaskarray(block).any():
        return np.asarray(block.data)
    if block.dtype.kind in "fiub":
        return np.asarray(block.astype(np.float32).filled(np.nan))
    return np.asarray(block.astype(object).filled(None))


def _numbers_of_objects(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Python numbers, booleans and nulls as float64."""
    import pandas as pd

    missing: Bool = np.asarray(pd.isna(values))
    present = values[~missing]
    strange = next((v for v in present if not isinstance(v, int | float | np.number | np.bool_)), None)
    if strange is not None:
        raise DataTypeError(
            f"{name} holds {strange!r} of type {type(strange).__name__}, which is not a number. "
            "Encode it as numbers; for labels that are classes use a classifier."
        )
    numbers = np.full(len(values), np.nan)
    numbers[~missing] = present.astype(np.float64)
    return numbers
