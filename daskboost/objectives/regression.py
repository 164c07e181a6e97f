"""Losses of real-valued labels with the identity link: squared, absolute, pseudo-Huber and quantile error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.losses import DeviceLoss, LinkKernel, LossKernel
from daskboost.dtypes import ArrayModule, Float32, Float64, flat
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.objectives.objective import (
    BaseScoreRule,
    Objective,
    config_section,
    exp,
    float32_pair,
    json_number,
    number_parameter,
)

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats

# Losses of positive means with the log link: Poisson, gamma and Tweedie, all with mean = exp(margin).

_ONE = np.float32(1.0)
_LEAST_MEAN = 1e-6
"""Base score where every label is zero: the link has no margin for a mean of 0."""


class LogLinkObjective(Objective):
    """What the family shares: the link, its domain and non-negative labels."""

    zero_allowed: ClassVar[bool] = True
    device_link: ClassVar[LinkKernel | None] = LinkKernel.EXP

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return flat(exp(margin, xp))

    def to_margin(self, base_score: npt.ArrayLike) -> Float64:
        score = np.asarray(base_score, dtype=np.float64)
        if not np.all(score > 0):
            raise ParameterError(
                f"base_score={base_score!r} must be above 0 for objective {self.name!r}, whose predictions are means "
                "of non-negative labels; give a positive base_score or leave it out"
            )
        return np.asarray(np.log(score))

    def base_score_of(self, mean: float) -> float:
        return max(mean, _LEAST_MEAN)

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        if stats.minimum < 0 or (stats.minimum == 0 and not self.zero_allowed):
            allowed = "at least 0" if self.zero_allowed else "above 0"
            raise DataError(
                f"label {stats.minimum:g} is out of range for objective {self.name!r}: labels must be {allowed}; "
                "remove or correct such rows, or use objective='reg:squarederror'"
            )


@dataclass(frozen=True)
class Poisson(LogLinkObjective):
    """exp(margin) - label * margin: counts.

    Parameters
    ----------
    max_delta_step : float, default 0.7
        Besides limiting leaf values, it inflates the hessian by exp(max_delta_step), XGBoost's safeguard against the
        first steps overshooting where the loss grows exponentially.
    """

    name: ClassVar[str] = "count:poisson"
    section: ClassVar[str] = "poisson_regression_param"
    default_metric: ClassVar[str] = "poisson-nloglik"
    default_max_delta_step: ClassVar[float] = 0.7
    max_delta_step: float = 0.7

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        mean = exp(margin, xp)
        return mean - label[:, None], exp(margin + np.float32(self.max_delta_step), xp)

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.POISSON, float32_pair(self.max_delta_step))

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "max_delta_step", 0.7, 0.0, 80.0, closed_low=True))


@dataclass(frozen=True)
class Gamma(LogLinkObjective):
    """margin + label / exp(margin): positive labels whose spread grows with their mean."""

    name: ClassVar[str] = "reg:gamma"
    default_metric: ClassVar[str] = "gamma-deviance"
    device_loss: ClassVar[DeviceLoss] = DeviceLoss(LossKernel.GAMMA)
    zero_allowed: ClassVar[bool] = False

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        ratio = label[:, None] * exp(-margin, xp)
        return _ONE - ratio, ratio

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "reg_loss_param": {"scale_pos_weight": "1"}}


@dataclass(frozen=True)
class Tweedie(LogLinkObjective):
    """Negative log-likelihood of the compound Poisson-gamma distribution: many zeros, otherwise positive.

    Parameters
    ----------
    tweedie_variance_power : float, default 1.5
        Variance is proportional to mean**power; in [1, 2): near 1 is Poisson, near 2 is gamma. Source: Jorgensen,
        "The Theory of Dispersion Models", 1997.
    """

    name: ClassVar[str] = "reg:tweedie"
    section: ClassVar[str] = "tweedie_regression_param"
    tweedie_variance_power: float = 1.5

    @property
    def default_metric(self) -> str:
        return f"tweedie-nloglik@{self.tweedie_variance_power:g}"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        to_one, to_two = map(np.float32, self._exponents)
        a = label[:, None] * exp(to_one * margin, xp)
        b = exp(to_two * margin, xp)
        return b - a, to_two * b - to_one * a

    @property
    def _exponents(self) -> tuple[float, float]:
        return 1.0 - self.tweedie_variance_power, 2.0 - self.tweedie_variance_power

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.TWEEDIE, float32_pair(*self._exponents))

    def parameters(self) -> dict[str, Any]:
        return {"tweedie_variance_power": self.tweedie_variance_power}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "tweedie_variance_power", 1.5, 1.0, 2.0, closed_low=True))


_HUBER_LIMIT = np.float32(1e12)
"""Residuals beyond this many slopes count as this many: (1e12)**3 fits in float32, and the gradient has long been
the slope."""


@dataclass(frozen=True)
class SquaredError(Objective):
    """(margin - label)**2 / 2."""

    name: ClassVar[str] = "reg:squarederror"
    default_metric: ClassVar[str] = "rmse"
    device_loss: ClassVar[DeviceLoss] = DeviceLoss(LossKernel.SQUARED_ERROR)
    constant_hessian: ClassVar[bool] = True

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        return margin - label[:, None], xp.ones_like(margin)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "reg_loss_param": {"scale_pos_weight": "1"}}


@dataclass(frozen=True)
class AbsoluteError(Objective):
    """|margin - label|; leaves become medians of residuals."""

    name: ClassVar[str] = "reg:absoluteerror"
    default_metric: ClassVar[str] = "mae"
    adaptive_quantiles: ClassVar[tuple[float, ...]] = (0.5,)
    device_loss: ClassVar[DeviceLoss] = DeviceLoss(LossKernel.ABSOLUTE_ERROR)
    constant_hessian: ClassVar[bool] = True
    base_score_rule: ClassVar[BaseScoreRule] = "quantile"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        return xp.sign(margin - label[:, None]), xp.ones_like(margin)


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
    section: ClassVar[str] = "pseudo_huber_param"
    default_metric: ClassVar[str] = "mphe"
    huber_slope: float = 1.0

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

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "huber_slope", 1.0, 2.0**-30, 2.0**30))


@dataclass(frozen=True)
class QuantileError(Objective):
    """Pinball loss, one output per quantile; leaves become quantiles of residuals.

    Parameters
    ----------
    quantile_alpha : tuple of float, default (0.5,)
        Each in (0, 1). Source: Koenker and Bassett, "Regression Quantiles", 1978.
    """

    name: ClassVar[str] = "reg:quantileerror"
    default_metric: ClassVar[str] = "quantile"
    constant_hessian: ClassVar[bool] = True
    base_score_rule: ClassVar[BaseScoreRule] = "quantile"
    quantile_alpha: tuple[float, ...] = (0.5,)

    @property
    def n_outputs(self) -> int:
        return len(self.quantile_alpha)

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
