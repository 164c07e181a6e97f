"""Losses of positive means with the log link: Poisson, gamma and Tweedie, all with mean = exp(margin)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.dtypes import ArrayModule, Float32, Float64
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.base import (
    Objective,
    config_section,
    float32_pair,
    json_number,
    number_parameter,
)
from daskboost.objectives.elementary import exp
from daskboost.shapes import flat

if TYPE_CHECKING:
    from daskboost.data.labels import LabelStats

_ONE = np.float32(1.0)
_LEAST_MEAN = 1e-6
"""Base score where every label is zero: the link has no margin for a mean of 0."""


class LogLinkObjective(Objective):
    """What the family shares: the link, its domain and non-negative labels."""

    zero_allowed: ClassVar[bool] = True

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
    default_max_delta_step: ClassVar[float] = 0.7
    max_delta_step: float = 0.7

    @property
    def default_metric(self) -> str:
        return "poisson-nloglik"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        mean = exp(margin, xp)
        return mean - label[:, None], exp(margin + np.float32(self.max_delta_step), xp)

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.POISSON, float32_pair(self.max_delta_step))

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "poisson_regression_param": {"max_delta_step": json_number(self.max_delta_step)}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "max_delta_step", 0.7, 0.0, 80.0, closed_low=True))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls.from_params(config_section(config, "poisson_regression_param"))


@dataclass(frozen=True)
class Gamma(LogLinkObjective):
    """margin + label / exp(margin): positive labels whose spread grows with their mean."""

    name: ClassVar[str] = "reg:gamma"
    zero_allowed: ClassVar[bool] = False

    @property
    def default_metric(self) -> str:
        return "gamma-deviance"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        ratio = label[:, None] * exp(-margin, xp)
        return _ONE - ratio, ratio

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.GAMMA)

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

    def config(self) -> dict[str, Any]:
        power = json_number(self.tweedie_variance_power)
        return {"name": self.name, "tweedie_regression_param": {"tweedie_variance_power": power}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "tweedie_variance_power", 1.5, 1.0, 2.0, closed_low=True))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls.from_params(config_section(config, "tweedie_regression_param"))
