"""Trees grown on a sample and certified, against exact ones: passes over all rows, gain lost, test scores.

    python -m benchmarks.certified                          # the real sets of out-of-core's table, default tolerances
    python -m benchmarks.certified --sets higgs_11k --tolerances 0.05 --rounds 20 --seeds 2

    python -m benchmarks.certified --rows 1000000 --depth 8 --rounds 100    # passes until the exact fit's AUC
    python -m benchmarks.certified --sets nycflights_late --encodings native    # categorical columns too

Each seed draws another sample and rounds gradients anew, so scores are compared with the exact fit of the same seed. An
exact tree of depth 6 takes six passes. Prints one line per set and tolerance, after a check that tolerance 0 gives the
exact model.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import ours
from benchmarks.fit_callbacks import UntilScore
from benchmarks.generators import WORKLOADS
from benchmarks.harness import RESULTS, record, timed
from benchmarks.quality import Config as QualityConfig
from benchmarks.quality import parameters, scores
from benchmarks.real_sets import Loaded, load

SETS = ("give_me_some_credit", "fremtpl2_freq", "kddcup99_10pct")
TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True)
class Config:
    """Learning rate and bins are those of `benchmarks.quality`."""

    rounds: int
    max_depth: int = 6
    resident_share: float = 0.25


def bench_once(data: Loaded, dataset: Any, params: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Train once; scores on the test rows, and what the passes cost."""
    from daskboost import train

    history: dict[str, Any] = {}
    threads = {"n_jobs": ours.threads(), "device": "cpu"}
    seconds, booster = timed(lambda: train({**threads, **params}, dataset, rounds, evals_result=history))
    report = history.get("out_of_core", {})
    return {
        "seconds": round(seconds, 3),
        "model": booster.to_bytes(),
        "passes": statistics.mean(report.get("passes", [params["max_depth"]])),
        "gain_lost": statistics.mean(report.get("gain_lost", [0.0])),
        "splits_redone": statistics.mean(report.get("splits_redone", [0])),
        **scores(data.info.task, data.test.y, ours.predict(booster, data.test.x, data.test.base_margin)),
    }


def run_set(name: str, tolerances: Sequence[float], seeds: int, config: Config, encodings: str = ""
            ) -> list[dict[str, Any]]:  # fmt: skip
    """One row per seed and contender: the exact fit, and one per tolerance; of numbers alone without `encodings`."""
    data = load(name, numeric_only=not encodings)
    train, more = data.train, dict[str, Any](encodings=encodings) if encodings else {}
    dataset = ours.quantize(train.x, train.y, base_margin=train.base_margin, **more)
    name = f"{name}, {encodings}" if encodings else name
    rows = []
    for seed in range(seeds):
        params = {**parameters(data, QualityConfig(seed=seed)), "max_depth": config.max_depth}
        certified = {**params, "out_of_core": "certified", "resident_share": config.resident_share}
        exact = bench_once(data, dataset, params, config.rounds)
        if seed == 0:
            check = bench_once(data, dataset, {**certified, "certify_tolerance": 0.0}, min(3, config.rounds))
            if check["model"] != bench_once(data, dataset, params, min(3, config.rounds))["model"]:
                raise AssertionError(f"{name}: tolerance 0 did not give the exact model")
        found = {"exact": exact}
        for tolerance in tolerances:
            own = {**certified, "certify_tolerance": tolerance}
            found[f"certified {tolerance:g}"] = bench_once(data, dataset, own, config.rounds)
        for contender, row in found.items():
            row.pop("model")
            rows.append({"case": name, "contender": contender, "repeat": seed, **row})
    return rows


def run_rows(n_rows: int, tolerances: Sequence[float], config: Config) -> list[dict[str, Any]]:
    """`n_rows` of the workload higgs: passes until the AUC on fresh rows that the exact fit ends with is reached.

    One row per contender; certified ones may take twice as many trees.
    """
    from daskboost import QuantizedDataset, train

    (x, y), fresh = WORKLOADS["higgs"].rows(n_rows), WORKLOADS["higgs"].rows(n_rows // 4, first=n_rows)
    dataset = ours.quantize(x, y)
    valid = QuantizedDataset.from_dask(*fresh, reference=dataset)
    params = {"objective": "binary:logistic", "learning_rate": 0.1, "max_depth": config.max_depth, "device": "cpu",
              "eval_metric": "auc", "n_jobs": ours.threads()}  # fmt: skip
    rows: list[dict[str, Any]] = []
    goal = 0.0
    for tolerance in (None, *tolerances):
        more = {} if tolerance is None else {
            "out_of_core": "certified", "certify_tolerance": tolerance, "resident_share": config.resident_share
        }  # fmt: skip
        found: dict[str, Any] = {}
        rounds = config.rounds if tolerance is None else 2 * config.rounds
        seconds, _ = timed(partial(
            train, {**params, **more}, dataset, rounds, evals=[(valid, "fresh")], evals_result=found,
            callbacks=[] if tolerance is None else [UntilScore(goal)],
        ))  # fmt: skip
        auc = found["fresh"]["auc"]
        report = found.get("out_of_core", {"passes": [config.max_depth] * rounds, "gain_lost": [0.0] * rounds})
        goal = auc[-1] if tolerance is None else goal
        rows.append({
            "case": f"higgs {n_rows}", "contender": "exact" if tolerance is None else f"certified {tolerance:g}",
            "repeat": 0, "seconds": round(seconds, 3), "auc": auc[-1], "reached": auc[-1] >= goal, "trees": len(auc),
            "passes_to_score": sum(report["passes"]), "auc_of_as_many": auc[min(config.rounds, len(auc)) - 1],
            "passes": statistics.mean(report["passes"]), "gain_lost": statistics.mean(report["gain_lost"]),
        })  # fmt: skip
        print({name: value for name, value in rows[-1].items() if name != "repeat"}, flush=True)
    return rows


def print_set(rows: Sequence[Mapping[str, Any]]) -> None:
    """Means over the seeds, and of the differences to the exact fit of the same seed."""
    known = ("case", "contender", "repeat", "seconds", "passes", "gain_lost", "splits_redone")
    measures = [name for name in rows[0] if name not in known]
    exact = {row["repeat"]: row for row in rows if row["contender"] == "exact"}
    for contender in dict.fromkeys(row["contender"] for row in rows):
        own = [row for row in rows if row["contender"] == contender]
        mean = {name: statistics.mean(row[name] for row in own) for name in (*known[3:], *measures)}
        against = "  ".join(
            f"{name} {mean[name]:.5f} ({statistics.mean(row[name] - exact[row['repeat']][name] for row in own):+.5f})"
            for name in measures
        )
        print(
            f"{rows[0]['case']:<22}{contender:<16}passes {mean['passes']:.2f}  lost {mean['gain_lost']:.3f}  "
            f"redone {mean['splits_redone']:.1f}  {mean['seconds']:.1f} s  {against}", flush=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--tolerances", default=",".join(map(str, TOLERANCES)))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--encodings", default="", help="of categorical columns, which are left out without it")
    parser.add_argument("--no-record", action="store_true")
    args = parser.parse_args()
    config = Config(args.rounds, args.depth)
    tolerances = [float(text) for text in args.tolerances.split(",")]
    if args.rows:
        found = run_rows(args.rows, tolerances, config)
        if not args.no_record:
            record("certified", config, found, RESULTS)
        return
    for name in args.sets.split(","):
        rows = run_set(name, tolerances, args.seeds, config, args.encodings)
        print_set(rows)
        if not args.no_record:
            record("certified", config, rows, RESULTS)


if __name__ == "__main__":
    main()
