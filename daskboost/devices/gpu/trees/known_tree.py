"""Rows go to the nodes of a tree that is known whole: level by level, as `kernels/partition.cu` moves them.

A walk and a sort by node would move rows once where this moves them per level, but wants another order of them, counts
per block and node, and memory for all; a level's move of what a chunk brings takes a tenth of the time to bring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from daskboost.devices.bin_lists import lists_of_bins
from daskboost.devices.cpu.scales import ScaleRule
from daskboost.devices.cpu.split import Regular
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.gpu.rows.feature_groups import count_tiles, rows_per_tile
from daskboost.devices.gpu.rows.gradients import Columns, Quantizer
from daskboost.devices.gpu.rows.rounding import SCALES, DeviceRounding, OutputRounding
from daskboost.devices.gpu.rows.views import (
    WALK_BLOCKS,
    WALK_THREADS,
    GpuView,
    WalkColumns,
    find_leaves,
    small_data,
    walk_trees,
)
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride, to_device
from daskboost.devices.gpu.trees.leaf_models import models_on_device
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import Int32

# Trees searched on weights in place of hessians take exact sums of their leaves: `kernels/refit.cu`, `leaf_sums.cu`.
#
# The leaf of each row lies where its pair lay, which nobody needs once the last histogram is built: a refit takes no
# memory of rows. Nothing here waits for the device.

LEAF_THREADS = 128
"""Threads of a block, as in `kernels/margins.cu`."""
THREADS = 256
"""Threads of a block, as in `kernels/refit.cu` and `kernels/frontier.cu`."""
ADD_BLOCKS = 8
"""Blocks of a multiprocessor that add values."""


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
        tiles.most, LEAF_THREADS, tiles.bounds, nodes, tiles.starts, len(nodes), tile_rows, chunk.order, values,
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
        tiles.most, LEAF_THREADS, *tiles.arguments, chunk.order, values, margin.shape[1], margin
    )


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
    def walk_columns(self) -> WalkColumns: ...


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
    others : Collective
        Joins the GPUs that have other rows of the same trees.
    """

    def __init__(self, runtime: Runtime, rounding: DeviceRounding, regular: Regular, quantizer: Quantizer,
                 sample_below: int, others: Collective) -> None:  # fmt: skip
        self._runtime, self._rounding, self._regular = runtime, rounding, regular
        self._quantizer, self._sample_below, self._others = quantizer, sample_below, others
        self._scales = runtime.xp.empty((rounding.n_outputs, SCALES))

    def find_scales(self, rule: ScaleRule) -> None:
        """Enqueue, once in a round: exact scales of the range that the round was started with."""
        self._rounding.change_scales(rule, self._scales)

    def exact(self, output: int) -> OutputRounding:
        """Return how gradients of an output are rounded for sums of leaves."""
        searched = self._rounding.of(output)
        return OutputRounding(self._scales[output], searched.keys, searched.sums)

    def __call__(self, tables: Tables, first: int, columns: Sequence[Columns], view: GpuView, chunk: PairSegments,
                 learning_rate: DeviceArray, margins: DeviceArray | None) -> None:  # fmt: skip
        """Enqueue: trees in `tables`, of the outputs from `first` on with these `columns`, have exact sums, gains and
        values, which are added to the margins of all rows, float32 of shape (rows, trees), if these are given."""
        tables.sums.fill(0)
        for tree, own in enumerate(columns):
            leaf = leaf_of_rows(chunk, tree)
            find_leaves(self._runtime, view, tables.walk_columns.tree(tree), leaf)
            self._quantizer.add_to_leaves(own, self.exact(first + tree), self._sample_below, leaf, tables.sums[tree])
        self._others.add_up(tables.sums)
        self._runtime.kernel("refit", "refit_trees")(
            len(columns), THREADS, *tables.arguments, self._scales[first], SCALES, *self._regular.numbers,
            learning_rate, tables.values,
        )  # fmt: skip
        for tree in range(len(columns) if chunk.n_rows and margins is not None else 0):
            assert margins is not None
            margin = margins[:, tree]
            blocks = min(-(-chunk.n_rows // THREADS), self._runtime.multiprocessors * ADD_BLOCKS)
            self._runtime.kernel("refit", "add_values")(
                blocks, THREADS, leaf_of_rows(chunk, tree), tables.values[tree], chunk.n_rows, margin,
                element_stride(margin),
            )  # fmt: skip


class ScalarTree:
    """A tree of one output.

    Parameters
    ----------
    runtime : Runtime
    columns : WalkColumns
        Of a single tree.
    """

    def __init__(self, runtime: Runtime, columns: WalkColumns) -> None:
        self.runtime, self.columns = runtime, columns
        self.has_models = columns.models is not None
        """Whether rows of a leaf may get different values, so that all walk."""

    def walk(self, view: GpuView, margin: DeviceArray) -> None:
        """Enqueue: add leaf values to the margins of all rows, by bins; `margin` : float32, shape (rows,), any stride,
        or C-contiguous of vectors, shape (rows, outputs)."""
        walk_trees(self.runtime, view, self.columns.alone(), margin[:, None])

    def add_leaf_values(self, chunk: Segments, leaves: DeviceArray, margin: DeviceArray) -> None:
        """Enqueue: add leaf values to the margins of the rows that lie in the leaves, see `margins.add_leaf_values`."""
        add_leaf_values(self.runtime, chunk, leaves, self.columns.value, margin)


class VectorTree(ScalarTree):
    """A tree of several outputs, whose value has a column for each."""

    def walk(self, view: GpuView, margin: DeviceArray) -> None:
        n = len(margin)
        if n == 0:
            return
        blocks = min(-(-n // WALK_THREADS), self.runtime.multiprocessors * WALK_BLOCKS)
        lists = int(self.columns.sets is not None)
        self.runtime.kernel("walk_vectors", "walk_vectors", SYMBOL_BYTES=view.symbol_bytes, LISTS=lists)(
            blocks, WALK_THREADS, *view.symbols, *self.columns.arguments, margin.shape[1], n, margin
        )

    def add_leaf_values(self, chunk: Segments, leaves: DeviceArray, margin: DeviceArray) -> None:
        add_leaf_vectors(self.runtime, chunk, leaves, self.columns.value, margin)


def device_tree(runtime: Runtime, tree: WalkArrays, n_bins: Int32) -> ScalarTree:
    """Bring a tree to the device, in one copy, since each takes as long as a launch; `n_bins` : of each feature."""
    n, n_words = len(tree.left_child), tree.value.size
    bins, lists = lists_of_bins(tree.split_bin, tree.right_bins, tree.left_child >= 0, n_bins[tree.feature])
    values = tree.value.ravel().view(np.int32)
    numbers = (tree.left_child, tree.right_child, tree.feature, bins, values, lists.ravel())
    n_numbers = 4 * n + n_words + lists.size
    words = np.zeros(n_numbers + -(-n // 4), np.int32)
    np.concatenate(numbers, out=words[:n_numbers])
    words[n_numbers:].view(np.uint8)[:n] = tree.default_left
    made = to_device(runtime, words)
    links = tuple(made[k * n : (k + 1) * n] for k in range(4))
    default_left = made[n_numbers:].view(np.uint8)[:n]
    value = made[4 * n : 4 * n + n_words].view(np.float32).reshape(tree.value.shape)
    sets = made[4 * n + n_words : n_numbers].reshape(lists.shape) if lists.size else None
    kind = VectorTree if tree.has_vectors else ScalarTree
    models = models_on_device(runtime, tree.models) if tree.models else None
    return kind(runtime, WalkColumns.of((*links, default_left, value), sets, models))


@dataclass(frozen=True)
class KnownTree:
    """A tree on the device, whose leaves are places."""

    levels: Sequence[DeviceArray]
    """Splits of each level that lead to places, as `kernels/partition.cu` takes them; int32, shape (6, splits)."""
    leaves: DeviceArray
    """The node of each place; int32."""
    n_nodes: int
    """Nodes of the tree, and one that no rows reach."""
    sets: DeviceArray | None
    """Lists of the nodes that split by sets (`bin_lists.py`), if any do; int32, shape (nodes, width)."""

    @property
    def most_splits(self) -> int:
        """Most splits of a level."""
        return max((splits.shape[1] for splits in self.levels), default=0)


def known_tree(runtime: Runtime, tree: WalkArrays, n_places: int, n_bins: Int32) -> KnownTree:
    """A tree whose leaves hold places 0 to `n_places` as values, or negative ones where rows are not wanted."""
    left, right = tree.left_child, tree.right_child
    levels, at = [], np.zeros(1, np.int64)
    leads = np.zeros(len(left), np.bool_)
    leaves = np.full(n_places, len(left), np.int32)
    while len(at):
        inner, ends = at[left[at] >= 0], at[left[at] < 0]
        ends = ends[tree.value[ends] >= 0]
        leads[ends] = True
        leaves[tree.value[ends].astype(np.int64)] = ends
        levels.append(inner)
        at = np.concatenate([left[inner], right[inner]]).astype(np.int64)
    for inner in reversed(levels):
        leads[inner] = leads[left[inner]] | leads[right[inner]]
    chosen = [inner[leads[inner]] for inner in levels]
    nodes, default_left = np.arange(len(left), dtype=np.int32), tree.default_left.astype(np.uint8)
    bins, lists = lists_of_bins(tree.split_bin, tree.right_bins, leads & (left >= 0), n_bins[tree.feature])
    columns = RowSplits(nodes, left, right, tree.feature, bins, default_left).columns
    uploaded = [to_device(runtime, np.ascontiguousarray(columns[:, inner])) for inner in chosen if len(inner)]
    return KnownTree(uploaded, to_device(runtime, leaves), len(left) + 1, sets_on_device(runtime, lists))


def sets_on_device(runtime: Runtime, lists: Int32) -> DeviceArray | None:
    """Bring lists of nodes (`bin_lists.py`) to the device, if any node has one."""
    return to_device(runtime, lists) if lists.size else None


def sum_segments(runtime: Runtime, chunk: PairSegments, nodes: DeviceArray, sums: DeviceArray) -> None:
    """Enqueue: `sums`, int64 of shape (nodes, 2), grow by the g and h of the nodes' rows."""
    if chunk.n_rows == 0 or len(nodes) == 0:
        return
    tile_rows = rows_per_tile(runtime, chunk.n_rows)
    tiles = count_tiles(runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
    runtime.kernel("frontier", "sum_segments", SMALL=small_data(chunk.pairs))(
        tiles.most, THREADS, tiles.bounds, nodes, tiles.starts, len(nodes), tile_rows, chunk.pairs,
        sums.view(np.uint64),
    )  # fmt: skip
