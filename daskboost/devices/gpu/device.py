"""A GPU as an engine's device, see `daskboost/devices/protocols.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from daskboost.devices.budget import set_size as stream_groups
from daskboost.devices.budget.plan import GpuGradients, Plan
from daskboost.devices.cpu.queries import Queries
from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CsrParts, SlotLayout, WalkArrays, joined_entries
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.rows.given_pairs import PairKernels
from daskboost.devices.gpu.rows.gradients import (
    GradientPair,
    LossRows,
    Quantizer,
    has_softmax_kernel,
    largest,
    loss_source,
    project,
)
from daskboost.devices.gpu.rows.metrics import SCORE_ROWS, MetricKernels
from daskboost.devices.gpu.rows.queries import QueryKernels
from daskboost.devices.gpu.rows.query_lists import ListKernels
from daskboost.devices.gpu.rows.rounding import DeviceRounding, OutputRounding
from daskboost.devices.gpu.rows.row_state import GpuRows, as_columns
from daskboost.devices.gpu.rows.samples import GpuCandidates, GpuUniformSample, RoomSize
from daskboost.devices.gpu.rows.streamed import ChunkStream, DenseChunks, SparseChunks
from daskboost.devices.gpu.rows.vector_rows import VectorRows
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.devices.gpu.rows.yetirank import OrderKernels
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, lack_of_memory, to_device, to_host
from daskboost.devices.gpu.runtime.ring import PackedChunks, Ring
from daskboost.devices.gpu.runtime.transfers import download
from daskboost.devices.gpu.trees.known_tree import THREADS, KnownTree, device_tree, known_tree
from daskboost.devices.gpu.trees.split import SplitKernels, VectorKernels
from daskboost.devices.losses import DeviceLoss, KernelLoss, ListLoss, LossKernel, PlacedPairs
from daskboost.devices.sampling import UniformSize
from daskboost.dtypes import Float32, Float64, Int32, Int64, Symbols, UInt8
from daskboost.errors import format_bytes

# Histograms of the nodes that known trees end in, from one pass over chunks: `devices/cpu/device.py` has its twin.
#
# Nothing waits for the device until sums are asked for, and no view is kept.

class HistogramRoom:
    """Memory of histograms that is used again from pass to pass, with room for `most` from the beginning: new ones, of
    another size each, would leave CuPy's pool in pieces."""

    def __init__(self, runtime: Runtime, n_entries: int, most: int) -> None:
        self._runtime, self._n_entries, self._most = runtime, n_entries, most
        self._array: DeviceArray | None = None

    def take(self, n: int) -> DeviceArray:
        """Room for `n` histograms, in place of those of the time before; int64, shape (n, entries, 2)."""
        array = self._array
        if array is None or len(array) < n:
            array = self._array = None  # before the next is made
            array = self._array = self._runtime.xp.empty((max(n, self._most), self._n_entries, 2), np.int64)
        return array[:n]


class PassMemory:
    """What all passes of an engine use again: of small chunks hundreds come in a pass, each in as little time as it
    takes the host to launch some forty kernels, so that nothing may be made or uploaded for each that can be kept."""

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
    """Sums over the rows of places 0 to `n_places`, nodes of all trees together, in the memory of one frontier at a
    time; chunks have at most `most_rows` rows."""

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
            known = known_tree(self._runtime, tree, places[1] - places[0], self._memory.layout.n_bins)
            decided = DeviceRounding(self._runtime, 1)
            decided.put(0, rounding)
            self._trees[places] = _Tree(known, decided.of(0))
        return self._trees[places]

    def of_nodes(self, nodes: Int32, place: Int32, left: Int32, right: Int32) -> DeviceArray:
        """Histograms of nodes of one tree as `empty_histograms` gives them, see `Frontier`; until those of other nodes
        are asked for."""
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
        return out[:, :, None]


@dataclass(frozen=True)
class TreeKind:
    """Classes of what trees of a fit grow by."""

    rows: type[GpuRows]
    kernels: type[SplitKernels]


SCALAR = TreeKind(GpuRows, SplitKernels)
VECTOR = TreeKind(VectorRows, VectorKernels)


def tree_kind(layout: SlotLayout) -> TreeKind:
    """Return the kind of trees whose histograms are laid out so."""
    return VECTOR if layout.width > 1 else SCALAR


T = TypeVar("T")

MOST_ROWS = 2**31
"""Most rows of a view, which are numbered by 32 bits."""
COLUMN_SHARE = 4
"""Without a plan, column-major copies take at most this part of what memory is free when the engine starts."""


def unplanned(free_bytes: int) -> Plan:
    """Return what a device goes by that has no plan of a fit: parts that are planned without bytes take what they need
    when they need it."""
    return Plan(
        "cuda", None, chunks_bytes=0, columns_bytes=free_bytes // COLUMN_SHARE, order_bytes=0, gradients_bytes=0,
        margins_bytes=0, labels_bytes=0, histograms_bytes=0, evaluation_bytes=0, scratch_bytes=0,
        stream_bytes=stream_groups.GROUP_BYTES,
    )  # fmt: skip


def kernel_gradients(loss: DeviceLoss | None, n_outputs: int, *, stored: bool) -> GpuGradients:
    """Return how a GPU has the gradients of a loss: from kernels, or from "expressions" where none computes them.
    `stored` : whether those of all outputs must be there for a round."""
    if loss is None:
        return "expressions"
    if loss.kernel == LossKernel.SOFTMAX:
        return "stored" if has_softmax_kernel(n_outputs) else "expressions"
    return "expressions" if stored else "computed"


class GpuDevice:
    """Row loops on a GPU; decisions stay with the host's threads."""

    group_rows = MOST_ROWS
    """All chunks in the host's memory at once: launches cost the same for few rows and for many."""
    compiles_trees = False
    metric_rows = SCORE_ROWS
    """A metric waits for the host some times and sends as much of 4M rows as of a streamed chunk's 160k."""
    gradient_rows = 2**24
    """A bound on the temporary arrays of an objective's expressions."""

    def __init__(self, runtime: Runtime, layout: SlotLayout, threads: Threads, plan: Plan | None = None) -> None:
        self._plan = plan = plan or unplanned(runtime.free_bytes)
        self.without_host, self.watches = plan.without_host, plan.watched
        self.orders_rows = plan.ordered_bytes > 0
        self.resident, self.stream_bytes = plan.resident, plan.stream_bytes
        self._ring: Ring | None = None
        self._streams: list[ChunkStream] = []
        self._runtime, self._slots, self.threads = runtime, layout, threads
        self._kind = tree_kind(layout)
        self._passes = PassMemory(runtime, layout, *plan.frontier)
        self.name, self.xp = f"cuda:{runtime.device}", runtime.xp
        with self.errors():
            self._layout = DeviceLayout(runtime, layout)
            self.split_kernels: SplitKernels | None = self._kind.kernels(self._layout)
            self.joined: Collective | None = None
            self.metric_kernels: MetricKernels | None = MetricKernels(runtime)

    @property
    def streaming(self) -> GpuDevice:
        return self

    def put(self, array: Float32) -> DeviceArray:
        return self.xp.array(array)

    def fetch(self, array: DeviceArray) -> Any:
        return download(self._runtime, array, self.threads.count)

    def fetch_histograms(self, built: DeviceArray) -> Int64:
        found: Int64 = self.fetch(built)
        return found.reshape(len(found), self._slots.n_entries, 2)

    def column_room(self, most_bytes: int) -> int:
        return self._plan.columns_bytes

    def join_room(self, column_bytes: int) -> float:
        """Return no limit: views copy chunks of the host's memory anyway."""
        return math.inf

    def dense_view(self, parts: Iterable[Symbols | DeviceSymbols], n_rows: int, *, copy_columns: bool) -> DenseView:
        turn_rows = copy_columns and self._plan.turned_bytes > 0
        return DenseView(
            self._layout, parts, n_rows, copy_columns=copy_columns, turn_rows=turn_rows, mixes=self._plan.mixes_widths
        )

    def sparse_view(self, parts: CsrParts, *, copy_columns: bool) -> SparseView:
        sort_entries = copy_columns and self._plan.by_entries
        xp = np if all(isinstance(slots, np.ndarray) for _, slots in parts) else self.xp
        return SparseView(
            self._layout, *joined_entries(parts, xp), copy_columns=copy_columns, sort_entries=sort_entries
        )

    def gradient_loops(self, loss: DeviceLoss) -> None:
        """None: losses that have kernels have `loss_rows`."""

    def query_loops(self, loss: KernelLoss, queries: Queries) -> QueryKernels | ListKernels | PairKernels:
        if isinstance(loss, PlacedPairs):
            return PairKernels(self._runtime, loss, queries)
        if isinstance(loss, ListLoss):
            return ListKernels(self._runtime, loss, queries)
        return (QueryKernels if loss.orders is None else OrderKernels)(self._runtime, loss, queries, self.threads)

    def uniform_sample(self, size: UniformSize, *, copies_columns: bool) -> GpuUniformSample:
        """No sample is copied column-major: the trees of a round split too few levels to win back the copy."""
        return GpuUniformSample(self._layout, size, RoomSize(*self._plan.drawn[1]))

    def candidates(self, n_outputs: int, copies_columns: Callable[[int], bool]) -> GpuCandidates:
        """Return candidates; no sample has a column-major copy, see `uniform_sample`."""
        return GpuCandidates(self._layout, n_outputs, *(RoomSize(*size) for size in self._plan.drawn))

    def frontier(self, n_places: int, most_rows: int) -> GpuFrontier:
        return GpuFrontier(self._passes, n_places, most_rows)

    def pinned(self, n_bytes: int) -> UInt8:
        return self._runtime.pinned(n_bytes)

    @property
    def ring_bytes(self) -> int:
        return 0 if self._ring is None else self._ring.nbytes

    def open_stream(self, chunks: PackedChunks, kind: DenseChunks | SparseChunks) -> ChunkStream:
        if self._ring is None:
            self._ring = Ring(self._runtime)
        self._streams.append(ChunkStream(self._layout, self._ring, chunks, kind))
        return self._streams[-1]

    def load(self, chunks: PackedChunks, kind: DenseChunks | SparseChunks, *, copy_columns: bool) -> GpuView:
        """Through a ring of its own, whose memory is free again before a column-major copy takes some."""
        with ExitStack() as stack:
            stack.callback(chunks.close)
            rows, ring = kind.room(self._layout), Ring(self._runtime)
            stack.callback(ring.close)
            for _ in ring.passing(chunks, rows.add):
                pass
        return rows.opened(self, copy_columns=copy_columns)

    def rows(self, views: Callable[[], Iterable[tuple[int, GpuView]]], sizes: Sequence[int], pieces: Sequence[Pieces],
             weights: Sequence[Float32] | None, *, room_rows: int = 0) -> GpuRows:  # fmt: skip
        return self._kind.rows(
            self._runtime, views, sizes, pieces, self._slots, weights, self._plan.trees_together, room_rows=room_rows
        )

    def walker(self, tree: WalkArrays) -> Callable[[GpuView, DeviceArray], None]:
        return device_tree(self._runtime, tree, self._layout.host.n_bins).walk

    def each_range(self, n_rows: int, work: Callable[[int, int], T]) -> list[T]:
        return [work(0, n_rows)]

    def largest(self, values: DeviceArray) -> Float64:
        return largest(self._runtime, values)

    def project(self, values: DeviceArray, projection: Float32, out: DeviceArray) -> None:
        project(self._runtime, values, projection, out)

    def loss_rows(self, loss: DeviceLoss | None, labels: Sequence[DeviceArray], margins: Sequence[DeviceArray],
                  weights: Sequence[DeviceArray | None], n_outputs: int, *, small_data: bool, stored: bool,
                  room_rows: int = 0) -> LossRows | None:  # fmt: skip
        if kernel_gradients(loss, n_outputs, stored=stored) == "expressions":
            return None
        assert loss is not None, "no loss has kernels"
        return LossRows(self._runtime, [
            loss_source(self._runtime, loss, *own, small_data=small_data, room_rows=room_rows)
            for own in zip(labels, margins, weights, strict=True)
        ], n_outputs)  # fmt: skip

    @contextmanager
    def errors(self) -> Iterator[None]:
        """All work on the device is done within, where it is the current one."""
        with lack_of_memory(self._has_no_room), active(self._runtime):
            yield

    def _has_no_room(self, error: Exception) -> str:
        return (
            f"the GPU's memory does not hold the fit ({error}; {format_bytes(self._runtime.free_bytes)} are free): "
            "use more GPUs, fewer bins (max_bin) or device='cpu'"
        )

    def close(self) -> None:
        streams, self._streams = self._streams, []
        with ExitStack() as stack:  # all are closed even if one fails, the last first
            stack.callback(self.threads.close)
            for stream in streams:
                stack.callback(stream.close)
            if self._ring is not None:
                stack.enter_context(active(self._runtime))
                stack.callback(self._ring.close)
