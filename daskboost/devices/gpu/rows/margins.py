"""Leaf values are added to margins: launches of `kernels/margins.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.gpu.rows.feature_groups import count_tiles, rows_per_tile
from daskboost.devices.gpu.rows.gradients import BLOCKS_PER_MULTIPROCESSOR
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride, to_device, to_host
from daskboost.dtypes import Float32

# Few sums of many outputs' gradients: launches of `kernels/project.cu`.

PROJECTION_THREADS = 256
"""Threads of a block, as in `kernels/project.cu`."""
ROOM_BYTES = 24 << 10
"""Shared memory of a block, of which two or more then fit every multiprocessor."""


def project(runtime: Runtime, values: DeviceArray, projection: Float32, out: DeviceArray) -> None:
    """Enqueue: `out` becomes the projection of `values`, as `Device.project` has it."""
    n_rows, n_outputs = values.shape
    if not n_rows:
        return
    n_columns = projection.shape[1]
    columns, outputs = np.nonzero(projection.T)
    starts = np.searchsorted(columns, np.arange(n_columns + 1)).astype(np.int32)
    at_once = min(ROOM_BYTES // (4 * n_outputs), PROJECTION_THREADS)
    blocks = min(-(-n_rows // max(at_once, 1)), 2 * BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
    runtime.kernel("project", "project")(
        blocks, PROJECTION_THREADS, values, n_rows, n_outputs, to_device(runtime, starts),
        to_device(runtime, outputs.astype(np.int32)), to_device(runtime, projection.T[columns, outputs]), n_columns,
        at_once, out, shared_bytes=4 * n_outputs * at_once,
    )  # fmt: skip


LABEL_THREADS = 256
"""Threads of a block, as in `kernels/labels.cu`."""
BLOCKS_PER_PROCESSOR = 8


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
        blocks = min(-(-n // LABEL_THREADS), BLOCKS_PER_PROCESSOR * runtime.multiprocessors)
        runtime.kernel("labels", "summarize_labels")(blocks, LABEL_THREADS, labels, n, counts, ends)
    missing, infinite, broken = to_host(counts).tolist()
    least, greatest = to_host(ends).tolist()
    return LabelSummary(missing, infinite, broken == 0, least, greatest)


THREADS = 128
"""Threads of a block, as in `kernels/margins.cu`."""


class Segments(Protocol):
    """Rows of a chunk in node order, see `rows.DeviceOrder`."""

    n_rows: int
    order: DeviceArray
    bounds: DeviceArray


def add_leaf_values(runtime: Runtime, chunk: Segments, nodes: DeviceArray, values: DeviceArray, margin: DeviceArray
                    ) -> None:  # fmt: skip
    """`margin[row] += values[node]` for the rows of each of `nodes`; waits for nothing.

    `nodes` : int32, each once; -1 stands for none. `values` : float32, by node of the tree. `margin` : float32, shape
    (rows,), any stride. `chunk.bounds` must have room for all nodes.
    """
    if chunk.n_rows == 0 or len(nodes) == 0:
        return
    tile_rows = rows_per_tile(runtime, chunk.n_rows)
    tiles = count_tiles(runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
    runtime.kernel("margins", "add_leaf_values")(
        tiles.most, THREADS, tiles.bounds, nodes, tiles.starts, len(nodes), tile_rows, chunk.order, values,
        element_stride(margin), margin,
    )  # fmt: skip


def add_leaf_vectors(runtime: Runtime, chunk: Segments, nodes: DeviceArray, values: DeviceArray, margin: DeviceArray
                     ) -> None:  # fmt: skip
    """Add leaves that are vectors as `add_leaf_values` does single values.

    `values`, `margin` : with a column for each output, C-contiguous.
    """
    if chunk.n_rows == 0 or len(nodes) == 0:
        return
    tiles = count_tiles(runtime, chunk.bounds, nodes, rows_per_tile(runtime, chunk.n_rows), chunk.n_rows)
    runtime.kernel("margins", "add_leaf_vectors")(
        tiles.most, THREADS, *tiles.arguments, chunk.order, values, margin.shape[1], margin
    )
