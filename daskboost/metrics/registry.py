"""Metrics by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from daskboost.errors import ParameterError
from daskboost.metrics.auc import AveragePrecision, RocAuc
from daskboost.metrics.base import Metric
from daskboost.metrics.classification import Error, LogLoss, MultiError, MultiLogLoss
from daskboost.metrics.custom import CustomMetric
from daskboost.metrics.deviance import (
    GammaDeviance,
    GammaNLogLik,
    PoissonDeviance,
    PoissonNLogLik,
    TweedieDeviance,
    TweedieNLogLik,
)
from daskboost.metrics.elementwise import Mae, Mape, PseudoHuber, Quantile, Rmse, Rmsle

_REGISTRY: dict[str, type[Metric[Any]]] = {}


def register_metric(kind: type[Metric[Any]]) -> type[Metric[Any]]:
    """Make a subclass of `Metric` known by its `base_name`; usable as a decorator.

    On a cluster, register it where the workers import it too.

    Raises
    ------
    ParameterError
        The class has no name, the name holds an ``@``, or another class has it.
    """
    name = getattr(kind, "base_name", None)
    if not isinstance(name, str) or not name or "@" in name:
        raise ParameterError(
            f"metric class {kind.__qualname__} has no name; set its class attribute `base_name`, no '@'"
        )
    taken = _REGISTRY.get(name, kind)
    if taken is not kind:
        raise ParameterError(f"metric {name!r} is already registered by {taken.__qualname__}; choose another name")
    _REGISTRY[name] = kind
    return kind


def metric_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


def make_metric(metric: Any, params: Mapping[str, Any] | None = None) -> Metric[Any]:
    """The metric a user means.

    Parameters
    ----------
    metric : str, callable or Metric
        A registered name, with an argument behind ``@`` where it takes one (``error@0.7``, ``tweedie-nloglik@1.3``,
        ``quantile@0.1,0.9``); a function ``f(y_true, y_pred)``; or a finished value, returned as is.
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
        name, at, argument = metric.partition("@")
        if name not in _REGISTRY:
            raise ParameterError(_unknown(name))
        return _REGISTRY[name].from_argument(argument if at else None, params or {})
    return CustomMetric.from_argument(None, {"function": metric})


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _REGISTRY, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"valid names are {', '.join(metric_names())}"
    return f"metric {name!r} is unknown; {hint}"


for _kind in (Rmse, Rmsle, Mae, Mape, PseudoHuber, Quantile, PoissonNLogLik, GammaNLogLik, TweedieNLogLik,
              PoissonDeviance, GammaDeviance, TweedieDeviance, LogLoss, Error, MultiLogLoss, MultiError, RocAuc,
              AveragePrecision):  # fmt: skip
    register_metric(_kind)
