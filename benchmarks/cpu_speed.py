"""Training time against XGBoost's on the CPU, both interleaved in one process on the same threads.

    python -m benchmarks.cpu_speed                       # 1M x 28, 100k x 28 and 50k x 1000; median of 5
    python -m benchmarks.cpu_speed --cases higgs_1m --trees 20 --repeats 3
    python -m benchmarks.cpu_speed --quick               # 100k x 28, 20 trees, 3 repeats
    python -m benchmarks.cpu_speed --threads 1,4,16      # each case on so many threads
    python -m benchmarks.cpu_speed --cases quantize_2m   # not training, but quantizing

The clock covers training alone: both sides quantize beforehand, once. In cases of kind "quantize" it covers that alone,
and their models are trained once, for the check. Before timing, both models must reach the same test AUC within 0.005.
`--threads`, or else BENCH_THREADS, sets the threads of both (default: all cores).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ours, peers
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

TEST_ROWS = 50_000


@dataclass(frozen=True)
class Config:
    """One workload and how long to train on it."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    max_depth: int = 8
    max_bin: int = 256
    trees: int = 100
    repeats: int = 5
    learning_rate: float = 0.1
    grow_policy: str = "depthwise"
    kind: str = "train"
    """Or "quantize"."""


CASES = {
    case.name: case
    for case in (
        Config("higgs_1m", "higgs", 1_000_000, 28),
        Config("higgs_100k", "higgs", 100_000, 28),
        Config("epsilon_50k", "epsilon", 50_000, 1000),
        Config("higgs_2k", "higgs", 2_000, 20, max_depth=6),
        Config("higgs_20k", "higgs", 20_000, 50, max_depth=6),
        Config("higgs_200k", "higgs", 200_000, 28),
        Config("higgs_2m", "higgs", 2_000_000, 28),
        Config("skewed_2k", "skewed", 2_000, 20, max_depth=6),
        Config("skewed_20k", "skewed", 20_000, 50, max_depth=6),
        Config("skewed_200k", "skewed", 200_000, 28),
        Config("skewed_2m", "skewed", 2_000_000, 28),
        Config("quantize_2m", "higgs", 2_000_000, 28, trees=10, kind="quantize"),
    )
}


def contenders(config: Config) -> dict[str, Callable[[], Run]]:
    """Ours and XGBoost's training, or quantizing, of the same rows."""
    from sklearn.metrics import roc_auc_score

    workload = WORKLOADS[config.workload].wide(config.n_features)
    x, y = workload.rows(config.n_rows)
    x_test, y_test = workload.rows(TEST_ROWS, first=config.n_rows)
    params = {
        "objective": "binary:logistic",
        "max_depth": config.max_depth,
        "max_bin": config.max_bin,
        "learning_rate": config.learning_rate,
    }
    grow = {"grow_policy": config.grow_policy, "device": "cpu"}

    def own_train(data: Any) -> Any:
        return ours.train({**params, **grow}, data, config.trees)

    def peer_train(matrix: Any) -> Any:
        return peers.xgboost_train(params, matrix, config.trees)

    def side(quantize: Callable[..., Any], train: Callable[[Any], Any], predict: Callable[[Any, Any], Any]
             ) -> Callable[[], Run]:  # fmt: skip
        def score(booster: Any) -> dict[str, float]:
            return {"auc": float(roc_auc_score(y_test, predict(booster, x_test)))}

        def quantizing() -> Run:
            seconds, data = timed(lambda: quantize(x, y, max_bin=config.max_bin))
            if not found:
                found.update(score(train(data)))
            return Run(seconds, found)

        def training() -> Run:
            seconds, booster = timed(lambda: train(given))
            return Run(seconds, score(booster))

        found: dict[str, float] = {}
        if config.kind == "quantize":
            return quantizing
        given = quantize(x, y, max_bin=config.max_bin)
        return training

    return {
        "daskboost": side(ours.quantize, own_train, ours.predict),
        "xgboost": side(peers.xgboost_matrix, peer_train, peers.xgboost_predict),
    }


def bench_once(config: Config) -> Comparison:
    """All repeats of one case."""
    return interleave(contenders(config), config.repeats, scores_agree("auc", 0.005))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--grow-policy", default="depthwise", help="ours only; XGBoost stays depthwise")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", default="", help="comma-separated numbers; all cores by default")
    options = parser.parse_args(arguments)
    for threads in options.threads.split(","):
        if threads:
            os.environ["BENCH_THREADS"] = threads
        bench_cases(options)


def bench_cases(options: argparse.Namespace) -> None:
    """Compare in each case that was asked for."""
    names = ["higgs_100k"] if options.quick else options.cases.split(",")
    trees, repeats = (20, 3) if options.quick else (options.trees, options.repeats)
    for name in names:
        config = replace(CASES[name], trees=trees or CASES[name].trees, repeats=repeats)
        n_rows = min(config.n_rows, options.rows or config.n_rows)
        config = replace(config, n_rows=n_rows, grow_policy=options.grow_policy)
        print(f"{name}: {asdict(config)}, {ours.threads()} threads", flush=True)
        result = bench_once(config)
        found = [*comparison_rows(name, result), beside_row(name, result, "daskboost", "xgboost")]
        record("cpu_speed", config, [{**row, "threads": ours.threads()} for row in found], options.results)
        print(
            f"{name}: daskboost {result.seconds('daskboost'):.2f} s, xgboost {result.seconds('xgboost'):.2f} s, "
            f"xgboost / daskboost = {result.ratio('xgboost', 'daskboost'):.2f}"
        )


if __name__ == "__main__":
    main()
