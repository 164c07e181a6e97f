"""Columns in a GPU's memory: numbers of any type become float32 without leaving it, labels are looked at, features
become bins; launches of `kernels/features.cu`, `labels.cu` and `quantize.cu`.

What walks a matrix (`kernels/matrix.cuh`) takes it with any strides, so float32 is never copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.runtime.launches import DeviceArray, Kernel, KernelArgument, Runtime, to_device, to_host
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import Int64, in_columns

THREADS = 256
"""Threads of a block, as in `kernels/features.cu`, `labels.cu`, `sketch.cu` and `quantize.cu`."""
MOST_COLUMNS = 32
"""A warp's lanes: a row of so many float32 is one line of cache."""
LEAST_STEPS = 16
"""Rows of a thread, at least: what it gathers in registers is to be worth handing over."""
MOST_TILE_ROWS = 1 << 14
"""So that what blocks of neighbouring columns read and write of the same rows meets in the L2 cache."""
TYPES = {name: number for number, name in enumerate(
    ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)} | {"bool": 7}  # fmt: skip
"""Types as `kernels/features.cu` numbers them."""
_BITS = {"float16": np.uint16, "bool": np.uint8}
"""How types that kernels do not know are passed."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of float32 with any strides; NaN and `missing` stand for no value."""

    values: DeviceArray
    missing: float

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    def columns(self, n_series: int, most: int = MOST_COLUMNS) -> int:
        """Series of a block: neighbouring threads read what is contiguous, a row or a column."""
        row_stride, column_stride = self.values.strides
        return min(most, n_series) if abs(column_stride) <= abs(row_stride) else 1

    def launch(self, runtime: Runtime, kernel: Kernel, features: DeviceArray | None, n_series: int,
               *arguments: KernelArgument, columns: int = 0, shared_bytes: int = 0) -> None:  # fmt: skip
        """Launch a kernel that walks `n_series` of the columns, those of `features` (int32) or the first.

        `columns` : of a block; 0 for as many as `columns()` gives.
        """
        if self.n_rows == 0 or n_series == 0:
            return
        row_stride, column_stride = (int(stride) // 4 for stride in self.values.strides)
        columns = columns or self.columns(n_series)
        groups = -(-n_series // columns)
        least = LEAST_STEPS * (THREADS // columns)
        rows = max(least, min(-(-self.n_rows * groups // (32 * runtime.multiprocessors)), MOST_TILE_ROWS))
        kernel(
            -(-self.n_rows // rows) * groups, THREADS, self.values, row_stride, column_stride, self.n_rows, features,
            n_series, columns, rows, self.missing, *arguments, shared_bytes=shared_bytes,
        )  # fmt: skip

    def inspect(self, runtime: Runtime) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """Absent values of each column, and whether it has values at or beyond float32's largest; on the host."""
        n = int(self.values.shape[1])
        found, beyond = runtime.xp.zeros(n, np.uint64), runtime.xp.zeros(n, np.int32)
        self.launch(runtime, runtime.kernel("features", "inspect", TYPE=0), None, n, found, beyond)
        return to_host(found).astype(np.int64), to_host(beyond) > 0

    def present(self, runtime: Runtime) -> DeviceArray:
        """Whether there is a value; bool, shape (rows, columns)."""
        found = runtime.xp.zeros(self.values.shape, np.uint8)
        self.launch(runtime, runtime.kernel("features", "find_present", TYPE=0), None, self.values.shape[1], found)
        return found.view(np.bool_)


def order_of(values: DeviceArray) -> Literal["C", "F"]:
    """Return the order of axes, NumPy's word for it, in which an array's values lie in memory."""
    steps = [abs(stride) for stride in values.strides]
    return "C" if steps == sorted(steps, reverse=True) else "F"


def as_float32(runtime: Runtime, values: DeviceArray) -> DeviceArray:
    """Numbers as float32, rounded once; the same array where they are that, else a copy in the same order of axes."""
    if values.dtype == np.float32:
        return values
    out = runtime.xp.empty(values.shape, np.float32, order=order_of(values))
    convert(runtime, values, out)
    return out


def convert(runtime: Runtime, values: DeviceArray, out: DeviceArray, nulls: DeviceArray | None = None) -> None:
    """Write numbers into float32 `out`, a vector or matrix of that shape; NaN where uint8 `nulls` of a vector is 1."""
    name = str(values.dtype)
    given, out = in_columns(values.view(_BITS[name]) if name in _BITS else values), in_columns(out)
    if abs(given.strides[0]) < abs(given.strides[1]) and nulls is None:
        given, out = given.T, out.T
    if given.size == 0:
        return
    (i, j), (out_i, out_j) = ([int(stride) // a.itemsize for stride in a.strides] for a in (given, out))
    blocks = min(-(-given.size // THREADS), 64 * runtime.multiprocessors)
    runtime.kernel("features", "convert", TYPE=TYPES[name])(
        blocks, THREADS, given, i, j, nulls, given.shape[0], given.shape[1], out, out_i, out_j
    )


# What labels are like: launches of `kernels/labels.cu`.

LABEL_BLOCKS = 8
"""Blocks of a multiprocessor."""


@dataclass(frozen=True)
class LabelSummary:
    """What the labels are like."""

    n_missing: int
    n_infinite: int
    all_whole: bool
    least_key: int
    """Least label that is not missing, as an order-preserving key; 2**32 - 1 if there are none."""
    greatest_key: int
    """0 if there are none."""


def summarize_labels(runtime: Runtime, labels: DeviceArray) -> LabelSummary:
    """Look at labels, float32 of shape (rows,), contiguous."""
    xp, n = runtime.xp, len(labels)
    counts, ends = xp.zeros(3, np.uint64), to_device(runtime, np.array([0xFFFFFFFF, 0], np.uint32))
    if n:
        blocks = min(-(-n // THREADS), LABEL_BLOCKS * runtime.multiprocessors)
        runtime.kernel("labels", "summarize_labels")(blocks, THREADS, labels, n, counts, ends)
    missing, infinite, broken = to_host(counts).tolist()
    least, greatest = to_host(ends).tolist()
    return LabelSummary(missing, infinite, broken == 0, least, greatest)


# Values become symbols on a GPU: launches of `kernels/quantize.cu`, as `devices/cpu/quantize.py` does it.

TABLE_BYTES = 48 << 10
"""Shared memory of a block's tables: 256 bins of 32 columns take 32 KB, four blocks a multiprocessor hide latency."""


def _uploaded(runtime: Runtime, search: SearchTables) -> tuple[DeviceArray, ...]:
    return tuple(to_device(runtime, table) for table in search)


def quantize_rows(runtime: Runtime, matrix: Matrix, search: SearchTables, symbols: DeviceSymbols, first_row: int = 0
                  ) -> int:  # fmt: skip
    """Write the symbols of a matrix, from row `first_row` on; a feature that lacks one for its missing values, or -1.
    """
    n_features = matrix.values.shape[1]
    unrepresentable = to_device(runtime, np.full(1, -1, np.int32))
    columns = matrix.columns(n_features)
    while columns > 1 and search.group_bytes(columns) > TABLE_BYTES:
        columns //= 2
    table_bytes = search.group_bytes(columns)
    fits = table_bytes <= TABLE_BYTES
    matrix.launch(
        runtime, runtime.kernel("quantize", "quantize_rows", SYMBOL_BYTES=symbols.flat.itemsize, TABLES=int(fits)),
        None, n_features, *_uploaded(runtime, search), symbols.flat,
        to_device(runtime, symbols.places.of(symbols.n_rows)), first_row, unrepresentable,
        columns=columns if fits else 0, shared_bytes=table_bytes if fits else 0,
    )  # fmt: skip
    return int(to_host(unrepresentable)[0])


def quantize_entries(runtime: Runtime, indices: DeviceArray, values: DeviceArray, search: SearchTables
                     ) -> DeviceArray:  # fmt: skip
    """Global bins of CSR entries; uint32, shape (entries,)."""
    bins = runtime.xp.empty(len(values), np.uint32)
    if len(values):
        blocks = min(-(-len(values) // THREADS), 64 * runtime.multiprocessors)
        runtime.kernel("quantize", "quantize_entries", SYMBOL_BYTES=1, TABLES=0)(
            blocks, THREADS, indices, values, len(values), *_uploaded(runtime, search), bins
        )
    return bins
