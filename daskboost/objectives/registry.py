"""Objectives by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from daskboost.errors import ModelFormatError, ParameterError
from daskboost.objectives.base import Objective
from daskboost.objectives.binary import Logistic, LogisticRaw, LogisticRegression
from daskboost.objectives.custom import CustomObjective
from daskboost.objectives.log_link import Gamma, Poisson, Tweedie
from daskboost.objectives.multiclass import SoftMax, SoftProb
from daskboost.objectives.regression import AbsoluteError, PseudoHuberError, QuantileError, SquaredError

_REGISTRY: dict[str, type[Objective]] = {}


def register_objective(kind: type[Objective]) -> type[Objective]:
    """Make a subclass of `Objective` known by its `name`; usable as a decorator.

    On a cluster, register it where the workers import it too.

    Raises
    ------
    ParameterError
        The class has no name, or another class has it.
    """
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name:
        raise ParameterError(f"objective class {kind.__qualname__} has no name; set its class attribute `name`")
    taken = _REGISTRY.get(name, kind)
    if taken is not kind:
        raise ParameterError(f"objective {name!r} is already registered by {taken.__qualname__}; choose another name")
    _REGISTRY[name] = kind
    return kind


def objective_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


def make_objective(objective: Any, params: Mapping[str, Any] | None = None) -> Objective:
    """The objective a user means.

    Parameters
    ----------
    objective : str, callable or Objective
        A registered name; a function ``f(label, margin) -> (gradient, hessian)``; or a finished value, returned as is.
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
        if objective not in _REGISTRY:
            raise ParameterError(_unknown(objective))
        return _REGISTRY[objective].from_params(params or {})
    return CustomObjective.from_params({**(params or {}), "objective": objective})


def objective_from_config(config: Any) -> Objective:
    """The objective of a model file, from `learner.objective` of XGBoost's JSON.

    Raises
    ------
    ModelFormatError
        Not such an object, an objective this version does not know, or a malformed parameter.
    """
    name = config.get("name") if isinstance(config, Mapping) else None
    if not isinstance(name, str):
        raise ModelFormatError("learner.objective of the model is not an object with a 'name'; the file is damaged")
    if name not in _REGISTRY:
        raise ModelFormatError(f"the model's {_unknown(name)}")
    try:
        return _REGISTRY[name].from_config(config)
    except ParameterError as error:
        raise ModelFormatError(f"learner.objective of the model: {error}") from error


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _REGISTRY, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"valid names are {', '.join(objective_names())}"
    return f"objective {name!r} is unknown; {hint}"


for _kind in (SquaredError, AbsoluteError, PseudoHuberError, QuantileError, Poisson, Gamma, Tweedie, Logistic,
              LogisticRegression, LogisticRaw, SoftProb, SoftMax):  # fmt: skip
    register_objective(_kind)
