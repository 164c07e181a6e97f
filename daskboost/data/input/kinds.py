"""What kind of input an object is: decided here, from its type alone, for whole inputs and for single partitions.

All else asks `kind_of`. A frame or a Series of a further library (polars, modin, narwhals, whatever exports Arrow's C
streams) becomes Arrow's or pandas' first, by `readable`, so that its column names are kept. What has column names and
cannot be read by them is refused: as a bare array it would silently be matched by position.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from daskboost.data.input.parquet import RowGroup
from daskboost.devices.gpu.runtime.user_arrays import as_device_array, device_kind
from daskboost.dtypes import Array
from daskboost.errors import DataError, DataTypeError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from scipy.sparse import spmatrix

    Table: TypeAlias = npt.NDArray[Any] | pd.DataFrame | pa.Table
    """Features of some rows in the host's memory, but for sparse matrices and row groups of files."""
    Vector: TypeAlias = npt.NDArray[Any] | pd.Series | pa.Array | pa.ChunkedArray
    """Labels or weights of some rows in the host's memory."""

Kind = Literal[
    "numpy", "pandas", "pyarrow", "sparse", "frame", "parquet", "row_group", "dask_dataframe", "dask_array", "cupy",
    "cupy_sparse", "cudf",
]  # fmt: skip
"""``"numpy"``: also lists and what has `__array__`. ``"pandas"``, ``"pyarrow"``, ``"cudf"``, ``"dask_dataframe"``:
frames and single columns. ``"frame"``: a frame or Series that `readable` turns into Arrow's or pandas'. ``"parquet"``:
a path. ``"row_group"``: one of a Parquet file's."""

DEVICE_KINDS = ("cupy", "cupy_sparse", "cudf")
"""Kinds that lie in a GPU's memory."""
SPARSE_KINDS = ("sparse", "cupy_sparse")
MATRIX_KINDS = (*SPARSE_KINDS, "parquet")
"""Kinds that are never a single column, as labels are."""
NAMED_KINDS = ("pandas", "pyarrow", "frame", "parquet", "dask_dataframe", "cudf")
"""Kinds whose columns have names."""

_DASK: dict[str, Kind] = {
    "DataFrame": "dask_dataframe", "Series": "dask_dataframe", "Index": "dask_dataframe", "Array": "dask_array",
}  # fmt: skip
_ARROW_EXPORTS = ("__arrow_c_stream__", "__arrow_c_array__")
_NAME_MARKS = ("columns", "column_names", "__dataframe__")


def kind_of(x: object, name: str = "X") -> Kind:
    """Return the kind of an input or of one of its blocks, from its type alone.

    Parameters
    ----------
    name : str
        The argument, for messages.

    Raises
    ------
    DataTypeError
        For lazy frames that are not Dask's, lists of Series, objects with column names that cannot be read, and any
        other type.
    """
    if type(x) is np.ndarray:  # subclasses may be those of a GPU library
        return "numpy"
    if isinstance(x, str | os.PathLike):
        return "parquet"
    if isinstance(x, list | tuple):
        _refuse_series_in(x, name)
        return "numpy"
    if isinstance(x, RowGroup):
        return "row_group"
    if is_lazy(x):
        return _dask_kind(x, name)
    device: Kind | None = device_kind(x)
    if device is not None:
        return device
    if any(cls.__module__.startswith("scipy.sparse") for cls in type(x).__mro__):
        return "sparse"
    if isinstance(x, np.ndarray):
        return "numpy"
    if _is_of("pandas", ("DataFrame", "Series"), x):
        return "pandas"
    if _is_of("pyarrow", ("Table", "RecordBatch", "Array", "ChunkedArray"), x):
        return "pyarrow"
    return _further_kind(x, name)


def readable(x: object, name: str = "X") -> Any:
    """Return a frame or Series of a further library as Arrow's or pandas', a narwhals wrapper's content as it is.

    Columns of polars and of other libraries that hold Arrow data share their memory where Arrow's types allow. Objects
    of all other kinds are returned as they are. Raises as `kind_of`, and DataTypeError for types that Arrow lacks.
    """
    if kind_of(x, name) != "frame":
        return x
    import narwhals as nw

    native = nw.to_native(x, pass_through=True)
    if native is not x:
        return readable(native, name)
    frame = nw.from_native(x, pass_through=True, allow_series=True)
    try:
        if not isinstance(frame, nw.DataFrame | nw.Series):
            return _imported(x)
        return frame.to_pandas() if frame.implementation.is_pandas_like() else frame.to_arrow()
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's errors are among them
        raise DataTypeError(
            f"{name} is of type {_type_name(x)} and cannot be read through Arrow: {error}. Cast columns of types that "
            "Arrow lacks (such as 128-bit integers), or drop them."
        ) from error


def entries_per_row(x: Any) -> float | None:
    """Return the present entries of a row of a sparse matrix; None of all other inputs."""
    return x.nnz / max(x.shape[0], 1) if kind_of(x) in SPARSE_KINDS else None


def sliceable(x: Any) -> Any:
    """Return a sparse matrix as CSR, whose rows can be cut; all other inputs as they are. DataError as `as_csr`."""
    return as_csr(x) if kind_of(x) in SPARSE_KINDS else x


def as_csr(x: spmatrix) -> spmatrix:
    """Return a sparse matrix of SciPy or CuPy as CSR; DataError where a matrix of SciPy that is none yet has indices
    that its shape has no room for, which SciPy does not look at, and takes for places in memory."""
    if device_kind(x) is None and x.format == "csc":
        check_parts(x.shape[::-1], x.indptr, x.indices, len(x.data))
    elif device_kind(x) is None and x.format == "coo":
        for indices, n in zip((x.row, x.col), x.shape, strict=True):
            _check_indices(indices, n)
    return x.tocsr()


def check_parts(shape: tuple[int, int], ends: Array, indices: Array, n_values: int) -> None:
    """Refuse parts of a CSR matrix that are none of its shape, in the host's memory or a GPU's; DataError."""
    is_right = len(ends) == shape[0] + 1 and int(ends[0]) == 0 and bool((ends[1:] >= ends[:-1]).all())
    if not is_right or int(ends[-1]) > min(len(indices), n_values):
        raise DataError(
            f"X is a sparse matrix whose `indptr`, of {len(ends)} numbers, does not divide its {n_values} values; make "
            "it anew, with scipy.sparse.csr_matrix((values, (rows, columns)), shape=shape)"
        )
    _check_indices(indices[: int(ends[-1])], shape[1])


def _check_indices(indices: Array, n: int) -> None:
    """Refuse indices of a sparse matrix that are not below `n`, or are negative."""
    if not len(indices):
        return
    least, most = int(indices.min()), int(indices.max())
    if least < 0 or most >= n:
        raise DataError(
            f"X is a sparse matrix with an index of {least if least < 0 else most} where its shape has room for {n}; "
            "make it with a shape that has room for all indices"
        )


def canonical_csr(x: spmatrix, columns: Sequence[Any] | None) -> spmatrix:
    """Return features of a sparse matrix of SciPy or CuPy as CSR, indices sorted and each only once; DataTypeError for
    what are no numbers, DataError for a matrix of SciPy whose parts are none of its shape."""
    x = as_csr(x)
    if device_kind(x) is None:
        check_parts(x.shape, x.indptr, x.indices, len(x.data))
    if columns is not None:
        x = x[:, np.asarray(columns, dtype=np.intp)]
    if not x.has_canonical_format:
        x = x.copy()
        x.sum_duplicates()
    if x.dtype.kind not in "fiub":
        raise DataTypeError(f"X is a sparse matrix of type {x.dtype}. Convert it to numbers, e.g. float32.")
    return x


def as_array(values: Any, name: str = "X") -> npt.NDArray[Any]:
    """Return what is of the kind "numpy" as an array, masked arrays as they are; DataError for nested lists of
    different lengths."""
    if isinstance(values, np.ma.MaskedArray):
        return values
    try:
        array = np.asarray(values)
        if array.dtype.kind == "U" and array.ndim == 1 and not all(isinstance(value, str) for value in values):
            return np.asarray(values, dtype=object)  # NumPy made strings of numbers; a check to come shall see the mix
    except ValueError as error:
        raise DataError(f"{name} cannot be turned into an array: {error}. Give all rows the same length.") from error
    return array


def arrayed(x: Any, name: str = "X") -> Any:
    """Return lists, and what NumPy or CuPy reads, as their arrays; all other inputs as they are."""
    kind = kind_of(x, name)
    if kind == "cupy":
        return as_device_array(x, name)
    return as_array(x, name) if kind == "numpy" else x


def is_lazy(x: object) -> bool:
    """Return whether an object is Dask's, to be computed: a collection, or the Delayed of one partition."""
    return hasattr(x, "__dask_graph__")


def is_pandas(x: object) -> TypeGuard[pd.DataFrame | pd.Series]:
    """Return whether an object is a frame or Series of pandas."""
    return kind_of(x) == "pandas"


def is_sparse(x: object) -> TypeGuard[spmatrix]:
    """Return whether an object is a matrix or array of scipy.sparse."""
    return kind_of(x) == "sparse"


def _dask_kind(x: object, name: str) -> Kind:
    for cls in type(x).__mro__:
        if cls.__module__.split(".")[0] == "dask" and cls.__name__ in _DASK:
            return _DASK[cls.__name__]
    raise _unsupported(x, name)


def _is_of(library: str, names: Sequence[str], x: object) -> bool:
    """Return whether an object is of one of these classes of a library, which is not imported for it."""
    module = sys.modules.get(library)
    return any(isinstance(x, getattr(module, name, ())) for name in names)


def _further_kind(x: object, name: str) -> Kind:
    """Return the kind of what is neither NumPy's, pandas', Arrow's, Dask's nor a GPU's: of narwhals, or an array."""
    import narwhals as nw

    native = nw.to_native(x, pass_through=True)
    if native is not x:
        kind_of(native, name)
        return "frame"
    frame = nw.from_native(x, pass_through=True, allow_series=True)
    if isinstance(frame, nw.LazyFrame):
        raise DataTypeError(
            f"{name} is of type {_type_name(x)}, a lazy frame, whose rows are not computed yet. Compute them first: "
            f"pass {name}.collect() of polars' or narwhals' frames, narwhals.from_native({name}).collect() of others."
        )
    if isinstance(frame, nw.DataFrame | nw.Series) or any(hasattr(x, each) for each in _ARROW_EXPORTS):
        return "frame"
    if any(hasattr(x, each) for each in _NAME_MARKS):
        raise DataTypeError(
            f"{name} is of type {_type_name(x)}, which is not supported, but has column names, which an array would "
            "lack. Convert it to pandas, polars or Arrow, or pass its values as a NumPy array, matched by position."
        )
    if hasattr(x, "__array__"):
        return "numpy"
    raise _unsupported(x, name)


def _refuse_series_in(values: Sequence[Any], name: str) -> None:
    """Refuse a list of Series or frames: NumPy would take each as a row, and drop its name."""
    if len(values) and any(hasattr(type(values[0]), each) for each in _ARROW_EXPORTS):
        raise DataTypeError(
            f"{name} is a {type(values).__name__} of {_type_name(values[0])}, of which an array would make rows "
            "without names. Join them to one frame, e.g. with pandas.concat or polars.concat."
        )


def _imported(x: object) -> pa.Table | pa.ChunkedArray:
    """Return what exports an Arrow stream or array: a Table if it has fields, else a column."""
    import pyarrow as pa


    array = pa.chunked_array(x) if hasattr(x, "__arrow_c_stream__") else pa.array(x)
    return pa.Table.from_struct_array(array) if pa.types.is_struct(array.type) else array


def _unsupported(x: object, name: str) -> DataTypeError:
    remedy = (
        "Pass a Dask DataFrame, Dask Array, pandas, polars or cuDF DataFrame, NumPy or CuPy array, pyarrow Table, "
        "sparse matrix of SciPy or CuPy, or the path of Parquet files."
        if name == "X"
        else "Pass a dense one-dimensional collection: a Series of pandas, polars, cuDF or Dask, an array, or a list."
    )
    return DataTypeError(f"{name} is of type {_type_name(x)}, which is not supported. {remedy}")


def _type_name(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__name__}"
