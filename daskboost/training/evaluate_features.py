"""`evaluate_features`: is a column worth having? Seeded fits with and without it, compared pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np

from daskboost.dtypes import Float64
from daskboost.errors import DataError, ParameterError
from daskboost.fit.recipe import evaluated_metrics
from daskboost.metrics.ranking import KeptValues, QueryState, RankingMetric
from daskboost.params import TrainParams, check_count
from daskboost.training.checks import check_rounds
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import Fold, make_folds
from daskboost.training.train import objective_of, with_callables
from daskboost.training.train_many import (
    HELD_OUT,
    PreparedModel,
    TrainedModel,
    as_candidate,
    check_models,
    check_place,
    prepare_many,
    rows_of_models,
    run_together,
)
from daskboost.tree.constraints import some_columns

Verdict = Literal["helps", "hurts", "undecided"]


@dataclass(frozen=True, eq=False)
class FeatureTrial:
    """What a group of columns adds to the score."""

    features: tuple[str, ...]
    """Labels of the group's columns."""
    metric: str
    with_scores: Float64
    """Scores of the models that have the columns, repeat by repeat, fold by fold; shape (repeats * folds,)."""
    without_scores: Float64
    """Scores of the models that are the same but for the columns, on the same rows with the same seeds."""
    differences: Float64
    """What the columns improve: positive where the metric is better with them, in the metric's unit; of a metric of
    queries one for each query that counts, by increasing codes, averaged over repeats."""
    mean: float
    interval: tuple[float, float]
    """Confidence interval of the mean."""
    p_value: float
    """Two-sided, of no difference."""
    verdict: Verdict
    """"helps" or "hurts" where the interval does not contain 0."""

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{', '.join(self.features)}: {self.verdict}, {self.metric} better by {self.mean:.6g} "
            f"({low:.6g} to {high:.6g}, p = {self.p_value:.3g})"
        )


def evaluate_features(
    params: Mapping[str, Any] | TrainParams, dtrain: QuantizedDataset, features: Sequence[Any],
    num_boost_round: int = 100, *, folds: Any = 5, n_repeats: int = 1,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), baseline: str = "rest", confidence: float = 0.95,
    early_stopping_rounds: int | None = None, stratified: bool = False, objective: Any = None,
    custom_metric: Any = None, models_at_once: int | None = None,
) -> list[FeatureTrial]:  # fmt: skip
    """Try columns: train with and without them, on the same folds with the same seeds, and compare held-out scores.

    All models, ``(groups + 1) * n_repeats * folds`` of them, grow in lock-step (`train_many`) over the same bins: a
    model without some columns is one that may not split on them (`ignored_features`). Nothing is quantized again.

    Parameters
    ----------
    params, dtrain, num_boost_round, objective, custom_metric, models_at_once : as for `train_many`
        The score is the last metric of ``eval_metric``, after the last round, or the best one with early stopping.
        With repeats, `random_state` is that of the first, which counts up: give parameters that sample rows or columns,
        without which seeds make hardly a difference.
    features : sequence
        What is tried: column names or indices, or groups of them (lists or tuples), each group as one feature.
    folds : int, iterable of (training rows, held-out rows), or None; default 5
        As for `train_many`; a number makes other folds in each repeat. None scores on `evals` instead, where seeds
        alone differ.
    n_repeats : int, default 1
        Repeats with other seeds; two or more without folds.
    evals : sequence of (QuantizedDataset, name)
        Without folds: the last one is scored.
    baseline : {"rest", "all"}
        What each group is compared with, the same for all. "rest": the columns that are in no group, to which the group
        is added: which of these new columns is worth having? "all": all columns, from which the group is taken: which
        can be spared? There, columns that say the same stand in for each other, and both look worthless.
    confidence : float, default 0.95
        Of the intervals, in (0, 1).
    early_stopping_rounds, stratified : as for `cv`
        Each model stops by itself.

    Returns
    -------
    list of FeatureTrial
        One per group, in their order.

    Raises
    ------
    ParameterError, DataError
        Before any work: unknown columns, empty groups, no column left to compare with, columns that `params` ignores,
        a single difference to judge by, and what `train_many` refuses. Afterwards, a score that is NaN.

    Notes
    -----
    The interval is Student's t of the J paired differences: ``mean +- t * s * sqrt(1 / J + q)`` with J - 1 degrees of
    freedom, s their standard deviation and q the ratio of held-out to training rows. Folds train on overlapping rows,
    so that their differences are correlated, and ``1 / J`` alone would call chance an effect far too often; q is the
    correction of Nadeau and Bengio, "Inference for the Generalization Error" (Machine Learning 52, 2003), used with
    repeated folds as by Bouckaert and Frank (2004). It is a heuristic, usually on the cautious side. Without folds q
    is 0: the interval then is about seeds on these very rows, and says nothing of other samples of rows.

    Of a metric of queries, such as ``ndcg@10``, the differences are those of the queries, each held out once in a
    repeat, averaged over repeats and weighted as the metric weights them. Queries are taken for independent, so that q
    is 0: the interval says what other queries of the same kind would give with these models, and leaves out that other
    training rows would give other models.

    Intervals are of each group by itself. Of twenty useless columns one "helps" or "hurts" at 95 %, so with many
    groups raise `confidence` (Bonferroni: ``1 - 0.05 / groups``) and try those that pass once more, with another seed.
    """
    chosen = with_callables(as_candidate(params), objective, custom_metric)
    check_place(dtrain, "evaluate_features")
    groups = _groups(features, dtrain)
    chosen = _keeping_queries(chosen)
    candidates = _candidates(chosen, dtrain, groups, baseline)
    _check_numbers(n_repeats, confidence, folds is None)
    if folds is None:
        check_rounds(num_boost_round, early_stopping_rounds, evals)
        if not evals:
            raise ParameterError("folds=None scores on evals; pass evals=[(data, 'valid')], or a number of folds")
    else:
        if evals:
            raise ParameterError("evals has no effect with folds, whose held-out rows are scored; pass folds=None too")
        check_models(candidates, dtrain, num_boost_round)
    prepared: list[PreparedModel] = []
    repeats = _folds_of_repeats(dtrain, folds, chosen.random_state, n_repeats, stratified)
    for repeat, made in enumerate(repeats):
        seeded = [replace(each, random_state=chosen.random_state + repeat) for each in candidates]
        sets = rows_of_models(dtrain, made, evals)
        prepared += prepare_many(seeded, sets, num_boost_round, early_stopping_rounds)
    if num_boost_round < 1:
        raise ParameterError("num_boost_round=0 trains nothing to compare; give at least 1")
    made = repeats[0]
    n_folds = 1 if made is None else len(made)
    if n_repeats * n_folds < 2:
        raise ParameterError("a single pair of models has no spread to judge by; give two folds or n_repeats=2")
    metric = prepared[0].fit.spec.metrics[-1][-1]
    models = run_together(prepared, models_at_once)
    scored = HELD_OUT if made is not None else evals[-1][1]
    scores = np.array([_score(model, scored, early_stopping_rounds is not None) for model in models])
    by_candidate = scores.reshape(n_repeats, len(candidates), n_folds).swapaxes(0, 1).reshape(len(candidates), -1)
    by_query = isinstance(metric, KeptValues)
    if by_query:
        stops = early_stopping_rounds is not None
        kept = [_kept(model, own, stops) for model, own in zip(models, prepared, strict=True)]
        of_queries = [
            _mean_of_repeats([
                kept[(repeat * len(candidates) + number) * n_folds :][:n_folds] for repeat in range(n_repeats)
            ]) for number in range(len(candidates))
        ]  # fmt: skip
    ratio = 0.0 if made is None else float(np.mean([held_out.n_rows / train.n_rows for train, held_out in made]))
    name = list(models[0].evals_result[scored])[-1]
    trials = [
        _trial(
            tuple(map(dtrain.schema.columns.label, group)), name, metric.maximize,
            *((own, by_candidate[0]) if baseline == "rest" else (by_candidate[0], own)), confidence, ratio,
        )
        for group, own in zip(groups, by_candidate[1:], strict=True)
    ]  # fmt: skip
    if not by_query:
        return trials
    sign = 1.0 if (baseline == "rest") == metric.maximize else -1.0
    return [
        _judged(trial, sign * (own.values - of_queries[0].values), confidence, 0.0, own.weights)
        for trial, own in zip(trials, of_queries[1:], strict=True)
    ]


def _keeping_queries(params: TrainParams) -> TrainParams:
    """Have the last metric keep what each query was worth, if it is of queries."""
    metrics = evaluated_metrics(params, objective_of(params))
    if not metrics or not isinstance(metrics[-1], RankingMetric):
        return params
    return replace(params, eval_metric=(*params.eval_metric[:-1], KeptValues(metrics[-1])))


def _kept(model: TrainedModel, prepared: PreparedModel, stops_early: bool) -> QueryState:
    """Return what the queries that a model is scored by were worth in the round that counts."""
    metric = prepared.fit.spec.metrics[-1][-1]
    assert isinstance(metric, KeptValues)
    best = model.booster.best_iteration if stops_early else None
    return metric.rounds[-1 if best is None else best]


def _mean_of_repeats(repeats: Sequence[Sequence[QueryState]]) -> QueryState:
    """Return what queries were worth on average over repeats, in each of which one of the folds holds a query out."""
    every = [reduce(add, folds) for folds in repeats]
    return replace(every[0], values=np.mean([each.values for each in every], axis=0))


def paired_interval(differences: Float64, confidence: float, test_to_train: float, weights: Float64 | None = None
                    ) -> tuple[float, float, float]:  # fmt: skip
    """Ends of the confidence interval of the mean of paired differences, and the p-value of none.

    Parameters
    ----------
    differences : float64 array, shape (at least 2,)
    confidence : float
    test_to_train : float
        Held-out rows by training rows, for folds; 0 for independent differences.
    weights : float64 array, shape (differences,), optional
        What each counts in the mean; alike without it.
    """
    from scipy.special import stdtr, stdtrit

    n, mean = len(differences), float(np.average(differences, weights=weights))
    if weights is None:
        error = float(np.std(differences, ddof=1)) * np.sqrt(1 / n + test_to_train)
    else:
        shares = weights / weights.sum()
        error = float(np.sqrt(np.sum((shares * (differences - mean)) ** 2) * n / (n - 1)))
    if error == 0:
        return mean, mean, float(mean == 0)
    reach = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
    return mean - reach, mean + reach, float(2 * stdtr(n - 1, -abs(mean) / error))


def _folds_of_repeats(dtrain: QuantizedDataset, folds: Any, random_state: int, n_repeats: int, stratified: bool
                      ) -> list[Sequence[Fold] | None]:  # fmt: skip
    if folds is None:
        return [None] * n_repeats
    if isinstance(folds, int | np.integer):
        return [make_folds(dtrain, folds, random_state, r, stratified=stratified) for r in range(n_repeats)]
    return [make_folds(dtrain, folds, stratified=stratified)] * n_repeats


def _trial(features: tuple[str, ...], metric: str, maximize: bool, with_scores: Float64, without_scores: Float64,
           confidence: float, ratio: float) -> FeatureTrial:  # fmt: skip
    differences = with_scores - without_scores if maximize else without_scores - with_scores
    made = FeatureTrial(features, metric, with_scores, without_scores, differences, 0.0, (0.0, 0.0), 1.0, "undecided")
    return _judged(made, differences, confidence, ratio)


def _judged(trial: FeatureTrial, differences: Float64, confidence: float, ratio: float,
            weights: Float64 | None = None) -> FeatureTrial:  # fmt: skip
    """Return the trial as these differences judge it."""
    low, high, p_value = paired_interval(differences, confidence, ratio, weights)
    verdict: Verdict = "helps" if low > 0 else "hurts" if high < 0 else "undecided"
    mean = float(np.average(differences, weights=weights))
    return replace(
        trial, differences=differences, mean=mean, interval=(low, high), p_value=p_value, verdict=verdict
    )


def _score(model: TrainedModel, scored: str, stops_early: bool) -> float:
    values = list(model.evals_result[scored].values())[-1]
    best = model.booster.best_iteration if stops_early else None
    score = values[-1 if best is None else best]
    if np.isnan(score):
        raise DataError(
            f"the metric of {scored!r} is NaN in fold {model.fold}; use a metric that is defined on its rows (auc "
            "needs both classes), or stratified=True"
        )
    return score


def _groups(features: object, dtrain: QuantizedDataset) -> list[tuple[int, ...]]:
    """Numbers of each group's columns."""
    if isinstance(features, str | Mapping) or not isinstance(features, Sequence) or not features:
        raise ParameterError(f"features={features!r}: give a list of column names or indices, or of groups of them")
    given = [list(group) if isinstance(group, list | tuple | set | frozenset) else [group] for group in features]
    for place, group in enumerate(given):
        if not group:
            raise ParameterError(f"features[{place}] is an empty group; name at least one column")
    return [some_columns(group, dtrain.schema, "features") for group in given]


def _candidates(params: TrainParams, dtrain: QuantizedDataset, groups: Sequence[tuple[int, ...]], baseline: str
                ) -> list[TrainParams]:  # fmt: skip
    """Parameters of the baseline and of each group's models."""
    if baseline not in ("rest", "all"):
        raise ParameterError(f"baseline={baseline!r} must be 'rest' or 'all'")
    columns = dtrain.schema.columns
    ignored = set(some_columns(params.ignored_features, dtrain.schema, "ignored_features"))
    tried = {feature for group in groups for feature in group}
    if ignored & tried:
        label = columns.label(min(ignored & tried))
        raise ParameterError(f"features and ignored_features both name {label!r}; leave it out of one of them")
    if baseline == "rest" and len(ignored | tried) == columns.n_features:
        raise ParameterError("features names all columns, so that no rest is left to add them to; use baseline='all'")
    base = ignored | tried if baseline == "rest" else ignored
    sets = [base, *(base - set(group) if baseline == "rest" else base | set(group) for group in groups)]
    return [replace(params, ignored_features=tuple(sorted(each))) for each in sets]


def _check_numbers(n_repeats: object, confidence: Any, needs_repeats: bool) -> None:
    hint = ", as folds=None leaves nothing else to repeat" if needs_repeats else ""
    check_count("n_repeats", n_repeats, least=1 + needs_repeats, hint=hint)
    number = isinstance(confidence, float | np.floating)
    if not number or not 0 < confidence < 1:
        raise ParameterError(f"confidence={confidence!r} must lie between 0 and 1, such as 0.95")
