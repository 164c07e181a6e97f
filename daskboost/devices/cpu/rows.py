"""The rows of one shard while trees grow over them: node order, partial histograms, margins.

One pass over the chunks applies the last splits and builds the next histograms, whether a chunk lies in RAM or is
streamed from disk. Row state (order, quantized pairs, margins) always stays in RAM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu import partition
from daskboost.devices.cpu.gradients import (
    EACH_ROW,
    Gradients,
    OutputQuanta,
    Quanta,
    ResidualQuery,
    Residuals,
    RowDraw,
    RowRange,
    add_to_leaves,
    count_residuals,
    quantize_gradients,
    quantize_vectors,
)
from daskboost.devices.cpu.histogram import WORD_ROWS, HistogramSums
from daskboost.devices.cpu.partition import settle
from daskboost.devices.cpu.scales import units_of
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, SlotLayout, WalkArrays
from daskboost.devices.leaf_models import n_sums
from daskboost.devices.row_order import (
    ChunkOrder,
    Following,
    PairLayout,
    Root,
    RowOrder,
    RowSplits,
    Share,
    Stretch,
    n_rows_of,
    whole_splits,
)
from daskboost.dtypes import Float32, Int32, Int64, UInt32, UInt64

Pieces = Sequence[tuple[int, int]] | UInt64
"""Stretches of rows with consecutive global ids: (place of the first within the chunk, its global id); or all ids, of
rows that were chosen one by one."""


@dataclass(frozen=True)
class Rounding:
    """How one tree's gradients become integers."""

    scale_g: float
    """Power of two that gradients are multiplied by."""
    scale_h: float
    """Power of two that hessians are multiplied by."""
    round_key: int
    """Hash key of the stochastic rounding."""
    sample_key: int
    """Hash key of the row sample."""
    sample_below: int
    """A row grows the tree if its 32 sampling bits are below; 2**32 keeps all."""
    scale_w: float = 1.0
    """Power of two that weights of small data are multiplied by."""
    noise_gain: float = field(default=0.0, compare=False)
    """Gain below which a split tells nothing, as rounding may have made it; no matter of how integers are made."""

    @property
    def units(self) -> tuple[float, float]:
        """What one quantum of g and of h is worth."""
        return units_of(self.scale_g, self.scale_h, self.scale_w)

    @property
    def quanta(self) -> Quanta:
        """Scales and rounding as kernels take them."""
        return Quanta(self.scale_g, self.scale_h, self.scale_w, np.uint64(self.round_key))

    @property
    def draw(self) -> RowDraw:
        """The row sample as kernels take it, of each row by itself."""
        return RowDraw(np.uint64(self.sample_key), np.uint64(self.sample_below))


def quanta_of(roundings: Sequence[Rounding]) -> OutputQuanta:
    """Return how gradients of several outputs become integers."""
    return OutputQuanta(
        np.array([each.scale_g for each in roundings]), np.array([each.scale_h for each in roundings]),
        roundings[0].scale_w, np.array([each.round_key for each in roundings], np.uint64),
    )  # fmt: skip


def row_ranges(pieces: Pieces, n_rows: int, threads: Threads) -> Iterator[RowRange]:
    """Ranges of a chunk's rows, for threads."""
    if isinstance(pieces, np.ndarray):
        yield from (RowRange(a, b, pieces) for a, b in threads.ranges(n_rows))
        return
    ends = [begin for begin, _ in pieces[1:]] + [n_rows]
    for (begin, first_row), end in zip(pieces, ends, strict=True):
        for a, b in threads.ranges(end - begin):
            yield RowRange(begin + a, begin + b, int(first_row) - begin)


class CpuRows:
    """Row state of a shard's training rows.

    Parameters
    ----------
    views : callable
        Gives a fresh iterator over (chunk index, view); called once per pass.
    sizes : sequence of int
        Rows of each chunk.
    pieces : sequence of Pieces
        Global row ids of each chunk.
    layout : SlotLayout
    threads : Threads
    weights : sequence of float32 arrays of shape (rows,), optional
        Of each chunk, for small data, whose gradients are multiplied by them once they are rounded.
    """

    def __init__(self, views: Callable[[], Iterable[tuple[int, CpuView]]], sizes: Sequence[int],
                 pieces: Sequence[Pieces], layout: SlotLayout, threads: Threads,
                 weights: Sequence[Float32] | None = None) -> None:  # fmt: skip
        self._views, self._layout, self._threads = views, layout, threads
        self._pieces = list(pieces)
        self._sizes, self._weights = list(sizes), weights
        self._codes: Sequence[UInt64] = [EACH_ROW] * len(self._sizes)
        self._buffers = Buffers()

    def draw_by(self, codes: Sequence[UInt64]) -> None:
        """Have trees draw rows by these codes of each chunk in place of their ids, see `RowDraw.codes`."""
        self._codes = codes

    @cached_property
    def chunks(self) -> list[ChunkOrder]:
        """The rows of each chunk in the order of nodes; made when asked for, as not all growers keep rows here."""
        of_chunks = [None] * len(self._sizes) if self._weights is None else self._weights
        return [
            ChunkOrder(size, weight, self._layout.width) for size, weight in zip(self._sizes, of_chunks, strict=True)
        ]

    @cached_property
    def _spare(self) -> RowOrder:
        """Room for the rows of any chunk."""
        largest = max(self._sizes, default=0)
        pairs = PairLayout(self._layout.width, self._weights is not None).spare(largest)
        return RowOrder(np.empty(largest, np.uint32), pairs)

    def start_tree(self, gradient: Callable[[int], tuple[Float32, Float32]], rounding: Rounding) -> tuple[int, int]:
        """Quantize the gradients of one output, all rows in the root; integer sums of g and h.

        `gradient(chunk)` gives float32 columns of shape (rows,).
        """
        sums = [self._fill_root(index, gradient(index), rounding) for index in range(len(self.chunks))]
        return sum(own[0] for own in sums), sum(own[1] for own in sums)

    def _fill_root(self, index: int, gradient: tuple[Float32, Float32], rounding: Rounding) -> tuple[int, int]:
        """`start_tree` of one chunk."""
        chunk, ranges = self.chunks[index], list(self._row_ranges(index))
        columns, quanta, draw = Gradients(*gradient, chunk.weight), rounding.quanta, self._draw(index, rounding)
        parts = self._threads.run([
            partial(quantize_gradients, columns, quanta, draw, own, chunk.rows) for own in ranges
        ])  # fmt: skip
        chunk.start([own.begin for own in ranges], [kept for kept, _, _ in parts])
        return sum(part[1] for part in parts), sum(part[2] for part in parts)

    def start_vector_tree(self, gradient: Callable[[int], tuple[Float32, Float32]], roundings: Sequence[Rounding]
                          ) -> tuple[int, ...]:  # fmt: skip
        """Quantize the gradients of all columns that a tree of vector leaves searches; sums of g and h of each.

        `gradient(chunk)` gives float32 of shape (rows, columns); rows are sampled by the first column's rounding.
        """
        quanta, sums = quanta_of(roundings), np.zeros(2 * len(roundings), np.int64)
        for index, chunk in enumerate(self.chunks):
            columns, ranges = Gradients(*gradient(index), chunk.weight), list(self._row_ranges(index))
            draw = self._draw(index, roundings[0])
            parts = [np.zeros_like(sums) for _ in ranges]
            kept = self._threads.run([
                partial(quantize_vectors, columns, quanta, draw, own, chunk.rows, part)
                for own, part in zip(ranges, parts, strict=True)
            ])  # fmt: skip
            chunk.start([own.begin for own in ranges], kept)
            for part in parts:
                sums += part
        return tuple(sums.tolist())

    def column_leaf_sums(self, gradient: Callable[[int], tuple[Float32, Float32]], rounding: Rounding, leaves: Int32
                         ) -> Int64:  # fmt: skip
        """`leaf_sums` of one output, whose columns `gradient(chunk)` gives, as in `start_tree`."""
        def columns(index: int) -> tuple[Float32, Float32]:
            g, h = gradient(index)
            return g[:, None], h[:, None]

        return self.leaf_sums(columns, [rounding], leaves)

    def leaf_sums(self, gradient: Callable[[int], tuple[Float32, Float32]], roundings: Sequence[Rounding],
                  leaves: Int32) -> Int64:  # fmt: skip
        """Integer sums of the gradients of all outputs over the rows of leaves; int64, shape (leaves, 2 * outputs).

        `gradient(chunk)` gives float32 of shape (rows, outputs).
        """
        quanta = quanta_of(roundings)
        sums = np.zeros((len(leaves), 2 * len(roundings)), np.int64)
        for index, chunk in enumerate(self.chunks):
            columns, leaf = Gradients(*gradient(index), chunk.weight), self._leaf_of_rows(chunk, leaves)
            ranges = list(self._row_ranges(index))
            parts = [np.zeros_like(sums) for _ in ranges]
            self._threads.run([
                partial(add_to_leaves, columns, quanta, own, leaf, part)
                for own, part in zip(ranges, parts, strict=True)
            ])  # fmt: skip
            for part in parts:
                sums += part
        return sums

    def equations(self, splits: RowSplits | None, gradient: Callable[[int], tuple[Float32, Float32]],
                  rounding: Rounding, leaves: Int32, terms: Int32) -> Int64:  # fmt: skip
        """Apply the last splits, then sum up the normal equations of leaves; int64, shape (leaves, `n_sums`).

        `gradient(chunk)` gives float32 columns of shape (rows,). `terms` : features of each leaf's model, shape
        (leaves, terms).
        """
        sums = np.zeros((len(leaves), n_sums(terms.shape[1])), np.int64)
        for index, view in self._views():
            chunk = self.chunks[index]
            if splits is not None and len(splits):
                self._split(view, chunk, splits)
            leaf, columns = self._leaf_of_rows(chunk, leaves), Gradients(*gradient(index), chunk.weight)
            ranges = list(self._row_ranges(index))
            parts = [np.zeros_like(sums) for _ in ranges]
            self._threads.run([
                partial(view.add_equations, terms, columns, rounding.quanta, own, leaf, part)
                for own, part in zip(ranges, parts, strict=True)
            ])  # fmt: skip
            for part in parts:
                sums += part
        return sums

    def _leaf_of_rows(self, chunk: ChunkOrder, leaves: Int32) -> Int32:
        """The place among `leaves` of each of a chunk's rows, -1 for rows that did not grow the tree; shape (rows,)."""
        leaf = np.full(chunk.n_rows, -1, np.int32)
        for place, (begin, end) in enumerate(chunk.segments(leaves).tolist()):
            leaf[chunk.order[begin:end]] = place
        return leaf

    def _draw(self, index: int, rounding: Rounding) -> RowDraw:
        """Return which rows of a chunk grow a tree."""
        return rounding.draw._replace(codes=self._codes[index])

    def _row_ranges(self, index: int) -> Iterator[RowRange]:
        """Ranges of a chunk's rows."""
        return row_ranges(self._pieces[index], self.chunks[index].n_rows, self._threads)

    def grow(self, splits: RowSplits | None, nodes: Int32, words: bool = False) -> Int64:
        """Apply splits, then build the histograms of `nodes`; int64, shape (nodes, entries, 2).

        With `words`, they are of shape (nodes, entries) if all the nodes are small enough (see `histogram.py`).
        """
        shape: tuple[int, ...] = (len(nodes), self._layout.n_entries, 2)
        # Where the parents are small enough, so are the children; of a single chunk, it shows once its rows are split.
        small = words and self._fit_words(nodes if splits is None or not len(splits) else splits.node)
        out: Int64 | None = None
        for index, view in self._views():
            chunk, first = self.chunks[index], out is None
            shares = None
            if splits is not None and len(splits):
                shares = whole_splits(chunk, splits, nodes, self._threads) if small or not words else None
                if shares is None:
                    self._split(view, chunk, splits)
            if out is None:
                small = small or (words and len(self.chunks) == 1 and self._fit_words(nodes))
                out = self._buffers.empty(shape[:2] if small else shape)
            if splits is not None and shares is not None:
                self._split_and_build(view, chunk, splits, nodes, shares, out, clear=first)
            else:
                self._build(view, chunk, nodes, out, clear=first)
        return self._buffers.zeros(shape) if out is None else out

    def settle(self, tree: WalkArrays, n_places: int) -> Int64:
        """Move all rows of the root to the nodes 0 to `n_places`, those whose numbers the leaves of `tree` hold as
        values; rows of negative ones leave. Sums of g and h of the nodes; int64, shape (places, 2)."""
        sums = np.zeros((n_places, 2), np.int64)
        for index, view in self._views():
            chunk = self.chunks[index]
            place = np.zeros(chunk.n_rows, np.float32)
            walk(view, tree, chunk.order[: chunk.kept], place, self._threads)
            sums += settle(chunk, place, n_places, self._threads)
        return sums

    def add_histograms(self, nodes: Int32, out: Int64) -> None:
        """Add the histograms of `nodes` to `out`, int64 of shape (nodes, entries, 2)."""
        for index, view in self._views():
            self._build(view, self.chunks[index], nodes, out, clear=False)

    def _fit_words(self, nodes: Int32) -> bool:
        """Whether each of the nodes has few enough rows, over all chunks, for a histogram of words."""
        sizes = np.zeros(len(nodes), np.int64)
        for chunk in self.chunks:
            segments = chunk.segments(nodes)
            sizes += segments[:, 1] - segments[:, 0]
        return int(sizes.max(initial=0)) <= WORD_ROWS

    def finish(self, splits: RowSplits | None, tree: WalkArrays, margin: Callable[[int], Float32],
               following: Following | None = None) -> Root | None:  # fmt: skip
        """Apply the last splits and add the tree's leaf values to `margin(chunk)`, float32 of shape (rows,), or (rows,
        outputs) for vectors. If that takes a pass, the root of the `following` tree comes out of it."""
        leaves = np.flatnonzero(tree.left_child < 0).astype(np.int32)
        are_placed = (splits is None or not len(splits)) and all(chunk.kept == chunk.n_rows for chunk in self.chunks)
        if are_placed and not tree.models:
            for index, chunk in enumerate(self.chunks):
                self._add_values(chunk, leaves, tree.value, margin(index))
            return None
        sums, out, root = [], None, np.zeros(1, np.int32)
        for index, view in self._views():
            chunk = self.chunks[index]
            if splits is not None and len(splits):
                self._split(view, chunk, splits)
            if tree.models:
                self._add_modelled(view, chunk, leaves, tree, margin(index))
            else:
                self._add_all(view, chunk, leaves, tree, margin(index))
            if following is not None:
                sums.append(self._fill_root(index, following.gradient(index), following.rounding))
                clear = out is None
                out = self._buffers.empty((1, self._layout.n_entries, 2)) if out is None else out
                self._build(view, chunk, root, out, clear=clear)
        return None if out is None else Root((sum(own[0] for own in sums), sum(own[1] for own in sums)), out)

    def _add_all(self, view: CpuView, chunk: ChunkOrder, leaves: Int32, tree: WalkArrays, margin: Float32) -> None:
        """Add leaf values to the margins of all rows of a chunk, those that did not grow the tree too."""
        self._add_values(chunk, leaves, tree.value, margin)
        if chunk.kept < chunk.n_rows:
            walk(view, tree, self._absent_rows(chunk), margin, self._threads)

    def _add_modelled(self, view: CpuView, chunk: ChunkOrder, leaves: Int32, tree: WalkArrays, margin: Float32) -> None:
        """Do what `_add_all` does, of leaves that have models."""
        node = np.zeros(chunk.n_rows, np.float32)
        self._add_all(view, chunk, leaves, tree.numbered, node)
        add_modelled(view, tree, node, np.arange(chunk.n_rows, dtype=np.uint32), margin, self._threads)

    def count_residuals(self, index: int, query: ResidualQuery, label: Float32, margin: Float32,
                        weight: Float32 | None) -> Int64:  # fmt: skip
        """Integer weights of a chunk's rows by leaf and next digit of the residual's key, see `ResidualQuery`."""
        counts = np.zeros((len(query.leaves), 1 << query.next_bits), np.int64)
        own = Residuals(label, margin, np.empty(0, np.float32) if weight is None else weight, query.weight_scale)

        def count(first: int, last: int) -> None:
            for leaf in range(first, last):
                count_residuals(
                    own, self._rows_of(index, int(query.leaves[leaf])), query.prefixes[leaf], query.known_bits,
                    query.next_bits, counts[leaf],
                )  # fmt: skip

        self._threads.run([partial(count, a, b) for a, b in self._threads.ranges(len(query.leaves), least=1)])
        return counts

    def _rows_of(self, index: int, node: int) -> UInt32:
        """Rows of a chunk in a node; node -1 has them all."""
        chunk = self.chunks[index]
        if node < 0:
            return np.arange(chunk.n_rows, dtype=np.uint32)
        begin, end = chunk.bounds[node] if node < len(chunk.bounds) else (0, 0)
        return chunk.order[begin:end]

    def _absent_rows(self, chunk: ChunkOrder) -> UInt32:
        absent = np.ones(chunk.n_rows, np.bool_)
        partition.mark_absent(chunk.order, chunk.kept, absent)
        return np.flatnonzero(absent).astype(np.uint32)

    def _add_values(self, chunk: ChunkOrder, leaves: Int32, values: Float32, margin: Float32) -> None:
        segments, leaf_values = chunk.segments(leaves), values[leaves]
        self._threads.run([
            partial(partition.add_leaf_values, chunk.order, segments[a:b], leaf_values[a:b], margin)
            for a, b in self._threads.ranges(len(leaves), least=8)
        ])  # fmt: skip

    def _split_and_build(self, view: CpuView, chunk: ChunkOrder, splits: RowSplits, nodes: Int32, shares: list[Share],
                         out: Int64, *, clear: bool) -> None:  # fmt: skip
        segments = chunk.segments(splits.node)
        middle = np.empty(len(splits), np.int64)

        def work(share: Share) -> None:
            own, lefts = segments[share.splits], np.zeros(len(share.splits), np.int64)
            view.split(chunk.rows, self._spare, Stretch.of(own), splits.predicates.of(share.splits), lefts)
            middle[share.splits] = own[:, 0] + lefts
            of_nodes = share.splits[share.origins]
            is_left = nodes[share.nodes] == splits.left[of_nodes]
            children = segments[of_nodes]  # a left child ends in the middle, a right one begins there
            children[np.arange(len(children)), is_left.astype(np.int64)] = middle[of_nodes]
            edge = np.empty((0, *out.shape[2:]), np.int64)
            view.histograms(chunk.rows, Stretch.of(children), HistogramSums(out, share.nodes, edge, clear))

        self._threads.run([partial(work, share) for share in shares])
        chunk.set_children(splits, middle)

    def _build(self, view: CpuView, chunk: ChunkOrder, nodes: Int32, out: Int64, *, clear: bool) -> None:
        segments = chunk.segments(nodes)
        ranges = self._threads.ranges(n_rows_of(segments))
        places = np.arange(len(nodes))
        edges = [np.zeros(out.shape[1:] if first else (0, *out.shape[2:]), np.int64) for first, _ in ranges]
        shared = self._threads.run([
            partial(
                view.histograms, chunk.rows, Stretch(segments, first, last), HistogramSums(out, places, edge, clear)
            )
            for (first, last), edge in zip(ranges, edges, strict=True)
        ])  # fmt: skip
        for node, edge in zip(shared, edges, strict=True):
            if node >= 0:
                out[node] += edge

    def _split(self, view: CpuView, chunk: ChunkOrder, splits: RowSplits) -> None:
        segments = chunk.segments(splits.node)
        ranges = self._threads.ranges(n_rows_of(segments))
        lefts = np.zeros((len(ranges), len(splits)), np.int64)
        self._threads.run([
            partial(
                view.split, chunk.rows, self._spare, Stretch(segments, first, last), splits.predicates, lefts[part]
            )
            for part, (first, last) in enumerate(ranges)
        ])  # fmt: skip
        if len(ranges) > 1:
            self._join_pieces(chunk, segments, self._positions(segments, ranges), lefts)
        chunk.set_children(splits, segments[:, 0] + lefts.sum(axis=0))

    @staticmethod
    def _join_pieces(chunk: ChunkOrder, segments: Int64, sizes: Int64, lefts: Int64) -> None:
        """Bring [left right][left right]... of a segment that several threads split to [left left right right]."""
        for s in np.flatnonzero((sizes > 0).sum(axis=0) > 1).tolist():
            begin, end = segments[s]
            starts = begin + np.cumsum(sizes[:, s]) - sizes[:, s]
            middles, ends = starts + lefts[:, s], starts + sizes[:, s]
            for array in chunk.moved:
                pieces = [array[a:b] for a, b in zip(starts, middles, strict=True)]
                pieces += [array[a:b] for a, b in zip(middles, ends, strict=True)]
                array[begin:end] = np.concatenate(pieces)

    @staticmethod
    def _positions(segments: Int64, ranges: list[tuple[int, int]]) -> Int64:
        """Positions of each segment that fall into each range; int64, shape (ranges, segments)."""
        ends = np.cumsum(segments[:, 1] - segments[:, 0])
        starts = np.concatenate([[0], ends[:-1]])
        first, last = np.array(ranges, np.int64).T[:, :, None]
        sizes: Int64 = np.maximum(np.minimum(ends, last) - np.maximum(starts, first), 0)
        return sizes


def walk(view: CpuView, tree: WalkArrays, rows: UInt32, margin: Float32, threads: Threads) -> None:
    """Add a tree's leaf values to the margins of `rows`, by bins."""
    if tree.models:
        node = np.zeros(len(margin), np.float32)
        walk(view, tree.numbered, rows, node, threads)
        add_modelled(view, tree, node, rows, margin, threads)
        return
    arrays = tree.arrays
    threads.run([partial(view.walk, arrays, rows, a, b, margin) for a, b in threads.ranges(len(rows))])


def add_modelled(view: CpuView, tree: WalkArrays, node: Float32, rows: UInt32, margin: Float32, threads: Threads
                 ) -> None:  # fmt: skip
    """Add what leaves' models give to the margins of `rows`; `node` : where each row of the chunk ends, shape (rows,).
    """
    threads.run([
        partial(view.add_modelled, tree, node, rows, a, b, margin) for a, b in threads.ranges(len(rows))
    ])  # fmt: skip
