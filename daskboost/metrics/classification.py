"""Metrics of probabilities and classes: log-loss and error rates, for two classes and for several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from daskboost.dtypes import Array, Float64
from daskboost.errors import DataError
from daskboost.metrics.base import number_argument
from daskboost.metrics.elementwise import TINY, LabelRange, MeanMetric
from daskboost.metrics.logarithm import log


@dataclass(frozen=True)
class LogLoss(MeanMetric):
    """Mean negative log-likelihood of labels in [0, 1] under the predicted probability of 1.

    Probabilities, and one minus them, are clipped at 1e-16 as in XGBoost, so a row costs at most 36.8. scikit-learn
    clips float32 predictions at 1.2e-7, which differs only for rows that are more certain than that.
    """

    base_name: ClassVar[str] = "logloss"
    device_loss: ClassVar[str | None] = "log"

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0, 1.0)

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        hard = (label == 0) | (label == 1)
        if hard.all():  # one logarithm instead of two
            return -log(np.maximum(np.where(label == 1, prediction, 1 - prediction), TINY))
        positive, negative = log(np.maximum(prediction, TINY)), log(np.maximum(1 - prediction, TINY))
        return -np.where(
            label == 1, positive, np.where(label == 0, negative, label * positive + (1 - label) * negative)
        )


@dataclass(frozen=True)
class Error(MeanMetric):
    """Share of rows on the wrong side of a threshold: predictions above it say 1, others 0.

    Parameters
    ----------
    threshold : float, default 0.5
    """

    base_name: ClassVar[str] = "error"
    device_loss: ClassVar[str | None] = "wrong side"
    threshold: float = 0.5

    @property
    def device_parameters(self) -> tuple[float, ...]:
        return (self.threshold,)

    @property
    def labels(self) -> LabelRange:
        return LabelRange(0.0, 1.0)

    @property
    def name(self) -> str:
        return self.base_name if self.threshold == 0.5 else f"{self.base_name}@{self.threshold:g}"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return np.where(prediction > self.threshold, 1 - label, label)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        return cls() if argument is None else cls(number_argument(cls.base_name, argument, -3e38, 3e38))


class MulticlassMetric(MeanMetric):
    """A loss of (class, probabilities per class)."""

    def shaped(self, label: Array, prediction: Array) -> Array:
        if prediction.shape[:-1] != label.shape:
            raise DataError(
                f"prediction of shape {prediction.shape} for metric {self.name!r} of {len(label)} rows: it needs one "
                "probability per row and class; use logloss or error for two classes"
            )
        classes = prediction.shape[1]
        low, high = (float(label.min()), float(label.max())) if len(label) else (0.0, 0.0)
        if len(label) and not (0 <= low and high < classes):
            raise DataError(
                f"labels from {low:g} to {high:g} for metric {self.name!r}: predictions have "
                f"{classes} classes, so labels must lie in 0 to {classes - 1}"
            )
        return prediction


@dataclass(frozen=True)
class MultiLogLoss(MulticlassMetric):
    """Mean negative log of the probability of the row's class, clipped at 1e-16 as in XGBoost."""

    base_name: ClassVar[str] = "mlogloss"
    device_loss: ClassVar[str | None] = "multiclass log"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        of_class = prediction[np.arange(len(label)), label.astype(np.intp)]
        return -log(np.maximum(of_class, TINY))


@dataclass(frozen=True)
class MultiError(MulticlassMetric):
    """Share of rows whose most probable class, the first among equals, is not theirs."""

    base_name: ClassVar[str] = "merror"
    device_loss: ClassVar[str | None] = "wrong class"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return np.asarray(prediction.argmax(axis=1) != label, dtype=np.float64)
