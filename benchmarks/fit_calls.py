"""Whole `fit` calls of classifiers on rows in the host's memory, quantizing included, beside XGBoost's in one process.

    python -m benchmarks.fit_calls --threads 1,2,16            # default classifiers on four real sets, on the CPU
    python -m benchmarks.fit_calls --cases host_5m,host_2m,host_100k --device cuda
    python -m benchmarks.fit_calls --cases host_2m --rows 20000 --trees 10 --results /tmp/rehearsal

Both sides have their defaults, but the number of trees where a case has its own. Before timing, models must be as good
on test rows: AUC and accuracy not lower by more than 0.005, log-loss not higher by more than 2 %, or four times that
for poker_100k (over 8 draws of its training rows, our accuracy less XGBoost's is .0024 on average with a standard
deviation of .0085); and the last log-loss that a fit reports of an evaluation set must be that of its predictions.
`fit` is timed from arrays (a DataFrame of real sets would be one more conversion on both sides) to the fitted model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours, peers
from benchmarks.gpu_contenders import check_history, make_rows
from benchmarks.gpu_contenders import scores as probability_scores
from benchmarks.gpu_speed import gpu_name, not_worse
from benchmarks.harness import RESULTS, Contender, Run, beside_row, comparison_rows, interleave, record, timed
from benchmarks.real_sets import load


@dataclass(frozen=True)
class Config:
    """One set of rows and the fit."""

    name: str
    """A real set's, or of rows that are made."""
    asked: float
    """XGBoost's time over ours at the least."""
    stretch: float
    n_rows: int = 0
    """0 for a real set's."""
    n_features: int = 50
    trees: int = 100
    dtype: str = "float32"
    evaluated_rows: int = 0
    """Rows of an evaluation set, whose log-loss both compute after each round."""
    test_rows: int = 50_000
    repeats: int = 3
    device: str = "cpu"
    leeway: float = 10.0
    """Times the tolerances of `gpu_speed`."""

    def sized(self, n_rows: int, trees: int) -> Config:
        """The same with at most so many rows, where they are made, and so many trees; 0 leaves either as it is."""
        share = min(1.0, n_rows / self.n_rows) if n_rows and self.n_rows else 1.0
        return replace(
            self, n_rows=round(share * self.n_rows), evaluated_rows=round(share * self.evaluated_rows),
            trees=trees or self.trees,
        )  # fmt: skip


CASES = {
    case.name: case
    for case in (
        *(Config(name, 1.0, 1.5, repeats=5) for name in ("covtype_20k", "letter", "adult")),
        Config("poker_100k", 1.0, 1.5, repeats=5, leeway=40.0),
        Config("host_5m", 6, 10, 5_000_000),
        Config("host_2m", 5, 8, 2_000_000, trees=200, dtype="float64", evaluated_rows=500_000),
        Config("host_100k", 2, 4, 100_000, trees=500, evaluated_rows=30_000, repeats=5),
    )
}
REAL = tuple(name for name, case in CASES.items() if not case.n_rows)


@dataclass(frozen=True)
class Rows:
    """What is fitted, evaluated and tested."""

    x: Any
    y: Any
    evaluated: tuple[Any, Any] | None
    x_test: Any
    y_test: Any


@cache
def rows_of(config: Config) -> Rows:
    """Rows of one case in the host's memory, of a real set without its categories."""
    if not config.n_rows:
        data = load(config.name, numeric_only=True)
        return Rows(data.train.x, data.train.y, None, data.test.x, data.test.y)
    held = config.evaluated_rows + config.test_rows
    made = make_rows("higgs", config.n_rows, config.n_features, held, config.device).on_host()
    make_rows.cache_clear()  # rows on the device
    x, x_test = made.x.astype(config.dtype, copy=False), made.x_test.astype(config.dtype, copy=False)
    n = config.evaluated_rows
    evaluated = (x_test[:n], made.y_test[:n]) if n else None
    return Rows(x, made.y, evaluated, x_test[n:], made.y_test[n:])


def scores(label: Any, probabilities: Any) -> dict[str, float]:
    """AUC and log-loss of two classes, accuracy and log-loss of more."""
    if probabilities.shape[1] == 2:
        return probability_scores(label, probabilities[:, 1])
    accuracy = float((probabilities.argmax(axis=1) == label).mean())
    return {**probability_scores(label, probabilities), "accuracy": accuracy}


def contender(config: Config, make: Callable[..., Any]) -> Contender:
    """Fits of one library; its first model is scored."""
    rows, found = rows_of(config), dict[str, float]()
    more: dict[str, Any] = {}
    if rows.evaluated is not None:
        more = {"eval_set": [rows.evaluated], "verbose": False}

    def run() -> Run:
        model = make(n_estimators=config.trees, device=config.device)
        seconds, _ = timed(lambda: model.fit(rows.x, rows.y, **more))
        if not found:
            found.update(scores(rows.y_test, np.asarray(model.predict_proba(rows.x_test))))
            if rows.evaluated is not None:
                x, y = rows.evaluated
                check_history(model.evals_result(), scores(y, np.asarray(model.predict_proba(x))))
        return Run(seconds, found)

    return run


def bench_once(config: Config) -> list[dict[str, Any]]:
    """All rows of one case on the present number of threads."""
    sides = {
        "daskboost": contender(config, ours.classifier), "xgboost": contender(config, peers.xgboost_classifier)
    }  # fmt: skip
    result = interleave(sides, config.repeats, not_worse(config.leeway))
    found = beside_row(
        config.name, result, "daskboost", "xgboost", asked=config.asked, stretch=config.stretch
    )  # fmt: skip
    print(
        f"{config.name} on {ours.threads()} threads: {found['seconds']:.3f} s, XGBoost {found['peer_seconds']:.3f} s, "
        f"ratio {found['ratio']:.2f} (asked {config.asked})",
        flush=True,
    )
    return [{**row, "threads": ours.threads()} for row in [*comparison_rows(config.name, result), found]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(REAL), help=f"comma-separated names of {', '.join(CASES)}")
    parser.add_argument("--threads", default=str(ours.threads()), help="comma-separated numbers")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--rows", type=int, default=0, help="at most so many, where they are made")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    gpu = gpu_name(options.device)
    for name in options.cases.split(","):
        config = replace(CASES[name].sized(options.rows, options.trees), device=options.device)
        config = replace(config, repeats=options.repeats or config.repeats)
        for threads in options.threads.split(","):
            os.environ["BENCH_THREADS"] = threads
            record("fit_calls", config, [{**row, "gpu": gpu} for row in bench_once(config)], options.results)
        rows_of.cache_clear()


if __name__ == "__main__":
    main()
