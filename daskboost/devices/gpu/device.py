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
from daskboost.devices.gpu.metrics import MetricKernels
from daskboost.devices.gpu.projection import project
from daskboost.devices.gpu.ring import PackedChunks, Ring
from daskboost.devices.gpu.rows import GpuRows
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, active
from daskboost.devices.gpu.split import SplitKernels
from daskboost.devices.gpu.streamed import ChunkStream, DenseChunks, SparseChunks, UnpackedSparse, unpacked
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


class GpuDevice:
    """Row loops on a GPU; decisions stay with the host's threads."""

    group_rows = MOST_ROWS
    """All chunks in the host's memory at once: launches cost the same for few rows and for many."""
    joins_for_free = True
    reads_device_chunks = True
    gradient_rows = 2**24
    """A bound on the temporary arrays of an objective's expressions."""

    def __init__(self, runtime: Runtime, layout: SlotLayout, threads: Threads, plan: Plan | None = None) -> None:
        self._plan = plan
        self.without_host = plan is not None and plan.without_host
        self._n_trees = 1 if plan is None else plan.trees_together
        self.resident = None if plan is None else plan.resident
        self.stream_bytes = stream_groups.GROUP_BYTES if plan is None else plan.stream_bytes
        self._ring: Ring | None = None
        self._streams: list[ChunkStream] = []
        self._runtime, self._slots, self.threads = runtime, layout, threads
        self._kind = tree_kind(layout)
        self._passes = PassMemory(runtime, layout, *((0, 0) if plan is None else plan.frontier))
        self.xp = runtime.xp
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
        return self._runtime.free_bytes // COLUMN_SHARE if self._plan is None else self._plan.columns_bytes

    def dense_view(self, parts: Iterable[Symbols], n_rows: int, *, copy_columns: bool) -> DenseView:
        turn_rows = copy_columns and self._turns_rows
        return DenseView(self._layout, parts, n_rows, copy_columns=copy_columns, turn_rows=turn_rows)

    @property
    def _turns_rows(self) -> bool:
        return self._plan is not None and self._plan.turned_bytes > 0

    def sparse_view(self, indptr: Int64, slots: Int32, *, copy_columns: bool) -> SparseView:
        sort_entries = copy_columns and self._sorts_entries
        return SparseView(self._layout, indptr, slots, copy_columns=copy_columns, sort_entries=sort_entries)

    @property
    def _sorts_entries(self) -> bool:
        return self._plan is not None and self._plan.by_entries

    def uniform_sample(self, size: UniformSize, *, copies_columns: bool) -> GpuUniformSample:
        """No sample is copied column-major: the trees of a round split too few levels to win back the copy."""
        room = RoomSize(size.n_rows) if self._plan is None else RoomSize(*self._plan.drawn[1])
        return GpuUniformSample(self._layout, size, room)

    def candidates(self, n_outputs: int, copies_columns: Callable[[int], bool]) -> GpuCandidates:
        """Return candidates; no sample has a column-major copy, see `uniform_sample`."""
        sizes = (RoomSize(), RoomSize()) if self._plan is None else [RoomSize(*size) for size in self._plan.drawn]
        return GpuCandidates(self._layout, n_outputs, *sizes)

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
            rows, ring = unpacked(self._layout, kind), Ring(self._runtime)
            stack.callback(ring.close)
            for _ in ring.passing(chunks, rows.add):
                pass
        if isinstance(rows, UnpackedSparse):
            return rows.view(copy_columns=copy_columns, sort_entries=copy_columns and self._sorts_entries)
        return rows.view(copy_columns=copy_columns, turn_rows=copy_columns and self._turns_rows)

    def rows(self, views: Callable[[], Iterable[tuple[int, GpuView]]], sizes: Sequence[int], pieces: Sequence[Pieces],
             weights: Sequence[Float32] | None, *, room_rows: int = 0) -> GpuRows:  # fmt: skip
        return self._kind.rows(
            self._runtime, views, sizes, pieces, self._slots, weights, self._n_trees, room_rows=room_rows
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
