"""The evaluation history of a fit, and when it stops early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from daskboost.errors import DataError, ParameterError
from daskboost.fit.messages import MetricParts
from daskboost.fit.spec import FitSpec, Progress


class Stopper:
    """Keeps the evaluation history of a fit and says when to stop."""

    def __init__(self, spec: FitSpec, progress: Progress) -> None:
        self._spec, self._progress = spec, progress
        if spec.early_stopping is not None and spec.earlier_best is not None:
            progress.best_iteration, progress.best_score = spec.earlier_best

    def after_round(self, iteration: int, values: list[list[tuple[str, float]]]) -> bool:
        """Record the metrics of a round; whether training has stopped improving.

        NaN is no improvement over anything.

        Raises
        ------
        DataError
            There is to be an end, and the metric has been NaN in all rounds.
        ParameterError
            Two metrics gave one name, whose values would end in one list.
        """
        spec, progress = self._spec, self._progress
        for name, row in zip(spec.eval_names, values, strict=True) if values else ():
            _refuse_twins([metric_name for metric_name, _ in row])
            for metric_name, value in row:
                progress.history.setdefault(name, {}).setdefault(metric_name, []).append(value)
        if spec.early_stopping is None:
            return False
        score, metric = values[-1][-1][1], spec.metrics[-1][-1]
        best, delta = progress.best_score, spec.early_stopping.min_delta
        better = best is None or (score > best + delta if metric.maximize else score < best - delta)
        if better and not math.isnan(score):
            progress.best_score, progress.best_iteration = score, iteration
        if progress.best_iteration is not None:
            return iteration - progress.best_iteration >= spec.early_stopping.rounds
        n_rounds = iteration - spec.first_iteration + 1
        if n_rounds >= min(spec.early_stopping.rounds, len(spec.learning_rates)):
            raise DataError(
                f"metric {values[-1][-1][0]!r} of evaluation set {spec.eval_names[-1]!r} was NaN in all of the first "
                f"{n_rounds} rounds, so early stopping has nothing to compare; use an evaluation set on which it is "
                "defined (auc needs both classes), or another metric"
            )
        return False


def _refuse_twins(names: list[str]) -> None:
    """Metrics may name their values themselves, so that only an evaluation tells two of one name."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ParameterError(
            f"two metrics of eval_metric are named {twice[0]!r} (all: {names}), so their values could not be told "
            "apart; return (name, value) from functions, or give each a name of its own (def instead of lambda)"
        )


def metric_values(spec: FitSpec, parts: Sequence[MetricParts]) -> list[list[tuple[str, float]]]:
    """Name and value of each metric on each evaluation set."""
    return [
        [
            metric.named_value(reduce(add, [metric.state_from_arrays(part.states[s][k]) for part in parts]))
            for k, metric in enumerate(metrics)
        ]
        for s, metrics in enumerate(spec.metrics)
    ]
