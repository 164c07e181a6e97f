"""A GPU as an engine's device, see `daskboost/devices/device.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from daskboost.byte_sizes import format_bytes
from daskboost.devices import stream_groups
from daskboost.devices.cpu.rows import Pieces
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.candidates import GpuCandidates
from daskboost.devices.gpu.device_tree import device_tree
from daskboost.devices.gpu.download import download
from daskboost.devices.gpu.frontier import GpuFrontier, PassMemory
from daskboost.devices.gpu.lack_of_memory import lack_of_memory
from daskboost.devices.gpu.losses import LossRows, SoftmaxChunk, largest, loss_source
from daskboost.devices.gpu.metrics import SCORE_ROWS, MetricKernels
from daskboost.devices.gpu.projection import project
from daskboost.devices.gpu.ring import PackedChunks, Ring
from daskboost.devices.gpu.rows import GpuRows
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, active
from daskboost.devices.gpu.split import SplitKernels
from daskboost.devices.gpu.streamed import ChunkStream, DenseChunks, SparseChunks
from daskboost.devices.gpu.symbols import DeviceSymbols
from daskboost.devices.gpu.taken_rows import RoomSize
from daskboost.devices.gpu.tree_kind import tree_kind
from daskboost.devices.gpu.uniform_sample import GpuUniformSample
from daskboost.devices.gpu.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.devices.losses import DeviceLoss
from daskboost.devices.plan import Plan
from daskboost.devices.sampling import UniformSize
from daskboost.dtypes import Float32, Float64, Int32, Int64, Symbols, UInt8

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


class GpuDevice:
    """Row loops on a GPU; decisions stay with the host's threads."""

    group_rows = MOST_ROWS
    """All chunks in the host's memory at once: launches cost the same for few rows and for many."""
    joins_for_free = True
    metric_rows = SCORE_ROWS
    """A metric waits for the host some times and sends as much of 4M rows as of a streamed chunk's 160k."""
    gradient_rows = 2**24
    """A bound on the temporary arrays of an objective's expressions."""

    def __init__(self, runtime: Runtime, layout: SlotLayout, threads: Threads, plan: Plan | None = None) -> None:
        self._plan = plan = plan or unplanned(runtime.free_bytes)
        self.without_host, self.resident, self.stream_bytes = plan.without_host, plan.resident, plan.stream_bytes
        self._ring: Ring | None = None
        self._streams: list[ChunkStream] = []
        self._runtime, self._slots, self.threads = runtime, layout, threads
        self._kind = tree_kind(layout)
        self._passes = PassMemory(runtime, layout, *plan.frontier)
        self.name, self.xp = f"cuda:{runtime.device}", runtime.xp
        with self.errors():
            self._layout = DeviceLayout(runtime, layout)
            self.split_kernels: SplitKernels | None = self._kind.kernels(self._layout)
            self.metric_kernels: MetricKernels | None = MetricKernels(runtime)

    def put(self, array: Float32) -> DeviceArray:
        found: DeviceArray = self.xp.asarray(array)
        return found

    def fetch(self, array: DeviceArray) -> Any:
        return download(self._runtime, array, self.threads.count)

    def fetch_histograms(self, built: DeviceArray) -> Int64:
        found: Int64 = self.fetch(built)
        return found.reshape(len(found), self._slots.n_entries, 2)

    def column_room(self, most_bytes: int) -> int:
        return self._plan.columns_bytes

    def dense_view(self, parts: Iterable[Symbols | DeviceSymbols], n_rows: int, *, copy_columns: bool) -> DenseView:
        turn_rows = copy_columns and self._plan.turned_bytes > 0
        return DenseView(self._layout, parts, n_rows, copy_columns=copy_columns, turn_rows=turn_rows)

    def sparse_view(self, indptr: Int64, slots: Int32, *, copy_columns: bool) -> SparseView:
        sort_entries = copy_columns and self._plan.by_entries
        return SparseView(self._layout, indptr, slots, copy_columns=copy_columns, sort_entries=sort_entries)

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
        return device_tree(self._runtime, tree).walk

    def each_range(self, n_rows: int, work: Callable[[int, int], T]) -> list[T]:
        return [work(0, n_rows)]

    def largest(self, values: DeviceArray) -> Float64:
        return largest(self._runtime, values)

    def project(self, values: DeviceArray, projection: Float32, out: DeviceArray) -> None:
        project(self._runtime, values, projection, out)

    def loss_rows(self, loss: DeviceLoss | None, labels: Sequence[DeviceArray], margins: Sequence[DeviceArray],
                  weights: Sequence[DeviceArray | None], n_outputs: int, *, small_data: bool, stored: bool,
                  room_rows: int = 0) -> LossRows | None:  # fmt: skip
        if loss is None:
            return None
        sources = []
        for label, margin, weight in zip(labels, margins, weights, strict=True):
            source = loss_source(
                self._runtime, loss, label, margin, weight, small_data=small_data, room_rows=room_rows
            )
            if source is None or (stored and not isinstance(source, SoftmaxChunk)):
                return None
            sources.append(source)
        return LossRows(self._runtime, sources, n_outputs)

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
