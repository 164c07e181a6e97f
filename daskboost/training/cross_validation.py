"""`cv`: how good models with some parameters are on rows that they have not seen, round by round."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.errors import DataError
from daskboost.foreign_words import takes_foreign_words
from daskboost.params import PARAMETERS, TrainParams, as_tuple
from daskboost.training.callbacks import Callback, RoundInfo
from daskboost.training.checks import check_rounds
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import make_folds
from daskboost.training.train import IN_PARAMS, with_callables
from daskboost.training.train_many import (
    HELD_OUT,
    TrainedModel,
    as_candidate,
    check_models,
    check_place,
    prepare_many,
    rows_of_models,
    run_together,
)

if TYPE_CHECKING:
    import pandas as pd


@takes_foreign_words(lambda _: PARAMETERS, IN_PARAMS)
def cv(
    params: Mapping[str, Any] | TrainParams, dtrain: QuantizedDataset, num_boost_round: int = 100, *, folds: Any = 5,
    stratified: bool = False, early_stopping_rounds: int | None = None, objective: Any = None,
    custom_metric: Any = None, models_at_once: int | None = None, eval_metric: Any = None,
) -> pd.DataFrame:  # fmt: skip
    """Cross-validate parameters: train a model per fold in lock-step and average their metrics.

    Parameters
    ----------
    params, dtrain, num_boost_round, objective, custom_metric, models_at_once : as for `train_many`
    folds : int or iterable of (training rows, held-out rows), default 5
        As for `train_many`. ``nfold`` is XGBoost's name of it.
    stratified : bool, default False
        With a number of folds: give each all labels in about equal shares.
    early_stopping_rounds : int, optional
        Stop after so many rounds without improvement of the mean over folds of the last metric on held-out rows; the
        table then ends with the best round, as XGBoost's does.
    eval_metric : str, callable or a list of them, optional
        In place of that of `params`. ``metrics`` is XGBoost's name of it.

    Returns
    -------
    pandas.DataFrame
        One row per round; columns ``train-<metric>-mean``, ``train-<metric>-std`` and the same of ``valid``, the
        held-out rows. The standard deviation is that of the folds' values (divided by their number, as in XGBoost); it
        is not that of the mean, which no estimate from overlapping folds gives without bias.

    Raises
    ------
    ParameterError, DataError
        As `train_many` does.
    """
    import pandas as pd

    chosen = as_candidate(params)
    if eval_metric is not None:
        chosen = replace(chosen, eval_metric=as_tuple(eval_metric))
    check_place(dtrain, "cv")
    check_rounds(num_boost_round, early_stopping_rounds, [(dtrain, HELD_OUT)])
    candidate = with_callables(chosen, objective, custom_metric)
    check_models([candidate], dtrain, num_boost_round)
    made = make_folds(dtrain, folds, chosen.random_state, stratified=stratified)
    stopper = MeanStopper(len(made), early_stopping_rounds)
    sets = rows_of_models(dtrain, made, evaluate_training=True)
    prepared = prepare_many([candidate], sets, num_boost_round, None, stopper.callbacks)
    stopper.maximize = prepared[0].fit.spec.metrics[-1][-1].maximize
    models = run_together(prepared, models_at_once)
    if early_stopping_rounds is not None and num_boost_round and stopper.best is None:
        raise DataError(
            "the mean metric of held-out rows was NaN in all rounds, so early stopping has nothing to compare; use a "
            "metric that is defined on all folds (auc needs both classes), or stratified=True"
        )
    return pd.DataFrame(_columns(models, num_boost_round if stopper.best is None else stopper.best + 1))


def _columns(models: Sequence[TrainedModel], n_rounds: int) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, metrics in models[0].evals_result.items():
        for metric in metrics:
            values = np.array([model.evals_result[name][metric][:n_rounds] for model in models])
            columns[f"{name}-{metric}-mean"] = values.mean(axis=0)
            columns[f"{name}-{metric}-std"] = values.std(axis=0)
    return columns


class MeanStopper:
    """Ends all models when the mean of their scores has stopped improving.

    A round counts once all models have finished it. Models that are ahead go on until they hear of the end, so that
    which rounds count does not depend on their order.
    """

    def __init__(self, n_models: int, rounds: int | None) -> None:
        self._n_models, self._rounds = n_models, rounds
        self.maximize = False
        self.best: int | None = None
        """Best round; None while there is none, or without early stopping."""
        self._best_mean = math.nan
        self._ended = False
        self._scores: dict[int, dict[int, float]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def callbacks(self, model: int) -> list[Callback]:
        """Return the callbacks of one model."""
        return [] if self._rounds is None else [_Listener(lambda info: self._heard(model, info))]

    def _heard(self, model: int, info: RoundInfo) -> bool:
        score = list(info.evals_result[HELD_OUT].values())[-1][-1]
        with self._lock:
            self._scores.setdefault(info.iteration, {})[model] = score
            while not self._ended and len(self._scores.get(self._next, ())) == self._n_models:
                self._judge(self._scores.pop(self._next))
            return self._ended

    def _judge(self, scores: Mapping[int, float]) -> None:
        mean = math.fsum(scores.values()) / self._n_models
        improved = mean > self._best_mean if self.maximize else mean < self._best_mean
        if not math.isnan(mean) and (self.best is None or improved):
            self.best, self._best_mean = self._next, mean
        self._next += 1
        assert self._rounds is not None
        self._ended = self._next - 1 - (-1 if self.best is None else self.best) >= self._rounds


class _Listener(Callback):
    def __init__(self, hear: Callable[[RoundInfo], bool]) -> None:
        self._hear = hear

    def after_round(self, info: RoundInfo) -> bool:
        return self._hear(info)
