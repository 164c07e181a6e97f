"""`train_many`: several models over one data set in lock-step, one stream of chunks between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from daskboost.devices.choose import check_one_gpu
from daskboost.errors import ParameterError
from daskboost.foreign_words import takes_foreign_words
from daskboost.local.in_process import LocalShards
from daskboost.local.together import Member, fit_together
from daskboost.model.booster import Booster
from daskboost.params import PARAMETERS, TrainParams, check_count
from daskboost.training.callbacks import Callback
from daskboost.training.checks import check_rounds
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import Fold, make_folds
from daskboost.training.train import IN_PARAMS, PreparedFit, prepare_fit, with_callables

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


@takes_foreign_words(lambda _: PARAMETERS, IN_PARAMS)
def train_many(
    params: Params | Sequence[Params], dtrain: QuantizedDataset, num_boost_round: int = 100, *, folds: Any = None,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), early_stopping_rounds: int | None = None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None, init_model: Any = None, objective: Any = None,
    custom_metric: Any = None, models_at_once: int | None = None,
) -> list[TrainedModel]:  # fmt: skip
    """Train several models over the same quantized rows: parameter candidates, seeds, folds of cross-validation.

    Each model is, byte for byte, the one that `train` gives for the same arguments alone; that of a fold is
    ``train(params, dtrain.subset(training_rows), evals=[..., (dtrain.subset(held_out_rows), "valid")])``, but that
    target statistics of rare levels know no labels of rows held out, for which rows are read again for each fold
    (`docs/categories.md`). What models share is the bins. Those in memory are there once, and as many models grow at
    a time as there are threads. Where chunks are streamed from disk, all models grow in lock-step, and a pass over
    the chunks serves every model that needs one: N models read as often as the one that needs most passes.

    Parameters
    ----------
    params : mapping or TrainParams, or sequence of such
        Candidates, as for `train`; `n_jobs`, the threads of all models together, must be the same in all.
    dtrain : QuantizedDataset
        In this process.
    num_boost_round : int, default 100
        As for `train`, of every model.
    folds : int, or iterable of (training rows, held-out rows), optional
        Every candidate is trained on each fold's training rows and evaluated on those held out, as the last evaluation
        set, named "valid". Rows by positions or marks, such as scikit-learn's ``KFold(5).split(X)`` gives; a number
        makes as many folds of equal sizes, by hashes of row numbers and of the first candidate's `random_state`; of
        rows that have a `qid`, queries stay whole.
    evals : sequence of (QuantizedDataset, name)
        As for `train`, for every model. With folds they keep the target statistics of the whole `dtrain`, which a
        fold's model does not predict by (`docs/categories.md`), so that its metrics of them are not quite its own.
    early_stopping_rounds : int, optional
        As for `train`. A model that stops leaves the others to go on.
    callbacks : callable, optional
        ``f(i) -> sequence of Callback`` makes those of model i, since callbacks keep state. They run in threads of the
        models.
    init_model, objective, custom_metric : optional
        As for `train`, for every model.
    models_at_once : int, optional
        Most models that grow at a time. Each takes memory for its rows' state, about 20 bytes a row and output, and for
        the sample that its trees grow on, if any; fewer at a time take less, and read streamed chunks as many times
        over; ``device_memory_limit`` is that of each. By default all of them where chunks are streamed (as many as a
        GPU has room for), otherwise one per thread, and on a GPU one.

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
    candidates = [with_callables(each, objective, custom_metric) for each in as_candidates(params)]
    check_place(dtrain, "train_many")
    check_rounds(num_boost_round, None, evals)
    if folds is not None:
        check_models(candidates, dtrain, num_boost_round, evals, init_model)
    made = None if folds is None else make_folds(dtrain, folds, candidates[0].random_state)
    sets = rows_of_models(dtrain, made, evals)
    prepared = prepare_many(candidates, sets, num_boost_round, early_stopping_rounds, callbacks, init_model)
    return run_together(prepared, models_at_once)


@dataclass(frozen=True)
class PreparedModel:
    """One of the models, checked; its training has not begun."""

    fit: PreparedFit
    evals_result: dict[str, dict[str, list[float]]]
    candidate: int
    fold: int | None


@dataclass(frozen=True)
class ModelRows:
    """Rows that a model of each candidate trains on and is evaluated on."""

    dtrain: QuantizedDataset
    evals: Sequence[tuple[QuantizedDataset, str]]
    fold: int | None = None


def rows_of_models(
    dtrain: QuantizedDataset, folds: Sequence[Fold] | None, evals: Sequence[tuple[QuantizedDataset, str]] = (), *,
    evaluate_training: bool = False,
) -> list[ModelRows]:  # fmt: skip
    """Return all rows, or those of each fold, whose held-out rows are the last to be evaluated on; `evaluate_training`
    rows of folds too, named "train"."""
    if folds is None:
        return [ModelRows(dtrain, evals)]
    return [
        ModelRows(rows, [*evals, *([(rows, "train")] if evaluate_training else []), (held_out, HELD_OUT)], fold)
        for fold, (rows, held_out) in enumerate(folds)
    ]


def check_models(
    candidates: Sequence[TrainParams], dtrain: QuantizedDataset, n_rounds: int,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), init_model: object = None,
) -> None:  # fmt: skip
    """Refuse what any model of folds would, before rows are read again for the first of these."""
    prepare_many(candidates, [ModelRows(dtrain, evals)], n_rounds, None, None, init_model)


def prepare_many(
    candidates: Sequence[TrainParams], sets: Sequence[ModelRows], n_rounds: int, early_stopping_rounds: int | None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None, init_model: Any = None,
) -> list[PreparedModel]:  # fmt: skip
    """Check the arguments of `train_many` for each model: of each candidate those of all sets of rows."""
    if callbacks is not None and not callable(callbacks):
        raise ParameterError("callbacks must be a function of a model's number that gives its callbacks, as these keep "
                             "state: callbacks=lambda i: [Checkpoint(f'model-{i}.ubj')]")  # fmt: skip
    prepared: list[PreparedModel] = []
    for candidate, params in enumerate(candidates):
        check_one_gpu(params.n_gpus)
        for rows in sets:
            own = () if callbacks is None else callbacks(len(prepared))
            history: dict[str, dict[str, list[float]]] = {}
            fit = prepare_fit(
                params, rows.dtrain, n_rounds, rows.evals, early_stopping_rounds, init_model, own, history
            )
            prepared.append(PreparedModel(fit, history, candidate, rows.fold))
    return prepared


def run_together(prepared: Sequence[PreparedModel], models_at_once: int | None = None) -> list[TrainedModel]:
    """Train models that were prepared, over rows of this process."""
    if models_at_once is not None:
        check_count("models_at_once", models_at_once, least=1)
    fits = [model.fit for model in prepared]
    n_jobs = sorted({fit.spec.params.n_jobs for fit in fits})
    if len(n_jobs) > 1:
        raise ParameterError(f"n_jobs differs among the models: {n_jobs}; they share threads, so give all the same")
    members = [Member(fit.spec, fit.dtrain.shards, [data.shards for data in fit.evals]) for fit in fits]
    work = [partial(PreparedFit.run, fit) for fit in fits]
    boosters = fit_together(members, work, n_jobs[0], models_at_once)
    return [
        TrainedModel(booster, model.evals_result, model.candidate, model.fold)
        for booster, model in zip(boosters, prepared, strict=True)
    ]


def as_candidates(params: Any) -> list[TrainParams]:
    """Each candidate's parameters, checked."""
    given = [params] if isinstance(params, Mapping | TrainParams) else params
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ParameterError(
            f"params is of type {type(params).__name__}; give a mapping, or a list of at least one for each candidate"
        )
    return [each if isinstance(each, TrainParams) else TrainParams.from_mapping(each) for each in given]


def as_candidate(params: Any) -> TrainParams:
    """Return the checked parameters of the one candidate of a function that takes no more."""
    if not isinstance(params, Mapping | TrainParams):
        raise ParameterError(f"params is of type {type(params).__name__}; give one mapping such as "
            "{'max_depth': 6} (several: train_many)")
    return as_candidates(params)[0]


def check_place(dtrain: object, name: str) -> None:
    """Refuse what is not rows of this process; messages are of the function `name`."""
    if not isinstance(dtrain, QuantizedDataset):
        raise ParameterError(
            f"dtrain is {type(dtrain).__name__}; pass a QuantizedDataset (QuantizedDataset.from_dask(X, y))"
        )
    if not isinstance(dtrain.shards, LocalShards):
        raise ParameterError(
            f"{name} trains models together over rows of this process, and dtrain lies on a cluster: call train for "
            "one model after the other, or save the data set and open it without a client"
        )
