"""What a cluster costs where it cannot help: two one-thread workers on data that one thread handles as well.

    python -m benchmarks.dask_overhead            # 100k x 28, depth 6, 100 trees; median of 5

Contenders, interleaved: the embedded engine on one thread, and two workers of one thread each on persisted partitions.
The clock covers training on quantized data; the models must be the same bytes before it counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.generators import WORKLOADS
from benchmarks.harness import Run, comparison_rows, interleave, record, scores_agree, timed


@dataclass(frozen=True)
class Config:
    """The workload and the cluster."""

    n_rows: int = 100_000
    max_depth: int = 6
    trees: int = 100
    workers: int = 2
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
    """Training in process on one thread, and on the client's cluster."""
    from daskboost import QuantizedDataset, train

    params = {"objective": "binary:logistic", "max_depth": config.max_depth, "device": "cpu"}
    with client.as_current():
        on_cluster = QuantizedDataset.from_dask(*client.persist(collections(config)))
    local = ours.quantize(*WORKLOADS["higgs"].rows(config.n_rows))

    def run(work: Callable[[], Any]) -> Run:
        seconds, booster = timed(work)
        return Run(seconds, {"model": float(int(booster.digest[:12], 16))})

    cluster_params = {**params, "reduction": config.reduction}
    return {
        "in_process": lambda: run(lambda: train({**params, "n_jobs": 1}, local, num_boost_round=config.trees)),
        "cluster": lambda: run(lambda: train(cluster_params, on_cluster, num_boost_round=config.trees)),
    }


def main() -> None:
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--reduction", default=Config.reduction)
    parser.add_argument("--quick", action="store_true", help="20 trees, 3 repeats")
    options = parser.parse_args()
    trees, repeats = (20, 3) if options.quick else (options.trees, options.repeats)
    config = Config(trees=trees, repeats=repeats, reduction=options.reduction)
    with (
        LocalCluster(n_workers=config.workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        result = interleave(contenders(config, client), config.repeats, scores_agree("model", 0.0))
    record("dask_overhead", config, comparison_rows(f"higgs_{config.n_rows}", result))
    print(
        f"in process {result.seconds('in_process'):.2f} s, cluster {result.seconds('cluster'):.2f} s, "
        f"cluster / in process = {result.ratio('cluster', 'in_process'):.2f}"
    )


if __name__ == "__main__":
    main()
