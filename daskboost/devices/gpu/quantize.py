"""Values become symbols on a GPU: launches of `kernels/quantize.cu`, as `devices/cpu/quantize.py` does it."""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.features import THREADS, Matrix
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.symbols import DeviceSymbols
from daskboost.devices.search_tables import SearchTables

TABLE_BYTES = 48 << 10
"""Shared memory of a block's tables: 256 bins of 32 columns take 32 KB, four blocks a multiprocessor hide latency."""


def _uploaded(runtime: Runtime, search: SearchTables) -> tuple[DeviceArray, ...]:
    return tuple(to_device(runtime, table) for table in search)


def quantize_rows(runtime: Runtime, matrix: Matrix, search: SearchTables, symbols: DeviceSymbols, first_row: int = 0
                  ) -> int:  # fmt: skip
    """Write the symbols of a matrix, from row `first_row` on; a feature that lacks one for its missing values, or -1.
    """
    n_features = matrix.values.shape[1]
    unrepresentable = runtime.xp.full(1, -1, np.int32)
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
    found: DeviceArray = bins
    return found
