"""The chunks of a store that come to a GPU, in page-locked memory: those of RAM as they lie, others read ahead.

    readers     read 1 -> a | read 3 -> b ......| wait for the copies of 1 and 2, read 5 -> a
                read 2 -> a | read 4 -> b | ...
    the ring                copy 1, 2 | copy 3, 4 | ...

Each file is read by one call, and checked, in a thread of its own, into its place in a group's memory, which is used
again from group to group. So is what comes but once, to stay there, wherever it lies: page-locking RAM for good would
not be worth a single copy.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from daskboost.data.chunks.chunk import QuantizedChunk
from daskboost.data.chunks.device_chunk import Chunk
from daskboost.data.chunks.store import ChunkHandle, ChunkStore
from daskboost.devices.budget.set_size import READS_AT_ONCE, n_read_rooms, places_in_group
from daskboost.devices.gpu.runtime.launches import Event
from daskboost.devices.gpu.runtime.ring import PackedGroup, PackedRows
from daskboost.dtypes import Array, UInt8

# Chunks one after the other, those on disk read ahead by one background thread.
#
#     reader thread   read 1 | read 2 ......| read 3 ......| read 4
#     caller                 | use 1        | use 2        | use 3
#
# At most `ahead + 1` chunks read from disk are in memory: the next read begins when the caller has let go of an
# earlier chunk's arrays (seen by a weak reference to them), or at the latest when it waits for the next chunk. A
# caller that keeps chunks is thus never blocked, and has only the memory it asked for.

def stream(store: ChunkStore, handles: Sequence[ChunkHandle], ahead: int = 1) -> Iterator[tuple[int, Chunk]]:
    """Iterate over chunks in the order of `handles`.

    Parameters
    ----------
    ahead : int
        Chunks to read ahead from disk. The default of 1 overlaps reading with use; more only help where the time
        per chunk varies. 0 reads in the caller's thread.

    Yields
    ------
    index : int
        Position in `handles`.
    chunk : QuantizedChunk or DeviceChunk

    Raises
    ------
    StorageError
        In the caller, when its turn comes, for a chunk that could not be read.
    """
    on_disk = [store.residency(handle) == "disk" for handle in handles]
    if ahead < 1 or not any(on_disk):
        for index, handle in enumerate(handles):
            yield index, store.get(handle)
        return
    prefetcher = Prefetcher(store, [h for h, disk in zip(handles, on_disk, strict=True) if disk], ahead)
    try:
        with prefetcher:
            for index, handle in enumerate(handles):
                # No local name for the chunk: it would keep the memory alive while the caller has let go of it.
                yield index, prefetcher.take() if on_disk[index] else store.get(handle)
    finally:
        prefetcher.end()  # again, as Ctrl-C may have come while it was entered or left


class Prefetcher:
    """Reads chunks in order in a thread of its own, keeping at most `ahead + 1` of them alive.

    A context manager: on exit the thread has ended.
    """

    def __init__(self, store: ChunkStore, handles: Sequence[ChunkHandle], ahead: int) -> None:
        self._ahead = ahead
        self._ready: deque[QuantizedChunk | BaseException] = deque()
        self._n_started = self._n_wanted = self._n_alive = 0
        self._closed = False
        # Reentrant, because the garbage collector may run `_release` in a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(
            target=self._read_all, args=(store, handles), name="daskboost-prefetch", daemon=True
        )

    def __enter__(self) -> Prefetcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join()
        self._ready.clear()

    def end(self) -> None:
        """Have the thread end, without waiting for it; may be called more than once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> QuantizedChunk:
        """The next chunk, waiting for it if need be."""
        with self._changed:
            self._n_wanted += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready)
            item = self._ready.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    def _read_all(self, store: ChunkStore, handles: Sequence[ChunkHandle]) -> None:
        for handle in handles:
            if not self._wait_for_room():
                return
            try:
                chunk = store.get(handle)
                assert isinstance(chunk, QuantizedChunk)  # it comes from disk
                self._deliver(chunk)
                del chunk
            except BaseException as error:
                with self._changed:
                    self._ready.append(error)
                    self._changed.notify_all()
                return

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._n_alive <= self._ahead or self._n_started < self._n_wanted
            )
            self._n_started += 1
            self._n_alive += 1
            return not self._closed

    def _deliver(self, chunk: QuantizedChunk) -> None:
        weakref.finalize(_owner(chunk.words), self._release).atexit = False
        with self._changed:
            self._ready.append(chunk)
            self._changed.notify_all()

    def _release(self) -> None:
        with self._changed:
            self._n_alive -= 1
            self._changed.notify_all()


def _owner(array: Array) -> Array:
    """The array that owns the memory: every view of a chunk's words keeps that one alive."""
    while array.base is not None:
        array = array.base
    return array


@dataclass(frozen=True)
class _Room:
    """Page-locked memory for a group's chunks from disk."""

    memory: UInt8
    free: Event | None = None
    """When what it held was copied; None where it held nothing."""


class StreamedChunks:
    """`PackedChunks` of a store.

    Parameters
    ----------
    groups : sequence of sequences of ChunkHandle
        In RAM or on disk; in the order of passes.
    allocate : callable
        `Runtime.pinned`.
    once : bool, default False
        Whether there is one pass; then all chunks are read as those on disk are.

    Raises
    ------
    StorageError
        In `take`, for a chunk that could not be read.
    """

    def __init__(self, store: ChunkStore, groups: Sequence[Sequence[ChunkHandle]], allocate: Callable[[int], UInt8],
                 *, once: bool = False) -> None:  # fmt: skip
        self._store, self._groups, self._once = store, groups, once
        self._files = [[each for each in group if once or store.residency(each) == "disk"] for group in groups]
        """The handles of each group that are read."""
        read = {handle.key for files in self._files for handle in files}
        in_ram = [handle for group in groups for handle in group if handle.key not in read]
        self._in_ram = {
            handle.key: _packed(store.get(handle), memory)
            for handle, memory in zip(in_ram, store.pin(in_ram, allocate), strict=True)
        }
        self.most_bytes = max(_group_bytes(group) for group in groups)
        most = max(_group_bytes(files) for files in self._files)
        self._free = deque(_Room(allocate(most)) for _ in range(n_read_rooms([len(files) for files in self._files])))
        self._reads: dict[int, tuple[_Room, dict[int, Future[PackedRows]]]] = {}
        """By number of the group and key of the chunk, until they are taken."""
        self._taken: dict[int, _Room] = {}
        self._asked = 0
        """Files of all groups below are asked for."""
        self._pool = ThreadPoolExecutor(min(READS_AT_ONCE, len(read)), "daskboost-read") if read else None

    def __len__(self) -> int:
        return len(self._groups)

    def is_ready(self, number: int) -> bool:
        if self._once and number >= len(self):
            return False
        self._read_ahead()
        if not self._files[number % len(self)]:
            return True
        if number not in self._reads:
            return False
        reads = self._reads[number][1].values()
        return all(read.done() and read.exception() is None for read in reads)  # a failure comes when it is their turn

    def take(self, number: int) -> PackedGroup:
        found: dict[int, PackedRows] = {}
        if self._files[number % len(self)]:
            self._read_ahead()
            room, reads = self._reads[number]
            try:
                for key in reads:
                    found[key] = reads[key].result()
            finally:
                del reads  # an exception's traceback would refer to them, and wait for the garbage collector
            del self._reads[number]
            self._taken[number] = room
        group = self._groups[number % len(self)]
        return [found[handle.key] if handle.key in found else self._in_ram[handle.key] for handle in group]

    def give_back(self, number: int, copied: Event) -> None:
        room = self._taken.pop(number, None)
        if room is not None:
            self._free.append(_Room(room.memory, copied))
            self._read_ahead()

    def restart(self) -> None:
        """Waits for files that are being read."""
        given, self._reads = list(self._reads.values()), {}
        wait([read for _, reads in given for read in reads.values() if not read.cancel()])
        self._free.extend(room for room, _ in given)
        self._asked = 0

    def close(self) -> None:
        """End the threads and let go of the memory."""
        self.restart()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._free.clear()
        self._in_ram.clear()

    def _read_ahead(self) -> None:
        """Ask for the files of the next groups, as many as there is room for."""
        while self._free and self._pool is not None and not (self._once and self._asked >= len(self)):
            files = self._files[self._asked % len(self)]
            if files:
                room, read = self._free.popleft(), self._pool.submit
                begins, _ = places_in_group([handle.nbytes for handle in files])
                self._reads[self._asked] = room, {
                    handle.key: read(self._read, handle, room, begin)
                    for handle, begin in zip(files, begins, strict=True)
                }
            self._asked += 1

    def _read(self, handle: ChunkHandle, room: _Room, begin: int) -> PackedRows:
        if room.free is not None:
            room.free.synchronize()
        memory = room.memory[begin : begin + handle.nbytes]
        return _packed(self._store.read(handle, memory), memory)


def _group_bytes(handles: Sequence[ChunkHandle]) -> int:
    return places_in_group([handle.nbytes for handle in handles])[1]


def _packed(chunk: Chunk, memory: UInt8) -> PackedRows:
    """What a chunk has in the page-locked memory that it lies in."""
    assert isinstance(chunk, QuantizedChunk)
    return PackedRows(chunk.n_rows, chunk.n_entries, memory[: chunk.nbytes])
