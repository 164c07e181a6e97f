"""Histograms of the nodes that known trees end in, from one pass over chunks: `devices/cpu/frontier.py` has its twin.

Nothing waits for the device until sums are asked for, and no view is kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.gradients import GradientPair, Quantizer
from daskboost.devices.gpu.known_tree import THREADS, KnownTree, known_tree
from daskboost.devices.gpu.rounding import DeviceRounding, OutputRounding
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
        self._array: DeviceArray | None = None

    def take(self, n: int) -> DeviceArray:
        """Room for `n` histograms, in place of those of the time before; int64, shape (n, entries, 2)."""
        array = self._array
        if array is None or len(array) < n:
            array = self._array = None  # before the next is made
            array = self._array = self._runtime.xp.empty((max(n, self._most), self._n_entries, 2), np.int64)
        found: DeviceArray = array[:n]
        return found


class PassMemory:
    """What all passes of an engine use again: of small chunks hundreds come in a pass, each in as little time as it
    takes the host to launch some forty kernels, so that nothing may be made or uploaded for each that can be kept.

    Parameters
    ----------
    runtime : Runtime
    layout : SlotLayout
    most_places, most_nodes : int
        Histograms of places and of a tree's nodes that are expected at most.
    """

    def __init__(self, runtime: Runtime, layout: SlotLayout, most_places: int, most_nodes: int) -> None:
        self.runtime, self.layout = runtime, layout
        self.of_places = HistogramRoom(runtime, layout.n_entries, most_places)
        self.of_nodes = HistogramRoom(runtime, layout.n_entries, most_nodes)
        self._quantizers: dict[Hashable, Quantizer] = {}

    def quantizer(self, pieces: Pieces, n_rows: int, weight: DeviceArray | None) -> Quantizer:
        """Return the quantizer of a chunk, by its rows' global ids; `weight` : of small data's rows."""
        if weight is not None or isinstance(pieces, np.ndarray):
            return Quantizer(self.runtime, pieces, n_rows, weight)
        key = n_rows, tuple(pieces)
        if key not in self._quantizers:
            self._quantizers[key] = Quantizer(self.runtime, pieces, n_rows)
        return self._quantizers[key]


@dataclass(frozen=True)
class _Tree:
    """One of a pass, on the device."""

    known: KnownTree
    rounding: OutputRounding


class GpuFrontier:
    """Sums over the rows of places 0 to `n_places`.

    Parameters
    ----------
    memory : PassMemory
        Of one frontier at a time.
    n_places : int
        Nodes of all trees together.
    most_rows : int
        Of a chunk.
    """

    def __init__(self, memory: PassMemory, n_places: int, most_rows: int) -> None:
        self._runtime, self._memory, self._most_rows = memory.runtime, memory, most_rows
        self.histograms = memory.of_places.take(n_places)
        self.histograms.fill(0)
        self._sums = self._runtime.xp.zeros((n_places, 2), np.int64)
        self._trees: dict[tuple[int, int], _Tree] = {}
        """By places."""
        self._rows: GpuRows | None = None
        """With one chunk, whose memory each chunk of the pass has in turn."""

    def end_pass(self) -> Int64:
        """Integer sums of g and h of all places; int64, shape (places, 2), on the host; waits. All but histograms is
        freed."""
        found: Int64 = to_host(self._sums)
        self._rows = None
        self._trees.clear()
        return found

    def add(self, view: GpuView, tree: WalkArrays, places: tuple[int, int], gradient: GradientPair, pieces: Pieces,
            weight: DeviceArray | None, rounding: Rounding) -> None:  # fmt: skip
        """Enqueue: a chunk's rows are added to the places `[first, last)` of one tree, see `Frontier`."""
        own, columns, these = self._tree(tree, places, rounding), as_columns(gradient), slice(*places)
        n_rows = len(columns.first)
        if n_rows == 0:
            return
        if self._rows is None:
            weights = [np.empty(0, np.float32)] if weight is not None else None  # which the quantizers have
            self._rows = GpuRows(
                self._runtime, lambda: [], [max(n_rows, self._most_rows)], [()], self._memory.layout, weights
            )
        rows, chunk = self._rows, self._rows.chunks[0]
        chunk.n_rows = n_rows
        chunk.start(n_rows)
        self._memory.quantizer(pieces, n_rows, weight)(
            columns, own.rounding, rounding.sample_below, chunk.order, chunk.pairs, chunk.bounds
        )
        rows.move_to_leaves(view, chunk, own.known, self._sums[these])
        rows.build(view, chunk, own.known.leaves, self.histograms[these], adds=True)

    def _tree(self, tree: WalkArrays, places: tuple[int, int], rounding: Rounding) -> _Tree:
        """What its first chunk uploads for the others."""
        if places not in self._trees:
            known, decided = known_tree(self._runtime, tree, places[1] - places[0]), DeviceRounding(self._runtime, 1)
            decided.put(0, rounding)
            self._trees[places] = _Tree(known, decided.of(0))
        return self._trees[places]

    def of_nodes(self, nodes: Int32, place: Int32, left: Int32, right: Int32) -> DeviceArray:
        """Histograms of nodes of one tree, see `Frontier`; until those of other nodes are asked for."""
        at = {node: i for i, node in enumerate(nodes.tolist())}
        origins = np.full((len(nodes), 3), -1, np.int32)
        for node, i in at.items():
            origins[i, 0] = place[node]
            if place[node] < 0:
                origins[i, 1:] = at[int(left[node])], at[int(right[node])]
        runtime, n_words = self._runtime, 2 * self._memory.layout.n_entries
        out = self._memory.of_nodes.take(len(nodes))
        runtime.kernel("frontier", "sum_children", SMALL=0)(
            -(-n_words // THREADS), THREADS, self.histograms, n_words, to_device(runtime, origins), len(nodes), out
        )
        return out
