"""Memory in which the trees of a fit grow, one at a time, in compiled calls (`devices/cpu/grow.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daskboost.devices.budget.cpu_memory import shared_tasks
from daskboost.devices.cpu.addressed import host_address
from daskboost.devices.cpu.by_reference import by_reference
from daskboost.devices.cpu.gradients import DIGITS
from daskboost.devices.cpu.growing import (
    ASKS,
    AT,
    CHOSEN,
    DONE,
    FOUND,
    FOUND_WORDS,
    FULL_NODES,
    FULL_PAIRS,
    FULL_TOLD,
    FULL_WORDS,
    HAS_BUILT,
    HAS_FOUND,
    HAS_LEAVES,
    HAS_RANGE,
    IS_ROOT,
    IS_TOLD,
    LOSSGUIDE,
    MEETS,
    N_COUNTS,
    N_NUMBERS,
    OPENED,
    REFUSED,
    SIZE,
    STAGE,
    STARTS,
    STATUS,
    TREE,
    WAITING,
    Chunks,
    Growing,
    Meeting,
    Nodes,
    Pool,
    Rounds,
    Rules,
    Step,
    Tree,
    TreeModels,
    least_block,
    row_ns,
    writes_leaves,
)
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.cpu.leaf_models import ROOM_SHAPE, Positions
from daskboost.devices.cpu.split import SplitTable
from daskboost.devices.cpu.split_sets import OUTPUT_ROWS
from daskboost.devices.cpu.team import threads_worth
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.leaf_models import n_sums
from daskboost.devices.row_order import PairLayout, RowOrder
from daskboost.dtypes import Array, Bool, Int64
from daskboost.fit.peers import Peers, feature_shares
from daskboost.tree.constraints import FeatureRules

FIRST_NODES, FIRST_PLACES, FIRST_TOLD = 255, 32, 32
"""Nodes and histograms that there is room for at first, and histograms that engines tell each other; a tree that needs
more is begun again with twice as many. A tree that tells less has less room."""


@dataclass(frozen=True)
class RoomRows:
    """Rows of an engine that trees grow over, whatever the room."""

    chunks: Chunks
    """With no memory yet for the order of rows."""
    of_engines: Sequence[int]
    """Rows of each engine."""
    pairs: PairLayout

    @property
    def n_total(self) -> int:
        """Rows of all engines."""
        return sum(self.of_engines)

    @property
    def n_chunks(self) -> int:
        return len(self.chunks.begins) - 1

    def in_order(self) -> Chunks:
        """Return the chunks with memory of their own for the order of rows."""
        n, pairs = int(self.chunks.begins[-1]), self.pairs
        order, spare = (RowOrder(np.empty(n, np.uint32), own) for own in (pairs.empty(n), pairs.spare(n)))
        return by_reference(self.chunks._replace(rows=order, spare=spare))


@dataclass(frozen=True)
class RoomPlan:
    """What all rooms of a fit have in common."""

    rows: RoomRows
    layout: SlotLayout
    rules: Rules
    """Rules of all trees; how many threads share the work is each room's own."""
    set_words: int
    """Words of a set of bins; 0 where no feature is split by sets."""
    leaves: int
    """Most leaves of a tree; 0 for any number."""
    rounds: Rounds
    """What trees have in common; `by_reference`."""
    features: Callable[[int], FeatureRules]
    """Returns what nodes may use, of a tree by its number among those of a call; asked with `Rules.asks`."""
    ridge: float
    """Penalty of slopes of leaves' models."""
    usable: Bool
    """Whether such a model may have a feature, shape (features,)."""
    parts: Int64
    """Addresses of compiled parts."""
    peers: Peers
    """The engines that grow the tree together."""


class TreeRoom:
    """What a tree grows with: rows in the order of its nodes, the nodes, histograms, threads that share the work."""

    def __init__(self, plan: RoomPlan, threads: Threads) -> None:
        rows, leaves = plan.rows, plan.leaves or FIRST_PLACES
        self._plan, self._rows, self._layout, self._peers, self._threads = plan, rows, plan.layout, plan.peers, threads
        self._chunks, self._rules = rows.in_order(), by_reference(plan.rules._replace(n_threads=threads.count))
        self._counts = np.zeros(N_COUNTS, np.int64)
        self.nodes = _empty_nodes(FIRST_NODES, rows.n_chunks, plan.set_words, plan.layout)
        self._pool = _empty_pool(min(FIRST_PLACES, leaves), self._first_pairs(leaves), self._layout.n_entries)
        self._step, self._models = self._empty_step(), self._empty_models()
        self._told_units = min(FIRST_TOLD, self._first_told(leaves))
        self._meeting, self._told = self._empty_meeting(), list[Int64]()
        width = plan.layout.width
        self._numbers, self._keys = np.zeros(N_NUMBERS), np.zeros(1 + width, np.uint64)
        self._scales, self._units = np.zeros((2, width)), np.zeros(2 * width)
        self.state = self._new_state()
        """What the tree grows with."""

    def _first_pairs(self, leaves: int) -> int:
        """Histograms of pairs: nodes of more rows than words can hold, and their siblings."""
        n_rows = self._rows.n_total  # of all engines, whose pools are full at the same time
        return 0 if n_rows <= WORD_ROWS else min(leaves, FIRST_PLACES, 2 + 2 * n_rows // WORD_ROWS)

    def _first_told(self, leaves: int) -> int:
        """Words of each slot that a step tells: of one of two children, in pairs where an engine may have many rows."""
        built = 1 if self._rules.policy == LOSSGUIDE else max(1, leaves // 4)
        return built + min(built, self._rows.n_total // WORD_ROWS if max(self._rows.of_engines) > WORD_ROWS else 0)

    def _empty_step(self) -> Step:
        """Return arrays for steps of trees of as many nodes as there is room for."""
        capacity, layout, n = len(self.nodes.left), self._layout, self._threads.count
        tasks, n_chunks, n_ranges = shared_tasks(n), self._rows.n_chunks, len(self._rows.chunks.ranges)
        pieces = tasks + (2 * n + 4) * n_chunks
        n_rows = int(self._rows.chunks.begins[-1])
        of_row, set_words, width = row_ns(len(layout.n_bins) * layout.width), self._plan.set_words, layout.width
        least = least_block(layout.n_entries, of_row)
        large = n_rows > least and n > 1
        form = 2 if max(least, n_rows // (2 * threads_worth(n, n_rows * of_row))) >= WORD_ROWS else 1
        return by_reference(Step(
            opened=np.empty(capacity + 2, np.int32), chosen=np.empty(capacity, np.int32),
            built=np.empty(capacity, np.int32), derived=np.empty(capacity, np.int32),
            tasks=np.empty((tasks, 3), np.int64), tasks_of=np.empty((capacity, 2), np.int64),
            pieces=np.empty((pieces, 6), np.int64), groups=np.empty(capacity + 1, np.int32),
            small=np.empty(capacity, np.int32),
            partials=np.empty((tasks if large else 0, form * layout.n_entries), np.int64),
            results=_empty_splits(2 * (capacity + 3 * n + 1), set_words, width),
            drawn=np.empty((n_ranges, 3 + 2 * width), np.int64),
            scratch=np.zeros((n, layout.scratch_entries + width), np.int64), counts=self._counts,
            prefix=np.empty((n, 2 * width, layout.most_slots)), gains=np.empty((n, 2, layout.most_slots)),
            level=np.empty((n, 2, layout.most_slots)), order=np.empty((n, layout.most_slots)),
            outputs=np.empty((n, OUTPUT_ROWS, 2 * width)),
            digits=np.empty((n, 1 << max(DIGITS) if self._rules.quantiles else 0), np.int64),
            walked=np.empty(capacity, np.int32), defaults=np.empty(capacity, np.bool_), one=np.empty(1, np.float32),
        ))  # fmt: skip

    def _empty_models(self) -> TreeModels:
        """Return room for models of the leaves of trees of as many nodes as there is room for."""
        rules, layout, n, n_nodes = self._rules, self._layout, self._threads.count, len(self.nodes.left)
        n_terms = rules.leaf_terms
        capacity = n_nodes if n_terms else 0
        n_rows = int(self._rows.chunks.begins[-1]) if writes_leaves(rules) else 0
        positions = layout.positions if n_terms else Positions(np.zeros(0, np.int64), np.zeros(0, np.int8))
        return by_reference(TreeModels(
            begin=positions.begin, position=positions.position, usable=self._plan.usable, ridge=self._plan.ridge,
            feature=np.empty((capacity, n_terms), np.int32), slope=np.empty((capacity, n_terms), np.float32),
            sums=np.empty((n, capacity, n_sums(n_terms)), np.int64), x=np.empty((n, n_terms + 1), np.int64),
            room=np.empty(ROOM_SHAPE), leaf=np.empty(n_rows, np.int32),
            leaf_sums=np.empty((n, n_nodes if rules.refits else 0, 2), np.int64),
        ))  # fmt: skip

    def _empty_meeting(self) -> Meeting:
        """Return arrays for what engines tell each other of as many nodes and histograms as there is room for."""
        layout, peers, capacity = self._layout, self._peers, len(self.nodes.left)
        shares, n = feature_shares(layout, peers.n_peers), peers.n_peers
        begin = FOUND + (FOUND_WORDS + self._plan.set_words) * (capacity + 1) + 2 * self._plan.rounds.n_outputs
        begin += capacity * self._rules.refits
        n_words = begin + capacity + self._told_units * layout.n_slots if n > 1 else 0
        rooms = peers.common_memory(8 * n_words) if n > 1 else None
        self._rooms: list[Int64] = [] if rooms is None else [room.view(np.int64) for room in rooms]
        return by_reference(Meeting(
            shares=np.array([0, *(last for _, last in shares)]), rank=peers.rank,
            room=self._rooms[peers.rank] if self._rooms else np.zeros(n_words, np.int64), begin=begin,
            n_rows=self._rows.n_total, most_rows=max(self._rows.of_engines), rooms=addresses(self._rooms),
            units=np.empty(capacity + 1, np.int64), told=np.zeros(n, np.int64),
        ))  # fmt: skip

    def _new_state(self) -> Growing:
        """Return what the tree grows with."""
        shape = (len(self.nodes.left), len(self._layout.n_bins)) if self._rules.asks else (0, 0)
        tree = by_reference(Tree(self._numbers, self._scales, self._units, self._keys, np.empty(shape, np.uint8)))
        return by_reference(Growing(
            self._threads.team, self._plan.parts, self._chunks, by_reference(self.nodes), self._pool, self._step,
            self._rules, self._plan.rounds, tree, self._meeting, self._models,
        ))  # fmt: skip

    @property
    def is_refused(self) -> bool:
        """Whether the gradients of the tree are not finite."""
        return bool(self._counts[STATUS] == REFUSED)

    def mend(self) -> None:
        """Bring what the tree was left for, if it was, so that it can be grown further."""
        status = self._counts[STATUS]
        if status == MEETS:
            self._meet()
        elif status == ASKS:
            self._allow()
        elif status != DONE:
            self._make_room(status)
            self._counts[STAGE], self._counts[IS_TOLD] = STARTS, 0

    def _meet(self) -> None:
        """Tell the other engines what they are to know, and learn the same from them; or wait for them, if they tell it
        in memory in common."""
        meeting, counts, peers = self._meeting, self._counts, self._peers
        if self._rooms:
            peers.check()
            return
        if counts[STAGE] == HAS_BUILT:
            self._told = peers.exchange([self._told_to(engine) for engine in range(peers.n_peers)])
        else:
            n_words = {
                HAS_RANGE: 2 * self._plan.rounds.n_outputs, HAS_LEAVES: counts[SIZE],
                HAS_FOUND: (FOUND_WORDS + self._plan.set_words) * counts[OPENED],
            }[int(counts[STAGE])]  # fmt: skip
            self._told = peers.share(meeting.room[counts[AT] : counts[AT] + n_words])
        meeting.told[:] = addresses(self._told)
        counts[IS_TOLD] = 0

    def _told_to(self, engine: int) -> Int64:
        """Return what an engine is told of the nodes that were built: their rows, the slots that it searches, and sums
        of the root."""
        meeting, n, n_slots = self._meeting, self._counts[CHOSEN], self._layout.n_slots
        low, high = self._layout.offsets[meeting.shares[engine : engine + 2]].tolist()
        rows, histograms = np.split(meeting.room[meeting.begin :], [n])
        units = pairwise(meeting.units[: n + 1].tolist())
        return np.concatenate([
            rows, *(histograms[n_slots * a + (b - a) * low : n_slots * a + (b - a) * high] for a, b in units),
            meeting.room[self._counts[AT] :][: 3 * self._counts[IS_ROOT]],
        ])  # fmt: skip

    def _allow(self) -> None:
        """Write which features the nodes may use that are opened."""
        counts, features = self._counts, self._plan.features(int(self._counts[TREE]))
        ids = self._step.opened[counts[WAITING] : counts[WAITING] + counts[OPENED]].tolist()
        paths = [self._path(node) for node in ids] if features.by_path else []
        self.state.tree.asked[ids] = features.allowed(ids, self.nodes.depth[ids].tolist(), paths)

    def _path(self, node: int) -> frozenset[int]:
        """Return the features on a node's path from the root."""
        found = set()
        while (parent := int(self.nodes.parent[node])) >= 0:
            found.add(int(self.nodes.feature[parent]))
            node = parent
        return frozenset(found)

    def _make_room(self, status: int) -> None:
        """Make twice the room for what there was too little of."""
        n_words, n_pairs = len(self._pool.words), len(self._pool.pairs)
        if status == FULL_NODES:
            self.nodes = _empty_nodes(
                2 * len(self.nodes.left) + 1, self._rows.n_chunks, self._plan.set_words, self._layout
            )
            self._step, self._models = self._empty_step(), self._empty_models()
        elif status == FULL_TOLD:
            self._told_units *= 2
        else:
            n_words, n_pairs = n_words << (status == FULL_WORDS), n_pairs << (status == FULL_PAIRS)
            self._pool = _empty_pool(n_words, n_pairs, self._layout.n_entries)
        self._meeting = self._empty_meeting()
        self.state = self._new_state()


def addresses(arrays: Sequence[Array | None]) -> Int64:
    """Return where the memory of arrays begins, 0 for None; int64, shape (arrays,)."""
    return np.array([0 if array is None else host_address(array) for array in arrays], np.int64)


def _empty_nodes(n: int, n_chunks: int, set_words: int, layout: SlotLayout) -> Nodes:
    """Return room for the nodes of a tree."""
    def numbers(dtype: Any, *shape: int) -> Any:
        return np.empty((n, *shape), dtype)

    return Nodes(
        parent=numbers(np.int32), depth=numbers(np.int32), left=numbers(np.int32), feature=numbers(np.int32),
        split_bin=numbers(np.int32), default_left=numbers(np.uint8), gain=numbers(np.float64),
        sums=numbers(np.int64, 2 * layout.width), bounds=numbers(np.float64, 2),
        value=numbers(np.float32, *layout.of_leaf),
        segments=numbers(np.int64, n_chunks, 2), n_rows=numbers(np.int64), n_total=numbers(np.int64),
        is_divided=numbers(np.uint8), place=numbers(np.int32), in_words=numbers(np.uint8),
        found=_empty_splits(n, set_words, layout.width),
        right_bins=numbers(np.uint32, set_words),
    )  # fmt: skip


def _empty_splits(n: int, set_words: int, width: int) -> SplitTable:
    return SplitTable(
        np.empty(n), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.uint8),
        np.empty((n, 2 * width), np.int64), np.zeros((n, set_words), np.uint32),
    )  # fmt: skip


def _empty_pool(n_words: int, n_pairs: int, n_entries: int) -> Pool:
    """Return room for histograms."""
    return by_reference(Pool(
        np.empty((n_words, n_entries), np.int64), np.empty((n_pairs, n_entries, 2), np.int64),
        np.empty(n_words, np.int32), np.empty(n_pairs, np.int32), np.zeros(2, np.int64),
    ))  # fmt: skip
