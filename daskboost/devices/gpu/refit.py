"""Trees searched on packed gradients take exact sums of their leaves: `kernels/refit.cu` and `leaf_sums.cu`.

The leaf of each row lies where its pair lay, which nobody needs once the last histogram is built: a refit takes no
memory of rows. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from daskboost.devices.gpu.gradients import Columns, Quantizer
from daskboost.devices.gpu.margins import Segments
from daskboost.devices.gpu.rounding import SCALES, DeviceRounding, OutputRounding, ScaleRule
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride
from daskboost.devices.gpu.split import Regular
from daskboost.devices.gpu.tiles import count_tiles, rows_per_tile
from daskboost.devices.gpu.views import GpuView, find_leaves

THREADS = 256
"""As in `kernels/refit.cu`."""
ADD_BLOCKS = 8
"""Of a multiprocessor, that add values."""


class PairSegments(Segments, Protocol):
    """And their pairs."""

    pairs: DeviceArray


class Tables(Protocol):
    """Trees that grew together, see `growth.TreeTables`."""

    sums: DeviceArray
    values: DeviceArray

    @property
    def arguments(self) -> tuple[Any, ...]: ...

    @property
    def walk_columns(self) -> tuple[DeviceArray, ...]: ...


def leaf_of_rows(chunk: PairSegments) -> DeviceArray:
    """Room for the leaf of each row; int32, shape (rows,), in place of the chunk's pairs."""
    return chunk.pairs.view(np.int32)[: chunk.n_rows]


def mark_leaves(runtime: Runtime, chunk: PairSegments, nodes: DeviceArray) -> DeviceArray:
    """Place of each row's node among `nodes`, -1 for rows of none; see `leaf_of_rows`."""
    leaf = leaf_of_rows(chunk)
    leaf.fill(-1)
    if chunk.n_rows and len(nodes):
        tile_rows = rows_per_tile(runtime, chunk.n_rows)
        tiles = count_tiles(runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
        runtime.kernel("refit", "mark_leaves")(
            tiles.most, THREADS, tiles.bounds, nodes, tiles.starts, len(nodes), tile_rows, chunk.order, leaf
        )
    return leaf


class Refit:
    """Of trees that grow without the host, over all rows of one chunk.

    Parameters
    ----------
    runtime : Runtime
    rounding : DeviceRounding
        By which trees are searched.
    rule : ScaleRule
        Of exact gradients.
    regular : Regular
    quantizer : Quantizer
        Of the chunk.
    sample_below : int
        A row grows a tree if its 32 sampling bits are below.
    """

    def __init__(self, runtime: Runtime, rounding: DeviceRounding, rule: ScaleRule, regular: Regular,
                 quantizer: Quantizer, sample_below: int) -> None:  # fmt: skip
        self._runtime, self._rounding, self._rule, self._regular = runtime, rounding, rule, regular
        self._quantizer, self._sample_below = quantizer, sample_below
        self._scales = runtime.xp.empty((rounding.n_outputs, SCALES))

    def find_scales(self) -> None:
        """Enqueue, once in a round: exact scales of the range that the round was started with."""
        self._rounding.change_scales(self._rule, self._scales)

    def __call__(self, tables: Tables, output: int, columns: Columns, view: GpuView, chunk: PairSegments,
                 learning_rate: DeviceArray, margin: DeviceArray) -> None:  # fmt: skip
        """Enqueue: the only tree in `tables` has exact sums, gains and values, which are added to the margins of all
        rows, float32 of shape (rows,)."""
        leaf, own = leaf_of_rows(chunk), self._rounding.of(output)
        find_leaves(self._runtime, view, tuple(column[0] for column in tables.walk_columns), leaf)
        tables.sums.fill(0)
        rounding = OutputRounding(self._scales[output], own.keys, own.sums)
        self._quantizer.add_to_leaves(columns, rounding, self._sample_below, leaf, tables.sums[0])
        self._runtime.kernel("refit", "refit_trees")(
            1, THREADS, *tables.arguments, self._scales[output], SCALES, self._regular.reg_lambda, self._regular.alpha,
            self._regular.max_step, learning_rate, tables.values,
        )  # fmt: skip
        if chunk.n_rows:
            blocks = min(-(-chunk.n_rows // THREADS), self._runtime.multiprocessors * ADD_BLOCKS)
            self._runtime.kernel("refit", "add_values")(
                blocks, THREADS, leaf, tables.values, chunk.n_rows, margin, element_stride(margin)
            )
