"""NDCG@10 of rankings of real queries, at equal rounds, learning rate and rows drawn for each tree.

    python -m benchmarks.ranking                          # five seeds of all contenders on three sets
    python -m benchmarks.ranking --spread                 # how far the largest gradients exceed the others
    python -m benchmarks.ranking --sets yandex_imat --seeds 1 --contenders "daskboost rank:ndcg,xgboost rank:ndcg"

Trained on the rows of `train`, scored on those of `test`: the mean over queries that have a relevant row, gains being
2**grade - 1. Prints the means over the seeds, and writes a row for every fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import ours, peers
from benchmarks.harness import RESULTS, record, timed
from benchmarks.ours import Vector
from benchmarks.real_sets import Part, load

SETS = ("yandex_imat", "ohsumed_letor3", "lightgbm_lambdarank")
TOP = 10


@dataclass(frozen=True)
class Config:
    """What all contenders have alike; rounds differ by set."""

    learning_rate: float = 0.1
    subsample: float = 0.8
    """Share of the rows that each tree draws, so that seeds differ."""
    depth: int = 6
    """Most levels of trees; LightGBM has 31 leaves instead, its default."""


Contender = Callable[[Config, int, Part, Part, int], Vector]


def of_xgboost_kind(
    rank: Callable[[Mapping[str, Any], Part, Part, int], Vector], objective: str, **options: str
) -> Contender:
    """Return a contender that has XGBoost's names of parameters."""
    def scores(config: Config, seed: int, train: Part, test: Part, rounds: int) -> Vector:
        params = {
            "objective": objective, "learning_rate": config.learning_rate, "max_depth": config.depth,
            "subsample": config.subsample, "seed": seed, **options,
        }  # fmt: skip
        return rank(params, train, test, rounds)

    return scores


def of_lightgbm(objective: str) -> Contender:
    """Return LightGBM with one of its objectives."""
    def scores(config: Config, seed: int, train: Part, test: Part, rounds: int) -> Vector:
        params = {
            "objective": objective, "learning_rate": config.learning_rate, "num_leaves": 31, "min_data_in_leaf": 20,
            "bagging_fraction": config.subsample, "bagging_freq": 1, "seed": seed,
        }  # fmt: skip
        return peers.lightgbm_ranking(params, train, test, rounds)

    return scores


def of_catboost(loss: str) -> Contender:
    """Return CatBoost with one of its losses."""
    def scores(config: Config, seed: int, train: Part, test: Part, rounds: int) -> Vector:
        params = {
            "loss_function": loss, "learning_rate": config.learning_rate, "depth": config.depth,
            "bootstrap_type": "Bernoulli", "subsample": config.subsample, "random_seed": seed,
        }  # fmt: skip
        return peers.catboost_ranking(params, train, test, rounds)

    return scores


CONTENDERS: dict[str, Contender] = {
    **{f"daskboost {name}": of_xgboost_kind(ours.ranking, name) for name in ("rank:ndcg", "rank:pairwise", "yetirank")},
    **{f"daskboost {name} symmetric": of_xgboost_kind(ours.ranking, name, grow_policy="symmetric")
       for name in ("rank:ndcg", "yetirank")},
    **{f"xgboost {name}": of_xgboost_kind(peers.xgboost_ranking, name) for name in ("rank:ndcg", "rank:pairwise")},
    **{f"lightgbm {name}": of_lightgbm(name) for name in ("lambdarank",)},
    **{f"catboost {name}": of_catboost(name) for name in ("YetiRank", "QuerySoftMax")},
}


def ndcg(test: Part, score: Vector, top: int) -> float:
    """Return the mean NDCG of the queries that have a relevant row; of equal scores the first row comes first."""
    assert test.group is not None
    found = []
    for query in np.unique(test.group):
        rows = np.flatnonzero(test.group == query)
        gains = 2.0 ** test.y[rows].astype(np.float64) - 1
        if gains.any():
            discounts = 1 / np.log2(np.arange(2, 2 + min(top, len(rows))))
            ranked = gains[np.argsort(-score[rows], kind="stable")][:top]
            found.append(ranked @ discounts / (np.sort(gains)[::-1][:top] @ discounts))
    return float(np.mean(found))


def run_seed(name: str, seed: int, contenders: list[str], config: Config) -> list[dict[str, Any]]:
    """Train every contender on one set; one row for each."""
    data = load(name)
    test = Part(data.test.x, data.test.y, group=data.test.group)
    rows = []
    for contender in contenders:
        rank, rounds = CONTENDERS[contender], data.info.rounds
        seconds, score = timed(lambda: rank(config, seed, data.train, test, rounds))  # noqa: B023 - called here
        rows.append({
            "case": name, "contender": contender, "seed": seed, "rounds": rounds, "measure": f"ndcg@{TOP}",
            "score": ndcg(test, score, TOP), "seconds": round(seconds, 3),
        })  # fmt: skip
        print(f"  {name:<20} seed {seed}  {contender:<24}{rows[-1]['score']:8.4f} {seconds:8.1f} s", flush=True)
    return rows


def run_spread(name: str, config: Config) -> list[dict[str, Any]]:
    """Return how far the largest gradient of our objectives exceeds the others on one set, which all share a scale."""
    data, rows = load(name), []
    for objective in ("rank:ndcg", "rank:pairwise"):
        params = {"objective": objective, "learning_rate": config.learning_rate, "max_depth": config.depth}
        first, last = ours.ranking_spread(params, data.train, data.info.rounds)
        rows.append({"case": name, "contender": f"daskboost {objective}", "rounds": data.info.rounds,
                     "measure": "largest gradient / root mean square", "first": first, "last": last})  # fmt: skip
        print(f"  {name:<20} {objective:<14} largest / rms {first:8.1f} before, {last:8.1f} after", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="comma-separated names")
    parser.add_argument("--spread", action="store_true", help="how far the largest gradients exceed the others instead")
    options = parser.parse_args()
    names, contenders, config = options.sets.split(","), options.contenders.split(","), Config()
    if options.spread:
        for name in names:
            record("ranking", config, run_spread(name, config))
        return
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(options.seeds):
        for name in names:
            rows = run_seed(name, seed, contenders, config)
            record("ranking", config, rows)
            for row in rows:
                found.setdefault((name, row["contender"]), []).append(row["score"])
    print(f"{'contender':<28}" + "".join(f"{name:>22}" for name in names))
    for contender in contenders:
        print(f"{contender:<28}" + "".join(f"{np.mean(found[name, contender]):>22.4f}" for name in names))
    print(f"rows in {RESULTS / 'ranking.jsonl'}")


if __name__ == "__main__":
    main()
