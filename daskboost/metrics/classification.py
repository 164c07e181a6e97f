"""Metrics of probabilities and classes: log-loss and error rates, for two classes and for several."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.data.cuts.key_counts import KeyTable
from daskboost.devices.gpu.rows.metrics import AreaWords, read_area
from daskboost.dtypes import Array, Bool, Float64, Int64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.elementwise import TINY, LabelRange, MeanMetric
from daskboost.metrics.metric import Arrays, Metric, log, number_argument, one_per_row, row_blocks

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.devices.gpu.rows.metrics import MetricKernels, Words
    from daskboost.devices.gpu.rows.watched import WatchedRows
    from daskboost.devices.gpu.runtime.launches import DeviceArray

# Areas under the ROC and the precision-recall curve, from mergeable counts of scores.
#
# Sorting all scores would need all of them in one place. Instead each partition counts, per distinct float32 score,
# the weight of negatives and of positives; counts merge exactly, and the coordinator walks them once.
#
# Exactness. Up to `CAPACITY` distinct scores the value is exact, ties included. Beyond, neighbouring scores share a
# cell and count as ties: the AUC is then off by at most sum(p_b n_b) / (2 P N) over cells b with p_b positives and n_b
# negatives, 3.6e-6 for a million normal scores, and by about 1e-8 where order within cells is as good as random.
#
# On a GPU scores are counted without a sort, in the same cells and to the same bytes. Where it has all rows of an
# evaluation set it adds up the area as well, so that a few words come to the host in place of the cells.
#
# Weights become integers, so that sums do not depend on order: multiples of a power of two near (largest weight) *
# (rows) / 2**62, which for a million rows leaves 42 bits to the largest weight.

CAPACITY = 1 << 18
"""Most distinct scores counted apart: 6 MB a state; four times as many would send 25 MB per evaluation and worker."""
BLOCK_ROWS = 1 << 20
_TOTAL_BITS = 62  # of the sum of all weights, so that it and its halves fit an int64


@dataclass(frozen=True)
class CurveArea:
    """The area under the curve of all rows, not divided yet."""

    area: ExactSum
    negatives: int
    positives: int

    def __add__(self, other: CurveArea) -> CurveArea:
        raise DataError("areas under curves of parts of the rows do not add up; add counts of scores")

    def to_arrays(self) -> Arrays:
        return {"area": self.area.to_array(), "totals": np.array([self.negatives, self.positives], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> CurveArea:
        """Return the inverse of `to_arrays`; raises DataError where an array is absent or malformed."""
        totals = arrays.get("totals")
        if totals is None or totals.dtype != np.int64 or totals.shape != (2,):
            raise DataError(f"arrays: totals={totals!r} are no sums of two classes; pass what to_arrays returned")
        return cls(ExactSum.from_array(arrays["area"]), *totals.tolist())


@dataclass(frozen=True)
class ScoreCurve(Metric[KeyTable | CurveArea]):
    """What both areas share: counts of (negatives, positives) per score.

    Parameters
    ----------
    exponent : int or None
        Weights are counted in units of 2**exponent; `prepare` sets it.
    """

    device_loss: ClassVar[str | None] = "scores"
    device_curve: ClassVar[str | None] = None
    """What adds up `terms` on a GPU, one of `CURVES` of `devices/gpu/rows/metrics.py`; None: the host does, from
    counts. A subclass with terms of its own has its own, or none."""
    maximize: ClassVar[bool] = True
    exponent: int | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "device_curve" not in vars(cls) and not vars(cls).keys().isdisjoint(("terms", "value")):
            cls.device_curve = None

    @property
    def is_watched(self) -> bool:
        return super().is_watched and self.device_curve is not None

    def prepare(self, stats: LabelStats) -> Self:
        LabelRange(0.0, 1.0).check(self.name, stats)  # what lies between is refused when it is read
        if stats.n_rows == 0 or stats.max_weight <= 0:
            return replace(self, exponent=0)
        total = math.frexp(stats.max_weight)[1] + stats.n_rows.bit_length()  # 2**total exceeds the sum of weights
        return replace(self, exponent=total - _TOTAL_BITS)

    def partial(self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0) -> KeyTable:
        score = one_per_row(self.name, label, prediction)
        state = self._block(label[:0], score[:0], None)
        for block in row_blocks(label, score, weight, BLOCK_ROWS):
            state += self._block(*block)
        return state

    def _block(self, label: Array, score: Array, weight: Array | None) -> KeyTable:
        positive = label == 1
        self._check(label, positive | (label == 0))
        if np.isnan(score).any():
            raise self._unordered()
        counts = np.zeros((len(label), 2), dtype=np.int64)
        counts[np.arange(len(label)), positive.astype(np.intp)] = self._units(weight, len(label))
        return KeyTable.of(score.astype(np.float32), counts, capacity=CAPACITY)

    def _check(self, label: Array, is_class: Bool) -> None:
        if not is_class.all():
            raise DataError(
                f"label {label[~is_class][0]:g} for metric {self.name!r}: labels must be 0 or 1; use another metric"
            )

    def _unordered(self) -> DataError:
        return DataError(
            f"prediction holds NaN, which metric {self.name!r} cannot rank; look for NaN in base margins"
        )

    def partial_of_loss(
        self, kernels: MetricKernels, loss: str, label: Array, prediction: Array, weight: Array | None
    ) -> KeyTable | None:
        score = one_per_row(self.name, label, prediction)
        cells = kernels.count_scores(label, score, weight, self._scale(weight), CAPACITY)
        if cells is None:  # a label or a score that the host refuses
            return None
        offsets = np.array([0, len(cells.lower)], np.int64)
        return KeyTable(
            np.array([CAPACITY], np.int64), np.array([cells.bits], np.uint8), offsets, cells.lower, cells.upper,
            cells.counts,
        )  # fmt: skip

    def check_shape(self, label: Array, prediction: Array) -> None:
        one_per_row(self.name, label, prediction)

    def measure(self, rows: WatchedRows, state: DeviceArray) -> None:
        assert self.device_curve is not None
        rows.add_area(self.device_curve, self._scale(rows.weight), CAPACITY, state)

    def measured(self, words: Words, label: Array, weight: Array | None) -> CurveArea:
        assert self.device_curve is not None
        found: AreaWords = read_area(words, self.device_curve)
        if found.refused:
            self._check(label, (label == 0) | (label == 1))
            raise self._unordered()
        return CurveArea(ExactSum(*found.area), found.negatives, found.positives)

    def _scale(self, weight: Array | None) -> float:
        return 1.0 if weight is None else math.ldexp(1.0, -self._exponent)

    def _units(self, weight: Array | None, n_rows: int) -> Int64:
        if weight is None:
            return np.ones(n_rows, dtype=np.int64)
        return np.rint(np.ldexp(weight.astype(np.float64), -self._exponent)).astype(np.int64)

    @property
    def _exponent(self) -> int:
        if self.exponent is None:
            raise ParameterError(
                f"metric {self.name!r} needs the largest weight of all rows; call prepare(stats) first"
            )
        return self.exponent

    def value(self, state: KeyTable | CurveArea) -> float:
        found = self._summed(state.counts) if isinstance(state, KeyTable) else state
        if not found.positives or not found.negatives:
            return math.nan
        return self.area(found)

    def _summed(self, counts: Int64) -> CurveArea:
        negative, positive = counts[:, 0], counts[:, 1]
        negatives, positives = int(negative.sum()), int(positive.sum())
        terms = self.terms(negative, positive) if negatives and positives else ()
        return CurveArea(ExactSum.of(terms), negatives, positives)

    @abstractmethod
    def terms(self, negative: Int64, positive: Int64) -> Float64:
        """What each cell adds to the area, from weights per cell in increasing order of scores; both classes occur."""

    @abstractmethod
    def area(self, summed: CurveArea) -> float:
        """The area from the sum of its terms, rounded once: processors with wider vectors would add in another order;
        both classes occur."""

    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> KeyTable | CurveArea:
        if "area" in arrays:
            return CurveArea.from_arrays(arrays)
        state = KeyTable.from_arrays(arrays)
        if state.counts.shape[1] != 2 or state.capacities.tolist() != [CAPACITY]:
            raise DataError(f"arrays: not a state of metric {self.name!r}; pass what its to_arrays returned")
        return state


@dataclass(frozen=True)
class RocAuc(ScoreCurve):
    """Probability that a positive scores above a negative, ties counting half (Hanley and McNeil, "The meaning and
    use of the area under a receiver operating characteristic curve", 1982). NaN where a class is absent."""

    base_name: ClassVar[str] = "auc"
    device_curve: ClassVar[str | None] = "roc"

    def terms(self, negative: Int64, positive: Int64) -> Float64:
        below = np.cumsum(negative) - negative
        return np.asarray(positive.astype(np.float64) * (below.astype(np.float64) + 0.5 * negative))

    def area(self, summed: CurveArea) -> float:
        return summed.area.value() / (float(summed.positives) * float(summed.negatives))


@dataclass(frozen=True)
class AveragePrecision(ScoreCurve):
    """Sum of precision times the step in recall, thresholds descending: scikit-learn's `average_precision_score`,
    not the interpolated area that XGBoost reports. NaN where a class is absent."""

    base_name: ClassVar[str] = "aucpr"
    device_curve: ClassVar[str | None] = "precision"

    def terms(self, negative: Int64, positive: Int64) -> Float64:
        hits, all_above = np.cumsum(positive[::-1]), np.cumsum((positive + negative)[::-1])
        return np.asarray(positive[::-1] * (hits / all_above))

    def area(self, summed: CurveArea) -> float:
        return summed.area.value() / float(summed.positives)


@dataclass(frozen=True)
class LogLoss(MeanMetric):
    """Mean negative log-likelihood of labels in [0, 1] under the predicted probability of 1.

    Probabilities, and one minus them, are clipped at 1e-16 as in XGBoost, so a row costs at most 36.8. scikit-learn
    clips float32 predictions at 1.2e-7, which differs only for rows that are more certain than that.
    """

    base_name: ClassVar[str] = "logloss"
    device_loss: ClassVar[str | None] = "log"
    labels: ClassVar[LabelRange] = LabelRange(0.0, 1.0)

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
    labels: ClassVar[LabelRange] = LabelRange(0.0, 1.0)
    threshold: float = 0.5

    @property
    def device_parameters(self) -> tuple[float, ...]:
        return (self.threshold,)

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
