"""Modules of kernels: what is compiled, when, by how many threads, and what is kept on disk."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daskboost.devices.gpu.runtime import cubin_files, modules
from daskboost.devices.gpu.runtime.cubin_files import DIGEST_BYTES, CubinFiles, cache_folder, writable_folder
from daskboost.devices.gpu.runtime.kernel_source import OPTIONS, KernelFile, Variant, kernel_file
from daskboost.devices.gpu.runtime.modules import Modules, file_name

SOURCE = kernel_file("range")
FIRST, SECOND = SOURCE.variants[0], SOURCE.variants[4]


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernel files whose usual variants are compiled."""
    names: list[str] = []
    monkeypatch.setattr(modules, "kernel_names", lambda: names)
    return names


class Loaded:
    """A module, whose functions are words."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    def get_function(self, entry: str) -> str:
        return f"{entry} of {self.code.decode()}"


class Toolchain:
    """A compiler that can be kept waiting."""

    target = "sm_90 NVRTC 13.0"

    def __init__(self) -> None:
        self.compiled: list[Variant] = []
        self.loaded: list[bytes] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None

    def compile(self, source: KernelFile, variant: Variant) -> bytes:
        self.compiled.append(variant)
        assert self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        return f"{source.name} {variant}".encode()

    def load(self, code: bytes) -> Any:
        self.loaded.append(code)
        return Loaded(code)


def test_a_variant_is_compiled_once_and_read_by_the_next_process(tmp_path: Path) -> None:
    first, second = Toolchain(), Toolchain()
    for toolchain, expected in ((first, [FIRST]), (second, [])):
        found = Modules(toolchain, CubinFiles(tmp_path / "cache"))
        for _ in range(2):
            found.start(SOURCE, FIRST)
            assert found.function(SOURCE, FIRST, "find_range") == f"find_range of range {FIRST}"
        assert (toolchain.compiled, len(toolchain.loaded)) == (expected, 1)


def test_a_process_that_has_to_compile_begins_with_what_most_fits_launch(tmp_path: Path, usual: list[str]) -> None:
    usual += ["range", "scales", "draw_rows"]
    expected = {*SOURCE.usual, *kernel_file("scales").usual}
    assert FIRST in SOURCE.usual and len(expected) == 3, "no usual variant draws rows"
    for compiled in (expected, set()):
        toolchain = Toolchain()
        found = Modules(toolchain, CubinFiles(tmp_path))
        found.start(SOURCE, FIRST)
        for source, variant in ((SOURCE, SOURCE.usual[1]), (kernel_file("scales"), kernel_file("scales").variants[0])):
            found.start(source, variant)
            found.function(source, variant, "f")
        found.function(SOURCE, FIRST, "f")
        assert set(toolchain.compiled) == compiled and len(toolchain.compiled) == len(compiled)
        assert len(toolchain.loaded) == 3


def test_what_few_launch_is_compiled_alone(tmp_path: Path, usual: list[str]) -> None:
    """A process that only predicts, say, needs none of those that fits launch."""
    usual += ["range", "scales"]
    toolchain, other = Toolchain(), SOURCE.variants[2]
    assert other not in SOURCE.usual
    found = Modules(toolchain, CubinFiles(tmp_path))
    found.start(SOURCE, other)
    assert found.function(SOURCE, other, "f") == f"f of range {other}"
    assert toolchain.compiled == [other]


def test_variants_are_compiled_at_the_same_time_and_only_launches_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain, threads = Toolchain(), ThreadPoolExecutor(2)
    monkeypatch.setattr(modules, "_compilers", lambda: threads)
    both = threading.Barrier(3)
    real = toolchain.compile

    def compile_together(source: KernelFile, variant: Variant) -> bytes:
        both.wait(10)  # breaks where one is compiled after the other
        return real(source, variant)

    monkeypatch.setattr(toolchain, "compile", compile_together)
    found = Modules(toolchain, CubinFiles(tmp_path))
    for variant in (FIRST, SECOND):
        found.start(SOURCE, variant)
    assert toolchain.compiled == [] and toolchain.loaded == []
    both.wait(10)
    assert found.function(SOURCE, SECOND, "find_range") == f"find_range of range {SECOND}"
    assert sorted(map(str, toolchain.compiled)) == sorted(map(str, (FIRST, SECOND)))
    assert len(toolchain.loaded) == 1, "what was not launched is not loaded"
    threads.shutdown()


def test_a_launch_compiles_what_no_thread_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would only wait, behind variants that nobody may ever launch."""
    toolchain, threads = Toolchain(), ThreadPoolExecutor(1)
    monkeypatch.setattr(modules, "_compilers", lambda: threads)
    is_free = threading.Event()
    threads.submit(is_free.wait, 10)
    files = CubinFiles(tmp_path)
    found = Modules(toolchain, files)
    for variant in (FIRST, SECOND):
        found.start(SOURCE, variant)
    for _ in range(2):
        assert found.function(SOURCE, SECOND, "f") == f"f of range {SECOND}"
    assert toolchain.compiled == [SECOND]
    is_free.set()
    assert found.function(SOURCE, FIRST, "f") == f"f of range {FIRST}"
    threads.shutdown()
    assert toolchain.compiled == [SECOND, FIRST]
    for variant in (FIRST, SECOND):
        assert files.read(file_name(SOURCE, variant, toolchain.target)) == f"range {variant}".encode()


@pytest.mark.parametrize(("cores", "n_threads"), [({0, 2, 4}, 3), (set(range(64)), 8)])
def test_few_threads_compile(cores: set[int], n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    assert modules._compilers.__wrapped__()._max_workers == n_threads


def test_threads_share_modules(tmp_path: Path) -> None:
    toolchain = Toolchain()
    found = Modules(toolchain, CubinFiles(tmp_path))

    def ask(_: int) -> Any:
        found.start(SOURCE, FIRST)
        return found.function(SOURCE, FIRST, "find_range")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(64)))) == 1
    assert (toolchain.compiled, len(toolchain.loaded)) == ([FIRST], 1)


def test_the_compilers_error_comes_to_whoever_launches(tmp_path: Path) -> None:
    toolchain = Toolchain()
    toolchain.error = ValueError("no such GPU")
    found = Modules(toolchain, CubinFiles(tmp_path))
    found.start(SOURCE, FIRST)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such GPU"):
            found.function(SOURCE, FIRST, "find_range")
    assert list(tmp_path.iterdir()) == [] and toolchain.compiled == [FIRST]


def test_files_are_named_by_all_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Toolchain.target
    names = [
        file_name(SOURCE, FIRST, target), file_name(SOURCE, SECOND, target),
        file_name(SOURCE, FIRST, "sm_80 NVRTC 13.0"), file_name(SOURCE, FIRST, "sm_90 NVRTC 13.1"),
        file_name(replace(SOURCE, text=SOURCE.text + "\n"), FIRST, target),
        file_name(kernel_file("scales"), kernel_file("scales").variants[0], target),
    ]  # fmt: skip
    monkeypatch.setattr(modules, "OPTIONS", (*OPTIONS, "-lineinfo"))
    names.append(file_name(SOURCE, FIRST, target))
    assert len(set(names)) == len(names)
    assert all(name.startswith(("daskboost-range-", "daskboost-scales-")) for name in names)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the digest": lambda data: data[:20],
    "only a digest": lambda data: data[:DIGEST_BYTES],
    "a digest of nothing": lambda data: hashlib.sha256(b"").digest(),
    "cut": lambda data: data[:-1],
    "a changed bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "longer": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(damage: str, tmp_path: Path) -> None:
    path = tmp_path / file_name(SOURCE, FIRST, Toolchain.target)
    for changed in (False, True):
        toolchain = Toolchain()
        if changed:
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
        found = Modules(toolchain, CubinFiles(tmp_path))
        found.start(SOURCE, FIRST)
        assert found.function(SOURCE, FIRST, "f") == f"f of range {FIRST}"
        assert toolchain.compiled == [FIRST]
    last = Toolchain()
    again = Modules(last, CubinFiles(tmp_path))
    again.start(SOURCE, FIRST)
    again.function(SOURCE, FIRST, "f")
    assert last.compiled == []


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    toolchain = Toolchain()
    found = Modules(toolchain, CubinFiles(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        for variant in (FIRST, SECOND):
            found.start(SOURCE, variant)
            assert found.function(SOURCE, variant, "f") == f"f of range {variant}"
    (message,) = [record.getMessage() for record in caplog.records]
    assert "file/cache cannot keep compiled kernels (" in message
    assert message.endswith("set CUPY_CACHE_DIR to a folder that can be written")


def _write_and_read(folder: str, number: int, n_times: int) -> None:
    files = CubinFiles(Path(folder))
    for _ in range(n_times):
        files.write("shared", bytes([number]) * (1 << 18))
        found = files.read("shared")
        if found is None or found != found[:1] * (1 << 18):
            raise SystemExit(1)


def test_processes_write_one_file_at_once(tmp_path: Path) -> None:
    """Each finds one that is whole, whoever's."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_and_read, args=(str(tmp_path), number, 40)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_kernels_lie_in_cupys_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    assert cache_folder() == Path("/home/somebody/.cupy/kernel_cache")
    monkeypatch.setenv("CUPY_CACHE_DIR", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_cupy_is_imported_with_a_folder_that_it_can_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with writable_folder():
        assert "CUPY_CACHE_DIR" not in os.environ
    assert (tmp_path / ".cupy/kernel_cache").is_dir()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["missing", "read-only"])
def test_without_a_folder_to_write_to_cupy_has_a_temporary_one(
    kind: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".cupy" / "kernel_cache"
    if kind == "missing":
        (tmp_path / ".cupy").write_text("no folder can be made here")
    else:
        folder.mkdir(parents=True)
        monkeypatch.setattr(os, "access", lambda *_: False)  # modes mean nothing to who may do all
    monkeypatch.setenv("HOME", str(tmp_path))
    if named:
        monkeypatch.setenv("CUPY_CACHE_DIR", str(folder))
    else:
        monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setattr(cubin_files, "_OWN", [])
    found = []
    for _ in range(2):
        with writable_folder():
            found.append(Path(os.environ["CUPY_CACHE_DIR"]))
            (found[0] / "kernel").write_bytes(b"code")
        assert os.environ.get("CUPY_CACHE_DIR") == (str(folder) if named else None)
    assert found[0] == found[1] and found[0].parent == Path(tempfile.gettempdir())
    assert found[0].stat().st_mode & 0o077 == 0, "code of others would be run"
    cubin_files._OWN[0].cleanup()
    assert not found[0].exists()
