"""A chunk as kernels see it: rows of symbols, padded, with a column-major copy for splitting; or CSR rows of slots.

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
    GROUP_BYTES,
    WIDE,
    FeatureGroups,
    feature_groups,
)
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_device
from daskboost.devices.gpu.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.tiles import Tiles
from daskboost.dtypes import Symbols

BUILD_THREADS = 512
"""As in `kernels/histogram.cu` and `histogram_sparse.cu`."""
WALK_THREADS = 256
"""As in `kernels/walk.cu`."""
WALK_BLOCKS = 8
"""Of a multiprocessor at the same time; each reads the tree once."""
SECTOR_BYTES = 32
"""Rows that are no longer are walked in registers."""
LEAST_COLUMNS = {1: 4, 2: 1}
"""By bytes of a symbol: kernels that read single symbols are compiled with it."""
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

    def groups(self, n_padded: int) -> list[FeatureGroups]:
        """Feature groups for rows of so many symbols."""
        return feature_groups(np.diff(self.host.offsets), n_padded)


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

    def add_rows(self, tiles: Tiles, order: DeviceArray, pairs: DeviceArray, out: DeviceArray) -> None:
        """Add the tiles' rows to `out`, int64 of shape (segments, slots, 2)."""


class DenseView:
    """Rows of symbols, padded to whole sectors.

    Parameters
    ----------
    layout : DeviceLayout
    parts : iterable of uint8 or uint16 arrays, shape (rows, features)
        Row after row, on the host or the device, copied one after the other; `DeviceSymbols` of all rows are taken as
        they are.
    n_rows : int
        Of all parts.
    copy_columns : bool
        Whether to make a column-major copy: splitting then reads one byte per row, not a sector.
    """

    def __init__(self, layout: DeviceLayout, parts: Iterable[Symbols | DeviceSymbols], n_rows: int, *,
                 copy_columns: bool) -> None:  # fmt: skip
        self._layout, self.runtime, xp = layout, layout.runtime, layout.runtime.xp
        n_features = len(layout.host.n_bins)
        symbols = _joined(self.runtime, n_features, parts, n_rows)
        rows = symbols.flat.reshape(n_rows, symbols.places.columns)
        self._rows, self._bytes = rows, rows.view(np.uint8)
        self._columns = xp.ascontiguousarray(rows[:, :n_features].T) if copy_columns else None
        self._groups = [(each, xp.asarray(each.groups)) for each in layout.groups(rows.shape[1])]
        self.symbol_bytes = int(rows.itemsize)
        self.nbytes = int(rows.nbytes) + (0 if self._columns is None else int(self._columns.nbytes))

    @property
    def symbols(self) -> tuple[Any, ...]:
        if self._columns is None:
            return (self._rows, None, self._rows.shape[1], 1, self._layout.n_bins, self._layout.offsets)
        return (self._columns, None, 1, self._columns.shape[1], self._layout.n_bins, self._layout.offsets)

    @property
    def whole_rows(self) -> tuple[tuple[Any, ...], int]:
        width, n_bins, offsets = self._rows.shape[1], self._layout.n_bins, self._layout.offsets
        if width * self.symbol_bytes != SECTOR_BYTES:
            return self.symbols, 0
        return (self._rows, None, width, 1, n_bins, offsets), SECTOR_BYTES // 4

    def add_rows(self, tiles: Tiles, order: DeviceArray, pairs: DeviceArray, out: DeviceArray) -> None:
        layout = self._layout
        common = (layout.offsets, len(layout.host.n_bins), *tiles.arguments, order, pairs, out.view(np.uint64))
        for each, groups in self._groups:
            columns = max(each.columns, LEAST_COLUMNS[self.symbol_bytes])
            kernel = layout.runtime.kernel(
                "histogram", "add_wide" if each.columns == WIDE else "add_rows", SYMBOL_BYTES=self.symbol_bytes,
                COLUMNS=columns, SMALL=small_data(pairs),
            )  # fmt: skip
            kernel(
                tiles.most * len(groups), BUILD_THREADS, self._bytes, self._bytes.shape[1], groups, len(groups),
                *common, shared_bytes=each.shared_bytes,
            )  # fmt: skip


def _joined(runtime: Runtime, n_features: int, parts: Iterable[Any], n_rows: int) -> DeviceSymbols:
    """Parts one after the other, `n_rows` in all."""
    found: DeviceSymbols | None = None
    begin = 0
    for part in parts:
        if isinstance(part, DeviceSymbols):
            if part.n_rows == n_rows:
                return part
            part = part.rows(0, part.n_rows)
        if found is None:
            found = DeviceSymbols.empty(runtime, SymbolPlaces(n_features, part.dtype), n_rows)
        found.rows(begin, begin + len(part))[...] = runtime.xp.asarray(part)
        begin += len(part)
    assert found is not None
    return found


class SparseView:
    """CSR rows whose entries are histogram slots: `indptr` int64 and `slots` int32, in the host's memory."""

    symbol_bytes = CSR

    def __init__(self, layout: DeviceLayout, indptr: Any, slots: Any) -> None:
        xp = layout.runtime.xp
        self._layout, self.runtime = layout, layout.runtime
        self._indptr, self._slots = xp.asarray(indptr), xp.asarray(slots)
        self.nbytes = int(indptr.nbytes + slots.nbytes)

    @property
    def symbols(self) -> tuple[Any, ...]:
        return (self._slots, self._indptr, 0, 0, self._layout.n_bins, self._layout.offsets)

    @property
    def whole_rows(self) -> tuple[tuple[Any, ...], int]:
        return self.symbols, 0

    def add_rows(self, tiles: Tiles, order: DeviceArray, pairs: DeviceArray, out: DeviceArray) -> None:
        n_slots = self._layout.host.n_slots
        fits = CELL_BYTES * n_slots <= GROUP_BYTES
        kernel = self._layout.runtime.kernel(
            "histogram_sparse", "add_shared" if fits else "add_global", SMALL=small_data(pairs)
        )
        kernel(
            tiles.most, BUILD_THREADS, self._indptr, self._slots, n_slots, *tiles.arguments, order, pairs,
            out.view(np.uint64), shared_bytes=CELL_BYTES * n_slots if fits else 0,
        )  # fmt: skip


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
