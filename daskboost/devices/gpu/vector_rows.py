"""Rows on a GPU that trees of vector leaves may grow over: `GpuRows` with the pairs of several outputs.

Rows are moved as those of one output are, but pairs stay in the order of rows (as on the CPU): moving 80 of them with
every row of every level would cost more than to gather them, for the nodes that are built, a few outputs at a time.
The histograms of an output are then those of a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.gpu.gradients import ALL, Columns
from daskboost.devices.gpu.rounding import DeviceRounding, OutputRounding
from daskboost.devices.gpu.rows import BUILD_ROWS, DeviceOrder, GpuRows
from daskboost.devices.gpu.runtime import DeviceArray, to_device, to_host
from daskboost.devices.gpu.split_vectors import empty_histograms
from daskboost.devices.gpu.tiles import count_tiles, map_tiles, rows_per_tile
from daskboost.devices.gpu.views import GpuView, small_data
from daskboost.dtypes import Int32, Int64

THREADS = 256
"""Threads of a block, as in `kernels/quantize_vectors.cu` and `gather_pairs.cu`, where it is the rows of a tile
(`BUILD_ROWS`), too."""
AT_ONCE = 8
"""Outputs gathered at a time, as in `kernels/gather_pairs.cu`."""

Gradients = Callable[[int], tuple[DeviceArray, DeviceArray]]
"""Gives the gradients of a chunk: float32, shape (rows, columns), C-contiguous."""


class VectorRows(GpuRows):
    """`GpuRows` whose layout may have several outputs side by side (`SlotLayout.width`)."""

    _gathered: DeviceArray | None = None
    """Pairs of up to AT_ONCE outputs by position, of one chunk after the other; shape (outputs, positions)."""

    def start_vector_tree(self, gradient: Gradients, roundings: Sequence[Rounding]) -> tuple[int, ...]:
        """Quantize the gradients of all columns that a tree of vector leaves searches; sums of g and h of each.

        Rows are sampled by the first column's rounding.
        """
        rounding, sample_below = self._rounding_of(roundings), roundings[0].sample_below
        first, nothing = rounding.of(0), self._runtime.xp.zeros(2, np.uint64)
        root = to_device(self._runtime, np.zeros(1, np.int32))
        for index, chunk in enumerate(self.chunks):
            g, h = gradient(index)
            chunk.start(chunk.n_rows)
            self.quantizers[index](  # for the order of the sampled rows; its pairs are those of a single output
                Columns(g[:, 0], h[:, 0]), OutputRounding(first.scales, first.keys, nothing), sample_below, chunk.order,
                self._room(chunk)[0], chunk.bounds,
            )  # fmt: skip
            self._sum_rows(index, (g, h), rounding, root, chunk.pairs, rounding.sums)
        sums: tuple[int, ...] = tuple(to_host(rounding.sums).ravel().tolist())
        if sample_below < ALL:
            for chunk in self.chunks:
                chunk.kept = int(to_host(chunk.bounds[0])[1])
        return sums

    def leaf_sums(self, gradient: Gradients, roundings: Sequence[Rounding], leaves: Int32) -> Int64:
        """Integer sums of the gradients of all outputs over the rows of leaves; int64, shape (leaves, 2 * outputs)."""
        rounding, nodes = self._rounding_of(roundings), to_device(self._runtime, leaves)
        sums = self._runtime.xp.zeros((len(leaves), 2 * len(roundings)), np.int64)
        for index, chunk in enumerate(self.chunks):
            chunk.make_room(self._runtime.xp, int(leaves.max()) + 1)
            self._sum_rows(index, gradient(index), rounding, nodes, None, sums)
        found: Int64 = to_host(sums)
        return found

    def build(self, view: GpuView, chunk: DeviceOrder, nodes: DeviceArray, out: DeviceArray, *,
              in_order: bool = False, adds: bool = False, n_trees: int = 1) -> None:  # fmt: skip
        """Build histograms as `GpuRows.build` does; of several outputs, `out` is of shape (nodes, slots, outputs,
        2)."""
        if out.ndim == 3:
            super().build(view, chunk, nodes, out, in_order=in_order, adds=adds, n_trees=n_trees)
            return
        order, width = None if in_order else chunk.order, out.shape[2]
        tiles = map_tiles(self._runtime, chunk.bounds, nodes, BUILD_ROWS, chunk.kept)
        room = self._room(chunk)
        kernel = self._runtime.kernel("gather_pairs", "gather_pairs", SMALL=small_data(chunk.pairs))
        for first in range(0, width, AT_ONCE):
            n = min(AT_ONCE, width - first)
            kernel(
                tiles.most, THREADS, chunk.pairs, width, first, n, *tiles.arguments, order, room, room.shape[1]
            )
            for k in range(n):
                view.build(tiles, order, room[k], out[:, :, first + k], adds=adds)

    def _histograms(self, n_nodes: int) -> DeviceArray:
        layout = self._layout
        return empty_histograms(self._runtime, n_nodes, layout.n_slots, layout.width)

    def _rounding_of(self, roundings: Sequence[Rounding]) -> DeviceRounding:
        rounding = DeviceRounding(self._runtime, len(roundings))
        rounding.put_all(roundings)
        return rounding

    def _sum_rows(self, index: int, gradients: tuple[DeviceArray, DeviceArray], rounding: DeviceRounding,
                  nodes: DeviceArray, pairs: DeviceArray | None, sums: DeviceArray) -> None:  # fmt: skip
        """Enqueue: the sums of nodes grow by their rows of a chunk, whose pairs are kept unless `pairs` is None."""
        chunk = self.chunks[index]
        if not chunk.n_rows:
            return
        tile_rows = rows_per_tile(self._runtime, chunk.n_rows)
        tiles = count_tiles(self._runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
        self._runtime.kernel("quantize_vectors", "sum_rows", SMALL=small_data(chunk.pairs))(
            tiles.most, THREADS, *gradients, chunk.weight, rounding.n_outputs, rounding.scales, rounding.keys,
            *self.quantizers[index].pieces, *tiles.arguments, chunk.order, pairs, sums.view(np.uint64),
        )  # fmt: skip

    def _room(self, chunk: DeviceOrder) -> DeviceArray:
        if self._gathered is None:
            most = max((each.room_rows for each in self.chunks), default=0)
            shape = (min(AT_ONCE, self._layout.width), 2 * most)
            self._gathered = self._runtime.xp.empty(shape, chunk.pairs.dtype)
        return self._gathered


assert THREADS == BUILD_ROWS
