"""Test scores on real data with categorical columns, beside those of XGBoost, LightGBM and CatBoost.

    python -m benchmarks.categories                                  # every set, every contender
    python -m benchmarks.categories --sets adult,hr_job_change --contenders ours,catboost
    python -m benchmarks.categories --train-all                      # XGBoost and LightGBM too are trained here
    python -m benchmarks.categories --held-out 5 --contenders singles,ours,pairs_64,pairs_5

The last scores fifths of the training rows by models of the other rows, by which choices are made: never by test rows.
`singles` has no pairs of columns, `triples` and `fours` also have combinations of three columns, and of four, and
`pairs_64` has pairs of columns with 64 levels and more; `time` has statistics of the rows before each, `target` those
of columns of few levels too; `native` has codes, and `native_limits` sets of them by LightGBM's limits. `symmetric` has
CatBoost's kind of trees, `symmetric_half` of half the features at each level, and `leafwise` LightGBM's 31 leaves of
any depth, for three classes with its step, a third larger than XGBoost's; `chosen` has the growth of these and of
`ours` that is best on held-out fifths of the training rows. `catboost_quiet` has no noise in the scores of splits.

Rounds, learning rate and depth are those of the published baselines, all else is a library's default. Scores of XGBoost
and LightGBM are the published ones (`real_sets.csv`) unless they are to be trained. Prints a line a set and measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours, peers, quality
from benchmarks.harness import RESULTS, record, timed
from benchmarks.quality import parameters, scores
from benchmarks.real_sets import SETS, Loaded, categories_of, load, part_of, with_texts

CATEGORICAL = (
    "adult", "amazon_access", "hr_job_change", "diamonds", "taxi_fare", "connect4", "allstate_claims",
    "nycflights_late", "fremtpl2_freq", "kddcup99_10pct",
)  # fmt: skip
"""The sets of the table, those that take longest last."""
SHOWN = ("auc", "logloss", "accuracy", "mlogloss", "rmse", "mae", "poisson-deviance")
"""Measures of rows; published scores have others beside these."""


@dataclass(frozen=True)
class Config(quality.Config):
    """What all contenders are given; rounds differ by set."""

    max_depth: int = 6


Predicted = npt.NDArray[np.float64]
Contender = Callable[[Loaded, Config, int], Predicted]
"""Trains so many rounds; returns its predictions of the test rows."""


def shared_parameters(data: Loaded, config: Config) -> dict[str, Any]:
    """Parameters of ours and of XGBoost."""
    return {**parameters(data, config), "max_depth": config.max_depth}


def _ours(params: Mapping[str, Any] | None = None, **more: Any) -> Contender:
    """Ours with further parameters of fits, and of data sets."""

    def train(data: Loaded, config: Config, rounds: int) -> Predicted:
        own, test = data.train, data.test
        dataset = ours.quantize(own.x, own.y, max_bin=config.max_bin, base_margin=own.base_margin, **more)
        booster = ours.train(shared_parameters(data, config) | dict(params or {}), dataset, rounds)
        return ours.predict(booster, test.x, test.base_margin)

    return train


def _xgboost(data: Loaded, config: Config, rounds: int) -> Predicted:
    own, test = data.train, data.test
    matrix = peers.xgboost_matrix(own.x, own.y, max_bin=config.max_bin, base_margin=own.base_margin)
    booster = peers.xgboost_train(shared_parameters(data, config), matrix, rounds)
    return peers.xgboost_predict(booster, test.x, test.base_margin)


def _lightgbm(data: Loaded, config: Config, rounds: int) -> Predicted:
    params = {
        "learning_rate": config.learning_rate, "num_leaves": 31, "max_bin": 255, "min_data_in_leaf": 20,
        "seed": config.seed, "deterministic": True,
    }  # fmt: skip
    if data.info.task == "multiclass":  # without these it diverges on sets with rare classes
        params |= {"num_class": data.n_classes, "lambda_l2": 1.0, "min_sum_hessian_in_leaf": 1.0}
    return peers.lightgbm_scores(data.info.task, params, data.train, data.test, rounds)


def _catboost(data: Loaded, config: Config, rounds: int, **more: Any) -> Predicted:
    columns = categories_of(data.train.x)
    train, test = (with_texts(part, columns) for part in (data.train, data.test))
    params = {"learning_rate": config.learning_rate, "depth": config.max_depth, "random_seed": config.seed}
    params |= more
    return peers.catboost_scores(data.info.task, params, train, test, columns, rounds)


def _pairs_of(n_levels: int) -> Contender:
    def train(data: Loaded, config: Config, rounds: int) -> Predicted:
        with ours.least_levels_of_pairs(n_levels):
            return _ours()(data, config, rounds)

    return train


LIGHTGBM_LIMITS = {"cat_smooth": 10.0, "cat_l2": 10.0, "min_data_per_group": 100.0}
"""LightGBM's defaults of what limits sets of categories."""
MAIN = ("auc", "mlogloss", "rmse", "poisson-deviance")
"""What growth is chosen by."""
GROWTHS: dict[str, dict[str, Any]] = {
    "ours": {}, "symmetric": {"grow_policy": "symmetric"},
    "symmetric_half": {"grow_policy": "symmetric", "colsample_bylevel": 0.5},
    "leafwise": {"grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0},
}  # fmt: skip
"""Parameters of how trees grow that XGBoost's published baselines do not name."""


def _grown(growth: str) -> Contender:
    def train(data: Loaded, config: Config, rounds: int) -> Predicted:
        rate = config.learning_rate
        if growth == "leafwise" and data.info.task == "multiclass":  # hessians have K / (K - 1) in place of 2
            n_classes = len(np.unique(data.train.y))
            rate *= 2 * (n_classes - 1) / n_classes
        return _ours({**GROWTHS[growth], "learning_rate": rate})(data, config, rounds)

    return train


def _chosen(data: Loaded, config: Config, rounds: int) -> Predicted:
    def loss(growth: str) -> float:
        each = [scores(data.info.task, part.test.y, _grown(growth)(part, config, rounds)) for part in
                (held_out(data, number) for number in range(PARTS))]  # fmt: skip
        main = next(measure for measure in MAIN if measure in each[0])
        return float(np.mean([own[main] for own in each])) * (-1 if main == "auc" else 1)

    best = min(GROWTHS, key=loss)
    print(f"{data.info.name}: {best} is best on held-out rows", flush=True)
    return _grown(best)(data, config, rounds)


CONTENDERS: dict[str, Contender] = {
    "ours": _ours(), "xgboost": _xgboost, "lightgbm": _lightgbm, "catboost": _catboost,
}  # fmt: skip
VARIANTS: dict[str, Contender] = {
    "singles": _ours(max_ctr_complexity=1), "triples": _ours(max_ctr_complexity=3),
    "fours": _ours(max_ctr_complexity=4), "pairs_64": _pairs_of(64), "pairs_5": _pairs_of(5),
    "native": _ours({"device": "cpu"}, encodings="native"),
    "native_limits": _ours({"device": "cpu", **LIGHTGBM_LIMITS}, encodings="native"),
    "time": _ours(has_time=True), "target": _ours(encodings="target"), "chosen": _chosen,
    "catboost_quiet": partial(_catboost, random_strength=0),
    **{growth: _grown(growth) for growth in GROWTHS if growth != "ours"},
}  # fmt: skip
"""Ours with other features; run where they are asked for."""
PARTS = 5
"""Parts of the training rows; each is held out in turn."""


def published(name: str, contender: str) -> Mapping[str, float] | None:
    """The test scores of a contender's published baseline, None for those that have none."""
    info = SETS[name]
    known = {"xgboost": info.xgboost, "lightgbm": info.lightgbm}.get(contender)
    return None if known is None else {measure: known[measure] for measure in SHOWN if measure in known}


def held_out(data: Loaded, part: int) -> Loaded:
    """The training rows alone, of which one part of `PARTS` is test rows."""
    own = data.train
    held = np.zeros(len(own.y), np.bool_)
    held[np.random.RandomState(7).permutation(len(own.y))[part::PARTS]] = True
    return replace(data, train=part_of(own, ~held), test=part_of(own, held))


def parts_of(name: str, n_parts: int) -> Iterator[Loaded]:
    """A set with its own split, or with some held-out parts of its training rows in turn."""
    data = load(name)
    yield from (held_out(data, part) for part in range(n_parts)) if n_parts else [data]


def run_set(name: str, contenders: Sequence[str], config: Config, *, train_all: bool = False, rounds: int = 0,
            n_parts: int = 0) -> list[dict[str, Any]]:  # fmt: skip
    """Score contenders on one set; one row per contender and measure.

    Parameters
    ----------
    train_all : bool
        Train those as well whose scores are published.
    rounds : int
        0 is the set's own number, with which alone published scores can be compared.
    n_parts : int
        Means over so many held-out parts of the training rows; 0 is the test rows.
    """
    rows: list[dict[str, Any]] = []
    for contender in contenders:
        found, seconds = None if train_all else published(name, contender), None
        is_published = found is not None
        if found is None:
            each = [_trained(contender, data, config, rounds) for data in parts_of(name, n_parts)]
            seconds = round(sum(took for took, _ in each), 3)
            found = {measure: float(np.mean([own[measure] for _, own in each])) for measure in each[0][1]}
        rows += [
            {"case": name, "contender": contender, "measure": measure, "score": float(score), "seconds": seconds,
             "published": is_published, "rounds": rounds or SETS[name].rounds, "held_out_parts": n_parts}
            for measure, score in found.items()
        ]  # fmt: skip
    return rows


def _trained(contender: str, data: Loaded, config: Config, rounds: int) -> tuple[float, Mapping[str, float]]:
    """Seconds that a contender takes, and its scores."""
    took, predicted = timed(partial((CONTENDERS | VARIANTS)[contender], data, config, rounds or data.info.rounds))
    return took, scores(data.info.task, data.test.y, predicted)


def print_set(rows: Sequence[Mapping[str, Any]], contenders: Sequence[str]) -> None:
    """Print one set's rows side by side, a line per measure."""
    table = {(row["measure"], row["contender"]): row["score"] for row in rows}
    for measure in dict.fromkeys(row["measure"] for row in rows):
        values = [table.get((measure, contender)) for contender in contenders]
        shown = "".join(f"{'':>14}" if value is None else f"{value:>14.5g}" for value in values)
        print(f"{rows[0]['case']:<18}{measure:<18}{shown}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=",".join(CATEGORICAL), help="comma-separated names")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="comma-separated names")
    parser.add_argument("--train-all", action="store_true", help="train those whose scores are published, too")
    parser.add_argument("--held-out", type=int, default=0, metavar="PARTS", help=f"score up to {PARTS} held-out parts")
    parser.add_argument("--rounds", type=int, default=0, help="of all sets; 0 are each set's own")
    parser.add_argument("--seed", type=int, default=Config.seed, help="of what libraries draw")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    options = parser.parse_args(arguments)
    config, contenders = Config(seed=options.seed), options.contenders.split(",")
    print(f"{'set':<18}{'measure':<18}" + "".join(f"{contender:>14}" for contender in contenders))
    for name in options.sets.split(","):
        train_all = options.train_all or options.rounds > 0 or options.held_out > 0
        rows = run_set(name, contenders, config, train_all=train_all, rounds=options.rounds, n_parts=options.held_out)
        print_set(rows, contenders)
        record("categories", config, rows, options.results)
    print(f"rows in {options.results / 'categories.jsonl'}")


if __name__ == "__main__":
    main()
