"""All tests on GPUs under compute-sanitizer: processes that share them, and a row of what was found for each tool.

    PYTHONPATH=tests python -m compute_sanitizer --mps --processes 15 --seconds 1200 --folder /tmp/sanitized

Each process has a sanitizer of its own, which would set those of several up one after the other; there is room for
about one on every core. Under racecheck a launch takes 5 ms or more, and without `--mps` a GPU gives its time to one
process after the other: 14 of them make 100 launches a second on an H200, with it 260. Memcheck adds less than .1 ms to
a launch, but waits for racechecks beside it. "plain" goes first, without a sanitizer: it compiles all kernels and says
how long tests take, and the others begin with the dearest. A process whose sanitizer has lost track of a launch is
ended, for its further records would be incomplete; the test it was at counts as not run. Where a kernel goes wrong and
takes the GPU from all that share its context, they begin anew, and the test to blame counts as failed. A second call
with the same folder goes on where the first has ended. Tests of many launches take far longer under a sanitizer than
their time without one tells: `--first` names those to begin with.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from compute_sanitizer.claims import LOST
from compute_sanitizer.report import Report

from benchmarks.harness import RESULTS, record

ROOT = Path(__file__).resolve().parents[2]
FEW_MULTIPROCESSORS = "8"
"""Most of a small fit's time goes into shared memory that blocks clear for the few rows they have."""
PLAIN = "plain"
OPTIONS = {
    # For backtraces of the host, sanitizers keep every Python frame that launches a kernel, and with it all its arrays.
    "memcheck": ["--show-backtrace", "device"],
    "racecheck": ["--show-backtrace", "device", "--force-blocking-launches"],
}
PLUGINS = {
    "memcheck": ["-p", "compute_sanitizer.allocations"],
    "racecheck": ["-p", "compute_sanitizer.turns"],
}
MPS = "nvidia-cuda-mps-control"
UNDER = "DASKBOOST_SANITIZER"
"""Variable that tells tests the sanitizer, beside which no profiler runs."""
ORDER = "order.txt"
"""File of tests, the dearest first."""
LOST_TRACK = "failure to track a kernel launch"
TEST_SECONDS = 900
MORE_SECONDS = 5
"""For tests that are under way when time is up."""
NOTICED_SECONDS = 5
"""From the first process that finds its GPU lost until the one to blame has said so."""


@dataclass(frozen=True)
class Config:
    """Of a call."""

    tools: tuple[str, ...]
    processes: int
    seconds: float
    tests: tuple[str, ...]
    mps: bool


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", default=f"{PLAIN},racecheck,memcheck", help="comma-separated")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600, help="end by then")
    parser.add_argument("--folder", type=Path, required=True, help="of claims and logs, for this commit alone")
    parser.add_argument("--mps", action="store_true", help="launches of processes run side by side on their GPU")
    parser.add_argument("--first", type=Path, help="file that names tests to begin with under sanitizers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("tests", nargs="*", help="arguments of pytest; -m gpu by default")
    given = parser.parse_args(arguments)
    tools = tuple(given.tools.split(","))
    if unknown := sorted(set(tools) - {PLAIN, *OPTIONS}):
        raise SystemExit(f"no tool is named {', '.join(unknown)}; there are {', '.join([PLAIN, *OPTIONS])}")
    config = Config(tools, given.processes, given.seconds, tuple(given.tests) or ("-m", "gpu"), given.mps)
    folder, until = given.folder.resolve(), time.time() + given.seconds
    folder.mkdir(parents=True, exist_ok=True)
    if PLAIN in tools:
        run_all([PLAIN], config, folder, until, nullcontext)
    first = given.first.read_text().splitlines() if given.first else []
    dearest = dict.fromkeys([*first, *Report.of(folder / PLAIN).dearest()])
    (folder / ORDER).write_text("".join(f"{test}\n" for test in dearest))
    if sanitizers := [tool for tool in tools if tool != PLAIN]:
        run_all(sanitizers, config, folder, until, shared_context if config.mps else nullcontext)
    for tool in tools:
        row = Report.of(folder / tool).row()
        print(tool, {name: value if isinstance(value, int) else len(value) for name, value in row.items()}, flush=True)
        row |= {"tool": tool, "gpu": ", ".join(_gpus())}
        record("gpu_sanitizers", config, [row], given.results)


@contextmanager
def shared_context() -> Iterator[dict[str, str]]:
    """Environment of processes that share a GPU's context, by CUDA's Multi-Process Service, which ends after them."""
    if shutil.which(MPS) is None:
        raise SystemExit(f"--mps needs {MPS}, which comes with NVIDIA's driver and is not on the PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place}
        subprocess.run([MPS, "-d"], env={**os.environ, **environment}, check=True)
        try:
            yield environment
        finally:
            subprocess.run([MPS], input=b"quit\n", env={**os.environ, **environment}, check=True)


def run_all(
    tools: Sequence[str], config: Config, folder: Path, until: float,
    share: Callable[[], AbstractContextManager[Mapping[str, str] | None]],
) -> None:  # fmt: skip
    """As many processes as there shall be, each of which takes all tools in turn, every fourth the last one first; new
    ones when the GPU was lost. `share` : the variables of processes that share a context."""
    is_lost = True
    while is_lost and time.time() < until:
        for tool in tools:
            for claim in Report.of(folder / tool).abandoned:
                (folder / tool / claim).unlink(missing_ok=True)
        with share() as environment:
            slots = [
                Slot(number, tools[:: -1 if number % 4 == 3 else 1], config.tests, folder, until, environment or {})
                for number in range(config.processes)
            ]
            is_lost = run_until_lost(slots, until)


def run_until_lost(slots: Sequence[Slot], until: float) -> bool:
    """Whether the GPU was; otherwise all tests were taken, or time is up."""
    try:
        while time.time() < until + MORE_SECONDS:
            if any(slot.is_lost() for slot in slots):
                time.sleep(NOTICED_SECONDS)
                return True
            if not sum(slot.goes_on() for slot in slots):
                return False
            time.sleep(0.2)
    finally:
        for slot in slots:
            slot.end()
    return False


class Slot:
    """Room for a process at a time."""

    def __init__(
        self, number: int, tools: Sequence[str], tests: Sequence[str], folder: Path, until: float,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._number, self._tests, self._folder, self._until = number, tests, folder, until
        self._more = environment
        self._tools = list(tools)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def goes_on(self) -> bool:
        """False when no tool has more to do; starts what comes next."""
        if self._process is not None and self._process.poll() is None:
            if self._log.exists() and LOST_TRACK in self._log.read_text(errors="replace"):
                self.end()
            return True
        if self.is_lost():  # since it was asked
            return True
        if self._process is not None and self._process.returncode >= 0:  # it has come to its end
            self._tools.pop(0)
        self._process = None
        if self._tools:
            self._start(self._tools[0])
        return bool(self._tools)

    def is_lost(self) -> bool:
        """Whether the process has left the mark of one without its GPU."""
        return self._process is not None and self._log.with_suffix(LOST).exists()

    def end(self) -> None:
        """The process, its sanitizer and the workers that it has started."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()

    def _start(self, tool: str) -> None:
        folder = self._folder / tool
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._number}-{time.time_ns()}.log"
        self._log = folder / f"sanitizer-{name}"
        with (folder / f"pytest-{name}").open("wb") as output:
            self._process = subprocess.Popen(
                self._command(tool, folder), cwd=ROOT, env=self._environment(tool), stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _command(self, tool: str, folder: Path) -> list[str]:
        sanitizer: list[str] = []
        order: list[str] = []
        if tool != PLAIN:
            sanitizer = ["compute-sanitizer", "--tool", tool, *OPTIONS[tool], "--log-file", str(self._log)]
            order = ["--claims-order", str(self._folder / ORDER), "--claims-log", str(self._log)]
        return [
            *sanitizer, sys.executable, "-m", "pytest", "-q", "-p", "compute_sanitizer.claims",
            *PLUGINS.get(tool, []), "-p", "no:cacheprovider",
            "--claims", str(folder), "--claims-until", str(self._until), *order,
            "--continue-on-collection-errors", f"--timeout={TEST_SECONDS}", "-o", "faulthandler_timeout=0",
            *self._tests,
        ]  # fmt: skip

    def _environment(self, tool: str) -> dict[str, str]:
        paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        made = {**os.environ, **self._more, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if tool != PLAIN:
            made |= {"DASKBOOST_MULTIPROCESSORS": FEW_MULTIPROCESSORS, UNDER: tool}
        if gpus := _gpus():
            made["CUDA_VISIBLE_DEVICES"] = str(self._number % len(gpus))
        return made


@functools.cache
def _gpus() -> list[str]:
    """Names of all that are here."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    main()
