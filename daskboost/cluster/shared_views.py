"""Views of chunks that several fits of one process share: resident ones made once, streamed ones read once a pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from daskboost.cluster.lockstep import Lockstep
from daskboost.data.shard import Shard
from daskboost.devices.choose import make_device
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.device import Device, View
from daskboost.engine.chunk_views import ChunkViews, ViewRoom, Views, chunk_views


class SharedViews:
    """What fits over the same cut points make of their chunks.

    Parameters
    ----------
    n_threads : int
        For making views.
    """

    def __init__(self, n_threads: int) -> None:
        self.lockstep: Lockstep[tuple[int, View]]
        """Where the fits that run now meet."""
        self.n_resident: int | None = None
        """Chunks of training sets that a GPU keeps, and of evaluation sets none; None where it keeps all."""
        self.stream_bytes: int | None = None
        """Bytes of the groups of chunks that stream to a GPU, see `Plan`; None where there is none."""
        self.copies_columns = True
        """Whether a GPU may have column-major copies: every fit has room beside them."""
        self._n_threads = n_threads
        self._sources: dict[Any, ChunkViews] = {}
        self._devices: dict[tuple[str, int], Device] = {}
        self._lock = threading.Lock()

    def of(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, rank: int) -> Views:
        """Return the views of a shard on a fit's device, as `ShardMargins.views` gives them; the room for column-major
        copies that the first fit has decides."""
        chunks = tuple(entry.handle.key for entry in shard.entries)
        # Chunk joining on a GPU ignores free memory, because later fits share the views and may have less.
        has_columns = room.column_bytes > 0 and not device.joins_for_free
        key = (id(shard.store), chunks, device.name, layout.width, has_columns, room.n_resident, room.stream_bytes)
        room = replace(room, copies_columns=self.copies_columns)
        with self._lock:
            if key not in self._sources:
                own = self._devices.get((device.name, layout.width))
                if own is None:
                    own = make_device(device.name, layout, Threads(self._n_threads))
                    self._devices[device.name, layout.width] = own
                self._sources[key] = chunk_views(shard, own, layout, room)
            source = self._sources[key]
        if not source.is_resident:
            return lambda: self.lockstep.items(source.views, rank)
        return partial(self._resident, source)

    def _resident(self, source: ChunkViews) -> Iterator[tuple[int, View]]:
        self.lockstep.check()
        with self._lock:  # the first fit that comes makes them
            return iter(list(source.views()))

    @property
    def gpu_bytes(self) -> int:
        """Memory of a GPU that shared views take already."""
        rings = sum(device.ring_bytes for device in self._devices.values())
        return rings + sum(source.gpu_bytes for source in self._sources.values())

    def close(self) -> None:
        """Free the views."""
        self._sources.clear()
        for device in self._devices.values():
            device.close()
        self._devices.clear()
