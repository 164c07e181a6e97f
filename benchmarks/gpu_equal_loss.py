"""Many classes on one GPU: how long separate trees and vector leaves take until they reach the same test log-loss.

    python -m benchmarks.gpu_equal_loss                              # all cases: about 4 minutes
    python -m benchmarks.gpu_equal_loss --cases classes_80 --results /some/folder
    python -m benchmarks.gpu_equal_loss --device cpu --rows 3000 --trees 10 --results /tmp/rehearsal

Separate trees set the goal: their log-loss after the rounds of the case in `gpu_cases.py`. Vector leaves, searched by
all gradients or by a sketch of them, get as many rounds as they need for it, which an evaluation after every round
counts. Then every contender is timed over its own rounds, without evaluations.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.gpu_cases import CASES, Config
from benchmarks.gpu_contenders import Rows, host, make_rows, scores, vector_leaves
from benchmarks.gpu_speed import give_back, gpu_name
from benchmarks.harness import RESULTS, record, timed

NAMES = ("classes_80", "classes_10_small")
MOST_ROUNDS = 600


@dataclass(frozen=True)
class Reached:
    """What a contender needed; None of rounds where the most were too few."""

    rounds: int | None
    logloss: float
    seconds: float | None
    """Of all rounds, after a fit that has made ready what a process needs once."""


def rounds_to(goal: float, losses: list[float]) -> int | None:
    """Of the log-losses after each round, the first that is no greater."""
    return next((i + 1 for i, loss in enumerate(losses) if loss <= goal), None)


def curve(params: Mapping[str, Any], data: Any, test: Any, goal: float, most: int) -> list[float]:
    """Test log-loss after each round, until it has come down to the goal."""
    from daskboost.training.callbacks import Callback, RoundInfo

    class UntilGoal(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            return info.evals_result["test"]["mlogloss"][-1] <= goal

    found: dict[str, dict[str, list[float]]] = {}
    more = {"evals": [(test, "test")], "evals_result": found, "callbacks": [UntilGoal()]}
    ours.train({**params, "eval_metric": "mlogloss"}, data, most, **more)
    return found["test"]["mlogloss"]


def reached(config: Config, rows: Rows, most: int) -> Iterator[tuple[str, Reached]]:
    """By contender, separate trees first."""
    data = ours.quantize(rows.x, rows.y, max_bin=config.max_bin)
    test = ours.quantize(rows.x_test, rows.y_test, reference=data)
    goal, separate = 0.0, "daskboost"
    for name, more in {separate: {}, **vector_leaves(config)}.items():
        params = {**config.params(), **more}
        ours.train(params, data, 2)
        n: int | None = config.trees
        if name != separate:
            losses = curve(params, data, test, goal, most)
            n = rounds_to(goal, losses)
        if n is None:
            yield name, Reached(None, losses[-1], None)
            continue
        seconds, model = timed(functools.partial(_fit, params, data, n, rows))
        loss = scores(host(rows.y_test), host(ours.predict(model, rows.x_test)))["logloss"]
        goal = goal or loss
        yield name, Reached(n, loss, seconds)
        give_back(config.device)


def _fit(params: Mapping[str, Any], data: Any, n_rounds: int, rows: Rows) -> Any:
    model = ours.train(params, data, n_rounds)
    rows.synchronize()
    return model


def case_rows(config: Config, most: int) -> list[dict[str, Any]]:
    """A row for each contender."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, config.test_rows, config.device)
    found, goal = [], None
    for name, each in reached(config, rows, most):
        goal = goal or each
        assert goal.seconds is not None, "separate trees have their rounds"
        times = None if each.seconds is None else round(goal.seconds / each.seconds, 4)
        found.append({
            "case": config.name, "contender": name, "rounds": each.rounds, "logloss": each.logloss,
            "goal": goal.logloss, "seconds": each.seconds, "most_rounds": most,
            "ms_per_round": None if each.seconds is None or not each.rounds else 1e3 * each.seconds / each.rounds,
            "separate_trees_time_over_ours": times,
        })  # fmt: skip
        print({key: value for key, value in found[-1].items() if value is not None}, flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(NAMES), help="comma-separated names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0, help="rounds of separate trees")
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS, help="the most that vector leaves get")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.cases.split(",")) - set(NAMES)):
        raise SystemExit(f"no case is named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    gpu = gpu_name(options.device)
    for name in options.cases.split(","):
        config, start = replace(CASES[name].config, device=options.device), time.monotonic()
        config = config.sized(options.rows, options.trees)
        rows = case_rows(config, options.rounds)
        took = round(time.monotonic() - start, 1)
        record("gpu_equal_loss", config, [{**row, "gpu": gpu, "case_s": took} for row in rows], options.results)
        print(f"{name}: took {took} s", flush=True)
        give_back(options.device)


if __name__ == "__main__":
    main()
