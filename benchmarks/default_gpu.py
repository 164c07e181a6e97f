"""Default fits on one GPU: how long ours takes, and XGBoost until its test log-loss is as low.

    python -m benchmarks.default_gpu                                     # 1M x 50 and 10M x 39, skewed
    python -m benchmarks.default_gpu --device cpu --scale .01 --rounds 300 --results /tmp/rehearsal

Rows are made on the device and given to both libraries as they lie there; times are those of whole calls of the
estimators, quantizing included, after a first one of each on some of the rows. Ours and XGBoost's own defaults are fits
as they come. XGBoost then has settings (`SETTINGS`) with as many rounds as bring its log-loss on the test rows down to
ours, told by an evaluation after every round of a fit that is not timed: a choice by the test rows, in its favour.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_contenders import Rows, host, make_rows, scores
from benchmarks.gpu_equal_loss import rounds_to
from benchmarks.gpu_speed import give_back, gpu_name
from benchmarks.harness import RESULTS, record, timed
from benchmarks.ours import threads

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults, more rounds": {}, "rate .1": {"learning_rate": 0.1},
    "rate .1, depth 8": {"learning_rate": 0.1, "max_depth": 8},
}  # fmt: skip
PATIENCE = 50
"""Rounds without a lower log-loss after which XGBoost will not come down to ours."""
WARM_ROWS = 20_000


@dataclass(frozen=True)
class Config:
    """A workload."""

    workload: str
    n_rows: int
    n_features: int
    test_rows: int = 500_000
    rounds: int = 3000
    """The most that XGBoost gets."""
    device: str = "cuda"


CASES = {"skewed_1m_50": Config("skewed", 1_000_000, 50), "skewed_10m_39": Config("skewed", 10_000_000, 39)}


def ours(config: Config) -> Any:
    """Our classifier; its device is all that it is told."""
    from daskboost import DaskBoostClassifier

    return DaskBoostClassifier(device=config.device, n_jobs=threads())


def xgboost(config: Config, **given: Any) -> Any:
    """XGBoost's classifier."""
    from xgboost import XGBClassifier

    return XGBClassifier(device=config.device, n_jobs=threads(), **given)


def logloss(model: Any, rows: Rows) -> float:
    """Return the log-loss of the test rows."""
    return scores(host(rows.y_test), host(model.predict_proba(rows.x_test))[:, 1])["logloss"]


def fitted(model: Any, rows: Rows) -> tuple[float, float]:
    """Seconds of a fit, and the log-loss."""

    def fit() -> None:
        model.fit(rows.x, rows.y)
        rows.synchronize()

    seconds, _ = timed(fit)
    return seconds, logloss(model, rows)


def rounds_down_to(goal: float, config: Config, rows: Rows, given: Mapping[str, Any]) -> tuple[int | None, float]:
    """XGBoost's rounds until the log-loss of the test rows is no more, or None, and its least."""
    model = xgboost(
        config, n_estimators=config.rounds, early_stopping_rounds=PATIENCE, eval_metric="logloss", **given
    )  # fmt: skip
    model.fit(rows.x, rows.y, eval_set=[(rows.x_test, rows.y_test)], verbose=False)
    losses = model.evals_result()["validation_0"]["logloss"]
    return rounds_to(goal, losses), min(losses)


def bench(config: Config) -> Iterator[dict[str, Any]]:
    """Give the rows of a case."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, config.test_rows, config.device)
    few = replace(rows, x=rows.x[:WARM_ROWS], y=rows.y[:WARM_ROWS])
    fitted(ours(config), few)
    fitted(xgboost(config), few)
    for _ in range(2):  # the second one counts: what a process does once for such rows is done
        seconds, goal = fitted(ours(config), rows)
        give_back(config.device)
    yield {"contender": "daskboost", "seconds": seconds, "logloss": goal}
    for _ in range(2):
        own, loss = fitted(xgboost(config), rows)
    yield {"contender": "xgboost", "seconds": own, "logloss": loss, "ratio": round(own / seconds, 3)}
    for name, given in SETTINGS.items():
        n, least = rounds_down_to(goal, config, rows, given)
        found: dict[str, Any] = {"contender": f"xgboost: {name}", "rounds": n, "least_logloss": least}
        if n is not None:
            own, loss = fitted(xgboost(config, n_estimators=n, **given), rows)
            found |= {"seconds": own, "logloss": loss, "ratio": round(own / seconds, 3)}
        yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--rounds", type=int, default=Config.rounds, help="the most that XGBoost gets")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    gpu = gpu_name(options.device)
    for name in options.cases.split(","):
        case = CASES[name]
        config = replace(
            case, device=options.device, rounds=options.rounds, n_rows=int(case.n_rows * options.scale),
            test_rows=int(case.test_rows * options.scale),
        )  # fmt: skip
        for row in bench(config):
            print(name, {key: value for key, value in row.items() if value is not None}, flush=True)
            record("default_gpu", config, [{"case": name, "gpu": gpu, **row}], options.results)
        give_back(options.device)


if __name__ == "__main__":
    main()
