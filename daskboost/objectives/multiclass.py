"""Softmax cross-entropy: one margin per class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.dtypes import ArrayModule, Float32, Float64
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.base import BaseScoreRule, Objective, config_section
from daskboost.objectives.elementary import softmax

if TYPE_CHECKING:
    from daskboost.data.labels import LabelStats

_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_LEAST_HESSIAN = np.float32(1e-16)
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
    base_score_rule: ClassVar[BaseScoreRule] = "shares"
    num_class: int

    @property
    def n_outputs(self) -> int:
        return self.num_class

    @property
    def default_metric(self) -> str:
        return "mlogloss"

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        g, h = xp.empty_like(margin), xp.empty_like(margin)
        classes = xp.arange(self.num_class, dtype=np.float32)[:, None]
        for rows in row_blocks(margin, xp):
            p = softmax(xp.ascontiguousarray(margin[rows].T), xp)
            h[rows] = xp.maximum(_TWO * p * (_ONE - p), _LEAST_HESSIAN).T
            p -= label[rows] == classes
            g[rows] = p.T
        return g, h

    @property
    def device_loss(self) -> DeviceLoss:
        return DeviceLoss(LossKernel.SOFTMAX)

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

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "softmax_multiclass_param": {"num_class": str(self.num_class)}}

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

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls.from_params(config_section(config, "softmax_multiclass_param"))


@dataclass(frozen=True)
class SoftMax(SoftProb):
    """The same loss; predicts the most probable class, the first among equals. Metrics still see probabilities."""

    name: ClassVar[str] = "multi:softmax"

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
