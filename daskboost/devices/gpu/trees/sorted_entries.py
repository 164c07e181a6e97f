"""CSR entries in the order of their slots, for the search of `kernels/split_entries.cu`.

Trees that are searched so need no histograms. What the search takes does not depend on how many cells these would have,
but on entries alone: it pays for wide data, most of whose cells are empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_host
from daskboost.devices.gpu.trees.sparse_columns import state_words
from daskboost.dtypes import Int64

THREADS = 256
"""Threads of a block, as in `kernels/entry_tile.cuh`."""
ITEMS = 8
"""Entries of a thread, as there."""
TILE = THREADS * ITEMS
MOST_ENTRIES = (1 << 31) - 1
"""CuPy's running sums count by 32 bits."""
MOST_FEATURES = (1 << 16) - 1
"""Most features of a tile, which numbers them by 16 bits."""
MOST_NODES = 1 << 10
"""Most nodes of a level: their counts by warp take shared memory."""
ENTRY_BYTES = 10
"""Bytes of row, slot and feature."""
SORTING_BYTES = 7
"""Bytes of memory per entry while the copy is made, beside the copy: words of 8 bytes twice, and what sorting
counts."""
SORTING_FEATURE_BYTES = 12
"""Bytes of a feature, once entries are in order: its last slot and its last entry."""
TILE_BYTES = 6 * 8
"""Bytes of `EntryTile`."""
SORTING_SHARE, LEAST_SORTING = 16, 1 << 13
"""Sorting words takes as many beside them, this part more, and so many of any: a piece that was free may be cut, and
one that is a little too small is no use."""
CELLS_PER_ENTRY = 4
"""Least cells of the histograms of all nodes per entry, for each time that all entries are searched, at least: with
fewer cells histograms are the faster way."""
LEAST_CELLS = 1 << 22
"""The same whatever the entries: 64 MB of sums, which is about what caches hold."""


class SortedEntries:
    """Entries by slot, then by row, and tiles of them.

    Parameters
    ----------
    runtime : Runtime
    offsets : int64 array on the host, shape (features + 1,)
        First slot of each feature.
    indptr, slots : int64 and int32 arrays on the device
        CSR rows, with at least one entry.
    """

    def __init__(self, runtime: Runtime, offsets: Int64, indptr: DeviceArray, slots: DeviceArray) -> None:
        xp = runtime.xp
        self.rows, self.slots = _sorted(runtime, indptr, slots)
        self.n_rows = len(indptr) - 1
        ends = to_host(xp.searchsorted(self.slots, xp.asarray(offsets[1:].astype(np.int32)), side="left"))
        tiles = entry_tiles(ends)
        slices = np.flatnonzero(tiles[:, 4] >= 0)
        self.n_tiles, self.n_slices = len(tiles), len(slices)
        self.tiles, self.slices = xp.asarray(tiles), xp.asarray(slices.astype(np.int32))
        self.features = _features_in_tiles(xp, ends, tiles)
        spans = _spans(tiles[slices])
        self.n_spans, self.spans = len(spans), xp.asarray(spans)
        self.n_sums = self.n_slices + self.n_spans
        """Rows of sums: of slices, and of all slices of each feature that has some."""
        self.states = xp.empty(state_words(self.n_rows), np.int64)
        """Pair and node of each row."""

    @property
    def nbytes(self) -> int:
        arrays = (self.rows, self.slots, self.features, self.states, self.tiles, self.slices, self.spans)
        return sum(int(array.nbytes) for array in arrays)


def _sorted(runtime: Runtime, indptr: DeviceArray, slots: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Rows (uint32) and slots (int32) of entries in order: halves of words that are sorted. One piece of memory has
    first their places, then the slots, then what sorting takes, then both halves."""
    xp, n = runtime.xp, len(slots)
    room = n + n // SORTING_SHARE + LEAST_SORTING
    words = xp.searchsorted(indptr, xp.arange(room, dtype=np.int64)[:n], side="right")
    words -= 1
    high = xp.empty(room, np.int64)[:n]
    high[...] = slots
    high <<= 32
    words |= high
    del high
    words.sort()
    rows = words.astype(np.uint32)
    words >>= 32
    return rows, words.astype(np.int32)


def _features_in_tiles(xp: Any, ends: Int64, tiles: Int64) -> DeviceArray:
    """The feature of each entry, counted from its tile's first: as running sums of what changes; uint16."""
    starts = np.concatenate([[0], ends[:-1]])
    present = np.flatnonzero(ends > starts)
    places = present - tiles[np.searchsorted(tiles[:, 1], starts[present], side="right"), 2]
    found = xp.zeros(int(ends[-1]), np.int32)
    found[xp.asarray(starts[present])] = xp.asarray(np.diff(places, prepend=0).astype(np.int32))
    xp.cumsum(found, dtype=np.int32, out=found)
    result: DeviceArray = found.astype(np.uint16)
    return result


def entry_tiles(ends: Int64) -> Int64:
    """Tiles of the entries of features that end at `ends`: int64, shape (tiles, 6), see `EntryTile`.

    A tile has whole features, as many as it holds; one that has more entries has slices of its own, each a row of sums,
    and a row behind them.
    """
    found: list[tuple[int, int, int, int, int, int]] = []
    starts = np.concatenate([[0], ends[:-1]])
    first = row = 0
    while first < len(ends):
        begin, end = int(starts[first]), int(ends[first])
        if end - begin > TILE:
            n = -(-(end - begin) // TILE)
            cuts = [begin + (end - begin) * k // n for k in range(n + 1)]
            found += [(cuts[k], cuts[k + 1], first, first + 1, row + k, row + n) for k in range(n)]
            first, row = first + 1, row + n + 1
            continue
        last = min(int(np.searchsorted(ends, begin + TILE, side="right")), first + MOST_FEATURES)
        if ends[last - 1] > begin:
            found.append((begin, int(ends[last - 1]), first, last, -1, -1))
        first = last
    return np.array(found, np.int64).reshape(-1, 6)


def _spans(slices: Int64) -> Int64:
    """First row of sums of each feature that has slices, and the row behind its last; int64, shape (features, 2)."""
    last, index = np.unique(slices[:, 5], return_index=True)
    return np.ascontiguousarray(np.stack([slices[index, 4], last], axis=1).astype(np.int64))


def sorted_bytes(n_entries: int, n_features: int) -> int:
    """Return the bytes of entries and their tiles, with slices and spans."""
    n_tiles = most_tiles(n_entries) + n_features // MOST_FEATURES
    return ENTRY_BYTES * n_entries + (TILE_BYTES + 4 + 16) * n_tiles


def sorting_bytes(n_entries: int, n_features: int) -> int:
    """Return the bytes of what is there beside the copy while it is made."""
    return max(SORTING_BYTES * n_entries + 8 * LEAST_SORTING, SORTING_FEATURE_BYTES * n_features)


def most_tiles(n_entries: int) -> int:
    """Return the most tiles that entries are cut into, but for those of very many features: slices are at least half a
    tile, two neighbours that are none have more entries than one tile holds, and one may stand alone between features
    that have slices."""
    return 3 * n_entries // TILE + 2


def most_sums(n_features: int, n_entries: int) -> int:
    """Rows of sums at most, of so many features that have more entries than a tile, and these entries: of each feature
    one for every slice and one for all."""
    return (n_entries + n_features * (TILE - 1)) // TILE + n_features


def pays(n_slots: int, n_entries: int, n_nodes: int, n_searches: int) -> bool:
    """Whether the histograms of a tree's nodes have so many cells that searching all entries so often is faster."""
    return n_slots * n_nodes >= max(LEAST_CELLS, CELLS_PER_ENTRY * n_searches * n_entries)
