"""Trees that grow on a CPU in one compiled call each (`devices/cpu/grow.py`), over rows that stay in memory.

`fit/host_grower.py` grows the same trees and serves all fits; this grower is for those whose recipe and rows allow it
(`why_not_compiled`). Several engines grow them in step, and tell each other what they need (`Meeting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from daskboost.devices.budget.cpu_memory import shared_tasks
from daskboost.devices.cpu.by_reference import by_reference, renew
from daskboost.devices.cpu.grow import (
    ASKS,
    AT,
    DEPTHWISE,
    DONE,
    FOUND,
    FOUND_WORDS,
    FULL_NODES,
    FULL_PAIRS,
    FULL_TOLD,
    FULL_WORDS,
    HAS_BUILT,
    HAS_SUMS,
    IS_TOLD,
    LEAST_BLOCK,
    LOSSGUIDE,
    MEETS,
    N_COUNTS,
    OPENED,
    STAGE,
    STARTS,
    SYMMETRIC,
    WAITING,
    Chunks,
    Growing,
    Meeting,
    Nodes,
    Pool,
    Rules,
    Step,
    Tree,
    empty_parts,
    find_parts,
    grow,
)
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.split import SplitTable
from daskboost.devices.cpu.views import CpuView, WalkArrays, host_address
from daskboost.devices.row_order import PairLayout, RowOrder
from daskboost.dtypes import Array, Float64, Int64, UInt8
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.fit.peers import Peers, feature_shares
from daskboost.fit.samplers import RoundRows
from daskboost.fit.spec import FitSpec
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules, draws_by_node
from daskboost.tree.device_trees import leaf_limit
from daskboost.tree.growing_tree import finished_tree, least_gain, walk_arrays
from daskboost.tree.table import LEAF, TreeTable

RANGE_ROWS = 16_384
"""Rows that one task quantizes."""
FIRST_NODES, FIRST_PLACES, FIRST_TOLD = 255, 32, 8
"""Nodes and histograms that there is room for at first, and histograms of words that engines tell each other; a tree
that needs more is begun again with twice as many."""
POLICIES = {"depthwise": DEPTHWISE, "symmetric": SYMMETRIC, "lossguide": LOSSGUIDE}


def why_not_compiled(engine: Engine, spec: FitSpec) -> str:
    """Say why an engine's trees do not grow in compiled calls; empty where they do."""
    recipe = spec.recipe
    reasons = {
        "rows lie on a device": not engine.device.compiles_trees,
        recipe.host_rules: bool(recipe.host_rules),
        "leaves are vectors": recipe.vector_leaves,
        "leaves are quantiles": recipe.quantiles is not None,
        "splits are searched on something else than gradients": recipe.refits,
        "rows are read from disk": not engine.sets.train.is_resident,
        "gradients of all rows have no room": not engine.setup.keeps_round,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class CompiledGrower:
    """Grows the trees of rounds over all rows of an engine, together with its peers."""

    def __init__(self, engine: Engine, spec: FitSpec, peers: Peers) -> None:
        trees = engine.trees
        assert isinstance(trees, TreesOnAllRows)
        self._peers = peers
        self._spec, self._sets, self._gradients = spec, engine.sets, trees.gradients
        self._threads = engine.device.threads
        self._views: list[CpuView] = [view for _, view in engine.sets.train.views()]
        n_slots, n_chunks = spec.layout.n_slots, len(self._views)
        self._chunks = _chunks(self._views, engine)
        self._n_total = sum(peers.share(int(self._chunks.begins[-1])))
        self._nodes = _empty_nodes(FIRST_NODES, n_chunks)
        params = spec.params
        leaves = leaf_limit(params) or FIRST_PLACES
        self._pool = _empty_pool(min(FIRST_PLACES, leaves), self._first_pairs(leaves), n_slots)
        self._rules = by_reference(Rules(
            spec.search_rules.regular, POLICIES[params.grow_policy], params.depth_limit, params.max_leaves,
            self._threads.count, spec.recipe.small_data, _asks_features(params),
        ))  # fmt: skip
        self._step = self._empty_step()
        self._told_units = FIRST_TOLD
        self._meeting, self._told = self._empty_meeting(), list[Int64]()
        small = spec.recipe.small_data
        self._weights = [group.weight for group in engine.sets.train.groups] if small else []
        self._weight = addresses(self._weights) if small else np.zeros(n_chunks, np.int64)
        self._margin = addresses(engine.sets.train.margins)
        self._parts = empty_parts()
        self._state: Growing | None = None
        self._of_tree: Tree | None = None
        self._kept: list[tuple[Array, Array]] = []
        self._g = self._h = self._weight

    def _first_pairs(self, leaves: int) -> int:
        """Histograms of pairs: nodes of more rows than words can hold, and their siblings."""
        n_rows = self._n_total  # of all engines, whose pools are full at the same time
        return 0 if n_rows <= WORD_ROWS else min(leaves, FIRST_PLACES, 2 + 2 * n_rows // WORD_ROWS)

    def _empty_step(self) -> Step:
        """Return arrays for steps of trees of as many nodes as there is room for."""
        capacity, layout, n = len(self._nodes.left), self._spec.layout, self._threads.count
        tasks, n_chunks, n_ranges = shared_tasks(n), len(self._views), len(self._chunks.ranges)
        pieces = tasks + (2 * n + 4) * n_chunks
        n_rows = int(self._chunks.begins[-1])
        large, form = n_rows > LEAST_BLOCK and n > 1, 2 if n_rows > 2 * n * WORD_ROWS else 1
        return by_reference(Step(
            opened=np.empty(capacity + 2, np.int32), chosen=np.empty(capacity, np.int32),
            built=np.empty(capacity, np.int32), derived=np.empty(capacity, np.int32),
            tasks=np.empty((tasks, 3), np.int64), tasks_of=np.empty((capacity, 2), np.int64),
            pieces=np.empty((pieces, 6), np.int64), groups=np.empty(capacity + 1, np.int32),
            small=np.empty(capacity, np.int32),
            partials=np.empty((tasks if large else 0, form * layout.n_slots), np.int64),
            results=_empty_splits(2 * (capacity + 3 * n + 1)), drawn=np.empty((n_ranges, 5), np.int64),
            scratch=np.zeros((n, layout.scratch_entries), np.int64), counts=np.zeros(N_COUNTS, np.int64),
            prefix=np.empty((n, 2, layout.most_slots)), gains=np.empty((n, 2, layout.most_slots)),
            level=np.empty((n, 2, layout.most_slots)), walked=np.empty(capacity, np.int32),
            defaults=np.empty(capacity, np.bool_), one=np.empty(1, np.float32),
        ))  # fmt: skip

    def _empty_meeting(self) -> Meeting:
        """Return arrays for what engines tell each other of as many nodes and histograms as there is room for."""
        layout, peers, capacity = self._spec.layout, self._peers, len(self._nodes.left)
        shares, n = feature_shares(layout, peers.n_peers), peers.n_peers
        begin = FOUND + FOUND_WORDS * (capacity + 1)
        n_words = begin + n * capacity + self._told_units * layout.n_slots if n > 1 else 0
        rooms = peers.common_memory(8 * n_words) if n > 1 else None
        self._rooms: list[Int64] = [] if rooms is None else [room.view(np.int64) for room in rooms]
        return by_reference(Meeting(
            shares=np.array([0, *(last for _, last in shares)]), rank=peers.rank,
            room=self._rooms[peers.rank] if self._rooms else np.zeros(n_words, np.int64), begin=begin,
            rooms=addresses(self._rooms), ends=np.zeros(n + 1, np.int64), units=np.empty(capacity + 1, np.int64),
            told=np.zeros(n, np.int64),
        ))  # fmt: skip

    def _meet(self) -> None:
        """Tell the other engines what they are to know, and learn the same from them; or wait for them, if they tell it
        in memory in common."""
        meeting, counts, peers = self._meeting, self._step.counts, self._peers
        if self._rooms:
            peers.check()
            return
        if counts[STAGE] == HAS_BUILT:
            ends = (meeting.begin + meeting.ends).tolist()
            self._told = peers.exchange([meeting.room[a:b] for a, b in pairwise(ends)])
        else:
            n_words = 3 if counts[STAGE] == HAS_SUMS else FOUND_WORDS * counts[OPENED]
            self._told = peers.share(meeting.room[counts[AT] : counts[AT] + n_words])
        meeting.told[:] = addresses(self._told)
        counts[IS_TOLD] = 0

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Return what gives the finished trees of a round, which are in all margins."""
        trees = tuple(
            self._grow_tree(rows, output, learning_rate) for (output,) in self._spec.recipe.tree_outputs
        )  # fmt: skip
        return lambda: trees

    def _grow_tree(self, rows: RoundRows, output: int, learning_rate: float) -> TreeTable:
        (rounding,) = rows.scales.searched((output,))
        features = FeatureRules(
            self._spec.params, self._spec.cuts.n_features, self._spec.interaction_groups, rows.iteration, output
        )
        while True:
            tree = self._tree(features, output, rounding, learning_rate)
            self._step.counts[STAGE], self._step.counts[IS_TOLD] = STARTS, 0
            state = self._growing(tree)
            if not self._parts.any():
                find_parts(state)
            status, size = grow(state)
            while status in (MEETS, ASKS):
                self._meet() if status == MEETS else self._allow(features, tree.allowed)
                status, size = grow(state)
            if status == DONE:
                break
            self._make_room(status)
        table = self._table(size, rounding)
        self._sets.add_to_evals([(walk_arrays(table), output)])
        return table

    def _growing(self, tree: Tree) -> Growing:
        """Return all that a tree grows with, by reference."""
        of = Growing(
            self._threads.team, self._parts, self._chunks, self._nodes, self._pool, self._step, self._rules, tree,
            self._meeting,
        )  # fmt: skip
        if self._state is None:
            self._state = by_reference(of)
        else:
            renew(self._state, of)
        return self._state

    def _allow(self, features: FeatureRules, allowed: UInt8) -> None:
        """Write which features the nodes may use that are opened."""
        counts, nodes = self._step.counts, self._nodes
        ids = self._step.opened[counts[WAITING] : counts[WAITING] + counts[OPENED]].tolist()
        paths = [self._path(node) for node in ids] if features.by_path else []
        allowed[ids] = features.allowed(ids, nodes.depth[ids].tolist(), paths)

    def _path(self, node: int) -> frozenset[int]:
        """Return the features on a node's path from the root."""
        found = set()
        while (parent := int(self._nodes.parent[node])) >= 0:
            found.add(int(self._nodes.feature[parent]))
            node = parent
        return frozenset(found)

    def _tree(self, features: FeatureRules, output: int, rounding: Rounding, learning_rate: float) -> Tree:
        spec, params = self._spec, self._spec.params
        stored = [self._gradients.source.gradients(index) for index in range(len(self._views))]
        if not self._kept or any(g is not kept for (g, _), (kept, _) in zip(stored, self._kept, strict=True)):
            self._kept = stored
            self._g, self._h = addresses([g for g, _ in stored]), addresses([h for _, h in stored])
        unit_g, unit_h = rounding.units
        of = Tree(
            g=self._g, h=self._h, weight=self._weight, margin=self._margin, output=output,
            n_outputs=spec.objective.n_outputs, quanta=rounding.quanta, draw=rounding.draw, unit_g=unit_g,
            unit_h=unit_h, least_gain=least_gain(params, rounding.noise_gain), learning_rate=float(learning_rate),
            allowed=_allowed(features, params, len(self._nodes.left)),
        )  # fmt: skip
        if self._of_tree is None:
            self._of_tree = by_reference(of)
        else:
            renew(self._of_tree, of)
        return self._of_tree

    def _make_room(self, status: int) -> None:
        """Make twice the room for what there was too little of."""
        n_words, n_pairs = len(self._pool.words), len(self._pool.pairs)
        if status == FULL_NODES:
            self._nodes = _empty_nodes(2 * len(self._nodes.left) + 1, len(self._views))
            self._step = self._empty_step()
        elif status == FULL_TOLD:
            self._told_units *= 2
        else:
            n_words, n_pairs = n_words << (status == FULL_WORDS), n_pairs << (status == FULL_PAIRS)
            self._pool = _empty_pool(n_words, n_pairs, self._spec.layout.n_slots)
        self._meeting = self._empty_meeting()

    def _table(self, size: int, rounding: Rounding) -> TreeTable:
        """Return the finished tree."""
        nodes = self._nodes
        left = nodes.left[:size].copy()
        tree = WalkArrays(
            left, np.where(left == LEAF, LEAF, left + 1).astype(np.int32), nodes.feature[:size].copy(),
            nodes.split_bin[:size].copy(), nodes.default_left[:size] != 0, nodes.value[:size].copy(),
        )  # fmt: skip
        hessian: Float64 = nodes.sums[:size, 1] * np.float64(rounding.units[1])
        return finished_tree(self._spec.cuts, tree, nodes.gain[:size], hessian)


def _asks_features(params: TrainParams) -> bool:
    """Whether nodes of a level may use different features, so that each asks for its own."""
    by_level = params.colsample_bylevel < 1 and params.grow_policy == "lossguide"  # whose levels have no end
    return by_level or draws_by_node(params) or params.interaction_constraints is not None


def _allowed(features: FeatureRules, params: TrainParams, n_nodes: int) -> UInt8:
    """Return the features of each level of a tree; uint8, shape (levels, features), one level where all have the
    same; or room for those of each node."""
    if _asks_features(params):
        return np.empty((n_nodes, len(features.of_tree)), np.uint8)
    same = params.colsample_bylevel == 1 and params.colsample_bynode == 1
    return np.concatenate([
        features.allowed([0], [depth], [frozenset()]) for depth in range(1 if same else params.depth_limit)
    ])  # fmt: skip


def addresses(arrays: Sequence[Array]) -> Int64:
    """Return where the memory of arrays begins; int64, shape (arrays,)."""
    return np.array([host_address(array) for array in arrays], np.int64)


def _chunks(views: Sequence[CpuView], engine: Engine) -> Chunks:
    """Return an engine's rows as compiled code takes them."""
    groups, small = engine.sets.train.groups, engine.setup.recipe.small_data
    begins = np.cumsum([0, *(group.n_rows for group in groups)]).astype(np.int64)
    pairs = PairLayout(1, small)
    order, spare = (RowOrder(np.empty(begins[-1], np.uint32), pairs.empty(int(begins[-1]))) for _ in range(2))
    ranges = []
    for chunk, group in enumerate(groups):
        assert not isinstance(group.pieces, np.ndarray)  # ids that are not consecutive are those of samples
        ends = [begin for begin, _ in group.pieces[1:]] + [group.n_rows]
        for (begin, first_row), end in zip(group.pieces, ends, strict=True):
            for start in range(begin, end, RANGE_ROWS):
                ranges.append((chunk, start, min(start + RANGE_ROWS, end), first_row - begin))
    places = np.array([view.places for view in views], np.int64).reshape(-1, 2, 4)
    layout = engine.setup.layout  # without rows, any kind of bins will do
    common = views[0].common if views else layout.dense_bins(np.empty(0, np.uint8), len(layout.n_bins), 1)
    all_ranges = np.array(ranges, np.int64).reshape(-1, 4)
    return by_reference(Chunks(common, places, layout.n_bins, begins, all_ranges, order, spare))


def _empty_nodes(n: int, n_chunks: int) -> Nodes:
    """Return room for the nodes of a tree."""
    def numbers(dtype: Any, *shape: int) -> Any:
        return np.empty((n, *shape), dtype)

    return by_reference(Nodes(
        parent=numbers(np.int32), depth=numbers(np.int32), left=numbers(np.int32), feature=numbers(np.int32),
        split_bin=numbers(np.int32), default_left=numbers(np.uint8), gain=numbers(np.float64),
        sums=numbers(np.int64, 2), bounds=numbers(np.float64, 2), value=numbers(np.float32),
        segments=numbers(np.int64, n_chunks, 2), n_rows=numbers(np.int64), n_total=numbers(np.int64),
        is_divided=numbers(np.uint8), place=numbers(np.int32), in_words=numbers(np.uint8), found=_empty_splits(n),
    ))  # fmt: skip


def _empty_splits(n: int) -> SplitTable:
    return SplitTable(
        np.empty(n), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.uint8), np.empty((n, 2), np.int64)
    )


def _empty_pool(n_words: int, n_pairs: int, n_slots: int) -> Pool:
    """Return room for histograms."""
    return by_reference(Pool(
        np.empty((n_words, n_slots), np.int64), np.empty((n_pairs, n_slots, 2), np.int64),
        np.empty(n_words, np.int32), np.empty(n_pairs, np.int32), np.zeros(2, np.int64),
    ))  # fmt: skip
