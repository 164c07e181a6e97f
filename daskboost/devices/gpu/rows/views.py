"""A chunk as kernels see it: rows of symbols by feature group, with a column-major copy for splitting; or CSR rows.

Both kinds offer the same operations, so that everything above this file is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces, turn
from daskboost.devices.gpu.rows.everywhere import BLOCK_BYTES, Everywhere
from daskboost.devices.gpu.rows.feature_groups import (
    CELL_BYTES,
    IDLE_SYMBOLS,
    SKEWED_BIN_BYTES,
    FeatureGroups,
    Tiles,
    make_map,
    mapped,
    room_bytes,
    with_room,
)
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride, to_host
from daskboost.devices.gpu.trees.sorted_entries import SortedEntries
from daskboost.devices.gpu.trees.sparse_columns import SparseColumns, copying_bytes, fits_block, is_copied
from daskboost.dtypes import Int32, Int64, Symbols

BUILD_THREADS = 1024
"""Threads of a block, as in `kernels/histogram.cu` and `histogram_sparse.cu`: a block fills a multiprocessor."""
ZERO_THREADS = 256
"""Threads of a block, as in `kernels/histogram_zeros.cu`."""
QUAD_BYTES = 16
"""Bytes of shared memory that a thread clears at a time."""
MANY_PIECES = 4
"""Nodes or groups from which a block is halved: it is then halved, so that one half adds up while the other hands
over."""
LEAST_ROWS_PER_BIN = 8
"""Least rows per bin of a block that builds histograms: with fewer it would take longer to hand over its sums than to
add them. Handing over takes as long as adding so many rows per bin, and each node counts as that many more rows
(`kernels/shares.cuh`)."""
LEAST_ENTRIES_PER_SLOT = 4
"""The same of sparse rows."""
MOST_TILES = 1 << 30
"""Tiles that the leads of all nodes may have together, which kernels count in 32 bits."""
WALK_THREADS = 256
"""Threads of a block, as in `kernels/walk.cu` and `walk_vectors.cu`."""
WARP = 32
WALK_BLOCKS = 8
"""Blocks of a multiprocessor at the same time; each reads the tree once."""
MASKED_WALK_BLOCKS = 5
"""The same with masks, whose walks have more registers: all blocks begin at once."""
SECTOR_BYTES = 32
"""Rows that are no longer are walked in registers."""
TAKING_BYTES = 32
"""Bytes of temporary arrays for each entry that is looked at while some are taken, about."""
TAKEN_FEATURES = 8
"""Features of rows on the device that are copied to other places at a time."""
COLUMN_BYTES = 1 << 28
"""Bytes of columns that are put in another order at a time."""
CSR = 0
"""In place of the bytes of a symbol, see `kernels/symbol.cuh`."""


@dataclass(frozen=True)
class DeviceLayout:
    """A slot layout and its copy on the GPU."""

    runtime: Runtime
    host: SlotLayout
    first_feature: int = 0
    """The fit's feature that is the layout's first, where others are other GPUs'."""
    most_idle: int = 0
    """Idle columns of a group, where it is known how few rows there are: see `feature_groups`."""
    offsets: DeviceArray = field(init=False)
    n_bins: DeviceArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", self.runtime.xp.asarray(self.host.offsets))
        object.__setattr__(self, "n_bins", self.runtime.xp.asarray(self.host.n_bins))

    @property
    def features(self) -> tuple[int, int]:
        """The first feature, and how many there are, as kernels take them."""
        return self.first_feature, len(self.host.n_bins)

    def part(self, first: int, last: int, n_rows: int) -> DeviceLayout:
        """Return the layout of some features of this one, those from `first` up to `last`, for so many rows."""
        offsets = self.host.offsets[first : last + 1] - self.host.offsets[first]
        host = SlotLayout(offsets, self.host.n_bins[first:last], self.host.width)
        return DeviceLayout(self.runtime, host, self.first_feature + first, IDLE_SYMBOLS // n_rows)

    def places(self, dtype: np.dtype[Any], *, mixes: bool = False) -> SymbolPlaces:
        """Return where symbols of that type lie, or, where widths mix, of one byte where a feature needs no more."""
        slots = np.diff(self.host.offsets)
        return SymbolPlaces.of_slots(slots, dtype, self.runtime.shared_bytes, self.most_idle, mixes=mixes)


class GpuView(Protocol):
    """Operations on one chunk's rows."""

    nbytes: int
    runtime: Runtime
    symbol_bytes: int
    """Kind of view, as kernels take it (`SYMBOL_BYTES`)."""
    walks_fast: bool
    """Whether a row's leaf is found by walking in less time than by moving the row to it."""
    sorted_entries: SortedEntries | None
    """Entries in the order of their slots, where splits are found in them, without histograms."""

    @property
    def symbols(self) -> tuple[Any, ...]:
        """The arguments with which kernels look up single symbols (`SYMBOLS`)."""

    @property
    def features(self) -> tuple[int, int]:
        """See `DeviceLayout.features`."""

    @property
    def short_rows(self) -> ShortRows | None:
        """Rows for kernels that look up many symbols of each; None where there are none."""

    @property
    def joins_trees(self) -> bool:
        """Whether segments of one call of `build` may be of several trees or outputs, so that a row lies in more than
        one."""

    def build(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray, *,
              adds: bool = False) -> None:  # fmt: skip
        """Make `out`, int64 of shape (segments, slots, 2), the histograms of the tiles' segments, whatever it held.

        `order` : uint32, the row at each position, which begins again behind its last one where views join trees; None
        where positions are rows, those of several trees all rows again and again. `pairs` : by position. `adds` : add
        to `out` instead, as the second chunk of a shard does to the first one's. A node of -1 has no histogram: what is
        in its place is undefined. Launches and nothing else: a
        captured graph may do it again.
        """


class DenseView:
    """Rows of symbols, feature group by feature group.

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
    turn_rows : bool, default False
        Whether to make a copy for passes over all rows in order, of groups that have one (`symbols.turn`).
    mixes : bool, default False
        Whether features of few slots shall have symbols of one byte where others need two. Single symbols are looked up
        in the column-major copy, which must be there, and has two bytes for each.
    """

    joins_trees = walks_fast = True
    sorted_entries: SortedEntries | None = None

    def __init__(self, layout: DeviceLayout, parts: Iterable[Symbols | DeviceSymbols], n_rows: int, *,
                 copy_columns: bool, turn_rows: bool = False, mixes: bool = False) -> None:  # fmt: skip
        self._layout, self.runtime, xp = layout, layout.runtime, layout.runtime.xp
        self._looked_up = layout
        """Layout of the features whose symbols are looked up one by one."""
        self._copy_columns, self._turn_rows = copy_columns, turn_rows
        places_of = partial(layout.places, mixes=mixes and copy_columns)
        self._symbols = symbols = _joined(self.runtime, places_of, parts, n_rows)
        self._columns = self._copied_columns()
        self._places = xp.asarray(symbols.places.of(n_rows))
        self._n_rows, self.symbol_bytes = n_rows, symbols.places.dtype.itemsize
        self._planes = [
            self._with_copy(_Planes(each, xp.asarray(each.groups), planes))
            for each, planes in zip(symbols.places.groups, symbols.planes, strict=True)
        ]
        copies = [self._columns, *(each.turned for each in self._planes)]
        self.nbytes = int(self._rows.nbytes) + sum(int(copy.nbytes) for copy in copies if copy is not None)

    def put_in_order(self, rows: DeviceArray) -> None:
        """Enqueue: row i becomes what row `rows[i]` was; uint32, each row once.

        Symbols are moved to memory of the view's own, so that whoever lends them keeps them as they are; copies take
        the memory of those before. What was recorded with this view has other addresses.
        """
        self._symbols = symbols = self._symbols.in_order(rows)
        kept, self._columns = self._columns if self._looked_up is not self._layout else None, None
        self._planes = [
            replace(each, planes=planes, turned=None) for each, planes in zip(self._planes, symbols.planes, strict=True)
        ]
        self._columns = self._copied_columns() if kept is None else _columns_in_order(kept, rows)
        self._planes = [self._with_copy(each) for each in self._planes]

    def look_up_in(self, layout: DeviceLayout, columns: DeviceArray) -> None:
        """Look up single symbols in those of more features than histograms are built of: `columns`, shape (features,
        rows), of all features of `layout`."""
        self.nbytes += int(columns.nbytes) - (0 if self._columns is None else int(self._columns.nbytes))
        self._looked_up, self._columns = layout, columns

    @property
    def dense_symbols(self) -> DeviceSymbols:
        """All rows' symbols."""
        return self._symbols

    def entries_of_features(self) -> DeviceArray:
        """Return how many rows have a symbol of each feature, as all do; int64, shape (features,)."""
        return self.runtime.xp.full(len(self._layout.host.n_bins), self._n_rows, np.int64)

    def of_all_rows(self, place: Everywhere, shares: Sequence[DeviceLayout], *, sort_entries: bool,
                    all_features: DeviceLayout | None = None) -> DenseView:  # fmt: skip
        """Return the view of all rows with this GPU's share of the features, of those of all GPUs in their order;
        collective. There are no entries to sort. `all_features` : which shall be looked up, not the share alone."""
        symbols, own = self._symbols, shares[place.joined.rank]
        if all_features is not None:
            return self._with_all_features(place, own, all_features)
        found = DeviceSymbols.empty(self.runtime, own.places(symbols.places.dtype), place.n_rows)
        at_once = max(1, BLOCK_BYTES // (place.n_rows * symbols.places.dtype.itemsize))
        for layout in shares:
            begin, end = layout.first_feature, layout.first_feature + len(layout.host.n_bins)
            for first, last in pairwise([*range(begin, end, at_once), end]):
                block = place.spread(symbols.columns(first, last))
                if layout is own:
                    found.put_columns(first - begin, block)
        return DenseView(own, [found], place.n_rows, copy_columns=True)

    def bytes_of_all(self, n_rows: int, n_features: int) -> int | None:
        """Return the bytes of the columns of all features of so many rows; None of views that look up none in them."""
        return self.symbol_bytes * n_rows * n_features

    def _with_all_features(self, place: Everywhere, share: DeviceLayout, all_features: DeviceLayout) -> DenseView:
        columns, (first, n) = place.spread(self.by_feature, axis=1), share.features
        symbols = DeviceSymbols.empty(self.runtime, share.places(columns.dtype), place.n_rows)
        symbols.put_columns(0, columns[first : first + n].T)
        view = DenseView(share, [symbols], place.n_rows, copy_columns=False)
        view.look_up_in(all_features, columns)
        return view

    @property
    def by_feature(self) -> DeviceArray:
        """Symbols of all rows, shape (features, rows): the view's copy, or one that is made of them."""
        return self._symbols.by_feature() if self._columns is None else self._columns

    @property
    def features(self) -> tuple[int, int]:
        return self._looked_up.features

    @property
    def _rows(self) -> DeviceArray:
        return self._symbols.flat

    def _copied_columns(self) -> DeviceArray | None:
        return self._symbols.by_feature() if self._copy_columns else None

    def _with_copy(self, planes: _Planes) -> _Planes:
        skewed = planes.host.skewed(self.runtime.shared_bytes) if self._turn_rows else None
        return planes if skewed is None else replace(planes, turned=turn(self.runtime, planes.planes, skewed[0]))

    @property
    def planes(self) -> list[DeviceArray]:
        """Symbols of each kind of feature groups; shape (planes, rows, columns)."""
        return [each.planes for each in self._planes]

    @property
    def symbols(self) -> tuple[Any, ...]:
        layout = self._looked_up
        if self._columns is None:
            return (self._rows, self._places, 0, 0, layout.n_bins, layout.offsets)
        return (self._columns, None, 1, self._columns.shape[1], layout.n_bins, layout.offsets)

    @property
    def short_rows(self) -> ShortRows | None:
        if self._looked_up is not self._layout:
            return None
        short = [each for each in self._planes if each.host.row_bytes == SECTOR_BYTES]
        return short[0].short_rows(len(self._layout.host.n_bins)) if short else None

    def build(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray, *,
              adds: bool = False) -> None:  # fmt: skip
        layout, runtime, small = self._layout, self.runtime, small_data(pairs)
        tiles, lead = with_room(runtime, tiles), 0
        for each in self._planes:
            host, symbols = each.host, each.planes.view(np.uint8)
            shape = {"SYMBOL_BYTES": host.symbol_bytes, "COLUMNS": host.columns, "SMALL": small, "SKEWED": 0}
            threads, shared_bytes = BUILD_THREADS, host.shared_bytes
            skewed = None if order is not None or small else host.skewed(runtime.shared_bytes)
            if skewed is not None:
                shape["SKEWED"], shape["BINS"] = skewed
                shape["TURNED"] = int(each.turned is not None)
                symbols = symbols if each.turned is None else each.turned
                shared_bytes = SKEWED_BIN_BYTES * skewed[1]
            elif host.is_of_wide_bytes and not small:
                pieces = len(tiles.nodes) * len(host.groups)
                if pieces >= MANY_PIECES * runtime.multiprocessors and 2 * shared_bytes < runtime.shared_bytes:
                    threads //= 2
            blocks, quads = runtime.multiprocessors * BUILD_THREADS // threads, -(-shared_bytes // QUAD_BYTES)
            least_tiles = max(1, host.most_bins * LEAST_ROWS_PER_BIN // tiles.tile_rows)
            maps, lead = lead != least_tiles, least_tiles  # widths may share a map, but for their leads
            if maps and (adds or len(tiles.nodes) > ZERO_THREADS):  # nobody clears, or who does has no room for the map
                make_map(runtime, tiles, lead)
                maps = False
            if not adds:
                runtime.kernel("histogram_zeros", "zero_divided")(
                    blocks, ZERO_THREADS, each.groups, len(host.groups), least_tiles, blocks, layout.offsets,
                    len(layout.host.n_bins), *tiles.arguments, int(maps), out.view(np.uint64),
                )  # fmt: skip
            runtime.kernel("histogram", "build", **shape, THREADS=threads)(
                blocks, threads, symbols, symbols[0].nbytes, self._n_rows, each.groups, len(host.groups), quads,
                least_tiles, layout.offsets, len(layout.host.n_bins), *tiles.arguments, *order_of(order), pairs,
                int(adds), out.view(np.uint64), shared_bytes=quads * QUAD_BYTES,
            )  # fmt: skip


class ShortRows(NamedTuple):
    """Rows of `SECTOR_BYTES`, as `kernels/walk.cu` holds them in registers."""

    rows: DeviceArray
    """uint8 or uint16, shape (rows, columns)."""
    first: int
    """The feature of the first column; those of the others follow."""
    n_features: int
    """Features that have a column."""
    has_all: bool
    """Whether all features do."""


@dataclass(frozen=True)
class _Planes:
    """Rows of all feature groups of one width."""

    host: FeatureGroups
    groups: DeviceArray
    """`host.groups` on the device."""
    planes: DeviceArray
    """uint8 or uint16, shape (planes, rows, columns); columns without a feature are zero."""
    turned: DeviceArray | None = None
    """Copy of the symbols for passes over all rows in order; uint8, shape (planes, bytes)."""

    def short_rows(self, n_features: int) -> ShortRows:
        """Return the rows of the first plane, of `n_features` in all."""
        _, first, n, _, _ = self.host.groups[0].tolist()
        return ShortRows(self.planes[0], first, n, n == n_features)


def _columns_in_order(columns: DeviceArray, rows: DeviceArray) -> DeviceArray:
    """Enqueue: return columns, shape (features, rows), in which row i is what row `rows[i]` was.

    They keep their memory, since some features are moved at a time.
    """
    at_once = max(1, COLUMN_BYTES // columns[0].nbytes)
    for first in range(0, len(columns), at_once):
        own = columns[first : first + at_once]
        own[...] = own[:, rows]
    return columns


def _joined(runtime: Runtime, places_of: Callable[[np.dtype[Any]], SymbolPlaces], parts: Iterable[Any], n_rows: int
            ) -> DeviceSymbols:  # fmt: skip
    """Parts one after the other, `n_rows` in all."""
    found: DeviceSymbols | None = None
    begin = 0
    for part in parts:
        if isinstance(part, DeviceSymbols):
            places = places_of(part.places.dtype)
            if part.n_rows == n_rows and part.places.agrees(places):
                return part
            if places.mixes:
                found = DeviceSymbols.empty(runtime, places, n_rows) if found is None else found
                _put_features(found, begin, part)
                begin += part.n_rows
                continue
            part = part.rows(0, part.n_rows)
        if found is None:
            found = DeviceSymbols.empty(runtime, places_of(np.dtype(part.dtype)), n_rows)
        found.put(begin, runtime.xp.asarray(part))
        begin += len(part)
    assert found is not None
    return found


def _put_features(to: DeviceSymbols, begin: int, part: DeviceSymbols) -> None:
    """Copy rows from `begin` on, some features at a time, as temporary arrays of all would be as large as the rows."""
    n_features = to.places.n_features
    for first in range(0, n_features, TAKEN_FEATURES):
        to.put_columns(first, part.columns(first, min(first + TAKEN_FEATURES, n_features)), begin)


class SparseView:
    """CSR rows whose entries are histogram slots: `indptr` int64 and `slots` int32, in the host's memory.

    With `copy_columns`, entries are copied in the order of features if not all slots fit shared memory, and if sorting
    them fits device memory. With `sort_entries` they are copied in the order of slots instead, as `sorted_entries`, in
    which splits are found without histograms.
    """

    symbol_bytes = CSR
    walks_fast = False

    def __init__(self, layout: DeviceLayout, indptr: Int64, slots: Int32, *, copy_columns: bool = True,
                 sort_entries: bool = False) -> None:  # fmt: skip
        xp = layout.runtime.xp
        self._layout, self.runtime = layout, layout.runtime
        self._indptr, self._slots = xp.asarray(indptr), xp.asarray(slots)
        self._columns: SparseColumns | None = None
        self.sorted_entries: SortedEntries | None = None
        n_slots, shared_bytes = layout.host.n_slots, self.runtime.shared_bytes
        self._fits = fits_block(n_slots, shared_bytes)
        rows = (layout.host.offsets, self._indptr, self._slots)
        helps = copy_columns and not sort_entries and is_copied(n_slots, len(slots), shared_bytes)
        if helps and copying_bytes(len(slots), len(indptr) - 1) < self.runtime.free_bytes:
            self._columns = SparseColumns(self.runtime, *rows, room_bytes(shared_bytes))
        if sort_entries:
            self.sorted_entries = SortedEntries(self.runtime, *rows)
        copies = (each.nbytes for each in (self._columns, self.sorted_entries) if each is not None)
        self.nbytes = int(indptr.nbytes + slots.nbytes) + sum(copies)

    @property
    def features(self) -> tuple[int, int]:
        return self._layout.features

    @property
    def joins_trees(self) -> bool:
        return self._columns is None  # entries by feature look up the one node of their row

    @property
    def symbols(self) -> tuple[Any, ...]:
        return (self._slots, self._indptr, self._layout.host.n_slots, 0, self._layout.n_bins, self._layout.offsets)

    def entries_of_features(self) -> DeviceArray:
        """Return how many rows have an entry of each feature; int64, shape (features,)."""
        xp, n_slots = self.runtime.xp, self._layout.host.n_slots
        up_to = xp.zeros(n_slots + 1, np.int64)
        for _, (begin, end) in self._row_blocks():
            if begin < end:
                up_to[1:] += xp.bincount(self._slots[begin:end], minlength=n_slots)
        up_to = xp.cumsum(up_to)
        found: DeviceArray = xp.diff(up_to[self._layout.offsets])
        return found

    def bytes_of_all(self, n_rows: int, n_features: int) -> int | None:
        """Return None: there are no columns in which all features could be looked up."""
        return None

    def of_all_rows(self, place: Everywhere, shares: Sequence[DeviceLayout], *, sort_entries: bool,
                    all_features: DeviceLayout | None = None) -> SparseView:  # fmt: skip
        """Return the view of all rows with this GPU's share of the features, of those of all GPUs in their order;
        collective. `sort_entries` : as for a new view. `all_features` : None, see `bytes_of_all`."""
        assert all_features is None
        xp, own = self.runtime.xp, shares[place.joined.rank]
        indptr, slots = xp.zeros(place.n_rows + 1, np.int64), xp.empty(0, np.int32)
        of_features, first_slot = to_host(self.entries_of_features()), 0
        for layout in shares:
            first, n = layout.features
            told = xp.empty(int(of_features[first : first + n].sum()), np.int32)
            counts = self._take_entries(first_slot, layout.host.n_slots, told)
            first_slot += layout.host.n_slots
            ends = xp.zeros(place.n_rows + 1, np.int64)
            ends[1:] = xp.cumsum(place.spread(counts), dtype=np.int64)
            begin, n_entries = (int(each) for each in to_host(ends[xp.asarray([place.begin, place.n_rows])]))
            if layout is own:
                indptr, slots = ends, xp.empty(n_entries, np.int32)
            for at, block in Everywhere(self.runtime, place.joined, begin, n_entries).blocks(told):
                if layout is own:
                    slots[at : at + len(block)] = block
        return SparseView(own, indptr, slots, sort_entries=sort_entries)

    def _take_entries(self, low: int, n_slots: int, to: DeviceArray) -> DeviceArray:
        """Return how many slots of each row are among `n_slots` from `low` on, int32; `to` becomes these slots, counted
        from `low`; waits."""
        xp = self.runtime.xp
        counts, n_taken = xp.empty(len(self._indptr) - 1, np.int32), 0
        for (first, last), (begin, end) in self._row_blocks():
            slots = self._slots[begin:end] - np.int32(low)
            is_own = slots.view(np.uint32) < np.uint32(n_slots)
            before = xp.zeros(end - begin + 1, np.int64)
            before[1:] = xp.cumsum(is_own, dtype=np.int64)
            counts[first:last] = xp.diff(before[self._indptr[first : last + 1] - begin])
            taken = slots[is_own]
            to[n_taken : n_taken + len(taken)] = taken
            n_taken += len(taken)
        return counts

    def _row_blocks(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Give ranges of rows, and of their entries: so few at a time that temporary arrays of them are small."""
        xp, n_entries = self.runtime.xp, len(self._slots)
        goals = xp.asarray(np.arange(0, n_entries, BLOCK_BYTES // TAKING_BYTES))
        inner = to_host(xp.searchsorted(self._indptr, goals)).tolist()
        borders = sorted({0, *inner, len(self._indptr) - 1})
        ends = to_host(self._indptr[xp.asarray(borders)]).tolist()
        yield from zip(pairwise(borders), pairwise(ends), strict=True)

    @property
    def short_rows(self) -> ShortRows | None:
        return None

    def build(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray, *,
              adds: bool = False) -> None:  # fmt: skip
        if not adds:  # few of a node's slots have entries, and kernels add those that have
            out.fill(0)
        runtime, n_slots, small = self.runtime, self._layout.host.n_slots, small_data(pairs)
        n_rows, n_entries = len(self._indptr) - 1, max(len(self._slots), 1)
        rows = (self._indptr, self._slots, n_rows, n_slots)
        common = (*order_of(order), pairs, out.view(np.uint64))
        if self._fits:
            least_rows = LEAST_ENTRIES_PER_SLOT * n_slots * n_rows // n_entries
            # Any number, where rows have hardly any entries.
            least_tiles = min(max(1, least_rows // tiles.tile_rows), MOST_TILES // len(tiles.nodes))
            tiles = mapped(runtime, tiles, least_tiles)
            runtime.kernel("histogram_sparse", "add_shared", SMALL=small)(
                runtime.multiprocessors, BUILD_THREADS, *rows, least_tiles, *tiles.arguments, *common,
                shared_bytes=CELL_BYTES * n_slots,
            )  # fmt: skip
            return
        many_rows = np.iinfo(np.int64).max
        tiles = mapped(runtime, tiles) if tiles.starts is None else tiles
        if self._columns is not None:
            many_rows = self._columns.add_rows(tiles, order, pairs, out, small)
        runtime.kernel("histogram_sparse", "add_global", SMALL=small)(
            tiles.most, BUILD_THREADS, *rows, *tiles.arguments, many_rows, *common
        )


def order_of(order: DeviceArray | None) -> tuple[DeviceArray | None, int]:
    """Return an order as kernels take it which follow positions of several outputs: with its length, after which it
    begins again."""
    return order, 0 if order is None else len(order)


def small_data(pairs: DeviceArray) -> int:
    """Whether pairs are small data's, as kernels are told (`SMALL`)."""
    return int(pairs.itemsize == 8)


class SetMasks(NamedTuple):
    """Which sets of a tree list each slot of a histogram (`kernels/mask_sets.cu`): made when the tree is walked."""

    size: DeviceArray
    """Nodes of the tree; int32, shape (1,)."""
    words: DeviceArray
    """Room for a bit of each set and slot; uint32, shape (slots, MASK_WORDS)."""
    numbers: DeviceArray
    """Room for the number of each node's set; int32, shape (nodes,)."""

    def make(self, runtime: Runtime, view: GpuView, columns: WalkColumns) -> None:
        """Enqueue: they are those of the only tree of `columns`."""
        slot_offsets = view.symbols[-1]
        self.words.fill(0)
        runtime.kernel("mask_sets", "mask_lists")(
            -(-len(self.numbers) * WARP // WALK_THREADS), WALK_THREADS, self.size, columns.left, columns.feature,
            columns.split_bin, columns.sets, columns.arguments[-1], slot_offsets, *self.arguments,
        )  # fmt: skip

    @property
    def arguments(self) -> tuple[DeviceArray, DeviceArray]:
        """Masks and numbers as kernels take them."""
        return self.words, self.numbers


class WalkColumns(NamedTuple):
    """Trees as rows walk them, one row of nodes for each tree, or of a single tree without that axis."""

    left: DeviceArray
    """int32."""
    right: DeviceArray
    feature: DeviceArray
    split_bin: DeviceArray
    default_left: DeviceArray
    """uint8; this and what follows are C-contiguous where there are several trees."""
    value: DeviceArray
    """float32."""
    sets: DeviceArray | None = None
    """Lists of nodes that split by sets (`bin_lists.py`), int32, shape (..., nodes, width); None where none does."""
    masks: SetMasks | None = None
    """Room for the sets of one of the trees by slot; None where these are too many."""
    models: tuple[DeviceArray, DeviceArray] | None = None
    """Features, int32, and slopes, float32, of the models of leaves, shape (..., nodes, MOST_TERMS); None where leaves
    are constant."""

    @property
    def columns(self) -> tuple[DeviceArray, ...]:
        """All but the lists."""
        return self.left, self.right, self.feature, self.split_bin, self.default_left, self.value

    @classmethod
    def of(cls, columns: Iterable[DeviceArray], sets: DeviceArray | None = None,
           models: tuple[DeviceArray, DeviceArray] | None = None) -> WalkColumns:  # fmt: skip
        """Return trees of these columns, in their order."""
        left, right, feature, split_bin, default_left, value = columns
        return cls(left, right, feature, split_bin, default_left, value, sets, models=models)

    def tree(self, place: int) -> WalkColumns:
        """Return one of several trees."""
        return self._cut(lambda array: array[place])

    def alone(self) -> WalkColumns:
        """Return a single tree as the only one of several."""
        return self._cut(lambda array: array[None])

    def _cut(self, part: Callable[[DeviceArray], DeviceArray]) -> WalkColumns:
        """Return the trees with these parts of all arrays."""
        models = None if self.models is None else (part(self.models[0]), part(self.models[1]))
        return self.of(map(part, self.columns), None if self.sets is None else part(self.sets), models)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The columns as kernels take them."""
        return (*self.columns, self.sets, 0 if self.sets is None else self.sets.shape[-1])


def find_leaves(runtime: Runtime, view: GpuView, columns: WalkColumns, leaves: DeviceArray) -> None:
    """Find the leaf of every row of a tree on the device; `leaves` : int32, shape (rows,)."""
    _walk(runtime, view, columns.alone(), leaves[:, None], find=1)


def walk_trees(runtime: Runtime, view: GpuView, columns: WalkColumns, margin: DeviceArray) -> None:
    """Add the leaf values of several trees, or what their leaves' models give, to the margins of all rows, by bins, in
    one launch.

    `margin` : float32, shape (rows, trees), any stride.
    """
    if columns.models is None:
        _walk(runtime, view, columns, margin, find=0)
        return
    n, n_trees = margin.shape
    blocks = min(-(-n // WALK_THREADS), -(-runtime.multiprocessors * WALK_BLOCKS // n_trees))
    if n:
        runtime.kernel("walk_models", "walk_models", SYMBOL_BYTES=view.symbol_bytes)(
            blocks * n_trees, WALK_THREADS, *view.symbols, *columns.arguments, *columns.models, columns.left.shape[1],
            n, margin, element_stride(margin), n_trees, element_stride(columns.left), element_stride(margin.T),
        )  # fmt: skip


def _walk(runtime: Runtime, view: GpuView, columns: WalkColumns, out: DeviceArray, *, find: int) -> None:
    n, n_trees = out.shape
    if n == 0:
        return
    masks = columns.masks if view.symbol_bytes and not find and n_trees == 1 else None
    lists, short = 0 if columns.sets is None else 1 if masks is None else 2, view.short_rows
    if short is not None and not (short.rows.itemsize == 1 if lists == 2 else short.has_all and not lists):
        short = None
    if masks is not None:
        masks.make(runtime, view, columns)
    at_once = WALK_BLOCKS if masks is None else MASKED_WALK_BLOCKS
    blocks = min(-(-n // WALK_THREADS), -(-runtime.multiprocessors * at_once // n_trees))
    kernel = runtime.kernel(
        "walk", "walk", SYMBOL_BYTES=view.symbol_bytes, ROW_WORDS=0 if short is None else SECTOR_BYTES // 4, FIND=find,
        LISTS=lists,
    )  # fmt: skip
    rows = (None, 0, 0) if short is None else (short.rows.view(np.uint8), short.first, short.n_features)
    kernel(
        blocks * n_trees, WALK_THREADS, *view.symbols, *columns.arguments, *rows,
        *((None, None) if masks is None else masks.arguments), columns.left.shape[1], n, out, element_stride(out),
        n_trees, element_stride(columns.left), element_stride(out.T),
    )  # fmt: skip
