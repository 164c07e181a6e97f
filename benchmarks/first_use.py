"""What a new process waits for: the imports, and what its first fit costs over the second.

    python -m benchmarks.first_use [--device cuda]
    python -m benchmarks.first_use --defaults [--classes 7] --rows 20000

All is measured in new processes, with a warm disk: the first finds no compiled kernels, as the first use after an
install does, and the others find those that it has left, whose medians are printed. Bytecode is there, as it is of an
installed package. The fit is of an estimator, with an area under the curve of an evaluation set in each round; or at
the estimator's defaults, which choose among models of several kinds. Minutes would go into more processes without
kernels, of which there is one: run the command again for its scatter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, record

CHILD = """
import json, time
def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
def estimator():
    from daskboost import DaskBoostClassifier
    return DaskBoostClassifier
import numpy
imported, _ = timed(lambda: __import__("daskboost"))
with_estimator, kind = timed(estimator)
from benchmarks.generators import WORKLOADS
workload = WORKLOADS["higgs"].wide({n_features}) if {classes} == 2 else WORKLOADS["covtype"]
rows, made = {n_rows}, workload.rows({n_rows} + {n_rows} // 4)
(x, unseen), (y, label) = ((part[:rows], part[rows:]) for part in made)
def fit():
    if {defaults}:
        return kind(device={device!r}).fit(x, y)
    model = kind(n_estimators={trees}, device={device!r}, eval_metric="auc")
    return model.fit(x, y, eval_set=[(unseen, label)])
first, _ = timed(fit)
second, _ = timed(fit)
third, model = timed(fit)
if {defaults}:
    assert model.score(unseen, label) > 1.1 * max(numpy.bincount(label.astype(int))) / len(label), "learned nothing"
else:
    (curve,) = (metrics["auc"] for metrics in model.evals_result_.values())
    assert len(curve) == {trees} and curve[-1] > 0.55, "learned nothing"
print(json.dumps({{
    "import_s": imported, "import_estimator_s": with_estimator, "first_fit_s": first,
    "second_fit_s": min(second, third),
}}))
"""
IMPORTS = """
import contextlib, importlib, pkgutil
import numba
import daskboost
from benchmarks import generators
for module in pkgutil.walk_packages(daskboost.__path__, "daskboost."):
    with contextlib.suppress(ImportError):  # of what an extra of the package needs
        importlib.import_module(module.name)
numba.njit(lambda x: x + 1.0)(1.0)
"""
"""What leaves bytecode, and libraries in the host's memory, in a fifth of the time of a fit that compiles kernels."""
FOLDERS = {"NUMBA_CACHE_DIR": "numba", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "nv"}
"""Environment variables of folders of compiled kernels, and how these are called here."""
MEASURES = ("import_s", "import_estimator_s", "first_fit_s", "second_fit_s", "first_fit_excess_s", "process_s")


@dataclass(frozen=True)
class Config:
    """A fit small enough that start-up shows."""

    device: str = "cpu"
    n_rows: int = 150_000
    n_features: int = 30
    """Features of rows of two classes; rows of seven classes have 54."""
    trees: int = 100
    processes: int = 3
    """New ones that find compiled kernels."""
    classes: int = 2
    """Two, or seven."""
    defaults: bool = False
    """Whether the estimator chooses the model, without an evaluation set."""


def bench_once(config: Config, folder: str) -> dict[str, float]:
    """Seconds of imports, first and second fit in one new process, which keeps its kernels in a folder."""
    code = CHILD.format(
        n_rows=config.n_rows, n_features=config.n_features, trees=config.trees, device=config.device,
        classes=config.classes, defaults=config.defaults,
    )  # fmt: skip
    start = time.perf_counter()
    measured: dict[str, float] = json.loads(_run(code, folder).splitlines()[-1])
    measured["first_fit_excess_s"] = measured["first_fit_s"] - measured["second_fit_s"]
    measured["process_s"] = time.perf_counter() - start
    return measured


def _run(code: str, folder: str) -> str:
    """Return what a new process prints, which keeps its kernels in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {name: os.path.join(folder, own) for name, own in FOLDERS.items()}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default=Config.device)
    parser.add_argument("--processes", type=int, default=Config.processes)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--classes", type=int, choices=(2, 7), default=Config.classes)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    config = Config(
        given.device, given.rows, trees=given.trees, processes=given.processes, classes=given.classes,
        defaults=given.defaults,
    )  # fmt: skip
    if config.classes > 2 and not config.defaults:
        parser.error("--classes 7 goes with --defaults: areas under the curve are of two classes")
    with tempfile.TemporaryDirectory() as other:
        if config.device == "cpu":
            _run(IMPORTS, other)
        else:
            bench_once(config, other)  # loads the compilers of GPUs, too
    with tempfile.TemporaryDirectory() as folder:
        rows: list[dict[str, Any]] = [
            {"caches": "filled" if process else "empty", "process": process, **bench_once(config, folder)}
            for process in range(config.processes + 1)
        ]
    record("first_use", config, rows, given.results)
    for caches in ("empty", "filled"):
        for measure in MEASURES:
            found = statistics.median(row[measure] for row in rows if row["caches"] == caches)
            print(f"{config.device}, {caches:<6} caches  {measure:<20} median {found:.3f}")


if __name__ == "__main__":
    main()
