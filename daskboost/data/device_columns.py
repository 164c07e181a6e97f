"""Labels and weights that lie on a GPU are read there, and what the host has to know of them is fetched.

Of 11M rows, finding two classes and the class of each takes a core of the host some tenths of a second, as long as
some hundred trees of depth 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.data.device_read import column_values, on_device
from daskboost.data.rows import DeviceColumn
from daskboost.data.schema import FEATURE_KINDS, dtype_letter
from daskboost.devices.gpu.features import convert
from daskboost.devices.gpu.input import as_device_array, device_kind, runtime_of
from daskboost.devices.gpu.labels import summarize_labels
from daskboost.devices.gpu.metrics import MetricKernels
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_host
from daskboost.dtypes import Array, ArrayModule, Float64, Int64
from daskboost.exact_sum import ExactSum
from daskboost.shapes import flat

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
