"""Rounds of the only engine of a fit whose trees grow on its device, one launch behind the other.

`coordinator.grown_rounds` gives the same rounds and serves all fits; this is for those that need the host for no
decision within a tree (`tree/device_trees.py: growth_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.coordinator import FitSpec, total_weight_of
from daskboost.cluster.engine import Engine
from daskboost.cluster.outbox import Outbox
from daskboost.cluster.rounding import check_range, sample_bound, scale_rule, tree_keys
from daskboost.cluster.shard_margins import ShardMargins
from daskboost.devices.gpu.best_first import BestFirstGrower
from daskboost.devices.gpu.chunk_rows import ChunkRows
from daskboost.devices.gpu.entry_search import EntrySearch
from daskboost.devices.gpu.gradients import ALL, RoundGradients, Source
from daskboost.devices.gpu.growth import GrowthRules, TreeGrower, TreeInputs, TreeTables
from daskboost.devices.gpu.losses import LossRows, StoredChunk
from daskboost.devices.gpu.memory import ROUNDS_AT_ONCE, searched_nodes
from daskboost.devices.gpu.recorder import Recorder
from daskboost.devices.gpu.refit import Refit
from daskboost.devices.gpu.rounding import DeviceRounding
from daskboost.devices.gpu.rows import DeviceOrder, GpuRows
from daskboost.devices.gpu.runtime import DeviceArray, overwrite, to_host
from daskboost.devices.gpu.split import SplitKernels
from daskboost.devices.gpu.views import CSR, SparseView, walk_trees
from daskboost.dtypes import UInt8
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import allowed_features, drawn_sets, growth_rules, regular_of, tree_tables
from daskboost.tree.table import TreeTable


def device_rounds(engine: Engine, spec: FitSpec) -> DeviceRounds | None:
    """The rounds of a fit over this engine alone; None where its plan has trees that need the host."""
    kernels, rows = engine.device.split_kernels, engine.rows
    rules = growth_rules(spec.params, spec.search_rules)
    if not engine.device.without_host or rules is None or kernels is None or not isinstance(rows, GpuRows):
        return None
    with engine.device.errors():
        return DeviceRounds(engine, rows, spec, kernels, rules, rows.chunks[0].n_trees)


@dataclass(frozen=True)
class TreeGroup:
    """Outputs of a round whose trees grow together."""

    outputs: range
    grower: TreeGrower | BestFirstGrower
    inputs: TreeInputs


class DeviceRounds:
    """Grows rounds; `device_rounds` makes it.

    Parameters
    ----------
    engine : Engine
    rows : GpuRows
        The engine's.
    spec : FitSpec
    kernels : SplitKernels
        Of the engine's device.
    rules : GrowthRules
    n_trees : int
        Outputs of a round whose trees grow together.
    """

    def __init__(self, engine: Engine, rows: GpuRows, spec: FitSpec, kernels: SplitKernels, rules: GrowthRules,
                 n_trees: int) -> None:  # fmt: skip
        self._engine, self._rows, self._spec, self._rules = engine, rows, spec, rules
        self._runtime, params = kernels.runtime, spec.params
        self._rounding = DeviceRounding(kernels.runtime, spec.objective.n_outputs)
        self._source = self._gradient_source()
        self._gradients = RoundGradients(
            self._source, rows.quantizers[0], self._rounding, sample_bound(params), by_weight=spec.searches_weights
        )
        rows.chunks[0].start(rows.chunks[0].n_rows)  # how many are sampled is not for the host to know
        self._learning_rate = kernels.runtime.xp.empty(1)
        shares = {params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode}
        self._every_feature = shares == {1} and not params.ignored_features
        self._groups = self._make_groups(kernels, n_trees)
        self._queue = Recorder(kernels.runtime)
        self._next = 0
        self._refit = Refit(
            kernels.runtime, self._rounding, regular_of(spec.rules), rows.quantizers[0], sample_bound(params)
        ) if spec.refits else None  # fmt: skip
        self._set_rules(None)

    def _set_rules(self, total_weight: float | None) -> None:
        """Decide how gradients are scaled; `total_weight` of all rows where data are small."""
        spec, self._exact_rule = self._spec, scale_rule(total_weight)
        self._scale_rule = scale_rule(
            total_weight, packed=spec.packs_gradients, largest_searched=spec.largest_searched
        )

    def _make_groups(self, kernels: SplitKernels, n_trees: int) -> list[TreeGroup]:
        """All outputs, `n_trees` at a time; the last group may be smaller."""
        xp, n_features, params = self._runtime.xp, self._spec.cuts.n_features, self._spec.params
        grower: TreeGrower | BestFirstGrower
        entries = self._entry_search(kernels)
        if params.grow_policy == "lossguide":
            grower = BestFirstGrower(kernels, self._rules, entries)
        else:
            grower = TreeGrower(kernels, self._rules, n_trees, entries=entries)
        groups: list[TreeGroup] = []
        for outputs in _groups_of(self._spec.objective.n_outputs, n_trees):
            n, own = len(outputs), slice(outputs.start, outputs.stop)
            if isinstance(grower, TreeGrower) and n < n_trees:
                grower = TreeGrower(kernels, self._rules, n, grower)
            inputs = TreeInputs(
                self._rounding.sums[own], self._rounding.scales[own, 3:], self._learning_rate,
                xp.ones((drawn_sets(params), n, n_features), np.uint8),
            )  # fmt: skip
            groups.append(TreeGroup(outputs, grower, inputs))
        return groups

    def _entry_search(self, kernels: SplitKernels) -> EntrySearch | None:
        """What finds splits without histograms, where the plan is to do without."""
        ((_, view),) = self._engine.train.views()
        if not isinstance(view, SparseView) or view.sorted_entries is None:
            return None
        rules = self._rules
        n_nodes = searched_nodes(self._spec.params.grow_policy, rules.depth, rules.max_leaves)
        return EntrySearch(kernels, view.sorted_entries, n_nodes)

    def _gradient_source(self) -> Source:
        losses = self._engine.losses
        if isinstance(losses, LossRows):
            return losses.sources[0]
        stored = self._engine.gradients_of(0)  # filled by `compute_gradients`
        return StoredChunk(self._runtime, *stored, self._engine.row_weights(0))

    def take(self, n: int) -> Iterator[m.Round]:
        """The next `n` rounds, or as many as there are or fit; what fails in one comes after those before it.

        The host waits once, unless rounds are evaluated.
        """
        with self._engine.device.errors():
            yield from self._take(n)

    def _take(self, n: int) -> Iterator[m.Round]:
        start, round_bytes = self._next, sum(len(group.grower.tables.memory) for group in self._groups)
        rates = self._spec.learning_rates[start : start + min(n, ROUNDS_AT_ONCE)]
        if start == 0 and self._spec.small_data:
            self._set_rules(total_weight_of(Outbox(Alone(self._engine))))
        trees = self._runtime.xp.empty((len(rates), round_bytes), np.uint8)
        metrics: list[tuple[m.MetricParts, ...]] = []
        failure: Exception | None = None
        for place, rate in enumerate(rates):
            try:
                self._grow_round(start + place, rate, trees[place])
                metrics.append((self._engine.handle(m.Evaluate()),) if self._spec.eval_names else ())
            except Exception as error:  # such as an objective's
                if not metrics:
                    raise
                failure = error
                break
        self._next += len(metrics)
        host = to_host(trees)
        for place, found in enumerate(metrics):
            yield m.Round(tuple(self._finished(start + place, host[place])), found)
        if failure is not None:
            raise failure

    def _finished(self, index: int, memory: UInt8) -> Iterator[TreeTable]:
        """The trees of the fit's round `index` from their tables, in the order of outputs.

        Raises
        ------
        DataError
            Gradients were not finite.
        """
        begin = 0
        for group in self._groups:
            end = begin + len(group.grower.tables.memory)
            tables = TreeTables(memory[begin:end], len(group.outputs), group.grower.tables.capacity)
            for largest in tables.rounding[:, 2:].tolist():
                check_range(self._spec.objective.name, self._spec.first_iteration + index, *largest)
            yield from tree_tables(tables, self._spec.cuts)
            begin = end

    def _grow_round(self, index: int, learning_rate: float, out: DeviceArray) -> None:
        """Grow the trees of a round, add them to all margins and copy their tables to `out`."""
        spec, iteration = self._spec, self._spec.first_iteration + index
        outputs = range(spec.objective.n_outputs)
        overwrite(self._runtime, self._learning_rate, np.array([learning_rate]))
        self._rounding.put_keys(np.array([tree_keys(spec.params, iteration, output) for output in outputs], np.uint64))
        if not isinstance(self._engine.losses, LossRows):
            self._engine.compute_gradients(0, find_range=False)  # the recorded round does
        ((_, view),) = self._engine.train.views()
        takes_all = sample_bound(spec.params) == ALL
        reaches_leaves = takes_all and view.symbol_bytes == CSR and self._refit is None
        rows = ChunkRows(self._rows, view, self._rows.chunks[0], takes_all, reaches_leaves)
        begin = 0
        for group in self._groups:
            if not self._every_feature:
                overwrite(self._runtime, group.inputs.allowed, self._drawn_features(iteration, group.outputs))
            before, after = partial(self._start_trees, rows.chunk, group), partial(self._add_to_margins, rows, group)
            group.grower.grow(group.inputs, rows, self._queue, group.outputs.start, before, after)
            for margins in self._engine.evals:
                if not margins.is_resident:  # what is read from files cannot be recorded
                    self._walk(margins, group)
            memory = group.grower.tables.memory
            out[begin : begin + len(memory)] = memory
            begin += len(memory)

    def _drawn_features(self, iteration: int, outputs: range) -> UInt8:
        """Of each level of each output's tree; uint8, shape (levels, outputs, features)."""
        params, n_features = self._spec.params, self._spec.cuts.n_features
        return np.stack([
            allowed_features(FeatureRules(params, n_features, None, iteration, output), params) for output in outputs
        ], axis=1)  # fmt: skip

    def _start_trees(self, chunk: DeviceOrder, group: TreeGroup) -> None:
        """All outputs of a round start from the same margins, so the first ones' trees begin with the range of all."""
        first = group.outputs.start
        if first == 0:
            self._gradients.find_range()
            self._rounding.find_scales(self._scale_rule)
            if self._refit is not None:
                self._refit.find_scales(self._exact_rule)
        self._gradients.quantize(
            first, chunk.order, chunk.pairs, chunk.bounds, len(group.outputs), group.grower.tables.capacity
        )

    def _add_to_margins(self, rows: ChunkRows, group: TreeGroup) -> None:
        train, grower = self._engine.train, group.grower
        if self._refit is None and rows.reaches_leaves and isinstance(grower, TreeGrower):
            for leaves, output in zip(grower.leaves, group.outputs, strict=True):
                rows.add_leaf_values(leaves, grower.tables.values, train.margins[0][:, output])
        elif self._refit is None:
            self._walk(train, group)
        else:
            first, columns = group.outputs.start, [self._source.columns(output) for output in group.outputs]
            margins = train.margins[0][:, first : group.outputs.stop]
            self._refit(grower.tables, first, columns, rows.view, rows.chunk, self._learning_rate, margins)
        for evaluated in self._engine.evals:
            if evaluated.is_resident:
                self._walk(evaluated, group)

    def _walk(self, margins: ShardMargins, group: TreeGroup) -> None:
        columns, outputs = group.grower.tables.walk_columns, slice(group.outputs.start, group.outputs.stop)
        for index, view in margins.views():
            walk_trees(self._runtime, view, columns, margins.margins[index][:, outputs])


def _groups_of(n_outputs: int, n_trees: int) -> list[range]:
    return [range(first, min(first + n_trees, n_outputs)) for first in range(0, n_outputs, n_trees)]


class Alone:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: object, /) -> list[object]:
        return [self._engine.handle(message)]
