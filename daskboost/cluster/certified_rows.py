"""An engine whose trees grow on a sample of its rows and are certified on all of them (`certified.py`).

In a pass over all chunks (`streamed_rows.py`) gradients are computed and rounded, rows walk to the nodes of the new
trees and enter their histograms. Gradients so never leave the chunk's turn, and the range that their scale follows from
comes out of the same pass; so does the next sample (`drawn_sample.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.drawn_sample import DrawnRows, DrawnSample
from daskboost.cluster.engine import EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.shared_views import SharedViews
from daskboost.cluster.streamed_rows import StreamedEngine, TakenRows
from daskboost.data.shard import Shard
from daskboost.devices.cpu.chunk_order import RowSplits
from daskboost.devices.device import Array, CertifyingDevice, Device, Frontier, SampleRows, View
from daskboost.dtypes import Int32
from daskboost.errors import DeviceError


class CertifiedEngine(StreamedEngine):
    """`Engine` for `out_of_core="certified"`; the same parameters.

    Parameters
    ----------
    share : float
        Of all rows, those of a sample.
    """

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharedViews | None = None, *, share: float) -> None:  # fmt: skip
        if not isinstance(device, CertifyingDevice):
            raise DeviceError("this device does not certify trees; use device='cpu'")
        self._frontier_rows = FrontierRows()
        super().__init__(setup, train, evals, device, peers, shared)
        with device.errors():
            self._drawn = DrawnRows(self.train, self._labels, self._weights, device, share, setup.column_bytes)
        self.sample: DrawnSample = DrawnSample(setup, self.train, device, peers)
        self._certifying = device
        self._answers |= {
            m.DrawShare: self._draw_share,
            m.StartBelow: self._start_below,
            m.Certify: self._certify,
        }

    def _make_rows(self) -> Any:
        self.train.without_columns()
        return self._frontier_rows

    def _start_below(self, message: m.StartBelow) -> m.NodeSums:
        self._frontier_rows.clear()
        self.forget_search()
        rows = self.sample.rows
        if not isinstance(rows, SampleRows):
            raise DeviceError("this device does not grow trees on samples; use device='cpu'")
        self.sample.handle(m.StartTree((message.output,), (message.rounding,)))
        return m.NodeSums(rows.settle(message.tree, message.n_places))

    def _draw_share(self, message: m.DrawShare) -> m.Done:
        for _ in self._drawing(message.key):
            pass
        return m.Done()

    def _drawing(self, key: int | None) -> Iterator[tuple[int, View]]:
        """`pass_over_rows`, in which the sample of this key is drawn, in place of the one that is there; None keeps
        that."""
        if key is None:
            yield from self.pass_over_rows()
            return
        self.sample.hold(TakenRows(self.train))
        self._drawn.start(key)
        for index, view in self.pass_over_rows():
            yield index, view
            self._drawn.add(index, view)
        self.sample.hold(self._drawn.taken())

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        self.sample.train.add_tree(message.tree, message.output)
        return super()._finish_tree(message)

    def _grow(self, message: m.Grow) -> Any:
        self.forget_search()  # every search of a pass brings all histograms of its own
        return super()._grow(message)

    def _certify(self, message: m.Certify) -> m.Certified:
        self.forget_search()
        self.sample.forget_search()
        ends = np.cumsum([tree.n_places for tree in message.trees]).tolist()
        spans = [(end - tree.n_places, end) for end, tree in zip(ends, message.trees, strict=True)]
        frontier = self._certifying.frontier(ends[-1], max(map(len, self.train.margins), default=0))
        tops = [np.zeros((2, self.setup.objective.n_outputs))]
        for index, view in self._drawing(message.next_key):
            margin, pieces = self.train.margins[index], self.train.groups[index].pieces
            if self.losses is None:
                tops += self.compute_gradients(index)
            else:
                self.losses.find_range(index)
            weight = self._weights[index] if self.setup.small_data else None
            if self.setup.small_data and weight is None:
                weight = self.device.xp.ones(len(margin), np.float32)
            for span, each in zip(spans, message.trees, strict=True):
                gradient = self._computed(index, each.output)
                frontier.add(view, each.tree, span, gradient, pieces, weight, each.rounding)
        if self.losses is not None:
            tops.append(self.losses.found_ranges())
        self._frontier_rows.hold(frontier, message.trees, spans)
        top = np.max(np.stack(tops), axis=0)
        sums = frontier.end_pass()
        return m.Certified(m.GradientRange(top[0], top[1]), tuple(sums[a:b] for a, b in spans))

    def _computed(self, index: int, output: int) -> Any:
        """A column of gradients that are there, as `Rows.start_tree` takes it."""
        if self.losses is not None:
            return self.losses.columns(index, output)
        g, h = self.gradients_of(index)
        return g[:, output], h[:, output]


class FrontierRows:
    """What a pass has found, as rows that histograms are built from: `Grow` reduces and searches them like any."""

    def __init__(self) -> None:
        self._frontier: Frontier | None = None
        self._trees: Sequence[m.CertifiedTree] = ()
        self._spans: Sequence[tuple[int, int]] = ()

    def hold(self, frontier: Frontier, trees: Sequence[m.CertifiedTree], spans: Sequence[tuple[int, int]]) -> None:
        """Keep the sums of a pass until the next."""
        self._frontier, self._trees, self._spans = frontier, trees, spans

    def clear(self) -> None:
        """Free the histograms."""
        self._frontier = None

    def grow(self, splits: RowSplits | None, nodes: Int32, words: bool = False) -> Array:
        """Histograms of nodes of one tree of the pass; see `CertifiedTree.first_node`."""
        assert self._frontier is not None and splits is None
        which = max(k for k, tree in enumerate(self._trees) if tree.first_node <= nodes[0])
        tree, (first, _) = self._trees[which], self._spans[which]
        value = tree.tree.value.astype(np.int32)
        place = np.where((tree.tree.left_child < 0) & (value >= 0), value + first, -1).astype(np.int32)
        own = nodes - np.int32(tree.first_node)
        return self._frontier.of_nodes(own, place, tree.tree.left_child, tree.tree.right_child)
