"""Jobs of minutes, in processes of their own, that begin beside a session's other tests.

Most tests take one core. One at a time, jobs take another; once somebody waits for one, all cores are theirs. Tests
that wait are marked `beside`: `tests/conftest.py` has them come last, and begins their jobs once it has collected them.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ)
"""Of the session as it began: tests that run beside a job change theirs for a while, and would find the job's files in
folders that they have for themselves."""
SCRATCH = tempfile.gettempdir()
"""Likewise."""
WAIT_SECONDS = 1500
"""For a job, which others may keep from its core, most of the time."""
TEST_SECONDS = 1200
"""For a test within a job, likewise."""
Result = TypeVar("Result")


class Jobs:
    """Functions of a name, called once for each, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._found: dict[Any, Future[Any]] = {}
        self._left: SimpleQueue[tuple[Future[Any], Callable[[str], Any], str]] = SimpleQueue()
        self._cores = 0

    def begin(self, job: Callable[[str], Result], name: str) -> Future[Result]:
        """Call it beside what goes on, if it has not been."""
        if (job, name) not in self._found:
            future = self._found[job, name] = Future[Any]()
            self._left.put((future, job, name))
            self._use_cores(1)
        return self._found[job, name]

    def result(self, job: Callable[[str], Result], name: str) -> Result:
        """What it returned, or raised."""
        future = self.begin(job, name)
        self._use_cores(len(os.sched_getaffinity(0)))
        return future.result()

    def _use_cores(self, n: int) -> None:
        for _ in range(self._cores, n):
            threading.Thread(target=self._work, daemon=True).start()
        self._cores = max(self._cores, n)

    def _work(self) -> None:
        while True:
            future, job, name = self._left.get()
            try:
                future.set_result(job(name))
            except BaseException as error:
                future.set_exception(error)


jobs = Jobs()
"""Of this session."""


def scratch_file() -> IO[str]:
    """An empty file with a name, for a process to write to; gone once it is closed."""
    return tempfile.NamedTemporaryFile("r", dir=SCRATCH)


def run_tests(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The emulated tests of a file."""
    return run_python(
        "-m", "pytest", path, "-q", "-x", "-m", "emulated", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}",
        "-o", "faulthandler_timeout=0", **environment,
    )  # fmt: skip


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python at the root of the repository, with the modules that tests have, behind tests that run at the same time;
    ended with this process."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests"), ENVIRONMENT.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        ["nice", "-n", "10", sys.executable, *command], cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONPATH": path.rstrip(os.pathsep), **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    try:
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    finally:
        process.kill()
        atexit.unregister(process.kill)
