"""Trees that grow best first on a GPU (`kernels/best_first.cu`): nodes are split ahead, and the strict order is played
back over them, so that the host waits once in many splits, not once in each.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskboost.devices.gpu.rows.row_state import ChunkRows
from daskboost.devices.gpu.runtime.cuda import address_of
from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    Kernel,
    Recorder,
    Shapes,
    bytes_of,
    make_arrays,
    to_host,
)
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.devices.gpu.trees.growth import (
    ROUNDING,
    Around,
    GrowthRules,
    Slots,
    TreeInputs,
    make_tables,
    node_bytes,
    slot_shapes,
    tables_bytes,
)
from daskboost.devices.gpu.trees.node_features import LevelFeatures, make_features
from daskboost.devices.gpu.trees.split import RESULTS, Level, SearchRoom, SplitKernels, empty_histograms
from daskboost.devices.gpu.trees.split_sets import set_masks

THREADS = 256
"""Threads of a block, as in `kernels/best_first.cu`."""
SHARED_LEAVES, MOST_LEAVES = 1024, 8192
"""Most leaves of trees whose leaves that wait lie in shared memory, and of all trees, as in the kernel, whose keys have
bits for so many nodes."""
QUEUE_BYTES = 20
"""Bytes of a leaf that waits."""
LEAVES_PER_SPLIT = 8
"""Leaves of a tree for each split of a step. Trees of 255 leaves on a million rows of higgs took 13 to 16 steps so, and
10 splits of 100 in vain; with twice as many in a step 11 to 16, and 40 in vain; with half as many 19 to 24."""
LEAST_WIDTH = 16
"""Splits of a step, however small the tree."""
SPLITS_PER_LEAF = 3
"""Room for nodes that are split ahead in vain. Those trees took 1.2 at most; of noise, for which 63 leaves took 1.8, a
third less room made 24 steps of 14."""
STEPS = 2
"""Between two questions whether the tree is done: one after its end takes about as long as a question, 20 us, but where
all entries are searched in it."""
GOES_ON = 4
"""Place of the answer among `counts`."""


def step_width(max_leaves: int) -> int:
    """Most splits of a step: few steps, and few splits in vain."""
    return min(max(LEAST_WIDTH, -(-max_leaves // LEAVES_PER_SPLIT)), max_leaves, THREADS)


def usual_steps(max_leaves: int) -> int:
    """Until a tree is done: each has twice the splits of the one before, then as many as there may be."""
    width = step_width(max_leaves)
    return width.bit_length() + -(-11 * max_leaves // (10 * width))


def most_splits(max_leaves: int) -> int:
    """Splits of the grown tree."""
    return SPLITS_PER_LEAF * max_leaves


def kept_histograms(max_leaves: int) -> int:
    """Histograms in memory: one more with every split, and those of one step."""
    return most_splits(max_leaves) + 1 + step_width(max_leaves)


class BestFirstGrower:
    """Grows a tree over all rows of one chunk; see `growth.TreeGrower`, whose interface this is.

    Parameters
    ----------
    kernels : SplitKernels
    rules : GrowthRules
        With `max_leaves`.
    entries : EntrySearch, optional
        What finds splits without histograms.
    """

    def __init__(self, kernels: SplitKernels, rules: GrowthRules, entries: EntrySearch | None = None) -> None:
        self._entries, self._at_once = entries, STEPS if entries is None else 1
        self._kernels, self._runtime, self._rules = kernels, kernels.runtime, rules
        self._width, self._most = step_width(rules.max_leaves), most_splits(rules.max_leaves)
        self._capacity = 2 * self._most + 1
        self._unasked = 1  # how often steps are queued up before the first question: as the last tree took, but for one
        self.tables = make_tables(self._runtime, 1, 2 * rules.max_leaves - 1, set_width=kernels.set_width)
        self._grown = make_tables(self._runtime, 1, self._capacity, set_width=kernels.set_width)
        self._features = make_features(self._runtime, rules.of_nodes, 1, self._capacity, 2 * self._width)
        self._more = _Grown(**make_arrays(self._runtime, _grown_shapes(self._capacity, rules.max_leaves)))
        self._slots = Slots(**make_arrays(self._runtime, slot_shapes(2 * self._width)))
        step = make_arrays(self._runtime, _step_shapes(self._width))
        self._splits, self._built = step["splits"], step["built"]
        self._room: SearchRoom = kernels.room(2 * self._width) if entries is None else {}
        """Arrays that the searches of all steps take in turn."""
        self.tables.masks = set_masks(self._room, self.tables.sizes, self.tables.capacity)
        if entries is not None:
            self._addresses = (1, 1, 0)  # any but 0 says that a node is there
            return
        self._added, self._kept = (
            empty_histograms(self._runtime, n, kernels.layout.host.n_slots, 1) for n in (self._width, self._most + 1)
        )
        self._addresses = (address_of(self._kept), address_of(self._added), node_bytes(self._kept))
        """Addresses of the first histograms, and bytes from one to the next."""

    def grow(self, inputs: TreeInputs, rows: ChunkRows, queue: Recorder, name: Hashable, around: Around) -> None:
        """Grow one tree as `growth.TreeGrower` does, with the same features for all levels; waits for answers."""
        queue.expect(rows.reserve(self._capacity, self._width))

        def begin() -> None:
            with self._runtime.beside(around.beside):
                around.before()
                self._root(inputs, rows)

        def end() -> None:
            self._finish(inputs.learning_rate)
            around.after()

        steps, n = partial(self._steps, inputs.features, rows), 0
        queue(("root", name), begin)
        while n < self._unasked or to_host(self._more.counts)[GOES_ON]:
            queue(("steps", name), steps)
            n += 1
        self._unasked = max(n - 1, 1)
        queue(("leaves", name), end)

    def _root(self, inputs: TreeInputs, rows: ChunkRows) -> None:
        rules = self._rules
        self._launch("start_best")(
            1, THREADS, *self._grown.arguments, *self._more.arguments, *self._slots.arguments, inputs.root_sums,
            inputs.rounding, int(rules.max_leaves != 1), rules.regular.least_h, self._width, *self._addresses[:2],
            self._built,
        )  # fmt: skip
        self._search(inputs.features, rows, is_root=True)

    def _steps(self, features: LevelFeatures, rows: ChunkRows) -> None:
        for _ in range(self._at_once):
            rows.split(self._splits, self._grown.node_sets)
            self._search(features, rows)

    def _search(self, features: LevelFeatures, rows: ChunkRows, *, is_root: bool = False) -> None:
        """Search the nodes that were opened last, choose, and open more."""
        rules, regular, kernels, width = self._rules, self._rules.regular, self._kernels, self._width
        results = self._best_per_node(features, rows, is_root=is_root)
        kernels.keep_sets(self._slots.nodes, results, self._room, self._grown.node_sets)
        self._launch("choose_best")(
            1, THREADS, *self._grown.arguments, *self._more.arguments, *self._slots.arguments,
            results, width, rules.gamma, rules.max_leaves, self._most,
            *regular.numbers, rules.levels.depth,
            kernels.monotone_of(regular), kernels.all_bins, self._splits, self._built, *self._addresses,
        )  # fmt: skip

    def _best_per_node(self, features: LevelFeatures, rows: ChunkRows, *, is_root: bool) -> DeviceArray:
        """Find the best splits of the nodes that were opened last, in entries or in histograms that are built first."""
        slots, n = self._slots, 2 * self._width
        lists = self._features.allowed(features, 0, self._grown.at(slots.nodes, n))
        level = Level(
            slots.addresses[0], slots.addresses[1], slots.addresses[2], slots.sums, slots.bounds,
            *lists, self._grown.rounding, n, units_stride=ROUNDING,
        )  # fmt: skip
        if self._entries is not None:
            return self._entries.best_per_node(level, self._rules.regular, slots.nodes, rows, is_root=is_root)
        rows.build(self._built, self._added, is_root=is_root)
        return self._kernels.best_per_node(level, self._rules.regular, self._room)

    def _finish(self, learning_rate: DeviceArray) -> None:
        regular, tables = self._rules.regular, self.tables
        self._launch("finish_best")(
            1, THREADS, *self._grown.arguments, *self._more.arguments, *regular.numbers, learning_rate,
            *tables.arguments, tables.values,
        )  # fmt: skip
        grown = {"sets": self._grown.node_sets} if self._grown.node_sets is not None else {}
        self._kernels.keep_sets(self._more.chosen_as, self._more.found, grown, tables.node_sets)

    def _launch(self, entry: str) -> Kernel:
        return self._runtime.kernel("best_first", entry, MOST_LEAVES=_queued(self._rules.max_leaves))


@dataclass(frozen=True)
class _Grown:
    """What the kernels know of grown nodes beside their tables (`GROWN`)."""

    found: DeviceArray
    chosen_as: DeviceArray
    places: DeviceArray
    waiting: DeviceArray
    keys: DeviceArray
    counts: DeviceArray
    queue: DeviceArray

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.found, self.chosen_as, self.places, self.waiting, self.keys, self.counts, self.queue)


def _queued(max_leaves: int) -> int:
    """Return the most leaves of the kernels' variant."""
    return SHARED_LEAVES if max_leaves <= SHARED_LEAVES else MOST_LEAVES


def _grown_shapes(capacity: int, max_leaves: int) -> Shapes:
    """Return the shapes of `_Grown` of so many nodes, of trees of so many leaves."""
    n_queued = 0 if max_leaves <= SHARED_LEAVES else MOST_LEAVES
    return {
        "found": ((capacity, RESULTS), np.int64), "chosen_as": ((capacity,), np.int32),
        "places": ((capacity,), np.int32), "waiting": ((capacity,), np.int32), "keys": ((capacity,), np.uint64),
        "counts": ((5,), np.int32), "queue": ((n_queued * QUEUE_BYTES // 8,), np.uint64),
    }  # fmt: skip


def _step_shapes(width: int) -> Shapes:
    """Return the shapes of a step's splits, and of the nodes whose histograms rows build for it."""
    return {"splits": ((6, width), np.int32), "built": ((width,), np.int32)}


def best_first_bytes(max_leaves: int, set_width: int = 0) -> int:
    """Return the bytes of what `BestFirstGrower` keeps of nodes, beside histograms and the arrays of searches."""
    capacity, width = 2 * most_splits(max_leaves) + 1, step_width(max_leaves)
    of_steps = bytes_of(slot_shapes(2 * width)) + bytes_of(_step_shapes(width))
    of_tables = sum(tables_bytes(1, n, set_width=set_width) for n in (2 * max_leaves - 1, capacity))
    return of_tables + bytes_of(_grown_shapes(capacity, max_leaves)) + of_steps
