"""Losses of real-valued labels with the identity link: squared, absolute, pseudo-Huber and quantile error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.dtypes import ArrayModule, Float32
from daskboost.errors import ModelFormatError, ParameterError
from daskboost.objectives.base import (
    BaseScoreRule,
    Objective,
    config_section,
    float32_pair,
    json_number,
    number_parameter,
)

_ONE = np.float32(1.0)
_HUBER_LIMIT = np.float32(1e12)
"""Residuals beyond this many slopes count as this many: (1e12)**3 fits in float32, and the gradient has long been
the slope."""


@dataclass(frozen=True)
class SquaredError(Objective):
    """(margin - label)**2 / 2."""

    name: ClassVar[str] = "reg:squarederror"
    constant_hessian: ClassVar[bool] = True

    @property
    def default_metric(self) -> str:
        return "rmse"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        return margin - label[:, None], xp.ones_like(margin)

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.SQUARED_ERROR)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "reg_loss_param": {"scale_pos_weight": "1"}}


@dataclass(frozen=True)
class AbsoluteError(Objective):
    """|margin - label|; leaves become medians of residuals."""

    name: ClassVar[str] = "reg:absoluteerror"
    constant_hessian: ClassVar[bool] = True
    base_score_rule: ClassVar[BaseScoreRule] = "quantile"

    @property
    def default_metric(self) -> str:
        return "mae"

    @property
    def adaptive_quantiles(self) -> tuple[float, ...]:
        return (0.5,)

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        return xp.sign(margin - label[:, None]), xp.ones_like(margin)

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.ABSOLUTE_ERROR)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True)
class PseudoHuberError(Objective):
    """slope**2 (sqrt(1 + (r / slope)**2) - 1) for the residual r = margin - label.

    Parameters
    ----------
    huber_slope : float, default 1
        Where squares turn into absolute values, in the label's units. Source: Charbonnier et al., "Deterministic
        edge-preserving regularization in computed imaging", 1997.
    """

    name: ClassVar[str] = "reg:pseudohubererror"
    huber_slope: float = 1.0

    @property
    def default_metric(self) -> str:
        return "mphe"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        slope = np.float32(self.huber_slope)
        ratio: Float32 = xp.clip((margin - label[:, None]) / slope, -_HUBER_LIMIT, _HUBER_LIMIT)
        root: Float32 = xp.sqrt(_ONE + ratio * ratio)
        inverse = _ONE / root
        return slope * (ratio * inverse), inverse * inverse * inverse

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.PSEUDO_HUBER, float32_pair(self.huber_slope))

    def parameters(self) -> dict[str, Any]:
        return {"huber_slope": self.huber_slope}

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "pseudo_huber_param": {"huber_slope": json_number(self.huber_slope)}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "huber_slope", 1.0, 2.0**-30, 2.0**30))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls.from_params(config_section(config, "pseudo_huber_param"))


@dataclass(frozen=True)
class QuantileError(Objective):
    """Pinball loss, one output per quantile; leaves become quantiles of residuals.

    Parameters
    ----------
    quantile_alpha : tuple of float, default (0.5,)
        Each in (0, 1). Source: Koenker and Bassett, "Regression Quantiles", 1978.
    """

    name: ClassVar[str] = "reg:quantileerror"
    constant_hessian: ClassVar[bool] = True
    base_score_rule: ClassVar[BaseScoreRule] = "quantile"
    quantile_alpha: tuple[float, ...] = (0.5,)

    @property
    def n_outputs(self) -> int:
        return len(self.quantile_alpha)

    @property
    def default_metric(self) -> str:
        return "quantile"

    @property
    def adaptive_quantiles(self) -> tuple[float, ...]:
        return self.quantile_alpha

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        alpha = xp.asarray(self.quantile_alpha, dtype=np.float32)
        return xp.where(margin >= label[:, None], _ONE - alpha, -alpha), xp.ones_like(margin)

    @property
    def device_loss(self) -> DeviceLoss:
        alphas = np.array(self.quantile_alpha, np.float32)
        slopes = zip((_ONE - alphas).tolist(), (-alphas).tolist(), strict=True)
        return DeviceLoss(LossKernel.QUANTILE, tuple(slopes))

    def parameters(self) -> dict[str, Any]:
        return {"quantile_alpha": self.quantile_alpha}

    def config(self) -> dict[str, Any]:
        alphas = ",".join(json_number(a) for a in self.quantile_alpha)
        return {"name": self.name, "quantile_loss_param": {"quantile_alpha": f"[{alphas}]"}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(quantile_parameter(params))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        section = config_section(config, "quantile_loss_param")
        text = section.get("quantile_alpha", "[0.5]")
        message = f"quantile_alpha={text!r} of the model's objective is no list of numbers"
        try:
            values = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelFormatError(message) from error
        if not isinstance(values, list | int | float):
            raise ModelFormatError(message)
        return cls.from_params({"quantile_alpha": values})


def quantile_parameter(params: Mapping[str, Any]) -> tuple[float, ...]:
    """`quantile_alpha` as a tuple, each in (0, 1); ParameterError otherwise."""
    given = params.get("quantile_alpha")
    if given is None:
        return (0.5,)
    values = (given,) if isinstance(given, (str, int, float)) else tuple(given)
    if not values:
        raise ParameterError("quantile_alpha is empty; give at least one quantile in (0, 1), such as 0.5")
    return tuple(number_parameter({"quantile_alpha": a}, "quantile_alpha", 0.5, 0.0, 1.0) for a in values)
