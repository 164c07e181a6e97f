"""The kinds of memory that chunks lie in: the RAM of this process, a GPU's, and files.

Files are our own, in the worker's local directory, rather than Dask's stored data, because a worker whose unmanaged
memory passes its limit pauses for good.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import platform
import secrets
import shutil
import threading
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daskboost.data.chunks.chunk import QuantizedChunk, TierName
from daskboost.data.chunks.device_chunk import Chunk
from daskboost.data.chunks.packing import Layout
from daskboost.data.saved.array_file import ArrayFile, bytes_of, write_file
from daskboost.dtypes import SYMBOL_WORD, UInt8
from daskboost.errors import ParameterError, StorageError
from daskboost.params import as_path

_REMEDY = "make the data set again, with spill_directory on a sound disk where nothing else writes or removes files"


@dataclass(frozen=True)
class SpilledChunk:
    """What a store knows of a chunk in its private file, which holds words and row pointers and nothing else."""

    layout: Layout
    first_row: int
    n_rows: int
    lengths: tuple[int, ...]
    """Words of each array."""
    checksum: int
    """CRC-32 of the file."""

    @classmethod
    def written(cls, path: Path, chunk: QuantizedChunk) -> SpilledChunk:
        """Write a chunk to a new file."""
        parts = [bytes_of(array) for array in chunk.arrays]
        write_file(path, parts)
        lengths = tuple(len(array) for array in chunk.arrays)
        return cls(chunk.layout, chunk.first_row, chunk.n_rows, lengths, _checksum(parts))

    def read(self, path: Path, into: UInt8 | None = None) -> QuantizedChunk:
        """Read the chunk into memory of its own or, words and row pointers one behind the other, `into`.

        StorageError where the file vanished, is shorter or longer than it was, is another chunk's, or not a byte of it
        may be trusted.
        """
        arrays, begin = [], 0
        try:
            with ArrayFile(path) as file:
                for length in self.lengths:
                    arrays.append(file.read(SYMBOL_WORD, (length,), None if into is None else into[begin:]))
                    begin += arrays[-1].nbytes
                complete = file.at_end
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(error.errno, f"could not read a chunk back: {reason}; {_REMEDY}", str(path)) from error
        except EOFError as error:
            raise _damaged(path, f"truncated, {error}") from error
        if not complete:
            raise _damaged(path, "longer than it was")
        if _checksum(map(bytes_of, arrays)) != self.checksum:
            raise _damaged(path, "its contents do not match their checksum")
        return QuantizedChunk.of(self.layout, self.first_row, self.n_rows, *arrays)


def _checksum(parts: Iterable[memoryview]) -> int:
    return functools.reduce(lambda checksum, part: zlib.crc32(part, checksum), parts, 0)


def _damaged(path: Path, how: str) -> StorageError:
    return StorageError(f"chunk file {path} is damaged: {how}; {_REMEDY}")


logger = logging.getLogger(__name__)

_NEW = ".daskboost-"
"""Begins names of directories that are not locked yet, which are left alone."""


def spill_path(given: object) -> Path | None:
    """`spill_directory` as a path; ParameterError for anything else."""
    if given is None:
        return None
    if given == "":
        raise ParameterError("spill_directory='' must be the path of a directory")
    return as_path("spill_directory", given, "a directory")


def check_spill_directory(path: Path) -> None:
    """Make the directory if it is not there, before anything is read to go there; StorageError where it cannot be
    written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = _unused(path)
        try:
            probe.mkdir(0o700)
        finally:
            _remove_empty(probe)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"spill_directory cannot be written to: {error.strerror or error}; name a directory that can, on a disk "
            "with room",
            str(path),
        ) from error


def make_directory(parent: Path, owner: object) -> tuple[Path, weakref.finalize[..., object]]:
    """A private directory that is removed when `owner` is collected, the interpreter exits, or what is returned beside
    it is called; those of owners that were killed are removed first. OSError where it cannot be made."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    made = _unused(parent)
    directory = parent / f"{_prefix()}{made.name.removeprefix(_NEW)}"
    lock: int | None = None
    try:
        made.mkdir(0o700)
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(directory)
        return directory, weakref.finalize(owner, _remove, directory, lock, os.getpid())
    except BaseException:  # Ctrl-C too: nobody takes a directory that is not named yet for abandoned
        _remove_empty(made)
        _remove_empty(directory)
        if lock is not None:
            os.close(lock)
        raise


def remove_abandoned(parent: Path) -> None:
    """Remove directories whose owners were killed."""
    for path in parent.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path)
                    logger.info("removed %s, left by a process that was killed", path)
            finally:
                os.close(lock)


def _unused(parent: Path) -> Path:
    """Return the path of a directory to be made: known before it is there, so that Ctrl-C cannot leave one that nobody
    knows of."""
    return parent / f"{_NEW}{secrets.token_hex(8)}"


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _prefix() -> str:
    """Return the prefix of this machine's directories since it was started: who shares a disk with others need not see
    their locks."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        machine = platform.node()
    return f"daskboost-chunks-{machine}-"


def _remove(directory: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer but not the files
        try:
            shutil.rmtree(directory, ignore_errors=True)
        finally:  # what Ctrl-C left of it the next one to spill there removes, as long as nobody holds it
            os.close(lock)


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
    """Chunks as they are, up to a budget: in RAM or, without one, in a GPU's memory, which is taken when they are made.

    A store calls `reserve` and `release` of any tier under its lock, the other methods outside of it.
    """

    budget_bytes: int | None
    """Bytes of all that share it; None for no limit."""
    shared: RamUse = field(default_factory=RamUse)
    used_bytes: int = 0
    name: TierName = "ram"
    _chunks: dict[int, Chunk] = field(default_factory=dict)

    def reserve(self, n_bytes: int) -> bool:
        """Take room for a chunk, if there is any."""
        if not self.shared.take(n_bytes, self.budget_bytes):
            return False
        self.used_bytes += n_bytes
        return True

    def release(self, n_bytes: int) -> None:
        """Give room back."""
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


class DiskTier:
    """One file per chunk, in a fresh private directory that goes away with this object."""

    name: TierName = "disk"

    def __init__(self, parent: Path) -> None:
        self.used_bytes = self.reads = self.read_bytes = 0
        self._parent = parent.absolute()  # a process may change to another directory before the files go
        self._directory: Path | None = None
        self._written: dict[int, SpilledChunk] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._cleanup: weakref.finalize[..., object] | None = None

    def reserve(self, n_bytes: int) -> bool:
        self.used_bytes += n_bytes
        return True

    def release(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes

    def put(self, key: int, chunk: Chunk) -> None:
        packed, path = chunk.on_host(), self._path(key)
        try:
            self._make_directory()
            path = self._path(key)
            self._written[key] = SpilledChunk.written(path, packed)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                error.errno,
                f"could not write a chunk of {chunk.nbytes} bytes: {error.strerror or error}; free space there, or "
                "point spill_directory to a disk with room",
                str(path),
            ) from error

    def get(self, key: int, into: UInt8 | None = None) -> QuantizedChunk:
        chunk = self._written[key].read(self._path(key), into)
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


Tier = RamTier | DiskTier
