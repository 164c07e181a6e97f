"""Milliseconds a tree takes on the CPU by the number of threads, beside XGBoost, interleaved in one process.

    python -m benchmarks.cpu_threads                                  # four sizes, 1 to 16 threads
    python -m benchmarks.cpu_threads --sizes 2k,200k --threads 1,4

A fit of many rounds less one of two, so that what a fit begins with does not count; `cpu_speed` measures whole fits.
Both sides quantize beforehand. Features are normal, the label a noisy product of three of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import record


@dataclass(frozen=True)
class Size:
    """One size of data, and how many trees are timed."""

    n_rows: int
    n_features: int
    max_depth: int
    trees: int


SIZES = {
    "2k": Size(2_000, 20, 6, 60), "20k": Size(20_000, 50, 6, 30), "200k": Size(200_000, 28, 8, 12),
    "2m": Size(2_000_000, 28, 8, 4),
}  # fmt: skip
START_TREES = 2


def per_tree(fit: Callable[[int], Any], trees: int) -> float:
    """Return milliseconds a tree."""
    def seconds(n: int) -> float:
        start = time.perf_counter()
        fit(n)
        return time.perf_counter() - start

    return (seconds(START_TREES + trees) - seconds(START_TREES)) / trees * 1e3


def bench_size(name: str, threads: list[int], repeats: int) -> None:
    """Time one size on all numbers of threads."""
    import xgboost

    from daskboost import QuantizedDataset, train

    size, rng = SIZES[name], np.random.default_rng(0)
    x = rng.normal(size=(size.n_rows, size.n_features)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=size.n_rows) > 0).astype(np.float32)
    matrix = xgboost.QuantileDMatrix(x, y)
    with QuantizedDataset.from_dask(x, y) as data:
        for n in threads:
            params = {"objective": "binary:logistic", "max_depth": size.max_depth, "device": "cpu"}
            sides: dict[str, Callable[[int], Any]] = {
                "daskboost": partial(train, {**params, "n_jobs": n}, data),
                "xgboost": partial(xgboost.train, {**params, "nthread": n}, matrix),
            }
            found: dict[str, list[float]] = {side: [] for side in sides}
            for fit in sides.values():
                fit(START_TREES)
            for _ in range(repeats):
                for side, fit in sides.items():
                    found[side].append(per_tree(fit, size.trees))
            ms = {side: statistics.median(times) for side, times in found.items()}
            record("cpu_threads", size, [
                {"case": name, "threads": n, "contender": side, "ms_per_tree": round(own, 3)}
                for side, own in ms.items()
            ])  # fmt: skip
            print(f"{name:5} {n:3} threads: {ms['daskboost']:8.2f} ms, XGBoost {ms['xgboost']:8.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for name in options.sizes.split(","):
        bench_size(name, [int(n) for n in options.threads.split(",")], options.repeats)


if __name__ == "__main__":
    main()
