"""The CPU as an engine's device, see `daskboost/devices/protocols.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np

from daskboost.devices.cpu.given_pairs import PairLoops
from daskboost.devices.cpu.gradients import largest
from daskboost.devices.cpu.losses import LOSSES, GradientLoops
from daskboost.devices.cpu.queries import Queries, QueryLoops
from daskboost.devices.cpu.query_lists import ListLoops
from daskboost.devices.cpu.rows import CpuRows, Pieces, Rounding, walk
from daskboost.devices.cpu.samples import CpuCandidates, CpuUniformSample
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import (
    CpuView,
    CsrParts,
    DenseView,
    SlotLayout,
    SparseView,
    WalkArrays,
    joined_entries,
)
from daskboost.devices.cpu.yetirank import OrderLoops
from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.trees.split import SplitKernels
from daskboost.devices.losses import DeviceLoss, KernelLoss, ListLoss, PlacedPairs
from daskboost.devices.sampling import UniformSize
from daskboost.dtypes import Array, ArrayModule, Float32, Float64, Int32, Int64, Symbols

# Histograms of the nodes that a known tree ends in, from one pass over the chunks, each of which is seen once.

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


T = TypeVar("T")


class CpuDevice:
    """Row loops on threads of this process."""

    name = "cpu"
    xp: ArrayModule = np
    group_rows = 2**18
    """Beyond it, a chunk's fixed costs are a few percent."""
    gradient_rows = 8_192
    """The arrays of an objective's expressions then stay in the L2 cache and below the 64 KB from which a Dask worker's
    allocator gives every array back to the system and fetches it anew (2.5 times slower at 256 KB)."""

    compiles_trees = True
    without_host = watches = orders_rows = False
    resident: tuple[int, ...] | None = None
    stream_bytes = 0
    streaming = None
    split_kernels: SplitKernels | None = None
    joined: Collective | None = None
    metric_kernels: MetricKernels | None = None
    metric_rows = ring_bytes = 0

    def __init__(self, layout: SlotLayout, threads: Threads) -> None:
        self._layout, self.threads = layout, threads

    def put(self, array: Float32) -> Float32:
        return array

    def fetch(self, array: Array) -> Array:
        return array

    def fetch_histograms(self, built: Int64) -> Int64:
        return built

    def column_room(self, most_bytes: int) -> int:
        return most_bytes

    def join_room(self, column_bytes: int) -> float:
        return column_bytes

    def dense_view(self, parts: Iterable[Symbols], n_rows: int, *, copy_columns: bool) -> CpuView:
        found = list(parts)
        symbols: Any = found[0] if len(found) == 1 else np.concatenate(found)
        return DenseView(symbols, self._layout, self.threads if copy_columns else None)

    def sparse_view(self, parts: CsrParts, *, copy_columns: bool) -> CpuView:
        return SparseView(*joined_entries(parts, np), self._layout)

    def rows(self, views: Callable[[], Iterable[tuple[int, CpuView]]], sizes: Sequence[int], pieces: Sequence[Pieces],
             weights: Sequence[Float32] | None, *, room_rows: int = 0) -> CpuRows:  # fmt: skip
        """Return the row state; `room_rows` makes no difference, since memory that is freed goes back to the system."""
        return CpuRows(views, sizes, pieces, self._layout, self.threads, weights)

    def query_loops(self, loss: KernelLoss, queries: Queries) -> QueryLoops | ListLoops | PairLoops:
        if isinstance(loss, PlacedPairs):
            return PairLoops(loss, queries, self.threads)
        if isinstance(loss, ListLoss):
            return ListLoops(loss, queries, self.threads)
        return (QueryLoops if loss.orders is None else OrderLoops)(loss, queries, self.threads)

    def uniform_sample(self, size: UniformSize, *, copies_columns: bool) -> CpuUniformSample:
        return CpuUniformSample(self._layout, self.threads, size, copies_columns=copies_columns)

    def candidates(self, n_outputs: int, copies_columns: Callable[[int], bool]) -> CpuCandidates:
        return CpuCandidates(self._layout, self.threads, copies_columns)

    def frontier(self, n_places: int, most_rows: int) -> CpuFrontier:
        return CpuFrontier(n_places, self._layout, self.threads)

    def walker(self, tree: WalkArrays) -> Callable[[CpuView, Float32], None]:
        return lambda view, margin: walk(view, tree, np.arange(len(margin), dtype=np.uint32), margin, self.threads)

    def each_range(self, n_rows: int, work: Callable[[int, int], T]) -> list[T]:
        return self.threads.run([partial(work, begin, end) for begin, end in self.threads.ranges(n_rows)])

    def largest(self, values: Float32) -> Float64:
        return np.array([largest(column, 0, len(column)) for column in values.T], np.float64)

    def project(self, values: Float32, projection: Float32, out: Float32) -> None:
        out[:] = 0
        for output, column in np.argwhere(projection).tolist():
            out[:, column] += values[:, output] * projection[output, column]

    def loss_rows(self, loss: DeviceLoss | None, labels: Sequence[Float32], margins: Sequence[Float32],
                  weights: Sequence[Float32 | None], n_outputs: int, *, small_data: bool, stored: bool,
                  room_rows: int = 0) -> None:  # fmt: skip
        """None: an objective's array expressions, whose temporaries stay in the cache, are the CPU's loops."""

    def gradient_loops(self, loss: DeviceLoss) -> GradientLoops | None:
        return GradientLoops(loss, self.threads.team, self.threads.count) if loss.kernel in LOSSES else None

    def errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.threads.close()
