"""Chunks one after the other, those on disk read ahead by one background thread.

    reader thread   read 1 | read 2 ......| read 3 ......| read 4
    caller                 | use 1        | use 2        | use 3

At most `ahead + 1` chunks read from disk are in memory: the next read begins when the caller has let go of an
earlier chunk's arrays (seen by a weak reference to them), or at the latest when it waits for the next chunk. A
caller that keeps chunks is thus never blocked, and has only the memory it asked for.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from daskboost.data.chunk import QuantizedChunk
from daskboost.data.device_chunk import Chunk
from daskboost.data.store import ChunkHandle, ChunkStore
from daskboost.dtypes import Array


def stream(store: ChunkStore, handles: Sequence[ChunkHandle], ahead: int = 1) -> Iterator[tuple[int, Chunk]]:
    """Iterate over chunks in the order of `handles`.

    Parameters
    ----------
    store : ChunkStore
    handles : sequence of ChunkHandle
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
