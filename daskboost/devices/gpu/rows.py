"""The rows of one shard on a GPU while trees grow over them: node order, partial histograms, margins.

`devices/cpu/rows.py` has its twin. How many rows a node has is known on the GPU alone: nothing here waits for it, so
the launches of a level queue up one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from daskboost.devices.cpu.chunk_order import RowSplits
from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.gradients import ALL, Columns, Quantizer
from daskboost.devices.gpu.margins import add_leaf_values_in_order
from daskboost.devices.gpu.rounding import DeviceRounding
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_device, to_host
from daskboost.devices.gpu.tiles import Tiles, map_tiles
from daskboost.devices.gpu.views import GpuView, small_data, walk
from daskboost.dtypes import Float32, Int32, Int64, UInt32

TILE_ROWS = 2048
"""Of a block that splits rows or counts residuals, as in `kernels/partition.cu` and `residuals.cu`."""
TILE_WORDS = TILE_ROWS // 32
THREADS = 256
"""As there."""
MOST_BUILD_ROWS = 65_536
"""Rows of 15 bits whose sums fit 32 bits."""
LEAST_BUILD_ROWS = 1024
"""A block that adds up fewer rows spends more time on clearing and handing over its sums."""
TILES_PER_PROCESSOR = 6
"""Of a level's histograms: two rounds of three blocks, so that no multiprocessor waits long for another."""


class DeviceOrder:
    """Rows of one chunk in node order, on the GPU; `weight` of the rows where data are small."""

    def __init__(self, runtime: Runtime, n_rows: int, weight: Float32 | None = None) -> None:
        xp = runtime.xp
        self.n_rows = n_rows
        self.weight = None if weight is None else xp.asarray(weight)
        self.order = xp.empty(n_rows, np.uint32)
        self.pairs = xp.empty(n_rows, np.int32 if weight is None else np.int64)
        self.kept = 0
        self.bounds = xp.zeros((64, 2), np.int64)
        """Segment of each tree node; int64, shape (at least nodes, 2)."""

    def start(self, kept: int) -> None:
        """At most `kept` rows are about to be in the root, and nowhere else."""
        self.kept = kept
        self.bounds[:] = 0

    def make_room(self, xp: Any, n_nodes: int) -> None:
        """Have segments for so many nodes."""
        if n_nodes > len(self.bounds):
            grown = xp.zeros((max(n_nodes, 2 * len(self.bounds)), 2), np.int64)
            grown[: len(self.bounds)] = self.bounds
            self.bounds = grown


class GpuRows:
    """Row state of a shard's training rows on a GPU.

    Parameters
    ----------
    runtime : Runtime
    views : callable
        Gives a fresh iterator over (chunk index, view); called once per pass.
    sizes : sequence of int
        Rows of each chunk.
    pieces : sequence of Pieces
        Global row ids of each chunk.
    layout : SlotLayout
    weights : sequence of float32 arrays of shape (rows,), optional
        Of each chunk, for small data, whose gradients are multiplied by them once they are rounded.
    """

    def __init__(self, runtime: Runtime, views: Callable[[], Iterable[tuple[int, GpuView]]], sizes: Sequence[int],
                 pieces: Sequence[Pieces], layout: SlotLayout, weights: Sequence[Float32] | None = None
                 ) -> None:  # fmt: skip
        self._runtime, self._views, self._layout = runtime, views, layout
        of_chunks = [None] * len(sizes) if weights is None else weights
        self.chunks = [DeviceOrder(runtime, size, weight) for size, weight in zip(sizes, of_chunks, strict=True)]
        self.quantizers = [
            Quantizer(runtime, _joined(own), chunk.n_rows, chunk.weight)
            for own, chunk in zip(pieces, self.chunks, strict=True)
        ]
        """Of each chunk's gradients."""
        self._rounding = DeviceRounding(runtime, 1)
        largest = max(sizes, default=0)
        self._spare_order = runtime.xp.empty(largest, np.uint32)
        self._spare_pairs = runtime.xp.empty(largest, np.int32 if weights is None else np.int64)

    def start_tree(self, gradient: Callable[[int], Columns | tuple[DeviceArray, DeviceArray]], rounding: Rounding
                   ) -> tuple[int, int]:  # fmt: skip
        """Quantize the gradients of one output, all rows in the root; integer sums of g and h.

        `gradient(chunk)` gives float32 columns of shape (rows,), on the GPU: gradients, or what a kernel makes them of.
        """
        self._rounding.put(0, rounding)
        for index, chunk in enumerate(self.chunks):
            given = gradient(index)
            columns = given if isinstance(given, Columns) else Columns(*given)
            chunk.start(chunk.n_rows)
            self.quantizers[index](
                columns, self._rounding.of(0), rounding.sample_below, chunk.order, chunk.pairs, chunk.bounds
            )
        sums = self._rounding.sums_of(0)
        if rounding.sample_below < ALL:
            for chunk in self.chunks:
                chunk.kept = int(to_host(chunk.bounds[0])[1])
        return sums

    def grow(self, splits: RowSplits | None, nodes: Int32, words: bool = False) -> DeviceArray:
        """Apply splits, then build the histograms of `nodes`; int64, shape (nodes, slots, 2), on the GPU.

        `words` would allow the CPU's form for small nodes, which has nothing to offer here.
        """
        xp = self._runtime.xp
        out = xp.zeros((len(nodes), self._layout.n_slots, 2), np.int64)
        applied, built = self._upload(splits), to_device(self._runtime, nodes)
        for index, view in self._views():
            chunk = self.chunks[index]
            if splits is not None and applied is not None:
                chunk.make_room(xp, int(splits.right.max()) + 1)
                self.split_rows(view, chunk, applied)
            if len(nodes) and chunk.kept:
                chunk.make_room(xp, int(nodes.max()) + 1)
                self.build(view, chunk, built, out)
        return out

    def build(self, view: GpuView, chunk: DeviceOrder, nodes: DeviceArray, out: DeviceArray) -> None:
        """Add the rows of `nodes`, int32 of which -1 has none, to their histograms: int64, shape (nodes, slots, 2)."""
        view.add_rows(self._build_tiles(chunk, nodes), chunk.order, chunk.pairs, out)

    def finish(self, splits: RowSplits | None, tree: WalkArrays, margin: Callable[[int], DeviceArray]) -> None:
        """Apply the last splits and add the tree's leaf values to `margin(chunk)`, float32 of shape (rows,)."""
        leaves = np.flatnonzero(tree.left_child < 0).astype(np.int32)
        applied = self._upload(splits)
        if applied is None and all(chunk.kept == chunk.n_rows for chunk in self.chunks):
            for index, chunk in enumerate(self.chunks):
                self._add_values(chunk, leaves, tree.value, margin(index))
            return
        for index, view in self._views():
            chunk = self.chunks[index]
            if splits is not None and applied is not None:
                chunk.make_room(self._runtime.xp, int(splits.right.max()) + 1)
                self.split_rows(view, chunk, applied)
            self._add_values(chunk, leaves, tree.value, margin(index))
            if chunk.kept < chunk.n_rows:
                walk(self._runtime, view, tree, margin(index), self._grown_by(chunk))

    def count_residuals(self, index: int, leaves: Int32, label: DeviceArray, margin: DeviceArray,
                        weight: DeviceArray | None, weight_scale: float, prefixes: UInt32, known_bits: int,
                        next_bits: int) -> Int64:  # fmt: skip
        """Integer weights of a chunk's rows by leaf and next digit of the residual's key, see `ResidualCounts`."""
        xp, chunk = self._runtime.xp, self.chunks[index]
        counts = xp.zeros((len(leaves), 1 << next_bits), np.int64)
        everyone = int(leaves.min()) < 0
        if chunk.n_rows:
            if everyone:  # all rows, whether they grow the tree or not
                bounds, nodes = to_device(self._runtime, np.array([[0, chunk.n_rows]], np.int64)), np.zeros(1, np.int32)
            else:
                chunk.make_room(xp, int(leaves.max()) + 1)
                bounds, nodes = chunk.bounds, leaves
            tiles = map_tiles(self._runtime, bounds, to_device(self._runtime, nodes), TILE_ROWS, chunk.n_rows)
            self._runtime.kernel("residuals", "count_residuals")(
                tiles.most, THREADS, bounds, tiles.nodes, tiles.starts, len(nodes), None if everyone else chunk.order,
                label, margin, element_stride(margin), weight, weight_scale, to_device(self._runtime, prefixes),
                known_bits, next_bits, counts.view(np.uint64),
            )  # fmt: skip
        host: Int64 = to_host(counts)
        return host

    def _upload(self, splits: RowSplits | None) -> DeviceArray | None:
        """Splits as `kernels/partition.cu` takes them: int32, shape (6, splits); None if there are none."""
        if splits is None or not len(splits):
            return None
        columns = (splits.node, splits.left, splits.right, splits.feature, splits.split_bin, splits.default_left)
        return to_device(self._runtime, np.stack([np.asarray(column, np.int32) for column in columns]))

    def _build_tiles(self, chunk: DeviceOrder, nodes: DeviceArray) -> Tiles:
        rows = -(-chunk.kept // (self._runtime.multiprocessors * TILES_PER_PROCESSOR))
        rows = min(max(rows, LEAST_BUILD_ROWS), MOST_BUILD_ROWS)
        return map_tiles(self._runtime, chunk.bounds, nodes, rows, chunk.kept)

    def split_rows(self, view: GpuView, chunk: DeviceOrder, splits: DeviceArray) -> None:
        """Move rows to their children; `splits` : int32, shape (6, splits), see `kernels/partition.cu`.

        There is nothing to split where the node is -1. `chunk` has room for the children.
        """
        xp = self._runtime.xp
        tiles = map_tiles(self._runtime, chunk.bounds, splits[0], TILE_ROWS, chunk.kept)
        flags = xp.empty(tiles.most * TILE_WORDS, np.uint32)
        counts, before = xp.empty(tiles.most, np.int32), xp.empty(tiles.most + 1, np.int32)
        rows, spare = (chunk.order, chunk.pairs), (self._spare_order, self._spare_pairs)
        common = (splits, splits.shape[1])
        variant = {"SYMBOL_BYTES": view.symbol_bytes, "SMALL": small_data(chunk.pairs)}

        def launch(kernel: str, blocks: int, *arguments: Any) -> None:
            self._runtime.kernel("partition", kernel, **variant)(blocks, THREADS, *arguments)

        launch("count_left", tiles.most, *view.symbols, *common, chunk.bounds, tiles.starts, chunk.order, flags, counts)
        launch("place_tiles", 1, *common, tiles.starts, counts, before, chunk.bounds)
        launch("move_rows", tiles.most, *common, chunk.bounds, tiles.starts, before, flags, *rows, *spare)
        launch("return_rows", tiles.most, *common, chunk.bounds, tiles.starts, *spare, *rows)

    def _add_values(self, chunk: DeviceOrder, leaves: Int32, values: Float32, margin: DeviceArray) -> None:
        if not chunk.kept:
            return
        xp = self._runtime.xp
        chunk.make_room(xp, int(leaves.max()) + 1)
        segments = chunk.bounds[to_device(self._runtime, leaves)]
        by_place = xp.argsort(
            segments.sum(axis=1)
        )  # an empty segment comes before a full one that begins where it does
        add_leaf_values_in_order(
            self._runtime, chunk.order[: chunk.kept], xp.ascontiguousarray(segments[by_place, 1]),
            to_device(self._runtime, values[leaves])[by_place], margin,
        )  # fmt: skip

    def _grown_by(self, chunk: DeviceOrder) -> DeviceArray:
        """Whether each row of a chunk grows the tree; uint8, shape (rows,)."""
        found = self._runtime.xp.zeros(chunk.n_rows, np.uint8)
        found[chunk.order[: chunk.kept]] = 1
        return found


def _joined(pieces: Pieces) -> list[tuple[int, int]]:
    """The same stretches of rows, those with consecutive ids as one, for kernels to look through fewer."""
    found: list[tuple[int, int]] = []
    for begin, first_row in pieces:
        if not found or first_row - begin != found[-1][1] - found[-1][0]:
            found.append((begin, first_row))
    return found
