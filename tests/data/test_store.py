"""The chunk store: budgets, faults on disk, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskboost.data.chunks.chunk import CsrChunk, DenseChunk, QuantizedChunk
from daskboost.data.chunks.device_chunk import Chunk
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, pack_csr, pack_dense
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.saved.array_file import ArrayFile
from daskboost.errors import StorageError

LAYOUT = DenseLayout.aligned(np.full(5, 256))


def dense_chunk(seed: int, n_rows: int = 100) -> QuantizedChunk:
    symbols = np.random.default_rng(seed).integers(0, 256, (n_rows, 5)).astype(np.uint8)
    return DenseChunk(1000 * seed, n_rows, LAYOUT, pack_dense(symbols, LAYOUT))


def csr_chunk() -> QuantizedChunk:
    bins = np.arange(7, dtype=np.uint32)
    return CsrChunk(3, 4, CsrLayout(3), pack_csr(bins, CsrLayout(3)), np.array([0, 2, 2, 6, 7], np.uint32))


def assert_equal_chunks(one: Chunk, other: Chunk) -> None:
    first, second = one.on_host(), other.on_host()
    assert (first.first_row, first.n_rows, first.layout) == (second.first_row, second.n_rows, second.layout)
    for array, expected in zip(first.arrays, second.arrays, strict=True):
        np.testing.assert_array_equal(array, expected)


def files_under(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def on_disk(path: Path) -> ChunkStore:
    return ChunkStore(path, ram_budget_bytes=0)


@pytest.mark.parametrize("budget", [None, 0])
@pytest.mark.parametrize("make", [lambda: dense_chunk(1), lambda: dense_chunk(1, 0), csr_chunk])
def test_what_goes_in_comes_out(tmp_path: Path, budget: int | None, make: object) -> None:
    chunk: QuantizedChunk = make()  # type: ignore[operator]
    with ChunkStore(tmp_path, budget) as store:
        handle = store.put(chunk)
        assert_equal_chunks(store.get(handle), chunk)
        assert (handle.first_row, handle.n_rows, handle.nbytes) == (chunk.first_row, chunk.n_rows, chunk.nbytes)
        assert store.residency(handle) == ("ram" if budget is None else "disk")


def test_chunks_beyond_the_budget_go_to_disk_and_freed_room_is_used_again(tmp_path: Path) -> None:
    size = dense_chunk(0).nbytes
    with ChunkStore(tmp_path, ram_budget_bytes=2 * size + 1) as store:
        handles = [store.put(dense_chunk(seed)) for seed in range(4)]
        assert [store.residency(handle) for handle in handles] == ["ram", "ram", "disk", "disk"]
        for seed, handle in enumerate(handles):
            assert_equal_chunks(store.get(handle), dense_chunk(seed))
        counters = store.counters()
        assert (counters.ram_bytes, counters.disk_bytes) == (2 * size, 2 * size)
        assert (counters.disk_reads, counters.disk_read_bytes) == (2, 2 * size)
        store.delete(handles[0])
        store.delete(handles[0])
        store.delete(handles[2])
        assert store.counters().ram_bytes == store.counters().disk_bytes == size
        assert store.residency(store.put(dense_chunk(9))) == "ram"
        assert len(files_under(tmp_path)) == 1


@pytest.mark.parametrize("budget", [None, 0])
def test_parts_of_a_chunk_take_no_room(tmp_path: Path, budget: int | None) -> None:
    chunk = dense_chunk(1)
    with ChunkStore(tmp_path, budget) as store:
        handle, before = store.put(chunk), store.counters()
        part = store.part(handle, 64, 100)
        assert store.residency(part) == store.residency(handle)
        found = store.get(part).on_host()
        assert (found.first_row, found.n_rows, part.nbytes) == (1_064, 36, found.nbytes)
        np.testing.assert_array_equal(found.symbols(), chunk.symbols()[64:])
        held = [store.counters().ram_bytes, store.counters().disk_bytes]
        assert held == [before.ram_bytes, before.disk_bytes]
        store.delete(part)
        assert [store.counters().ram_bytes, store.counters().disk_bytes] == held
        assert_equal_chunks(store.get(handle), chunk)


def test_no_directory_is_made_before_it_is_needed_and_none_is_left(tmp_path: Path) -> None:
    with ChunkStore(tmp_path / "new", ram_budget_bytes=600) as store:
        store.put(dense_chunk(0))
        assert not (tmp_path / "new").exists()
        store.put(dense_chunk(1))
        assert len(files_under(tmp_path)) == 1
    assert list((tmp_path / "new").iterdir()) == []
    assert store.counters().ram_bytes == store.counters().disk_bytes == 0


def test_a_store_without_a_disk_says_what_to_set() -> None:
    with ChunkStore(None, ram_budget_bytes=10) as store:
        with pytest.raises(StorageError, match=r"does not fit into host_memory_limit \(0 of 10 bytes.*spill_directory"):
            store.put(dense_chunk(0))


def test_files_go_when_the_store_is_collected(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    store.put(dense_chunk(0))
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["pass", "raise ValueError", "import sys; sys.exit(3)"])
def test_files_go_when_the_interpreter_exits(tmp_path: Path, ending: str) -> None:
    program = f"""
import numpy as np
from daskboost.data.chunks.chunk import CsrChunk
from daskboost.data.chunks.device_chunk import Chunk
from daskboost.data.chunks.packing import CsrLayout
from daskboost.data.chunks.store import ChunkStore
store = ChunkStore({str(tmp_path)!r}, 0)
store.put(CsrChunk(0, 0, CsrLayout(8), np.zeros(1, np.uint32), np.zeros(1, np.uint32)))
import os, sys
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(len(os.listdir({str(tmp_path)!r})))  # a forked child must not remove its parent's files
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.stdout == "1\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_killed_process_go_when_the_next_one_spills(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import dense_chunk, on_disk
from pathlib import Path
store = on_disk(Path({str(tmp_path)!r}))
store.put(dense_chunk(0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    with on_disk(tmp_path) as living:
        handle = living.put(dense_chunk(1))
        (own,) = tmp_path.iterdir()
        subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2])
        (left,) = set(tmp_path.iterdir()) - {own}
        with on_disk(tmp_path) as store:
            store.put(dense_chunk(2))
            assert not left.exists() and own.exists() and len(files_under(tmp_path)) == 2
            assert_equal_chunks(living.get(handle), dense_chunk(1))
    assert list(tmp_path.iterdir()) == []


def open_under(folder: Path) -> list[str]:
    """What this process has open there, removed or not; others' descriptors come and go with the garbage collector."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(folder))]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOLCK, "no locks")])
@pytest.mark.parametrize(("owner", "step"), [(os, "mkdir"), (Path, "rename"), (os, "open"), (weakref, "finalize")])
def test_a_directory_whose_making_fails_is_not_left_behind(
    owner: Any, step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is its descriptor. A step is done when Ctrl-C comes, or it fails."""
    original = getattr(owner, step)

    def failing(*given: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return original(*given, **options)
        if step == "mkdir" and isinstance(error, KeyboardInterrupt) and not Path(given[0]).exists():
            original(*given)
        raise error

    with on_disk(tmp_path) as store, monkeypatch.context() as patch:
        patch.setattr(owner, step, failing)
        with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt):
            store.put(dense_chunk(0))
    assert list(tmp_path.iterdir()) == []
    assert open_under(tmp_path) == []


def test_files_whose_removal_is_interrupted_go_when_the_next_one_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    store = on_disk(tmp_path)
    store.put(dense_chunk(0))
    assert open_under(tmp_path) != [], "the lock of a living process"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupted)
        store.close()
    assert open_under(tmp_path) == []
    (left,) = tmp_path.iterdir()
    with on_disk(tmp_path) as another:
        another.put(dense_chunk(1))
        assert not left.exists()


def test_files_go_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="elsewhere"), on_disk(tmp_path) as store:
        store.put(dense_chunk(0))
        raise RuntimeError("elsewhere")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    handle = store.put(dense_chunk(0))
    store.close()
    store.close()
    for call in (lambda: store.put(dense_chunk(1)), lambda: store.get(handle), lambda: store.residency(handle)):
        with pytest.raises(StorageError, match="closed"):
            call()
    store.delete(handle)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", [None, 0])
def test_a_deleted_chunk_is_not_there(tmp_path: Path, budget: int | None) -> None:
    with ChunkStore(tmp_path, budget) as store:
        handle = store.put(dense_chunk(2))
        store.delete(handle)
        with pytest.raises(StorageError, match="the chunk of rows from 2000 on is not in this store, or was deleted"):
            store.get(handle)


def test_a_vanished_file_is_named(tmp_path: Path) -> None:
    with on_disk(tmp_path) as store:
        handle = store.put(dense_chunk(0))
        (file,) = files_under(tmp_path)
        file.unlink()
        with pytest.raises(StorageError, match=r"No such file .*; make the data set again") as caught:
            store.get(handle)
        assert caught.value.errno == errno.ENOENT and caught.value.filename == str(file)
        assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_another_chunks_file_is_found(tmp_path: Path) -> None:
    with on_disk(tmp_path) as store:
        handles = [store.put(dense_chunk(seed)) for seed in range(2)]
        first, second = files_under(tmp_path)
        first.write_bytes(second.read_bytes())
        with pytest.raises(StorageError, match=r"1.chunk is damaged: its contents do not match .*; make .* again"):
            store.get(handles[0])
        assert_equal_chunks(store.get(handles[1]), dense_chunk(1))


@pytest.mark.parametrize("chunk", [dense_chunk(0, 9), csr_chunk()], ids=["dense", "csr"])
def test_every_flipped_byte_is_found(tmp_path: Path, chunk: QuantizedChunk) -> None:
    with on_disk(tmp_path) as store:
        handle = store.put(chunk)
        (file,) = files_under(tmp_path)
        good = file.read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 0x10
            file.write_bytes(bad)
            with pytest.raises(StorageError, match=rf"{file} is damaged"):
                store.get(handle)
        file.write_bytes(good)
        assert_equal_chunks(store.get(handle), chunk)


def test_every_other_length_is_found(tmp_path: Path) -> None:
    with on_disk(tmp_path) as store:
        handle = store.put(csr_chunk())
        (file,) = files_under(tmp_path)
        good = file.read_bytes()
        for bad in [good[:length] for length in range(len(good))] + [good + b"\0"]:
            file.write_bytes(bad)
            with pytest.raises(StorageError, match=rf"{file} is damaged"):
                store.get(handle)


def test_a_full_disk_is_named_with_its_remedy_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_disk(tmp_path) as store:
        store.put(dense_chunk(0))
        write, n_calls = os.write, 0

        def fill_up(descriptor: int, data: memoryview) -> int:
            nonlocal n_calls
            n_calls += 1
            if n_calls == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data[:100])

        monkeypatch.setattr(os, "write", fill_up)
        with pytest.raises(StorageError, match=r"No space left on device; free space .* spill_directory") as caught:
            store.put(dense_chunk(1))
        assert caught.value.errno == errno.ENOSPC and str(tmp_path) in str(caught.value)
        monkeypatch.undo()
        assert len(files_under(tmp_path)) == 1
        assert store.counters().disk_bytes == dense_chunk(0).nbytes
        assert_equal_chunks(store.get(store.put(dense_chunk(1))), dense_chunk(1))


def test_short_writes_and_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    monkeypatch.setattr(os, "preadv", lambda descriptor, parts, offset: read(descriptor, [parts[0][:11]], offset))
    with on_disk(tmp_path) as store:
        assert_equal_chunks(store.get(store.put(dense_chunk(3))), dense_chunk(3))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with on_disk(tmp_path / "file" / "below") as store, pytest.raises(StorageError, match=r"Not a directory.*below"):
        store.put(dense_chunk(0))


def test_threads_share_a_store(tmp_path: Path) -> None:
    size = dense_chunk(0).nbytes

    def work(seed: int) -> None:
        handle = store.put(dense_chunk(seed))
        assert_equal_chunks(store.get(handle), dense_chunk(seed))
        if seed % 2:
            store.delete(handle)

    with ChunkStore(tmp_path, ram_budget_bytes=5 * size) as store:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(60)))
        counters = store.counters()
        assert counters.ram_bytes + counters.disk_bytes == 30 * size
        assert counters.ram_bytes <= 5 * size
        assert len(files_under(tmp_path)) * size == counters.disk_bytes
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_read_into_memory_of_their_own_and_links_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(range(8)))
    with ArrayFile(file) as opened:
        array = opened.read("u1", (2, 3))
        assert array.base is None and array.tolist() == [[0, 1, 2], [3, 4, 5]] and not opened.at_end
        with pytest.raises(EOFError, match="8 bytes long, 4000000006 needed"):
            opened.read("u4", (10**9,))
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        ArrayFile(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        ArrayFile(tmp_path / "pipe")
