"""Histograms of the nodes that a known tree ends in, from one pass over the chunks, each of which is seen once."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu.rows import CpuRows, Pieces, Rounding
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, SlotLayout, WalkArrays
from daskboost.dtypes import Float32, Int32, Int64


class CpuFrontier:
    """Sums over the rows of places 0 to `n_places`.

    Parameters
    ----------
    n_places : int
        Nodes of all trees together.
    layout : SlotLayout
    threads : Threads
    """

    def __init__(self, n_places: int, layout: SlotLayout, threads: Threads) -> None:
        self._layout, self._threads = layout, threads
        self.histograms: Int64 = np.zeros((n_places, layout.n_entries, 2), np.int64)
        self._sums: Int64 = np.zeros((n_places, 2), np.int64)

    def end_pass(self) -> Int64:
        """Integer sums of g and h of all places; int64, shape (places, 2)."""
        return self._sums

    def add(self, view: CpuView, tree: WalkArrays, places: tuple[int, int], gradient: tuple[Float32, Float32],
            pieces: Pieces, weight: Float32 | None, rounding: Rounding) -> None:  # fmt: skip
        """Add a chunk's rows to the places `[first, last)` of one tree, whose leaves hold them as values, from 0 on."""
        first, last = places
        weights = None if weight is None else [weight]
        rows = CpuRows(lambda: [(0, view)], [len(gradient[0])], [pieces], self._layout, self._threads, weights)
        rows.start_tree(lambda _: gradient, rounding)
        self._sums[first:last] += rows.settle(tree, last - first)
        rows.add_histograms(np.arange(last - first, dtype=np.int32), self.histograms[first:last])

    def of_nodes(self, nodes: Int32, place: Int32, left: Int32, right: Int32) -> Int64:
        """Histograms of nodes of one tree, in increasing order: of a place, or the sum of the children's, which are
        among the nodes. int64, shape (nodes, entries, 2)."""
        out = np.empty((len(nodes), *self.histograms.shape[1:]), np.int64)
        at = {node: i for i, node in enumerate(nodes.tolist())}
        for node, i in reversed(at.items()):
            if place[node] >= 0:
                out[i] = self.histograms[place[node]]
            else:
                np.add(out[at[int(left[node])]], out[at[int(right[node])]], out=out[i])
        return out
