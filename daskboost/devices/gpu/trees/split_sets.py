"""The best sets of features of codes, in histograms that lie on a GPU: launches of `kernels/split_sets.cu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
MOST_MASK_BYTES = 1 << 24
"""Masks of more slots would not stay in a cache: lists are searched then."""


@dataclass
class SetTables:
    """How the codes of features are divided into chunks, and their ends joined; see `kernels/split_sets.cu`."""

    coded: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    joins: list[list[tuple[int, int, int, int]]] = field(default_factory=list)
    """Each launch's own."""
    n_ends: int = 0

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
        self.coded.append((feature, first_chunk, n_chunks, most, first, n))

    def _new_ends(self, n: int) -> tuple[int, int]:
        self.n_ends += n
        return self.n_ends - n, n

    @property
    def sizes(self) -> SetSizes:
        """What memory depends on."""
        most = max((row[3] for row in self.coded), default=0)
        return SetSizes(len(self.coded), len(self.chunks), self.n_ends, most, list_width(max(most, 1) + 1))


def set_shapes(sizes: SetSizes, n_nodes: int, n_slots: int) -> Shapes:
    """Return the shapes of the arrays of a search of so many nodes, whose histograms have so many slots, and of the
    `masks` of a tree; none where no feature is of codes."""
    if not sizes.splits_codes:
        return {}
    of_masks = (n_slots if 4 * MASK_WORDS * n_slots <= MOST_MASK_BYTES else 0, MASK_WORDS)
    of_ends, of_sets = (n_nodes, sizes.n_ends, 2, sizes.most), (n_nodes, sizes.n_coded)
    return {
        "end_keys": (of_ends, np.uint64), "present": ((n_nodes, sizes.n_chunks, 2), np.int64),
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
        return to_device(self._runtime, np.array(rows, np.int32).reshape(len(rows), -1))

    def search(self, searched: tuple[Any, ...], own: DeviceArray, room: Mapping[str, DeviceArray], results: DeviceArray
               ) -> None:  # fmt: skip
        """Enqueue: `results`, the best splits by thresholds, become the best of all, and the lists of those that are
        sets lie in `room["sets"]`.

        `searched` : arguments that searching kernels share, with `keeps`. `own` : `Level.own`. `room` : `set_shapes`.
        """
        n, sizes, coded, rules = len(own), self.sizes, self._coded, self._rules
        if not sizes.n_coded:
            return
        ends = (room["end_keys"], room["end_codes"], sizes.n_ends, sizes.most)
        self._launch("ends_of_chunks", n * sizes.n_chunks, *searched, rules.smooth, coded, self._chunks,
                     sizes.n_chunks, *ends, room["present"])  # fmt: skip
        for joins in self._joins:
            self._launch("join_ends", n * len(joins), own, coded, joins, len(joins), *ends)
        self._launch("best_of_codes", n * sizes.n_coded, *searched, rules.smooth, rules.l2, rules.least_group, coded,
                     sizes.n_coded, sizes.n_chunks, *ends, room["present"], sizes.width, room["set_results"],
                     room["lists"])  # fmt: skip
        self._launch("best_of_sets", -(-n * WARP // THREADS), own, n, sizes.n_coded, room["set_results"], room["lists"],
                     sizes.width, results, room["sets"])  # fmt: skip

    def keep(self, nodes: DeviceArray, results: DeviceArray, sets: DeviceArray, kept: DeviceArray) -> None:
        """Enqueue: nodes that split by sets have their lists in `kept`, shape (nodes, width).

        `nodes` : int32, of each slot, -1 of those that are left out. `results`, `sets` : of slots, as a search finds
        them.
        """
        self._launch("keep_lists", -(-len(nodes) * WARP // THREADS), nodes, len(nodes), results, sets, self.sizes.width,
                     kept)  # fmt: skip

    def _launch(self, entry: str, blocks: int, *arguments: KernelArgument) -> None:
        self._runtime.kernel("split_sets", entry)(blocks, THREADS, *arguments)
