"""What cross-validation says of sets with categorical columns, beside what rows say that are new to the data set.

    python -m benchmarks.category_folds                       # `cv` beside fits of the same folds whose rows are new
    python -m benchmarks.category_folds --frequent 0,64,256   # losses of default fits, by what counts as a rare level

Fifths of the training rows are held out in turn. `cv` divides one data set of all of them; "new rows" are in no data
set that is trained on, and are evaluated as rows are that are predicted. Test rows are not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.categories import PARTS, Config, held_out, shared_parameters
from benchmarks.harness import RESULTS, record, timed
from benchmarks.quality import scores
from benchmarks.real_sets import Loaded, load

SETS = ("amazon_access", "hr_job_change", "adult", "diamonds", "allstate_claims")
LOSSES = {"binary": "logloss", "regression": "rmse"}


@dataclass(frozen=True)
class FoldsConfig(Config):
    """Rounds are as many as would overfit all of these sets."""

    rounds: int = 250


def by_cv(data: Loaded, config: FoldsConfig) -> list[float]:
    """The mean loss of held-out rows after each round, by `cv`."""
    own = data.train
    held = np.full(len(own.y), -1)
    for part in range(PARTS):
        held[np.random.RandomState(7).permutation(len(own.y))[part::PARTS]] = part
    folds = [(np.flatnonzero(held != part), np.flatnonzero(held == part)) for part in range(PARTS)]
    table = ours.cross_validated(_parameters(data, config), ours.quantize(own.x, own.y), config.rounds, folds)
    losses: list[float] = table[f"valid-{LOSSES[data.info.task]}-mean"].tolist()
    return losses


def by_new_rows(data: Loaded, config: FoldsConfig) -> list[float]:
    """The mean loss of held-out rows after each round, of data sets that do not have them."""
    each = []
    for part in range(PARTS):
        own = held_out(data, part)
        rows = ours.quantize(own.train.x, own.train.y)
        evals = [(ours.quantize(own.test.x, own.test.y, reference=rows), "new")]
        found: dict[str, Any] = {}
        ours.train(_parameters(data, config), rows, config.rounds, evals=evals, evals_result=found)
        each.append(found["new"][LOSSES[data.info.task]])
    losses: list[float] = np.mean(each, axis=0).tolist()
    return losses


def _parameters(data: Loaded, config: FoldsConfig) -> dict[str, Any]:
    return {**shared_parameters(data, config), "eval_metric": LOSSES[data.info.task]}


def beside(name: str, config: FoldsConfig) -> dict[str, Any]:
    """One set's row: the best round and its loss by `cv`, by `cv` whose statistics know all labels, and of new rows;
    and what these lose by stopping at the others' rounds."""
    data = load(name)
    with ours.rows_of_frequent_levels(0):
        knowing = by_cv(data, config)
    new, row = by_new_rows(data, config), dict[str, Any](case=name, measure=LOSSES[data.info.task])
    for contender, losses in {"knowing": knowing, "cv": by_cv(data, config), "new": new}.items():
        best = int(np.argmin(losses))
        row |= {f"{contender}_round": best + 1, f"{contender}_loss": losses[best]}
        row[f"new_loss_at_{contender}_round"] = new[best]
    return row


def default_loss(name: str, frequent: int) -> dict[str, Any]:
    """One set's row: the loss of default fits where levels of fewer rows than `frequent` are rare."""
    data, losses, seconds = load(name), [], 0.0
    is_binary = data.info.task == "binary"
    for part in range(PARTS):
        own = held_out(data, part)
        with ours.rows_of_frequent_levels(frequent):
            took, predicted = timed(partial(ours.default_predictions, own.train, own.test.x, is_binary))
        losses.append(scores(data.info.task, own.test.y, predicted)[LOSSES[data.info.task]])
        seconds += took
    return {"case": name, "measure": LOSSES[data.info.task], "frequent": frequent, "loss": float(np.mean(losses)),
            "seconds": round(seconds, 3)}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated names")
    parser.add_argument("--frequent", default="", help="comma-separated rows from which on levels are not rare")
    parser.add_argument("--rounds", type=int, default=FoldsConfig.rounds)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the rows")
    options = parser.parse_args(arguments)
    config = FoldsConfig(rounds=options.rounds)
    for name in options.sets.split(","):
        limits = [int(each) for each in options.frequent.split(",") if each]
        rows = [default_loss(name, limit) for limit in limits] if limits else [beside(name, config)]
        for row in rows:
            print("  ".join(f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
                            for key, value in row.items()), flush=True)  # fmt: skip
        path = record("category_folds", config, rows, options.results)
    print(f"rows in {path}")


if __name__ == "__main__":
    main()
