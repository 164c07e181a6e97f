"""Objectives by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daskboost.errors import ModelFormatError, ParameterError
from daskboost.objectives.classification import Logistic, LogisticRaw, LogisticRegression, SoftMax, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.own_objective import CustomObjective, CustomQueryObjective, takes_queries
from daskboost.objectives.pair_logit import PairLogit, PairLogitOfPairs, pair_logit
from daskboost.objectives.query_lists import QueryRmse, QuerySoftMax
from daskboost.objectives.ranking import RankMap, RankNdcg, RankPairwise
from daskboost.objectives.regression import (
    AbsoluteError,
    Gamma,
    Poisson,
    PseudoHuberError,
    QuantileError,
    SquaredError,
    Tweedie,
)
from daskboost.objectives.yetirank import YetiRank
from daskboost.params import shown
from daskboost.registry import Registry

FOREIGN_NAMES = {
    **dict.fromkeys(("reg:linear", "regression", "squared_error", "RMSE", "l2", "mse"), "reg:squarederror"),
    **dict.fromkeys(("regression_l1", "absolute_error", "MAE", "l1", "mae"), "reg:absoluteerror"),
    **dict.fromkeys(("quantile", "Quantile"), "reg:quantileerror"),
    **dict.fromkeys(("huber", "Huber"), "reg:pseudohubererror"),
    **dict.fromkeys(("poisson", "Poisson"), "count:poisson"),
    **dict.fromkeys(("binary", "log_loss", "Logloss", "cross_entropy"), "binary:logistic"),
    **dict.fromkeys(("multiclass", "softmax", "MultiClass"), "multi:softprob"),
    "lambdarank": "rank:ndcg", "PairLogit": "pairlogit", "QuerySoftMax": "querysoftmax", "QueryRMSE": "queryrmse",
    "YetiRank": "yetirank",
}  # fmt: skip
"""Names of other libraries and of XGBoost's past: by spelling, "reg:linear" would be taken for "reg:logistic"."""

_REGISTRY: Registry[Objective] = Registry("objective", "name", foreign=FOREIGN_NAMES)


def register_objective(kind: type[Objective]) -> type[Objective]:
    """Make a subclass of `Objective` known by its `name`; usable as a decorator.

    On a cluster, register it where the workers import it too.

    Raises
    ------
    ParameterError
        The class has no name, or another class has it.
    """
    return _REGISTRY.add(kind)


def objective_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return _REGISTRY.names()


def make_objective(objective: object, params: Mapping[str, Any] | None = None) -> Objective:
    """The objective a user means.

    Parameters
    ----------
    objective : str, callable or Objective
        A registered name; a function ``f(label, margin) -> (gradient, hessian)``, or ``f(label, margin, group)``, which
        gets whole queries; or a finished value, returned as is.
    params : mapping, optional
        Training parameters; each loss reads its own and ignores the rest.

    Raises
    ------
    ParameterError
        An unknown name (with the closest valid one), or a parameter of the loss that is malformed or out of range.
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str):
        return _REGISTRY.get(objective).from_params(params or {})
    kind = CustomQueryObjective if takes_queries(objective) else CustomObjective
    return kind.from_params({**(params or {}), "objective": objective})


def objective_of_pairs(objective: object, pairs: object, pair_weight: object) -> PairLogitOfPairs:
    """Return the objective of given pairs, for the one that was asked for.

    Raises
    ------
    ParameterError
        Another one than ``pairlogit``, or weights without pairs.
    DataError
        See `pair_logit`.
    """
    if pairs is None:
        raise ParameterError("pair_weight has no effect without pairs; give pairs=..., an array of shape (pairs, 2)")
    made = make_objective(objective) if isinstance(objective, str) else objective
    if not isinstance(made, PairLogit):
        raise ParameterError(
            f"pairs has no effect with objective={shown(objective)}, which has pairs by labels or none; use "
            "objective='pairlogit'"
        )
    return pair_logit(pairs, pair_weight)


def objective_from_config(config: object) -> Objective:
    """The objective of a model file, from `learner.objective` of XGBoost's JSON; ModelFormatError where it is no such
    object, has a malformed parameter, or is an objective that this version does not know."""
    name = config.get("name") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(name, str):
        raise ModelFormatError("learner.objective of the model is not an object with a 'name'; the file is damaged")
    try:
        kind = _REGISTRY.get(name)
    except ParameterError as error:
        raise ModelFormatError(f"the model's {error}") from error
    try:
        return kind.from_config(config)
    except ParameterError as error:
        raise ModelFormatError(f"learner.objective of the model: {error}") from error


for _kind in (SquaredError, AbsoluteError, PseudoHuberError, QuantileError, Poisson, Gamma, Tweedie, Logistic,
              LogisticRegression, LogisticRaw, SoftProb, SoftMax, RankNdcg, RankPairwise, RankMap,
              PairLogit, QuerySoftMax, QueryRmse, YetiRank):  # fmt: skip
    register_objective(_kind)
