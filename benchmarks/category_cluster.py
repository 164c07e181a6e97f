"""Seconds that statistics of categorical columns take over Dask, on one worker and on several.

    python -m benchmarks.category_cluster                                   # 40M rows, on 1 and on 2 workers with a GPU
    python -m benchmarks.category_cluster --device cpu --rows 400000 --repeats 1             # a rehearsal without a GPU

Eight columns of 100 to 50,000 levels, made on the workers as pandas partitions and persisted there. A cluster for each
number of workers, all at the same time, whose workers have as many threads, whatever their number. Contenders take
turns. A run is what comes between rows and bins: levels, counts by fold, pairs of columns where statistics combine two,
features of these, and their bins. Models of a few trees must be the same bytes on any number of workers before a time
is believed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import category_rows
from benchmarks.harness import RESULTS, Run, beside_row, comparison_rows, interleave, record, scores_agree, timed

LABEL = "label"
MAKING_THREADS = 8
"""Threads that make the rows of a partition: workers with a GPU have one of Dask's."""


@dataclass(frozen=True)
class Config:
    """A case."""

    n_rows: int = 40_000_000
    block_rows: int = 500_000
    """Rows of a partition at most."""
    max_ctr_complexity: int = 1
    trees: int = 3
    workers: tuple[int, ...] = (1, 2)
    threads: int = 1
    """Cores of each worker."""
    device: str = "cuda"
    repeats: int = 2


def make_block(first: int, n_rows: int) -> Any:
    """Rows `first` to `first + n_rows`: a frame of categorical columns as int32, and the label."""
    import pandas as pd

    edges = [n_rows * part // MAKING_THREADS for part in range(MAKING_THREADS + 1)]
    with ThreadPoolExecutor(MAKING_THREADS) as pool:
        parts = list(pool.map(lambda a, b: category_rows.rows(b - a, first=first + a), edges[:-1], edges[1:]))
    frame = pd.concat([x[list(category_rows.CATEGORIES)] for x, _ in parts], ignore_index=True)
    return frame.assign(**{LABEL: np.concatenate([y for _, y in parts])})


def persisted(config: Config, client: Any) -> Any:
    """The rows as a Dask frame that lies on a cluster's workers, as many blocks on each, in order."""
    import dask.dataframe as dd
    from distributed import wait

    workers = sorted(client.nthreads())
    each = -(-config.n_rows // config.block_rows // max(config.workers)) * max(config.workers) // len(workers)
    edges = [config.n_rows * block // (each * len(workers)) for block in range(each * len(workers) + 1)]
    futures = []
    for number, worker in enumerate(workers):
        own = edges[number * each : (number + 1) * each + 1]
        futures += client.map(make_block, own[:-1], np.diff(own).tolist(), workers=[worker], pure=False)
    meta = make_block(0, MAKING_THREADS).iloc[:0]
    with client.as_current():
        wait(futures)
    return dd.from_delayed(futures, meta=meta, verify_meta=False)


def open_cluster(config: Config, n_workers: int, stack: ExitStack) -> Any:
    """A client of so many workers, with a GPU each or without one."""
    from distributed import Client

    if config.device == "cpu":
        from distributed import LocalCluster

        cluster = LocalCluster(n_workers=n_workers, threads_per_worker=config.threads, dashboard_address=":0")
    else:
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(CUDA_VISIBLE_DEVICES=list(range(n_workers)), dashboard_address=":0")
    stack.enter_context(cluster)
    return stack.enter_context(Client(cluster, set_as_default=False))


def contender(config: Config, client: Any, rows: Any) -> Callable[[], Run]:
    """Return what gives the seconds from rows on a cluster to bins there, and what tells its model from others."""
    import daskboost

    params = {"objective": "binary:logistic", "max_depth": 6, "device": config.device}
    found: dict[str, float] = {}

    def run() -> Run:
        seconds, data = timed(lambda: daskboost.QuantizedDataset.from_dask(
            rows, LABEL, client=client, categorical_features=list(category_rows.CATEGORIES),
            max_ctr_complexity=config.max_ctr_complexity, device=config.device,
        ))  # fmt: skip
        if not found:
            model = daskboost.train(params, data, num_boost_round=config.trees)
            found.update(model=float(int(model.digest[:12], 16)), n_features=float(model.n_features))
        data.close()
        return Run(seconds, found)

    return run


def bench(config: Config, clients: Mapping[int, Any], rows: Mapping[int, Any]) -> list[dict[str, Any]]:
    """Measure a case; its rows."""
    case, fewest = f"{config.max_ctr_complexity} columns combined", min(clients)
    contenders = {_name(n): contender(config, client, rows[n]) for n, client in clients.items()}
    result = interleave(contenders, config.repeats, scores_agree("model", 0.0))
    found = comparison_rows(case, result)
    for n in clients:
        if n != fewest:
            row = beside_row(case, result, _name(n), _name(fewest))
            print(f"  {case}: {row['seconds']:.2f} s on {n}; {fewest} takes {row['ratio']} times as long", flush=True)
            found.append(row)
    return found


def _name(n_workers: int) -> str:
    return f"daskboost on {n_workers}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--block-rows", type=int, default=Config.block_rows)
    parser.add_argument("--combined", default="1,2", help="columns that statistics combine at most, a case of each")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, each a cluster")
    parser.add_argument("--threads", type=int, default=0, help="of each worker with --device cpu; by default its cores")
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    workers = tuple(int(n) for n in options.workers.split(","))
    threads = options.threads or max(1, (os.cpu_count() or 1) // max(workers))
    of_case = partial(Config, options.rows, options.block_rows, workers=workers, threads=threads,
                      device=options.device, repeats=options.repeats)  # fmt: skip
    with ExitStack() as stack:
        clients = {n: open_cluster(of_case(), n, stack) for n in workers}
        seconds, rows = timed(lambda: {n: persisted(of_case(), client) for n, client in clients.items()})
        print(f"{options.rows:,} rows made {len(workers)} times in {seconds:.1f} s", flush=True)
        for combined in map(int, options.combined.split(",")):
            config = of_case(max_ctr_complexity=combined)
            record("category_cluster", config, bench(config, clients, rows), options.results)


if __name__ == "__main__":
    main()
