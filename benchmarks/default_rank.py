"""Test scores and times of whole fits at every library's defaults, and mean ranks over the real sets.

    python -m benchmarks.default_rank                                  # every set, five seeds, every library
    python -m benchmarks.default_rank --sets letter,adult --seeds 0 --libraries ours,catboost
    python -m benchmarks.default_rank --summary                        # of the rows that are there

Seed 0 trains on all training rows; every other seed on nine tenths of them, drawn by it, whole queries where rows have
these. Test rows are always those of the set. A measure a set: log-loss, RMSE, Poisson deviance, or 1 - NDCG@10. Each
library has fitted a few rows before, so that what it compiles once on a machine is no part of the time.

A library's rank on a set is its mean over the seeds, among all that have scores of the set; the mean over sets has an
interval by bootstrap over sets. Where fits are missing, a line says what they can change at the most. ChimeraBoost
ranks nothing, and has no part in sets of rankings.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.default_fits import LIBRARIES, Predicted
from benchmarks.harness import RESULTS, record, timed
from benchmarks.ours import threads
from benchmarks.quality import scores
from benchmarks.ranking import ndcg
from benchmarks.real_sets import SETS, Loaded, load, part_of

MEASURES = {
    "binary": "logloss", "multiclass": "mlogloss", "regression": "rmse", "count": "poisson-deviance",
    "ranking": "1 - ndcg@10",
}  # fmt: skip
"""What each task's libraries are ranked by; smaller is better."""
SEEDS = tuple(range(5))
WARM_ROWS = 6_000  # more than small data have
TIE = 1e-6
"""Losses that differ by a smaller share are equal: both have the better rank's mean."""
LIMIT = 1e-15
"""Probabilities are at least this in losses, of which 0 has none."""


@dataclass(frozen=True)
class Config:
    """What all libraries are given."""

    threads: int


def drawn(data: Loaded, seed: int) -> Loaded:
    """The set with the training rows of a seed."""
    if seed == 0:
        return data
    own = data.train
    units = np.arange(len(own.y)) if own.group is None else own.group
    every = np.unique(units)
    kept = np.random.RandomState(seed).permutation(every)[: len(every) * 9 // 10]
    return replace(data, train=part_of(own, np.isin(units, kept)))


def loss(data: Loaded, predicted: Predicted) -> float:
    """The loss of the test rows."""
    task, y = data.info.task, data.test.y
    if task == "ranking":
        return 1 - ndcg(data.test, np.asarray(predicted, np.float32), 10)
    if task == "multiclass":
        p = predicted[np.arange(len(y)), y.astype(np.int64)] / predicted.sum(axis=1)
        return float(-np.log(np.maximum(p, LIMIT)).mean())
    if task == "binary":
        predicted = np.clip(predicted, LIMIT, 1 - LIMIT)
    return float(scores(task, y, np.asarray(predicted, np.float64))[MEASURES[task]])


def run_set(name: str, seeds: Iterable[int], libraries: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Fit a set by some libraries; a row for each seed and library that can."""
    whole = load(name)
    able = [library for library in libraries if whole.info.task != "ranking" or library != "chimeraboost"]
    order = np.random.RandomState(1).permutation(len(whole.train.y))
    few = replace(whole, train=part_of(whole.train, order < WARM_ROWS))
    for library in able:
        if library != "catboost":  # which compiles nothing, and takes as long for few rows
            LIBRARIES[library](few, 0)[0]()
    for seed in seeds:
        data = drawn(whole, seed)
        for library in able:
            fit, predict = LIBRARIES[library](data, seed)
            seconds, model = timed(fit)
            found = loss(data, np.asarray(predict(model), np.float64))
            print(f"{name:<24}{seed:<3}{library:<14}{found:<12.6g}{seconds:8.2f} s", flush=True)
            yield {"case": name, "seed": seed, "contender": library, "measure": MEASURES[whole.info.task],
                   "loss": found, "seconds": round(seconds, 3)}  # fmt: skip


Losses = Mapping[tuple[str, int], Mapping[str, float]]


def ranks(losses: Mapping[str, float]) -> dict[str, float]:
    """The rank of each library, 1 the best; equal ones share theirs."""
    return {
        name: 1 + sum(other < value * (1 - TIE) for other in losses.values())
        + (sum(abs(other - value) <= TIE * value for other in losses.values()) - 1) / 2
        for name, value in losses.items()
    }  # fmt: skip


def ranks_by_set(losses: Losses) -> dict[str, dict[str, float]]:
    """Set -> library -> its rank, the mean over the seeds that all have."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for (name, _), own in losses.items():
        found[name].append(ranks(own))
    return {
        name: {library: float(np.mean([each[library] for each in own])) for library in own[0]}
        for name, own in found.items()
    }


def interval(values: Sequence[float], draws: int = 4000) -> tuple[float, float]:
    """Where 95 of 100 means lie, of as many values drawn with replacement."""
    rng, own = np.random.default_rng(0), np.asarray(values)
    means = own[rng.integers(0, len(own), (draws, len(own)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def newest(rows: Iterable[Mapping[str, Any]], n_threads: int, libraries: Sequence[str]
           ) -> tuple[dict[tuple[str, int], dict[str, float]], dict[tuple[str, int], dict[str, float]]]:  # fmt: skip
    """Losses and seconds by set and seed, of the last row of each library.

    Rows of fits that ran beside other work may have no seconds.
    """
    losses: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    seconds: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["config"]["threads"] == n_threads and row["contender"] in libraries:
            losses[row["case"], row["seed"]][row["contender"]] = row["loss"]
            if row["seconds"] is not None:
                seconds[row["case"], row["seed"]][row["contender"]] = row["seconds"]
    return losses, seconds


def of_all(losses: Losses, libraries: Sequence[str]) -> dict[tuple[str, int], Mapping[str, float]]:
    """Return the losses of the sets and seeds that all of the libraries have fitted which can."""
    return {at: own for at, own in losses.items() if set(libraries) - set(own) <= without(at[0])}


def most_behind(losses: Losses, rival: str, libraries: Sequence[str]) -> float:
    """Return by how much the mean rank of ours can be above a rival's, over all sets and seeds, whatever the fits give
    that have no losses."""
    found = 0.0
    n_of_rival = sum(rival not in without(name) for name in SETS)
    for name in SETS:
        able = [library for library in libraries if library not in without(name)]
        for seed in SEEDS:
            worst = ranks(at_worst(losses.get((name, seed), {}), rival, able))
            found += worst["ours"] / len(SETS) - worst.get(rival, 0.0) / n_of_rival
    return found / len(SEEDS)


def at_worst(known: Mapping[str, float], rival: str, libraries: Sequence[str]) -> dict[str, float]:
    """Return losses of all libraries, of which those that are not known put ours as far behind a rival as they can: the
    rival before all others, ours behind all, others between these two, or behind both where ours is before the rival.
    """
    least, most = 0.5 * min(known.values(), default=1.0), 2 * max(known.values(), default=1.0)
    own = known.get("ours", most)
    others = known.get(rival, least)
    between = (own + others) / 2 if others < own * (1 - TIE) else most
    filled = {library: known.get(library, between) for library in libraries} | {"ours": own}
    return filled | ({rival: others} if rival in libraries else {})


def print_summary(rows: Iterable[Mapping[str, Any]], n_threads: int, libraries: Sequence[str]) -> None:
    """Print mean losses and ranks of each set, mean ranks with intervals, and times."""
    found, all_seconds = newest(rows, n_threads, libraries)
    losses = of_all(found, libraries)
    seconds, by_set = {at: all_seconds[at] for at in losses}, ranks_by_set(losses)
    print(f"{'set':<24}" + "".join(f"{library:>20}" for library in libraries))
    for name, own in by_set.items():
        means = {library: np.mean([value[library] for (case, _), value in losses.items() if case == name])
                 for library in own}  # fmt: skip
        shown = "".join(
            f"{means[library]:>12.5g} ({own[library]:4.2f})" if library in own else f"{'':>20}" for library in libraries
        )
        print(f"{name:<24}{shown}")
    for library in libraries:
        own_ranks = [own[library] for own in by_set.values() if library in own]
        low, high = interval(own_ranks)
        own_fastest = fastest(seconds, library, libraries)
        ranking = sum(own_fastest[name] for name in own_fastest if SETS[name].task == "ranking")
        print(f"{library:<14} mean rank {np.mean(own_ranks):.2f} ({low:.2f} to {high:.2f}) of {len(own_ranks)} sets, "
              f"{sum(own_fastest.values()):.0f} s, of which {ranking:.0f} s rankings")  # fmt: skip
    if set(libraries) == set(LIBRARIES):
        behind = {rival: round(most_behind(found, rival, libraries), 3) for rival in libraries if rival != "ours"}
        print(f"mean rank of ours less another's, at most, whatever the fits without losses give: {behind}")
    if {"ours", "xgboost"} <= set(libraries):
        for words, of_seeds in (("mean losses", False), ("the mean of the seeds' ratios", True)):
            worse = lost(losses, of_seeds=of_seeds) or "none"
            print(f"sets on which ours loses more than 1 % to XGBoost, by {words}: {worse}")


def fastest(seconds: Losses, library: str, libraries: Sequence[str]) -> dict[str, float]:
    """Return a library's seconds on each set: of the fastest of its seeds, as others may have run beside other work; of
    sets on which all of the libraries that have losses have seconds."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, _), own in seconds.items():
        for each, value in own.items():
            found[name][each] = min(found[name].get(each, np.inf), value)
    return {
        name: own[library] for name, own in found.items()
        if library in own and set(libraries) - set(own) <= without(name)
    }  # fmt: skip


def without(name: str) -> set[str]:
    """Return the libraries that have nothing for a set's task."""
    return {"chimeraboost"} if SETS[name].task == "ranking" else set()


def lost(losses: Losses, *, of_seeds: bool) -> dict[str, str]:
    """Return the sets on which our loss is more than 1 % above XGBoost's, and by how much.

    Means of ratios are those of the seeds where XGBoost's loss is nearly 0, as it is on shuttle for two of five: three
    test rows decide there.
    """
    by_set: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (name, _), own in losses.items():
        by_set[name].append((own["ours"], own["xgboost"]))
    ratios: dict[str, float] = {}
    for name, pairs in by_set.items():
        ours, theirs = np.array(pairs).T
        ratios[name] = float(np.mean(ours / theirs) if of_seeds else ours.sum() / theirs.sum())
    return {name: f"{100 * (ratio - 1):+.1f} %" for name, ratio in ratios.items() if ratio > 1.01}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="comma-separated names")
    every_seed = ",".join(map(str, SEEDS))
    parser.add_argument("--seeds", default=every_seed, help="comma-separated numbers; 0 is all training rows")
    parser.add_argument("--summary", action="store_true", help="fit nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    options = parser.parse_args(arguments)
    config, libraries = Config(threads()), options.libraries.split(",")
    if not options.summary:
        for name in options.sets.split(","):
            for row in run_set(name, [int(seed) for seed in options.seeds.split(",")], libraries):
                record("default_rank", config, [row], options.results)
    lines = (options.results / "default_rank.jsonl").read_text().splitlines()
    print_summary(map(json.loads, lines), config.threads, libraries)


if __name__ == "__main__":
    main()
