"""The chunks of a store that stream to a GPU, in page-locked memory: those of RAM as they lie, others read ahead.

    readers     read 1 -> a | read 3 -> c ......| wait for the copy of 1, read 5 -> a
                read 2 -> b | read 4 -> d | ...
    the ring           copy a | copy b | copy c ...

Each file is read by one call into memory that is used again from chunk to chunk, and checked, in a thread of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from daskboost.data.chunk import QuantizedChunk
from daskboost.data.device_chunk import Chunk
from daskboost.data.store import ChunkHandle, ChunkStore
from daskboost.devices.gpu.ring import READS_AT_ONCE, PackedRows
from daskboost.devices.gpu.runtime import Event
from daskboost.dtypes import UInt8


@dataclass(frozen=True)
class _Room:
    """Page-locked memory for a chunk from disk."""

    memory: UInt8
    free: Event | None = None
    """When what it held was copied; None where it held nothing."""


class StreamedChunks:
    """`PackedChunks` of a store.

    Parameters
    ----------
    store : ChunkStore
    handles : sequence of ChunkHandle
        In RAM or on disk; in the order of passes.
    allocate : callable
        `Runtime.pinned`.

    Raises
    ------
    StorageError
        In `take`, for a chunk that could not be read.
    """

    def __init__(self, store: ChunkStore, handles: Sequence[ChunkHandle], allocate: Callable[[int], UInt8]) -> None:
        self._store, self._handles = store, handles
        on_disk = [handle for handle in handles if store.residency(handle) == "disk"]
        kept = {handle.key for handle in on_disk}
        in_ram = [handle for handle in handles if handle.key not in kept]
        self._in_ram = {
            handle.key: _packed(store.get(handle), memory)
            for handle, memory in zip(in_ram, store.pin(in_ram, allocate), strict=True)
        }
        self.most_bytes = max(handle.nbytes for handle in handles)
        n_reads = min(READS_AT_ONCE, len(on_disk))
        most = max((handle.nbytes for handle in on_disk), default=0)
        self._free = deque(_Room(allocate(most)) for _ in range(n_reads))
        self._reads: dict[int, tuple[_Room, Future[PackedRows]]] = {}
        """By number, until they are taken."""
        self._taken: dict[int, _Room] = {}
        self._asked = 0
        """Files of all numbers below are asked for."""
        self._pool = ThreadPoolExecutor(n_reads, "daskboost-read") if n_reads else None

    def __len__(self) -> int:
        return len(self._handles)

    def is_ready(self, number: int) -> bool:
        self._read_ahead()
        if self._handle(number).key in self._in_ram:
            return True
        if number not in self._reads:
            return False
        read = self._reads[number][1]
        return read.done() and read.exception() is None  # a failure comes when it is the chunk's turn

    def take(self, number: int) -> PackedRows:
        handle = self._handle(number)
        if handle.key in self._in_ram:
            return self._in_ram[handle.key]
        self._read_ahead()
        room, read = self._reads[number]
        try:
            rows = read.result()
        finally:
            del read  # its exception's traceback would refer to it, and wait for the garbage collector
        del self._reads[number]
        self._taken[number] = room
        return rows

    def give_back(self, number: int, copied: Event) -> None:
        room = self._taken.pop(number, None)
        if room is not None:
            self._free.append(_Room(room.memory, copied))
            self._read_ahead()

    def restart(self) -> None:
        """Waits for files that are being read."""
        reads, self._reads = list(self._reads.values()), {}
        wait([read for _, read in reads if not read.cancel()])
        self._free.extend(room for room, _ in reads)
        self._asked = 0

    def close(self) -> None:
        """End the threads and let go of the memory."""
        self.restart()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._free.clear()
        self._in_ram.clear()

    def _handle(self, number: int) -> ChunkHandle:
        return self._handles[number % len(self._handles)]

    def _read_ahead(self) -> None:
        """Ask for the next files, as many as there is room for."""
        while self._free and self._pool is not None:
            number, handle = self._asked, self._handle(self._asked)
            if handle.key not in self._in_ram:
                room = self._free.popleft()
                self._reads[number] = room, self._pool.submit(self._read, handle, room)
            self._asked += 1

    def _read(self, handle: ChunkHandle, room: _Room) -> PackedRows:
        if room.free is not None:
            room.free.synchronize()
        return _packed(self._store.read(handle, room.memory), room.memory)


def _packed(chunk: Chunk, memory: UInt8) -> PackedRows:
    """What a chunk has in the page-locked memory that it lies in."""
    assert isinstance(chunk, QuantizedChunk)
    n_entries = 0 if chunk.indptr is None else int(chunk.indptr[-1])
    return PackedRows(chunk.n_rows, n_entries, memory[: chunk.nbytes])
