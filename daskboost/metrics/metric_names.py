"""Metrics by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from daskboost.metrics.classification import AveragePrecision, Error, LogLoss, MultiError, MultiLogLoss, RocAuc
from daskboost.metrics.elementwise import (
    GammaDeviance,
    GammaNLogLik,
    Mae,
    Mape,
    PoissonDeviance,
    PoissonNLogLik,
    PseudoHuber,
    Quantile,
    Rmse,
    Rmsle,
    TweedieDeviance,
    TweedieNLogLik,
)
from daskboost.metrics.metric import Metric
from daskboost.metrics.own_metric import CustomMetric
from daskboost.metrics.ranking import (
    ExpectedReciprocalRank,
    MeanAveragePrecision,
    Ndcg,
    PFound,
    QueryAuc,
    QueryPrecision,
    QueryRecall,
    ReciprocalRank,
)
from daskboost.registry import Registry

_REGISTRY: Registry[Metric[Any]] = Registry("metric", "base_name", reserved="@")


def register_metric(kind: type[Metric[Any]]) -> type[Metric[Any]]:
    """Make a subclass of `Metric` known by its `base_name`; usable as a decorator.

    On a cluster, register it where the workers import it too.

    Raises
    ------
    ParameterError
        The class has no name, the name holds an ``@``, or another class has it.
    """
    return _REGISTRY.add(kind)


def metric_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return _REGISTRY.names()


def make_metric(metric: object, params: Mapping[str, Any] | None = None) -> Metric[Any]:
    """The metric a user means.

    Parameters
    ----------
    metric : str, callable or Metric
        A registered name, with an argument behind ``@`` where it takes one (``error@0.7``, ``tweedie-nloglik@1.3``,
        ``quantile@0.1,0.9``, ``ndcg@10``, ``ndcg@10-``); a function ``f(y_true, y_pred)``; or a finished value,
        returned as is.
    params : mapping, optional
        The objective's `parameters()`: defaults of arguments not given.

    Raises
    ------
    ParameterError
        An unknown name (with the closest valid one), or an argument that is malformed or not taken.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        name, at, argument = re.sub(r"^([\w-]*\w)-$", r"\1@-", metric).partition("@")
        return _REGISTRY.get(name).from_argument(argument if at else None, params or {})
    return CustomMetric.from_argument(None, {"function": metric})


for _kind in (Rmse, Rmsle, Mae, Mape, PseudoHuber, Quantile, PoissonNLogLik, GammaNLogLik, TweedieNLogLik,
              PoissonDeviance, GammaDeviance, TweedieDeviance, LogLoss, Error, MultiLogLoss, MultiError, RocAuc,
              AveragePrecision, Ndcg, MeanAveragePrecision, QueryPrecision, ReciprocalRank, QueryRecall,
              ExpectedReciprocalRank, PFound, QueryAuc):  # fmt: skip
    register_metric(_kind)
