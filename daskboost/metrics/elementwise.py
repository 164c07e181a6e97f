"""Weighted means of a loss per row, and the errors of real-valued predictions.

Rows are taken in blocks that fit a processor's cache, in float64; the sums are exact, so blocks leave no trace.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, Float64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.metric import (
    Metric,
    RatioState,
    log,
    log1p,
    number_argument,
    one_per_row,
    refuse_argument,
    row_blocks,
)

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.devices.gpu.rows.metrics import MetricKernels, Words
    from daskboost.devices.gpu.rows.watched import WatchedRows
    from daskboost.devices.gpu.runtime.launches import DeviceArray

BLOCK_VALUES = 1 << 16  # 512 KB per float64 array
_LEAST_OF_LOG = -1 + 1e-6
TINY = 1e-16
"""Where XGBoost clips means and probabilities before a logarithm or a division."""


@dataclass(frozen=True)
class LabelRange:
    """Labels from `low` (excluded where `open_low`) to `high`."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def check(self, name: str, stats: LabelStats) -> None:
        """Refuse labels outside; DataError with the metric's name and the offending label."""
        for label in (stats.minimum, stats.maximum) if stats.minimum <= stats.maximum else ():  # not without rows
            if label > self.high or label < self.low or (self.open_low and label == self.low):
                above = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
                allowed = above if self.high == math.inf else f"from {self.low:g} to {self.high:g}"
                raise DataError(f"label {label:g} for metric {name!r}: labels must be {allowed}; use another metric")


class MeanMetric(Metric[RatioState]):
    """The weighted mean of `loss` over rows, passed through `finish`."""

    @property
    def labels(self) -> LabelRange:
        """The labels it is defined for; any finite number unless a subclass says otherwise."""
        return LabelRange()

    def prepare(self, stats: LabelStats) -> Self:
        """See `Metric.prepare`; DataError for labels for which the metric is not defined, as scikit-learn refuses
        them."""
        self.labels.check(self.name, stats)
        return self

    @abstractmethod
    def loss(self, label: Float64, prediction: Float64) -> Float64:
        """The loss per row; float64, shape (n,). May overwrite neither argument."""

    def finish(self, mean: float) -> float:
        """What becomes of the mean loss."""
        return mean

    def shaped(self, label: Array, prediction: Array) -> Array:
        """The prediction in the shape that `loss` expects."""
        return one_per_row(self.name, label, prediction)

    def partial(
        self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0
    ) -> RatioState:
        prediction = self.shaped(label, prediction)
        state = RatioState()
        for block in row_blocks(label, prediction, weight, BLOCK_VALUES):
            state += self._block(*block)
        return state

    @property
    def device_parameters(self) -> tuple[float, ...]:
        """Parameters of `device_loss`."""
        return ()

    def partial_of_loss(
        self, kernels: MetricKernels, loss: str, label: Array, prediction: Array, weight: Array | None
    ) -> RatioState | None:
        prediction = self.shaped(label, prediction)
        losses, weights = kernels.sum_losses(loss, label, prediction, weight, self.device_parameters)
        return RatioState(ExactSum(*losses), ExactSum(*weights))

    def check_shape(self, label: Array, prediction: Array) -> None:
        self.shaped(label, prediction)

    def measure(self, rows: WatchedRows, state: DeviceArray) -> None:
        assert self.device_loss is not None
        rows.add_losses(self.device_loss, self.device_parameters, state)

    def measured(self, words: Words, label: Array, weight: Array | None) -> RatioState:
        from daskboost.devices.gpu.rows.metrics import read_losses

        losses, weights = read_losses(words, len(label), is_weighted=weight is not None)
        return RatioState(ExactSum(*losses), ExactSum(*weights))

    def _block(self, label: Array, prediction: Array, weight: Array | None) -> RatioState:
        loss = self.loss(label.astype(np.float64), np.ascontiguousarray(prediction, dtype=np.float64))
        if weight is None:
            return RatioState(ExactSum.of(loss), ExactSum.of([float(len(label))]))
        w = weight.astype(np.float64)
        return RatioState(ExactSum.of(loss * w), ExactSum.of(w))

    def value(self, state: RatioState) -> float:
        return self.finish(state.numerator.ratio(state.denominator))

    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> RatioState:
        return RatioState.from_arrays(arrays)


@dataclass(frozen=True)
class Rmse(MeanMetric):
    """Root of the mean squared error."""

    base_name: ClassVar[str] = "rmse"
    device_loss: ClassVar[str | None] = "squared"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return np.asarray(np.square(prediction - label))

    def finish(self, mean: float) -> float:
        return float(np.sqrt(mean))


@dataclass(frozen=True)
class Rmsle(MeanMetric):
    """Root of the mean squared error of log(1 + x); predictions below -1 + 1e-6 count as that."""

    base_name: ClassVar[str] = "rmsle"
    device_loss: ClassVar[str | None] = "squared log"
    device_parameters: ClassVar[tuple[float, ...]] = (_LEAST_OF_LOG,)
    labels: ClassVar[LabelRange] = LabelRange(-1.0, open_low=True)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        predicted, given = (log1p(np.maximum(values, _LEAST_OF_LOG)) for values in (prediction, label))
        return np.asarray(np.square(predicted - given))

    def finish(self, mean: float) -> float:
        return float(np.sqrt(mean))


@dataclass(frozen=True)
class Mae(MeanMetric):
    """Mean absolute error."""

    base_name: ClassVar[str] = "mae"
    device_loss: ClassVar[str | None] = "absolute"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return np.abs(prediction - label)


@dataclass(frozen=True)
class Mape(MeanMetric):
    """Mean of |prediction - label| / |label|, as a share of 1; labels of 0 count as 2**-52, as in scikit-learn."""

    base_name: ClassVar[str] = "mape"
    device_loss: ClassVar[str | None] = "relative"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return np.abs(prediction - label) / np.maximum(np.abs(label), np.finfo(np.float64).eps)


@dataclass(frozen=True)
class PseudoHuber(MeanMetric):
    """Mean of slope**2 (sqrt(1 + (r / slope)**2) - 1), the loss of ``reg:pseudohubererror``.

    Parameters
    ----------
    huber_slope : float, default 1
    """

    base_name: ClassVar[str] = "mphe"
    device_loss: ClassVar[str | None] = "pseudo-huber"
    huber_slope: float = 1.0

    @property
    def device_parameters(self) -> tuple[float, ...]:
        return self.huber_slope, self.huber_slope**2

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        ratio = (prediction - label) / self.huber_slope
        return np.asarray(self.huber_slope**2 * (np.sqrt(1 + np.square(ratio)) - 1))

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        refuse_argument(cls.base_name, argument)
        return cls(float(params.get("huber_slope") or 1.0))


@dataclass(frozen=True)
class Quantile(MeanMetric):
    """Mean pinball loss; with several quantiles, the mean over quantiles too.

    Parameters
    ----------
    quantile_alpha : tuple of float, default (0.5,)
        The quantile each output predicts, in (0, 1).
    """

    base_name: ClassVar[str] = "quantile"
    device_loss: ClassVar[str | None] = "pinball"
    quantile_alpha: tuple[float, ...] = (0.5,)

    @property
    def device_parameters(self) -> tuple[float, ...]:
        return self.quantile_alpha

    def shaped(self, label: Array, prediction: Array) -> Array:
        expected = (len(label), len(self.quantile_alpha))
        if prediction.shape != expected and not (expected[1] == 1 and prediction.shape == label.shape):
            raise DataError(
                f"prediction of shape {prediction.shape} for metric 'quantile' of {len(label)} rows and "
                f"{expected[1]} quantiles: the shape must be {expected}; give quantile_alpha as the model has it"
            )
        return prediction.reshape(expected)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        total = np.zeros(len(label))
        for output, alpha in enumerate(self.quantile_alpha):  # in this order for every row
            above = label - prediction[:, output]
            total += np.maximum(alpha * above, (alpha - 1) * above)
        return total / len(self.quantile_alpha)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        given: float | Sequence[float] = params.get("quantile_alpha") or (0.5,)
        alphas = argument.split(",") if argument is not None else np.atleast_1d(given).tolist()
        return cls(tuple(number_argument(cls.base_name, str(alpha), 0.0, 1.0) for alpha in alphas))


# Negative log-likelihoods and deviances of means: Poisson, gamma and Tweedie.

_LEAST_MEAN = 1e-6
"""XGBoost's bound of means under a gamma distribution."""


@dataclass(frozen=True)
class PoissonNLogLik(MeanMetric):
    """Mean negative log-likelihood of the Poisson distribution, with its normalising log-gamma term."""

    base_name: ClassVar[str] = "poisson-nloglik"
    labels: ClassVar[LabelRange] = LabelRange(0.0)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        from scipy.special import gammaln

        mean = np.maximum(prediction, TINY)
        return np.asarray(gammaln(label + 1) + mean - label * np.log(mean))


@dataclass(frozen=True)
class GammaNLogLik(MeanMetric):
    """Mean negative log-likelihood of the gamma distribution with dispersion 1."""

    base_name: ClassVar[str] = "gamma-nloglik"
    device_loss: ClassVar[str | None] = "gamma"
    device_parameters: ClassVar[tuple[float, ...]] = (_LEAST_MEAN,)
    labels: ClassVar[LabelRange] = LabelRange(0.0)

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
    labels: ClassVar[LabelRange] = LabelRange(0.0)
    power: float = 1.5

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
