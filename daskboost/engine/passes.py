"""Passes over all rows, between which trees grow on a sample: each chunk comes once, for all that wants its bins.

Margins of training rows wait for the next pass, which adds all trees that were finished since the last one; margins of
evaluation sets wait until they are evaluated. The sample has bins, margins and a row order of its own, in the device's
memory: to trees it is another shard of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from daskboost.data.chunk import ChunkRows
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.device import View
from daskboost.devices.sampling import TakenSample
from daskboost.engine.gradients import GrowingRows
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.row_sets import RowSets
from daskboost.engine.shard_margins import ShardMargins
from daskboost.fit.messages import Evaluate, MetricParts


class WaitingTrees:
    """Trees that margins do not have yet.

    Parameters
    ----------
    sets : RowSets
    """

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
    group = RowGroup(range(0), sample.n_rows, sample.ids, ChunkRows(sample.label, sample.weight))
    margins = replace(
        of, groups=(group,), margins=(sample.margin,), views=lambda: iter(((0, sample.view),)), is_resident=True,
        room_rows=sample.room_rows,
    )  # fmt: skip
    return GrowingRows(margins, (group.label,), (group.rows.weight,))
