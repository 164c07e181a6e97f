"""Trees that grow on rows drawn anew each round, by their gradients (`fit/samplers.py: DrawnRows`).

In a pass over all chunks (`passes.py`) a chunk's gradients are computed, its rows drawn and copied out of its bins,
since the chunk may be gone afterwards. Once all rows' norms are counted, the exact threshold is known: the rows that it
leaves become the sample, with their gradients, which stand for those of all rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from daskboost.devices.protocols import Device
from daskboost.devices.sampling import RowsToDraw, Sample
from daskboost.engine.passes import RowSets, WaitingTrees, taken_rows
from daskboost.engine.row_gradients import Gradients, searched_gradients
from daskboost.engine.setup import Answers, EngineSetup
from daskboost.engine.shard_margins import has_room
from daskboost.engine.tree_rows import HistogramSearch, TreeRows, count_residuals, make_rows
from daskboost.fit import messages as m
from daskboost.fit.peers import Peers


class DrawnTrees:
    """What an engine answers about trees that grow on drawn rows."""

    def __init__(self, setup: EngineSetup, device: Device, sets: RowSets, peers: Peers | None) -> None:
        self._setup, self._device, self._sets = setup, device, sets
        self._gradients = Gradients(setup, device, sets.rows, keep=False)
        self._waiting = WaitingTrees(sets)
        copies = partial(has_room, device.column_room(setup.column_bytes), sets.train.shard.layout)
        self._candidates = device.candidates(setup.objective.n_outputs, copies)
        given = searched_gradients(setup, device, taken_rows(sets.train), keep=True, given=[])
        self._sample = TreeRows(setup, device, HistogramSearch(setup, device, peers), given)

    @property
    def answers(self) -> Answers:
        """What answers each request about trees."""
        return {
            m.ResidualCounts: self._residual_counts,
            m.CountNorms: self._count_norms,
            m.DrawRows: self._draw_rows,
            m.TakeSample: self._take_sample,
            m.FinishTree: self._finish_tree,
            m.Evaluate: self._waiting.evaluate,
        }

    @property
    def sample_answers(self) -> Answers:
        """What answers requests to the sample."""
        return {**self._sample.answers, m.FinishTree: self._finish_tree}

    def _residual_counts(self, message: m.ResidualCounts) -> m.Counts:
        """Count residuals of all rows, for the base score; of leaves, the sample is asked."""
        return count_residuals(make_rows(self._setup, self._device, self._sets.rows), self._sets.rows, message)

    def _count_norms(self, message: m.CountNorms) -> m.Norms:
        self._candidates.start(0, np.inf, 0)
        for index in range(len(self._sets.train.groups)):
            self._candidates.add(None, self._rows_to_draw(index))
        return m.Norms(self._candidates.counts, 0)

    def _draw_rows(self, message: m.DrawRows) -> m.Norms:
        self._hold(None)  # frees the last one
        self._candidates.start(message.key, message.threshold, message.most_rows)
        for index, view in self._waiting.pass_over_rows():
            self._candidates.add(view, self._rows_to_draw(index))
        return m.Norms(self._candidates.counts, self._candidates.n_drawn)

    def _rows_to_draw(self, index: int) -> RowsToDraw:
        """A chunk's rows with their gradients."""
        rows, setup = self._sets.rows, self._setup
        searched = rows.multipliers(index, setup, self._device.xp) if setup.recipe.searched == "weights" else None
        own = self._sets.train.margins[index], rows.labels[index], rows.weights[index]
        pieces = self._sets.train.groups[index].pieces
        return RowsToDraw(index, *own, pieces, self._gradients.source.all_outputs(index), searched)

    def _take_sample(self, message: m.TakeSample) -> m.SampleSize:
        sample = self._candidates.take(message.threshold)
        self._hold(sample)
        return m.SampleSize(0 if sample is None else sample.n_rows)

    def _hold(self, sample: Sample | None) -> None:
        """Have trees grow on other rows, or on none."""
        given = [] if sample is None else [(sample.g, sample.h)]
        self._sample.hold(taken_rows(self._sets.train, sample), given)

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        self._waiting.add(message.tree, message.output)
        return m.Done()

    def stop(self) -> None:
        """Do nothing: it waits for others by their peers."""

    def close(self) -> None:
        """Free nothing: memory goes with the arrays."""
