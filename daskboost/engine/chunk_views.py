"""Views of one shard's chunks on an engine's device: of those that stay there, and of those that come in every pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskboost.data.chunks.chunk_stream import StreamedChunks
from daskboost.data.chunks.device_chunk import Chunk, joined_runs
from daskboost.data.chunks.shard import Shard
from daskboost.data.chunks.store import ChunkHandle
from daskboost.devices.budget.set_size import kept_first
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.streamed import ChunkStream, DenseChunks, SparseChunks
from daskboost.devices.protocols import Device, StreamingDevice, View
from daskboost.dtypes import Int32
from daskboost.engine.row_groups import RowGroup, row_groups

Views = Callable[[], Iterator[tuple[int, View]]]
"""Gives a fresh iterator over the index and view of each group of chunks; called once per pass."""


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
    copies_columns: bool = True
    """Whether such copies pay: trees grow over these rows."""


def places_on_disk(shard: Shard) -> frozenset[int]:
    """Return the places of the chunks that a CPU reads in every pass."""
    return frozenset(
        place for place, entry in enumerate(shard.entries) if shard.store.residency(entry.handle) == "disk"
    )


def streamed_places(shard: Shard, n_resident: int | None) -> frozenset[int]:
    """Places of the chunks that stream to a GPU: those in RAM or on disk but for the first `n_resident` by the order
    of `kept_first`; none where that is None."""
    tiers = [shard.store.residency(entry.handle) for entry in shard.entries]
    chunks = [(place, tier == "disk") for place, tier in enumerate(tiers) if tier != "device"]
    kept = len(chunks) if n_resident is None else n_resident
    return frozenset(place for place, _ in sorted(chunks, key=lambda chunk: kept_first(*chunk))[kept:])


class ChunkViews(ABC):
    """Views of a shard's chunks, group by group; chunks at the places `streamed` are read in every pass."""

    def __init__(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, streamed: frozenset[int]
                 ) -> None:  # fmt: skip
        self._shard, self._device, self._layout, self._streamed = shard, device, layout, streamed
        self._kept: dict[int, View] = {}
        self._column_room = room.column_bytes if room.copies_columns else 0
        join_bytes = device.join_room(room.column_bytes)
        self.groups: list[RowGroup] = row_groups(shard, device.group_rows, join_bytes, streamed, room.stream_bytes)

    @cached_property
    def _bin_to_slot(self) -> Int32:
        """The histogram slot of each global bin."""
        has_missing = np.diff(self._layout.offsets) - self._layout.n_bins
        slots: Int32 = np.repeat(np.cumsum(has_missing) - has_missing, self._layout.n_bins).astype(np.int32)
        slots += np.arange(len(slots), dtype=np.int32)
        return slots

    @property
    def is_resident(self) -> bool:
        """Whether all views stay in the device's memory, once they are made."""
        return not self._streamed

    @property
    def gpu_bytes(self) -> int:
        """Bytes of a GPU's memory that views take, as far as they are made, and what others pass through."""
        return 0

    def views(self) -> Generator[tuple[int, View], None, None]:
        """Each group's index and view, in order; those that are streamed are read ahead."""
        if len(self._kept) == len(self.groups):  # all resident: no need to touch the store
            yield from self._kept.items()
        else:
            yield from self._views()

    @abstractmethod
    def _views(self) -> Iterator[tuple[int, View]]:
        """Give the same where the store is needed."""

    def _copies_columns(self, n_rows: int) -> bool:
        """Whether rows that stay get a column-major copy, whose room is taken then; of CSR rows any room will do."""
        n_bytes = n_rows * self._shard.layout.row_bytes
        copies = self._column_room >= max(n_bytes, 1)
        self._column_room -= n_bytes if copies else 0
        return copies

    def _open(self, chunks: Sequence[Chunk], keep: bool) -> View:
        copy_columns = keep and self._copies_columns(sum(chunk.n_rows for chunk in chunks))  # not for one pass
        runs = joined_runs(chunks)
        return self._shard.layout.view(self._device, runs, lambda: self._bin_to_slot, copy_columns=copy_columns)


class HostViews(ChunkViews):
    """Views on the CPU, which keeps chunks in RAM and reads those on disk in every pass."""

    def __init__(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom) -> None:
        super().__init__(shard, device, layout, room, places_on_disk(shard))

    def _views(self) -> Iterator[tuple[int, View]]:
        group_of = {entries: index for index, group in enumerate(self.groups) for entries in group.entries}
        collected: list[Chunk] = []
        for place, chunk in self._shard.chunks():
            index = group_of[place]
            collected.append(chunk)
            del chunk
            if len(collected) < len(self.groups[index].entries):
                continue
            view = self._kept.get(index)
            if view is None:
                keep = place not in self._streamed
                view = self._open([each.on_host(self._device.threads.count) for each in collected], keep)
                if keep:
                    self._kept[index] = view
            collected = []
            yield index, view


class GpuViews(ChunkViews):
    """Views on a GPU, to which chunks in the host's memory and on disk come packed."""

    _stream: ChunkStream | None = None
    """Stream of the chunks that do not stay, once a pass over them has begun."""

    def __init__(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, gpu: StreamingDevice) -> None:
        super().__init__(shard, device, layout, room, streamed_places(shard, room.n_resident))
        self._gpu = gpu

    @property
    def gpu_bytes(self) -> int:
        streamed = 0 if self._stream is None else self._stream.nbytes
        return streamed + sum(int(view.nbytes) for view in self._kept.values())

    def _views(self) -> Iterator[tuple[int, View]]:
        """Give those that are kept and those that pass through the device."""
        handles = [[self._shard.entries[place].handle for place in group.entries] for group in self.groups]
        streams = [group.entries[0] in self._streamed for group in self.groups]
        for index, own in enumerate(handles):  # before memory is taken for what streams
            if index not in self._kept and not streams[index]:
                self._kept[index] = self._kept_view(own)
        if not self._streamed:
            yield from self._kept.items()
            return
        if self._stream is None:
            groups = [own for own, passes in zip(handles, streams, strict=True) if passes]
            chunks = StreamedChunks(self._shard.store, groups, self._gpu.pinned)
            self._stream = self._gpu.open_stream(chunks, self._packed_kind(groups))
        with closing(self._stream.views()) as views:
            for index in range(len(self.groups)):
                yield index, self._kept[index] if index in self._kept else next(views)
            assert next(views, None) is None  # the pass is over, and not left early

    def _kept_view(self, handles: Sequence[ChunkHandle]) -> View:
        """The view of neighbouring chunks that stay; if some lie on disk, all come packed, a few in RAM at a time."""
        store = self._shard.store
        if all(store.residency(handle) != "disk" for handle in handles):
            return self._open([store.get(handle) for handle in handles], True)
        kind = self._packed_kind([handles])
        copy_columns = self._copies_columns(kind.most_rows)
        chunks = StreamedChunks(store, [[handle] for handle in handles], self._gpu.pinned, once=True)
        return self._gpu.load(chunks, kind, copy_columns=copy_columns)

    def _packed_kind(self, groups: Sequence[Sequence[ChunkHandle]]) -> DenseChunks | SparseChunks:
        """What unpacking groups of chunks goes by."""
        sizes = [[(handle.n_rows, handle.nbytes) for handle in group] for group in groups]
        return self._shard.layout.packed(sizes, self._bin_to_slot)


def chunk_views(shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom) -> ChunkViews:
    """Return the views of a shard's chunks on a device."""
    if device.streaming is not None:
        return GpuViews(shard, device, layout, room, device.streaming)
    return HostViews(shard, device, layout, room)
