"""Chunks on their way to a GPU: order, memory that is used again, failures and threads that end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.data.chunks.chunk import CsrChunk, DenseChunk, QuantizedChunk
from daskboost.data.chunks.chunk_stream import StreamedChunks
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, pack_csr, pack_dense
from daskboost.data.chunks.store import ChunkHandle, ChunkStore
from daskboost.devices.budget.set_size import READS_AT_ONCE, places_in_group, stream_groups
from daskboost.devices.gpu.runtime.ring import N_BUFFERS, PackedGroup, Ring, placed
from daskboost.errors import StorageError

LAYOUT = DenseLayout.tight(np.full(5, 64))
N_CHUNKS = 8
GROUP_BYTES = {"alone": 0, "pairs": 400, "threes": 600}
"""By how many chunks of less than 88 bytes such groups have."""


def dense(seed: int) -> QuantizedChunk:
    n_rows = 10 + seed
    symbols = np.random.default_rng(seed).integers(0, 64, (n_rows, 5)).astype(np.uint8)
    return DenseChunk(100 * seed, n_rows, LAYOUT, pack_dense(symbols, LAYOUT))


def sparse(seed: int) -> QuantizedChunk:
    indptr = np.arange(0, 3 * (seed + 2), 3).astype(np.uint32)
    layout = CsrLayout(7)
    bins = np.random.default_rng(seed).integers(0, 99, int(indptr[-1])).astype(np.uint32)
    return CsrChunk(100 * seed, len(indptr) - 1, layout, pack_csr(bins, layout), indptr)


def packed(chunk: QuantizedChunk) -> bytes:
    return b"".join(array.tobytes() for array in chunk.arrays)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread for thread in threading.enumerate() if thread.name.startswith("daskboost-")] == []


def filled(path: Path, n_in_ram: int, make: Any = dense) -> tuple[ChunkStore, list[ChunkHandle]]:
    store = ChunkStore(path, sum(make(seed).nbytes for seed in range(n_in_ram)))
    handles = [store.put(make(seed)) for seed in range(N_CHUNKS)]
    assert [store.residency(handle) for handle in handles] == ["ram"] * n_in_ram + ["disk"] * (N_CHUNKS - n_in_ram)
    return store, handles


def grouped(handles: Sequence[ChunkHandle], joined: str = "threes") -> list[list[ChunkHandle]]:
    """All but the last group are as large as they may be."""
    sizes = [handle.nbytes for handle in handles]
    groups = stream_groups(range(len(handles)), sizes, GROUP_BYTES[joined])
    assert [len(group) for group in groups] == {"alone": [1] * 8, "pairs": [2] * 4, "threes": [3, 3, 2]}[joined]
    return [[handles[number] for number in group] for group in groups]


def read(memory: Any) -> Any:
    """What kernels that unpack would see."""
    return lambda group, buffer: memory.extend((rows.n_rows, buffer[place].tobytes()) for rows, place in placed(group))


@pytest.mark.parametrize("joined", ["alone", "threes"])
@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("n_in_ram", [0, 3, 4, N_CHUNKS])
def test_every_pass_sees_all_chunks_in_order(tmp_path: Path, n_in_ram: int, make: Any, joined: str) -> None:
    """Copies are made as late as events allow, see `late_copies.py`."""
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, n_in_ram, make)
    order = [5, 0, 7, 1, 2, 6, 3, 4]
    with store:
        groups = grouped([handles[i] for i in order], joined)
        chunks = StreamedChunks(store, groups, runtime.pinned)
        ring = Ring(runtime)
        for _ in range(3):
            seen: list[tuple[int, bytes]] = []
            assert len(list(ring.passing(chunks, read(seen)))) == len(groups)
            assert seen == [(make(i).n_rows, packed(make(i))) for i in order]
        most = max(places_in_group([handle.nbytes for handle in group])[1] for group in groups)
        assert ring.nbytes == N_BUFFERS * most
        ring.close()
        chunks.close()
        assert ring.nbytes == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("n_in_ram", [0, 3, N_CHUNKS])
def test_what_comes_once_is_read_once_wherever_it_lies(tmp_path: Path, n_in_ram: int, make: Any) -> None:
    """A few at a time, and what is in RAM stays as it is."""
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, n_in_ram, make)
    with store:
        before = [store.get(handle) for handle in handles[:n_in_ram]]
        chunks, ring = StreamedChunks(store, [[each] for each in handles], runtime.pinned, once=True), Ring(runtime)
        seen: list[tuple[int, bytes]] = []
        list(ring.passing(chunks, read(seen)))
        assert seen == [(make(i).n_rows, packed(make(i))) for i in range(N_CHUNKS)]
        assert ring.nbytes == N_BUFFERS * max(handle.nbytes for handle in handles)
        ring.close()
        chunks.close()
        del chunks
        assert store.counters().disk_reads == N_CHUNKS - n_in_ram
        assert all(store.get(handle) is chunk for handle, chunk in zip(handles, before, strict=False))
        assert runtime.pinned_peak_bytes == READS_AT_ONCE * max(handle.nbytes for handle in handles)
        assert runtime.pinned_bytes == 0


def test_copies_are_ahead_of_their_use_across_passes(tmp_path: Path) -> None:
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, N_CHUNKS)
    taken: list[int] = []

    class Noting(StreamedChunks):
        def take(self, number: int) -> PackedGroup:
            taken.append(number)
            return super().take(number)

    with store:
        chunks, ring = Noting(store, grouped(handles, "alone"), runtime.pinned), Ring(runtime)
        for number, _ in enumerate(ring.passing(chunks, read([]))):
            assert taken == list(range(number + 1 + N_BUFFERS)), "as many are under way as there are buffers"
        assert taken[N_CHUNKS:] == [N_CHUNKS, N_CHUNKS + 1, N_CHUNKS + 2], "of the next pass"
        ring.close()


@pytest.mark.parametrize("n_in_ram", [2, N_CHUNKS])
def test_chunks_of_the_first_set_are_copied_when_others_have_passed(tmp_path: Path, n_in_ram: int) -> None:
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, n_in_ram)
    taken: list[tuple[str, int]] = []

    class Noting(StreamedChunks):
        name = ""

        def take(self, number: int) -> PackedGroup:
            taken.append((self.name, number))
            return super().take(number)

    with store:
        sets = {
            name: Noting(store, [[handle] for handle in handles[some]], runtime.pinned)
            for name, some in (("trained", slice(None)), ("small", slice(2)), ("evaluated", slice(3, None)))
        }
        for name, chunks in sets.items():
            chunks.name = name
        ring, first = Ring(runtime), {"trained": 0, "small": 0, "evaluated": 3}
        for name in ["trained", "trained", "evaluated", "small", "trained", "evaluated", "trained"]:
            seen: list[tuple[int, bytes]] = []
            n = len(list(ring.passing(sets[name], read(seen))))
            expected = [dense(first[name] + i) for i in range(len(sets[name]))]
            assert n == len(expected)
            assert seen == [(chunk.n_rows, packed(chunk)) for chunk in expected]
            if n_in_ram == N_CHUNKS:
                ahead = range(N_BUFFERS)
                assert [(by, number % N_CHUNKS) for by, number in taken[-N_BUFFERS:]] == [("trained", i) for i in ahead]
        assert max(number for name, number in taken if name == "small") == 1, "nothing that is not used at once"
        ring.close()
        for chunks in sets.values():
            chunks.close()


def test_a_pass_does_not_go_on_behind_others(tmp_path: Path) -> None:
    """Not even where the buffers are filled with its chunks again, or still."""
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, N_CHUNKS)
    with store:
        alone = [[handle] for handle in handles]
        chunks, other = (StreamedChunks(store, some, runtime.pinned) for some in (alone, alone[:3]))
        ring = Ring(runtime)
        for between in (other, chunks):
            left = ring.passing(chunks, read([]))
            next(left)
            seen: list[tuple[int, bytes]] = []
            passed = list(ring.passing(between, read(seen)))
            assert seen == [(dense(i).n_rows, packed(dense(i))) for i in range(len(between))]
            assert len(passed) == len(between)
            with pytest.raises(RuntimeError, match="goes on where another one has begun"):
                next(left)
        ring.close()
        for each in (chunks, other):
            each.close()


@pytest.mark.parametrize("joined", ["alone", "threes"])
@pytest.mark.parametrize("n_in_ram", [2, N_CHUNKS])
def test_sets_take_turns_and_passes_end_early(tmp_path: Path, n_in_ram: int, joined: str) -> None:
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, n_in_ram)
    with store:
        small = StreamedChunks(store, [[handle] for handle in handles[:3]], runtime.pinned)
        all_of_them = StreamedChunks(store, grouped(handles, joined), runtime.pinned)
        ring, n_all = Ring(runtime), len(grouped(handles, joined))
        for chunks, n in ((small, 3), (all_of_them, n_all), (small, 2), (small, 3), (all_of_them, 2), (small, 3)):
            seen: list[tuple[int, bytes]] = []
            passing = ring.passing(chunks, read(seen))
            for _ in range(n):
                next(passing)
            passing.close()
            n_chunks = n if chunks is small else sum(len(group) for group in grouped(handles, joined)[:n])
            assert seen == [(dense(i).n_rows, packed(dense(i))) for i in range(n_chunks)]
        left = ring.passing(small, read([]))
        next(left)
        seen = []
        other = ring.passing(all_of_them, read(seen))
        next(other)
        with pytest.raises(RuntimeError, match="goes on where another one has begun"):
            next(left)
        assert len(list(other)) == n_all - 1, "which the other one does not notice"
        assert seen == [(dense(i).n_rows, packed(dense(i))) for i in range(N_CHUNKS)]
        ring.close()
        for each in (small, all_of_them):
            each.close()


def test_what_a_failing_use_has_launched_is_waited_for(tmp_path: Path) -> None:
    from daskboost.devices.gpu.quantize.symbols import unpack_stream

    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, N_CHUNKS)

    def fail(group: PackedGroup, buffer: Any) -> None:
        *_, (_, last) = placed(group)
        words = buffer[last].view(np.uint32)
        unpack_stream(runtime, words, 32, np.empty(len(words) - 1, np.uint32))
        raise KeyboardInterrupt

    with store:
        chunks, ring = StreamedChunks(store, grouped(handles), runtime.pinned), Ring(runtime)
        with pytest.raises(KeyboardInterrupt):
            next(ring.passing(chunks, fail))
        seen: list[tuple[int, bytes]] = []
        list(ring.passing(chunks, read(seen)))
        assert seen == [(dense(i).n_rows, packed(dense(i))) for i in range(N_CHUNKS)]
        ring.close()
        chunks.close()


@pytest.mark.parametrize("joined", ["alone", "threes"])
@pytest.mark.parametrize("harm", ["gone", "damaged", "shorter"])
def test_a_failing_read_says_so_and_the_next_pass_may_work(tmp_path: Path, harm: str, joined: str) -> None:
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, 2)
    with store:
        groups = grouped(handles, joined)
        chunks, ring = StreamedChunks(store, groups, runtime.pinned), Ring(runtime)
        (path,) = tmp_path.glob(f"*/{handles[5].key}.chunk")
        content = path.read_bytes()
        path.unlink()
        if harm != "gone":
            path.write_bytes(content[:-9] + b"?" * (9 if harm == "damaged" else 2))
        seen: list[tuple[int, bytes]] = []
        with pytest.raises(StorageError, match="could not read a chunk back" if harm == "gone" else "is damaged"):
            list(ring.passing(chunks, read(seen)))
        assert len(seen) == (5 if joined == "alone" else 3), "the groups before"
        path.write_bytes(content)
        assert len(list(ring.passing(chunks, read([])))) == len(groups)
        ring.close()
        chunks.close()
    assert list(tmp_path.iterdir()) == []


def test_chunks_in_ram_are_moved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = EmulatedRuntime()
    store, handles = filled(tmp_path, 6)
    with store:
        before = store.counters().ram_bytes
        first = store.pin(handles[:4], runtime.pinned)
        again = store.pin(handles[:6], runtime.pinned)
        assert [a is b for a, b in zip(first, again, strict=False)] == [True] * 4
        assert runtime.pinned_bytes == sum(handle.nbytes for handle in handles[:6])
        assert store.counters().ram_bytes == before
        for handle, memory in zip(handles, again, strict=False):
            chunk = store.get(handle).on_host()
            assert np.shares_memory(chunk.words, memory)
            assert packed(chunk) == memory.tobytes() == packed(dense(handles.index(handle)))
        store.delete(handles[0])
        with pytest.raises(StorageError, match="is not in this store"):
            store.pin([handles[0]], runtime.pinned)
        mine = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: mine + 1)
        with pytest.raises(StorageError, match=r"page-locked memory .* a forked process does not have"):
            store.get(handles[1])
    with pytest.raises(StorageError, match="closed"):
        store.pin([], runtime.pinned)


@pytest.mark.parametrize("joined", ["alone", "pairs"])
@pytest.mark.parametrize("forgotten", ["copies wait for kernels", "kernels wait for copies", "readers wait for copies"])
def test_the_emulation_finds_what_is_not_waited_for(
    tmp_path: Path, forgotten: str, joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.late_copies import Copied, LateCopies

    from daskboost.devices.gpu.quantize.symbols import unpack_stream

    runtime = EmulatedRuntime()
    if forgotten == "copies wait for kernels":
        monkeypatch.setattr(LateCopies, "wait", lambda *_: None)
    elif forgotten == "kernels wait for copies":
        monkeypatch.setattr(runtime, "wait_event", lambda *_: None)
    else:
        wait_event = runtime.wait_event
        monkeypatch.setattr(runtime, "wait_event", lambda event: event.stream.run(event.count))
        monkeypatch.setattr(Copied, "synchronize", lambda *_: None)
        assert wait_event is not None
    reads = forgotten.startswith("readers")
    store, handles = filled(tmp_path, 0 if reads else N_CHUNKS)  # else readers would make copies in time by chance
    seen: list[bytes] = []

    def use(group: PackedGroup, buffer: Any) -> None:
        wait([read for _, files in list(chunks._reads.values()) for read in files.values()])
        for rows, place in placed(group):
            words = np.empty(rows.memory.nbytes // 4, np.uint32)
            unpack_stream(runtime, buffer[place].view(np.uint32), 32, words[:-1])
            seen.append(words[:-1].tobytes())

    with store:
        chunks, ring = StreamedChunks(store, grouped(handles, joined), runtime.pinned), Ring(runtime)
        try:
            for _ in range(4):
                list(ring.passing(chunks, use))
            is_found = seen != [packed(dense(i))[:-4] for i in range(N_CHUNKS)] * 4
        except AssertionError as error:
            is_found = "was not waited for" in str(error)
        monkeypatch.undo()
        ring.close()
        chunks.close()
    assert is_found
