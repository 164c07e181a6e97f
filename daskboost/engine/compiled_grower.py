"""Rounds that grow on a CPU in compiled calls (`devices/cpu/rounds.py`), over rows that stay in memory.

`fit/host_grower.py` grows the same trees and serves all fits; this grower is for those whose recipe and rows allow it
(`why_not_compiled`). Several engines grow them in step, and tell each other what they need (`Meeting`). The trees of a
round that has several grow side by side, where each is too little work for all threads (`TreeRoom`). A call grows as
many rounds as are asked for, unless gradients are an objective's array expressions, or metrics are of training rows,
whose margins have all trees that have grown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from daskboost.devices.budget.cpu_memory import trees_at_once
from daskboost.devices.budget.plan import open_histograms
from daskboost.devices.cpu.by_reference import by_reference, change
from daskboost.devices.cpu.grow import empty_parts, find_parts
from daskboost.devices.cpu.growing import (
    BEGUN,
    DEPTHWISE,
    FIRST,
    GROWING,
    LOGGED,
    LOSSGUIDE,
    MOST,
    N_ROUND_COUNTS,
    ROUND,
    SYMMETRIC,
    WANTED,
    Chunks,
    Rounds,
    Rules,
)
from daskboost.devices.cpu.rounds import RoundsCall
from daskboost.devices.cpu.team import rows_of_task
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView
from daskboost.devices.row_order import PairLayout, RowOrder
from daskboost.devices.sampling import draws_below
from daskboost.dtypes import Array, Float32, UInt8
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.engine.query_rows import codes_to_draw
from daskboost.engine.row_gradients import ExpressionGradients
from daskboost.engine.setup import EngineSetup
from daskboost.engine.tree_log import TreeLog
from daskboost.engine.tree_room import RoomPlan, RoomRows, TreeRoom, addresses
from daskboost.fit.base_score import weight_scale
from daskboost.fit.peers import Peers
from daskboost.fit.samplers import RoundRows, start_round
from daskboost.fit.scales import check_range, key_states, scale_rule
from daskboost.fit.spec import FitSpec
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import allowed_features, has_own_features, leaf_limit
from daskboost.tree.growing_tree import walk_arrays
from daskboost.tree.table import TreeTable

POLICIES = {"depthwise": DEPTHWISE, "symmetric": SYMMETRIC, "lossguide": LOSSGUIDE}
ALLOWED_BYTES = 2**20
"""Memory for the features that the trees of a call may use."""


def why_not_compiled(engine: Engine, spec: FitSpec) -> str:
    """Say why an engine's trees do not grow in compiled calls; empty where they do."""
    recipe = spec.recipe
    reasons = {
        "rows lie on a device": not engine.device.compiles_trees,
        recipe.host_rules: bool(recipe.host_rules),
        recipe.interpreted: bool(recipe.interpreted),
        "several engines count the residuals of leaves, which are quantiles":
            recipe.quantiles is not None and recipe.n_engines > 1,
        "several engines add up the equations of leaves, which are linear models":
            recipe.leaf_terms > 0 and recipe.n_engines > 1,
        "rows are read from disk": not engine.sets.train.is_resident,
        "gradients of all rows have no room": not engine.setup.keeps_round,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class CompiledGrower:
    """Grows the trees of rounds over all rows of an engine, together with its peers.

    Parameters
    ----------
    engine : Engine
    spec : FitSpec
    peers : Peers
    total_weight : float or None
        That of all rows, where data are small.
    n_wanted : Callable
        Returns how many rounds are asked for by now, from the next on: they grow in one call, if nothing is to be done
        between them.
    """

    def __init__(self, engine: Engine, spec: FitSpec, peers: Peers, total_weight: float | None,
                 n_wanted: Callable[[], int]) -> None:  # fmt: skip
        trees = engine.trees
        assert isinstance(trees, TreesOnAllRows)
        self._spec, self._sets, self._gradients, self._n_wanted = spec, engine.sets, trees.gradients, n_wanted
        params, small, threads = spec.params, spec.recipe.small_data, engine.device.threads
        self._grown, self._first = deque[tuple[TreeTable, ...]](), 0
        self._chances: Float32 | None = None
        self._is_refused = False
        """Whether gradients of the round after those that have grown are not finite."""
        self._n_processes, self._parts = threads.of_all, empty_parts()
        self._log = TreeLog(spec.search_rules.set_words, spec.recipe.leaf_terms, spec.layout)
        self._n_trees = len(spec.recipe.tree_outputs)
        self._asks = has_own_features(params)
        shares = (params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode)
        self._draws = not self._asks and min(shares) < 1
        self._rounds = self._empty_rounds(engine.setup, total_weight)
        views: list[CpuView] = [view for _, view in engine.sets.train.views()]
        chunks = _chunks(views, engine)
        n_rows = int(chunks.begins[-1])
        rules = Rules(
            spec.search_rules.regular, spec.leaf_rules.regular, POLICIES[params.grow_policy], params.depth_limit,
            params.max_leaves, threads.count, small, self._asks, spec.recipe.leaf_terms, spec.recipe.refits,
            spec.recipe.quantiles is not None,
        )  # fmt: skip
        plan = RoomPlan(
            RoomRows(chunks, peers.share(n_rows), PairLayout(spec.layout.width, small)), spec.layout, rules,
            spec.search_rules.set_words, leaf_limit(params), self._rounds, self._features,
            float(params.linear_lambda), spec.modelled_features, self._parts, peers,
        )  # fmt: skip
        n_open = open_histograms(params.depth_limit, params.grow_policy, n_rows, leaf_limit(params))
        n_rooms = trees_at_once(
            self._n_trees, threads.count, peers.n_peers, n_rows, n_open * spec.layout.n_slots
        )
        self._own_threads = [Threads(max(1, threads.count // n_rooms)) for _ in range(n_rooms if n_rooms > 1 else 0)]
        self._rooms = [TreeRoom(plan, each) for each in self._own_threads or [threads]]
        source = self._gradients.source
        assert isinstance(source, ExpressionGradients)
        filling = source.filling()
        self._call = RoundsCall(threads, self._rounds, filling, n_rooms)
        self._fills, self._most = filling is None, 1 if filling is None or engine.sets.evaluates_training else None
        """Whether gradients are filled here; how many rounds a call may grow, None for any number."""

    def _empty_rounds(self, setup: EngineSetup, total_weight: float | None) -> Rounds:
        """Return what trees have in common, none of which is wanted yet."""
        spec, train, source = self._spec, self._sets.train, self._gradients.source
        n_chunks, n_outputs, rules = len(train.margins), spec.objective.n_outputs, spec.search_rules
        small = spec.recipe.small_data
        self._kept = [source.gradients(chunk) for chunk in range(n_chunks)]
        """Gradients of each chunk: compiled code has their addresses, as it has those of weights and margins."""
        multipliers = partial(self._gradients.rows.multipliers, setup=setup, xp=np)
        none: Sequence[Array | None] = [None] * n_chunks
        self._searched = _contiguous(map(multipliers, range(n_chunks))) if spec.recipe.refits else none
        """What splits are searched on in place of hessians, of each chunk."""
        self._weights = [group.weight for group in train.groups] if small else none
        rows, residuals = self._gradients.rows, spec.recipe.quantiles is not None
        self._residuals = (_contiguous(rows.labels), _contiguous(rows.weights)) if residuals else (none, none)
        """Labels and weights of each chunk's residuals."""
        self._codes = codes_to_draw(spec.recipe, train.groups) or none
        rule_of = partial(scale_rule, total_weight, rules.reg_lambda, rules.max_delta_step)
        return by_reference(Rounds(
            g=addresses([g for g, _ in self._kept]), h=addresses([h for _, h in self._kept]),
            searched=addresses(self._searched), weight=addresses(self._weights),
            label=addresses(self._residuals[0]), residual_weight=addresses(self._residuals[1]),
            weight_scale=weight_scale(spec.largest_weight), quantiles=np.array(spec.recipe.quantiles or (), np.float64),
            margin=addresses(train.margins), n_outputs=n_outputs, n_trees=self._n_trees,
            largest=np.zeros((2, n_outputs)),
            rule=rule_of(largest_searched=spec.largest_searched), leaf_rule=rule_of(),
            gamma=float(spec.params.gamma), below=np.uint64(draws_below(spec.recipe.subsample)),
            codes=addresses(self._codes),
            key_states=key_states(spec.params.random_state), first=spec.first_iteration,
            learning_rates=np.array(spec.learning_rates, np.float64), allowed=self._allowed(1),
            cuts=_as_compiled(spec.cuts.values), cut_offsets=_as_compiled(spec.cuts.offsets), log=self._log.record,
            counts=np.zeros(N_ROUND_COUNTS, np.int64),
        ))  # fmt: skip

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Return what gives the finished trees of a round, which are in the margins of evaluation sets; margins of
        training rows may have those of rounds ahead."""
        if not self._grown and not self._is_refused:
            self._grow_rounds(rows.iteration)
        if not self._grown:
            for largest_g, largest_h in self._rounds.largest.T.tolist():
                check_range(self._spec.objective.name, rows.iteration, largest_g, largest_h)
        trees = self._grown.popleft()
        if self._sets.evals:
            self._sets.add_to_evals([(walk_arrays(tree), output) for output, tree in enumerate(trees)])
        return lambda: trees

    def estimated(self) -> Callable[[], Float32 | None]:
        """Return what gives what the last round's gradients have told beside, see `Round.chances`."""
        chances = self._chances
        return lambda: chances

    def _grow_rounds(self, iteration: int) -> None:
        """Grow as many rounds as are wanted, or fewer if the log has no room for more, or gradients of one are not
        finite: those before it do not tell."""
        self._begin(iteration)
        rooms, counts, n_trees = self._rooms, self._rounds.counts, self._n_trees
        if not self._parts.any():
            find_parts(rooms[0].state, self._n_processes)
        while True:
            self._call.grow([room.state for room in rooms])
            growing = rooms[: counts[GROWING]]
            self._is_refused = any(room.is_refused for room in growing)
            if counts[FIRST] < 0 or self._is_refused:
                break
            for room in growing:
                room.mend()
            self._make_room_in_log()
        n = int(counts[ROUND])
        trees = self._log.tables(n * n_trees)
        self._grown.extend(tuple(trees[k * n_trees : (k + 1) * n_trees]) for k in range(n))

    def _begin(self, iteration: int) -> None:
        """Have as many rounds begin as are wanted, from this one on."""
        rounds, self._first = self._rounds, iteration
        n_left = rounds.first + len(rounds.learning_rates) - iteration
        n = min(n_left, self._most or max(1, self._n_wanted()))
        if self._draws:
            n = max(1, min(n, ALLOWED_BYTES // (self._n_trees * rounds.allowed[0].nbytes)))
            change(rounds, allowed=self._allowed(n))
        rounds.counts[:] = 0
        rounds.counts[FIRST], rounds.counts[WANTED], rounds.counts[BEGUN] = -1, n, iteration
        self._make_room_in_log()
        if self._fills:
            found = self._gradients.start_round(start_round(self._spec, iteration))
            self._chances = found.chances
            rounds.largest[0], rounds.largest[1] = found.largest_g, found.largest_h

    def _make_room_in_log(self) -> None:
        """Have room for what the round may yet grow, which is all that must fit."""
        counts = self._rounds.counts
        left = self._n_trees - max(0, int(counts[FIRST]))
        capacity = max(len(room.nodes.left) for room in self._rooms)
        counts[MOST], n_trees = self._n_trees * capacity, int(counts[WANTED]) * self._n_trees
        self._log.make_room(int(counts[LOGGED]) + left * capacity, n_trees, int(counts[LOGGED]))

    def _features(self, tree: int) -> FeatureRules:
        """Return what the nodes of a tree may use, by its number in the call."""
        spec = self._spec
        after, place = divmod(tree, self._n_trees)
        outputs = spec.recipe.tree_outputs[place]
        return FeatureRules(spec.params, spec.cuts.n_features, spec.interaction_groups, self._first + after, outputs[0])

    def _allowed(self, n_rounds: int) -> UInt8:
        """Return the features of each level of the trees of rounds, see `Rounds.allowed`."""
        n_trees = n_rounds * self._n_trees if self._draws else 1
        if self._asks:
            return np.zeros((1, 1, 1), np.uint8)
        return allowed_features([self._features(tree) for tree in range(n_trees)], self._spec.params)

    def close(self) -> None:
        """End the threads that trees side by side have of their own."""
        for threads in self._own_threads:
            threads.close()


def _contiguous(arrays: Iterable[Array | None]) -> list[Array | None]:
    """Return arrays as compiled code takes them by their addresses, whether they may be written to or not."""
    return [None if array is None else np.ascontiguousarray(array) for array in arrays]


def _as_compiled(array: Array) -> Array:
    """Return an array, or a copy where it may not be written to, as in files: compiled code has one type for both."""
    return np.require(array, requirements=["C", "W"])


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
    return Chunks(places, layout.n_bins, common.offsets, begins, all_ranges, nothing, nothing, common)
