"""Trees searched on weights in place of hessians take exact sums of their leaves: `kernels/refit.cu`, `leaf_sums.cu`.

The leaf of each row lies where its pair lay, which nobody needs once the last histogram is built: a refit takes no
memory of rows. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Threads of a block, as in `kernels/refit.cu`."""
ADD_BLOCKS = 8
"""Blocks of a multiprocessor that add values."""


class PairSegments(Segments, Protocol):
    """Segments with the pairs of their rows."""

    pairs: DeviceArray


class Tables(Protocol):
    """Trees that grew together, see `growth.TreeTables`."""

    sums: DeviceArray
    values: DeviceArray

    @property
    def arguments(self) -> tuple[Any, ...]: ...

    @property
    def walk_columns(self) -> tuple[DeviceArray, ...]: ...


def leaf_of_rows(chunk: PairSegments, tree: int = 0) -> DeviceArray:
    """Room for each row's leaf in one of the trees that grow together; int32, shape (rows,), in place of the chunk's
    pairs."""
    return chunk.pairs.view(np.int32)[tree * chunk.n_rows : (tree + 1) * chunk.n_rows]


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
    """Values leaves of trees that grow without the host, over all rows of one chunk.

    Parameters
    ----------
    runtime : Runtime
    rounding : DeviceRounding
        By which trees are searched.
    regular : Regular
        Of leaves.
    quantizer : Quantizer
        Of the chunk.
    sample_below : int
        A row grows a tree if its 32 sampling bits are below.
    """

    def __init__(self, runtime: Runtime, rounding: DeviceRounding, regular: Regular, quantizer: Quantizer,
                 sample_below: int) -> None:  # fmt: skip
        self._runtime, self._rounding, self._regular = runtime, rounding, regular
        self._quantizer, self._sample_below = quantizer, sample_below
        self._scales = runtime.xp.empty((rounding.n_outputs, SCALES))

    def find_scales(self, rule: ScaleRule) -> None:
        """Enqueue, once in a round: exact scales of the range that the round was started with."""
        self._rounding.change_scales(rule, self._scales)

    def __call__(self, tables: Tables, first: int, columns: Sequence[Columns], view: GpuView, chunk: PairSegments,
                 learning_rate: DeviceArray, margins: DeviceArray) -> None:  # fmt: skip
        """Enqueue: trees in `tables`, of the outputs from `first` on with these `columns`, have exact sums, gains and
        values, which are added to the margins of all rows, float32 of shape (rows, trees)."""
        tables.sums.fill(0)
        for tree, own in enumerate(columns):
            leaf, searched = leaf_of_rows(chunk, tree), self._rounding.of(first + tree)
            find_leaves(self._runtime, view, tuple(column[tree] for column in tables.walk_columns), leaf)
            rounding = OutputRounding(self._scales[first + tree], searched.keys, searched.sums)
            self._quantizer.add_to_leaves(own, rounding, self._sample_below, leaf, tables.sums[tree])
        self._runtime.kernel("refit", "refit_trees")(
            len(columns), THREADS, *tables.arguments, self._scales[first], SCALES, *self._regular.numbers,
            learning_rate, tables.values,
        )  # fmt: skip
        for tree in range(len(columns) if chunk.n_rows else 0):
            margin = margins[:, tree]
            blocks = min(-(-chunk.n_rows // THREADS), self._runtime.multiprocessors * ADD_BLOCKS)
            self._runtime.kernel("refit", "add_values")(
                blocks, THREADS, leaf_of_rows(chunk, tree), tables.values[tree], chunk.n_rows, margin,
                element_stride(margin),
            )  # fmt: skip
