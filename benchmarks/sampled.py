"""Trees grown on a share of the rows, drawn by their gradients: test scores beside XGBoost's gradient_based, uniform
samples of as many rows, and all rows.

    python -m benchmarks.sampled                                 # two real sets, a tenth of the rows
    python -m benchmarks.sampled --sets otto --seeds 3 --rounds 30
    python -m benchmarks.sampled --rows 1000000 --depth 8 --rounds 100 --seeds 5

Each seed draws other rows of the same training rows, and scores are of the same test rows. Prints one line per set and
contender: the mean over the seeds and its standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import ours, peers
from benchmarks.generators import WORKLOADS
from benchmarks.harness import RESULTS, record, timed
from benchmarks.quality import Config as QualityConfig
from benchmarks.quality import parameters, scores
from benchmarks.real_sets import load

SETS = ("give_me_some_credit", "otto")
OURS: dict[str, dict[str, Any]] = {
    "sampled": {"out_of_core": "sampled", "subsample": 0.1}, "uniform": {"subsample": 0.1}, "exact": {},
}  # fmt: skip
XGBOOST: dict[str, dict[str, Any]] = {
    "xgboost gradient_based": {"sampling_method": "gradient_based", "subsample": 0.1},
    "xgboost uniform": {"subsample": 0.1}, "xgboost": {},
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Learning rate and bins are those of `benchmarks.quality`."""

    rounds: int
    max_depth: int = 6


@dataclass(frozen=True)
class Case:
    """Rows to train on, rows to score, and parameters that both libraries take but for the seed."""

    name: str
    task: str
    train: tuple[Any, Any, Any]
    """Features, labels and margins to start from, or None."""
    test: tuple[Any, Any, Any]
    params: Mapping[str, Any]


def real_case(name: str, config: Config) -> Case:
    """One of the real sets."""
    data = load(name, numeric_only=True)
    train, test = ((part.x, part.y, part.base_margin) for part in (data.train, data.test))
    params = {**parameters(data, QualityConfig()), "max_depth": config.max_depth}
    return Case(name, data.info.task, train, test, params)


def made_case(n_rows: int, config: Config) -> Case:
    """Rows of the workload higgs."""
    train, test = WORKLOADS["higgs"].rows(n_rows), WORKLOADS["higgs"].rows(n_rows // 4, first=n_rows)
    params = {"objective": "binary:logistic", "learning_rate": 0.1, "max_depth": config.max_depth}
    return Case(f"higgs {n_rows}", "binary", (*train, None), (*test, None), params)


def run_case(case: Case, contenders: Sequence[str], seeds: int, rounds: int) -> list[dict[str, Any]]:
    """One row per seed and contender; those without samples have one seed."""
    (x, y, margin), (test_x, test_y, test_margin) = case.train, case.test
    dataset = ours.quantize(x, y, base_margin=margin)
    matrix = peers.xgboost_matrix(x, y, base_margin=margin)
    rows: list[dict[str, Any]] = []
    for contender in contenders:
        more = {**OURS, **XGBOOST}[contender]
        for seed in range(seeds if more else 1):
            params = {**case.params, **more, "seed": seed}
            if contender in OURS:
                history: dict[str, Any] = {}
                seconds, booster = timed(partial(_train, params, dataset, rounds, history))
                predicted = ours.predict(booster, test_x, test_margin)
                report = {name: statistics.mean(found) for name, found in history.get("out_of_core", {}).items()}
            else:
                seconds, booster = timed(partial(peers.xgboost_train, params, matrix, rounds))
                predicted, report = peers.xgboost_predict(booster, test_x, test_margin), {}
            rows.append({
                "case": case.name, "contender": contender, "repeat": seed, "seconds": round(seconds, 3), **report,
                **scores(case.task, test_y, predicted),
            })  # fmt: skip
        print_contender([row for row in rows if row["contender"] == contender])
    return rows


def _train(params: Mapping[str, Any], dataset: Any, rounds: int, history: dict[str, Any]) -> Any:
    from daskboost import train

    return train({"n_jobs": ours.threads(), "device": "cpu", **params}, dataset, rounds, evals_result=history)


def print_contender(rows: Sequence[Mapping[str, Any]]) -> None:
    """Means over the seeds, with standard errors of the scores."""
    known = ("case", "contender", "repeat", "seconds", "passes", "rows")
    parts = []
    for name in (name for name in rows[0] if name not in known):
        values = [row[name] for row in rows]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        parts.append(f"{name} {statistics.mean(values):.5f} +-{error:.5f}")
    passes = f"passes {statistics.mean(row['passes'] for row in rows):.2f}  " if "passes" in rows[0] else ""
    seconds = statistics.mean(row["seconds"] for row in rows)
    print(f"{rows[0]['case']:<22}{rows[0]['contender']:<24}{seconds:6.1f} s  {passes}{'  '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--contenders", default=",".join((*OURS, *XGBOOST)))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--no-record", action="store_true")
    args = parser.parse_args()
    config = Config(args.rounds, args.depth)
    cases = [made_case(args.rows, config)] if args.rows else [real_case(name, config) for name in args.sets.split(",")]
    for case in cases:
        rows = run_case(case, args.contenders.split(","), args.seeds, config.rounds)
        if not args.no_record:
            record("sampled", config, rows, RESULTS)


if __name__ == "__main__":
    main()
