"""Passes over all rows, between which trees grow on a sample: each chunk comes once, for all that wants its bins.

Margins of training rows wait for the next pass, which adds all trees that were finished since the last one; margins of
evaluation sets wait until they are evaluated. The sample has bins, margins and a row order of its own, in the device's
memory: to trees it is another shard of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from daskboost.data.chunks.shard import Shard
from daskboost.data.input.row_columns import RowColumns
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.protocols import Device, View
from daskboost.devices.sampling import TakenSample
from daskboost.engine.chunk_views import ViewRoom, Views
from daskboost.engine.evaluation import EvaluatedRows, Evaluator
from daskboost.engine.row_gradients import GrowingRows
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.setup import EngineSetup
from daskboost.engine.shard_margins import EVALUATION, TRAINING, ShardMargins, SharesViews
from daskboost.exact_sum import ExactSum, stacked
from daskboost.fit import messages as m
from daskboost.fit.messages import Evaluate, MetricParts
from daskboost.fit.peers import ONLY, Peers

# The rows that an engine holds, on its device: the training set and evaluation sets, with their margins.

T = TypeVar("T")
SUMMED_ROWS = 2**18
"""Rows whose labels one thread sums: a millisecond, of which what a sum costs beside its rows is a tenth."""


class RowSets:
    """All rows of an engine; parameters are those of `Engine`."""

    def __init__(self, setup: EngineSetup, device: Device, train: Shard, evals: Sequence[Shard],
                 shared: SharesViews | None, peers: Peers = ONLY) -> None:  # fmt: skip
        self._device, self.peers = device, peers
        resident = device.resident or (None,) * (1 + len(evals))
        column_bytes = device.column_room(setup.column_bytes)

        def margins(shard: Shard, room: ViewRoom, rank: int, views: Views | None = None) -> ShardMargins:
            if views is None and shared is not None:
                views = shared.of(shard, device, setup.layout, room, rank)
            return ShardMargins.of(shard, device, setup.layout, setup.objective.n_outputs, room, views)

        on_sample = setup.recipe.on_sample
        own_room = ViewRoom(column_bytes, resident[0], device.stream_bytes, copies_columns=not on_sample)
        self.train = margins(train, own_room, TRAINING)
        self.rows = GrowingRows.of(self.train, device)
        self.evals: list[ShardMargins] = []
        """Margins of rows that are evaluated, but for those that are kept for training rows anyway."""
        self.evaluators: list[Evaluator] = []
        self.evaluates_training = False
        """Whether metrics are of margins that trees grow on."""
        # Where trees grow on a sample, margins of training rows wait for the next pass: they lag behind.
        current = () if on_sample else (self.train,)
        for metrics, shard, n_resident in zip(setup.metrics, evals, resident[1:], strict=True):
            kept = next((own for own in (*current, *self.evals) if shard.has_chunks_of(own.shard)), None)
            if kept is None and shard.has_chunks_of(train):  # then only margins are others
                kept = margins(shard, own_room, EVALUATION, self.train.views)
                self.evals.append(kept)
            elif kept is None:
                kept = margins(shard, ViewRoom(0, n_resident, device.stream_bytes), EVALUATION)
                self.evals.append(kept)
            self.evaluates_training |= kept is self.train
            evaluated = EvaluatedRows(shard, kept, device)
            self.evaluators.append(Evaluator(device, setup.objective, metrics, evaluated, peers))
        self.resident_evals = [each for each in self.evals if each.is_resident]
        self.streamed_evals = [each for each in self.evals if not each.is_resident]

    def set_base(self, message: m.SetBaseMargin) -> m.Done:
        """Start all margins at one, where rows bring none."""
        for margins in (self.train, *self.evals):
            margins.set_base(message.margin)
        return m.Done()

    def add_tree(self, message: m.AddTree) -> m.Done:
        """Add a tree to all margins."""
        self.train.add_trees([(message.tree, message.output)])
        self.add_to_evals([(message.tree, message.output)])
        return m.Done()

    def add_to_evals(self, trees: Sequence[tuple[WalkArrays, int]]) -> None:
        """Add trees to the margins of evaluation sets, in one pass."""
        for margins in self.evals:
            margins.add_trees(trees)

    def evaluate(self, message: m.Evaluate) -> m.MetricParts:
        """Return the metrics' partial states with the margins as they are."""
        return m.MetricParts([evaluator.states() for evaluator in self.evaluators])

    def label_sums(self, message: m.LabelSums) -> m.ExactParts:
        """Return exact sums of the weighted labels and of the weights of all training rows."""
        labels, weights = ExactSum(), ExactSum()
        for label, weight in self._summed(RowGroup.label_sums):
            labels, weights = labels + label, weights + weight
        return m.ExactParts(labels.to_array(), weights.to_array())

    def total_weight(self, message: m.TotalWeight) -> m.ClassSums:
        """Return the exact sum of the weights of all training rows."""
        return m.ClassSums(stacked([sum(self._summed(RowGroup.weight_sum), ExactSum())]))

    def class_weights(self, message: m.ClassWeights) -> m.ClassSums:
        """Return exact sums of the weights of all training rows by class."""
        sums = [ExactSum()] * message.n_classes
        for found in self._summed(RowGroup.class_weights):
            for own, weight in found.items():
                sums[own] += weight
        return m.ClassSums(stacked(sums))

    def _summed(self, sums_of: Callable[[RowGroup, int, int], T]) -> list[T]:
        """Return what `sums_of` finds in ranges of the training rows, on all threads."""
        return self._device.threads.run([
            partial(sums_of, part, begin, min(begin + SUMMED_ROWS, part.n_rows))
            for part in self.train.groups for begin in range(0, part.n_rows, SUMMED_ROWS)
        ])  # fmt: skip


class WaitingTrees:
    """Trees that margins do not have yet."""

    def __init__(self, sets: RowSets) -> None:
        self._sets = sets
        self._untrained: list[tuple[WalkArrays, int]] = []
        """Trees and outputs that the margins of the training rows do not have yet."""
        self._unevaluated: list[tuple[WalkArrays, int]] = []
        """The same of the evaluation sets'."""

    def add(self, tree: WalkArrays, output: int) -> None:
        """Have a finished tree wait."""
        self._untrained.append((tree, output))
        if self._sets.evals:
            self._unevaluated.append((tree, output))

    def evaluate(self, message: Evaluate) -> MetricParts:
        """Bring the margins of evaluation sets up to date, and evaluate them."""
        if self._unevaluated:
            self._sets.add_to_evals(self._unevaluated)
        self._unevaluated.clear()
        return self._sets.evaluate(message)

    def pass_over_rows(self) -> Iterator[tuple[int, View]]:
        """Give each chunk's index and view, once; by then its margins have every finished tree."""
        yield from self._sets.train.adding(self._untrained)
        self._untrained.clear()


def taken_rows(of: ShardMargins, sample: TakenSample | None = None) -> GrowingRows:
    """Return some rows of a shard as a single chunk, or none: with bins and margins of their own.

    `of` : where they come from; `sample` : the rows with what goes with them, which lies on the device already.
    """
    if sample is None:
        return GrowingRows(replace(of, groups=(), margins=(), views=lambda: iter(()), is_resident=True), (), ())
    group = RowGroup(range(0), sample.n_rows, sample.ids, RowColumns(sample.label, sample.weight))
    margins = replace(
        of, groups=(group,), margins=(sample.margin,), views=lambda: iter(((0, sample.view),)), is_resident=True,
        room_rows=sample.room_rows,
    )  # fmt: skip
    return GrowingRows(margins, (group.label,), (group.rows.weight,))
