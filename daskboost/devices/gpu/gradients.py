"""Gradients become integers: launches of `kernels/gradients.cu`, whose arithmetic is `devices/cpu/gradients.py`'s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_host
from daskboost.dtypes import Float64

THREADS = 256
TILE_ROWS = 8 * THREADS
"""Both as in `kernels/gradients.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Enough to fill the device; threads stride over the rest."""
ALL = 2**32
"""A bound of 32 random bits that keeps every row."""


@dataclass(frozen=True)
class Quantized:
    """What was kept of some rows."""

    n_rows: int
    sum_g: int
    sum_h: int


def quantize(runtime: Runtime, g: DeviceArray, h: DeviceArray, weight: DeviceArray | None, rounding: Rounding,
             first_row: int, begin: int, order: DeviceArray, pairs: DeviceArray) -> Quantized:  # fmt: skip
    """Quantize one output's gradients of consecutive rows, into the first places of `order` and `pairs`.

    `g`, `h` : float32, shape (rows,), any stride. `weight` : float32, shape (rows,), of small data; None for large.
    `first_row`, `begin` : the first row's global id, and its index, from which `order` counts. Waits for the result.
    """
    xp, n = runtime.xp, len(g)
    if n == 0:
        return Quantized(0, 0, 0)
    blocks, small = -(-n // TILE_ROWS), int(weight is not None)
    sampling = (rounding.sample_key, rounding.sample_below, first_row, n)
    found = xp.zeros(3, np.int64)  # sums of g and h, kept rows
    ends = None
    found[2] = n
    if rounding.sample_below < ALL:
        counts = xp.empty(blocks, np.int64)
        runtime.kernel("gradients", "count_sampled", SMALL=small)(blocks, THREADS, *sampling, counts)
        ends = xp.cumsum(counts)
        found[2] = ends[-1]
    runtime.kernel("gradients", "quantize_gradients", SMALL=small)(
        blocks, THREADS, g, h, weight, element_stride(g), element_stride(h), rounding.scale_g, rounding.scale_h,
        rounding.scale_w, rounding.round_key, *sampling, ends, begin, order, pairs, found.view(np.uint64),
    )  # fmt: skip
    sum_g, sum_h, kept = (int(value) for value in to_host(found))
    return Quantized(kept, sum_g, sum_h)


def largest(runtime: Runtime, values: DeviceArray) -> Float64:
    """Largest absolute value of each column, NaN where there is one; float64, shape (columns,), on the host.

    `values` : float32, shape (rows, columns), C-contiguous.
    """
    n_columns = values.shape[1]
    tops = runtime.xp.zeros(n_columns, np.uint32)
    if values.size:
        blocks = min(-(-values.size // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
        blocks = -(-blocks // n_columns) * n_columns  # each thread stays in one column
        kernel = runtime.kernel("largest", "largest_of_columns")
        kernel(blocks, THREADS, values, values.size, n_columns, tops)
    return to_host(tops).view(np.float32).astype(np.float64)
