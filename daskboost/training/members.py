"""Models that each stop by rows which they do not train on, and their average: a fit that needs no evaluation set."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from daskboost.data.chunks.row_folds import FoldRule, LastRows
from daskboost.dtypes import Float64
from daskboost.errors import DataError, ParameterError
from daskboost.fit.spec import EarlyStopping
from daskboost.local.in_process import LocalShards
from daskboost.model.average import average
from daskboost.model.booster import Booster
from daskboost.params import TrainParams
from daskboost.training.callbacks import Callback
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.folds import Folds, dealt_rows
from daskboost.training.train import objective_of, prepare_fit, train
from daskboost.training.train_many import PreparedModel, TrainedModel, run_together

logger = logging.getLogger(__name__)

LEAST_SHARE = 1e-5
"""Members improve by this share of their first round's loss in as many rounds as they are given, or end: where rows are
told apart without an error, losses go on falling by less, for thousands of rounds (`docs/defaults.md`)."""
AT_ONCE = 2**20
"""Up to so many rows times outputs members grow side by side, one per thread, for which each takes 20 MB."""
MUCH_WORSE = 0.05
"""Share of the loss by which the first member of much worse parameters is above that of the best ones."""
GAIN = 0.01
"""Share of the loss by which a further candidate has to be below the best one, on the mean of the folds so far and of
all: its models may be read by fewer libraries."""
MEMBERS = "members"
"""The model's attribute that says what each member's held-out rows told: JSON, rounds and the last metric's value."""
HELD_OUT = "held_out"
"""What evaluation sets of members are called, with the number of the fold."""
CANDIDATES = "candidates"
"""The model's attribute of the parameters that were tried: JSON, what differs among them, and each one's members."""


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

    def folds(self, data: QuantizedDataset, seed: int) -> Folds:
        """Return what each member trains on and what is held out from it.

        Raises
        ------
        DataError
            Fewer queries than are held out in turn; no rows of positive weight on one of the sides, whichever rows are
            held out.
        """
        n_folds, numbers = n_folds_of(self.fraction), range(self.n_members)
        rule: FoldRule
        if self.in_time:
            rule, numbers = LastRows(data.n_numbered_rows - data.n_numbered_rows // n_folds), range(1, 2)
        else:
            try:
                rule = dealt_rows(data, n_folds, seed, stratified=self.stratified)
            except ParameterError as error:
                raise DataError(
                    f"too few rows, or queries, to hold some of them out to stop by ({error}): pass "
                    "early_stopping=False, or an eval_set to stop by"
                ) from error
        usable = Folds(data, rule, numbers).counting()
        if not usable:
            raise DataError(
                "no rows can be held out to stop by: all rows of positive weight belong together; pass "
                "early_stopping=False"
            )
        return usable


@dataclass(frozen=True)
class _Members:
    """Members of the same parameters, and where each of them ends."""

    trained: Sequence[TrainedModel]
    together: bool
    """Whether all end after the same round."""
    maximize: bool
    """Whether larger scores are better."""

    @cached_property
    def ends(self) -> list[int | None]:
        """The last iteration of each that is kept; None where there are no rounds."""
        ends = [model.booster.best_iteration for model in self.trained]
        if self.together and None not in ends:
            return [_common_end(self.trained, maximize=self.maximize)] * len(ends)
        return ends

    @cached_property
    def boosters(self) -> list[Booster]:
        """The models, without the trees behind their ends."""
        kept = zip(self.trained, self.ends, strict=True)
        return [model.booster if end is None else model.booster[: end + 1] for model, end in kept]

    @property
    def scores(self) -> list[float | None]:
        """The last metric of each one's held-out rows where it ends."""
        kept = zip(self.trained, self.ends, strict=True)
        return [None if end is None else _scores(model)[end] for model, end in kept]

    @property
    def losses(self) -> list[float]:
        """What is to be low of each: its score, or its negative; infinite where it is not known."""
        known = [math.nan if score is None else score for score in self.scores]
        losses: list[float] = _as_losses(known, maximize=self.maximize).tolist()
        return losses

    @property
    def loss(self) -> float:
        """The mean of the losses."""
        return float(np.mean(self.losses))

    def first(self, n: int = 1) -> _Members:
        """Return the first so many of them."""
        return replace(self, trained=self.trained[:n])

    def gains_on(self, other: _Members, share: float) -> bool:
        """Return whether the loss of these is lower by a share than that of as many others."""
        return self.loss < _lower(other.first(len(self.trained)).loss, share)

    def limits(self, other: _Members) -> list[float]:
        """Return the scores that one more of others has to be better than after each round for all others to gain by
        `GAIN` on as many of these, whose last one has come as far."""
        n = len(other.trained)
        curve = np.minimum.accumulate(_as_losses(_scores(self.trained[n]), maximize=self.maximize))
        with np.errstate(invalid="ignore"):  # infinite losses, of metrics that are not known yet
            limits = (n + 1) * _lower((sum(self.losses[:n]) + curve) / (n + 1), GAIN) - sum(other.losses)
        scores: list[float] = (np.nan_to_num(limits, nan=math.inf) * (-1 if self.maximize else 1)).tolist()
        return scores

    @property
    def found(self) -> list[dict[str, Any]]:
        """Rounds and score of each."""
        kept = zip(self.boosters, self.scores, strict=True)
        return [{"rounds": booster.n_iterations, "score": score} for booster, score in kept]


@dataclass(frozen=True)
class Candidate:
    """What members may be trained by.

    Parameters
    ----------
    params : TrainParams
    dtrain : QuantizedDataset
        The same rows for all candidates, with the features of this one.
    told : mapping
        What tells it from others, for the log and the model: JSON values by name.
    """

    params: TrainParams
    dtrain: QuantizedDataset
    told: Mapping[str, Any] = field(default_factory=dict)


Further = Callable[[Candidate, Booster], Candidate | None]
"""Makes one more candidate, or None, of the best one and its first member."""


@dataclass(frozen=True)
class _Entrant:
    """A candidate in the race, and its members so far."""

    candidate: Candidate
    number: int
    folds: Folds
    """The same of all candidates of a data set."""
    members: _Members

    @property
    def is_whole(self) -> bool:
        """Whether it has a member for each fold."""
        return len(self.members.trained) == len(self.folds)


@dataclass(frozen=True)
class _Race:
    """What the fits of all members have in common."""

    base_score: tuple[float, ...] | None
    n_rounds: int
    holding_out: HoldingOut
    callbacks: Callable[[int], Sequence[Callback]]

    def entrants(self, candidates: Sequence[Candidate], first: int = 0) -> list[_Entrant]:
        """Return candidates of one data set, numbered from `first` on, that have no members yet."""
        folds = self.holding_out.folds(candidates[0].dtrain, candidates[0].params.random_state)
        none = _Members((), self.holding_out.together, maximize=False)
        return [_Entrant(candidate, number, folds, none) for number, candidate in enumerate(candidates, first)]

    def ran(self, entrants: Sequence[_Entrant], n_folds: Sequence[int], limits: Sequence[float] = ()
            ) -> list[_Entrant]:  # fmt: skip
        """Return entrants of one data set, each with members for its first so many folds.

        `limits` : see `EarlyStopping`.
        """
        missing = [range(len(own.members.trained), n) for own, n in zip(entrants, n_folds, strict=True)]
        wanted = [(own, i) for own, folds in zip(entrants, missing, strict=True) for i in folds]
        if not wanted:
            return list(entrants)
        trained, maximize = self._trained(wanted, limits)
        found = []
        for entrant, folds in zip(entrants, missing, strict=True):
            own = [*entrant.members.trained, *(trained[entrant.number, i] for i in folds)]
            found.append(replace(entrant, members=replace(entrant.members, trained=own, maximize=maximize)))
        return found

    def _trained(self, wanted: Sequence[tuple[_Entrant, int]], limits: Sequence[float]
                 ) -> tuple[dict[tuple[int, int], TrainedModel], bool]:  # fmt: skip
        """Train members of entrants of one data set, each on a fold: side by side where they are small and in this
        process, else fold by fold, so that the bins of one fold are there at a time.

        Returns
        -------
        dict
            The models, by the number of the entrant and the fold.
        bool
            Whether larger scores are better.
        """
        numbers = sorted({i for _, i in wanted})
        folds, together = wanted[0][0].folds, _are_small(wanted[0][0].candidate)
        found: dict[tuple[int, int], TrainedModel] = {}
        maximize = False
        for each in [numbers] if together else [[i] for i in numbers]:
            own = [(entrant, i) for entrant, i in wanted if i in each]
            prepared = [self._prepared(entrant, i, limits) for entrant, i in own]
            maximize = prepared[0].fit.spec.metrics[-1][-1].maximize
            for (entrant, i), model in zip(own, _run(prepared, together=together), strict=True):
                found[entrant.number, i] = model
            del prepared
            for i in each:
                folds.free(i)
        return found, maximize

    def begun(self, candidates: Sequence[Candidate]) -> list[_Entrant]:
        """Train the members of a single candidate, or of several the first one of each."""
        entrants = self.entrants(candidates)
        n_folds = 1 if len(entrants) > 1 else len(entrants[0].folds)
        return self.ran(entrants, [n_folds] * len(entrants))

    def rest(self, raced: Sequence[_Entrant], least: float) -> list[_Entrant]:
        """Train the other members of entrants, except those whose first one is much worse than the least loss."""
        most = least + MUCH_WORSE * abs(least)
        n_folds = [len(own.folds) if own.members.first().loss <= most else len(own.members.trained) for own in raced]
        return self.ran(raced, n_folds)

    def challenged(self, entrant: _Entrant, best: _Entrant) -> _Entrant:
        """Train one more member of an entrant, which stops where all are not better than the best one's by `GAIN`."""
        return self.ran([entrant], [len(entrant.members.trained) + 1], best.members.limits(entrant.members))[0]

    def _prepared(self, entrant: _Entrant, i: int, limits: Sequence[float]) -> PreparedModel:
        history: dict[str, dict[str, list[float]]] = {}
        (rows, held_out), number = entrant.folds[i], entrant.number
        evals = [(held_out, _shown(number, i))]
        fit = prepare_fit(
            entrant.candidate.params, rows, self.n_rounds, evals, None, None, self.callbacks(i), history
        )
        stopping = EarlyStopping(self.holding_out.patience, LEAST_SHARE, tuple(limits))
        begun = replace(fit, spec=replace(fit.spec, base_score=self.base_score, early_stopping=stopping))
        return PreparedModel(begun, history, number, i)


def train_members(
    candidates: Sequence[Candidate], n_rounds: int, holding_out: HoldingOut,
    callbacks: Callable[[int], Sequence[Callback]],
    further: Further | None = None,
) -> tuple[Booster, dict[str, dict[str, list[float]]]]:  # fmt: skip
    """Train members, and make one model of them.

    Where there are several, all start from the base score of all rows. The model does not depend on where rows lie.

    Parameters
    ----------
    candidates : sequence of Candidate
        Of one data set. The one is chosen whose members' held-out rows have the best mean metric, of equal ones the
        first. Where there are several, each trains its first member, and those whose first is much worse than another's
        (`MUCH_WORSE`) train no others.
    n_rounds : int
        Most rounds of a member.
    callbacks : callable
        ``f(i)`` makes those of member i.
    further : callable, optional
        ``f(candidate, model)`` makes another candidate, or None, of the best one and its first member. It is chosen if
        its members are better by `GAIN`. Its first two are trained one after the other, each only as long as the mean
        of those so far is better by as much after the same rounds, then the others side by side.

    Returns
    -------
    Booster
        With an attribute "members", and "candidates" where there are several.
    dict
        "held_out_0", "held_out_1", ... -> metric -> a value per round, of each member's held-out rows.
    """
    first = candidates[0]
    is_alone = holding_out.n_members == 1
    base_score = None if is_alone else train(first.params, first.dtrain, 0).base_score
    race = _Race(base_score, n_rounds, holding_out, callbacks)
    raced = race.begun(candidates)
    best = min(raced, key=lambda entrant: entrant.members.first().loss)
    extra = None if further is None else further(best.candidate, best.members.boosters[0])
    if extra is None:
        raced = race.rest(raced, best.members.first().loss)
        best = _best(raced)
    else:
        raced, best = _with_further(race, raced, best, extra)
    members, attributes = best.members, {MEMBERS: json.dumps(best.members.found)}
    if len(raced) > 1:
        told = [{**entrant.candidate.told, MEMBERS: entrant.members.found} for entrant in raced]
        logger.info("held-out rows are best in candidate %d of %s", best.number, told)
        attributes[CANDIDATES] = json.dumps(told)
    n_folds = n_folds_of(holding_out.fraction)
    logger.info("%d of %d folds of the rows were held out: %s", len(members.trained), n_folds, members.found)
    if holding_out.refit == "replay":
        n_best = max(own.n_iterations for own in members.boosters)
        own = callbacks(0)  # which may have a schedule of learning rates
        booster = train(best.candidate.params, best.candidate.dtrain, n_best, callbacks=own)
    else:
        booster = average(members.boosters)
    evals_result = {
        _shown(0, model.fold) if name == _shown(model.candidate, model.fold) else name: metrics
        for model in members.trained for name, metrics in model.evals_result.items()
    }
    return replace(booster, attributes={**booster.attributes, **attributes}), evals_result


def _with_further(
    race: _Race, raced: Sequence[_Entrant], best: _Entrant, extra: Candidate
) -> tuple[list[_Entrant], _Entrant]:
    """Return all entrants with one more, and the best one; `best` is so by its first member."""
    (entrant,) = race.entrants([extra], len(raced))
    entrant = race.challenged(entrant, best)
    gains = entrant.members.gains_on(best.members, GAIN)
    gains_much = entrant.members.gains_on(best.members, MUCH_WORSE)
    raced = race.rest(raced, (entrant if gains else best).members.first().loss)
    whole = [own for own in raced if own.is_whole]
    if whole:
        best = _best(raced)
        if gains and not gains_much and not entrant.is_whole:
            entrant = race.challenged(entrant, best)
            gains = entrant.members.gains_on(best.members, GAIN)
    if gains:
        (entrant,) = race.rest([entrant], entrant.members.first().loss)
    is_best = gains and (not whole or entrant.members.gains_on(best.members, GAIN))
    return [*raced, entrant], entrant if is_best else best


def _as_losses(scores: Sequence[float], *, maximize: bool) -> Float64:
    """Return what is to be low: scores, or their negatives; infinite where they are NaN."""
    return np.nan_to_num(np.asarray(scores, np.float64) * (-1 if maximize else 1), nan=math.inf, posinf=math.inf,
                         neginf=-math.inf)  # fmt: skip


L = TypeVar("L", float, Float64)


def _lower(loss: L, share: float) -> L:
    """Return losses that are lower by a share."""
    return loss - share * abs(loss)


def _best(raced: Sequence[_Entrant]) -> _Entrant:
    """Return the entrant of the best mean metric, of those that have all members."""
    return min((entrant for entrant in raced if entrant.is_whole), key=lambda entrant: entrant.members.loss)


def _are_small(candidate: Candidate) -> bool:
    """Return whether a candidate's members grow side by side."""
    size = candidate.dtrain.n_rows * objective_of(candidate.params).n_outputs
    return isinstance(candidate.dtrain.shards, LocalShards) and size <= AT_ONCE


def _run(prepared: Sequence[PreparedModel], *, together: bool) -> list[TrainedModel]:
    """Train members, side by side or one after the other."""
    if together:
        return run_together(prepared)
    return [
        TrainedModel(model.fit.run(model.fit.fit), model.evals_result, model.candidate, model.fold)
        for model in prepared
    ]


def _scores(model: TrainedModel) -> list[float]:
    """Return the last metric of a member's held-out rows after each of its rounds."""
    *_, scores = _held_out(model).values()
    return scores


def _held_out(model: TrainedModel) -> dict[str, list[float]]:
    """Return the metrics of a member's held-out rows; certified fits report on more than these."""
    return model.evals_result[_shown(model.candidate, model.fold)]


def _shown(number: int, fold: int | None) -> str:
    """Return what the held-out rows of a fold are called while a candidate's member trains."""
    return f"{HELD_OUT}_{fold}" if number == 0 else f"candidate_{number}_{HELD_OUT}_{fold}"


def _common_end(trained: Sequence[TrainedModel], *, maximize: bool) -> int:
    """Return the round after which the mean of the members' scores is best, of those that all members have."""
    scores = list(map(_scores, trained))
    n_common = min(map(len, scores))
    means = np.mean([own[:n_common] for own in scores], axis=0) * (1 if maximize else -1)
    return int(np.argmax(np.nan_to_num(means, nan=-np.inf)))
