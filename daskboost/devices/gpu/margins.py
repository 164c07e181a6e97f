"""Leaf values are added to margins: launches of `kernels/margins.cu`."""

from __future__ import annotations

from typing import Protocol

from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride
from daskboost.devices.gpu.tiles import count_tiles, rows_per_tile

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
