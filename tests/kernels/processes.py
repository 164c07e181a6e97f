"""How a session's processes share its tests and what they compute, and tests that start a process of their own."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEST_SECONDS = 1200
"""Time limit of a test within such a process: sanitizers are ten times as slow."""
LATE_SECONDS = 1500
"""Time limit of a test that waits for such a process."""


def once(folder: Path, name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` returns, a value of JSON, computed by the first process of the session that asks for `name`.

    Others that ask at the same time wait for it. Where `work` raises, the next one that asks tries again.
    """
    place = folder / name.replace(os.sep, "+")
    with open(place.with_name(place.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            found = json.dumps(work())
            place.write_text(found)
        return json.loads(place.read_text())


def piece_of(nodeid: str) -> str:
    """Name the piece of work that a test belongs to: all of a piece run in one process, one after another.

    A piece is a file, whose tests share what its fixtures make. Of the late tests, each that starts a process is a
    piece of its own, and those that look at one kernel's compilations are one.
    """
    file = nodeid.split("::")[0]
    if file in ("tests/kernels/test_sanitizers.py", "tests/kernels/test_races.py"):
        return nodeid
    kernel = re.search(r"\[([a-z]\w*)", nodeid) if file == "tests/kernels/test_compile.py" else None
    return f"{file} {kernel[1]}" if kernel else file


def run_tests(*files: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the emulated tests of files. Where the process is ended in one of them, the output names that one last."""
    return run_python(
        "-m", "pytest", *files, "-v", "-x", "-m", "emulated", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}",
        "-o", "faulthandler_timeout=0", **environment,
    )  # fmt: skip


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python at the root of the repository, with the modules that tests have; it ends with this process at last."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    try:
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    finally:
        process.kill()
        atexit.unregister(process.kill)
