"""Trees that grow on a CPU in one compiled call each (`devices/cpu/grow.py`), over rows that stay in memory.

`fit/host_grower.py` grows the same trees and serves all fits; this grower is for those of one engine whose recipe and
rows allow it (`why_not_compiled`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from daskboost.devices.budget.cpu_memory import shared_tasks
from daskboost.devices.cpu.grow import (
    DEPTHWISE,
    DONE,
    FULL_NODES,
    FULL_PAIRS,
    FULL_WORDS,
    LEAST_BLOCK,
    LOSSGUIDE,
    N_COUNTS,
    SYMMETRIC,
    Chunks,
    Growing,
    Nodes,
    Pool,
    Rules,
    Step,
    Tree,
    addresses_of_parts,
    grow,
)
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.split import SplitTable
from daskboost.devices.cpu.views import CpuView, WalkArrays, host_address
from daskboost.devices.row_order import PairLayout, RowOrder
from daskboost.dtypes import Array, Float64, Int64, UInt8
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.fit.samplers import RoundRows
from daskboost.fit.spec import FitSpec
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import leaf_limit
from daskboost.tree.growing_tree import finished_tree, least_gain, walk_arrays
from daskboost.tree.table import LEAF, TreeTable

RANGE_ROWS = 16_384
"""Rows that one task quantizes."""
FIRST_NODES, FIRST_PLACES = 255, 32
"""Nodes and histograms that there is room for at first; a tree that needs more is begun again with twice as many."""
POLICIES = {"depthwise": DEPTHWISE, "symmetric": SYMMETRIC, "lossguide": LOSSGUIDE}


def why_not_compiled(engine: Engine, spec: FitSpec) -> str:
    """Say why the trees of a fit's only engine do not grow in compiled calls; empty where they do."""
    recipe, params = spec.recipe, spec.params
    reasons = {
        "rows lie on a device": not engine.device.compiles_trees,
        recipe.host_rules: bool(recipe.host_rules),
        "leaves are vectors": recipe.vector_leaves,
        "leaves are quantiles": recipe.quantiles is not None,
        "interaction_constraints depend on a node's path": params.interaction_constraints is not None,
        "colsample_bynode draws features for each node":
            params.colsample_bynode < 1 and params.grow_policy != "symmetric",
        "colsample_bylevel draws features for levels that best-first trees do not have":
            params.colsample_bylevel < 1 and params.grow_policy == "lossguide",
        "splits are searched on something else than gradients": recipe.refits,
        "rows are read from disk": not engine.sets.train.is_resident,
        "gradients of all rows have no room": not engine.setup.keeps_round,
        "there are no rows": not engine.sets.train.margins,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class CompiledGrower:
    """Grows the trees of rounds over all rows of the only engine of a fit."""

    def __init__(self, engine: Engine, spec: FitSpec) -> None:
        trees = engine.trees
        assert isinstance(trees, TreesOnAllRows)
        self._spec, self._sets, self._gradients = spec, engine.sets, trees.gradients
        self._threads = engine.device.threads
        self._views: list[CpuView] = [view for _, view in engine.sets.train.views()]
        n_slots, n_chunks = spec.layout.n_slots, len(self._views)
        self._chunks = _chunks(self._views, engine)
        self._nodes = _empty_nodes(FIRST_NODES, n_chunks)
        params = spec.params
        leaves = leaf_limit(params) or FIRST_PLACES
        self._pool = _empty_pool(min(FIRST_PLACES, leaves), self._first_pairs(leaves), n_slots)
        self._rules = Rules(
            spec.search_rules.regular, POLICIES[params.grow_policy], params.depth_limit, params.max_leaves,
            self._threads.count, spec.recipe.small_data,
        )  # fmt: skip
        self._step = self._empty_step()
        small = spec.recipe.small_data
        self._weights = [group.weight for group in engine.sets.train.groups] if small else []
        self._weight = addresses(self._weights) if small else np.zeros(n_chunks, np.int64)
        self._margin = addresses(engine.sets.train.margins)
        self._parts: Int64 | None = None
        self._kept: list[tuple[Array, Array]] = []
        self._g = self._h = self._weight

    def _first_pairs(self, leaves: int) -> int:
        """Histograms of pairs: nodes of more rows than words can hold, and their siblings."""
        n_rows = int(self._chunks.begins[-1])
        return 0 if n_rows <= WORD_ROWS else min(leaves, FIRST_PLACES, 2 + 2 * n_rows // WORD_ROWS)

    def _empty_step(self) -> Step:
        """Return arrays for steps of trees of as many nodes as there is room for."""
        capacity, layout, n = len(self._nodes.left), self._spec.layout, self._threads.count
        tasks, n_chunks, n_ranges = shared_tasks(n), len(self._views), len(self._chunks.ranges)
        pieces = tasks + (2 * n + 4) * n_chunks
        n_rows = int(self._chunks.begins[-1])
        large, form = n_rows > LEAST_BLOCK and n > 1, 2 if n_rows > 2 * n * WORD_ROWS else 1
        return Step(
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
        )  # fmt: skip

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Return what gives the finished trees of a round, which are in all margins."""
        trees = tuple(
            self._grow_tree(rows, output, learning_rate) for (output,) in self._spec.recipe.tree_outputs
        )  # fmt: skip
        return lambda: trees

    def _grow_tree(self, rows: RoundRows, output: int, learning_rate: float) -> TreeTable:
        (rounding,) = rows.scales.searched((output,))
        tree = self._tree(rows.iteration, output, rounding, learning_rate)
        while True:
            state = Growing(
                self._threads.team, self._chunks, self._nodes, self._pool, self._step, self._rules, tree
            )
            if self._parts is None:
                self._parts = addresses_of_parts(state)
            status, size = grow(self._parts, state)
            if status == DONE:
                break
            self._make_room(status)
        table = self._table(size, rounding)
        self._sets.add_to_evals([(walk_arrays(table), output)])
        return table

    def _tree(self, iteration: int, output: int, rounding: Rounding, learning_rate: float) -> Tree:
        spec, params = self._spec, self._spec.params
        stored = [self._gradients.source.gradients(index) for index in range(len(self._views))]
        if not self._kept or any(g is not kept for (g, _), (kept, _) in zip(stored, self._kept, strict=True)):
            self._kept = stored
            self._g, self._h = addresses([g for g, _ in stored]), addresses([h for _, h in stored])
        features = FeatureRules(params, spec.cuts.n_features, None, iteration, output)
        unit_g, unit_h = rounding.units
        return Tree(
            g=self._g, h=self._h, weight=self._weight, margin=self._margin, output=output,
            n_outputs=spec.objective.n_outputs, quanta=rounding.quanta, draw=rounding.draw, unit_g=unit_g,
            unit_h=unit_h, least_gain=least_gain(params, rounding.noise_gain), learning_rate=float(learning_rate),
            allowed=_allowed(features, params),
        )  # fmt: skip

    def _make_room(self, status: int) -> None:
        """Make twice the room for what there was too little of."""
        n_words, n_pairs = len(self._pool.words), len(self._pool.pairs)
        if status == FULL_NODES:
            self._nodes = _empty_nodes(2 * len(self._nodes.left) + 1, len(self._views))
            self._step = self._empty_step()
        else:
            n_words, n_pairs = n_words << (status == FULL_WORDS), n_pairs << (status == FULL_PAIRS)
            self._pool = _empty_pool(n_words, n_pairs, self._spec.layout.n_slots)

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


def _allowed(features: FeatureRules, params: TrainParams) -> UInt8:
    """Return the features of each level of a tree; uint8, shape (levels, features), one level where all have the
    same."""
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
    places = np.array([view.places for view in views], np.int64)
    return Chunks(
        views[0].common, places, engine.setup.layout.n_bins, begins, np.array(ranges, np.int64), order, spare
    )


def _empty_nodes(n: int, n_chunks: int) -> Nodes:
    """Return room for the nodes of a tree."""
    def numbers(dtype: Any, *shape: int) -> Any:
        return np.empty((n, *shape), dtype)

    return Nodes(
        parent=numbers(np.int32), depth=numbers(np.int32), left=numbers(np.int32), feature=numbers(np.int32),
        split_bin=numbers(np.int32), default_left=numbers(np.uint8), gain=numbers(np.float64),
        sums=numbers(np.int64, 2), bounds=numbers(np.float64, 2), value=numbers(np.float32),
        segments=numbers(np.int64, n_chunks, 2), n_rows=numbers(np.int64), is_divided=numbers(np.uint8),
        place=numbers(np.int32), in_words=numbers(np.uint8), found=_empty_splits(n),
    )  # fmt: skip


def _empty_splits(n: int) -> SplitTable:
    return SplitTable(
        np.empty(n), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.uint8), np.empty((n, 2), np.int64)
    )


def _empty_pool(n_words: int, n_pairs: int, n_slots: int) -> Pool:
    """Return room for histograms."""
    return Pool(
        np.empty((n_words, n_slots), np.int64), np.empty((n_pairs, n_slots, 2), np.int64),
        np.empty(n_words, np.int32), np.empty(n_pairs, np.int32), np.zeros(2, np.int64),
    )  # fmt: skip
