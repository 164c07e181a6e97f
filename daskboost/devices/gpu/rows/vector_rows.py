"""Rows on a GPU that trees of vector leaves grow over: `GpuRows` with the pairs of several outputs.

Rows are moved as those of one output are, but pairs stay in the order of rows (as on the CPU): moving 80 of them with
every row of every level would cost more than to gather them, for the nodes that are built, a few outputs at a time.
The histograms of an output are then those of a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.gpu.rows.feature_groups import cut_tiles, map_tiles
from daskboost.devices.gpu.rows.gradients import ALL, Columns, RoundGradients, Source
from daskboost.devices.gpu.rows.rounding import DeviceRounding, OutputRounding
from daskboost.devices.gpu.rows.row_state import BUILD_ROWS, DeviceOrder, GpuRows, Gradients, rounding_of
from daskboost.devices.gpu.rows.views import GpuView, WalkColumns, small_data
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.trees.known_tree import VectorTree, add_leaf_vectors
from daskboost.dtypes import ArrayModule, Float32

THREADS = 256
"""Threads of a block, as in `kernels/gather_pairs.cu`, where it is the rows of a tile (`BUILD_ROWS`), too."""
AT_ONCE = 8
"""Outputs gathered at a time, as in `kernels/gather_pairs.cu`."""
MOST_POSITIONS = 2**32
"""Positions of outputs that one launch adds up have 32 bits."""


class VectorOrder(DeviceOrder):
    """`DeviceOrder` with pairs of several outputs in the order of rows, shape (rows, width)."""

    def __init__(self, runtime: Runtime, n_rows: int, width: int, weight: Float32 | None = None, n_trees: int = 1,
                 room_rows: int = 0) -> None:  # fmt: skip
        self.width = width
        super().__init__(runtime, n_rows, weight, n_trees, room_rows)

    @property
    def moved(self) -> DeviceArray | None:
        return None

    def _empty_pairs(self, xp: ArrayModule, dtype: type) -> DeviceArray:
        found: DeviceArray = xp.empty((self.room_rows, self.width), dtype)
        return found[: self.n_rows]


class VectorRows(GpuRows):
    """`GpuRows` whose layout has several outputs side by side (`SlotLayout.width`)."""

    _segments: tuple[DeviceArray, DeviceArray] | None = None
    _gathered: DeviceArray | None = None
    """Pairs of up to AT_ONCE outputs by position, of one chunk after the other; shape (outputs * positions,)."""

    def _order(self, n_rows: int, weight: Float32 | None, n_trees: int, room_rows: int) -> DeviceOrder:
        return VectorOrder(self._runtime, n_rows, self._layout.width, weight, n_trees, room_rows)

    def start_vector_tree(self, gradient: Gradients, roundings: Sequence[Rounding]) -> tuple[int, ...]:
        """Quantize as `GpuRows` does; rows are sampled by the first column's rounding."""
        rounding, sample_below = rounding_of(self._runtime, roundings), roundings[0].sample_below
        for index, chunk in enumerate(self.chunks):
            chunk.start(chunk.n_rows)
            self.fill_root(index, gradient(index), rounding, sample_below)
        sums: tuple[int, ...] = tuple(to_host(rounding.sums).ravel().tolist())
        if sample_below < ALL:
            for chunk in self.chunks:
                chunk.kept = int(to_host(chunk.bounds[0])[1])
        return sums

    def fill_root(self, index: int, gradients: tuple[DeviceArray, DeviceArray], rounding: DeviceRounding,
                  sample_below: int) -> None:  # fmt: skip
        """Enqueue: the sampled rows of a chunk into the root, with pairs of all columns of its gradients; the sums of
        `rounding` grow."""
        chunk, first, (g, h) = self.chunks[index], rounding.of(0), gradients
        self.quantizers[index](  # for the order of the sampled rows; its pairs are those of a single output
            Columns(g[:, 0], h[:, 0]), OutputRounding(first.scales, first.keys, self._nothing), sample_below,
            chunk.order, self._room(chunk)[0], chunk.bounds,
        )  # fmt: skip
        self._sum_rows(index, gradients, rounding, self._root, chunk.pairs, rounding.sums)

    @cached_property
    def _root(self) -> DeviceArray:
        """The node of all rows."""
        return to_device(self._runtime, np.zeros(1, np.int32))

    @cached_property
    def _nothing(self) -> DeviceArray:
        """Sums that nobody reads."""
        return self._runtime.xp.zeros(2, np.uint64)

    def round_gradients(self, source: Source, rounding: DeviceRounding, sample_below: int, *, by_weight: bool
                        ) -> RoundGradients:  # fmt: skip
        return VectorGradients(self, source, rounding, sample_below)

    def walk(self, view: GpuView, columns: WalkColumns, margins: DeviceArray) -> None:
        VectorTree(self._runtime, columns.tree(0)).walk(view, margins)

    def add_leaves(self, chunk: DeviceOrder, leaves: DeviceArray, values: DeviceArray, margins: DeviceArray) -> None:
        add_leaf_vectors(self._runtime, chunk, leaves[0], values[0], margins)

    def build_outputs(self, view: GpuView, chunk: DeviceOrder, nodes: DeviceArray, out: DeviceArray, *,
                      in_order: bool = False, adds: bool = False, n_trees: int = 1) -> None:  # fmt: skip
        width, order = out.shape[2], None if in_order else chunk.order
        tiles = map_tiles(self._runtime, chunk.bounds, nodes, BUILD_ROWS, chunk.kept)
        gathered, by_output = self._room(chunk), out.transpose(2, 0, 1, 3)
        assert by_output.flags.c_contiguous, "a copy would have the sums"
        kernel = self._runtime.kernel("gather_pairs", "gather_pairs", SMALL=small_data(chunk.pairs))
        for first in range(0, width, AT_ONCE):
            n = min(AT_ONCE, width - first)
            bounds, own_nodes = self._segments_of(n * len(nodes))
            kernel(
                tiles.most, THREADS, chunk.pairs, width, first, n, *tiles.arguments, order, gathered,
                gathered.shape[1], bounds, own_nodes,
            )  # fmt: skip
            if view.joins_trees and n * len(chunk.order) < MOST_POSITIONS:
                joined = cut_tiles(bounds, own_nodes, BUILD_ROWS, n * chunk.kept)
                histograms = by_output[first : first + n].reshape(n * len(nodes), out.shape[1], 2)
                view.build(joined, order, gathered[:n].ravel(), histograms, adds=adds)
                continue
            for k in range(n):
                view.build(tiles, order, gathered[k], by_output[first + k], adds=adds)

    def _segments_of(self, n: int) -> tuple[DeviceArray, DeviceArray]:
        """Return room for the positions and the numbers of so many segments; the same as before if that suffices."""
        if self._segments is None or n > len(self._segments[1]):
            xp = self._runtime.xp
            self._segments = xp.empty((n, 2), np.int64), xp.empty(n, np.int32)
        bounds, nodes = self._segments
        return bounds, nodes[:n]

    def _room(self, chunk: DeviceOrder) -> DeviceArray:
        """Return room for pairs of a chunk, shape (outputs, positions)."""
        if self._gathered is None:
            most = max((each.room_rows for each in self.chunks), default=0)
            self._gathered = self._runtime.xp.empty(min(AT_ONCE, self._layout.width) * 2 * most, chunk.pairs.dtype)
        n_positions = len(chunk.order)
        n = len(self._gathered) // max(n_positions, 1)
        return self._gathered[: n * n_positions].reshape(n, n_positions)


class VectorGradients(RoundGradients):
    """`RoundGradients` of the only chunk of `VectorRows`, whose source stores those of all outputs."""

    def __init__(self, rows: VectorRows, source: Source, rounding: DeviceRounding, sample_below: int) -> None:
        super().__init__(source, rows.quantizers[0], rounding, sample_below)
        self._rows, self._stored = rows, source.stored()

    def quantize(self, output: int, order: DeviceArray | None, pairs: DeviceArray, bounds: DeviceArray,
                 n_trees: int = 1, nodes_per_tree: int = 0) -> None:  # fmt: skip
        """Enqueue: all sampled rows into the root of a tree of all outputs, as the rows have order, pairs and
        bounds."""
        self._rows.fill_root(0, self._stored, self._rounding, self._sample_below)


assert THREADS == BUILD_ROWS
