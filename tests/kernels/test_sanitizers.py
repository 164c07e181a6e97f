"""Tests of emulated kernels once more, a share of them, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path

import pytest
from kernels.emulation import ALWAYS, EACH_VALUE, LAUNCHES, MOST_TESTS, SANITIZE, launch_lines
from kernels.processes import ROOT, once, run_python, run_tests
from kernels.test_emulation import line_of

from daskboost.devices.gpu.runtime.kernel_source import kernel_file, kernel_names


@cache
def _library() -> str:
    """The sanitizer must be in the process before anything allocates."""
    command = ["g++", "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def sanitizers() -> dict[str, str]:
    """The environment of a Python that has them. Its own leaks are none of ours; fibers have stacks of their own."""
    return {
        SANITIZE: "1", "LD_PRELOAD": _library(), "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip


OF_KERNELS, OF_OTHERS = 8, 2
"""Tests of a file, evenly chosen: of those that are about kernels, and of those that train models with them, which take
ten times as long each, and which `--each-value` leaves out. What else is to be launched is launched by the tests that
`sanitized.txt` names."""
FILES_OF_KERNELS, FILES_OF_OTHERS = 20, 7
"""Files that share a process, which takes four to eight seconds to start under sanitizers."""


def is_about_kernels(path: str) -> bool:
    return path.startswith(("tests/kernels", "tests/devices"))


NAMED = {line.split("::")[0] for line in ALWAYS.read_text().splitlines()}
"""The files of the tests that `sanitized.txt` names."""


def launches_no_more(path: str) -> bool:
    """Whether a file launches, for benchmarks, what tests of the library launch as well."""
    return path.startswith("tests/benchmarks") and path not in NAMED


TESTS = sorted((
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if path.name not in ("test_sanitizers.py", "test_races.py")
    and not launches_no_more(path.relative_to(ROOT).as_posix())
    and re.search(r"\bemulated\b|\bruntime\b|RUNTIMES|devices\.backends|\bPlace\b", path.read_text())
), key=is_about_kernels)  # fmt: skip
"""Files that may have tests marked `emulated`."""


def shares(files: list[str], most: int) -> list[tuple[str, ...]]:
    """Share files out among processes, in order, at most so many for each."""
    return [tuple(files[i : i + most]) for i in range(0, len(files), most)]


def processes(each_value: bool) -> list[tuple[str, ...]]:
    """Return files that run in one process each, those that take long first. With `--each-value`, of the files that
    train models those that `sanitized.txt` names."""
    others = [path for path in TESTS if not is_about_kernels(path) and (path in NAMED or not each_value)]
    return [
        *shares(others, FILES_OF_OTHERS),
        *shares([path for path in TESTS if is_about_kernels(path)], FILES_OF_KERNELS),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "files" in metafunc.fixturenames:
        files = processes(metafunc.config.getoption(EACH_VALUE))
        metafunc.parametrize("files", files, ids=[f"{own[0]} to {own[-1]}" for own in files])


def launched_by(files: tuple[str, ...], each_value: bool) -> list[str]:
    """Run the emulated tests of files that share a process; return the lines of what they launched, see
    `launch_lines`."""
    most = OF_KERNELS if is_about_kernels(files[0]) else 0 if each_value else OF_OTHERS
    with tempfile.NamedTemporaryFile("r") as launches:
        done = run_tests(*files, **sanitizers(), **{LAUNCHES: launches.name, MOST_TESTS: str(most)})
        assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), (done.stdout + done.stderr)[-5000:]
        return launches.read().splitlines()


def launched_once(files: tuple[str, ...], config: pytest.Config, session_folder: Path) -> list[str]:
    """Return what `launched_by` returns, whichever test asks first."""
    work = partial(launched_by, files, config.getoption(EACH_VALUE))
    found: list[str] = once(session_folder, files[0], work)
    return found


@pytest.mark.slow
@pytest.mark.late
def test_nothing_is_found_under_sanitizers(
    files: tuple[str, ...], pytestconfig: pytest.Config, session_folder: Path
) -> None:
    launched_once(files, pytestconfig, session_folder)


def test_what_is_always_run_is_of_files_that_are() -> None:
    assert NAMED - set(TESTS) == set()


@pytest.mark.slow
@pytest.mark.late
def test_every_kernel_runs_out_of_order_under_sanitizers(pytestconfig: pytest.Config, session_folder: Path) -> None:
    """Every entry point of `kernels/`, and every value of every constant, is launched by some test marked `emulated`
    whose runtime has a seed; the runs are those from above."""
    every = processes(pytestconfig.getoption(EACH_VALUE))
    launched = {line for files in every for line in launched_once(files, pytestconfig, session_folder)}
    wanted = {
        line
        for file in map(kernel_file, kernel_names()) for variant in file.variants for entry in file.entries(variant)
        for line in launch_lines(file.name, entry, variant, out_of_order=True)
    }  # fmt: skip
    assert wanted - launched == set(), f"name tests that launch these in {ALWAYS.relative_to(ROOT)}"


CASES = {
    "read_beyond": ("np.zeros(5, np.int32), 5, np.zeros(1, np.int32)", "heap-buffer-overflow"),
    "write_beyond_shared": ("8, np.zeros(1, np.int32)", "insufficient space"),
    "write_beyond_dynamic": ("4, np.zeros(1, np.int32)", "heap-buffer-overflow"),
    "overflow": ("np.ones(1, np.int32)", "signed integer overflow"),
    "misaligned": ("np.zeros(64, np.uint8)", "misaligned address"),
}


@pytest.mark.parametrize("entry", CASES)
def test_the_line_at_fault_is_named(entry: str) -> None:
    arguments, complaint = CASES[entry]
    code = f"""
import numpy as np
from kernels.test_emulation import launch
launch({entry!r}, 1, 1, {arguments}, shared=16)
"""
    done = run_python("-c", code, **sanitizers())
    assert done.returncode != 0
    assert complaint in done.stderr
    assert f"toys.cu:{line_of('// ' + entry)}" in done.stderr, done.stderr
