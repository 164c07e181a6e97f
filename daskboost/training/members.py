"""Models that each stop by rows which they do not train on, and their average: a fit that needs no evaluation set."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.data.chunks.row_folds import LastRows
from daskboost.errors import DataError
from daskboost.fit.spec import EarlyStopping
from daskboost.local.in_process import LocalShards
from daskboost.model.average import average
from daskboost.model.booster import Booster
from daskboost.params import TrainParams
from daskboost.training.callbacks import Callback
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import Fold, dealt_folds
from daskboost.training.train import prepare_fit, train
from daskboost.training.train_many import PreparedModel, TrainedModel, run_together

logger = logging.getLogger(__name__)

LEAST_SHARE = 1e-5
"""Members improve by this share of their first round's loss in as many rounds as they are given, or end: where rows are
told apart without an error, losses go on falling by less, for thousands of rounds (`docs/defaults.md`)."""
AT_ONCE = 2**20
"""Up to so many rows times outputs members grow side by side, one per thread, for which each takes 20 MB."""
ATTRIBUTE = "members"
"""The model's attribute that says what each member's held-out rows told: JSON, rounds and the last metric's value."""


def n_folds_of(fraction: float) -> int:
    """Return into how many folds rows are divided, each of which is about that share of them."""
    return max(round(1 / fraction), 2)


@dataclass(frozen=True)
class HoldingOut:
    """Which rows are held out, from how many models, and what becomes of these.

    Parameters
    ----------
    fraction : float
        Share of the rows that a member does not train on, rounded to one of 1/2, 1/3, 1/4, ...
    n_members : int
        Models, each of which holds other rows out; at most ``1 / fraction``.
    patience : int
        Rounds without improvement of the last metric after which a member stops.
    refit : {"average", "replay", "none"}
        Average the members; or train on all rows for as many rounds as the one member found best; or keep that member.
    in_time : bool
        Hold the last rows out, rather than rows drawn by hashes.
    stratified : bool
        Deal out the rows of each label by themselves.
    together : bool, default False
        Members keep as many rounds each: those after which the mean of their metrics is best. Metrics of queries
        differ so much from round to round that the best one of a single member says little.
    """

    fraction: float
    n_members: int
    patience: int
    refit: str
    in_time: bool
    stratified: bool
    together: bool = False

    def folds(self, data: QuantizedDataset, seed: int) -> list[Fold]:
        """Return what each member trains on and what is held out from it.

        Raises
        ------
        DataError
            No rows of positive weight on one of the sides, whichever rows are held out.
        """
        n_folds = n_folds_of(self.fraction)
        if self.in_time:
            made = data.divided(LastRows(data.n_numbered_rows - data.n_numbered_rows // n_folds), [1])
        else:
            made = dealt_folds(data, n_folds, range(self.n_members), seed, stratified=self.stratified)
        usable = [pair for pair in made if all(half.info.stats.positive_weight_rows for half in pair)]
        if not usable:
            raise DataError(
                "no rows can be held out to stop by: all rows of positive weight belong together; pass "
                "early_stopping=False"
            )
        return usable


def train_members(
    params: TrainParams, dtrain: QuantizedDataset, n_rounds: int, holding_out: HoldingOut,
    callbacks: Callable[[int], Sequence[Callback]],
) -> tuple[Booster, dict[str, dict[str, list[float]]]]:  # fmt: skip
    """Train members, and make one model of them.

    All start from the base score of all rows. The model does not depend on where rows lie.

    Parameters
    ----------
    n_rounds : int
        Most rounds of a member.
    callbacks : callable
        ``f(i)`` makes those of member i.

    Returns
    -------
    Booster
        With an attribute "members".
    dict
        "held_out_0", "held_out_1", ... -> metric -> a value per round, of each member's held-out rows.
    """
    folds = holding_out.folds(dtrain, params.random_state)
    start = train(params, dtrain, 0)
    prepared = []
    for i, (rows, held_out) in enumerate(folds):
        history: dict[str, dict[str, list[float]]] = {}
        fit = prepare_fit(
            params, rows, n_rounds, [(held_out, f"held_out_{i}")], None, None, callbacks(i), history
        )
        stopping = EarlyStopping(holding_out.patience, LEAST_SHARE)
        begun = replace(fit, spec=replace(fit.spec, base_score=start.base_score, early_stopping=stopping))
        prepared.append(PreparedModel(begun, history, 0, i))
    trained = _run(prepared, dtrain)
    ends = [model.booster.best_iteration for model in trained]
    if holding_out.together and None not in ends:  # there are rounds
        ends = [_common_end(trained, maximize=prepared[0].fit.spec.metrics[-1][-1].maximize)] * len(ends)
    best = [
        model.booster if end is None else model.booster[: end + 1] for model, end in zip(trained, ends, strict=True)
    ]
    found = [{"rounds": booster.n_iterations, "score": None if end is None else _scores(model)[end]}
             for model, booster, end in zip(trained, best, ends, strict=True)]  # fmt: skip
    logger.info("%d of %d folds of the rows were held out: %s", len(found), n_folds_of(holding_out.fraction), found)
    if holding_out.refit == "replay":
        n_best = max(own.n_iterations for own in best)
        booster = train(params, dtrain, n_best, callbacks=callbacks(0))  # which may have a schedule of learning rates
    else:
        booster = average(best)
    attributes = {**booster.attributes, ATTRIBUTE: json.dumps(found)}
    evals_result = {name: values for model in trained for name, values in model.evals_result.items()}
    return replace(booster, attributes=attributes), evals_result


def _run(prepared: Sequence[PreparedModel], dtrain: QuantizedDataset) -> list[TrainedModel]:
    """Train the members: side by side where they are small and in this process."""
    size = dtrain.n_rows * prepared[0].fit.spec.objective.n_outputs
    if isinstance(dtrain.shards, LocalShards) and size <= AT_ONCE:
        return run_together(prepared)
    return [
        TrainedModel(model.fit.run(model.fit.fit), model.evals_result, model.candidate, model.fold)
        for model in prepared
    ]


def _scores(model: TrainedModel) -> list[float]:
    """Return the last metric of a member's held-out rows after each of its rounds."""
    (metrics,) = model.evals_result.values()
    *_, scores = metrics.values()
    return scores


def _common_end(trained: Sequence[TrainedModel], *, maximize: bool) -> int:
    """Return the round after which the mean of the members' scores is best, of those that all members have."""
    scores = list(map(_scores, trained))
    n_common = min(map(len, scores))
    means = np.mean([own[:n_common] for own in scores], axis=0) * (1 if maximize else -1)
    return int(np.argmax(np.nan_to_num(means, nan=-np.inf)))
