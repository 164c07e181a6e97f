"""Losses of held-out fifths of training rows of real sets, with constant leaves and with linear ones.

    python -m benchmarks.linear_leaves                                 # growth policies, with the default penalty
    python -m benchmarks.linear_leaves --penalties 1,5,10,20,50,100    # depthwise growth, several penalties

Prints one line per set and contender: the least mean loss of the five fifths over all rounds, what it is relative to
that of constant leaves, and milliseconds of a round, metrics included. Test rows are not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours
from benchmarks.harness import RESULTS, record, timed
from benchmarks.real_sets import Loaded, load

SETS = ("california_housing", "abalone", "bike_sharing_hour", "electricity", "higgs_11k", "protein_casp",
        "nycflights_late", "diamonds", "taxi_fare", "higgs_7k")  # fmt: skip
POLICIES: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 6},
    "lossguide": {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 31},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 6},
}
METRICS = {"regression": "rmse", "binary": "logloss"}


@dataclass(frozen=True)
class Config:
    """How each contender is trained."""

    learning_rate: float = 0.1
    rounds: int = 200
    folds: int = 5
    most_rows: int = 40_000
    """Training rows that are taken of a set, at random."""


def contenders(penalties: tuple[float, ...]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name, what each is compared with and its parameters."""
    linear = {"linear_leaves": True}
    if penalties:
        found = {f"linear_lambda={each:g}": ("constant", {**linear, "linear_lambda": each}) for each in penalties}
        return {"constant": ("constant", {}), **found}
    return {
        f"{policy} {kind}": (f"{policy} constant", {**growth, **leaves})
        for policy, growth in POLICIES.items() for kind, leaves in (("constant", {}), ("linear", linear))
    }  # fmt: skip


def losses(data: Loaded, params: Mapping[str, Any], config: Config) -> tuple[npt.NDArray[np.float64], float]:
    """Mean loss of the held-out fifths after each round, and milliseconds of a round."""
    from daskboost import QuantizedDataset, train

    x, y, metric = np.asarray(data.train.x, np.float32), data.train.y, METRICS[data.info.task]
    rows = np.random.default_rng(0).permutation(len(y))[: config.most_rows]
    given = {
        "objective": data.info.objective, "eval_metric": metric, "learning_rate": config.learning_rate,
        "device": "cpu", "n_jobs": ours.threads(), **params,
    }  # fmt: skip
    found, seconds = np.zeros(config.rounds), 0.0
    for fold in range(config.folds):
        held_out = np.sort(rows[fold :: config.folds])
        own = np.setdiff1d(rows, held_out)
        result: dict[str, dict[str, list[float]]] = {}
        with (
            QuantizedDataset.from_dask(x[own], y[own]) as dataset,
            QuantizedDataset.from_dask(x[held_out], y[held_out], reference=dataset) as valid,
        ):
            train(given, dataset, 1)  # compiles
            took, _ = timed(partial(
                train, given, dataset, config.rounds, evals=[(valid, "v")], evals_result=result
            ))  # fmt: skip
        found += np.array(result["v"][metric]) / config.folds
        seconds += took
    return found, 1e3 * seconds / (config.folds * config.rounds)


def run_set(name: str, penalties: tuple[float, ...], config: Config) -> list[dict[str, Any]]:
    """One row per contender."""
    data, curves, rows = load(name, numeric_only=True), {}, []
    for contender, (other, params) in contenders(penalties).items():
        curves[contender], round_ms = losses(data, params, config)
        best, base = float(curves[contender].min()), float(curves[other].min())
        rows.append({
            "case": name, "contender": contender, "measure": METRICS[data.info.task], "score": best,
            "round": int(curves[contender].argmin()) + 1, "relative": round(best / base - 1, 5),
            "round_ms": round(round_ms, 3),
        })  # fmt: skip
        print(f"{name:<20} {contender:<20} {best:10.5f} {100 * (best / base - 1):+6.2f} %  after "
              f"{rows[-1]['round']:>3} rounds, {round_ms:.2f} ms each", flush=True)  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--penalties", default="", help="values of linear_lambda")
    parser.add_argument("--rounds", type=int, default=Config.rounds)
    parser.add_argument("--most-rows", type=int, default=Config.most_rows)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    config = Config(rounds=given.rounds, most_rows=given.most_rows)
    penalties = tuple(map(float, filter(None, given.penalties.split(","))))
    for name in given.sets.split(","):
        record("linear_leaves", config, run_set(name, penalties, config), given.results)


if __name__ == "__main__":
    main()
