"""Rounds of the only engine of a fit whose trees grow on its device, one launch behind the other.

`coordinator.grown_rounds` gives the same rounds and serves all fits; this is for those that need the host for no
decision within a tree (`tree/device_trees.py: growth_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.coordinator import FitSpec, total_weight_of
from daskboost.cluster.engine import Engine
from daskboost.cluster.outbox import Outbox
from daskboost.cluster.rounding import check_range, sample_bound, scale_rule, tree_keys
from daskboost.cluster.shard_margins import ShardMargins
from daskboost.devices.gpu.best_first import BestFirstGrower
from daskboost.devices.gpu.gradients import ALL, RoundGradients, Source
from daskboost.devices.gpu.growth import GrowthRules, TreeGrower, TreeInputs, TreeTables
from daskboost.devices.gpu.losses import LossRows, StoredChunk
from daskboost.devices.gpu.memory import ROUNDS_AT_ONCE
from daskboost.devices.gpu.recorder import Recorder
from daskboost.devices.gpu.refit import Refit
from daskboost.devices.gpu.rounding import DeviceRounding
from daskboost.devices.gpu.rows import ChunkRows, DeviceOrder, GpuRows
from daskboost.devices.gpu.runtime import DeviceArray, overwrite, to_host
from daskboost.devices.gpu.split import SplitKernels
from daskboost.devices.gpu.views import walk_nodes
from daskboost.dtypes import UInt8
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import allowed_features, growth_rules, tree_tables
from daskboost.tree.table import TreeTable


def device_rounds(engine: Engine, spec: FitSpec) -> DeviceRounds | None:
    """The rounds of a fit over this engine alone; None where its plan has trees that need the host."""
    kernels, rows = engine.device.split_kernels, engine.rows
    rules = growth_rules(spec.params, spec.rules)
    if not engine.device.without_host or rules is None or kernels is None or not isinstance(rows, GpuRows):
        return None
    with engine.device.errors():
        return DeviceRounds(engine, rows, spec, kernels, rules)


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
    """

    def __init__(self, engine: Engine, rows: GpuRows, spec: FitSpec, kernels: SplitKernels, rules: GrowthRules
                 ) -> None:  # fmt: skip
        self._engine, self._rows, self._spec, self._rules = engine, rows, spec, rules
        self._runtime = kernels.runtime
        xp, n_features, params = kernels.runtime.xp, len(kernels.layout.host.n_bins), spec.params
        self._rounding = DeviceRounding(kernels.runtime, spec.objective.n_outputs)
        self._source = self._gradient_source()
        self._gradients = RoundGradients(
            self._source, rows.quantizers[0], self._rounding, sample_bound(params)
        )
        rows.chunks[0].start(rows.chunks[0].n_rows)  # how many are sampled is not for the host to know
        self._learning_rate = xp.empty(1)
        shares = {params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode}
        self._every_feature = shares == {1} and not params.ignored_features
        by_level = params.colsample_bylevel < 1 or params.colsample_bynode < 1
        self._allowed = xp.ones((rules.depth if by_level else 1, 1, n_features), np.uint8)
        by_leaf = params.grow_policy == "lossguide"
        self._grower = BestFirstGrower(kernels, rules) if by_leaf else TreeGrower(kernels, rules, 1)
        self._queue = Recorder(kernels.runtime)
        self._next = 0
        packed = spec.packs_gradients
        self._scale_rule = scale_rule(None, packed=packed)
        self._refit = Refit(
            kernels.runtime, self._rounding, scale_rule(None), rules.regular, rows.quantizers[0], sample_bound(params)
        ) if packed else None  # fmt: skip

    def _gradient_source(self) -> Source:
        losses = self._engine.losses
        if isinstance(losses, LossRows):
            return losses.sources[0]
        return StoredChunk(self._runtime, *self._engine.gradients_of(0))  # filled by `compute_gradients`

    def take(self, n: int) -> Iterator[m.Round]:
        """The next `n` rounds, or as many as there are or fit; what fails in one comes after those before it.

        The host waits once, unless rounds are evaluated.
        """
        with self._engine.device.errors():
            yield from self._take(n)

    def _take(self, n: int) -> Iterator[m.Round]:
        start, n_outputs = self._next, self._spec.objective.n_outputs
        rates = self._spec.learning_rates[start : start + min(n, ROUNDS_AT_ONCE)]
        if start == 0 and self._spec.small_data:
            self._scale_rule = scale_rule(total_weight_of(Outbox(Alone(self._engine))))
        trees = self._runtime.xp.empty((len(rates) * n_outputs, len(self._grower.tables.memory)), np.uint8)
        metrics: list[tuple[m.MetricParts, ...]] = []
        failure: Exception | None = None
        for place, rate in enumerate(rates):
            try:
                self._grow_round(start + place, rate, trees[place * n_outputs : (place + 1) * n_outputs])
                metrics.append((self._engine.handle(m.Evaluate()),) if self._spec.eval_names else ())
            except Exception as error:  # such as an objective's
                if not metrics:
                    raise
                failure = error
                break
        self._next += len(metrics)
        host = to_host(trees)
        for place, found in enumerate(metrics):
            grown = host[place * n_outputs : (place + 1) * n_outputs]
            yield m.Round(tuple(self._finished(start + place, memory) for memory in grown), found)
        if failure is not None:
            raise failure

    def _finished(self, index: int, memory: UInt8) -> TreeTable:
        """A tree of the fit's round `index` from its tables.

        Raises
        ------
        DataError
            Its gradients were not finite.
        """
        tables = TreeTables(memory, 1, self._grower.tables.capacity)
        check_range(
            self._spec.objective.name, self._spec.first_iteration + index, *tables.rounding[0, 2:].tolist()
        )
        return tree_tables(tables, self._spec.cuts)[0]

    def _grow_round(self, index: int, learning_rate: float, out: DeviceArray) -> None:
        """Grow the trees of a round, add them to all margins and copy their tables to `out`."""
        spec, iteration = self._spec, self._spec.first_iteration + index
        outputs = range(spec.objective.n_outputs)
        overwrite(self._runtime, self._learning_rate, np.array([learning_rate]))
        self._rounding.put_keys(np.array([tree_keys(spec.params, iteration, output) for output in outputs], np.uint64))
        if not isinstance(self._engine.losses, LossRows):
            self._engine.compute_gradients(0, find_range=False)  # the recorded round does
        ((_, view),) = self._engine.train.views()
        rows = ChunkRows(self._rows, view, self._rows.chunks[0], sample_bound(spec.params) == ALL)
        for output in outputs:
            if not self._every_feature:
                features = FeatureRules(spec.params, spec.cuts.n_features, None, iteration, output)
                overwrite(self._runtime, self._allowed, allowed_features(features, spec.params)[:, None])
            this = slice(output, output + 1)
            inputs = TreeInputs(
                self._rounding.sums[this], self._rounding.scales[this, 3:], self._learning_rate, self._allowed
            )
            before, after = partial(self._start_tree, rows.chunk, output), partial(self._add_to_margins, rows, output)
            self._grower.grow(inputs, rows, self._queue, output, before, after)
            for margins in self._engine.evals:
                if not margins.is_resident:  # what is read from files cannot be recorded
                    self._walk(margins, output)
            out[output] = self._grower.tables.memory

    def _start_tree(self, chunk: DeviceOrder, output: int) -> None:
        """All outputs of a round start from the same margins, so the first one's tree begins with the range of all."""
        if output == 0:
            self._gradients.find_range()
            self._rounding.find_scales(self._scale_rule)
            if self._refit is not None:
                self._refit.find_scales()
        self._gradients.quantize(output, chunk.order, chunk.pairs, chunk.bounds)

    def _add_to_margins(self, rows: ChunkRows, output: int) -> None:
        train = self._engine.train
        if self._refit is None:
            self._walk(train, output)
        else:
            self._refit(
                self._grower.tables, output, self._source.columns(output), rows.view, rows.chunk, self._learning_rate,
                train.margins[0][:, output],
            )  # fmt: skip
        for margins in self._engine.evals:
            if margins.is_resident:
                self._walk(margins, output)

    def _walk(self, margins: ShardMargins, output: int) -> None:
        columns = self._grower.tables.walk_columns(0)
        for index, view in margins.views():
            walk_nodes(self._runtime, view, columns, margins.margins[index][:, output])


class Alone:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: object, /) -> list[object]:
        return [self._engine.handle(message)]
