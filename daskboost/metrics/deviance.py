"""Negative log-likelihoods and deviances of means: Poisson, gamma and Tweedie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from daskboost.dtypes import Float64
from daskboost.errors import ParameterError
from daskboost.metrics.base import number_argument, refuse_argument
from daskboost.metrics.elementwise import TINY, LabelRange, MeanMetric
from daskboost.metrics.logarithm import log

_LEAST_MEAN = 1e-6
"""XGBoost's bound of means under a gamma distribution."""


@dataclass(frozen=True)
class PoissonNLogLik(MeanMetric):
    """Mean negative log-likelihood of the Poisson distribution, with its normalising log-gamma term."""

    base_name: ClassVar[str] = "poisson-nloglik"

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        from scipy.special import gammaln

        mean = np.maximum(prediction, TINY)
        return np.asarray(gammaln(label + 1) + mean - label * np.log(mean))


@dataclass(frozen=True)
class GammaNLogLik(MeanMetric):
    """Mean negative log-likelihood of the gamma distribution with dispersion 1."""

    base_name: ClassVar[str] = "gamma-nloglik"
    device_loss: ClassVar[str | None] = "gamma"

    @property
    def device_parameters(self) -> tuple[float, ...]:
        return (_LEAST_MEAN,)

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        mean = np.maximum(prediction, _LEAST_MEAN)
        return label / mean + log(mean)


@dataclass(frozen=True)
class TweedieNLogLik(MeanMetric):
    """Mean negative log-likelihood of the Tweedie distribution, up to a term that depends on the label alone.

    Parameters
    ----------
    power : float, default 1.5
        Variance power, in [1, 2).
    """

    base_name: ClassVar[str] = "tweedie-nloglik"
    power: float = 1.5

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0)

    @property
    def name(self) -> str:
        return f"{self.base_name}@{self.power:g}"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        mean = np.maximum(prediction, TINY)
        if self.power == 1:
            return mean - label * np.log(mean)
        to_one = np.power(mean, 1 - self.power)
        return to_one * mean / (2 - self.power) - label * to_one / (1 - self.power)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        power = tweedie_power(cls.base_name, argument, params)
        if not 1 <= power < 2:
            raise ParameterError(f"metric '{cls.base_name}@{power:g}': the variance power must lie in [1, 2)")
        return cls(power)


@dataclass(frozen=True)
class TweedieDeviance(MeanMetric):
    """Mean Tweedie deviance: 0 for a perfect prediction; scikit-learn's `mean_tweedie_deviance`.

    Predictions below 1e-16 count as that. Labels are at least 0; above 0 where the power is 2 or more.

    Parameters
    ----------
    power : float, default 1.5
        Variance power: 1 is Poisson, 2 is gamma, in between is compound Poisson-gamma; in [1, 3].
    """

    base_name: ClassVar[str] = "tweedie-deviance"
    power: float = 1.5

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0, open_low=self.power >= 2)

    @property
    def name(self) -> str:
        return f"{self.base_name}@{self.power:g}"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        mean, p = np.maximum(prediction, TINY), self.power
        if p == 1:
            y = np.maximum(label, 0.0)
            return 2 * (y * np.log(np.maximum(y, TINY) / mean) - y + mean)
        if p == 2:
            ratio = np.maximum(label, TINY) / mean
            return 2 * (ratio - 1 - np.log(ratio))
        y = np.maximum(label, TINY if p > 2 else 0.0)
        to_one = np.power(mean, 1 - p)
        return 2 * (np.power(y, 2 - p) / ((1 - p) * (2 - p)) - y * to_one / (1 - p) + to_one * mean / (2 - p))

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        power = tweedie_power(cls.base_name, argument, params)
        if not 1 <= power <= 3:
            raise ParameterError(f"metric '{cls.base_name}@{power:g}': the variance power must lie in [1, 3]")
        return cls(power)


@dataclass(frozen=True)
class PoissonDeviance(TweedieDeviance):
    """Mean Poisson deviance."""

    base_name: ClassVar[str] = "poisson-deviance"
    power: float = 1.0

    @property
    def name(self) -> str:
        return self.base_name

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        refuse_argument(cls.base_name, argument)
        return cls()


@dataclass(frozen=True)
class GammaDeviance(PoissonDeviance):
    """Mean gamma deviance, without the 1e-6 that XGBoost adds to labels and predictions."""

    base_name: ClassVar[str] = "gamma-deviance"
    power: float = 2.0


def tweedie_power(name: str, argument: str | None, params: Mapping[str, Any]) -> float:
    """The power behind ``@``, else the objective's, else 1.5."""
    if argument is None:
        return float(params.get("tweedie_variance_power") or 1.5)
    return number_argument(name, argument, -1e9, 1e9)
