"""Rows of a chunk take the order of a tree's leaves: launches of `kernels/leaf_order.cu`.

Later trees divide the rows much as that one does, so that the rows of their nodes have neighbours: below the root, they
had waited for sectors of device memory of which they used a part.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from daskboost.devices.gpu.quantize.symbols import WORD_BYTES
from daskboost.devices.gpu.rows.feature_groups import count_tiles, rows_per_tile
from daskboost.devices.gpu.rows.row_state import ChunkRows, DeviceOrder
from daskboost.devices.gpu.rows.views import DenseView
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime

THREADS = 256
"""Threads of a block, as in `kernels/leaf_order.cu`."""
BLOCKS = 8
"""Blocks of a multiprocessor that take values; threads stride over the rest."""


def compile_ahead(runtime: Runtime) -> None:
    """Have the kernels compiled that move rows, as far as nothing else has launched them before: asking for them does
    not wait."""
    runtime.kernel("leaf_order", "order_of_leaves")
    runtime.kernel("margins", "add_leaf_values")
    runtime.kernel("take_rows", "take_rows", WORD_BYTES=max(WORD_BYTES))


def put_in_leaf_order(rows: ChunkRows, leaves: DeviceArray, values: Iterable[DeviceArray]) -> None:
    """Enqueue: all rows of a chunk take the order of the leaves in which they lie.

    Their symbols and what each has of `values`, float32 of shape (rows,) or (rows, columns), C-contiguous, move with
    them, and they keep their global ids, by which kernels draw: to all that comes later, row i is the row at place i.

    Parameters
    ----------
    rows : ChunkRows
        With the rows of one tree, or of the first one of several, in its leaves.
    leaves : int32 array, shape (leaves,)
        Nodes of that tree, -1 for none.
    values : iterable of arrays
        They stay where they are, as others know them there.
    """
    view = rows.view
    assert isinstance(view, DenseView)  # the plan says so
    runtime = view.runtime
    order = leaf_order(runtime, rows.chunk, leaves)
    view.put_in_order(order)
    rows.rows.quantizers[0].put_in_order(order)
    for each in values:
        runtime.xp.copyto(each, taken(runtime, each, order))


def leaf_order(runtime: Runtime, chunk: DeviceOrder, leaves: DeviceArray) -> DeviceArray:
    """Enqueue: return the rows of a tree leaf by leaf; uint32, shape (rows,). Parameters are those above."""
    found = runtime.xp.empty(chunk.n_rows, np.uint32)
    tile_rows = rows_per_tile(runtime, chunk.n_rows)
    tiles = count_tiles(runtime, chunk.bounds, leaves, tile_rows, chunk.n_rows)
    runtime.kernel("leaf_order", "order_of_leaves")(
        tiles.most, THREADS, *tiles.arguments, chunk.order, chunk.half, found
    )
    return found


def taken(runtime: Runtime, values: DeviceArray, rows: DeviceArray) -> DeviceArray:
    """Enqueue: return what some rows, uint32, have of values, float32 of shape (rows,) or (rows, columns),
    C-contiguous."""
    n = len(rows)
    found = runtime.xp.empty((n, *values.shape[1:]), np.float32)
    blocks = min(-(-n // THREADS), BLOCKS * runtime.multiprocessors)
    runtime.kernel("leaf_order", "take_values")(
        blocks, THREADS, values.view(np.uint32), found.size // max(n, 1), rows, n, found.view(np.uint32)
    )
    return found
