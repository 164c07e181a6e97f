"""Milliseconds a tree takes on the CPU by the number of threads, beside XGBoost, interleaved in one process.

    python -m benchmarks.cpu_threads                                  # four sizes, 1 to 16 threads
    python -m benchmarks.cpu_threads --sizes 20k_symmetric,200k_symmetric       # beside CatBoost
    python -m benchmarks.cpu_threads --sizes 2k_quantiles,20k_quantiles,200k_quantiles     # three at once
    python -m benchmarks.cpu_threads --sizes 2k,200k --threads 1,4
    python -m benchmarks.cpu_threads --at-once 8 --threads 2 --sizes 20k,200k   # fits at once, ours alone

A fit of many rounds less one of a fifth, so that what a fit begins with does not count; `cpu_speed` measures whole
fits. Both sides quantize beforehand, and the test AUC of ours may not be lower by more than 0.005, or 0.02 after
training on 2,000 rows: over 12 draws of these, XGBoost's less ours is .001 on average with a standard deviation of
.0047. Fits at once are whole ones of the same rows, and all must give the bytes of one alone; the least that they could
take is what one alone takes, as often as the cores that this process may use have to take turns. Beside it is what as
many take at once in a process each, which have nothing in common but the machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.gpu_cases import Config
from benchmarks.gpu_contenders import make_rows
from benchmarks.gpu_speed import not_worse, warm_up
from benchmarks.harness import (
    RESULTS,
    Comparison,
    Run,
    beside_row,
    comparison_rows,
    interleave,
    record,
    scores_agree,
    timed,
)

_COMMON: dict[str, Any] = {"device": "cpu", "test_rows": 50_000, "leeway": 10.0}
SIZES = {
    config.name: config
    for config in (
        Config("2k", "higgs", 2_000, 20, 6, trees=60, **{**_COMMON, "leeway": 40.0}),
        Config("20k", "higgs", 20_000, 50, 6, trees=30, **_COMMON),
        Config("200k", "higgs", 200_000, 28, 8, trees=15, **_COMMON),
        Config("2m", "higgs", 2_000_000, 28, 8, trees=5, **_COMMON),
    )
}
_SYMMETRIC: dict[str, Any] = {
    **_COMMON, "peer": "catboost", "grow_policy": "symmetric", "max_bin": 129, "peer_score_function": "L2",
}  # fmt: skip
_QUANTILES: dict[str, Any] = {**_COMMON, "quantiles": (0.1, 0.5, 0.9)}
OTHERS = {
    config.name: config
    for config in (
        Config("20k_symmetric", "higgs", 20_000, 50, 6, trees=30, **_SYMMETRIC),
        Config("200k_symmetric", "higgs", 200_000, 28, 6, trees=15, **_SYMMETRIC),
        Config("2k_quantiles", "uneven", 2_000, 20, 6, trees=60, **_QUANTILES),
        Config("20k_quantiles", "uneven", 20_000, 28, 6, trees=30, **_QUANTILES),
        Config("200k_quantiles", "uneven", 200_000, 28, 6, trees=15, **_QUANTILES),
    )
}
ASKED, ASKED_AT_ONCE = 1.0, 1.3
"""The peer's time over ours at the least, in every cell; of fits at once, their time over the ideal at the most."""

START_S = 120.0
"""Seconds within which processes have begun."""


@dataclass(frozen=True)
class Options:
    """What is measured of each size."""

    threads: tuple[int, ...]
    repeats: int
    at_once: int
    """Fits at once; 0 for one beside XGBoost's."""


def per_tree(config: Config, options: Options) -> Iterator[list[dict[str, Any]]]:
    """Time trees on one number of threads after the other."""
    ready, _, missing = warm_up(config, "device")
    yield [{"case": config.name, "contender": name, "absent": why} for name, why in missing.items()]
    for n in options.threads:
        os.environ["BENCH_THREADS"] = str(n)
        result = interleave(ready, options.repeats, not_worse(config.leeway))
        rows = [{**row, "threads": n, "ms_per_tree": 1e3 * row["seconds"]}
                for row in comparison_rows(config.name, result)]  # fmt: skip
        ms = {name: round(1e3 * result.seconds(name), 4) for name in result.runs}
        print(f"{config.name} on {n} threads, ms a tree: {ms}", flush=True)
        if config.peer in ms:
            found = beside_row(config.name, result, "daskboost", config.peer, threads=n, asked=ASKED)
            rows.append({**found, "ms_per_tree": ms["daskboost"]})
            print(f"{config.name} on {n} threads: ratio {found['ratio']} (asked {ASKED})", flush=True)
        yield rows


def at_once(config: Config, options: Options) -> Iterator[list[dict[str, Any]]]:
    """Time fits at once beside one alone, on one number of threads after the other."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, config.test_rows, "cpu")
    data, fits = ours.quantize(rows.x, rows.y, max_bin=config.max_bin), options.at_once

    def fit(_: int) -> Any:
        return ours.train(config.params(), data, config.trees)

    def run(n: int) -> Run:
        with ThreadPoolExecutor(n) as pool:
            seconds, models = timed(lambda: list(pool.map(fit, range(n))))
        digests = {model.digest for model in models}
        if len(digests) > 1:
            raise AssertionError(f"{n} fits at once of the same rows gave {len(digests)} models")
        return Run(seconds, {"model": float(int(digests.pop()[:12], 16))})

    together = f"daskboost, {fits} at once"
    for n in options.threads:
        os.environ["BENCH_THREADS"] = str(n)
        sides = {"daskboost alone": partial(run, 1), together: partial(run, fits)}
        result = interleave(sides, options.repeats, scores_agree("model", 0.0))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        over, apart = over_ideal(result, together, n * fits / cores), in_processes(config, fits, options.repeats)
        of_processes = result.seconds(together) / apart
        own = {
            "case": config.name, "contender": f"{together} beside their ideal", "usable_cores": cores,
            "over_ideal": round(over, 3), "asked": ASKED_AT_ONCE, "seconds_in_processes": apart,
            "over_processes": round(of_processes, 3),
        }  # fmt: skip
        yield [{**row, "threads": n} for row in [*comparison_rows(config.name, result), own]]
        print(f"{config.name}: {fits} fits at once on {n} threads each and {cores} cores take {over:.2f} of their "
              f"ideal (asked {ASKED_AT_ONCE}), and {of_processes:.2f} of what they take in {fits} processes",
              flush=True)  # fmt: skip


def in_processes(config: Config, fits: int, repeats: int) -> float:
    """Return the seconds of as many fits at once, in a process each; their median."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(fits + 1)
    processes = [spawn.Process(target=_fit_apart, args=(config, barrier, repeats), daemon=True) for _ in range(fits)]
    for each in processes:
        each.start()
    found = []
    for _ in range(repeats):
        barrier.wait(START_S)
        found.append(timed(lambda: barrier.wait(START_S))[0])
    for each in processes:
        each.join()
    return statistics.median(found)


def _fit_apart(config: Config, barrier: Barrier, repeats: int) -> None:
    """Fit together with other processes, after a fit that counts for nothing."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, config.test_rows, "cpu")
    data = ours.quantize(rows.x, rows.y, max_bin=config.max_bin)
    ours.train(config.params(), data, config.trees)
    for _ in range(repeats):
        barrier.wait(START_S)
        ours.train(config.params(), data, config.trees)
        barrier.wait(START_S)


def over_ideal(result: Comparison, together: str, threads_per_core: float) -> float:
    """The time of fits at once over that of one alone, as often as cores have to take turns."""
    return result.ratio(together, "daskboost alone") / max(1.0, threads_per_core)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=0, help="fits at once in this process, ours alone")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    options = Options(tuple(int(n) for n in given.threads.split(",")), given.repeats, given.at_once)
    for name in given.sizes.split(","):
        config = replace((SIZES | OTHERS)[name].sized(given.rows, given.trees), repeats=given.repeats)
        for rows in (at_once if options.at_once else per_tree)(config, options):
            record("cpu_threads", config, rows, given.results)


if __name__ == "__main__":
    main()
