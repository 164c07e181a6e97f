"""What a cluster of one machine costs beside as many threads in process, or beside fewer, where it cannot help.

    python -m benchmarks.dask_overhead            # 100k x 28, depth 6, 100 trees; median of 5
    python -m benchmarks.dask_overhead --rows 1000000 --layouts 2x8,16x1 --threads 16

A layout is workers x threads of each. Contenders, interleaved: the embedded engine on some threads, by default one, and
the workers, by default two of one thread, on persisted partitions. The clock covers training on quantized data; the
models must be the same bytes before it counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.generators import WORKLOADS
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

ASKED = 1.2
"""What workers may take at the most, as a multiple of the time of as many threads in process."""


@dataclass(frozen=True)
class Config:
    """The workload and the cluster."""

    n_rows: int = 100_000
    max_depth: int = 6
    trees: int = 100
    workers: int = 2
    threads_per_worker: int = 1
    threads: int = 1
    """Threads of the engine in process."""
    partitions: int = 8
    repeats: int = 5
    reduction: str = "auto"


def collections(config: Config) -> tuple[Any, Any]:
    """Features and labels as Dask arrays whose blocks the workers make."""
    import dask.array as da
    from dask import delayed

    workload, size = WORKLOADS["higgs"], -(-config.n_rows // config.partitions)
    features, labels = [], []
    for first in range(0, config.n_rows, size):
        n_rows = min(size, config.n_rows - first)
        block = delayed(workload.rows, nout=2)(n_rows, first=first)
        features.append(da.from_delayed(block[0], (n_rows, workload.n_features), np.float32))
        labels.append(da.from_delayed(block[1], (n_rows,), np.float32))
    return da.concatenate(features), da.concatenate(labels)


def contenders(config: Config, client: Any) -> dict[str, Callable[[], Run]]:
    """Training in process, and on the client's cluster."""
    from daskboost import QuantizedDataset, train

    params = {"objective": "binary:logistic", "max_depth": config.max_depth, "device": "cpu"}
    with client.as_current():
        on_cluster = QuantizedDataset.from_dask(*client.persist(collections(config)))
    local = ours.quantize(*WORKLOADS["higgs"].rows(config.n_rows))

    def run(work: Callable[[], Any]) -> Run:
        seconds, booster = timed(work)
        return Run(seconds, {"model": float(int(booster.digest[:12], 16))})

    cluster_params = {**params, "reduction": config.reduction}
    in_process_params = {**params, "n_jobs": config.threads}
    return {
        "in_process": lambda: run(lambda: train(in_process_params, local, num_boost_round=config.trees)),
        "cluster": lambda: run(lambda: train(cluster_params, on_cluster, num_boost_round=config.trees)),
    }


def bench_once(config: Config) -> Comparison:
    """All repeats on one cluster."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=config.workers, threads_per_worker=config.threads_per_worker, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        return interleave(contenders(config, client), config.repeats, scores_agree("model", 0.0))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--reduction", default=Config.reduction)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--depth", type=int, default=Config.max_depth)
    parser.add_argument("--layouts", default="2x1", help="comma-separated: workers x threads of each")
    parser.add_argument("--threads", type=int, default=Config.threads, help="of the engine in process")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="20 trees, 3 repeats")
    options = parser.parse_args(arguments)
    trees, repeats = (20, 3) if options.quick else (options.trees, options.repeats)
    for layout in options.layouts.split(","):
        workers, threads_per_worker = (int(part) for part in layout.split("x"))
        config = Config(
            options.rows, options.depth, trees, workers, threads_per_worker, options.threads, 4 * workers, repeats,
            options.reduction,
        )  # fmt: skip
        result = bench_once(config)
        case = f"higgs_{config.n_rows}"
        rows = [*comparison_rows(case, result), beside_row(case, result, "in_process", "cluster", asked=ASKED)]
        record("dask_overhead", config, rows, options.results)
        print(
            f"{layout}: in process {result.seconds('in_process'):.3f} s, cluster {result.seconds('cluster'):.3f} s, "
            f"cluster / in process = {result.ratio('cluster', 'in_process'):.2f} (asked at most {ASKED})",
            flush=True,
        )


if __name__ == "__main__":
    main()
