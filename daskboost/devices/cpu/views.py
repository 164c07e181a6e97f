"""A chunk as row loops see it: a row-major matrix of symbols, or CSR rows of histogram slots.

Both kinds offer the same operations, so everything above this file is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from daskboost.devices.cpu import histogram, leaf_models, partition
from daskboost.devices.cpu.addressed import host_address
from daskboost.devices.cpu.gradients import Gradients, Quanta, RowRange
from daskboost.devices.cpu.histogram import DenseBins, HistogramSums, SparseBins
from daskboost.devices.cpu.leaf_models import Models, Positions
from daskboost.devices.cpu.partition import TreeArrays
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.leaf_models import NO_MODELS, LeafModels, PositionTable
from daskboost.devices.row_order import Predicates, RowOrder, Stretch, no_sets, sets_of_all
from daskboost.dtypes import Array, ArrayModule, Bool, Float32, Int32, Int64, Symbols, UInt32

SCRATCH_SLOTS = 16_384
"""Slots that the inner loop works on at a time: 128 KiB of packed sums, well inside an L2 cache."""
SCRATCH_ENTRIES = 131_072
"""Entries of several outputs that it works on at a time: 1 MiB, as each block of features loads the pairs of all rows
again. 80 outputs of 28 features went in at 2.6 G a second on one core, at 1.6 G with blocks of 128 KiB."""


@dataclass(frozen=True)
class SlotLayout:
    """Where each feature's bins lie in a histogram."""

    offsets: Int64
    """int64, shape (features + 1,): first slot of each feature."""
    n_bins: Int32
    """int32, shape (features,): bins without the missing slot."""
    width: int = 1
    """Entries per slot: one, or one for each output (or column of a sketch) that trees of vector leaves search."""
    blocks: Int64 = field(init=False)
    """Feature ranges whose slots fit the scratch array."""

    def __post_init__(self) -> None:
        n_features, most = len(self.n_bins), (SCRATCH_SLOTS if self.width == 1 else SCRATCH_ENTRIES) // self.width
        edges = [0]
        while True:
            begin = edges[-1]
            full = int(np.searchsorted(self.offsets, self.offsets[begin] + most, side="right")) - 1
            if (end := max(full, begin + 1)) >= n_features:
                break
            edges.append(end)
        object.__setattr__(self, "blocks", np.array([*edges, n_features], np.int64))

    @property
    def n_slots(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def most_slots(self) -> int:
        """Most slots of a feature."""
        return int(np.diff(self.offsets).max(initial=0))

    @property
    def n_entries(self) -> int:
        """Sums in a histogram."""
        return self.n_slots * self.width

    @property
    def of_leaf(self) -> tuple[int, ...]:
        """The shape of what a leaf adds, where trees are searched on what values their leaves: a number or a vector."""
        return (self.width,) if self.width > 1 else ()

    @cached_property
    def scratch_entries(self) -> int:
        """Entries of the largest block."""
        return int(np.diff(self.offsets[self.blocks]).max(initial=1)) * self.width

    @cached_property
    def positions(self) -> Positions:
        """The positions of all bins in models of leaves."""
        table = PositionTable.of(self.n_bins.tolist())
        return Positions(table.begin, table.position)

    def dense_bins(self, symbols: Symbols, row_stride: int, column_stride: int) -> DenseBins:
        """A matrix of symbols as kernels take it."""
        return DenseBins(
            symbols, row_stride, column_stride, self.offsets, self.n_bins, self.blocks, self.scratch_entries
        )


@dataclass(frozen=True)
class WalkArrays:
    """A tree as the row walk needs it."""

    left_child: Int32
    right_child: Int32
    feature: Int32
    split_bin: Int32
    default_left: Bool
    value: Float32
    """What leaves add: float32, shape (nodes,), or (nodes, outputs) for vectors."""
    right_bins: UInt32 = field(default_factory=no_sets)
    """Bins that go right where `split_bin` is `BY_SET`, see `RowSplits`."""
    models: LeafModels = NO_MODELS
    """Models of leaves, by which rows of one may get different values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "right_bins", sets_of_all(self.right_bins, len(self.left_child)))

    @property
    def has_vectors(self) -> bool:
        """Whether a leaf has a value per output."""
        return self.value.ndim == 2

    def own(self, margins: Float32, output: int) -> Float32:
        """Return the margins that the tree's leaves add to: a view of one output's, shape (rows,), or for vectors all
        of `margins`, shape (rows, outputs)."""
        return margins if self.has_vectors else margins[:, output]

    @property
    def numbered(self) -> WalkArrays:
        """Return the tree whose leaves add their numbers, which are few enough for float32."""
        return replace(self, value=np.arange(len(self.left_child), dtype=np.float32), models=NO_MODELS)

    @property
    def arrays(self) -> TreeArrays:
        """The same as kernels take it."""
        return TreeArrays(
            self.left_child, self.right_child, self.feature, self.split_bin, self.default_left, self.value,
            self.right_bins,
        )


TakenRows = Symbols | tuple[Int64, Int32]
"""Copies of some rows: symbols, shape (rows, features), or row pointers and histogram slots."""


class CpuView(Protocol):
    """Operations on one chunk's rows."""

    @property
    def nbytes(self) -> int: ...

    @property
    def common(self) -> DenseBins | SparseBins:
        """What the bins of all chunks of a layout have in common, for `bins_at`."""

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        """Where the bins lie as rows are added to histograms, and as splits read them, for `bins_at`."""

    def histograms(self, rows: RowOrder, stretch: Stretch, sums: HistogramSums) -> int:
        """Add a stretch of the rows to histograms, see `add_segments`."""

    def split(self, rows: RowOrder, spare: RowOrder, stretch: Stretch, splits: Predicates, lefts: Int64) -> None:
        """Partition a stretch of the rows, see `split_dense`."""

    def walk(self, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32) -> None:
        """Add a tree's leaf values to the margins of `rows[first:last]`."""

    def add_equations(self, terms: Int32, gradients: Gradients, quanta: Quanta, rows: RowRange, leaf: Int32,
                      sums: Int64) -> None:  # fmt: skip
        """Add rows to the normal equations of their leaves, see `leaf_models.add_equations`."""

    def add_modelled(self, tree: WalkArrays, node: Float32, rows: UInt32, first: int, last: int, margin: Float32
                     ) -> None:  # fmt: skip
        """Add what leaves' models give to the margins of `rows[first:last]`, see `leaf_models.add_modelled`."""

    def take(self, rows: Int64 | UInt32) -> TakenRows:
        """Copies of some rows, as `joined_view` takes them."""


class _BinsView:
    """What views of either kind do with their bins by the same loops."""

    bins: DenseBins | SparseBins
    _layout: SlotLayout

    def histograms(self, rows: RowOrder, stretch: Stretch, sums: HistogramSums) -> int:
        return int(histogram.add_segments(self.bins, rows, stretch, sums))

    def add_equations(self, terms: Int32, gradients: Gradients, quanta: Quanta, rows: RowRange, leaf: Int32,
                      sums: Int64) -> None:  # fmt: skip
        leaf_models.add_equations(self.bins, self._layout.positions, terms, gradients, quanta, rows, leaf, sums)

    def add_modelled(self, tree: WalkArrays, node: Float32, rows: UInt32, first: int, last: int, margin: Float32
                     ) -> None:  # fmt: skip
        models = Models(tree.models.feature, tree.models.slope, tree.value)
        leaf_models.add_modelled(self.bins, self._layout.positions, models, node, rows, first, last, margin)


class DenseView(_BinsView):
    """Row-major symbols, and a column-major copy for splitting where memory has room for one.

    Splitting reads one symbol per row: from rows that is a cache line each, from a column a byte.
    """

    bins: DenseBins

    def __init__(self, symbols: Symbols, layout: SlotLayout, threads: Threads | None = None) -> None:
        n_rows, n_features = symbols.shape
        self._symbols, self._layout = symbols, layout
        self.bins = self.columns = layout.dense_bins(symbols.reshape(-1), n_features, 1)
        self.nbytes = int(symbols.nbytes)
        if threads is not None:
            columns = np.empty((n_features, n_rows), symbols.dtype)
            threads.run([
                partial(partition.transpose, self.bins.symbols, n_features, a, b, columns)
                for a, b in threads.ranges(n_rows)
            ])  # fmt: skip
            self.columns = layout.dense_bins(columns.reshape(-1), 1, n_rows)
            self.nbytes *= 2

    @property
    def common(self) -> DenseBins:
        return self.bins._replace(symbols=self.bins.symbols[:0])

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        return [(host_address(own.symbols), 0, own.row_stride, own.column_stride) for own in (self.bins, self.columns)]

    def split(self, rows: RowOrder, spare: RowOrder, stretch: Stretch, splits: Predicates, lefts: Int64) -> None:
        partition.split_dense(self.columns, rows, spare, stretch, splits, lefts)

    def walk(self, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32) -> None:
        partition.walk_dense(self.bins, tree, rows, first, last, margin)

    def take(self, rows: Int64 | UInt32) -> Symbols:
        taken: Symbols = self._symbols[rows]
        return taken


class SparseView(_BinsView):
    """CSR rows whose entries are histogram slots."""

    bins: SparseBins

    def __init__(self, indptr: Int64, slots: Int32, layout: SlotLayout) -> None:
        self.bins, self._layout = SparseBins(indptr, slots, layout.offsets), layout
        self.nbytes = int(indptr.nbytes + slots.nbytes)

    @property
    def common(self) -> SparseBins:
        return self.bins._replace(indptr=self.bins.indptr[:0], slots=self.bins.slots[:0])

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        return 2 * [(host_address(self.bins.indptr), host_address(self.bins.slots), 0, 0)]

    def split(self, rows: RowOrder, spare: RowOrder, stretch: Stretch, splits: Predicates, lefts: Int64) -> None:
        partition.split_sparse(self.bins, rows, spare, stretch, splits, lefts)

    def walk(self, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32) -> None:
        partition.walk_sparse(self.bins, tree, rows, first, last, margin)

    def take(self, rows: Int64 | UInt32) -> tuple[Int64, Int32]:
        begins = self.bins.indptr[rows]
        sizes = self.bins.indptr[rows + 1] - begins
        indptr: Int64 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        shift = np.repeat(begins - indptr[:-1], sizes)
        return indptr, self.bins.slots[np.arange(indptr[-1]) + shift]


CsrParts = Sequence[tuple[Array, Array]]
"""Row pointers (int64) and histogram slots (int32) of parts of CSR rows, in the host's memory or a device's."""


def joined_entries(parts: CsrParts, xp: ArrayModule) -> tuple[Array, Array]:
    """Return parts as one, those of another memory than that of `xp` copied to it; the only one is taken as it is."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(slots) for _, slots in parts)]).tolist()
    pointers = [xp.asarray(own)[1:] + start for (own, _), start in zip(parts, starts, strict=False)]
    indptr = xp.concatenate([xp.zeros(1, np.int64), *pointers])
    return indptr, xp.concatenate([xp.asarray(slots) for _, slots in parts])


def joined_view(taken: Iterable[TakenRows], n_rows: int, layout: SlotLayout, threads: Threads | None) -> CpuView:
    """The view of rows that were taken from some, `n_rows` in all; with `threads`, dense ones have a column-major
    copy."""
    symbols: Symbols | None = None
    entries, end = list[tuple[Array, Array]](), 0
    for part in taken:
        if isinstance(part, tuple):
            entries.append(part)
            continue
        if symbols is None:
            symbols = np.empty((n_rows, part.shape[1]), part.dtype)
        symbols[end : end + len(part)] = part
        end += len(part)
    if symbols is None:
        return SparseView(*joined_entries(entries, np), layout)
    return DenseView(symbols, layout, threads)
