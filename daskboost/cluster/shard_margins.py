"""Margins of one shard's rows, and views of its chunks, on an engine's device."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from daskboost.cluster.row_groups import row_groups
from daskboost.data.device_chunk import Chunk, DeviceChunk, joined_symbols
from daskboost.data.pack import DenseLayout, Layout
from daskboost.data.shard import Shard
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.device import Device, View
from daskboost.dtypes import Bool
from daskboost.errors import DataError


class ShardMargins:
    """Views and margins of one shard's chunks; `shared` gives the views where several fits share them."""

    def __init__(self, shard: Shard, device: Device, layout: SlotLayout, has_missing: Bool, n_outputs: int,
                 column_room: int = 0, shared: Callable[[], Iterator[tuple[int, View]]] | None = None
                 ) -> None:  # fmt: skip
        self.shard, self._device, self._shared, self.n_outputs = shard, device, shared, n_outputs
        self._bin_to_slot = np.repeat(np.cumsum(has_missing) - has_missing, layout.n_bins).astype(np.int32)
        self._bin_to_slot += np.arange(len(self._bin_to_slot), dtype=np.int32)
        self._kept: dict[int, View] = {}
        self._column_room = column_room
        self._columns_pay = True
        self.groups = row_groups(shard, device.group_rows, math.inf if device.joins_for_free else column_room)
        self.margins = [device.xp.zeros((group.n_rows, n_outputs), np.float32) for group in self.groups]

    @property
    def is_resident(self) -> bool:
        """Whether all views stay in the device's memory, once they are made."""
        store, entries = self.shard.store, self.shard.entries
        return all(store.residency(entry.handle) != "disk" for entry in entries)

    def without_columns(self) -> None:
        """Copy nothing column-major from now on: rows are read whole."""
        self._columns_pay = False

    @property
    def kept_bytes(self) -> int:
        """Of the views that stay in the device's memory, as far as they are made."""
        return sum(view.nbytes for view in self._kept.values())

    def views(self) -> Iterator[tuple[int, View]]:
        """Each group's index and view; chunks on disk are read ahead."""
        return self.own_views() if self._shared is None else self._shared()

    def own_views(self) -> Generator[tuple[int, View], None, None]:
        """The same, shared or not."""
        if len(self._kept) == len(self.margins):  # all resident: no need to touch the store
            yield from self._kept.items()
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
                keep = self.shard.store.residency(self.shard.entries[place].handle) != "disk"
                view = self._open(collected, keep)
                if keep:
                    self._kept[index] = view
            collected = []
            yield index, view

    def _open(self, chunks: Sequence[Chunk], keep: bool) -> View:
        threads = self._device.threads.count
        if not self._device.reads_device_chunks:
            chunks = [chunk.on_host(threads) for chunk in chunks]
        if chunks[0].is_dense:
            nbytes = sum(chunk.n_rows for chunk in chunks) * row_bytes(chunks[0].layout)
            copy_columns = keep and self._columns_pay and self._column_room >= nbytes  # not for one pass
            self._column_room -= nbytes if copy_columns else 0
            parts = joined_symbols(chunks, threads)
            return self._device.dense_view(parts, sum(chunk.n_rows for chunk in chunks), copy_columns=copy_columns)
        rows = [self._slots(chunk, threads) for chunk in chunks]
        xp = self._device.xp if any(isinstance(chunk, DeviceChunk) for chunk in chunks) else np
        starts = np.cumsum([0, *(len(slots) for _, slots in rows)]).tolist()
        indptr = [xp.asarray(own)[1:] + start for (own, _), start in zip(rows, starts, strict=False)]
        slots = rows[0][1] if len(rows) == 1 else xp.concatenate([xp.asarray(own) for _, own in rows])
        copy_columns = keep and self._columns_pay and self._column_room > 0
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
        for index, view in self.views():
            self.add_to(index, view, tree, output)

    def add_to(self, index: int, view: View, tree: WalkArrays, output: int) -> None:
        """`add_tree` of one chunk."""
        margin = self.margins[index]
        self._device.walk(view, tree, margin if tree.value.ndim == 2 else margin[:, output])


def row_bytes(layout: Layout) -> int:
    """Bytes of an unpacked row; 0 of CSR rows, which have no column-major copies."""
    return layout.n_features * layout.symbol_dtype.itemsize if isinstance(layout, DenseLayout) else 0
