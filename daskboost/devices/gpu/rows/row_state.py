"""The rows of one shard on a GPU while trees grow over them: node order, partial histograms, margins.

`devices/cpu/rows.py` has its twin. How many rows a node has is known on the GPU alone: nothing here waits for it, so
the launches of a level queue up one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from daskboost.devices.bin_lists import lists_of_bins
from daskboost.devices.cpu.gradients import ResidualQuery
from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.rows.feature_groups import (
    count_tiles,
    cut_tiles,
    map_tiles,
    rows_of_tile,
    rows_per_tile,
)
from daskboost.devices.gpu.rows.gradients import ALL, Columns, GradientPair, Quantizer, RoundGradients, Source
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.rows.views import GpuView, WalkColumns, small_data, walk_trees
from daskboost.devices.gpu.runtime.collective import ALONE, Collective, Sharing, share_of
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, element_stride, to_device, to_host
from daskboost.devices.gpu.trees import leaf_quantiles as quantiles
from daskboost.devices.gpu.trees.known_tree import (
    KnownTree,
    ScalarTree,
    add_leaf_values,
    device_tree,
    known_tree,
    mark_leaves,
    sets_on_device,
    sum_segments,
)
from daskboost.devices.gpu.trees.leaf_models import PairsByRow, add_equations
from daskboost.devices.gpu.trees.split import empty_histograms
from daskboost.devices.leaf_models import MOST_TERMS, n_sums
from daskboost.devices.row_order import Following, Root, RowSplits
from daskboost.dtypes import ArrayModule, Float32, Int32, Int64, UInt64

SPLIT_THREADS = 128
"""Threads of a block, as in `kernels/partition.cu`."""
MAP_BYTES = 1 << 13
"""Shared memory in which a block has a bit for each bin of a feature of codes, which has 65,536 at most."""
FLAGS = 32
"""Flags of a word, a row's each."""
USUAL_SPLITS = 256
"""Splits in one pass that memory is taken for at first."""
BUILD_ROWS = 256
"""Rows of a tile of histograms: blocks take equal numbers of them, whatever the nodes' sizes."""
QUANTIZE_THREADS = 256
"""Threads of a block, as in `kernels/quantize_vectors.cu`."""
DIVIDED_BYTES = 1 << 22
"""Bytes of histograms from which each GPU gets the sums of a share alone, and GPUs tell each other splits: of 4 MB, two
H100s take 24 us for sums of a half each, and 7 for splits; sums of all on both are an exchange of halves besides."""
NEW_LEAVES = 4
"""A split for so many leaves, at least, makes walking the faster way to them."""


class Uploaded(NamedTuple):
    """Splits on the device, as `GpuRows.split_rows` takes them."""

    columns: DeviceArray
    sets: DeviceArray | None


Gradients = Callable[[int], tuple[DeviceArray, DeviceArray]]
"""Gives the gradients of a chunk: float32, shape (rows, columns), C-contiguous."""


class DeviceOrder:
    """Rows of one chunk in node order, on the GPU; `weight` of the rows where data are small.

    `order` and `pairs` have two halves. The children of a segment lie where it lay, but in the other half, so that
    whatever reads positions through `bounds` need not care which half they are in. Trees that grow together have a
    stretch of `n_rows` places in each half, one behind the other, and segments for their nodes: nothing but what puts
    rows into roots need know that a row lies in several.
    """

    def __init__(self, runtime: Runtime, n_rows: int, weight: Float32 | None = None, n_trees: int = 1,
                 room_rows: int = 0) -> None:  # fmt: skip
        xp = runtime.xp
        self.n_rows, self.n_trees, self.room_rows = n_rows, n_trees, max(n_rows, room_rows)
        self.weight = None if weight is None else xp.asarray(weight)
        self.order = xp.empty(2 * n_trees * self.room_rows, np.uint32)[: 2 * self.half]
        """Row by position; uint32, shape (2 * trees * rows,)."""
        self.pairs = self._empty_pairs(xp, np.int32 if weight is None else np.int64)
        """Quantized g and h."""
        self.kept = 0
        """Rows that grow the tree, or each of several."""
        self.bounds = xp.zeros((64, 2), np.int64)
        """Positions of each tree node's rows, from and up to; int64, shape (at least nodes, 2)."""
        self.n_grown = 0
        """How often that became other memory."""

    @property
    def half(self) -> int:
        """Positions."""
        return self.n_trees * self.n_rows

    @property
    def moved(self) -> DeviceArray | None:
        """What moves with the rows: pairs by position, shape (2 * trees * rows,); None where pairs stay."""
        return self.pairs

    def _empty_pairs(self, xp: ArrayModule, dtype: type) -> DeviceArray:
        found: DeviceArray = xp.empty(2 * self.n_trees * self.room_rows, dtype)
        return found[: 2 * self.half]

    def start(self, kept: int) -> None:
        """At most `kept` rows are about to be in the root, and nowhere else."""
        self.kept = kept
        self.bounds[:] = 0

    def make_room(self, xp: ArrayModule, n_nodes: int) -> None:
        """Have segments for so many nodes."""
        if n_nodes > len(self.bounds):
            grown = xp.zeros((max(n_nodes, 2 * len(self.bounds)), 2), np.int64)
            grown[: len(self.bounds)] = self.bounds
            self.bounds = grown
            self.n_grown += 1


@dataclass
class SplitScratch:
    """What splitting passes from one launch to the next; used again from level to level."""

    runtime: Runtime
    arrays: dict[str, DeviceArray] = field(default_factory=dict)
    """See `scratch_shapes`."""
    n_grown: int = 0
    """How often they became other memory."""

    def sides(self, n_tiles: int, of_tile: int) -> DeviceArray:
        """Return the words of so many tiles, of so many rows each: flags of all tiles, and their counts behind."""
        n_words, sides = n_tiles * (of_tile // FLAGS + 1), self.arrays["sides"]
        if n_words > len(sides):
            raise ValueError(f"no memory was reserved for {n_tiles} tiles of {of_tile} rows")
        return sides[:n_words]

    def reserve(self, n_rows: int, n_splits: int) -> None:
        """Have room for splitting a chunk."""
        for name, (shape, dtype) in scratch_shapes(self.runtime.multiprocessors, n_rows, n_splits).items():
            if name not in self.arrays or shape[0] > len(self.arrays[name]):
                self.arrays[name] = self.runtime.xp.empty(shape, dtype)
                self.n_grown += 1


def scratch_shapes(multiprocessors: int, n_rows: int, n_splits: int) -> Shapes:
    """Return the shapes of `SplitScratch` for so many splits at a time of a chunk on a GPU with so many
    multiprocessors: a bit for each row of a tile, and a count for each tile, which GPUs tell each other together."""
    of_tile = rows_of_tile(multiprocessors, n_rows)
    most = n_rows // of_tile + n_splits
    return {"sides": ((most * (of_tile // FLAGS + 1),), np.uint32)}


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
    n_trees : int, default 1
        Trees that may grow together.
    room_rows : int, default 0
        Rows of a chunk that memory is taken for, if it has fewer: what comes and goes in another size each time would
        leave CuPy's pool in pieces.
    """

    def __init__(self, runtime: Runtime, views: Callable[[], Iterable[tuple[int, GpuView]]], sizes: Sequence[int],
                 pieces: Sequence[Pieces], layout: SlotLayout, weights: Sequence[Float32] | None = None,
                 n_trees: int = 1, *, room_rows: int = 0) -> None:  # fmt: skip
        self._runtime, self._views, self._layout = runtime, views, layout
        of_chunks = [None] * len(sizes) if weights is None else weights
        self.chunks = [
            self._order(size, weight, n_trees, room_rows) for size, weight in zip(sizes, of_chunks, strict=True)
        ]
        self.scratch = SplitScratch(runtime)
        self.reserve(0, USUAL_SPLITS)
        self.quantizers = [
            Quantizer(runtime, own, chunk.n_rows, chunk.weight, n_trees)
            for own, chunk in zip(pieces, self.chunks, strict=True)
        ]
        """Quantizer of each chunk's gradients."""
        self._rounding = DeviceRounding(runtime, 1)

    def draw_by(self, codes: Sequence[UInt64]) -> None:
        """Have trees draw rows by these codes of each chunk in place of their ids, see `Rows`."""
        for quantizer, own in zip(self.quantizers, codes, strict=True):
            quantizer.draw_by(own)

    def _order(self, n_rows: int, weight: Float32 | None, n_trees: int, room_rows: int) -> DeviceOrder:
        """Return the order of a chunk's rows."""
        return DeviceOrder(self._runtime, n_rows, weight, n_trees, room_rows)

    def start_tree(self, gradient: Callable[[int], Columns | tuple[DeviceArray, DeviceArray]], rounding: Rounding
                   ) -> tuple[int, int]:  # fmt: skip
        """Quantize the gradients of one output, all rows in the root; integer sums of g and h.

        `gradient(chunk)` gives float32 columns of shape (rows,), on the GPU: gradients, or what a kernel makes them of.
        """
        self._rounding.put(0, rounding)
        for index in range(len(self.chunks)):
            self._fill_root(index, gradient(index), rounding)
        return self._filled_roots(rounding)

    def _filled_roots(self, rounding: Rounding) -> tuple[int, int]:
        """Sums of the roots that were filled, and how many rows are in them; waits."""
        sums = self._rounding.sums_of(0)
        if rounding.sample_below < ALL:
            for chunk in self.chunks:
                chunk.kept = int(to_host(chunk.bounds[0])[1])
        return sums

    def _fill_root(self, index: int, gradient: Columns | tuple[DeviceArray, DeviceArray], rounding: Rounding) -> None:
        """Enqueue: the rows of one chunk into the root, by the rounding that was put: at most all, and nobody knows how
        many."""
        chunk = self.chunks[index]
        chunk.start(chunk.n_rows)
        self.quantizers[index](
            as_columns(gradient), self._rounding.of(0), rounding.sample_below, chunk.order, chunk.pairs, chunk.bounds
        )

    def settle(self, tree: WalkArrays, n_places: int) -> Int64:
        """Move all rows of the root to the nodes 0 to `n_places`, those whose numbers the leaves of `tree` hold as
        values; rows of negative ones leave. Sums of g and h of the nodes; int64, shape (places, 2), on the host."""
        known = known_tree(self._runtime, tree, n_places, self._layout.n_bins)
        sums = self._runtime.xp.zeros((n_places, 2), np.int64)
        for index, view in self._views():
            chunk = self.chunks[index]
            self.move_to_leaves(view, chunk, known, sums)
            segments = chunk.bounds[known.leaves]
            chunk.bounds[:] = 0
            chunk.bounds[: len(segments)] = segments
        found: Int64 = to_host(sums)
        return found

    def move_to_leaves(self, view: GpuView, chunk: DeviceOrder, known: KnownTree, sums: DeviceArray) -> None:
        """Enqueue: a chunk's rows go from the root to the leaves of a tree; `sums`, int64 of shape (places, 2), grow by
        those of its places."""
        self.reserve(known.n_nodes, known.most_splits)
        for splits in known.levels:
            self.split_rows(view, chunk, splits, known.sets)
        sum_segments(self._runtime, chunk, known.leaves, sums)

    def column_leaf_sums(self, gradient: Callable[[int], Columns | tuple[DeviceArray, DeviceArray]], rounding: Rounding,
                         leaves: Int32) -> Int64:  # fmt: skip
        """Integer sums of g and h over the rows of leaves, by another rounding than the tree was started with; int64,
        shape (leaves, 2), on the host. Pairs are lost; `gradient` as in `start_tree`.
        """
        self._rounding.put(0, rounding)
        nodes = to_device(self._runtime, leaves)
        sums = self._runtime.xp.zeros((len(leaves), 2), np.int64)
        for index, chunk in enumerate(self.chunks):
            chunk.make_room(self._runtime.xp, int(leaves.max()) + 1)
            leaf = mark_leaves(self._runtime, chunk, nodes)
            columns = as_columns(gradient(index))
            self.quantizers[index].add_to_leaves(columns, self._rounding.of(0), rounding.sample_below, leaf, sums)
        found: Int64 = to_host(sums)
        return found

    def start_vector_tree(self, gradient: Gradients, roundings: Sequence[Rounding]) -> tuple[int, ...]:
        """Quantize the gradients of all columns that a tree searches; sums of g and h of each."""
        (rounding,) = roundings

        def column(index: int) -> tuple[DeviceArray, DeviceArray]:
            g, h = gradient(index)
            return g[:, 0], h[:, 0]

        return self.start_tree(column, rounding)

    def leaf_sums(self, gradient: Gradients, roundings: Sequence[Rounding], leaves: Int32) -> Int64:
        """Integer sums of the gradients of all outputs over the rows of leaves; int64, shape (leaves, 2 * outputs)."""
        rounding, nodes = rounding_of(self._runtime, roundings), to_device(self._runtime, leaves)
        sums = self._runtime.xp.zeros((len(leaves), 2 * len(roundings)), np.int64)
        for index, chunk in enumerate(self.chunks):
            chunk.make_room(self._runtime.xp, int(leaves.max()) + 1)
            self._sum_rows(index, gradient(index), rounding, nodes, None, sums)
        found: Int64 = to_host(sums)
        return found

    def _sum_rows(self, index: int, gradients: tuple[DeviceArray, DeviceArray], rounding: DeviceRounding,
                  nodes: DeviceArray, pairs: DeviceArray | None, sums: DeviceArray) -> None:  # fmt: skip
        """Enqueue: the sums of nodes grow by their rows of a chunk, whose pairs are kept unless `pairs` is None."""
        chunk = self.chunks[index]
        if not chunk.n_rows:
            return
        tile_rows = rows_per_tile(self._runtime, chunk.n_rows)
        tiles = count_tiles(self._runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
        self._runtime.kernel("quantize_vectors", "sum_rows", SMALL=small_data(chunk.pairs))(
            tiles.most, QUANTIZE_THREADS, *gradients, chunk.weight, rounding.n_outputs, rounding.scales, rounding.keys,
            *self.quantizers[index].pieces, *tiles.arguments, chunk.order, pairs, sums.view(np.uint64),
        )  # fmt: skip

    def equations(self, splits: RowSplits | None, gradient: Callable[[int], Columns | tuple[DeviceArray, DeviceArray]],
                  rounding: Rounding, leaves: Int32, terms: Int32) -> Int64:  # fmt: skip
        """Apply the last splits, then sum up the normal equations of leaves, see `Rows`; pairs are lost, and it waits.

        `gradient` as in `start_tree`.
        """
        runtime, applied = self._runtime, self._upload(splits)
        nodes, own_terms = to_device(runtime, leaves), to_device(runtime, np.ascontiguousarray(terms))
        sums, by_row = runtime.xp.zeros((len(leaves), n_sums(MOST_TERMS)), np.int64), PairsByRow(runtime, 1)
        self._rounding.put(0, rounding)
        for index, view in self._views():
            chunk = self.chunks[index]
            chunk.make_room(runtime.xp, int(leaves.max()) + 1)
            if applied is not None:
                self.split_rows(view, chunk, *applied)
            by_row(self.quantizers[index], as_columns(gradient(index)), self._rounding.of(0), chunk.pairs, 1)
            add_equations(runtime, view, chunk, nodes, own_terms, sums)
        found: Int64 = to_host(sums)
        return found

    def grow(self, splits: RowSplits | None, nodes: Int32, words: bool = False) -> DeviceArray:
        """Apply splits, then build the histograms of `nodes`: as `empty_histograms` gives them.

        `words` would allow the CPU's form for small nodes, which has nothing to offer here.
        """
        out, is_built = self._histograms(len(nodes)), False
        applied, built = self._upload(splits), to_device(self._runtime, nodes)
        n_nodes = int(nodes.max(initial=-1)) + 1
        for index, view in self._views():
            chunk = self.chunks[index]
            if applied is not None:
                self.split_rows(view, chunk, *applied)
            if len(nodes) and chunk.kept:
                chunk.make_room(self._runtime.xp, n_nodes)
                self.build_outputs(view, chunk, built, out, adds=is_built)
                is_built = True
        if not is_built:  # no chunk has rows
            out.fill(0)
        return out

    def _histograms(self, n_nodes: int) -> DeviceArray:
        """Room for those of so many nodes."""
        return empty_histograms(self._runtime, n_nodes, self._layout.n_slots, self._layout.width)

    def build(self, view: GpuView, chunk: DeviceOrder, nodes: DeviceArray, out: DeviceArray, *,
              in_order: bool = False, adds: bool = False, n_trees: int = 1) -> None:  # fmt: skip
        """Make `out`, whatever it held, the histograms of `nodes`: int64, shape (nodes, slots, 2).

        `nodes` : int32; -1 is none, and what is in its place is undefined. `in_order` says that the positions of these
        nodes' rows are the rows themselves, in each tree's stretch. `adds` : see `GpuView.build`. Of several trees, one
        has as many of `nodes` as any other.
        """
        n_passes = 1 if view.joins_trees else n_trees
        each, order = len(nodes) // n_passes, None if in_order else chunk.order
        for begin in range(0, len(nodes), each):
            own, n_rows = slice(begin, begin + each), chunk.kept * (n_trees // n_passes)
            tiles = cut_tiles(chunk.bounds, nodes[own], BUILD_ROWS, n_rows)
            view.build(tiles, order, chunk.pairs, out[own], adds=adds)

    def build_outputs(self, view: GpuView, chunk: DeviceOrder, nodes: DeviceArray, out: DeviceArray, *,
                      in_order: bool = False, adds: bool = False, n_trees: int = 1) -> None:  # fmt: skip
        """Build the histograms of all outputs as `build` does those of one; `out` : as `empty_histograms` gives it."""
        self.build(view, chunk, nodes, out[:, :, 0], in_order=in_order, adds=adds, n_trees=n_trees)

    def round_gradients(self, source: Source, rounding: DeviceRounding, sample_below: int, *, by_weight: bool
                        ) -> RoundGradients:  # fmt: skip
        """Return what puts the only chunk's rows into the roots of a round's trees, without the host."""
        return RoundGradients(source, self.quantizers[0], rounding, sample_below, by_weight=by_weight)

    def walk(self, view: GpuView, columns: WalkColumns, margins: DeviceArray) -> None:
        """Enqueue: add the leaf values of trees that grew together to the margins of all rows, float32 of shape (rows,
        outputs), by bins; `columns` : `TreeTables.walk_columns`."""
        walk_trees(self._runtime, view, columns, margins)

    def add_leaves(self, chunk: DeviceOrder, leaves: DeviceArray, values: DeviceArray, margins: DeviceArray) -> None:
        """Enqueue the same for rows that lie in the leaves; `leaves`, `values` : of `TreeGrower` and its tables."""
        for tree, own in enumerate(leaves):
            add_leaf_values(self._runtime, chunk, own, values, margins[:, tree])

    def finish(self, splits: RowSplits | None, tree: WalkArrays, margin: Callable[[int], DeviceArray],
               following: Following | None = None) -> Root | None:  # fmt: skip
        """Apply the last splits and add the tree's leaf values to `margin(chunk)`, float32 of shape (rows,), or (rows,
        outputs) for vectors. If that takes a pass, the root of the `following` tree comes out of it."""
        leaves = to_device(self._runtime, np.flatnonzero(tree.left_child < 0).astype(np.int32))
        applied, on_device = self._upload(splits), device_tree(self._runtime, tree, self._layout.n_bins)
        self.reserve(len(tree.value), 0)
        are_placed = applied is None and all(chunk.kept == chunk.n_rows for chunk in self.chunks)
        if are_placed and not tree.models:
            for index, chunk in enumerate(self.chunks):
                on_device.add_leaf_values(chunk, leaves, margin(index))
            return None
        if following is None:
            for index, view in self._views():
                self.add_tree(view, self.chunks[index], applied, leaves, on_device, margin(index))
            return None
        out, root, is_built = self._histograms(1), to_device(self._runtime, np.zeros(1, np.int32)), False
        self._rounding.put(0, following.rounding)
        for index, view in self._views():
            chunk = self.chunks[index]
            self.add_tree(view, chunk, applied, leaves, on_device, margin(index))
            self._fill_root(index, following.gradient(index), following.rounding)
            if chunk.kept:
                self.build_outputs(view, chunk, root, out, adds=is_built)
                is_built = True
        if not is_built:
            out.fill(0)
        return Root(self._filled_roots(following.rounding), out)

    def add_tree(self, view: GpuView, chunk: DeviceOrder, splits: Uploaded | None, leaves: DeviceArray,
                 tree: ScalarTree, margin: DeviceArray) -> None:  # fmt: skip
        """Add the leaf values of a tree, of which `splits` are still to be applied, to the margins of all rows.

        Rows may not be in the order of the leaves afterwards. `splits` : as `split_rows` takes them. `leaves` : int32,
        each once; -1 stands for none.

        Rows that were sampled out must walk. Dense rows do if many leaves are new: to find a leaf in the order of the
        rows takes less than to move rows once more and to scatter over the margins, and rows of CSR look up symbols
        slowly (`walks_fast`).
        """
        n_splits = 0 if splits is None else splits.columns.shape[1]
        walks = chunk.kept < chunk.n_rows or (view.walks_fast and NEW_LEAVES * n_splits > len(leaves))
        if walks or tree.has_models:
            tree.walk(view, margin)
            return
        if splits is not None:
            self.split_rows(view, chunk, *splits)
        tree.add_leaf_values(chunk, leaves, margin)

    def reserve(self, n_nodes: int, n_splits: int) -> None:
        """Have memory for trees of so many nodes, and for `split_rows` of so many splits at a time.

        `split_rows` takes none itself, so that a CUDA graph can hold it. More memory is other memory: a graph that was
        captured before a later call asked for more must be captured again (`Recorder.expect`).
        """
        for chunk in self.chunks:
            chunk.make_room(self._runtime.xp, n_nodes)
        for n_positions in {chunk.half for chunk in self.chunks}:
            self.scratch.reserve(n_positions, n_splits)

    def split_rows(self, view: GpuView, chunk: DeviceOrder, splits: DeviceArray, sets: DeviceArray | None = None,
                   sides: Collective = ALONE) -> None:  # fmt: skip
        """Move the rows of nodes that are split to the nodes' children; two launches, and nothing waits.

        `splits` : int32, shape (6, splits), on the GPU, as `kernels/partition.cu` has them; a node of -1 is no split.
        `reserve` must have been asked for as many, and for the children. `sets` : int32, shape (nodes, width), lists of
        the nodes that split by sets (`bin_lists.py`), if any may. `sides` joins GPUs that have other features of the
        same rows, one of which knows the sides of a split.
        """
        n = splits.shape[1]
        if n == 0 or chunk.n_rows == 0:
            return
        tile_rows = rows_per_tile(self._runtime, chunk.half)
        tiles = count_tiles(self._runtime, chunk.bounds, splits[0], tile_rows, chunk.half)
        of_rows = self.scratch.sides(tiles.most, tile_rows)
        flags, counts = of_rows[: -tiles.most], of_rows[-tiles.most :].view(np.int32)
        variant = {"SYMBOL_BYTES": view.symbol_bytes, "SMALL": small_data(chunk.pairs)}
        count, move = (self._runtime.kernel("partition", entry, **variant) for entry in ("count_left", "move_rows"))
        common = (splits, chunk.bounds, tiles.starts, n, tile_rows)
        lists, map_bytes = (sets, 0 if sets is None else sets.shape[1]), 0 if sets is None else MAP_BYTES
        count(tiles.most, SPLIT_THREADS, *view.symbols, *view.features, *common, *lists, chunk.order, flags, counts,
              shared_bytes=map_bytes)  # fmt: skip
        sides.add_up(of_rows)
        move(tiles.most, SPLIT_THREADS, *common, chunk.half, counts, flags, chunk.order, chunk.moved)

    def count_residuals(self, index: int, query: ResidualQuery, label: DeviceArray, margin: DeviceArray,
                        weight: DeviceArray | None) -> Int64:  # fmt: skip
        """Integer weights of a chunk's rows by leaf and next digit of the residual's key, see `ResidualQuery`."""
        xp, chunk, leaves = self._runtime.xp, self.chunks[index], query.leaves
        counts = xp.zeros((len(leaves), 1 << query.next_bits), np.int64)
        everyone = int(leaves.min()) < 0
        if chunk.n_rows:
            if everyone:  # all rows, whether they grow the tree or not
                bounds, nodes = to_device(self._runtime, np.array([[0, chunk.n_rows]], np.int64)), np.zeros(1, np.int32)
            else:
                chunk.make_room(xp, int(leaves.max()) + 1)
                bounds, nodes = chunk.bounds, leaves
            tiles = map_tiles(self._runtime, bounds, to_device(self._runtime, nodes), quantiles.TILE_ROWS, chunk.n_rows)
            self._runtime.kernel("residuals", "count_residuals")(
                tiles.most, quantiles.THREADS, bounds, tiles.nodes, tiles.starts, len(nodes), len(nodes),
                None if everyone else chunk.order, label, margin, element_stride(margin), 0, weight,
                query.weight_scale, to_device(self._runtime, query.prefixes), query.known_bits, query.next_bits, None,
                counts.view(np.uint64),
            )  # fmt: skip
        host: Int64 = to_host(counts)
        return host

    def _upload(self, splits: RowSplits | None) -> Uploaded | None:
        """Splits as `split_rows` takes them, and memory for them; None if there are none."""
        if splits is None or not len(splits):
            return None
        self.reserve(int(max(splits.left.max(), splits.right.max())) + 1, len(splits))
        n_bins, every = self._layout.n_bins[splits.feature], np.ones(len(splits), np.bool_)
        bins, lists = lists_of_bins(splits.split_bin, splits.right_bins, every, n_bins)
        by_node = np.zeros((int(splits.node.max()) + 1, lists.shape[1]), np.int32)
        by_node[splits.node] = lists
        columns, sets = replace(splits, split_bin=bins).columns, sets_on_device(self._runtime, by_node)
        return Uploaded(to_device(self._runtime, columns), sets)


def rounding_of(runtime: Runtime, roundings: Sequence[Rounding]) -> DeviceRounding:
    """Return roundings of several columns on the device."""
    found = DeviceRounding(runtime, len(roundings))
    found.put_all(roundings)
    return found


def as_columns(gradient: GradientPair) -> Columns:
    """One output's gradients, or what a kernel makes them of."""
    return gradient if isinstance(gradient, Columns) else Columns(*gradient)


# The rows of a shard's only chunk, as trees that grow without the host see them.

@dataclass(frozen=True)
class ChunkRows:
    """The only chunk of a shard, as trees that grow without the host see it: all rows may be in their roots."""

    rows: GpuRows
    view: GpuView
    chunk: DeviceOrder
    sharing: Sharing
    in_order: bool
    """Whether the rows of a root are in the order of their indices: none is left out."""
    reaches_leaves: bool = False
    """Whether rows are moved to the leaves; otherwise they walk there once a tree is done, which takes as long as one
    level of moving does, but for rows of CSR, which look up symbols slowly."""

    def reserve(self, n_nodes: int, n_splits: int) -> tuple[int, int]:
        """See `GpuRows.reserve`; what says whether it took other memory since (`Recorder.expect`)."""
        self.rows.reserve(n_nodes, n_splits)
        return self.chunk.n_grown, self.rows.scratch.n_grown

    def build(self, nodes: DeviceArray, out: DeviceArray, *, is_root: bool = False, n_trees: int = 1,
              divides: bool = False) -> slice:  # fmt: skip
        """See `GpuRows.build_outputs`; where no row is left out, positions in the root are rows.

        The histograms are those of all GPUs' rows, for the part of `nodes` that is returned: each GPU has those of
        other trees where they can be shared equally, of other nodes of a single tree where `divides` allows it and that
        pays, and those of all nodes otherwise.
        """
        in_order = is_root and self.in_order
        self.rows.build_outputs(self.view, self.chunk, nodes, out, in_order=in_order, n_trees=n_trees)
        of_outputs, n_parts = out.transpose(2, 0, 1, 3), n_trees
        if divides and n_trees == len(of_outputs) == 1 and out.nbytes >= DIVIDED_BYTES:
            n_parts = len(nodes)
        own, each = share_of(self.sharing.rows, n_parts), len(nodes) // n_parts
        if own == slice(0, n_parts):
            self.sharing.rows.add_up(of_outputs)
        else:
            self.sharing.rows.add_up_shares(of_outputs[0])
        return slice(each * own.start, each * own.stop)

    def split(self, splits: DeviceArray, sets: DeviceArray | None) -> None:
        """See `GpuRows.split_rows`."""
        self.rows.split_rows(self.view, self.chunk, splits, sets, self.sharing.sides)

    def add_leaves(self, leaves: DeviceArray, values: DeviceArray, margins: DeviceArray) -> None:
        """Add the values of leaves that rows have reached to the margins of these; see `GpuRows.add_leaves`."""
        self.rows.add_leaves(self.chunk, leaves, values, margins)
