"""Margins of one shard's rows, and views of its chunks, on an engine's device."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from daskboost.data.device_chunk import Chunk, DeviceChunk, joined_symbols
from daskboost.data.pack import DenseLayout, Layout
from daskboost.data.shard import Shard
from daskboost.data.store import ChunkHandle
from daskboost.data.streamed import StreamedChunks
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.device import Device, StreamingDevice, View
from daskboost.devices.gpu.streamed import ChunkStream, DenseChunks, SparseChunks
from daskboost.engine.row_groups import places_on_disk, row_groups, streamed_places
from daskboost.errors import DataError

Views = Callable[[], Iterator[tuple[int, View]]]
"""Gives a fresh iterator over the index and view of each group of chunks; called once per pass."""
TRAINING, EVALUATION = 1, 0
"""Ranks of passes that several fits make together (see `Lockstep.items`)."""


@dataclass(frozen=True)
class ViewRoom:
    """What a device may keep of a shard's bins."""

    column_bytes: int = 0
    """Room for column-major copies."""
    n_resident: int | None = None
    """Chunks that stay in a GPU's memory, the first by the order of `kept_first`; None for all. A CPU keeps those in
    RAM."""
    stream_bytes: int = 0
    """Most packed bytes of streamed chunks that come to a GPU together."""


class SharesViews(Protocol):
    """Where views come from if several fits of a process train on the same data set."""

    def of(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, rank: int) -> Views:
        """Return the views of a shard on a fit's device, as `ShardMargins.views` gives them."""


class ShardMargins:
    """Views and margins of one shard's chunks.

    Parameters
    ----------
    shard : Shard
    device : Device
    layout : SlotLayout
    n_outputs : int
        Margins of a row.
    room : ViewRoom
    shared : Views, optional
        The views, where several fits share them.
    """

    room_rows = 0
    """Rows of a chunk that memory is taken for, if it has fewer."""
    _streamed: frozenset[int] = frozenset()
    """Places of the chunks that are read in every pass."""
    _stream: ChunkStream | None = None
    """Stream of these chunks, once a pass over them has begun on a GPU."""

    def __init__(self, shard: Shard, device: Device, layout: SlotLayout, n_outputs: int, room: ViewRoom,
                 shared: Views | None = None) -> None:  # fmt: skip
        self.shard, self._device, self._shared, self.n_outputs = shard, device, shared, n_outputs
        has_missing = np.diff(layout.offsets) - layout.n_bins
        self._bin_to_slot = np.repeat(np.cumsum(has_missing) - has_missing, layout.n_bins).astype(np.int32)
        self._bin_to_slot += np.arange(len(self._bin_to_slot), dtype=np.int32)
        self._kept: dict[int, View] = {}
        self._column_room = room.column_bytes
        self._columns_pay = True
        on_gpu = isinstance(device, StreamingDevice)
        self._streamed = streamed_places(shard, room.n_resident) if on_gpu else places_on_disk(shard)
        room_bytes = math.inf if device.joins_for_free else room.column_bytes
        self.groups = row_groups(shard, device.group_rows, room_bytes, self._streamed, room.stream_bytes)
        self.margins = [device.xp.zeros((group.n_rows, n_outputs), np.float32) for group in self.groups]

    @property
    def is_resident(self) -> bool:
        """Whether all views stay in the device's memory, once they are made."""
        return not self._streamed

    def without_columns(self) -> None:
        """Copy nothing column-major from now on: rows are read whole."""
        self._columns_pay = False

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the views that stay in the device's memory, as far as they are made, and of what others
        pass through."""
        streamed = 0 if self._stream is None else self._stream.nbytes
        return streamed + sum(int(view.nbytes) for view in self._kept.values())

    def views(self) -> Iterator[tuple[int, View]]:
        """Each group's index and view, in order; those that are streamed are read ahead."""
        return self.own_views() if self._shared is None else self._shared()

    def own_views(self) -> Generator[tuple[int, View], None, None]:
        """The same, shared or not."""
        if len(self._kept) == len(self.margins):  # all resident: no need to touch the store
            yield from self._kept.items()
            return
        if isinstance(self._device, StreamingDevice):
            yield from self._views_on(self._device)
            return
        group_of = {entries: index for index, group in enumerate(self.groups) for entries in group.entries}
        collected: list[Chunk] = []
        for place, chunk in self.shard.chunks():
            index = group_of[place]
            collected.append(chunk)
            del chunk
            if len(collected) < len(self.groups[index].entries):
                continue
            view = self._kept.get(index)
            if view is None:
                keep = place not in self._streamed
                view = self._open(collected, keep)
                if keep:
                    self._kept[index] = view
            collected = []
            yield index, view

    def _views_on(self, device: StreamingDevice) -> Iterator[tuple[int, View]]:
        """In order, those that are kept and those that pass through the device."""
        handles = [[self.shard.entries[place].handle for place in group.entries] for group in self.groups]
        streams = [group.entries[0] in self._streamed for group in self.groups]
        for index, own in enumerate(handles):  # before memory is taken for what streams
            if index not in self._kept and not streams[index]:
                self._kept[index] = self._kept_on(device, own)
        if not self._streamed:
            yield from self._kept.items()
            return
        if self._stream is None:
            groups = [own for own, passes in zip(handles, streams, strict=True) if passes]
            chunks = StreamedChunks(self.shard.store, groups, device.pinned)
            self._stream = device.open_stream(chunks, self._packed_kind(groups))
        with closing(self._stream.views()) as views:
            for index in range(len(self.groups)):
                yield index, self._kept[index] if index in self._kept else next(views)
            assert next(views, None) is None  # the pass is over, and not left early

    def _kept_on(self, device: StreamingDevice, handles: Sequence[ChunkHandle]) -> View:
        """The view of neighbouring chunks that stay; if some lie on disk, all come packed, a few in RAM at a time."""
        store = self.shard.store
        if all(store.residency(handle) != "disk" for handle in handles):
            return self._open([store.get(handle) for handle in handles], True)
        kind = self._packed_kind([handles])
        copy_columns = self._copies_columns(kind.most_rows)
        chunks = StreamedChunks(store, [[handle] for handle in handles], device.pinned, once=True)
        return device.load(chunks, kind, copy_columns=copy_columns)

    def _copies_columns(self, n_rows: int) -> bool:
        """Whether rows that stay get a column-major copy, whose room is taken then; of CSR rows any room will do."""
        n_bytes = n_rows * row_bytes(self.shard.layout)
        copies = self._columns_pay and self._column_room >= max(n_bytes, 1)
        self._column_room -= n_bytes if copies else 0
        return copies

    def _packed_kind(self, groups: Sequence[Sequence[ChunkHandle]]) -> DenseChunks | SparseChunks:
        """What unpacking groups of chunks goes by."""
        layout, most_rows = self.shard.layout, max(sum(handle.n_rows for handle in group) for group in groups)
        if isinstance(layout, DenseLayout):
            return DenseChunks(layout.bits, layout.row_stride_bytes, layout.symbol_dtype, most_rows)
        most_entries = max(
            sum(layout.most_entries(handle.n_rows, handle.nbytes) for handle in group) for group in groups
        )
        return SparseChunks(layout.bits, self._bin_to_slot, most_rows, most_entries)

    def _open(self, chunks: Sequence[Chunk], keep: bool) -> View:
        threads = self._device.threads.count
        if not self._device.reads_device_chunks:
            chunks = [chunk.on_host(threads) for chunk in chunks]
        if chunks[0].is_dense:
            n_rows = sum(chunk.n_rows for chunk in chunks)
            copy_columns = keep and self._copies_columns(n_rows)  # not for one pass
            return self._device.dense_view(joined_symbols(chunks, threads), n_rows, copy_columns=copy_columns)
        rows = [self._slots(chunk, threads) for chunk in chunks]
        xp = self._device.xp if any(isinstance(chunk, DeviceChunk) for chunk in chunks) else np
        starts = np.cumsum([0, *(len(slots) for _, slots in rows)]).tolist()
        indptr = [xp.asarray(own)[1:] + start for (own, _), start in zip(rows, starts, strict=False)]
        slots = rows[0][1] if len(rows) == 1 else xp.concatenate([xp.asarray(own) for _, own in rows])
        copy_columns = keep and self._copies_columns(0)
        return self._device.sparse_view(
            xp.concatenate([xp.zeros(1, np.int64), *indptr]), slots, copy_columns=copy_columns
        )

    def _slots(self, chunk: Chunk, threads: int) -> tuple[Any, Any]:
        """Row pointers (int64) and histogram slots (int32) of a CSR chunk, where it lies."""
        if isinstance(chunk, DeviceChunk):
            return chunk.indptr, self._device.xp.asarray(self._bin_to_slot)[chunk.values]
        indptr, bins = chunk.global_bins(threads)
        return indptr, self._bin_to_slot[bins]

    def set_base(self, margin: Any) -> None:
        for group, own in zip(self.groups, self.margins, strict=True):
            given = group.rows.base_margin
            if given is not None and given.shape != own.shape:
                raise DataError(
                    f"base_margin has {given.shape[1]} columns, but the objective has {own.shape[1]} outputs; give one "
                    "column per output"
                )
            own[:] = self._device.put(np.asarray(margin if given is None else given, np.float32))

    def add_tree(self, tree: WalkArrays, output: int) -> None:
        """Add a tree's values to the margins of one output, or vectors to those of all."""
        self.add_trees([(tree, output)])

    def add_trees(self, trees: Sequence[tuple[WalkArrays, int]]) -> None:
        """The same of several trees, in one pass."""
        for _ in self.adding(trees):
            pass

    def adding(self, trees: Sequence[tuple[WalkArrays, int]]) -> Iterator[tuple[int, View]]:
        """`views`, each once its margins have several trees, of one output each or of all."""
        adders = [self._adder(tree, output) for tree, output in trees]
        for index, view in self.views():
            for add in adders:
                add(index, view)
            yield index, view

    def _adder(self, tree: WalkArrays, output: int) -> Callable[[int, View], None]:
        """What adds a tree to the margins of one chunk."""
        walk = self._device.walker(tree)
        return lambda index, view: walk(view, tree.own(self.margins[index], output))


def has_room(room_bytes: int, layout: Layout, n_rows: int) -> bool:
    """Whether so many rows get a column-major copy where such copies may take `room_bytes`."""
    return 0 < room_bytes >= n_rows * row_bytes(layout)


def row_bytes(layout: Layout) -> int:
    """Bytes of an unpacked row; 0 of CSR rows, which have no column-major copies."""
    return layout.n_features * layout.symbol_dtype.itemsize if isinstance(layout, DenseLayout) else 0
