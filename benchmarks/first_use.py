"""What a new process waits for: the import, and what its first fit costs over the second.

    python -m benchmarks.first_use

Both are measured in new processes with a warm disk: one unrecorded process first fills the numba cache, as the first
use after an install does. The first fit's excess is code loading and thread start, not compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import ROOT, record

CHILD = """
import json, time
start = time.perf_counter()
import daskboost
imported = time.perf_counter() - start
from benchmarks import ours
from benchmarks.generators import WORKLOADS
x, y = WORKLOADS["higgs"].rows({n_rows})
def fit():
    start = time.perf_counter()
    params = {{"objective": "binary:logistic", "max_depth": 6, "device": "cpu"}}
    booster = ours.train(params, ours.quantize(x, y), {trees})
    return time.perf_counter() - start, booster
first, _ = fit()
second, booster = fit()
assert 0.5 < ((ours.predict(booster, x) > 0.5) == (y > 0.5)).mean(), "the model learned nothing"
print(json.dumps({{"import_s": imported, "first_fit_s": first, "second_fit_s": second}}))
"""


@dataclass(frozen=True)
class Config:
    """A fit small enough that start-up shows."""

    n_rows: int = 100_000
    trees: int = 10
    processes: int = 5


def bench_once(config: Config) -> dict[str, float]:
    """Seconds of import, first and second fit in one new process."""
    code = CHILD.format(n_rows=config.n_rows, trees=config.trees)
    # An installed package has its bytecode: a checkout must be allowed to write it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    measured["first_fit_excess_s"] = measured["first_fit_s"] - measured["second_fit_s"]
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=Config.processes)
    config = Config(processes=parser.parse_args().processes)
    cold = bench_once(config)
    print(f"filled the cache: first fit {cold['first_fit_s']:.2f} s, second {cold['second_fit_s']:.2f} s")
    rows: list[dict[str, Any]] = [{"repeat": r, **bench_once(config)} for r in range(config.processes)]
    record("first_use", config, rows)
    for measure in ("import_s", "first_fit_s", "second_fit_s", "first_fit_excess_s"):
        print(f"{measure:<20} median {statistics.median(row[measure] for row in rows):.3f}")


if __name__ == "__main__":
    main()
