"""Key counts on a GPU: launches of `kernels/sketch.cu`, where the method is described.

The numbers are those of `devices/cpu/sketch.py`, which sorts. Here the tree of occupied cells grows level by level:

    20 bits  ->  more cells than the capacity?  -> the resolution is known, among the first 20 bits
             ->  else 12 or 6 bits more  -> ... -> 32 bits: every cell is one value

Between levels, 33 numbers per series come to the host, which decides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.quantize.bins import THREADS, Matrix
from daskboost.devices.gpu.runtime.launches import DeviceArray, KernelArgument, Runtime, to_device, to_host
from daskboost.devices.gpu.runtime.stretches import stretches, true_places
from daskboost.devices.gpu.runtime.transfers import Download
from daskboost.dtypes import ArrayModule, Bool, Int32, Int64, UInt8, UInt32

KEY_BITS = 32
FIRST_BITS = 20
"""A bitmap of 128 KB per series: data of many values mostly has over 2**14 cells at 18 to 20 bits."""
NEXT_BITS, MORE_NEXT_BITS = 6, 12
"""Below every cell of the level above; the larger where that takes at most `MORE_CELLS` of them, 4 MB."""
MORE_CELLS = 1 << 12
MOST_LEVELS = 3
"""Most levels of bitmaps, as in `kernels/sketch.cu`."""
BATCH_SERIES = 64
"""Series counted together: 40 MB of bitmaps and ranks on the first level, and a row's part of two lines of cache."""
BATCH_ENTRY_SERIES = 512
"""Series of entries in a batch; every batch reads all entries."""
SERIES_BYTES = 20 << 20
"""What a series of at most 2**18 cells may take: 2**24 bits below the cells of a level as marks, counts and ranks, and
as words twice as long, which join those of the level above."""
ALIGNMENT = 16
"""Bytes at whose multiples arrays begin that are copied to the device together."""
SAMPLED = 64
"""One row in so many is looked at first, so that most bits and bounds are there when all threads start."""


@dataclass(frozen=True)
class Entries:
    """Entries of CSR rows: feature (int32) and value (float32) of each, none of them missing."""

    indices: DeviceArray
    values: DeviceArray
    n_features: int


@dataclass(frozen=True)
class Block:
    """Rows that are counted: their values, and int64 weights, one per row (of entries, one per entry), or None for
    ones. Rows of weight 0 are left out."""

    values: Matrix | Entries
    weights: DeviceArray | None = None

    @property
    def n_rows(self) -> int:
        """Return the rows, of entries their number."""
        return len(self.values.values)

    def sampled(self, runtime: Runtime) -> Block | None:
        """Return some of the rows of a matrix that has many; else None."""
        if not isinstance(self.values, Matrix) or self.n_rows <= SAMPLED * THREADS:
            return None
        weights = None if self.weights is None else runtime.xp.ascontiguousarray(self.weights[::SAMPLED])
        return Block(Matrix(self.values.values[::SAMPLED], self.values.missing), weights)


@dataclass(frozen=True)
class Intervals:
    """Keys to count, for each series a sorted run of `lower <= key <= upper`; on the host."""

    offsets: Int64
    lower: UInt32
    upper: UInt32

    def of(self, series: Int64) -> Intervals:
        """Return the intervals of some series."""
        lengths = np.diff(self.offsets)[series]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][series] - offsets[:-1], lengths)
        return Intervals(offsets, self.lower[places], self.upper[places])


@dataclass(frozen=True)
class Counted:
    """Cells of some series in order, as `KeyTable` has them; on the host."""

    bits: UInt8
    lengths: Int64
    lower: UInt32
    upper: UInt32
    counts: Int64


def joined(first: Counted, second: Counted, in_first: Bool) -> Counted:
    """Series of two counts in one order; `in_first` says whose turn it is, shape (series,)."""
    lengths = np.empty(len(in_first), np.int64)
    lengths[in_first], lengths[~in_first] = first.lengths, second.lengths
    starts, n = np.cumsum(lengths) - lengths, int(lengths.sum())
    bits, ends, counts = np.empty(len(lengths), np.uint8), np.empty((2, n), np.uint32), np.empty(n, np.int64)
    found = Counted(bits, lengths, ends[0], ends[1], counts)
    for part, own in ((first, in_first), (second, ~in_first)):
        found.bits[own] = part.bits
        moved = starts[own] - (np.cumsum(part.lengths) - part.lengths)
        places = np.repeat(moved, part.lengths) + np.arange(len(part.lower))
        for to, given in ((found.lower, part.lower), (found.upper, part.upper), (found.counts, part.counts)):
            to[places] = given
    return found


def count_keys(runtime: Runtime, blocks: Sequence[Block], columns: Int64, capacities: Int64,
               intervals: Intervals | None = None, scratch_bytes: int = sys.maxsize, threads: int = 1
               ) -> Counted:  # fmt: skip
    """Count the keys of some columns in as fine cells as their capacities allow.

    Parameters
    ----------
    blocks : sequence of Block
        Rows that are counted together, one block at least; either all matrices or all entries.
    columns, capacities : int64 arrays, shape (series,)
    intervals : Intervals, optional
        Of the series; other keys are left out.
    scratch_bytes : int, optional
        What may be used of the device's memory: with less, fewer series are counted at a time.
    threads : int, default 1
        That may copy cells to the host.
    """
    step = BATCH_SERIES if isinstance(blocks[0].values, Matrix) else BATCH_ENTRY_SERIES
    larger = max(1, int(capacities.max(initial=0)) >> 18)
    step = max(1, min(step, scratch_bytes // (SERIES_BYTES * larger)))
    batches = (  # one after the other: each has freed its bitmaps when the next begins
        _Batch(runtime, blocks, columns[at], capacities[at], None if intervals is None else intervals.of(at))
        for at in np.split(np.arange(len(columns)), range(step, len(columns), step))
    )
    n_rows, n_values = (sum(sizes) for sizes in zip(*((b.n_rows, b.values.values.size) for b in blocks), strict=True))
    most = min(int(np.minimum(capacities, n_rows).sum()), n_values)
    # Room for all batches, so that their cells need not be put together; the host has pages only for what is written.
    lower, upper, counts = np.empty(most, np.uint32), np.empty(most, np.uint32), np.empty(most, np.int64)
    bits, lengths, end = [], [], 0
    coming: Download | None = None
    for batch in batches:
        found = batch.count()
        begin, end = end, end + len(found[0])
        rooms = lower[begin:end], upper[begin:end], counts[begin:end]
        if coming is not None:  # beside which this batch was counted
            coming.wait()
        coming = Download(runtime, list(zip(found, rooms, strict=True)), threads)
        bits.append(batch.bits)
        lengths.append(batch.lengths)
        del found
    if coming is not None:
        coming.wait()
    return Counted(np.concatenate(bits), np.concatenate(lengths), lower[:end], upper[:end], counts[:end])


class _Batch:
    """Some series, counted together."""

    def __init__(self, runtime: Runtime, blocks: Sequence[Block], columns: Int64, capacities: Int64,
                 intervals: Intervals | None) -> None:  # fmt: skip
        n = len(columns)
        self._runtime, self._blocks, self._columns, self._capacities = runtime, blocks, columns, capacities
        self._intervals = intervals
        self._widths, self._starts = np.zeros((n, MOST_LEVELS), np.int32), np.zeros((n, MOST_LEVELS), np.int64)
        self._depths, self.lengths = np.zeros(n, np.int32), np.zeros(n, np.int64)
        """Levels and, once counted, cells of each series."""
        self.bits = np.full(n, KEY_BITS, np.uint8)
        """The resolution of each series."""
        self._words = runtime.xp.zeros(0, np.uint64)
        self._everything = self._selection(np.arange(n))

    def count(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Find the cells, then add all values to them: the least key of each, the greatest, and the count."""
        self._find_cells()
        xp, n = self._runtime.xp, int(self.lengths.sum())
        bounds, counts, ends = xp.zeros(n, np.uint64), xp.zeros(n, np.uint64), xp.empty((2, n), np.uint32)
        if n:
            offsets = np.cumsum(self.lengths) - self.lengths
            tree = (self._words, *self._upload(self._starts, self._widths, self._depths, offsets))
            for block in self._blocks:
                self._launch("count", block, self._everything, *tree, bounds, counts)
            self._simple("part_bounds", n, bounds, n, ends[0], ends[1])
        return ends[0], ends[1], counts.view(np.int64)

    def _find_cells(self) -> None:
        """Grow the trees until every resolution is known."""
        series, selection = np.arange(len(self._columns)), self._everything
        above = np.ones(len(series), np.int64)  # cells of the level above, and where they are listed
        reached, width = np.zeros(len(series), np.int32), np.full(len(series), FIRST_BITS, np.int32)
        parents, parent_offsets = None, np.zeros(len(series), np.int64)
        for level in range(MOST_LEVELS):
            self._widths[series, level] = width
            bits = reached + width
            bitmap, listed = self._bitmap(series, level, above, parent_offsets, width, bits)
            self._mark_values(selection, level, bitmap)
            ranks = self._ranks(bitmap)
            lengths = self._cells_of(bitmap, ranks)
            cells = self._list(bitmap, ranks, int(lengths.sum()), parents, listed)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            occupied = self._occupied(cells, offsets, lengths)
            done, resolution = _resolutions(occupied, lengths, bits, self._capacities[series])
            self._widths[series[done], level] = np.minimum(resolution, bits)[done] - reached[done]
            if (self._widths[series, level] != width).any():
                bitmap, (cell_offsets,) = self._bitmap(series, level, above, offsets)
                self._mark_cells(level, bitmap, cells, cell_offsets)
                ranks = self._ranks(bitmap)
            self._keep(series, level, bitmap, ranks)
            self.bits[series[done]] = resolution[done]
            self.lengths[series[done]] = occupied[done, np.minimum(resolution, bits)[done]]
            self._depths[series] = level + 1
            if done.all():
                return
            series, reached, above = series[~done], bits[~done], lengths[~done]
            if done.any():
                selection = self._selection(series)
            parents, parent_offsets = cells, offsets[:-1][~done]
            width = np.where(above <= MORE_CELLS, MORE_NEXT_BITS, NEXT_BITS).astype(np.int32)
            width = np.minimum(width, KEY_BITS - reached).astype(np.int32)
        raise AssertionError("the levels do not reach all bits of a key")

    def _bitmap(self, series: Int64, level: int, above: Int64, *beside: npt.NDArray[np.signedinteger]
                ) -> tuple[_Bitmap, tuple[DeviceArray, ...]]:  # fmt: skip
        """Room for a bit below every cell of the level above; and what else is to be uploaded."""
        sizes = -(-(above << self._widths[series, level].astype(np.int64)) // 32)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._starts[series, level] = offsets[:-1]
        there, starts, widths, *rest = self._upload(offsets, self._starts[series], self._widths[series], *beside)
        marks = self._runtime.xp.zeros(int(offsets[-1]), np.uint32)
        return _Bitmap(marks, offsets, there, starts, widths), tuple(rest)

    def _selection(self, series: Int64) -> _Selection:
        """Some series as kernels that read values take them."""
        intervals, columns = self._intervals, self._columns[series]
        if not isinstance(self._blocks[0].values, Matrix):
            series_of = np.full(self._blocks[0].values.n_features, -1, np.int32)
            series_of[columns] = np.arange(len(series))
            columns = series_of.astype(np.int64)
        own = None if intervals is None else intervals.of(series)
        selected = () if own is None else (own.offsets, own.lower, own.upper)
        return _Selection(len(series), *self._upload(columns.astype(np.int32), *selected))

    def _mark_values(self, selection: _Selection, level: int, bitmap: _Bitmap) -> None:
        sampled = [block.sampled(self._runtime) for block in self._blocks]
        for block in (*sampled, *self._blocks):
            if block is not None:
                self._launch("mark", block, selection, self._words, bitmap.starts, bitmap.widths, level, bitmap.marks)

    def _launch(self, entry: str, block: Block, selection: _Selection, *arguments: KernelArgument) -> None:
        """Launch a kernel over a block's values of some series."""
        source, columns = block.values, selection.columns
        all_arguments = (block.weights, selection.offsets, selection.lower, selection.upper, *arguments)
        if isinstance(source, Matrix):
            kernel = self._runtime.kernel("sketch", entry, SOURCE=0)
            source.launch(self._runtime, kernel, columns, selection.n_series, *all_arguments)
        elif n := block.n_rows:
            self._runtime.kernel("sketch", entry, SOURCE=1)(
                self._blocks_of(n), THREADS, source.values, source.indices, columns, n, *all_arguments
            )

    def _mark_cells(self, level: int, bitmap: _Bitmap, cells: DeviceArray, offsets: DeviceArray) -> None:
        """Mark from a finer level's cells."""
        if n := len(cells):
            self._runtime.kernel("sketch", "mark", SOURCE=2)(
                self._blocks_of(n), THREADS, cells, offsets, bitmap.n_series, n, None, None, None, None, self._words,
                bitmap.starts, bitmap.widths, level, bitmap.marks,
            )  # fmt: skip

    def _ranks(self, bitmap: _Bitmap) -> DeviceArray:
        """Marked bits up to and with each word."""
        runtime, n = self._runtime, len(bitmap.marks)
        blocks, block_words = stretches(runtime, n)
        counts, ranks = runtime.xp.empty(blocks, np.uint32), runtime.xp.empty(n, np.uint32)
        words = (bitmap.marks, n, block_words, counts)
        runtime.kernel("sketch", "count_bits", SOURCE=2)(blocks, THREADS, *words)
        runtime.kernel("sketch", "rank_bits", SOURCE=2)(blocks, THREADS, *words, ranks)
        return ranks

    def _cells_of(self, bitmap: _Bitmap, ranks: DeviceArray) -> Int64:
        """Marked bits of each series, on the host."""
        n = bitmap.n_series
        ends = self._runtime.xp.empty(n, np.uint32)
        self._simple("pick_ends", n, ranks, bitmap.on_device, n, ends)
        found: Int64 = np.concatenate([[0], to_host(ends)]).astype(np.int64)
        return found[1:] - found[:-1]

    def _list(self, bitmap: _Bitmap, ranks: DeviceArray, n_cells: int, parents: DeviceArray | None,
              listed: tuple[DeviceArray, ...]) -> DeviceArray:  # fmt: skip
        """The marked cells of all series in order, as the least keys that they could hold.

        `listed` : where the cells above are listed, this level's bits, and those of keys down to it, of each series.
        """
        cells, n = self._runtime.xp.empty(n_cells, np.uint32), len(bitmap.marks)
        self._simple(
            "list_cells", n, bitmap.marks, ranks, n, bitmap.on_device, bitmap.n_series, parents, *listed, cells
        )
        return cells

    def _occupied(self, cells: DeviceArray, offsets: Int64, lengths: Int64) -> Int64:
        """How many cells are occupied at each resolution from 0 to 32; int64, shape (series, 33)."""
        differences = self._runtime.xp.zeros((len(lengths), KEY_BITS), np.uint32)
        if len(cells):
            self._simple(
                "count_differences", len(cells), cells, len(cells), *self._upload(offsets), len(lengths), differences
            )
        occupied = np.zeros((len(lengths), KEY_BITS + 1), np.int64)
        occupied[:, 1:] = np.cumsum(to_host(differences), axis=1)
        occupied[lengths > 0] += 1
        return occupied

    def _keep(self, series: Int64, level: int, bitmap: _Bitmap, ranks: DeviceArray) -> None:
        """Put a finished level beside those above it."""
        n, n_above = len(bitmap.marks), len(self._words)
        words = self._runtime.xp.empty(n_above + n, np.uint64)
        words[:n_above] = self._words
        self._simple("make_words", n, bitmap.marks, ranks, n, bitmap.on_device, len(series), words[n_above:])
        self._starts[series, level] = n_above + bitmap.offsets[:-1]
        self._words = words

    def _simple(self, entry: str, n: int, *arguments: KernelArgument) -> None:
        """Launch a thread for each of `n` things."""
        self._runtime.kernel("sketch", entry, SOURCE=2)(-(-n // THREADS), THREADS, *arguments)

    def _blocks_of(self, n: int) -> int:
        return min(-(-n // THREADS), 64 * self._runtime.multiprocessors)

    def _upload(self, *arrays: npt.NDArray[np.integer]) -> tuple[DeviceArray, ...]:
        """Arrays on the device, copied there at once: each copy takes the host as long as a launch."""
        edges = list(accumulate((-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays), initial=0))
        packed = np.empty(edges[-1], np.uint8)
        places = [slice(begin, begin + array.nbytes) for begin, array in zip(edges, arrays, strict=False)]
        for place, array in zip(places, arrays, strict=True):
            packed[place] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = to_device(self._runtime, packed)
        return tuple(there[place].view(array.dtype) for place, array in zip(places, arrays, strict=True))


@dataclass(frozen=True)
class _Bitmap:
    """One level's bits of some series."""

    marks: DeviceArray
    offsets: Int64
    """First word of each series, and the end."""
    on_device: DeviceArray
    starts: DeviceArray
    """First words of the levels of each series, this one's in `marks`."""
    widths: DeviceArray

    @property
    def n_series(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class _Selection:
    """Some series on the device: their columns of a matrix, or the series of each feature of entries; and intervals."""

    n_series: int
    columns: DeviceArray
    offsets: DeviceArray | None = None
    lower: DeviceArray | None = None
    upper: DeviceArray | None = None


def _resolutions(occupied: Int64, lengths: Int64, bits: Int32, capacities: Int64) -> tuple[Bool, Int32]:
    """Whether each series' resolution is known once `bits` of its keys are, and which it is then."""
    fitting = (occupied <= capacities[:, None]).sum(axis=1).astype(np.int32) - 1
    exact = (bits == KEY_BITS) | (lengths == 0)
    known = exact | (lengths > capacities)
    return known, np.where((lengths <= capacities) & exact, KEY_BITS, fitting).astype(np.int32)


# Key counts of sparse features of few entries on a GPU: those of many of them are sorted together.
#
# A feature of no more entries than its capacity has a cell for each of its values, whatever they are. So there is no
# resolution to be found, for which `sketch.py` takes some hundred features at a time and reads all entries each time.
# Groups of features have up to `MOST_ENTRIES`, and no more than there is room for. Where the largest feature has no
# room alone, none is counted so: `data/cuts/sketch.py` leaves all to `sketch.py`, and says what room is where nobody
# does.

ENTRY_BYTES = 80
"""Bytes of an entry while it is sorted: its place, word and weight, copies that sorting makes, and what becomes of
it."""
MOST_ENTRIES = 1 << 24
"""Entries sorted in one batch: larger ones are no faster per entry, and these take 1.3 GB."""
LOOKED_UP_BYTES = 6
"""Bytes of any entry: its series, and whether it is sorted."""


def count_thin(runtime: Runtime, source: Entries, columns: Int64, present: Int64, room_bytes: int,
               weights: DeviceArray | None = None, threads: int = 1) -> Counted:  # fmt: skip
    """Count the keys of columns that have at most as many entries as cells; a series each.

    Parameters
    ----------
    columns, present : int64 arrays, shape (series,)
        Columns and their entries, those of weight 0 among them.
    room_bytes : int
        Of device memory, what counting may use: `least_bytes` or more.
    weights, threads
        See `sketch.count_keys`.
    """
    total = int(present.sum())
    lower, counts = np.empty(total, np.uint32), np.empty(total, np.int64)
    lengths, end = np.zeros(len(columns), np.int64), 0
    series_of = np.full(source.n_features, -1, np.int32)
    series_of[columns] = np.arange(len(columns))
    series = to_device(runtime, series_of)[source.indices]
    most = min(MOST_ENTRIES, (room_bytes - LOOKED_UP_BYTES * len(source.values)) // ENTRY_BYTES)
    for own in _groups(present, most):
        words, sums = _cells(runtime, source, series, own, weights)
        edges = own.start + runtime.xp.arange(own.stop + 1 - own.start, dtype=np.int64) << KEY_BITS
        lengths[own] = np.diff(to_host(runtime.xp.searchsorted(words, edges)))
        begin, end = end, end + len(words)
        keys = (words & 0xFFFFFFFF).astype(np.uint32)
        Download(runtime, [(keys, lower[begin:end]), (sums, counts[begin:end])], threads).wait()
        del words, keys, sums
    bits = np.full(len(columns), KEY_BITS, np.uint8)
    return Counted(bits, lengths, lower[:end], lower[:end].copy(), counts[:end])


def least_bytes(n_entries: int, present: Int64) -> int:
    """Return the bytes of device memory that counting takes with the largest series alone."""
    return LOOKED_UP_BYTES * n_entries + ENTRY_BYTES * int(present.max(initial=0))


def _groups(present: Int64, most: int) -> Iterator[slice]:
    """Series of up to so many entries, which are sorted together; at least one."""
    ends, begin = np.cumsum(present), 0
    while begin < len(present):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(begin, end)
        begin = end


def _cells(
    runtime: Runtime, source: Entries, series: DeviceArray, own: slice, weights: DeviceArray | None
) -> tuple[DeviceArray, DeviceArray]:
    """Series and key of each cell of a group, as one word, in order, and what is counted in it; int64."""
    xp = runtime.xp
    wanted = series >= own.start
    wanted &= series < own.stop
    if weights is not None:
        wanted &= weights > 0
    places = true_places(runtime, wanted)
    del wanted
    words = series[places].astype(np.int64) << KEY_BITS
    words |= _keys(xp, source.values[places])
    if weights is None:
        words.sort()
    else:
        order = xp.argsort(words)
        words, up_to = words[order], xp.cumsum(weights[places[order]])
    del places
    is_last = xp.concatenate([words[1:] != words[:-1], xp.ones(min(len(words), 1), np.bool_)])
    ends = true_places(runtime, is_last)
    last = ends + 1 if weights is None else up_to[ends]
    sums = last.copy()
    sums[1:] -= last[:-1]
    return words[ends], sums


def _keys(xp: ArrayModule, values: DeviceArray) -> DeviceArray:
    """Return keys as `kernels/keys.cuh` makes them; by bits alone, since expressions of CuPy take values below 2**-126
    for 0."""
    bits = values.view(np.uint32).astype(np.int64)
    bits = xp.where(bits == 0x80000000, 0, bits)  # -0
    return xp.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
