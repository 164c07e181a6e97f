"""One block in a GPU's memory (CuPy, cuDF) becomes checked rows there: what `convert.py` is for blocks on the host.

Float32 stays where it is, whatever its strides; other numbers are rounded once, into a copy. Base margins, and labels
and weights that are not looked at there, come to the host: `host_block` fetches them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.kinds import canonical_csr, check_parts
from daskboost.data.input.row_batch import DeviceColumn, DeviceDenseRows, DeviceRows, DeviceSparseRows
from daskboost.data.input.schema import FEATURE_KINDS, dtype_letter, require_number
from daskboost.devices.gpu.predict import DenseValues, SparseValues, Values
from daskboost.devices.gpu.quantize.bins import Matrix, as_float32, convert, summarize_labels
from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, lack_of_memory, to_device, to_host
from daskboost.devices.gpu.runtime.stretches import true_places
from daskboost.devices.gpu.runtime.user_arrays import as_device_array, device_kind, runtime_of
from daskboost.dtypes import Array, ArrayModule, Bool, Float64, Int64, flat
from daskboost.exact_sum import ExactSum

if TYPE_CHECKING:
    import cudf

Columns = tuple[Hashable, ...] | None


def device_memory() -> AbstractContextManager[None]:
    """Within it, a GPU's lack of memory is an error that says what to do."""
    return lack_of_memory(
        lambda error: f"the GPU's memory does not hold the rows and what is made of them ({error}): free what else is "
        "there, pass X in float32, which is not copied, in smaller partitions, or from the host's memory, or spread a "
        "Dask collection over more GPUs"
    )


@contextmanager
def on_device(runtime: Runtime) -> Iterator[None]:
    """The same, with a GPU as the current one."""
    with active(runtime), device_memory():
        yield


def host_block(block: Any) -> Any:
    """A block in the host's memory: NumPy, Arrow for cuDF, SciPy's for CuPy's like of them; others as they are."""
    kind = device_kind(block)
    if kind == "cupy":
        return to_host(as_device_array(block))
    if kind == "cudf":
        return block.to_arrow()
    return block if kind is None else block.get()


def device_rows(x: object, columns: Columns, missing: float) -> tuple[DeviceRows, Bool]:
    """Return features as rows to be quantized, and which of them have values at or beyond float32's largest; parameters
    and errors as of `device_values`."""
    with device_memory():
        values, runtime = device_values(x, columns, missing)
    with on_device(runtime):
        rows, beyond = inspected(runtime, values)
    is_lent = device_kind(x) == "cupy" and columns is None and rows.values is values.values
    return rows.lent() if is_lent else rows, beyond


def device_values(x: Any, columns: Columns, missing: float) -> tuple[Values, Runtime]:
    """Return features where they lie, dense ones of any type of number, and the GPU that this is.

    Parameters
    ----------
    x : 2-D CuPy array, matrix of `cupyx.scipy.sparse`, or cuDF DataFrame
    columns : tuple or None
        Column names of a frame, column positions of an array; None for all.
    missing : float
        A further value that stands for missing.

    Raises
    ------
    DataTypeError
        When a column's actual type is not a number, whatever the metadata said.
    DataError
        For a sparse matrix whose parts are none of its shape.
    """
    if device_kind(x) != "cupy_sparse":
        matrix, runtime = dense_matrix(x, columns)
        return DenseValues(matrix, missing), runtime
    runtime = runtime_of(x.tocsr())
    with active(runtime):
        x = canonical_csr(x, columns)
        indptr, indices, values = (as_device_array(array) for array in (x.indptr, x.indices, x.data))
        check_parts(x.shape, indptr, indices, len(values))
        n_entries = int(indptr[-1])
        return SparseValues(
            indptr.astype(np.int64), indices[:n_entries].astype(np.int32, copy=False),
            as_float32(runtime, values[:n_entries]), int(x.shape[1]), missing,
        ), runtime  # fmt: skip


def inspected(runtime: Runtime, values: Values) -> tuple[DeviceRows, Bool]:
    """Return values on the device as rows, and which features have values at or beyond float32's largest."""
    missing = float(np.float32(values.missing))
    if isinstance(values, DenseValues):
        matrix = as_float32(runtime, values.values)
        n_missing, beyond = Matrix(matrix, missing).inspect(runtime)
        return DeviceDenseRows(runtime, matrix, missing, n_missing), beyond
    return _sparse_rows(runtime, values, missing)


def dense_matrix(x: Any, columns: Columns) -> tuple[DeviceArray, Runtime]:
    """Features of a CuPy array, of any type of number, or those of a cuDF frame in float32; and the GPU they lie on.

    Parameters and errors as of `device_values`.
    """
    if device_kind(x) == "cudf":
        runtime = runtime_of(x)
        with active(runtime):
            return _frame_values(runtime, x, list(x.dtypes.index) if columns is None else list(columns)), runtime
    array = as_device_array(x)
    runtime = runtime_of(array)
    require_number(array.dtype, "X")
    if columns is not None:
        with active(runtime):
            array = array[:, to_device(runtime, np.asarray(columns, np.int64))]
    return array, runtime


def _frame_values(runtime: Runtime, frame: cudf.DataFrame, names: Sequence[Hashable]) -> DeviceArray:
    """Columns of a cuDF frame side by side, each contiguous as in the frame."""
    out = runtime.xp.empty((len(frame), len(names)), np.float32, order="F")
    for i, name in enumerate(names):
        values, nulls = column_values(frame[name], name)
        convert(runtime, values, out[:, i], nulls)
    found: DeviceArray = out
    return found


def column_values(series: cudf.Series, name: Hashable) -> tuple[DeviceArray, DeviceArray | None]:
    """A cuDF Series of numbers as a CuPy array of its own type, and a byte that is 1 for each null."""
    if dtype_letter(series.dtype) not in FEATURE_KINDS:
        if not len(series) or bool(series.isna().all()):
            nothing = as_device_array(series.isna().values)
            return nothing, nothing.view(np.uint8)
        require_number(series.dtype, f"column {name!r}")
    absent = series.isna()
    if not bool(absent.any()):
        return as_device_array(series.values), None
    nulls = as_device_array(absent.values)
    return as_device_array(series.fillna(series.dtype.type(0)).values), nulls.view(np.uint8)


def _sparse_rows(runtime: Runtime, found: SparseValues, missing: float) -> tuple[DeviceSparseRows, Bool]:
    """Return entries of canonical CSR as rows, without those that stand for missing, and what `inspected` does."""
    xp, indptr, indices, values = runtime.xp, found.indptr, found.indices, found.values
    entries = Matrix(values[:, None], missing)
    n_absent, beyond = entries.inspect(runtime)
    if n_absent[0]:
        present = entries.present(runtime)[:, 0]
        kept = xp.zeros(len(values) + 1, np.int64)
        kept[1:] = xp.cumsum(present, dtype=np.int64)
        places = true_places(runtime, xp.ascontiguousarray(present))
        values, indices, indptr = values[places], indices[places], kept[indptr]
    rows = DeviceSparseRows(runtime, indptr, indices, values, found.n_features)
    columns_beyond = np.zeros(found.n_features, np.bool_)
    if beyond[0]:
        host = to_host(values)
        columns_beyond[to_host(indices)[np.abs(host) >= np.finfo(np.float32).max]] = True
    return rows, columns_beyond


# Labels and weights that lie on a GPU are read there, and what the host has to know of them is fetched.
#
# Of 11M rows, finding two classes and the class of each takes a core of the host some tenths of a second, as long as
# some hundred trees of depth 8.

FEW_ROWS = 2**16
"""Classes and sums of fewer are found on the host: they have come there before a GPU's launches are over."""
ROWS_AT_ONCE = 2**20
"""Rows that expressions take at a time: up to 40 MB of a GPU's memory."""
CACHED_ROWS = 2**14
"""The same on the host."""


def device_vector(block: Any, name: str) -> tuple[Runtime, DeviceArray, DeviceArray | None] | None:
    """Numbers of a CuPy vector, or a matrix of one column, or of a cuDF Series: as they are, with a byte per row that
    is 1 for a null, if there are any. None for all other blocks, Indexes of cuDF among them."""
    kind = device_kind(block)
    nulls: DeviceArray | None = None
    if kind == "cupy":
        values = flat(as_device_array(block, name))
    elif kind == "cudf" and hasattr(block, "iloc") and block.ndim == 1 and dtype_letter(block.dtype) in FEATURE_KINDS:
        values, nulls = column_values(block, name)
    else:
        return None
    if values.ndim != 1 or dtype_letter(values.dtype) not in FEATURE_KINDS:
        return None
    return runtime_of(values), values, nulls


def device_column(block: Any, name: str) -> DeviceColumn | None:
    """Numbers as float32, nulls as NaN, of what `device_vector` takes; None for all others."""
    found = device_vector(block, name)
    if found is None:
        return None
    runtime, values, nulls = found
    with on_device(runtime):
        if values.dtype != np.float32 or nulls is not None or not values.flags.c_contiguous:
            given, values = values, runtime.xp.empty(values.shape, np.float32)
            convert(runtime, given, values, nulls)
        return looked_at(runtime, values)


def looked_at(runtime: Runtime, values: DeviceArray) -> DeviceColumn:
    """A contiguous float32 vector on the current GPU, with its summary."""
    return DeviceColumn(runtime, values, summarize_labels(runtime, values))


def exact_sum(column: DeviceColumn) -> ExactSum:
    """`ExactSum.of` the column, as metrics sum weights."""
    with on_device(column.runtime):
        values = column.values
        _, (units, specials) = MetricKernels(column.runtime).sum_losses("absolute", values, values, values)
    return ExactSum(units, specials)


def count_nonzero(column: DeviceColumn) -> int:
    """Values that are not 0."""
    xp, bits = column.runtime.xp, column.values.view(np.uint32)
    with on_device(column.runtime):
        return int(sum(xp.count_nonzero(bits[part] << 1) for part in parts(len(column), ROWS_AT_ONCE)))


def code_counts(codes: DeviceColumn, n_classes: int) -> Int64:
    """Rows of every class; int64, shape (classes,), on the host."""
    xp = codes.runtime.xp
    with on_device(codes.runtime):
        counts = xp.zeros(n_classes, np.int64)
        for part in parts(len(codes), ROWS_AT_ONCE):
            counts += xp.bincount(codes.values[part].astype(np.intp), minlength=n_classes)
        return to_host(counts)


def many_values(block: Any, name: str) -> tuple[Runtime, DeviceArray] | None:
    """Numbers on a GPU, of any type, that are better looked at there; None for others, nulls among them."""
    found = device_vector(block, name)
    if found is None or found[2] is not None or len(found[1]) < FEW_ROWS:
        return None
    return found[0], found[1]


def unique_values(runtime: Runtime, values: DeviceArray) -> npt.NDArray[Any]:
    """Return the sorted distinct values on the host, as `numpy.unique` does; of each part only those that differ are
    fetched."""
    xp = runtime.xp
    with on_device(runtime):
        own = (values[part] for part in parts(len(values), ROWS_AT_ONCE))
        found = [to_host(xp.unique(exact_doubles(part, xp) if part.dtype == np.float32 else part)) for part in own]
    return np.unique(np.concatenate(found)).astype(values.dtype)


def exact_doubles(values: Array, xp: ArrayModule) -> Float64:
    """Numbers as float64, those of float32 exactly: expressions of CuPy take them for 0 below 2**-126."""
    if xp is np or values.dtype != np.float32:
        return values.astype(np.float64)
    bits = values.view(np.int32)
    size = bits & 0x7FFFFFFF
    subnormal = size.astype(np.float64) * 2.0**-149
    return xp.where(size >= 1 << 23, values.astype(np.float64), xp.where(bits < 0, -subnormal, subnormal))


def parts(n_rows: int, rows_at_once: int) -> Iterator[slice]:
    """Give slices of the rows, so many each."""
    for start in range(0, n_rows, rows_at_once):
        yield slice(start, min(start + rows_at_once, n_rows))


def by_parts(xp: ArrayModule, n_rows: int, dtype: npt.DTypeLike, make: Callable[[slice], Array]) -> Array:
    """An array that expressions of NumPy or CuPy make part by part, whose own memory stays small: on the host in a
    core's cache."""
    out = xp.empty(n_rows, dtype)
    for part in parts(n_rows, CACHED_ROWS if xp is np else ROWS_AT_ONCE):
        made = make(part)
        if xp is np or made.dtype != np.float64 or out.dtype != np.float32:
            out[part] = made
        else:  # by a kernel of ours: CuPy would make zeros of what float32 has below 2**-126
            convert(runtime_of(out), made, out[part], None)
    return out
