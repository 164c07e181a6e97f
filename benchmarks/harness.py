"""Timing done the same way everywhere: contenders interleaved in one process, answers checked before the clock counts.

A benchmark is a frozen `Config` plus contenders, functions that do the work once and return a `Run`. Interleaving
(a, b, a, b, ...) lets a slow minute of a shared machine hit every contender alike, so ratios are trusted and absolute
times are not. Results are tidy JSON lines: one row per contender and repeat, with device, versions, date, commit and a
digest of the kernels.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (
    "daskboost", "numpy", "numba", "pandas", "dask", "distributed", "xgboost", "lightgbm", "catboost", "chimeraboost",
    "cupy-cuda12x", "cupy-cuda13x", "cudf-cu13", "rmm-cu13", "dask-cuda",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What one contender did once."""

    seconds: float
    """The timed part, s."""
    answer: Mapping[str, float]
    """Scores of the result, to be compared before the time is believed."""


Contender = Callable[[], Run]
Check = Callable[[Mapping[str, Run]], None]


@dataclass(frozen=True)
class Comparison:
    """All repeats of all contenders."""

    runs: Mapping[str, Sequence[Run]]

    def seconds(self, name: str) -> float:
        """Median time of a contender, s."""
        return statistics.median(run.seconds for run in self.runs[name])

    def ratio(self, numerator: str, denominator: str) -> float:
        """Median over the repeats of the ratio of two times taken side by side."""
        pairs = zip(self.runs[numerator], self.runs[denominator], strict=True)
        return statistics.median(top.seconds / bottom.seconds for top, bottom in pairs)


def interleave(contenders: Mapping[str, Contender], repeats: int, check: Check) -> Comparison:
    """Run every contender once to warm up, check the answers, then time `repeats` rounds of all of them in turn."""
    check({name: contender() for name, contender in contenders.items()})
    return take_turns(contenders, repeats)


def take_turns(contenders: Mapping[str, Contender], repeats: int) -> Comparison:
    """Time `repeats` rounds of all contenders in turn; they have warmed up."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, contender in contenders.items():
            runs[name].append(contender())
            print(f"  round {repeat + 1}/{repeats}  {name:<24} {runs[name][-1].seconds:8.3f} s", flush=True)
    return Comparison(runs)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` took, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def scores_agree(measure: str, tolerance: float) -> Check:
    """A check that no contender's `measure` is further than `tolerance` from another's."""

    def check(runs: Mapping[str, Run]) -> None:
        values = {name: run.answer[measure] for name, run in runs.items()}
        if max(values.values()) - min(values.values()) > tolerance:
            raise AssertionError(f"contenders disagree on {measure} by more than {tolerance}: {values}")

    return check


def machine() -> dict[str, Any]:
    """Where and with what the rows were measured."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "device": _device_name(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),  # well above the threads in use: others ran too, distrust the row
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernels": kernels_digest(ROOT / "kernels"),  # whatever becomes of the commit
        "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if _git("status", "--porcelain", "-uno") else ""),
    }


def record(benchmark: str, config: Any, rows: Sequence[Mapping[str, Any]], folder: Path | None = None) -> Path:
    """Append rows to ``<folder>/<benchmark>.jsonl``, in `RESULTS` by default, each with the config and the machine."""
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{benchmark}.jsonl"
    common = {"benchmark": benchmark, "config": asdict(config), **machine()}
    with path.open("a") as file:
        file.writelines(json.dumps({**row, **common}) + "\n" for row in rows)
    return path


def comparison_rows(case: str, comparison: Comparison) -> list[dict[str, Any]]:
    """One row per contender and repeat."""
    return [
        {
            "case": case,
            "contender": name,
            "repeat": repeat,
            "seconds": round(run.seconds, 7),
            "answer": dict(run.answer),
        }
        for name, runs in comparison.runs.items()
        for repeat, run in enumerate(runs)
    ]


def beside_row(case: str, comparison: Comparison, own: str, peer: str, **facts: Any) -> dict[str, Any]:
    """Two contenders in one row: medians of their seconds, and how many times as long the peer takes; None where the
    difference of two fits is too short to tell."""
    seconds, peer_seconds = comparison.seconds(own), comparison.seconds(peer)
    return {
        "case": case,
        "contender": f"{own} beside {peer}",
        "seconds": round(seconds, 7),
        "peer_seconds": round(peer_seconds, 7),
        "ratio": round(comparison.ratio(peer, own), 3) if min(seconds, peer_seconds) > 0 else None,
        **facts,
    }


def kernels_digest(folder: Path) -> str:
    """Equal where all CUDA sources are."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _device_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
