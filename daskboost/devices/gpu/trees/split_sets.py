"""The best sets of features of codes, in histograms that lie on a GPU: launches of `kernels/split_sets.cu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.bin_lists import list_width
from daskboost.devices.budget.plan import SetSizes
from daskboost.devices.cpu.split_sets import SetRules
from daskboost.devices.gpu.rows.views import SetMasks
from daskboost.devices.gpu.runtime.launches import DeviceArray, KernelArgument, Runtime, Shapes, to_device
from daskboost.dtypes import Int32

THREADS = 256
"""Threads of a block, as in the kernels."""
CHUNK = 2048
"""Codes whose ends a block finds, as there."""
MOST_TAKEN = 512
"""Most codes of an end, as there."""
MOST_THRESHOLD = MOST_TAKEN + 1
"""Largest `max_cat_threshold` of a GPU, which takes one code less from an end."""
NO_ENDS = -1
WARP = 32
RESULTS = 6
"""Numbers of a result, see `split.RESULTS`."""
MASK_WORDS = 8
"""Words of a slot's mask, as in `kernels/masks.cuh`."""
MOST_MASKED = 2 * 32 * MASK_WORDS + 1
"""Most nodes of a tree that has masks: of these at most one in two is split, and has a bit."""
CLEARING_BLOCKS = 512
"""Blocks that clear the sums of levels, at most."""
MOST_MASK_BYTES = 1 << 24
"""Masks of more slots would not stay in a cache: lists are searched then."""


@dataclass
class SetTables:
    """How the codes of features are divided into chunks, and their ends joined; see `kernels/split_sets.cu`."""

    coded: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    joins: list[list[tuple[int, int, int, int]]] = field(default_factory=list)
    """Each launch's own."""
    n_ends: int = 0
    n_codes: int = 0
    _single_codes: list[int] = field(default_factory=list)
    """Codes of the features of which each is tried alone."""

    @classmethod
    def of(cls, n_bins: Int32, rules: SetRules) -> SetTables:
        """Divide the codes of all features, which have so many bins; features without a set to try are left out."""
        found = cls()
        for feature in np.flatnonzero(rules.is_code).tolist():
            n_codes = int(n_bins[feature]) - 1
            is_single = n_codes < rules.max_onehot
            most = 0 if is_single else min(rules.max_threshold, n_codes) - 1
            if n_codes > 0 and (is_single or most > 0):
                found._add(feature, n_codes, most)
                found._single_codes += [n_codes] * is_single
        return found

    def _add(self, feature: int, n_codes: int, most: int) -> None:
        place, first_chunk, n_chunks = len(self.coded), len(self.chunks), -(-n_codes // CHUNK)
        first, n = self._new_ends(n_chunks if most > 0 else 0)
        self.chunks += [(place, k, first + k if most > 0 else NO_ENDS) for k in range(n_chunks)]
        launch = 0
        while n * most > CHUNK:
            each = CHUNK // most
            parts = [(first + begin, min(each, n - begin)) for begin in range(0, n, each)]
            first, n = self._new_ends(len(parts))
            if launch == len(self.joins):
                self.joins.append([])
            self.joins[launch] += [(place, *part, first + k) for k, part in enumerate(parts)]
            launch += 1
        self.coded.append((feature, first_chunk, n_chunks, most, first, n, self.n_codes))
        self.n_codes += n_codes

    def _new_ends(self, n: int) -> tuple[int, int]:
        self.n_ends += n
        return self.n_ends - n, n

    @property
    def sizes(self) -> SetSizes:
        """What memory depends on."""
        most = max((row[3] for row in self.coded), default=0)
        return SetSizes(
            len(self.coded), len(self.chunks), self.n_ends, most, list_width(max(most, 1) + 1),
            2 * max([most, *self._single_codes]), self.n_codes,
        )  # fmt: skip


def set_shapes(sizes: SetSizes, n_nodes: int, n_slots: int, n_trees: int = 0) -> Shapes:
    """Return the shapes of the arrays of a search of so many nodes, whose histograms have so many slots, and of the
    `masks` of a tree; none where no feature is of codes.

    `n_trees` : of trees each level of which has one split; 0 of others.
    """
    if not sizes.splits_codes:
        return {}
    of_masks = (n_slots if 4 * MASK_WORDS * n_slots <= MOST_MASK_BYTES else 0, MASK_WORDS)
    n_searched = n_trees or n_nodes
    of_ends, of_sets = (n_searched, sizes.n_ends, 2, sizes.most), (n_searched, sizes.n_coded)
    of_levels: Shapes = {} if not n_trees else {
        "level_sums": ((n_trees, n_slots, 2), np.int64),
        "set_gains": ((n_nodes, sizes.n_coded, sizes.most_tried), np.float64),
        "level_own": ((2, n_trees), np.uint64), "n_sets": (of_sets, np.int32),
        "code_orders": ((*of_sets, 2, sizes.most), np.int32),
    }  # fmt: skip
    return {
        **of_levels,
        "end_keys": (of_ends, np.uint64), "present": ((n_searched, sizes.n_chunks, 2), np.int64),
        "set_results": ((*of_sets, RESULTS), np.int64), "sets": ((n_nodes, sizes.width), np.int32),
        "end_codes": (of_ends, np.int32), "lists": ((*of_sets, sizes.width), np.int32), "masks": (of_masks, np.uint32),
        "set_numbers": ((MOST_MASKED,), np.int32),
    }  # fmt: skip


def set_masks(room: Mapping[str, DeviceArray], sizes: DeviceArray, capacity: int) -> SetMasks | None:
    """Return the room for masks of one tree, of up to `capacity` nodes; None where its sets may be too many.

    `room` : `set_shapes`. `sizes` : nodes of trees, int32, on the device.
    """
    if not len(room.get("masks", ())) or capacity > MOST_MASKED:
        return None
    return SetMasks(sizes, room["masks"], room["set_numbers"][:capacity])


class LevelNodes(NamedTuple):
    """Nodes of levels that have one split each; see `Level` of `split.py`."""

    own: DeviceArray
    allowed: DeviceArray
    per_list: int
    per_tree: int
    n_bins: DeviceArray
    """int32, shape (features,)."""
    n_slots: int


def level_nodes(room: Mapping[str, DeviceArray], n_trees: int) -> tuple[DeviceArray, DeviceArray]:
    """Return where the addresses of the sums of levels lie, and as many zeros; shape (trees,)."""
    own, nobody = room["level_own"]
    return own[:n_trees], nobody[:n_trees]


class SetKernels:
    """Searches for the best sets of all features of codes.

    Parameters
    ----------
    runtime : Runtime
    n_bins : int32 array, shape (features,)
    rules : SetRules
    """

    def __init__(self, runtime: Runtime, n_bins: Int32, rules: SetRules) -> None:
        tables = SetTables.of(n_bins, rules)
        self._runtime, self.sizes, self._rules = runtime, tables.sizes, rules
        self.is_code = to_device(runtime, rules.is_code)
        """Whether sets split each feature; uint8, shape (features,), on the device."""
        self._coded, self._chunks = (self._uploaded(rows) for rows in (tables.coded, tables.chunks))
        self._joins = [self._uploaded(rows) for rows in tables.joins]

    def _uploaded(self, rows: Sequence[tuple[int, ...]]) -> DeviceArray:
        return to_device(self._runtime, np.array(rows, np.int32))

    def search(self, searched: tuple[Any, ...], own: DeviceArray, room: Mapping[str, DeviceArray], results: DeviceArray
               ) -> None:  # fmt: skip
        """Enqueue: `results`, the best splits by thresholds, become the best of all, and the lists of those that are
        sets lie in `room["sets"]`.

        `searched` : arguments that searching kernels share, with `keeps`. `own` : `Level.own`. `room` : `set_shapes`.
        """
        n, sizes, coded, rules = len(own), self.sizes, self._coded, self._rules
        if not sizes.n_coded:
            return
        ends = self._find_ends(searched, own, room)
        self._launch("best_of_codes", n * sizes.n_coded, *searched, rules.smooth, rules.l2, rules.least_group, coded,
                     sizes.n_coded, sizes.n_chunks, *ends, room["present"], sizes.width, room["set_results"],
                     room["lists"])  # fmt: skip
        self._launch("best_of_sets", -(-n * WARP // THREADS), own, n, sizes.n_coded, room["set_results"], room["lists"],
                     sizes.width, results, room["sets"])  # fmt: skip

    def _find_ends(self, searched: tuple[Any, ...], own: DeviceArray, room: Mapping[str, DeviceArray]
                   ) -> tuple[KernelArgument, ...]:  # fmt: skip
        """Enqueue: the codes at both ends of each feature's order are known, by the sums of each node. Return where
        they lie, as kernels take that."""
        n, sizes, coded = len(own), self.sizes, self._coded
        ends = self._ends(room)
        self._launch("ends_of_chunks", n * sizes.n_chunks, *searched, self._rules.smooth, coded, self._chunks,
                     sizes.n_chunks, *ends, room["present"])  # fmt: skip
        self._join(own, ends)
        return ends

    def _ends(self, room: Mapping[str, DeviceArray]) -> tuple[KernelArgument, ...]:
        """Return where the ends of orders lie, as kernels take that."""
        return room["end_keys"], room["end_codes"], self.sizes.n_ends, self.sizes.most

    def _join(self, own: DeviceArray, ends: tuple[KernelArgument, ...]) -> None:
        """Enqueue: the ends of chunks become those of features."""
        for joins in self._joins:
            self._launch("join_ends", len(own) * len(joins), own, self._coded, joins, len(joins), *ends)

    def search_level(
        self, nodes: LevelNodes, searched: tuple[Any, ...], of_levels: tuple[Any, ...], room: Mapping[str, DeviceArray],
        results: DeviceArray,
    ) -> None:  # fmt: skip
        """Enqueue: `results`, the best splits of levels by thresholds, become the best of all; see `search`.

        `of_levels` : `searched` of nodes of which each tree has one, with the sums of its level (`level_nodes`).
        """
        sizes, rules, n, per_tree, n_bins = self.sizes, self._rules, len(nodes.own), nodes.per_tree, nodes.n_bins
        if not sizes.n_coded:
            return
        n_trees, n_words = n // per_tree, 2 * nodes.n_slots
        n_sets_tried, (level_own, nobody) = n_trees * sizes.n_coded, level_nodes(room, n_trees)
        features = self._coded, sizes.n_coded
        found, tried = (room["set_results"], room["lists"]), (room["code_orders"], room["n_sets"])
        gains = sizes.most_tried, room["set_gains"]
        launch = partial(self._launch, file="split_level_sets")
        launch("begin_level", min(-(-n_trees * n_words // THREADS), CLEARING_BLOCKS), nodes.own, per_tree, n_trees,
               n_words, room["level_sums"], level_own, nobody)  # fmt: skip
        launch("sum_codes", n * sizes.n_chunks, *searched, self._coded, self._chunks, sizes.n_chunks, n_words,
               room["level_sums"])  # fmt: skip
        ends = self._find_ends(of_levels, level_own, room)
        launch("order_codes", n_sets_tried, nodes.own, nodes.allowed, nodes.per_list, n_bins, len(n_bins), per_tree,
               rules.smooth, *features, *ends, *tried)  # fmt: skip
        launch("gain_of_codes", n * sizes.n_coded, *searched, rules.l2, rules.least_group, *features, sizes.most,
               *tried, *gains)  # fmt: skip
        launch("best_of_codes", n_sets_tried, nodes.own, n_bins, per_tree, *features, sizes.most, *tried, *gains,
               sizes.width, *found)  # fmt: skip
        launch("best_of_sets", -(-n * WARP // THREADS), *searched, sizes.n_coded, *found, sizes.width, results,
               room["sets"])  # fmt: skip

    def keep(self, nodes: DeviceArray, results: DeviceArray, sets: DeviceArray, kept: DeviceArray) -> None:
        """Enqueue: nodes that split by sets have their lists in `kept`, shape (nodes, width).

        `nodes` : int32, of each slot, -1 of those that are left out. `results`, `sets` : of slots, as a search finds
        them.
        """
        self._launch("keep_lists", -(-len(nodes) * WARP // THREADS), nodes, len(nodes), results, results.shape[1], sets,
                     self.sizes.width, kept)  # fmt: skip

    def _launch(self, entry: str, blocks: int, *arguments: KernelArgument, file: str = "split_sets") -> None:
        self._runtime.kernel(file, entry)(blocks, THREADS, *arguments)
