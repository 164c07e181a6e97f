"""Logistic loss: two classes, or probabilities as labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

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
from daskboost.objectives.elementary import sigmoid
from daskboost.shapes import flat

if TYPE_CHECKING:
    from daskboost.data.labels import LabelStats

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
    symmetric_score: ClassVar[Literal["newton", "l2"]] = "l2"
    scale_pos_weight: float = 1.0

    @property
    def positive_weight(self) -> float:
        return self.scale_pos_weight

    @property
    def default_metric(self) -> str:
        return "logloss"

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

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "reg_loss_param": {"scale_pos_weight": json_number(self.scale_pos_weight)}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(number_parameter(params, "scale_pos_weight", 1.0, 0.0, math.inf))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls.from_params(config_section(config, "reg_loss_param"))


@dataclass(frozen=True)
class LogisticRegression(Logistic):
    """The same loss for labels that are probabilities, judged by their squared error."""

    name: ClassVar[str] = "reg:logistic"

    @property
    def default_metric(self) -> str:
        return "rmse"


@dataclass(frozen=True)
class LogisticRaw(Logistic):
    """The same loss; predicts the margin, and its base score is a margin, as in XGBoost.

    Where none is given it is the log-odds of the weighted mean, so that the fit starts where `binary:logistic` does.
    XGBoost takes the mean itself for the margin: .3 in place of -.847 where 30 % of the rows are of class 1.

    Metrics still see probabilities, or log-loss would have no meaning.
    """

    name: ClassVar[str] = "binary:logitraw"

    def to_margin(self, base_score: npt.ArrayLike) -> Float64:
        return np.asarray(base_score, dtype=np.float64)

    def base_score_of(self, mean: float) -> float:
        return float(super().to_margin(super().base_score_of(mean)))

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return flat(margin)

    def evaluation(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        return super().prediction(margin, xp)
