"""Trees that grow on a CPU in one compiled call each (`devices/cpu/grow.py`), over rows that stay in memory.

`fit/host_grower.py` grows the same trees and serves all fits; this grower is for those whose recipe and rows allow it
(`why_not_compiled`). Several engines grow them in step, and tell each other what they need (`Meeting`). The trees of a
round that has several grow side by side, where each is too little work for all threads (`TreeRoom`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise

import numpy as np

from daskboost.devices.budget.cpu_memory import trees_at_once
from daskboost.devices.budget.plan import open_histograms
from daskboost.devices.cpu.grow import (
    DEPTHWISE,
    LOSSGUIDE,
    SYMMETRIC,
    Chunks,
    Rules,
    Tree,
    empty_parts,
    find_parts,
    grow,
)
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.side_by_side import SideBySide
from daskboost.devices.cpu.team import rows_of_task
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, WalkArrays
from daskboost.devices.row_order import PairLayout, RowOrder
from daskboost.dtypes import Array, Float64, UInt8
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.engine.tree_room import RoomRows, TreeRoom, addresses
from daskboost.fit.peers import Peers
from daskboost.fit.samplers import RoundRows
from daskboost.fit.spec import FitSpec
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import allowed_features, has_own_features, leaf_limit
from daskboost.tree.growing_tree import finished_tree, least_gain, walk_arrays
from daskboost.tree.table import LEAF, TreeTable

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
        self._peers, self._spec, self._sets, self._gradients = peers, spec, engine.sets, trees.gradients
        views: list[CpuView] = [view for _, view in engine.sets.train.views()]
        small, n_chunks = spec.recipe.small_data, len(views)
        chunks = _chunks(views, engine)
        n_rows = int(chunks.begins[-1])
        rows = RoomRows(chunks, peers.share(n_rows), PairLayout(1, small))
        self._weights = [group.weight for group in engine.sets.train.groups] if small else []  # kept in memory
        self._weight = addresses(self._weights) if small else np.zeros(n_chunks, np.int64)
        self._margin = addresses(engine.sets.train.margins)
        self._g, self._h = np.zeros(n_chunks, np.int64), np.zeros(n_chunks, np.int64)
        self._stored: list[tuple[Array, Array]] = []
        """Gradients of each chunk, whose addresses `_g` and `_h` have."""
        self._parts, threads = empty_parts(), engine.device.threads
        self._n_processes = threads.count
        params = spec.params
        n_open = open_histograms(params.depth_limit, params.grow_policy, n_rows, leaf_limit(params))
        n_rooms = trees_at_once(
            len(spec.recipe.tree_outputs), threads.count, peers.n_peers, n_rows, n_open * spec.layout.n_slots
        )
        self._own_threads = [Threads(max(1, threads.count // n_rooms)) for _ in range(n_rooms if n_rooms > 1 else 0)]
        self._asks = has_own_features(params)
        rules = Rules(
            spec.search_rules.regular, POLICIES[params.grow_policy], params.depth_limit, params.max_leaves,
            threads.count, small, self._asks,
        )  # fmt: skip
        self._rooms = [
            TreeRoom(rows, spec.layout, rules, leaf_limit(params), each, self._parts, peers)
            for each in self._own_threads or [threads]
        ]
        self._together = SideBySide(threads, n_rooms) if n_rooms > 1 else None
        shares = (params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode)
        draws = self._asks or min(shares) < 1
        self._same_features = None if draws else self._allowed(self._features(0, 0))
        """What all trees may use; None where that differs."""

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Return what gives the finished trees of a round, which are in all margins."""
        stored = [self._gradients.source.gradients(index) for index in range(len(self._g))]
        if not self._stored or any(g is not kept for (g, _), (kept, _) in zip(stored, self._stored, strict=True)):
            self._stored = stored
            self._g[:], self._h[:] = addresses([g for g, _ in stored]), addresses([h for _, h in stored])
        outputs = iter([output for (output,) in self._spec.recipe.tree_outputs])
        trees: list[TreeTable] = []
        while some := list(islice(outputs, len(self._rooms))):
            trees += self._grow_trees(rows, some, learning_rate)
        return lambda: tuple(trees)

    def _grow_trees(self, rows: RoundRows, outputs: Sequence[int], learning_rate: float) -> list[TreeTable]:
        """Grow the trees of as many outputs as there are rooms."""
        roundings = rows.scales.searched(outputs)
        rooms = self._rooms[: len(outputs)]
        for room, output, rounding in zip(rooms, outputs, roundings, strict=True):
            self._begin(room, rows.iteration, output, rounding, learning_rate)
        if not self._parts.any():
            find_parts(rooms[0].state, self._n_processes)
        growing = rooms
        while growing:
            if len(growing) == 1 or self._together is None:
                grow(growing[0].state)
            else:
                self._together.grow([room.state for room in growing])
            growing = [room for room in growing if room.goes_on()]
        tables = self._tables(rooms, roundings)
        self._sets.add_to_evals([(walk_arrays(table), output) for table, output in zip(tables, outputs, strict=True)])
        return tables

    def _begin(self, room: TreeRoom, iteration: int, output: int, rounding: Rounding, learning_rate: float) -> None:
        spec, allowed = self._spec, self._same_features
        features = self._features(iteration, output) if allowed is None else None
        if features is not None:
            allowed = self._allowed(features)
        assert allowed is not None
        unit_g, unit_h = rounding.units
        room.begin(Tree(
            g=self._g, h=self._h, weight=self._weight, margin=self._margin, output=output,
            n_outputs=spec.objective.n_outputs, quanta=rounding.quanta, draw=rounding.draw, unit_g=unit_g,
            unit_h=unit_h, least_gain=least_gain(spec.params, rounding.noise_gain),
            learning_rate=float(learning_rate), allowed=allowed,
        ), features if self._asks else None)  # fmt: skip

    def _features(self, iteration: int, output: int) -> FeatureRules:
        spec = self._spec
        return FeatureRules(spec.params, spec.cuts.n_features, spec.interaction_groups, iteration, output)

    def _allowed(self, features: FeatureRules) -> UInt8:
        """Return the features of each level of a tree, see `Tree.allowed`; where each node is asked for, those that it
        draws from, until the room has a place for those of nodes."""
        return features.of_tree[None] if self._asks else allowed_features(features, self._spec.params)

    def _tables(self, rooms: Sequence[TreeRoom], roundings: Sequence[Rounding]) -> list[TreeTable]:
        """Return the finished trees, made as one of all nodes and taken apart."""
        sizes = [room.size for room in rooms]
        nodes = [(room.nodes, size) for room, size in zip(rooms, sizes, strict=True)]
        left = np.concatenate([each.left[:size] for each, size in nodes])
        feature = np.concatenate([each.feature[:size] for each, size in nodes])
        split_bin = np.concatenate([each.split_bin[:size] for each, size in nodes])
        default_left = np.concatenate([each.default_left[:size] for each, size in nodes])
        value = np.concatenate([each.value[:size] for each, size in nodes])
        gain = np.concatenate([each.gain[:size] for each, size in nodes])
        hessian: Float64 = np.concatenate([
            each.sums[:size, 1] * np.float64(rounding.units[1])
            for (each, size), rounding in zip(nodes, roundings, strict=True)
        ])  # fmt: skip
        right = left + (left != LEAF).astype(np.int32)
        walked = WalkArrays(left, right, feature, split_bin, default_left != 0, value)
        table = finished_tree(self._spec.cuts, walked, gain, hessian)
        if len(rooms) == 1:
            return [table]
        return [table.part(begin, end) for begin, end in pairwise(np.cumsum([0, *sizes]).tolist())]

    def close(self) -> None:
        """End the threads that trees side by side have of their own."""
        for threads in self._own_threads:
            threads.close()


def _chunks(views: Sequence[CpuView], engine: Engine) -> Chunks:
    """Return an engine's rows as compiled code takes them, with no memory yet for their order."""
    groups, small = engine.sets.train.groups, engine.setup.recipe.small_data
    begins = np.cumsum([0, *(group.n_rows for group in groups)]).astype(np.int64)
    nothing = RowOrder(np.empty(0, np.uint32), PairLayout(1, small).empty(0))
    ranges, size = [], rows_of_task(int(begins[-1]), engine.device.threads.count)
    for chunk, group in enumerate(groups):
        assert not isinstance(group.pieces, np.ndarray)  # ids that are not consecutive are those of samples
        ends = [begin for begin, _ in group.pieces[1:]] + [group.n_rows]
        for (begin, first_row), end in zip(group.pieces, ends, strict=True):
            for start in range(begin, end, size):
                ranges.append((chunk, start, min(start + size, end), first_row - begin))
    places = np.array([view.places for view in views], np.int64).reshape(-1, 2, 4)
    layout = engine.setup.layout  # without rows, any kind of bins will do
    common = views[0].common if views else layout.dense_bins(np.empty(0, np.uint8), len(layout.n_bins), 1)
    all_ranges = np.array(ranges, np.int64).reshape(-1, 4)
    return Chunks(common, places, layout.n_bins, begins, all_ranges, nothing, nothing)
