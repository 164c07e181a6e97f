"""Which features a block's shared memory holds the histograms of.

A block of the histogram kernel (`kernels/histogram.cu`) adds rows to the bins of a group of neighbouring features. Of a
row, a group's symbols lie side by side, and each group's rows follow one another, a "plane": what a group reads is
dense in memory.

    features   0 ... 31 with 256 bins   32 ... 37 with 200   or, of 2 bytes:   0 ... 7 with 1,000   8 with 60,000
    groups     one of 32 columns        one of 8 columns                       one of 8 columns     three of 1 column
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime
from daskboost.dtypes import Int32, Int64

# Nodes' rows cut into tiles, the work of one block each (`kernels/tiles.cuh`). Sizes never leave the GPU.

THREADS = 1024
"""Threads of a block, as in `kernels/tiles.cu`."""
MOST_COUNTED = 1024
"""Segments whose tiles a block counts itself (`kernels/block_tile.cuh`); a map costs less than counting more."""
LEAST_TILE_ROWS = 1024
"""Four warps with eight rows per thread, as `kernels/partition.cu` and `margins.cu` take them."""
MOST_TILE_ROWS = 1 << 15
"""Bounds the flags of tiles that are mostly empty."""
TILES_PER_PROCESSOR = 24
"""Two or three rounds of the blocks that run at the same time."""


@dataclass(frozen=True)
class Tiles:
    """The tiles of some nodes' segments."""

    bounds: DeviceArray
    """Segment of each tree node; int64, shape (nodes of the tree, 2)."""
    nodes: DeviceArray
    """int32, shape (segments,); -1 has no rows."""
    starts: DeviceArray | None
    """Tiles before each segment; int32, shape (segments + 1,). None where blocks count tiles themselves, and where the
    map is still to be made."""
    tile_rows: int
    most: int
    """At most so many tiles: a grid of as many blocks, of which some may find nothing to do."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The tiles as kernels take them whose tiles have `tile_rows` rows at run time."""
        return (self.bounds, self.nodes, self.starts, len(self.nodes), self.tile_rows)


def cut_tiles(bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """Cut the segments of `nodes`, which have at most `n_rows` rows together; the map is still to be made."""
    return Tiles(bounds, nodes, None, tile_rows, n_rows // tile_rows + len(nodes))


def with_room(runtime: Runtime, tiles: Tiles) -> Tiles:
    """Return the same tiles with memory of their own for a map, of any content."""
    return replace(tiles, starts=runtime.xp.empty(len(tiles.nodes) + 1, np.int32))


def make_map(runtime: Runtime, tiles: Tiles, lead: int = 0) -> None:
    """Enqueue: `starts` becomes the map, with `lead` tiles before the rows of each node (`kernels/shares.cuh`)."""
    runtime.kernel("tiles", "map_tiles")(
        1, THREADS, tiles.bounds, tiles.nodes, len(tiles.nodes), tiles.tile_rows, lead, tiles.starts
    )


def mapped(runtime: Runtime, tiles: Tiles, lead: int = 0) -> Tiles:
    """Return the same tiles with a map of their own of that `lead`."""
    found = with_room(runtime, tiles)
    make_map(runtime, found, lead)
    return found


def map_tiles(runtime: Runtime, bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """Return what `cut_tiles` does, with the map."""
    return mapped(runtime, cut_tiles(bounds, nodes, tile_rows, n_rows))


def count_tiles(runtime: Runtime, bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """The same for kernels that take their tile from `tile_of_block`, which need a map of many segments only."""
    if len(nodes) > MOST_COUNTED:
        return map_tiles(runtime, bounds, nodes, tile_rows, n_rows)
    return cut_tiles(bounds, nodes, tile_rows, n_rows)


def rows_per_tile(runtime: Runtime, n_rows: int) -> int:
    """Return the rows of a tile of kernels that touch each row once: a power of two; so many tiles that the GPU is busy
    to the end.

    And no more: a block that moves rows reads the counts of all tiles of its segment. It follows from the rows of the
    chunk alone, so that the memory that tiles need grows with the segments.
    """
    return rows_of_tile(runtime.multiprocessors, n_rows)


def rows_of_tile(multiprocessors: int, n_rows: int) -> int:
    """Return `rows_per_tile` of a GPU with so many multiprocessors."""
    rows = n_rows // (multiprocessors * TILES_PER_PROCESSOR)
    return min(max(1 << rows.bit_length(), LEAST_TILE_ROWS), MOST_TILE_ROWS)


MOST_COLUMNS = 32
"""The banks of shared memory."""
IDLE_SYMBOLS = 1 << 25
"""Symbols of idle columns, those of all rows, that a group may have rather than be a narrower one: at the 2.8e12 a
second that histograms add they take 12 us, about as long as the two launches at each level that groups of another width
take."""
LEAST_COLUMNS = {1: 4, 2: 1}
"""By bytes of a symbol: as the kernel is compiled."""
CELL_BYTES = 8
"""32 bits for g and 32 for h."""
NARROW_BIN_BYTES = MOST_COLUMNS * CELL_BYTES
"""Bytes of a bin in a group of symbols of one byte: columns fewer than banks have several cells each."""
MOST_GROUP_BYTES = 160 * 1024
"""Bytes of shared memory, where there is so much: the rest of a multiprocessor's is the cache that rows are read
through."""


SKEWED_COLUMNS = (20, 24, 28)
"""Columns that `kernels/skewed.cuh` is compiled for."""
SKEWED_BINS = (64, 128, 256)
"""Largest numbers of bins that kernels with skewed columns come for, as there."""
SKEWED_BIN_BYTES = 2 * NARROW_BIN_BYTES
"""Bytes of a bin, as there: most columns have two cells."""


@dataclass(frozen=True)
class FeatureGroups:
    """Groups of equal width, one launch."""

    columns: int
    """Columns of a group, a power of two."""
    groups: Int32
    """int32, shape (groups, 5): plane, first feature, features, first bin, most bins from there on of one of them."""
    shared_bytes: int
    """What a block needs."""
    symbol_bytes: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a plane."""
        return self.columns * self.symbol_bytes

    @property
    def is_of_wide_bytes(self) -> bool:
        """Whether groups are as wide as they come, of symbols of one byte."""
        return (self.symbol_bytes, self.columns) == (1, MOST_COLUMNS)

    @property
    def n_planes(self) -> int:
        return int(self.groups[-1, 0]) + 1

    @property
    def most_bins(self) -> int:
        return int(self.groups[:, 4].max())

    def skewed(self, shared_bytes: int) -> tuple[int, int] | None:
        """Columns and bins of the kernel for rows in order; None where groups do not fit it, or are full."""
        if not self.is_of_wide_bytes:
            return None
        return skewed_shape(int(self.groups[:, 2].max()), self.most_bins, shared_bytes)


def skewed_shape(n_features: int, most_bins: int, shared_bytes: int) -> tuple[int, int] | None:
    """The same of groups of symbols of one byte, MOST_COLUMNS wide, that have so many features and bins at most."""
    columns = min((c for c in SKEWED_COLUMNS if c >= n_features), default=0)
    bins = min((b for b in SKEWED_BINS if b >= most_bins), default=0)
    return (columns, bins) if columns and bins and bins * SKEWED_BIN_BYTES <= shared_bytes else None


MOST_BYTE_SLOTS = 256
"""Most slots of a feature whose symbols fit a byte."""


def room_bytes(shared_bytes: int | None) -> int:
    """What the histograms of a block may take of its shared memory; that of a GPU that is not there, None, is taken to
    be enough for MOST_GROUP_BYTES, as those of data centers have (sm_80, 90 and 100)."""
    return MOST_GROUP_BYTES if shared_bytes is None else min(shared_bytes, MOST_GROUP_BYTES)


def row_columns(n_features: int, symbol_bytes: int) -> int:
    """Columns of all groups together, at most: where bins are many, narrower groups have fewer columns to spare."""
    rest = n_features % MOST_COLUMNS
    columns = max(1 << (rest - 1).bit_length(), LEAST_COLUMNS[symbol_bytes]) if rest else 0
    return n_features - rest + columns


def runs_of_width(slots: Int64, symbol_bytes: int, *, mixes: bool) -> list[tuple[int, int, int]]:
    """Return neighbouring features whose symbols take as many bytes: the first, the one behind the last, and bytes.

    Where widths mix, features of few slots have symbols of one byte, whatever others need.
    """
    if not mixes:
        return [(0, len(slots), symbol_bytes)]
    widths = np.where(slots > MOST_BYTE_SLOTS, symbol_bytes, 1)
    borders = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(slots)]
    return [(first, last, int(widths[first])) for first, last in pairwise(borders) if first < last]


def feature_groups(slots: Int64, symbol_bytes: int, shared_bytes: int, most_idle: int = 0, *, mixes: bool = False
                   ) -> list[FeatureGroups]:  # fmt: skip
    """Divide features with so many histogram slots each, on a device whose blocks may have so much shared memory.

    Groups are as wide as shared memory allows. The last features get a narrower one where half of it would be empty,
    since columns without a feature take as long as others: unless there are wide groups and it has at most `most_idle`
    of them. With `mixes`, features of at most 256 slots are in groups of symbols of one byte (`runs_of_width`).
    """
    limit = room_bytes(shared_bytes)
    found: dict[tuple[int, int], list[list[int]]] = {}

    def bin_bytes(columns: int, n_bytes: int) -> int:
        return NARROW_BIN_BYTES if n_bytes == 1 else columns * CELL_BYTES

    def divide(first: int, columns: int, run: tuple[int, int, int]) -> None:
        begin, end, n_bytes = run
        own = slots[first : min(first + columns, end)]
        if not len(own):
            return
        if columns > LEAST_COLUMNS[n_bytes]:
            is_last = first > begin and columns == MOST_COLUMNS and columns - len(own) <= most_idle
            if (len(own) <= columns // 2 and not is_last) or int(own.max()) * bin_bytes(columns, n_bytes) > limit:
                divide(first, columns // 2, run)
                divide(first + columns // 2, columns // 2, run)
                return
        widest, most = int(own.max()), limit // bin_bytes(columns, n_bytes)
        groups = found.setdefault((columns, n_bytes), [])
        plane = groups[-1][0] + 1 if groups else 0
        groups.extend([plane, first, len(own), low, min(widest - low, most)] for low in range(0, widest, most))

    for run in runs_of_width(slots, symbol_bytes, mixes=mixes):
        for first in range(run[0], run[1], MOST_COLUMNS):
            divide(first, MOST_COLUMNS, run)
    made = [
        FeatureGroups(
            columns, np.array(groups, np.int32), max(own[4] for own in groups) * bin_bytes(columns, n_bytes), n_bytes
        )
        for (columns, n_bytes), groups in found.items()
    ]
    return sorted(made, key=lambda each: (each.row_bytes, each.columns), reverse=True)


def mixed_row_bytes(slots: Int64) -> int:
    """Return the bytes of a row of symbols of two bytes, or of one where a feature has few slots, at most; 0 where all
    have as many bytes, so that nothing is mixed."""
    runs = runs_of_width(slots, 2, mixes=True)
    widths = {n_bytes for _, _, n_bytes in runs}
    return sum(n_bytes * row_columns(last - first, n_bytes) for first, last, n_bytes in runs) if len(widths) > 1 else 0
