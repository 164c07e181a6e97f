"""Histograms of the nodes that known trees end in, from one pass over chunks: `devices/cpu/frontier.py` has its twin.

Nothing waits for the device until sums are asked for, and no view is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.known_tree import THREADS, KnownTree, known_tree
from daskboost.devices.gpu.rows import GpuRows, as_columns
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.views import GpuView
from daskboost.dtypes import Int32, Int64


class HistogramRoom:
    """Memory of histograms that is used again from pass to pass: new ones, of another size each, would leave CuPy's
    pool in pieces.

    Parameters
    ----------
    runtime : Runtime
    n_entries : int
        Of a histogram.
    most : int
        Histograms that are expected at most.
    """

    def __init__(self, runtime: Runtime, n_entries: int, most: int) -> None:
        self._runtime, self._n_entries, self._most = runtime, n_entries, most
        self._array: DeviceArray = None

    def take(self, n: int) -> DeviceArray:
        """Room for `n` histograms, in place of those of the time before; int64, shape (n, entries, 2)."""
        if self._array is None or len(self._array) < n:
            self._array = None  # before the next is made
            self._array = self._runtime.xp.empty((max(n, self._most), self._n_entries, 2), np.int64)
        return self._array[:n]


class GpuFrontier:
    """Sums over the rows of places 0 to `n_places`.

    Parameters
    ----------
    runtime : Runtime
    n_places : int
        Nodes of all trees together.
    layout : SlotLayout
    rooms : (HistogramRoom, HistogramRoom)
        For histograms of places and of nodes of a tree; of one frontier at a time.
    """

    def __init__(self, runtime: Runtime, n_places: int, layout: SlotLayout, rooms: tuple[HistogramRoom, HistogramRoom]
                 ) -> None:  # fmt: skip
        self._runtime, self._layout = runtime, layout
        of_places, self._of_nodes = rooms
        self.histograms = of_places.take(n_places)
        self.histograms.fill(0)
        self._sums = runtime.xp.zeros((n_places, 2), np.int64)
        self._known: dict[tuple[int, int], KnownTree] = {}
        """By places."""

    @property
    def sums(self) -> Int64:
        """Integer sums of g and h of all places; int64, shape (places, 2), on the host; waits."""
        found: Int64 = to_host(self._sums)
        return found

    def add(self, view: GpuView, tree: WalkArrays, places: tuple[int, int], gradient: Any, pieces: Pieces,
            weight: DeviceArray | None, rounding: Rounding) -> None:  # fmt: skip
        """Enqueue: a chunk's rows are added to the places `[first, last)` of one tree, see `Frontier`."""
        known = self._known.get(places)
        if known is None:
            known = self._known[places] = known_tree(self._runtime, tree, places[1] - places[0])
        columns, own = as_columns(gradient), slice(*places)
        rows = GpuRows(
            self._runtime, lambda: [], [len(columns.first)], [pieces], self._layout,
            None if weight is None else [weight],
        )  # fmt: skip
        rows.fill_roots(lambda _: columns, rounding)
        rows.move_along(view, rows.chunks[0], known, self._sums[own])
        if rows.chunks[0].n_rows:
            rows.build(view, rows.chunks[0], known.places, self.histograms[own], adds=True)

    def of_nodes(self, nodes: Int32, place: Int32, left: Int32, right: Int32) -> DeviceArray:
        """Histograms of nodes of one tree, see `Frontier`; until those of other nodes are asked for."""
        at = {node: i for i, node in enumerate(nodes.tolist())}
        origins = np.full((len(nodes), 3), -1, np.int32)
        for node, i in at.items():
            origins[i, 0] = place[node]
            if place[node] < 0:
                origins[i, 1:] = at[int(left[node])], at[int(right[node])]
        runtime, n_words = self._runtime, 2 * self._layout.n_entries
        out = self._of_nodes.take(len(nodes))
        runtime.kernel("frontier", "sum_children", SMALL=0)(
            -(-n_words // THREADS), THREADS, self.histograms, n_words, to_device(runtime, origins), len(nodes), out
        )
        return out
