"""A copy of CSR entries sorted by feature, for histograms of few nodes: shared memory takes some features at a time.

Read in full whatever the nodes' rows, it pays while a level's histograms have fewer cells than there are entries: more
cells are mostly empty, and as quickly added to one by one where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.rows.feature_groups import CELL_BYTES, Tiles, room_bytes
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_host
from daskboost.dtypes import ArrayModule, Int64

THREADS = 1024
"""Threads of a block, as in `kernels/histogram_sparse.cu`."""
AT_ONCE = 8
"""Entries that a thread takes at once, as there."""
ENTRIES_PER_CELL = 2
"""At least, on average over all rows."""
MOST_NODES = 64
"""Beyond, so few bins of a feature fit that its entries would be read again and again."""
LEAST_SHARE = 4
"""Rows of the nodes are at least this part of all, or the few entries of theirs are looked up one by one."""
ENTRY_BYTES = 8
"""Bytes of row and slot."""
EXACT_ROWS = 65_536
"""Most rows of a slot: more could overflow 32-bit sums."""
SORTING_BYTES = 16
"""Bytes of memory per entry while the copy is made, beside the copy: words of 8 bytes twice."""


@dataclass(frozen=True)
class SlotGroups:
    """The work of `add_columns` for some number of nodes."""

    n: int
    groups: DeviceArray
    """int64, shape (n, 4): first slot, slots, first entry, end of the entries."""
    before: DeviceArray
    """int64, shape (n + 1,): entries of the groups before."""
    most_slots: int

    @staticmethod
    def of(xp: ArrayModule, groups: Int64) -> SlotGroups:
        """On the device."""
        before = np.concatenate([[0], np.cumsum(groups[:, 3] - groups[:, 2])]).astype(np.int64)
        return SlotGroups(len(groups), xp.asarray(groups), xp.asarray(before), int(groups[:, 1].max()))


class SparseColumns:
    """Entries by feature, then by row.

    Parameters
    ----------
    runtime : Runtime
    offsets : int64 array on the host, shape (features + 1,)
        First slot of each feature.
    indptr, slots : int64 and int32 arrays on the device
        CSR rows.
    room_bytes : int
        Shared memory of a block.
    """

    def __init__(self, runtime: Runtime, offsets: Int64, indptr: DeviceArray, slots: DeviceArray, room_bytes: int
                 ) -> None:  # fmt: skip
        xp, n_entries = runtime.xp, len(slots)
        self._runtime, self._n_rows, self._n_slots = runtime, len(indptr) - 1, int(offsets[-1])
        order, counts = _by_feature(xp, offsets, slots)
        padded = -(-n_entries // AT_ONCE) * AT_ONCE
        self._rows, self._slots = xp.zeros(padded, np.uint32), xp.zeros(padded, np.int32)
        self._slots[:n_entries] = slots[order]
        order = xp.searchsorted(indptr, order, side="right")
        order -= 1
        self._rows[:n_entries] = order
        self._spills = int(xp.bincount(slots, minlength=1).max()) > EXACT_ROWS
        self._by_nodes = {
            n_nodes: SlotGroups.of(xp, slot_groups(offsets, counts, room_bytes // (CELL_BYTES * n_nodes)))
            for n_nodes in (1 << k for k in range(MOST_NODES.bit_length()))
            if pays(n_nodes, self._n_slots, n_entries)
        }
        """Entries for numbers that are powers of two; other numbers take the next."""
        self._states = xp.empty(state_words(self._n_rows), np.int64)
        self.nbytes = int(self._rows.nbytes + self._slots.nbytes + self._states.nbytes)

    def add_rows(self, tiles: Tiles, order: DeviceArray | None, pairs: DeviceArray, out: DeviceArray, small: int
                 ) -> int:  # fmt: skip
        """Add the rows of the tiles' segments to `out` if they are so many as are returned, or do nothing."""
        n = len(tiles.nodes)
        found = self._by_nodes.get(1 << (n - 1).bit_length())
        if found is None:
            return np.iinfo(np.int64).max
        many_rows = -(-self._n_rows // LEAST_SHARE)
        place_rows(self._runtime, tiles, many_rows, self._n_rows, order, pairs, self._states, small)
        shared_bytes = CELL_BYTES * n * found.most_slots
        self._runtime.kernel("histogram_sparse", "add_columns", SMALL=small)(
            self._runtime.multiprocessors, THREADS, self._rows, self._slots, found.groups, found.before, found.n,
            shared_bytes // 4, int(self._spills), self._n_slots, self._states, tiles.starts, n, tiles.tile_rows,
            many_rows, out.view(np.uint64), shared_bytes=shared_bytes,
        )  # fmt: skip
        return many_rows


def _by_feature(xp: ArrayModule, offsets: Int64, slots: DeviceArray) -> tuple[DeviceArray, Int64]:
    """Places of entries in the order of features, then rows, on the device, and the entries of each feature.

    Words of both are sorted where they lie: sorting features alone, and stably, would take more memory.
    """
    n_entries, n_features = len(slots), len(offsets) - 1
    shift = max(n_entries - 1, 1).bit_length()
    assert n_features.bit_length() + shift < 64, "words have a sign"
    words = xp.searchsorted(xp.asarray(offsets.astype(np.int32)), slots, side="right")
    words -= 1
    words <<= shift
    words |= xp.arange(n_entries, dtype=np.int64)
    words.sort()
    ends = xp.searchsorted(words, xp.arange(n_features + 1, dtype=np.int64) << shift)
    words &= (1 << shift) - 1
    return words, np.diff(to_host(ends))


def place_rows(runtime: Runtime, tiles: Tiles, many_rows: int, n_rows: int, order: DeviceArray | None,
               pairs: DeviceArray, states: DeviceArray, small: int) -> None:  # fmt: skip
    """Write down nodes and pairs of the tiles' rows by row, of `n_rows` in all, if they are at least `many_rows`;
    `states` : int64, shape (`state_words`,), and -1 in what is not written."""
    assert states.nbytes >= 2 * pairs.itemsize * n_rows, "pairs of 8 bytes are small data's"
    states.fill(-1)
    runtime.kernel("histogram_sparse", "place_rows", SMALL=small)(
        tiles.most, THREADS, *tiles.arguments, many_rows, n_rows, order, pairs, states
    )


def state_words(n_rows: int) -> int:
    """Return the words of pairs and nodes of so many rows, int64: a word each, or two where they may be small data."""
    return 2 * n_rows if n_rows <= SMALL_ROWS else n_rows


def copying_bytes(n_entries: int, n_rows: int) -> int:
    """Return the bytes of memory that the copy takes, at most, while it is made and afterwards."""
    return (ENTRY_BYTES + SORTING_BYTES) * n_entries + 8 * state_words(n_rows)


def fits_block(n_slots: int, shared_bytes: int | None) -> bool:
    """Whether shared memory has room for a histogram, so that rows are added to it where they lie."""
    return CELL_BYTES * n_slots <= room_bytes(shared_bytes)


def is_copied(n_slots: int, n_entries: int, shared_bytes: int | None) -> bool:
    """Whether entries are copied where there is room for it: plans and views ask here, with the same shared memory."""
    return not fits_block(n_slots, shared_bytes) and pays(1, n_slots, n_entries)


def pays(n_nodes: int, n_slots: int, n_entries: int) -> bool:
    """Whether histograms of so many nodes have few enough cells."""
    return n_nodes <= MOST_NODES and n_nodes * n_slots * ENTRIES_PER_CELL <= n_entries


def slot_groups(offsets: Int64, counts: Int64, room: int) -> Int64:
    """Ranges of at most `room` slots, of whole features where possible, and their entries; as `SlotGroups.groups`."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    found: list[list[int]] = []
    first = 0
    while first < len(counts):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + room, side="right")) - 1)
        low, high = int(offsets[first]), int(offsets[last])
        found += [
            [start, min(room, high - start), int(ends[first]), int(ends[last])] for start in range(low, high, room)
        ]
        first = last
    return np.array(found, np.int64).reshape(-1, 4)
