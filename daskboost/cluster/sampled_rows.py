"""An engine whose trees grow on rows that are drawn anew each round, by their gradients (`sampled.py`).

In a pass over all chunks (`streamed_rows.py`) a chunk's gradients are computed, its rows drawn and copied out of its
bins, since the chunk may be gone afterwards. Once all rows' norms are counted, the exact threshold is known: the rows
that it leaves become the sample, with their gradients, which stand for those of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.engine import EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.shard_margins import ShardMargins, has_room
from daskboost.cluster.shared_views import SharedViews
from daskboost.cluster.streamed_rows import HeldEngine, StreamedEngine, TakenRows
from daskboost.data.shard import Shard
from daskboost.devices.device import Array, Device, SamplingDevice
from daskboost.devices.sampling import RowsToDraw, Sample
from daskboost.dtypes import Float64
from daskboost.errors import DeviceError


class SampledEngine(StreamedEngine):
    """`Engine` for `out_of_core="sampled"`; the same parameters."""

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharedViews | None = None) -> None:  # fmt: skip
        if not isinstance(device, SamplingDevice):
            raise DeviceError("this device does not draw rows by their gradients; use device='cpu'")
        super().__init__(setup, train, evals, device, peers, shared)
        copies = partial(has_room, device.column_room(setup.column_bytes), self.train.shard.layout)
        with device.errors():
            self._candidates = device.candidates(setup.objective.n_outputs, copies)
        self.sample: SampleEngine = SampleEngine(setup, self.train, device, peers, self._finish_tree)
        self._answers |= {
            m.CountNorms: self._count_norms,
            m.DrawRows: self._draw_rows,
            m.TakeSample: self._take_sample,
        }

    def _make_rows(self) -> Any:
        """None: trees grow on the sample."""
        self.train.without_columns()

    def _residual_counts(self, message: m.ResidualCounts) -> m.Counts:
        """Of all rows, for the base score; of leaves, the sample is asked."""
        self.rows = super()._make_rows()
        try:
            return super()._residual_counts(message)
        finally:
            self.rows = self._make_rows()

    def _count_norms(self, message: m.CountNorms) -> m.Norms:
        self._candidates.start(0, np.inf, 0)
        for index in range(len(self.train.groups)):
            self._candidates.add(None, self._rows_to_draw(index))
        return m.Norms(self._candidates.counts, 0)

    def _draw_rows(self, message: m.DrawRows) -> m.Norms:
        self.sample.hold_sample(None)  # frees the last one
        self._candidates.start(message.key, message.threshold, message.most_rows)
        for index, view in self.pass_over_rows():
            self._candidates.add(view, self._rows_to_draw(index))
        return m.Norms(self._candidates.counts, self._candidates.n_drawn)

    def _rows_to_draw(self, index: int) -> RowsToDraw:
        """A chunk's rows with their gradients."""
        gradients: Any
        if self.losses is None:
            self.compute_gradients(index, find_range=False)
            gradients = self.gradients_of(index)
        else:
            self.losses.compute(index)
            gradients = self.losses.columns(index, 0)
        searched = self.row_weights(index) if self.setup.by_weight else None
        own = self.train.margins[index], self._labels[index], self._weights[index]
        return RowsToDraw(index, *own, self.train.groups[index].pieces, gradients, searched)

    def _take_sample(self, message: m.TakeSample) -> m.SampleSize:
        sample = self._candidates.take(message.threshold)
        self.sample.hold_sample(sample)
        return m.SampleSize(0 if sample is None else sample.n_rows)


class SampleEngine(HeldEngine):
    """The engine of a round's sample, whose rows come with their gradients, out of those `of` another engine;
    `finish_tree` is its owner's answer."""

    def __init__(self, setup: EngineSetup, of: ShardMargins, device: Device, peers: Peers | None, finish_tree: Any
                 ) -> None:  # fmt: skip
        super().__init__(replace(setup, metrics=(), keep_gradients=True), TakenRows(of), [], device, peers)
        self._of, self.losses = of, None
        self._answers[m.FinishTree] = finish_tree

    def hold_sample(self, sample: Sample | None) -> None:
        """Take other rows, or none."""
        self._gradients = [] if sample is None else [(sample.g, sample.h)]
        self.hold(TakenRows.of_sample(self._of, sample))

    def _range_gradients(self, index: int, all_g: Array, all_h: Array, find_range: bool, begin: int, end: int
                         ) -> Float64 | None:  # fmt: skip
        if self._projection is not None:
            self._sketch_rows(index, slice(begin, end))
        return self._range_of(index, begin, end) if find_range else None
