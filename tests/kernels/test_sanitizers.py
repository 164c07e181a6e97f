"""Tests of emulated kernels once more, of every file a share, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from kernels.emulation import LAUNCHES, MOST_TESTS, SANITIZE, launch_line
from kernels.test_emulation import line_of

from daskboost.devices.gpu.kernel_source import kernel_file, kernel_names

ROOT = Path(__file__).resolve().parents[2]


@cache
def _library() -> str:
    """The sanitizer must be in the process before anything allocates."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Python with the sanitizers, behind tests that run at the same time; ended with this process. Python's own leaks
    are none of ours, and fibers have stacks of their own."""
    environment = {
        **os.environ, **more, SANITIZE: "1", "LD_PRELOAD": _library(),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip
    process = subprocess.Popen(
        ["nice", "-n", "10", sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    try:
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    finally:
        process.kill()
        atexit.unregister(process.kill)


TESTS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if path.name not in ("test_sanitizers.py", "test_races.py")
    and re.search(r"\bemulated\b|\bruntime\b|RUNTIMES|devices\.backends", path.read_text())
]
"""Files that may have tests marked `emulated`: one by one, each takes less than the time limit of a test."""
OF_KERNELS, OF_OTHERS = 16, 6
"""Tests of a file, evenly chosen: of those that are about kernels, and of those that train models with them. Together
they launch every entry point out of order."""


def _launched_by(path: str) -> frozenset[str]:
    """Run a file's emulated tests; lines of the entry points that they launched, see `launch_line`."""
    most = OF_KERNELS if path.startswith(("tests/kernels", "tests/devices")) else OF_OTHERS
    with tempfile.NamedTemporaryFile("r") as launches:
        command = ("-m", "pytest", path, "-q", "-x", "-m", "emulated", "-p", "no:cacheprovider")
        done = run(*command, **{LAUNCHES: launches.name, MOST_TESTS: str(most)})
        assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), (done.stdout + done.stderr)[-5000:]
        return frozenset(launches.read().splitlines())


class Runs:
    """All files' runs in order, each on one core, of which none takes more.

    They take minutes. One at a time they begin beside the session's other tests (`tests/conftest.py`), most of which
    take one core as well; when only they are left, all cores are theirs.
    """

    def __init__(self) -> None:
        self.found: dict[str, Future[frozenset[str]]] = {path: Future() for path in TESTS}
        self._left: SimpleQueue[str] = SimpleQueue()
        for path in TESTS:
            self._left.put(path)
        self._cores = 0
        self.use_cores(1)

    def use_cores(self, n: int) -> None:
        """Go on with `n` runs at a time."""
        for _ in range(self._cores, n):
            threading.Thread(target=self._work, daemon=True).start()
        self._cores = max(self._cores, n)

    def _work(self) -> None:
        with suppress(Empty):
            while True:
                path = self._left.get_nowait()
                try:
                    self.found[path].set_result(_launched_by(path))
                except BaseException as error:
                    self.found[path].set_exception(error)


runs = cache(Runs)
"""Begins them, or gives those that have begun."""


def launched_by(path: str) -> frozenset[str]:
    """Lines of the entry points that a file's emulated tests launch, once they have run."""
    runs().use_cores(len(os.sched_getaffinity(0)))
    return runs().found[path].result()


@pytest.mark.slow
@pytest.mark.parametrize("path", TESTS)
def test_nothing_is_found_under_sanitizers(path: str) -> None:
    launched_by(path)


@pytest.mark.slow
def test_every_kernel_runs_out_of_order_under_sanitizers() -> None:
    """Every entry point of `kernels/` is launched by some test marked `emulated` whose runtime has a seed; the runs are
    those from above."""
    launched = frozenset[str]().union(*map(launched_by, TESTS))
    entries = {
        launch_line(name, entry, out_of_order=True)
        for name in kernel_names()
        for entry in kernel_file(name).entries(kernel_file(name).variants[0])
    }
    assert entries - launched == set()


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
import sys
sys.path[:0] = [".", "tests"]
import numpy as np
from kernels.test_emulation import launch
launch({entry!r}, 1, 1, {arguments}, shared=16)
"""
    done = run("-c", code)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert f"toys.cu:{line_of('// ' + entry)}" in done.stderr, done.stderr
