"""Leaf values are added to margins: launches of `kernels/margins.cu`."""

from __future__ import annotations

from daskboost.devices.gpu.runtime import DeviceArray, Runtime
from daskboost.devices.gpu.runtime import element_stride as element_stride

THREADS = 256
"""As in `kernels/margins.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 32
"""Enough to hide the latency of scattered margins; threads stride over the rest of the rows."""


def add_leaf_values(runtime: Runtime, position: DeviceArray, values: DeviceArray, margin: DeviceArray) -> None:
    """`margin[row] += values[position[row]]` where the position is less than `len(values)`.

    `position` : uint8, uint16 or uint32, shape (rows,). `values` : float32. `margin` : float32, shape (rows,), any
    stride.
    """
    kernel = runtime.kernel("margins", "add_leaf_values", POSITION_BYTES=position.itemsize)
    n, stride = len(margin), element_stride(margin)
    kernel(_blocks(runtime, n), THREADS, position, values, len(values), n, stride, margin)


def add_leaf_values_in_order(runtime: Runtime, order: DeviceArray, ends: DeviceArray, values: DeviceArray,
                             margin: DeviceArray) -> None:  # fmt: skip
    """`margin[row] += values[s]` for the rows of each segment: those of `order[ends[s - 1]:ends[s]]`.

    `order` : uint32, the rows of all segments. `ends` : int64, shape (segments,), increasing. `values` : float32, shape
    (segments,). `margin` : float32, any stride.
    """
    kernel = runtime.kernel("margins", "add_leaf_values_in_order", POSITION_BYTES=1)
    kernel(_blocks(runtime, len(order)), THREADS, order, ends, values, len(values), element_stride(margin), margin)


def _blocks(runtime: Runtime, n: int) -> int:
    return max(1, min(-(-n // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors))
