"""Streaming: order, bounded memory, and a reading thread that always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from daskboost.data.chunks.chunk import DenseChunk, QuantizedChunk
from daskboost.data.chunks.chunk_stream import stream
from daskboost.data.chunks.packing import DenseLayout, pack_dense
from daskboost.data.chunks.store import ChunkHandle, ChunkStore
from daskboost.errors import StorageError

LAYOUT = DenseLayout.aligned(np.full(4, 256))
N_CHUNKS = 8


def chunk(seed: int) -> QuantizedChunk:
    return DenseChunk(seed * 10, 10, LAYOUT, pack_dense(np.full((10, 4), seed, np.uint8), LAYOUT))


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "daskboost-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert prefetch_threads() == []


class CountingStore(ChunkStore):
    """Counts the chunks read from disk that are alive, and notes the threads that read them."""

    def __init__(self, directory: Path, ram_budget_bytes: int) -> None:
        super().__init__(directory, ram_budget_bytes)
        self.most_alive = 0
        self.readers: set[str] = set()
        self._seen: list[weakref.ref[object]] = []

    def get(self, handle: ChunkHandle) -> QuantizedChunk:
        got = super().get(handle).on_host()
        if self.residency(handle) == "disk":
            self.readers.add(threading.current_thread().name)
            self._seen.append(weakref.ref(got.words))
            self.most_alive = max(self.most_alive, sum(reference() is not None for reference in self._seen))
        return got


def filled(path: Path, ram_chunks: int) -> tuple[CountingStore, list[ChunkHandle]]:
    store = CountingStore(path, ram_chunks * chunk(0).nbytes)
    return store, [store.put(chunk(seed)) for seed in range(N_CHUNKS)]


@pytest.mark.parametrize("ahead", [0, 1, 3, 50])
@pytest.mark.parametrize("ram_chunks", [0, 3, N_CHUNKS])
def test_all_chunks_come_in_order(tmp_path: Path, ahead: int, ram_chunks: int) -> None:
    store, handles = filled(tmp_path, ram_chunks)
    with store:
        order = [5, 0, 7, 1, 1, 2, 6, 3, 4]
        found = stream(store, [handles[i] for i in order], ahead)
        got = [(index, int(c.on_host().symbols()[0, 0])) for index, c in found]
        assert got == list(enumerate(order))


def test_no_thread_for_chunks_in_ram(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, N_CHUNKS)
    with store:
        for _ in stream(store, handles):
            assert prefetch_threads() == []
        assert list(stream(store, [])) == []


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("slow", ["caller", "reader"])
def test_at_most_ahead_plus_one_streamed_chunks_are_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, slow: str
) -> None:
    store, handles = filled(tmp_path, 0)
    if slow == "reader":
        get = ChunkStore.get

        def slowly(self: ChunkStore, handle: ChunkHandle) -> QuantizedChunk:
            time.sleep(0.005)
            return get(self, handle).on_host()

        monkeypatch.setattr(ChunkStore, "get", slowly)
    with store:
        for _, c in stream(store, handles, ahead):
            symbols = c.on_host().symbols()
            del c
            if slow == "caller":
                time.sleep(0.005)
            assert symbols.shape == (10, 4)
        # The view from the turn before, which lives on while the next chunk is awaited, is one of them.
        assert store.most_alive <= ahead + 1
        assert store.readers == {"daskboost-prefetch"}


def test_the_next_chunk_is_read_while_one_is_used(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, 0)
    with store:
        for index, _c in stream(store, handles, ahead=1):
            deadline = time.monotonic() + 10
            expected = min(index + 2, N_CHUNKS)
            while store.counters().disk_reads < expected and time.monotonic() < deadline:
                time.sleep(0.001)
            assert store.counters().disk_reads == expected


def test_a_caller_that_keeps_chunks_is_not_blocked(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, 0)
    with store:
        kept = [c for _, c in stream(store, handles, ahead=1)]
        assert [int(c.on_host().symbols()[0, 0]) for c in kept] == list(range(N_CHUNKS))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_thread_ends_with_the_callers_exception(tmp_path: Path, error: type[BaseException]) -> None:
    store, handles = filled(tmp_path, 0)
    with store, pytest.raises(error):
        for index, _ in stream(store, handles):
            if index == 2:
                assert len(prefetch_threads()) == 1
                raise error


def test_the_thread_ends_on_an_early_exit(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, 0)
    with store:
        for index, _ in stream(store, handles):
            if index == 3:
                break
        assert prefetch_threads() == []
        never_started = stream(store, handles)
        del never_started


def test_an_interrupt_while_waiting_for_the_disk_ends_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, handles = filled(tmp_path, 0)
    with store:
        chunks = stream(store, handles)
        next(chunks)
        with monkeypatch.context() as patch:
            wait_for = threading.Condition.wait_for

            def interrupted(self: threading.Condition, predicate: Callable[[], bool]) -> bool:
                if threading.current_thread() is threading.main_thread():
                    raise KeyboardInterrupt
                return wait_for(self, predicate)

            patch.setattr(threading.Condition, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(chunks)
        for thread in prefetch_threads():
            thread.join(5)
        assert prefetch_threads() == []


@pytest.mark.parametrize(("owner", "step"), [(threading.Thread, "start"), (threading.Condition, "notify_all")])
def test_an_interrupt_at_either_end_of_a_stream_ends_the_thread(
    owner: type, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come when the thread was started and nobody ends it yet, or before it was told to end."""
    original, interrupts = getattr(owner, step), [KeyboardInterrupt()]

    def interrupted(self: object) -> None:
        if step == "start":
            original(self)
        if interrupts and threading.current_thread() is threading.main_thread():
            raise interrupts.pop()
        if step != "start":
            original(self)

    store, handles = filled(tmp_path, 0)
    with store:
        chunks = stream(store, handles)
        if step != "start":
            next(chunks)
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(chunks) if step == "start" else chunks.close()  # type: ignore[attr-defined]
        for thread in prefetch_threads():
            thread.join(5)
        assert prefetch_threads() == []


def test_an_unreadable_chunk_fails_in_the_caller_at_its_turn(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, 0)
    with store:
        files = sorted(tmp_path.rglob("*.chunk"), key=lambda p: int(p.stem))
        files[3].unlink()
        seen = []
        with pytest.raises(StorageError, match="could not read a chunk back"):
            for index, _ in stream(store, handles, ahead=2):
                seen.append(index)
        assert seen == [0, 1, 2]


def test_an_unfinished_stream_does_not_keep_the_interpreter_alive(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from daskboost.data.chunks.chunk import CsrChunk
from daskboost.data.chunks.packing import CsrLayout
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.chunks.chunk_stream import stream
store = ChunkStore({str(tmp_path)!r}, 0)
chunk = CsrChunk(0, 0, CsrLayout(8), np.zeros(1, np.uint32), np.zeros(1, np.uint32))
chunks = stream(store, [store.put(chunk) for _ in range(9)])
held = next(chunks), chunks
held += (held,)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_two_streams_over_one_store(tmp_path: Path) -> None:
    store, handles = filled(tmp_path, 2)
    with store:
        for (_, first), (_, second) in zip(stream(store, handles), stream(store, handles[::-1]), strict=True):
            assert int(first.on_host().symbols()[0, 0]) + int(second.on_host().symbols()[0, 0]) == N_CHUNKS - 1
