"""Test scores on real data against XGBoost with the same parameters, run in the same process.

    python -m benchmarks.quality                 # every numeric set
    python -m benchmarks.quality --sets letter,otto --policies depthwise
    python -m benchmarks.quality --quick         # the sets that ship with the repository
    python -m benchmarks.quality --policies newton,l2      # score functions of symmetric trees

Prints one line per set and measure: XGBoost, ours (depthwise, the growth XGBoost uses), whether ours is within the
allowance, and symmetric and lossguide growth beside it. Sets of several classes have a line more per measure, of trees
whose leaves are vectors (multi_output_tree) on both sides. Ends with exit status 1 if any depthwise score of the first
kind is outside.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours, peers
from benchmarks.harness import RESULTS, record, timed
from benchmarks.real_sets import NUMERIC, Loaded, load

ALLOWED_LOSS = 0.003
"""How far AUC or accuracy may fall behind, absolute."""
ALLOWED_RATIO = 1.01
"""How far an error or a loss may exceed the peer's."""
HIGHER_IS_BETTER = ("auc", "accuracy")
BUNDLED = ("higgs_11k", "covtype_20k", "letter", "california_housing")
POLICIES: dict[str, dict[str, Any]] = {
    "depthwise": {"grow_policy": "depthwise", "max_depth": 6},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 6},
    "lossguide": {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 64},  # as many leaves as depth 6
}
SCORES: dict[str, dict[str, Any]] = {
    "newton": {**POLICIES["symmetric"], "score_function": "newton"},
    "l2": {**POLICIES["symmetric"], "score_function": "l2"},
}
"""What symmetric trees score splits by; run where they are asked for."""
VECTORS: dict[str, Any] = {**POLICIES["depthwise"], "multi_strategy": "multi_output_tree"}
"""One tree per round for all classes; of XGBoost and of ours."""


@dataclass(frozen=True)
class Config:
    """The published baselines' parameters; rounds differ by set."""

    learning_rate: float = 0.1
    max_bin: int = 256
    seed: int = 0


def parameters(data: Loaded, config: Config) -> dict[str, Any]:
    """Parameters that ours and XGBoost's training share."""
    params: dict[str, Any] = {
        "objective": data.info.objective,
        "learning_rate": config.learning_rate,
        "max_bin": config.max_bin,
        "seed": config.seed,
    }
    if data.info.task == "multiclass":
        params["num_class"] = data.n_classes
    if data.info.task == "count":
        params["max_delta_step"] = 0.7
    return params


def scores(task: str, y: npt.NDArray[np.float32], predicted: npt.NDArray[np.float64]) -> dict[str, float]:
    """Test scores of the measures the published baselines use."""
    from sklearn import metrics

    if task == "binary":
        return {"auc": metrics.roc_auc_score(y, predicted), "logloss": metrics.log_loss(y, predicted)}
    if task == "multiclass":
        shares = predicted / predicted.sum(axis=1, keepdims=True)  # float32 rows do not sum to one exactly
        labels = np.arange(shares.shape[1])
        return {
            "accuracy": metrics.accuracy_score(y, shares.argmax(axis=1)),
            "mlogloss": metrics.log_loss(y, shares, labels=labels),
        }
    if task == "count":
        return {"poisson-deviance": metrics.mean_poisson_deviance(y, predicted)}
    return {
        "rmse": metrics.root_mean_squared_error(y, predicted),
        "mae": metrics.mean_absolute_error(y, predicted),
    }


def within(measure: str, score: float, peer: float) -> bool:
    """Whether a score is no worse than the peer's by more than the allowance."""
    return score >= peer - ALLOWED_LOSS if measure in HIGHER_IS_BETTER else score <= peer * ALLOWED_RATIO


def run_set(name: str, policies: Mapping[str, Mapping[str, Any]], config: Config) -> list[dict[str, Any]]:
    """Train every contender on one set; one row per contender and measure."""
    data = load(name, numeric_only=True)
    params, rounds = parameters(data, config), data.info.rounds
    train, test = data.train, data.test

    def ours_scores(policy: Mapping[str, Any]) -> dict[str, float]:
        dataset = ours.quantize(train.x, train.y, max_bin=config.max_bin, base_margin=train.base_margin)
        booster = ours.train({**params, **policy}, dataset, rounds)
        return scores(data.info.task, test.y, ours.predict(booster, test.x, test.base_margin))

    def xgboost_scores(policy: Mapping[str, Any]) -> dict[str, float]:
        matrix = peers.xgboost_matrix(train.x, train.y, max_bin=config.max_bin, base_margin=train.base_margin)
        booster = peers.xgboost_train({**params, **policy}, matrix, rounds)
        return scores(data.info.task, test.y, peers.xgboost_predict(booster, test.x, test.base_margin))

    contenders: dict[str, Callable[[], dict[str, float]]] = {"xgboost": partial(xgboost_scores, {"max_depth": 6})}
    contenders |= {contender: partial(ours_scores, policy) for contender, policy in policies.items()}
    if data.info.task == "multiclass" and "depthwise" in policies:
        contenders |= {"xgboost vectors": partial(xgboost_scores, VECTORS), "vectors": partial(ours_scores, VECTORS)}
    rows = []
    for contender, work in contenders.items():
        seconds, result = timed(work)
        rows += [
            {"case": name, "contender": contender, "measure": m, "score": float(s), "seconds": round(seconds, 3)}
            for m, s in result.items()
        ]
    return rows


def print_header(policies: list[str]) -> None:
    """The first line of the table."""
    print(f"{'set':<24}{'measure':<18}{'xgboost':>10}" + "".join(f"{p:>12}" for p in policies) + "  within")


def print_set(rows: list[dict[str, Any]], policies: list[str]) -> int:
    """Print one set's rows side by side; returns the number of depthwise scores outside the allowance."""
    table = {(r["measure"], r["contender"]): r["score"] for r in rows}
    outside = 0
    for measure in dict.fromkeys(r["measure"] for r in rows):
        peer = table[measure, "xgboost"]
        verdict = "-"
        if "depthwise" in policies:
            fine = within(measure, table[measure, "depthwise"], peer)
            outside, verdict = outside + (not fine), "yes" if fine else "NO"
        values = "".join(f"{table[measure, p]:>12.5g}" for p in policies)
        print(f"{rows[0]['case']:<24}{measure:<18}{peer:>10.5g}{values}  {verdict}", flush=True)
        if (measure, "vectors") in table:
            peer, own = table[measure, "xgboost vectors"], table[measure, "vectors"]
            values = f"{own:>12.5g}" + " " * 12 * (len(policies) - 1)
            verdict = "yes" if within(measure, own, peer) else "NO"
            print(f"{'':<24}{measure + ', vectors':<18}{peer:>10.5g}{values}  {verdict}", flush=True)
    return outside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=",".join(NUMERIC), help="comma-separated names")
    parser.add_argument("--policies", default=",".join(POLICIES), help="comma-separated growth policies")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(BUNDLED)}")
    options = parser.parse_args()
    names = BUNDLED if options.quick else options.sets.split(",")
    policies = {name: (POLICIES | SCORES)[name] for name in options.policies.split(",")}
    config, outside = Config(), 0
    print_header(list(policies))
    for name in names:
        rows = run_set(name, policies, config)
        outside += print_set(rows, list(policies))
        record("quality", config, rows)
    print(f"{outside} depthwise scores outside the allowance; rows in {RESULTS / 'quality.jsonl'}")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
