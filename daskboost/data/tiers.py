"""The kinds of memory that chunks lie in: the RAM of this process, a GPU's, and files.

Files are our own, in the worker's local directory, rather than Dask's stored data, because a worker whose unmanaged
memory passes its limit pauses for good.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from daskboost.data.chunk import QuantizedChunk
from daskboost.data.chunk_file import read_chunk, write_chunk
from daskboost.data.device_chunk import Chunk
from daskboost.data.pack import Layout
from daskboost.data.spill import make_directory
from daskboost.dtypes import UInt8
from daskboost.errors import StorageError

TierName = Literal["device", "ram", "disk"]


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


class RamUse:
    """What stores that share RAM have of it together: an evaluation set's takes what the training set's has left."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, n_bytes: int, budget_bytes: int | None) -> bool:
        """Take room, if a budget has any."""
        with self._lock:
            if budget_bytes is not None and self.used_bytes + n_bytes > budget_bytes:
                return False
            self.used_bytes += n_bytes
            return True

    def give(self, n_bytes: int) -> None:
        """Give room back."""
        with self._lock:
            self.used_bytes -= n_bytes


@dataclass
class RamTier:
    """Chunks as they are, up to a budget."""

    budget_bytes: int | None
    """Bytes of all that share it; None for no limit."""
    shared: RamUse = field(default_factory=RamUse)
    used_bytes: int = 0
    name: TierName = "ram"
    _chunks: dict[int, Chunk] = field(default_factory=dict)

    def reserve(self, n_bytes: int) -> bool:
        if not self.shared.take(n_bytes, self.budget_bytes):
            return False
        self.used_bytes += n_bytes
        return True

    def release(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes
        self.shared.give(n_bytes)

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
        self._parent = parent.absolute()  # a process may change to another directory before the files go
        self._directory: Path | None = None
        self._written: dict[int, tuple[Layout, int]] = {}
        """Layouts, and what files are known by."""
        self._closed = False
        self._lock = threading.Lock()
        self._cleanup: weakref.finalize[..., object] | None = None

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
            written = write_chunk(path, chunk)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                error.errno,
                f"could not write a chunk of {chunk.nbytes} bytes: {error.strerror or error}; free space there, or "
                "point spill_directory to a disk with room",
                str(path),
            ) from error
        self._written[key] = chunk.layout, written

    def get(self, key: int, into: UInt8 | None = None) -> QuantizedChunk:
        chunk = read_chunk(self._path(key), *self._written[key], into)
        with self._lock:
            self.reads += 1
            self.read_bytes += chunk.nbytes
        return chunk

    def delete(self, key: int) -> None:
        self._written.pop(key, None)
        with contextlib.suppress(FileNotFoundError):
            self._path(key).unlink()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._written.clear()
        if self._cleanup is not None:
            self._cleanup()

    def _path(self, key: int) -> Path:
        return (self._directory or self._parent) / f"{key}.chunk"

    def _make_directory(self) -> None:
        with self._lock:
            if self._closed:
                raise StorageError("the chunk store is closed")
            if self._directory is None:
                self._directory, self._cleanup = make_directory(self._parent, self)
