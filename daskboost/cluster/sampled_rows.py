"""An engine whose trees grow on rows that are drawn anew each round, by their gradients (`sampled.py`).

In a pass over all chunks (`streamed_rows.py`) a chunk's gradients are computed, its rows drawn and copied out of its
bins, since the chunk may be gone afterwards. Once all rows' norms are counted, the exact threshold is known: the rows
that it leaves become the sample, with their gradients, which stand for those of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.engine import Engine, EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.row_groups import RowGroup
from daskboost.cluster.shard_margins import row_bytes
from daskboost.cluster.shared_views import SharedViews
from daskboost.cluster.streamed_rows import StreamedEngine, TakenRows
from daskboost.data.chunk import ChunkRows
from daskboost.data.shard import Shard
from daskboost.devices.device import Array, Device, SamplingDevice, View
from daskboost.devices.sampling import N_CELLS, DrawnRows
from daskboost.dtypes import Float64, Int64, UInt64
from daskboost.errors import DeviceError


@dataclass(frozen=True)
class DrawnPart:
    """Candidates of one chunk, as they are at its turn in a pass; all arrays on the device, of shape (rows, ...)."""

    view: View
    """Of them alone."""
    ids: UInt64
    norms: Array
    draws: Array
    g: Array
    h: Array
    """Of all outputs, weighted."""
    margin: Array
    label: Array
    weight: Array


class SampledEngine(StreamedEngine):
    """`Engine` for `out_of_core="sampled"`; the same parameters."""

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharedViews | None = None) -> None:  # fmt: skip
        if not isinstance(device, SamplingDevice):
            raise DeviceError("this device does not draw rows by their gradients; use device='cpu'")
        super().__init__(setup, train, evals, device, peers, shared)
        self._sampling = device
        self._column_room = device.column_room(setup.column_bytes)
        self._parts: list[DrawnPart] = []
        """Candidates of the round."""
        self.sample: SampleEngine = SampleEngine(setup, TakenRows(self.train), device, peers, self._finish_tree)
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
        counts = np.zeros(N_CELLS, np.int64)
        for index in range(len(self.train.groups)):
            self._drawn(index, m.DrawRows(0, np.inf, 0), counts)
        return m.Norms(counts, 0)

    def _draw_rows(self, message: m.DrawRows) -> m.Norms:
        self.sample.hold(TakenRows(self.train))  # frees the last one
        self._parts.clear()
        counts, n_drawn = np.zeros(N_CELLS, np.int64), 0
        for index, view in self.pass_over_rows():
            drawn = self._drawn(index, message, counts)
            n_drawn += len(drawn.rows)
            if n_drawn > message.most_rows:
                self._parts.clear()
            elif len(drawn.rows):
                self._parts.append(self._part(index, view, drawn))
        return m.Norms(counts, n_drawn)

    def _drawn(self, index: int, message: m.DrawRows, counts: Int64) -> DrawnRows:
        """Compute a chunk's gradients and draw its rows."""
        self.compute_gradients(index, find_range=False)
        g, h = self.gradients_of(index)
        if self.setup.by_weight:  # what trees are searched on
            xp = self.device.xp
            h = xp.ascontiguousarray(xp.broadcast_to(self.row_weights(index)[:, None], g.shape))
        pieces = self.train.groups[index].pieces
        return self._sampling.draw_rows(g, h, pieces, message.key, message.threshold, counts)

    def _part(self, index: int, view: View, drawn: DrawnRows) -> DrawnPart:
        rows, weight = drawn.rows, self._weights[index]
        ones = self.device.xp.ones
        g, h = self.gradients_of(index)
        return DrawnPart(
            self._sampling.sample_view([(view, rows)], len(rows), copy_columns=False),
            self.train.groups[index].ids(rows), drawn.norms, drawn.draws, g[rows], h[rows],
            self.train.margins[index][rows], self._labels[index][rows],
            ones(len(rows), np.float32) if weight is None else weight[rows],
        )  # fmt: skip

    def _take_sample(self, message: m.TakeSample) -> m.SampleSize:
        xp, parts = self.device.xp, self._parts
        shares = [xp.minimum(part.norms / message.threshold, 1) for part in parts]
        kept = [xp.flatnonzero(part.draws < share) for part, share in zip(parts, shares, strict=True)]
        n_rows = sum(map(len, kept))
        if n_rows:
            def joined(name: str) -> Array:
                return xp.concatenate([getattr(part, name)[rows] for part, rows in zip(parts, kept, strict=True)])

            share = xp.concatenate([own[rows] for own, rows in zip(shares, kept, strict=True)])
            arrays = {name: joined(name) for name in ("ids", "g", "h", "margin", "label", "weight")}
            copies = 0 < self._column_room >= n_rows * row_bytes(self.train.shard.layout)
            view = self._sampling.sample_view(self._handed_over(kept), n_rows, copy_columns=copies)
            group = RowGroup(range(0), n_rows, arrays["ids"], ChunkRows(arrays["label"]))
            self.sample.hold(TakenRows(self.train, group, view, arrays["margin"]), arrays, share)
        parts.clear()
        return m.SampleSize(n_rows)

    def _handed_over(self, kept: Sequence[Int64]) -> Iterator[tuple[View, Int64]]:
        """Bins of the candidates and which of them are taken; freed one after the other."""
        for rows in kept:
            yield self._parts.pop(0).view, rows


class SampleEngine(Engine):
    """The engine of a round's sample, whose rows come with their gradients; `finish_tree` is its owner's answer."""

    def __init__(self, setup: EngineSetup, nobody: TakenRows, device: Device, peers: Peers | None,
                 finish_tree: Any) -> None:  # fmt: skip
        super().__init__(replace(setup, metrics=(), keep_gradients=True), nobody, [], device, peers)
        self._answers[m.FinishTree] = finish_tree

    def hold(self, train: TakenRows, arrays: dict[str, Array] | None = None, share: Array | None = None) -> None:
        """Take other rows; g, h, label and weight of those, and the share of like rows that each stands for."""
        self.train = train
        self._gradients, self._labels, self._weights, self._sketches = [], [], [], []
        if arrays is not None and share is not None:
            g, h = (self._stretched(arrays[name], share[:, None]) for name in ("g", "h"))
            self._gradients, self._labels = [(g, h)], [arrays["label"]]
            self._weights = [self._stretched(arrays["weight"], share)]
        self.rows = self._make_rows()

    def _stretched(self, values: Array, share: Array) -> Array:
        with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
            return (values / share).astype(np.float32)

    def _range_gradients(self, index: int, all_g: Array, all_h: Array, find_range: bool, begin: int, end: int
                         ) -> Float64 | None:  # fmt: skip
        if self._projection is not None:
            self._sketch_rows(index, slice(begin, end))
        return self._range_of(index, begin, end) if find_range else None
