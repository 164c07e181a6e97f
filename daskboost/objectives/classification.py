"""Softmax cross-entropy: one margin per class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.losses import DeviceLoss, LinkKernel, LossKernel
from daskboost.dtypes import ArrayModule, Float32, Float64, flat
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.objective import (
    BaseScoreRule,
    Objective,
    float32_pair,
    number_parameter,
    sigmoid,
    softmax,
)

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats

# Logistic loss: two classes, or probabilities as labels.

_ONE = np.float32(1.0)
_LEAST_HESSIAN = np.float32(1e-16)
"""XGBoost's floor: a leaf of saturated rows still has a hessian to divide by."""
_LEAST_PROBABILITY = np.float32(1e-6)
"""Base scores count as this far from 0 and 1, where the link is infinite: a data set of one class can be fitted."""


@dataclass(frozen=True)
class Logistic(Objective):
    """log(1 + exp(margin)) - label * margin, label in [0, 1]; predicts the probability of label 1.

    Parameters
    ----------
    scale_pos_weight : float, default 1
        Factor on the weight of rows whose label is exactly 1, for unbalanced classes.
    """

    name: ClassVar[str] = "binary:logistic"
    section: ClassVar[str] = "reg_loss_param"
    default_metric: ClassVar[str] = "logloss"
    symmetric_score: ClassVar[Literal["newton", "l2"]] = "l2"
    device_link: ClassVar[LinkKernel | None] = LinkKernel.SIGMOID
    scale_pos_weight: float = 1.0

    @property
    def positive_weight(self) -> float:
        return self.scale_pos_weight

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        y = label[:, None]
        p = sigmoid(margin, xp)
        g, h = p - y, xp.maximum(p * (_ONE - p), _LEAST_HESSIAN)
        if self.scale_pos_weight != 1.0:
            factor = xp.where(y == _ONE, np.float32(self.scale_pos_weight), _ONE)
            g, h = g * factor, h * factor
        return g, h

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.LOGISTIC, float32_pair(self.scale_pos_weight))

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return flat(sigmoid(margin, xp))

    def to_margin(self, base_score: npt.ArrayLike) -> Float64:
        """Return XGBoost's margins to the last float32: -log(1 / p - 1) of float32, p moved 1e-6 away from 0 and 1."""
        score = np.asarray(base_score, dtype=np.float32)
        if not np.all((score >= 0) & (score <= 1)):
            raise ParameterError(
                f"base_score={base_score!r} must lie in [0, 1] for objective {self.name!r}, whose base score is a "
                "probability; give a probability or leave it out"
            )
        p = np.clip(score, _LEAST_PROBABILITY, _ONE - _LEAST_PROBABILITY)
        return np.asarray(-np.log((_ONE / p - _ONE).astype(np.float64)).astype(np.float32), dtype=np.float64)

    def base_score_of(self, mean: float) -> float:
        positive = self.scale_pos_weight * mean
        share = positive / (positive + (1.0 - mean))
        least = float(_LEAST_PROBABILITY)
        return min(max(share, least), 1.0 - least)

    def check_label_range(self, stats: LabelStats) -> None:
        for value in (stats.minimum, stats.maximum):
            if not 0 <= value <= 1:
                raise DataError(
                    f"label {value:g} is out of range for objective {self.name!r}: labels must lie in [0, 1]; "
                    "encode the two classes as 0 and 1, or use DaskBoostClassifier, which encodes any classes"
                )

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "scale_pos_weight", 1.0, 0.0, math.inf))


@dataclass(frozen=True)
class LogisticRegression(Logistic):
    """The same loss for labels that are probabilities, judged by their squared error."""

    name: ClassVar[str] = "reg:logistic"
    default_metric: ClassVar[str] = "rmse"


@dataclass(frozen=True)
class LogisticRaw(Logistic):
    """The same loss; predicts the margin, and its base score is a margin, as in XGBoost.

    Where none is given it is the log-odds of the weighted mean, so that the fit starts where `binary:logistic` does.
    XGBoost takes the mean itself for the margin: .3 in place of -.847 where 30 % of the rows are of class 1.

    Metrics still see probabilities, or log-loss would have no meaning.
    """

    name: ClassVar[str] = "binary:logitraw"
    device_link: ClassVar[LinkKernel | None] = LinkKernel.SIGMOID

    def to_margin(self, base_score: npt.ArrayLike) -> Float64:
        return np.asarray(base_score, dtype=np.float64)

    def base_score_of(self, mean: float) -> float:
        return float(super().to_margin(super().base_score_of(mean)))

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return flat(margin)

    def evaluation(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return super().prediction(margin, xp)


_TWO = np.float32(2.0)
_LEAST_SHARE = 1e-6
"""What is added to a class's share before its logarithm is taken (XGBoost's kRtEps)."""
MAX_CLASSES = 2**16
BLOCK_ELEMENTS = 1 << 17  # 512 KB a temporary: twice as fast for 26 classes as blocks of eight times that


@dataclass(frozen=True)
class SoftProb(Objective):
    """-log softmax(margin)[label]; predicts the probability of every class.

    The hessian is 2 p (1 - p), XGBoost's: a bound on the full matrix's row sums of absolute values, so that steps
    that ignore its off-diagonal part do not overshoot.

    The base scores are margins whose softmax is the classes' shares of the weight: log(share + 1e-6) of each class,
    less the mean of all. That is what XGBoost has since version 3.1; 1e-6 keeps a class without rows finite.

    Parameters
    ----------
    num_class : int
        Labels are 0, 1, ..., num_class - 1.
    """

    name: ClassVar[str] = "multi:softprob"
    device_link: ClassVar[LinkKernel | None] = LinkKernel.SOFTMAX
    section: ClassVar[str] = "softmax_multiclass_param"
    default_metric: ClassVar[str] = "mlogloss"
    device_loss: ClassVar[DeviceLoss] = DeviceLoss(LossKernel.SOFTMAX)
    base_score_rule: ClassVar[BaseScoreRule] = "shares"
    num_class: int

    @property
    def n_outputs(self) -> int:
        return self.num_class

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        g, h = xp.empty_like(margin), xp.empty_like(margin)
        classes = xp.arange(self.num_class, dtype=np.float32)[:, None]
        for rows in row_blocks(margin, xp):
            p = softmax(xp.ascontiguousarray(margin[rows].T), xp)
            h[rows] = xp.maximum(_TWO * p * (_ONE - p), _LEAST_HESSIAN).T
            p -= label[rows] == classes
            g[rows] = p.T
        return g, h

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        p = xp.empty_like(margin)
        for rows in row_blocks(margin, xp):
            p[rows] = softmax(xp.ascontiguousarray(margin[rows].T), xp).T
        return p

    def base_scores_of(self, shares: Float64) -> Float64:
        logs = np.log(shares + _LEAST_SHARE)
        return np.asarray(logs - math.fsum(logs.tolist()) / len(logs))

    def check_label_range(self, stats: LabelStats) -> None:
        classes = f"classes 0 to {self.num_class - 1} (num_class={self.num_class})"
        remedy = "or use DaskBoostClassifier, which encodes any classes"
        if not stats.all_integer:
            raise DataError(f"labels of objective {self.name!r} must be the {classes}; encode them, {remedy}")
        if stats.minimum < 0 or stats.maximum >= self.num_class:
            value = stats.minimum if stats.minimum < 0 else stats.maximum
            raise DataError(
                f"label {value:g} is out of range for objective {self.name!r}: labels must be {classes}; "
                f"raise num_class or encode the labels, {remedy}"
            )

    def parameters(self) -> dict[str, Any]:
        return {"num_class": self.num_class}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        given = params.get("num_class")
        try:
            number = int(given) if given is not None else 0
        except (TypeError, ValueError, OverflowError):
            number = 0
        if not 2 <= number <= MAX_CLASSES or (not isinstance(given, str) and number != given):
            raise ParameterError(
                f"num_class={given!r}: objective {cls.name!r} needs a whole number of classes, 2 to {MAX_CLASSES}; "
                "give num_class, one more than the largest label"
            )
        return cls(number)


@dataclass(frozen=True)
class SoftMax(SoftProb):
    """The same loss; predicts the most probable class, the first among equals. Metrics still see probabilities."""

    name: ClassVar[str] = "multi:softmax"
    device_link: ClassVar[LinkKernel | None] = LinkKernel.SOFTMAX

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return xp.argmax(margin, axis=1).astype(np.float32)

    def evaluation(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return super().prediction(margin, xp)


def row_blocks(margin: Float32, xp: ArrayModule) -> Iterator[slice]:
    """Blocks of rows whose temporaries stay in a processor's cache; all rows at once on a GPU.

    A row's result depends on that row alone, so blocks leave no trace.
    """
    step = max(1, BLOCK_ELEMENTS // margin.shape[1]) if xp is np else max(1, len(margin))
    for start in range(0, len(margin), step):
        yield slice(start, start + step)
