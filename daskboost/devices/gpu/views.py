"""A chunk as kernels see it: rows of symbols by feature group, with a column-major copy for splitting; or CSR rows.

Both kinds offer the same operations, so that everything above this file is written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.feature_groups import (
    CELL_BYTES,
    MOST_COLUMNS,
    MOST_GROUP_BYTES,
    SKEWED_BIN_BYTES,
    FeatureGroups,
    feature_groups,
)
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_device
from daskboost.devices.gpu.sparse_columns import SORT_BYTES, SparseColumns, pays
from daskboost.devices.gpu.tiles import Tiles
from daskboost.dtypes import Symbols

BUILD_THREADS = 1024
"""As in `kernels/histogram.cu` and `histogram_sparse.cu`: a block fills a multiprocessor."""
MANY_PIECES = 4
"""Of a block, nodes or groups: it is then halved, so that one half adds up while the other hands over."""
LEAST_ROWS_PER_BIN = 8
"""Of a block that builds histograms: with fewer it would take longer to hand over its sums than to add them."""
LEAST_ENTRIES_PER_SLOT = 4
"""The same of sparse rows."""
WALK_THREADS = 256
"""As in `kernels/walk.cu`."""
WALK_BLOCKS = 8
"""Of a multiprocessor at the same time; each reads the tree once."""
SECTOR_BYTES = 32
"""Rows that are no longer are walked in registers."""
CSR = 0
"""In place of the bytes of a symbol, see `kernels/symbol.cuh`."""


@dataclass(frozen=True)
class DeviceLayout:
    """A slot layout and its copy on the GPU."""

    runtime: Runtime
    host: SlotLayout
    offsets: DeviceArray = field(init=False)
    n_bins: DeviceArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", self.runtime.xp.asarray(self.host.offsets))
        object.__setattr__(self, "n_bins", self.runtime.xp.asarray(self.host.n_bins))

    def groups(self, symbol_bytes: int) -> list[FeatureGroups]:
        """Feature groups of symbols of so many bytes."""
        return feature_groups(np.diff(self.host.offsets), symbol_bytes, self.runtime.shared_bytes)


class GpuView(Protocol):
    """Operations on one chunk's rows."""

    nbytes: int
    symbol_bytes: int
    """Which kind it is, for kernels (`SYMBOL_BYTES`)."""

    @property
    def symbols(self) -> tuple[Any, ...]:
        """The arguments with which kernels look up single symbols (`SYMBOLS`)."""

    @property
    def whole_rows(self) -> tuple[tuple[Any, ...], int]:
        """The same for kernels that look up many symbols of each row, and the words of a short row (`ROW_WORDS`)."""

    def add_rows(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray) -> None:
        """Add the rows of the tiles' segments to `out`, int64 of shape (segments, slots, 2).

        `order` : uint32, the row at each position; None where positions are rows. `pairs` : by position. Launches and
        nothing else: a captured graph may do it again.
        """


class DenseView:
    """Rows of symbols, feature group by feature group.

    Parameters
    ----------
    layout : DeviceLayout
    parts : iterable of uint8 or uint16 arrays, shape (rows, features)
        Row after row, in the host's memory or the device's; copied one after the other.
    n_rows : int
        Of all parts.
    copy_columns : bool
        Whether to make a column-major copy: splitting then reads one byte per row, not a sector.
    """

    def __init__(self, layout: DeviceLayout, parts: Iterable[Symbols], n_rows: int, *, copy_columns: bool) -> None:
        self._layout, self.runtime, xp = layout, layout.runtime, layout.runtime.xp
        n_features = len(layout.host.n_bins)
        self._columns: Any = None
        begin = 0
        for part in parts:
            if begin == 0:
                self._start(n_rows, np.dtype(part.dtype))
                self._columns = xp.empty((n_features, n_rows), part.dtype) if copy_columns else None
            symbols, end = xp.asarray(part), begin + len(part)
            for each in self._planes:
                for plane, first, n, low, _ in each.host.groups.tolist():
                    if low == 0:
                        each.planes[plane, begin:end, :n] = symbols[:, first : first + n]
            if self._columns is not None:
                self._columns[:, begin:end] = symbols.T
            begin = end
        self.nbytes = int(self._rows.nbytes) + (0 if self._columns is None else int(self._columns.nbytes))

    def _start(self, n_rows: int, dtype: np.dtype[Any]) -> None:
        """Room for the rows: planes of the widest groups first, so that all are aligned to their own rows."""
        xp, layout = self.runtime.xp, self._layout
        self.symbol_bytes = dtype.itemsize
        found = layout.groups(dtype.itemsize)
        self._rows = xp.zeros(n_rows * sum(each.n_planes * each.columns for each in found), dtype)
        self._planes: list[_Planes] = []
        places = np.empty((len(layout.host.n_bins), 2), np.int64)
        start = 0
        for each in found:
            end = start + each.n_planes * n_rows * each.columns
            planes = self._rows[start:end].reshape(each.n_planes, n_rows, each.columns)
            self._planes.append(_Planes(each, xp.asarray(each.groups), planes))
            for plane, first, n, _, _ in each.groups.tolist():
                places[first : first + n, 0] = start + plane * n_rows * each.columns + np.arange(n)
                places[first : first + n, 1] = each.columns
            start = end
        self._places = xp.asarray(places)

    @property
    def symbols(self) -> tuple[Any, ...]:
        if self._columns is None:
            return (self._rows, self._places, 0, 0, self._layout.n_bins, self._layout.offsets)
        return (self._columns, None, 1, self._columns.shape[1], self._layout.n_bins, self._layout.offsets)

    @property
    def whole_rows(self) -> tuple[tuple[Any, ...], int]:
        first, *others = self._planes
        if others or first.host.n_planes > 1 or first.host.columns * self.symbol_bytes != SECTOR_BYTES:
            return self.symbols, 0
        n_bins, offsets = self._layout.n_bins, self._layout.offsets
        return (self._rows, None, first.host.columns, 1, n_bins, offsets), SECTOR_BYTES // 4

    def add_rows(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray) -> None:
        layout, runtime, small = self._layout, self.runtime, small_data(pairs)
        for each in self._planes:
            host, symbols = each.host, each.planes.view(np.uint8)
            shape = {"SYMBOL_BYTES": self.symbol_bytes, "COLUMNS": host.columns, "SKEWED": 0, "SMALL": small}
            threads, shared_bytes = BUILD_THREADS, host.shared_bytes
            skewed = None if order is not None or small else host.skewed(self.symbol_bytes, runtime.shared_bytes)
            if skewed is not None:
                shape["SKEWED"], shape["BINS"] = skewed
                shared_bytes = SKEWED_BIN_BYTES * skewed[1]
            elif (self.symbol_bytes, host.columns, small) == (1, MOST_COLUMNS, 0):
                pieces = len(tiles.nodes) * len(host.groups)
                if pieces >= MANY_PIECES * runtime.multiprocessors and 2 * shared_bytes < runtime.shared_bytes:
                    threads //= 2
            runtime.kernel("histogram", "add_rows", **shape, THREADS=threads)(
                runtime.multiprocessors * BUILD_THREADS // threads, threads, symbols, symbols[0].nbytes, each.groups,
                len(host.groups), shared_bytes // 4, max(1, host.most_bins * LEAST_ROWS_PER_BIN // tiles.tile_rows),
                layout.offsets, len(layout.host.n_bins), *tiles.arguments, order, pairs, out.view(np.uint64),
                shared_bytes=shared_bytes,
            )  # fmt: skip


@dataclass(frozen=True)
class _Planes:
    """Rows of all feature groups of one width."""

    host: FeatureGroups
    groups: DeviceArray
    """`host.groups` on the device."""
    planes: DeviceArray
    """uint8 or uint16, shape (planes, rows, columns); columns without a feature are zero."""


class SparseView:
    """CSR rows whose entries are histogram slots: `indptr` int64 and `slots` int32, in the host's memory.

    With `copy_columns`, entries are copied in the order of features if not all slots fit shared memory, and if sorting
    them fits device memory.
    """

    symbol_bytes = CSR

    def __init__(self, layout: DeviceLayout, indptr: Any, slots: Any, *, copy_columns: bool = True) -> None:
        xp = layout.runtime.xp
        self._layout, self.runtime = layout, layout.runtime
        self._indptr, self._slots = xp.asarray(indptr), xp.asarray(slots)
        self._columns: SparseColumns | None = None
        n_slots, room_bytes = layout.host.n_slots, min(self.runtime.shared_bytes, MOST_GROUP_BYTES)
        self._fits = CELL_BYTES * n_slots <= room_bytes
        helps = copy_columns and not self._fits and pays(1, n_slots, len(slots))
        if helps and SORT_BYTES * len(slots) < self.runtime.free_bytes:
            self._columns = SparseColumns(self.runtime, layout.host.offsets, self._indptr, self._slots, room_bytes)
        self.nbytes = int(indptr.nbytes + slots.nbytes) + (0 if self._columns is None else self._columns.nbytes)

    @property
    def symbols(self) -> tuple[Any, ...]:
        return (self._slots, self._indptr, 0, 0, self._layout.n_bins, self._layout.offsets)

    @property
    def whole_rows(self) -> tuple[tuple[Any, ...], int]:
        return self.symbols, 0

    def add_rows(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray) -> None:
        runtime, n_slots, small = self.runtime, self._layout.host.n_slots, small_data(pairs)
        rows, common = (self._indptr, self._slots, n_slots), (order, pairs, out.view(np.uint64))
        if self._fits:
            n_rows, n_entries = len(self._indptr) - 1, max(len(self._slots), 1)
            least_rows = LEAST_ENTRIES_PER_SLOT * n_slots * n_rows // n_entries
            runtime.kernel("histogram_sparse", "add_shared", SMALL=small)(
                runtime.multiprocessors, BUILD_THREADS, *rows, max(1, least_rows // tiles.tile_rows), *tiles.arguments,
                *common, shared_bytes=CELL_BYTES * n_slots,
            )  # fmt: skip
            return
        many_rows = np.iinfo(np.int64).max
        if self._columns is not None:
            many_rows = self._columns.add_rows(tiles, order, pairs, out, small)
        runtime.kernel("histogram_sparse", "add_global", SMALL=small)(
            tiles.most, BUILD_THREADS, *rows, *tiles.arguments, many_rows, *common
        )


def small_data(pairs: DeviceArray) -> int:
    """Whether pairs are small data's, as kernels are told (`SMALL`)."""
    return int(pairs.itemsize == 8)


def walk(runtime: Runtime, view: GpuView, tree: WalkArrays, margin: DeviceArray) -> None:
    """Add a tree's leaf values to the margins of all rows, by bins."""
    walk_nodes(runtime, view, tree_columns(runtime, tree), margin)


def tree_columns(runtime: Runtime, tree: WalkArrays) -> tuple[DeviceArray, ...]:
    """A tree on the device, as `walk_nodes` takes it."""
    default_left = tree.default_left.astype(np.uint8)
    columns = (tree.left_child, tree.right_child, tree.feature, tree.split_bin, default_left, tree.value)
    return tuple(to_device(runtime, column) for column in columns)


def walk_nodes(runtime: Runtime, view: GpuView, columns: tuple[DeviceArray, ...], margin: DeviceArray) -> None:
    """The same for a tree on the device.

    `columns` : left and right child, feature and bin, int32; default left, uint8; value, float32.
    """
    n = len(margin)
    if n == 0:
        return
    symbols, row_words = view.whole_rows
    blocks = min(-(-n // WALK_THREADS), runtime.multiprocessors * WALK_BLOCKS)
    runtime.kernel("walk", "walk", SYMBOL_BYTES=view.symbol_bytes, ROW_WORDS=row_words)(
        blocks, WALK_THREADS, *symbols, *columns, len(columns[0]), n, margin, element_stride(margin)
    )
