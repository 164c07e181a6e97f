"""Where chunks live: tiers behind one interface, fastest first.

A chunk goes to the first tier with room for it and stays there. Chunks are our own files in the worker's local
directory rather than Dask's stored data, because a worker whose unmanaged memory passes its limit pauses for good.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from daskboost.data.chunk import QuantizedChunk
from daskboost.data.chunk_file import read_chunk, write_chunk
from daskboost.data.device_chunk import Chunk, DeviceChunk
from daskboost.data.pack import Layout
from daskboost.dtypes import UInt8
from daskboost.errors import StorageError

PIN_THREADS = 16
"""That move chunks to page-locked memory: touching pages takes longest, and so many took a fifteenth of one's time."""
TierName = Literal["device", "ram", "disk"]


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


class Tier(Protocol):
    """One kind of memory. `reserve` and `release` are called under the store's lock, the others outside of it."""

    name: TierName

    def reserve(self, n_bytes: int) -> bool:
        """Take room for a chunk, if there is any."""

    def release(self, n_bytes: int) -> None:
        """Give room back."""

    def put(self, key: int, chunk: Any) -> None: ...

    def get(self, key: int) -> Chunk: ...

    def delete(self, key: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class RamTier:
    """Chunks as they are, up to a budget."""

    budget_bytes: int | None
    """None for no limit."""
    used_bytes: int = 0
    name: TierName = "ram"
    _chunks: dict[int, Chunk] = field(default_factory=dict)

    def reserve(self, n_bytes: int) -> bool:
        if self.budget_bytes is not None and self.used_bytes + n_bytes > self.budget_bytes:
            return False
        self.used_bytes += n_bytes
        return True

    def release(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes

    def put(self, key: int, chunk: Chunk) -> None:
        self._chunks[key] = chunk

    def get(self, key: int) -> Chunk:
        return self._chunks[key]

    def delete(self, key: int) -> None:
        self._chunks.pop(key, None)

    def close(self) -> None:
        self._chunks.clear()


class DeviceTier(RamTier):
    """Chunks in a GPU's memory, which is taken when they are made: more than it has is refused then."""

    def __init__(self) -> None:
        super().__init__(budget_bytes=None, name="device")


class DiskTier:
    """One file per chunk, in a fresh private directory that goes away with this object."""

    name: TierName = "disk"

    def __init__(self, parent: Path) -> None:
        self.used_bytes = self.reads = self.read_bytes = 0
        self._parent = parent
        self._directory: Path | None = None
        self._layouts: dict[int, Layout] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._cleanup: weakref.finalize[[Path, int], DiskTier] | None = None

    def reserve(self, n_bytes: int) -> bool:
        self.used_bytes += n_bytes
        return True

    def release(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes

    def put(self, key: int, chunk: QuantizedChunk) -> None:
        path = self._path(key)
        try:
            self._make_directory()
            path = self._path(key)
            write_chunk(path, chunk)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                error.errno,
                f"could not write a chunk of {chunk.nbytes} bytes: {error.strerror or error}; free space there, or "
                "point spill_directory to a disk with room",
                str(path),
            ) from error
        self._layouts[key] = chunk.layout

    def get(self, key: int, into: UInt8 | None = None) -> QuantizedChunk:
        chunk = read_chunk(self._path(key), self._layouts[key], into)
        with self._lock:
            self.reads += 1
            self.read_bytes += chunk.nbytes
        return chunk

    def delete(self, key: int) -> None:
        self._layouts.pop(key, None)
        with contextlib.suppress(FileNotFoundError):
            self._path(key).unlink()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._layouts.clear()
        if self._cleanup is not None:
            self._cleanup()

    def _path(self, key: int) -> Path:
        return (self._directory or self._parent) / f"{key}.chunk"

    def _make_directory(self) -> None:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            if self._directory is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._directory = Path(tempfile.mkdtemp(prefix="daskboost-chunks-", dir=self._parent))
                # Also runs when the object is collected and when the interpreter exits.
                self._cleanup = weakref.finalize(self, _remove_own_directory, self._directory, os.getpid())


def _remove_own_directory(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer but not the files
        shutil.rmtree(directory, ignore_errors=True)


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

    Raises
    ------
    StorageError
        A chunk does not fit anywhere, could not be written or read, or was found damaged; `put`, `get`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, ram_budget_bytes: int | None = None) -> None:
        self._ram = RamTier(ram_budget_bytes)
        self._disk = None if directory is None else DiskTier(Path(directory))
        self._device = DeviceTier()
        self._tiers: list[Tier] = [self._ram] if self._disk is None else [self._ram, self._disk]
        self._homes: dict[int, tuple[Tier, ChunkHandle]] = {}
        self._next_key = 0
        self._closed = False
        self._lock = threading.Lock()
        self._pinned: dict[int, UInt8] = {}
        self._pinning = threading.Lock()

    def __enter__(self) -> ChunkStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, chunk: Chunk) -> ChunkHandle:
        """Keep a chunk."""
        key, tier = self._reserve(chunk.nbytes, [self._device] if isinstance(chunk, DeviceChunk) else self._tiers)
        handle = ChunkHandle(key, chunk.first_row, chunk.n_rows, chunk.nbytes)
        try:
            tier.put(key, chunk)
        except BaseException:
            with self._lock:
                tier.release(chunk.nbytes)
            raise
        with self._lock:
            self._homes[key] = tier, handle
            closed_meanwhile = self._closed
        if closed_meanwhile:
            self.delete(handle)
            raise StorageError("the chunk store was closed while a chunk was written to it")
        return handle

    def get(self, handle: ChunkHandle) -> Chunk:
        """The chunk; from disk, in fresh memory at each call."""
        tier = self._home(handle)
        try:
            return tier.get(handle.key)
        except KeyError:
            raise StorageError(f"the chunk of rows from {handle.first_row} on was deleted while being read") from None

    def read(self, handle: ChunkHandle, into: UInt8) -> Chunk:
        """A chunk on disk, words and row pointers one behind the other in memory of the caller's."""
        tier = self._home(handle)
        if not isinstance(tier, DiskTier):
            raise StorageError(f"the chunk of rows from {handle.first_row} on is not on disk")
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
            tier, _ = self._homes.pop(handle.key)
            self._pinned.pop(handle.key, None)
            tier.release(handle.nbytes)
        tier.delete(handle.key)

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
            for tier, handle in self._homes.values():
                tier.release(handle.nbytes)
            self._homes.clear()
            self._pinned.clear()
        for tier in (self._device, *self._tiers):
            tier.close()

    def _reserve(self, n_bytes: int, tiers: Sequence[Tier]) -> tuple[int, Tier]:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            for tier in tiers:
                if tier.reserve(n_bytes):
                    self._next_key += 1
                    return self._next_key, tier
        raise StorageError(
            f"a chunk of {n_bytes} bytes does not fit into host_memory_limit ({self._ram.used_bytes} of "
            f"{self._ram.budget_bytes} bytes used) and there is no disk to spill to: set spill_directory"
        )

    def _home(self, handle: ChunkHandle) -> Tier:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            if handle.key in self._homes:
                return self._homes[handle.key][0]
        raise StorageError(f"the chunk of rows from {handle.first_row} on is not in this store, or was deleted")
