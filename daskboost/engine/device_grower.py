"""Trees that grow on an engine's device, one launch behind the other: the host is asked for no decision within a tree.

`fit/host_grower.py` grows the same trees and serves all fits; this grower is for those whose recipe and plan do without
the host. Several engines grow them in step, each on its own rows: whatever rows add up to is added up over all of them
on the devices (`devices/gpu/runtime/collective.py`), so that all make the same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.devices.budget.gpu_memory import rounds_that_wait, searched_nodes
from daskboost.devices.gpu.rows.gradients import ALL
from daskboost.devices.gpu.rows.leaf_order import compile_ahead, put_in_leaf_order
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.rows.rounds import CountedRounds
from daskboost.devices.gpu.rows.row_state import ChunkRows, DeviceOrder, GpuRows
from daskboost.devices.gpu.runtime.collective import ALONE, Collective, Sharing
from daskboost.devices.gpu.runtime.launches import DeviceArray, Recorder, overwrite, to_device
from daskboost.devices.gpu.trees.best_first import BestFirstGrower
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.devices.gpu.trees.growth import Around, TreeGrower, TreeInputs, TreeTables
from daskboost.devices.gpu.trees.known_tree import Refit
from daskboost.devices.gpu.trees.leaf_models import LeafFits, LeafRules
from daskboost.devices.gpu.trees.leaf_quantiles import Labels, LeafQuantiles
from daskboost.devices.gpu.trees.node_features import LevelFeatures
from daskboost.devices.gpu.trees.split import SplitKernels
from daskboost.devices.sampling import draws_below
from daskboost.dtypes import Float32, UInt8
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.engine.row_gradients import Gradients, PairKeys
from daskboost.engine.shard_margins import ShardMargins
from daskboost.engine.waiting_rounds import FinishedRound, KeptRound, WaitingRounds
from daskboost.engine.watching import Watch
from daskboost.fit.base_score import weight_scale
from daskboost.fit.messages import MetricParts
from daskboost.fit.rounds import Metrics
from daskboost.fit.samplers import RoundRows, pair_keys
from daskboost.fit.scales import check_range, key_states, scale_rule
from daskboost.fit.spec import FitSpec
from daskboost.tree.constraints import FeatureRules, draws_by_node
from daskboost.tree.device_trees import allowed_features, drawn_sets, growth_rules, levels_are_apart, tree_tables
from daskboost.tree.table import TreeTable


class RowsOnDevice:
    """All rows, in every round: what grows the trees finds the range of their gradients by itself."""

    def rows(self, iteration: int) -> RoundRows:
        return RoundRows(iteration)

    def expect(self, iteration: int) -> None:
        """Ask for nothing."""


@dataclass(frozen=True)
class TreeGroup:
    """Trees of a round that grow together."""

    trees: Sequence[tuple[int, ...]]
    """The outputs of each tree."""
    grower: TreeGrower | BestFirstGrower
    inputs: TreeInputs

    @property
    def outputs(self) -> slice:
        """The outputs of all trees, which follow one another."""
        return slice(self.trees[0][0], self.trees[-1][-1] + 1)

    @property
    def is_first(self) -> bool:
        """Whether it has the first trees of the round."""
        return 0 in self.trees[0]


@dataclass(frozen=True)
class GrownOver:
    """What trees grow over on the GPU of an engine."""

    rows: GpuRows
    gradients: Gradients
    train: ShardMargins
    """Views and margins of the rows."""
    kernels: SplitKernels
    sharing: Sharing
    own: slice
    """The engine's own rows among these."""
    n_trees: int
    """Trees of a round that grow together, at most; as many on all GPUs that are joined."""
    orders_rows: bool
    """Whether the rows are put in the order of a first tree's leaves."""


def own_rows(engine: Engine, joined: Collective) -> GrownOver:
    """Return the rows that an engine has of its own; `joined` : its GPU with those of engines that have others."""
    trees, kernels = engine.trees, engine.device.split_kernels
    assert isinstance(trees, TreesOnAllRows) and kernels is not None
    rows = trees.tree_rows.rows
    assert isinstance(rows, GpuRows)
    return GrownOver(
        rows, trees.gradients, engine.sets.train, kernels, Sharing(rows=joined), slice(None), rows.chunks[0].n_trees,
        engine.device.orders_rows,
    )  # fmt: skip


class DeviceGrower:
    """Grows the trees of rounds on the GPU of an engine, whose plan has trees that do without the host.

    `total_weight` is that of all rows, where data are small. `watch` : metrics that are kept beside the trees.
    """

    def __init__(self, engine: Engine, spec: FitSpec, total_weight: float | None, watch: Watch, over: GrownOver
                 ) -> None:  # fmt: skip
        device, rows, params = engine.device, over.rows, spec.params
        kernels = over.kernels.with_sets(spec.search_rules.regular.sets)
        self._device, self._sets, self._over = device, engine.sets, over
        self._rows, self._spec = rows, spec
        n_rows, n_features = spec.recipe.n_rows, spec.cuts.n_features
        self._rules = growth_rules(params, spec.search_rules, n_rows, n_features, spec.interaction_groups)
        self._runtime = kernels.runtime
        self._rounding = DeviceRounding(kernels.runtime, spec.objective.n_outputs)
        rule_of = partial(scale_rule, total_weight, params.reg_lambda, spec.search_rules.max_delta_step)
        self._exact_rule, self._scale_rule = rule_of(), rule_of(largest_searched=spec.largest_searched)
        self._rounds = CountedRounds(
            kernels.runtime, spec.learning_rates, spec.first_iteration, key_states(params.random_state)
        )
        keys = PairKeys(pair_keys(spec), self._rounds.ended)
        self._source, self._fill = over.gradients.recorded(kernels.runtime, keys, over.sharing.rows)
        self._below = draws_below(spec.recipe.subsample)
        by_weight = spec.recipe.searched == "weights"
        self._gradients = rows.round_gradients(self._source, self._rounding, self._below, by_weight=by_weight)
        rows.chunks[0].start(rows.chunks[0].n_rows)  # how many are sampled is not for the host to know
        shares = {params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode}
        self._every_feature = shares == {1} and not params.ignored_features
        self._groups = self._make_groups(kernels, over.n_trees)
        self._queue = Recorder(kernels.runtime)
        self._orders_rows = over.orders_rows
        """Whether rows are still to be put in the order of a first tree's leaves."""
        if self._orders_rows:
            compile_ahead(kernels.runtime)
        self._refit = Refit(
            kernels.runtime, self._rounding, spec.leaf_rules.regular, rows.quantizers[0], self._below, over.sharing.rows
        ) if spec.recipe.refits else None  # fmt: skip
        self._quantiles = self._leaf_quantiles(over.gradients, over.n_trees)
        rules = LeafRules(float(params.linear_lambda), spec.leaf_rules.min_child_weight, spec.modelled_features)
        self._models = LeafFits(
            kernels.runtime, rules, over.n_trees, self._rules.levels.most_leaves, over.sharing.rows
        ) if spec.recipe.leaf_terms else None  # fmt: skip
        self.watch = watch
        self._estimates = over.gradients.estimates.reshape(-1).view(np.uint8)
        """What rounds have estimated, as bytes."""
        self._trees_bytes = sum(len(group.grower.tables.memory) for group in self._groups)
        self.tables_bytes = self._trees_bytes + len(self._estimates)
        """Bytes of the tables of a round's trees, and of what it has estimated."""
        n_bytes = self.tables_bytes + len(watch.memory)
        self._waiting = WaitingRounds(self._runtime, rounds_that_wait(len(spec.learning_rates), n_bytes), n_bytes)
        """Have tables, then metrics, of each round."""
        self._is_unmeasured = False
        """Whether metrics of the last round are still to be launched."""

    def _make_groups(self, kernels: SplitKernels, n_trees: int) -> list[TreeGroup]:
        """All trees of a round, `n_trees` at a time; the last group may be smaller."""
        n_features, params = self._spec.cuts.n_features, self._spec.params
        grower: TreeGrower | BestFirstGrower
        entries = self._entry_search(kernels)
        if params.grow_policy == "lossguide":
            grower = BestFirstGrower(kernels, self._rules, entries)
        else:
            grower = TreeGrower(kernels, self._rules, n_trees, entries=entries)
        groups: list[TreeGroup] = []
        of_round = self._spec.recipe.tree_outputs
        for first in range(0, len(of_round), n_trees):
            trees = of_round[first : first + n_trees]
            n, own = len(trees), slice(trees[0][0], trees[-1][-1] + 1)
            if isinstance(grower, TreeGrower) and n < n_trees:
                grower = TreeGrower(kernels, self._rules, n, grower)
            inputs = TreeInputs(
                self._rounding.sums[own], self._rounding.scales[own, 3:], self._rounds.learning_rate,
                LevelFeatures(
                    to_device(self._runtime, np.ones((drawn_sets(params), n, n_features), np.uint8)),
                    self._runtime.xp.empty((2, n), np.uint64),
                ),
            )  # fmt: skip
            groups.append(TreeGroup(trees, grower, inputs))
        return groups

    def _leaf_quantiles(self, gradients: Gradients, n_trees: int) -> LeafQuantiles | None:
        """What values leaves by residuals; None where sums of gradients do."""
        spec, (label,), (weight,) = self._spec, gradients.rows.labels, gradients.rows.weights
        if spec.recipe.quantiles is None:
            return None
        labels = Labels(label, weight, weight_scale(spec.largest_weight))
        most_leaves, others = self._rules.levels.most_leaves, self._over.sharing.rows
        return LeafQuantiles(self._runtime, labels, spec.recipe.quantiles, n_trees, most_leaves, others)

    def _entry_search(self, kernels: SplitKernels) -> EntrySearch | None:
        """What finds splits without histograms, where the plan is to do without."""
        ((_, view),) = self._over.train.views()
        if view.sorted_entries is None:
            return None
        rules = self._rules
        n_nodes = searched_nodes(self._spec.params.grow_policy, rules.levels, rules.max_leaves)
        return EntrySearch(kernels, view.sorted_entries, n_nodes)

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Grow the trees of a round and add them to all margins.

        What is returned gives the trees; the host waits for the round's batch then, or when there are as many batches
        as may wait.
        """
        with self._device.errors():
            if self._waiting.is_full:
                self.close_batch()
            self._waiting.make_room()
            self._grow_round(rows.iteration)
            self._waiting.add()  # not before: a round that fails has no tables
            self._is_unmeasured = False  # those of the round before were part of this one
        return partial(self._trees_of, rows.iteration, self.kept())

    def close_batch(self) -> None:
        """Have the host wait for no rounds that come later when it waits for those so far, and their metrics."""
        with self._device.errors():
            if self._is_unmeasured:
                self._queue("metrics", self._measure)
                self._is_unmeasured = False
            self._waiting.close()

    def kept(self) -> KeptRound:
        """Return the last round, as it is kept until its batch is fetched."""
        return self._waiting.last()

    def estimated(self) -> Callable[[], Float32 | None]:
        """Return what gives what the last round has estimated beside its gradients, see `Round.chances`."""
        return partial(self._estimates_of, self.kept())

    def _estimates_of(self, kept: KeptRound) -> Float32 | None:
        if not len(self._estimates):
            return None
        found: Float32 = self.fetched(kept)[self._trees_bytes : self.tables_bytes].view(np.float32).reshape(2, -1)
        return found.copy()

    def evaluate(self) -> None:
        """Have metrics of all margins computed: beside the next round's trees, or before the rounds are fetched."""
        self._is_unmeasured = True

    def _measure(self) -> None:
        """Launch what has the metrics of all margins kept behind the tables of the last round."""
        self.watch.launch()
        self._rounds.keep_of_last(self.watch.memory, self._waiting.ring[:, self.tables_bytes :])

    def fetched(self, kept: KeptRound) -> UInt8:
        """Return the bytes of a round in the host's memory, with those of its batch, which takes no more then."""
        with self._device.errors():
            if not kept.batch.is_closed:
                self.close_batch()
            found = kept.fetched()
            self._over.sharing.check()  # tables of GPUs that were parted may have anything in them
            return found

    def _trees_of(self, iteration: int, kept: KeptRound) -> tuple[TreeTable, ...]:
        """Return the trees of a round in the order of outputs.

        Raises
        ------
        DataError
            Gradients were not finite.
        """
        self.fetched(kept)
        found = kept.batch.finished(self._finished)[kept.place]
        for largest in found.largest:
            check_range(self._spec.objective.name, iteration, *largest)
        return found.trees

    def _finished(self, memory: UInt8) -> list[FinishedRound]:
        """Return the rounds of a batch from its tables, shape (rounds, bytes)."""
        parts, begin = [], 0
        for group in self._groups:
            end, own = begin + len(group.grower.tables.memory), group.grower.tables
            tables = TreeTables(
                memory[:, begin:end], len(group.trees), own.capacity, len(group.trees[0]), own.set_width, own.n_terms
            )
            trees, n = tree_tables(tables, self._spec.cuts), len(group.trees)
            of_rounds = [trees[first : first + n] for first in range(0, len(trees), n)]
            parts.append(zip(tables.rounding[..., 2:4].tolist(), of_rounds, strict=True))
            begin = end
        return [
            FinishedRound([pair for largest, _ in of_groups for pair in largest],
                          tuple(tree for _, trees in of_groups for tree in trees))
            for of_groups in zip(*parts, strict=True)
        ]  # fmt: skip

    def _grow_round(self, iteration: int) -> None:
        """Grow the trees of a round, add them to all margins and keep their tables."""
        self._fill()
        ((_, view),) = self._over.train.views()
        takes_all = self._below == ALL
        sharing = self._over.sharing
        walks = (view.walks_fast or not takes_all) and self._quantiles is None and sharing.sides is ALONE
        reaches_leaves = (not walks and self._refit is None) or self._orders_rows or self._models is not None
        rows = ChunkRows(self._rows, view, self._rows.chunks[0], sharing, takes_all, reaches_leaves)
        begin = 0
        for group in self._groups:
            if not self._every_feature:
                self._draw_features(iteration, group)
            around = Around(
                partial(self._start_trees, rows.chunk, group), partial(self._end_trees, rows, group, begin),
                self._measure if group.is_first else _nothing,
            )  # fmt: skip
            group.grower.grow(group.inputs, rows, self._queue, group.outputs.start, around)
            for margins in self._sets.streamed_evals:  # what is read from files cannot be recorded
                self._walk(margins, group)
            begin += len(group.grower.tables.memory)
        if self._orders_rows:
            self._orders_rows = False
            self._order_rows(rows, self._groups[-1].grower)

    def _order_rows(self, rows: ChunkRows, grower: TreeGrower | BestFirstGrower) -> None:
        """Put all rows in the order of the leaves of a tree that has just grown, before anything is recorded: it is the
        first round, and the tree the first one of those that rows lie in."""
        assert isinstance(grower, TreeGrower)  # the plan says so
        held = self._over.gradients.rows
        values = [held.labels[0], held.train.margins[0], *(own for own in held.weights if own is not None)]
        put_in_leaf_order(rows, grower.leaves[0], values)

    def _draw_features(self, iteration: int, group: TreeGroup) -> None:
        """Draw the features of each level of each output's tree, and what nodes draw by."""
        params, n_features, features = self._spec.params, self._spec.cuts.n_features, group.inputs.features
        drawn = [FeatureRules(params, n_features, None, iteration, outputs[0]) for outputs in group.trees]
        of_level = np.ascontiguousarray(allowed_features(drawn, params).swapaxes(0, 1))
        overwrite(self._runtime, features.of_level, of_level)
        if draws_by_node(params) or levels_are_apart(params):
            overwrite(self._runtime, features.states, np.array([each.states for each in drawn], np.uint64).T)

    def _start_trees(self, chunk: DeviceOrder, group: TreeGroup) -> None:
        """All outputs of a round start from the same margins, so the first ones' trees begin with the range of all."""
        if group.is_first:
            self._gradients.find_range()
            self._over.sharing.rows.find_largest(self._rounding.tops)
            self._rounds.begin(self._rounding, self._scale_rule)
            if self._refit is not None:
                self._refit.find_scales(self._exact_rule)
        self._gradients.quantize(
            group.outputs.start, chunk.order, chunk.pairs, chunk.bounds, len(group.trees), group.grower.tables.capacity
        )
        self._over.sharing.rows.add_up(self._rounding.sums[group.outputs])

    def _end_trees(self, rows: ChunkRows, group: TreeGroup, begin: int) -> None:
        """Add the trees to all margins, and keep their tables, from one byte of the round's on."""
        self._add_to_margins(rows, group)
        self._rounds.keep(group.grower.tables.memory, self._waiting.ring[:, begin:])
        if group.is_first:
            self._rounds.keep(self._estimates, self._waiting.ring[:, self._trees_bytes :])

    def _add_to_margins(self, rows: ChunkRows, group: TreeGroup) -> None:
        train, grower, first = self._over.train, group.grower, group.outputs.start
        margins = train.margins[0][:, group.outputs]
        if self._quantiles is not None and isinstance(grower, TreeGrower):
            self._quantiles(grower.leaves, first, rows.chunk, margins, self._rounds.learning_rate, grower.tables)
        if self._models is not None and isinstance(grower, TreeGrower):
            self._fit_leaves(self._models, rows, group, grower)
            self._walk(train, group)
        elif self._refit is None and rows.reaches_leaves and rows.in_order and isinstance(grower, TreeGrower):
            rows.add_leaves(grower.leaves, grower.tables.values, margins)
        elif self._refit is None:
            self._walk(train, group)
        else:
            self._take_exact_sums(self._refit, rows, group, margins)
        if self._sets.train is not train and self._sets.evaluates_training:
            self._sets.train.margins[0][:, group.outputs] = margins[self._over.own]
        for evaluated in self._sets.resident_evals:
            self._walk(evaluated, group)

    def _take_exact_sums(self, refit: Refit, rows: ChunkRows, group: TreeGroup, margins: DeviceArray | None) -> None:
        """Value leaves of trees that were searched on weights; add the values to margins, if these are given."""
        columns = [self._source.columns(output) for (output,) in group.trees]
        tables, first = group.grower.tables, group.outputs.start
        refit(tables, first, columns, rows.view, rows.chunk, self._rounds.learning_rate, margins)

    def _fit_leaves(self, models: LeafFits, rows: ChunkRows, group: TreeGroup, grower: TreeGrower) -> None:
        """Fit models to leaves, once they have their values."""
        first, refit = group.outputs.start, self._refit
        if refit is not None:
            self._take_exact_sums(refit, rows, group, None)
        rounding = self._rounding.of(first) if refit is None else refit.exact(first)
        models(
            grower.tables, grower.leaves, self._source.columns(first), rounding, self._rows.quantizers[0], rows.view,
            rows.chunk, self._rounds.learning_rate,
        )  # fmt: skip

    def _walk(self, margins: ShardMargins, group: TreeGroup) -> None:
        for index, view in margins.views():
            self._rows.walk(view, group.grower.tables.walk_columns, margins.margins[index][:, group.outputs])


def _nothing() -> None:
    """Launch nothing."""


class WatchedMetrics:
    """Has metrics computed without the host, which fetches them with the trees."""

    def __init__(self, grower: DeviceGrower) -> None:
        self._grower = grower

    def after_round(self) -> Metrics:
        self._grower.evaluate()
        return partial(self._read, self._grower.kept())

    def send(self) -> None:
        """Send nothing: the device keeps the order of launches."""

    def _read(self, kept: KeptRound) -> Sequence[MetricParts]:
        return [self._grower.watch.read(self._grower.fetched(kept)[self._grower.tables_bytes :])]
