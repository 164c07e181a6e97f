"""Where chunks live: tiers behind one interface, fastest first.

A chunk goes to the first tier (`tiers.py`) with room for it and stays there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from daskboost.data.chunks.chunk import QuantizedChunk, TierName
from daskboost.data.chunks.device_chunk import Chunk, DeviceChunk
from daskboost.data.chunks.tiers import DiskTier, RamTier, RamUse, Tier
from daskboost.dtypes import UInt8
from daskboost.errors import StorageError

PIN_THREADS = 16
"""Threads that move chunks to page-locked memory: touching pages takes longest, and so many took a fifteenth of one's
time."""


@dataclass(frozen=True)
class ChunkHandle:
    """A chunk in a store."""

    key: int
    first_row: int
    n_rows: int
    nbytes: int


@dataclass(frozen=True)
class StoreCounters:
    """What a store holds now, and has read so far."""

    ram_bytes: int
    disk_bytes: int
    disk_reads: int
    disk_read_bytes: int
    device_bytes: int = 0


class ChunkStore:
    """Chunks in RAM up to a budget, beyond it on disk; those made on a GPU stay there. Thread safe; use it as a context
    manager.

    Parameters
    ----------
    directory : path, or None
        Where to make the private directory of the chunks on disk, as soon as there is one: a worker's local
        directory. None for a store without a disk.
    ram_budget_bytes : int, or None
        Bytes of chunks to keep in RAM; None for no limit. On a Dask worker, at most half of its memory limit.
    ram_use : RamUse, optional
        Of the stores whose chunks the budget counts beside this one's.

    Raises
    ------
    StorageError
        A chunk does not fit anywhere, could not be written or read, or was found damaged; `put`, `get`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, ram_budget_bytes: int | None = None,
                 ram_use: RamUse | None = None) -> None:  # fmt: skip
        self._ram = RamTier(ram_budget_bytes, ram_use or RamUse())
        self._disk = None if directory is None else DiskTier(Path(directory))
        self._device = RamTier(None, name="device")
        self._tiers: list[Tier] = [each for each in (self._device, self._ram, self._disk) if each is not None]
        self._homes: dict[int, tuple[Tier, int]] = {}
        """Tier of each chunk, and bytes that it takes of the tier's room."""
        self._next_key = 0
        self._closed = False
        self._lock = threading.Lock()
        self._pinned: dict[int, UInt8] = {}
        self._pinned_by: int | None = None
        """The process that has them."""
        self._pinning = threading.Lock()

    @property
    def ram_use(self) -> RamUse:
        """What the budget counts."""
        return self._ram.shared

    def __enter__(self) -> ChunkStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, chunk: Chunk) -> ChunkHandle:
        """Keep a chunk."""
        key, tier = self._reserve(chunk.nbytes, chunk.tiers)
        handle = ChunkHandle(key, chunk.first_row, chunk.n_rows, chunk.nbytes)
        try:
            tier.put(key, chunk)
        except BaseException:
            with self._lock:
                tier.release(chunk.nbytes)
            raise
        self._add(handle, tier, chunk.nbytes)
        return handle

    def part(self, handle: ChunkHandle, begin: int, end: int) -> ChunkHandle:
        """Keep some rows of a chunk in its tier, as a chunk of their own, see `QuantizedChunk.part`. Parts of dense
        chunks in memory take none; those of others do, beside the budget: whoever cuts keeps few."""
        tier, chunk = self._home(handle), self.get(handle).part(begin, end)
        with self._lock:
            self._next_key += 1
            found = ChunkHandle(self._next_key, chunk.first_row, chunk.n_rows, chunk.nbytes)
        tier.put(found.key, chunk)
        self._add(found, tier, 0)
        return found

    def _add(self, handle: ChunkHandle, tier: Tier, taken_bytes: int) -> None:
        """Know a chunk that its tier has, unless the store was closed meanwhile."""
        with self._lock:
            self._homes[handle.key] = tier, taken_bytes
            closed_meanwhile = self._closed
        if closed_meanwhile:
            self.delete(handle)
            raise StorageError("the chunk store was closed while a chunk was written to it")

    def get(self, handle: ChunkHandle) -> Chunk:
        """The chunk; from disk, in fresh memory at each call."""
        tier = self._home(handle)
        if handle.key in self._pinned and os.getpid() != self._pinned_by:  # reading it would end the process
            raise StorageError(
                f"the chunk of rows from {handle.first_row} on was moved to page-locked memory to stream to a GPU, "
                "which a forked process does not have: start processes by 'spawn', or fork before training"
            )
        try:
            return tier.get(handle.key)
        except KeyError:
            raise StorageError(f"the chunk of rows from {handle.first_row} on was deleted while being read") from None

    def read(self, handle: ChunkHandle, into: UInt8) -> QuantizedChunk:
        """A copy of a chunk, words and row pointers one behind the other in memory of the caller's, `nbytes` long."""
        tier = self._home(handle)
        if not isinstance(tier, DiskTier):
            return self.get(handle).on_host().moved_to(into)
        try:
            return tier.get(handle.key, into)
        except KeyError:
            raise StorageError(f"the chunk of rows from {handle.first_row} on was deleted while being read") from None

    def pin(self, handles: Sequence[ChunkHandle], allocate: Callable[[int], UInt8]) -> list[UInt8]:
        """Page-locked memory of chunks in RAM, words and row pointers one behind the other.

        They are moved there the first time, a few at a time, and stay as long as they are in the store: of its budget
        they take no more than before.
        """
        with self._pinning:
            todo = [handle for handle in handles if handle.key not in self._pinned]
            if todo:
                self._pinned_by = os.getpid()
                with ThreadPoolExecutor(min(len(todo), PIN_THREADS), "daskboost-pin") as pool:
                    for _ in pool.map(lambda handle: self._pin(handle, allocate), todo):
                        pass
            with self._lock:
                if self._closed:
                    raise StorageError("the chunk store is closed")
                return [self._pinned[handle.key] for handle in handles]

    def _pin(self, handle: ChunkHandle, allocate: Callable[[int], UInt8]) -> None:
        chunk = self.get(handle)
        assert isinstance(chunk, QuantizedChunk)
        memory = allocate(chunk.nbytes)
        moved = chunk.moved_to(memory)
        with self._lock:
            if handle.key in self._homes:
                self._ram.put(handle.key, moved)
                self._pinned[handle.key] = memory

    def delete(self, handle: ChunkHandle) -> None:
        """Forget a chunk and free its bytes; nothing happens if it is gone already."""
        with self._lock:
            if handle.key not in self._homes:
                return
            tier, taken_bytes = self._homes.pop(handle.key)
            self._pinned.pop(handle.key, None)
            tier.release(taken_bytes)
        tier.delete(handle.key)

    def of_gpus(self, handles: Sequence[ChunkHandle]) -> list[DeviceChunk]:
        """Return those of some chunks that lie on a GPU."""
        return [cast(DeviceChunk, self.get(handle)) for handle in handles if self._home(handle) is self._device]

    def residency(self, handle: ChunkHandle) -> TierName:
        """The tier that holds the chunk."""
        return self._home(handle).name

    def counters(self) -> StoreCounters:
        with self._lock:
            disk, ram, device = self._disk, self._ram.used_bytes, self._device.used_bytes
            if disk is None:
                return StoreCounters(ram, 0, 0, 0, device)
            return StoreCounters(ram, disk.used_bytes, disk.reads, disk.read_bytes, device)

    def close(self) -> None:
        """Free all memory and remove all files; may be called more than once."""
        with self._lock:
            self._closed = True
            for tier, taken_bytes in self._homes.values():
                tier.release(taken_bytes)
            self._homes.clear()
            self._pinned.clear()
        for tier in self._tiers:
            tier.close()

    def _reserve(self, n_bytes: int, tiers: Sequence[TierName]) -> tuple[int, Tier]:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            for tier in self._tiers:
                if tier.name in tiers and tier.reserve(n_bytes):
                    self._next_key += 1
                    return self._next_key, tier
        raise StorageError(
            f"a chunk of {n_bytes} bytes does not fit into host_memory_limit ({self.ram_use.used_bytes} of "
            f"{self._ram.budget_bytes} bytes used) and there is no disk to spill to: set spill_directory"
        )

    def _home(self, handle: ChunkHandle) -> Tier:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            if handle.key in self._homes:
                return self._homes[handle.key][0]
        raise StorageError(f"the chunk of rows from {handle.first_row} on is not in this store, or was deleted")
