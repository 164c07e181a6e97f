"""`train_many`: several models over one data set in lock-step, one stream of chunks between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from daskboost.cluster.in_process import LocalShards
from daskboost.cluster.together import Member, fit_together
from daskboost.errors import ParameterError
from daskboost.model.booster import Booster
from daskboost.params import TrainParams
from daskboost.training.callbacks import Callback
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import Fold, make_folds
from daskboost.training.train import PreparedFit, prepare_fit

HELD_OUT = "valid"
"""Name of a fold's held-out rows among the evaluation sets."""
Params = Mapping[str, Any] | TrainParams


class TrainedModel(NamedTuple):
    """One of the models of `train_many`."""

    booster: Booster
    evals_result: dict[str, dict[str, list[float]]]
    """Data set -> metric -> values, one per round."""
    candidate: int
    """Place of its parameters among those given."""
    fold: int | None
    """Its fold; None without folds."""


def train_many(
    params: Params | Sequence[Params], dtrain: QuantizedDataset, num_boost_round: int = 100, *, folds: Any = None,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), early_stopping_rounds: int | None = None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None, init_model: Any = None, objective: Any = None,
    custom_metric: Any = None, models_at_once: int | None = None,
) -> list[TrainedModel]:  # fmt: skip
    """Train several models over the same quantized rows: parameter candidates, seeds, folds of cross-validation.

    Each model is, byte for byte, the one that `train` gives for the same arguments alone; that of a fold is
    ``train(params, dtrain.subset(training_rows), evals=[..., (dtrain.subset(held_out_rows), "valid")])``. What they
    share is the bins. Those in memory are there once, and as many models grow at a time as there are threads. Where
    chunks are streamed from disk, all models grow in lock-step, and a pass over the chunks serves every model that
    needs one: N models read as often as the one that needs most passes.

    Parameters
    ----------
    params : mapping or TrainParams, or sequence of such
        Candidates, as for `train`; `device` and `n_jobs`, the threads of all models together, must be the same in all.
    dtrain : QuantizedDataset
        In this process.
    num_boost_round : int, default 100
        As for `train`, of every model.
    folds : int, or iterable of (training rows, held-out rows), optional
        Every candidate is trained on each fold's training rows and evaluated on those held out, as the last evaluation
        set, named "valid". Rows by positions or marks, such as scikit-learn's ``KFold(5).split(X)`` gives; a number
        makes as many folds of equal sizes, by hashes of row numbers and of the first candidate's `random_state`.
    evals : sequence of (QuantizedDataset, name)
        As for `train`, for every model.
    early_stopping_rounds : int, optional
        As for `train`. A model that stops leaves the others to go on.
    callbacks : callable, optional
        ``f(i) -> sequence of Callback`` makes those of model i, since callbacks keep state. They run in threads of the
        models.
    init_model, objective, custom_metric : optional
        As for `train`, for every model.
    models_at_once : int, optional
        Most models that grow at a time. Each takes memory for its rows' state, about 20 bytes a row and output; fewer
        at a time take less, and read streamed chunks as many times over. By default all of them where chunks are
        streamed (as many as a GPU has room for), otherwise one per thread, and on a GPU one.

    Returns
    -------
    list of TrainedModel
        Candidates in order, each with all its folds: model ``candidate * n_folds + fold``.

    Raises
    ------
    ParameterError, DataError
        Before any work: what `train` refuses, for any of the models; folds without rows, or that train on rows that
        they hold out; a data set on a cluster.
    Exception
        Of any model's fit or callback: it ends all of them. Ctrl-C does too.
    """
    candidates = _candidates(params)
    _check_place(dtrain, "train_many")
    seed = candidates[0].random_state
    made: list[Fold] | None = None if folds is None else make_folds(dtrain, folds, seed)
    return train_on_folds(
        candidates, dtrain, num_boost_round, made, evals=evals, early_stopping_rounds=early_stopping_rounds,
        callbacks=callbacks, init_model=init_model, objective=objective, custom_metric=custom_metric,
        models_at_once=models_at_once,
    )  # fmt: skip


def train_on_folds(
    candidates: Sequence[TrainParams], dtrain: QuantizedDataset, n_rounds: int, folds: Sequence[Fold] | None, *,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), early_stopping_rounds: int | None = None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None, init_model: Any = None, objective: Any = None,
    custom_metric: Any = None, models_at_once: int | None = None,
) -> list[TrainedModel]:  # fmt: skip
    """`train_many` with folds that are made."""
    if callbacks is not None and not callable(callbacks):
        raise ParameterError("callbacks must be a function of a model's number that gives its callbacks, as these keep "
                             "state: callbacks=lambda i: [Checkpoint(f'model-{i}.ubj')]")  # fmt: skip
    places: list[tuple[int, int | None]] = [
        (candidate, fold)
        for candidate in range(len(candidates))
        for fold in ([None] if folds is None else range(len(folds)))
    ]
    prepared, histories = [], []
    for number, (candidate, fold) in enumerate(places):
        rows, sets = dtrain, list(evals) if isinstance(evals, list | tuple) else evals
        if folds is not None and fold is not None:
            rows, sets = folds[fold][0], [*evals, (folds[fold][1], HELD_OUT)]
        histories.append(dict[str, dict[str, list[float]]]())
        prepared.append(prepare_fit(
            candidates[candidate], rows, n_rounds, sets, early_stopping_rounds, init_model,
            () if callbacks is None else callbacks(number), objective, custom_metric, histories[-1],
        ))  # fmt: skip
    boosters = run_together(prepared, models_at_once)
    return [
        TrainedModel(booster, history, *place)
        for booster, history, place in zip(boosters, histories, places, strict=True)
    ]


def run_together(fits: Sequence[PreparedFit], models_at_once: int | None = None) -> list[Booster]:
    """The models of fits in this process that were prepared."""
    if models_at_once is not None and (
        isinstance(models_at_once, bool) or not isinstance(models_at_once, int | np.integer) or models_at_once < 1
    ):
        raise ParameterError(f"models_at_once={models_at_once!r} must be an integer of at least 1")
    for name in ("device", "n_jobs"):
        values = sorted({getattr(fit.spec.params, name) for fit in fits})
        if len(values) > 1:
            raise ParameterError(
                f"{name} differs among the models: {values}; they are trained together, so give all the same"
            )
    members = [Member(fit.spec, fit.dtrain.shards, [data.shards for data in fit.evals]) for fit in fits]
    n_jobs = fits[0].spec.params.n_jobs
    return fit_together(members, [partial(PreparedFit.run, fit) for fit in fits], n_jobs, models_at_once)


def _candidates(params: Any) -> list[TrainParams]:
    """Each candidate's parameters, checked."""
    given = [params] if isinstance(params, Mapping | TrainParams) else params
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ParameterError(
            f"params is of type {type(params).__name__}; give a mapping, or a list of at least one for each candidate"
        )
    return [each if isinstance(each, TrainParams) else TrainParams.from_mapping(each) for each in given]


def _check_place(dtrain: Any, name: str) -> None:
    if not isinstance(dtrain, QuantizedDataset):
        raise ParameterError(f"dtrain is {type(dtrain).__name__}; pass a QuantizedDataset (QuantizedDataset.from_dask(X, y))")
    if not isinstance(dtrain.shards, LocalShards):
        raise ParameterError(
            f"{name} trains models together over rows of this process, and dtrain lies on a cluster: call train for "
            "one model after the other, or save the data set and open it without a client"
        )
