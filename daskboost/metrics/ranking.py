"""Metrics of rankings: a value of each query, averaged over queries by their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.queries import discounts_of, gain_table
from daskboost.devices.cpu.query_metrics import Measure, QueryValue, query_values
from daskboost.dtypes import Array
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.elementwise import LabelRange
from daskboost.metrics.metric import Metric, RankedRows, RatioState, one_per_row
from daskboost.objectives.ranking import check_gains

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.devices.gpu.rows.metrics import MetricKernels, Words
    from daskboost.devices.gpu.rows.watched import WatchedRows
    from daskboost.devices.gpu.runtime.launches import DeviceArray

NO_PLACE = "prediction holds NaN, which metric {!r} cannot rank; look for NaN in margins"
MOST_ROWS = 2**31
"""How many rows are the first ones where a metric takes all."""


@dataclass(frozen=True)
class RankingMetric(Metric[RatioState]):
    """What metrics of rankings share. Written ``ndcg``, ``ndcg@10`` or ``ndcg@10-``.

    Parameters
    ----------
    top : int
        Rows of highest scores that count; 0 for all.
    minus : bool
        Whether queries without a relevant row, a label above 0, are worth 0; else they are worth `otherwise`.
    """

    by_query: ClassVar[bool] = True
    device_loss: ClassVar[str | None] = "ranked"
    maximize: ClassVar[bool] = True
    kind: ClassVar[QueryValue]
    """What is computed of a query."""
    otherwise: ClassVar[float] = 1.0
    """What a query without a relevant row is worth; 1 as in XGBoost, where nothing could rank it better."""
    top: int = 0
    minus: bool = False

    @property
    def gains(self) -> tuple[float, ...]:
        """Gain of each label; () where a label is its gain."""
        return ()

    @property
    def name(self) -> str:
        of_top = f"@{self.top}" if self.top else ""
        return f"{self.base_name}{of_top}{'-' * self.minus}"

    def prepare(self, stats: LabelStats) -> Self:
        """See `Metric.prepare`; DataError for labels below 0."""
        LabelRange(0.0).check(self.name, stats)
        return self

    def partial(
        self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0
    ) -> RatioState:
        if len(one_per_row(self.name, label, prediction)):
            raise DataError(f"metric {self.name!r} is of queries, not of rows; make the data set with qid")
        return RatioState()

    def of_queries(self, rows: RankedRows, prediction: Array) -> RatioState:
        """Return the state of whole queries; `prediction` : of all rows, in their own order, shape (rows,).

        Raises
        ------
        DataError
            A prediction that is NaN, which has no place in a ranking.
        """
        score = prediction[rows.order].astype(np.float32)
        if np.isnan(score).any():
            raise DataError(NO_PLACE.format(self.name))
        values = np.empty(len(rows.weights))
        largest = int(np.diff(rows.begins).max(initial=0))
        query_values(self._measure, rows.label, score, rows.begins, discounts_of(largest), values)
        return RatioState(ExactSum.of(values * rows.weights), ExactSum.of(rows.weights))

    @property
    def _measure(self) -> Measure:
        otherwise = 0.0 if self.minus else self.otherwise
        return Measure(int(self.kind), self.top or MOST_ROWS, otherwise, self.gains)

    def partial_of_loss(
        self, kernels: MetricKernels, loss: str, label: Array, prediction: Array, weight: Array | None
    ) -> None:
        """Return None: rows alone have no state."""

    def check_shape(self, label: Array, prediction: Array) -> None:
        one_per_row(self.name, label, prediction)

    def measure(self, rows: WatchedRows, state: DeviceArray) -> None:
        rows.add_values(self._measure, state)

    def measured(self, words: Words, label: Array, weight: Array | None) -> RatioState:
        from daskboost.devices.gpu.rows.metrics import read_losses

        values, weights = (ExactSum(*own) for own in read_losses(words, len(label), is_weighted=True))
        if np.isnan(values.ratio(weights)) and weights.units:
            raise DataError(NO_PLACE.format(self.name))
        return RatioState(values, weights)

    def value(self, state: RatioState) -> float:
        return state.numerator.ratio(state.denominator)

    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> RatioState:
        return RatioState.from_arrays(arrays)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        """Read "10", "10-" or "-" behind the name."""
        found = re.fullmatch(r"(\d{0,9})(-?)", argument or "")
        if found is None or argument == "" or (found[1] and int(found[1]) == 0):
            raise ParameterError(
                f"metric '{cls.base_name}@{argument}': give how many rows count, as in '{cls.base_name}@10', or "
                f"'{cls.base_name}@10-' where queries without a relevant row shall be worth 0"
            )
        return cls(int(found[1] or 0), bool(found[2]))


@dataclass(frozen=True)
class Ndcg(RankingMetric):
    """Normalized discounted cumulative gain: gains of rows divided by log2(place + 1), and by what they are in the
    order of labels. Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002.

    Parameters
    ----------
    exponential : bool
        Whether the gain of a label is ``2**label - 1``, rather than the label (`ndcg_exp_gain`).
    label_gain : tuple of float
        Gain of each label; () where `exponential` tells it.
    """

    base_name: ClassVar[str] = "ndcg"
    kind: ClassVar[QueryValue] = QueryValue.NDCG
    exponential: bool = True
    label_gain: tuple[float, ...] = ()

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(gain_table(self.exponential, self.label_gain).tolist())

    def prepare(self, stats: LabelStats) -> Self:
        check_gains(f"metric {self.name!r}", stats, exponential=self.exponential, label_gain=self.label_gain)
        return super().prepare(stats)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        made = super().from_argument(argument, params)
        return cls(made.top, made.minus, bool(params.get("ndcg_exp_gain", True)), tuple(params.get("label_gain") or ()))


@dataclass(frozen=True)
class MeanAveragePrecision(RankingMetric):
    """Share of relevant rows down to each relevant row, averaged."""

    base_name: ClassVar[str] = "map"
    kind: ClassVar[QueryValue] = QueryValue.AVERAGE_PRECISION


@dataclass(frozen=True)
class QueryPrecision(RankingMetric):
    """Share of relevant rows among those of highest scores."""

    base_name: ClassVar[str] = "pre"
    kind: ClassVar[QueryValue] = QueryValue.PRECISION
    otherwise: ClassVar[float] = 0.0


@dataclass(frozen=True)
class ReciprocalRank(RankingMetric):
    """1 / place of the first relevant row. Queries without one are worth 0."""

    base_name: ClassVar[str] = "mrr"
    kind: ClassVar[QueryValue] = QueryValue.RECIPROCAL_RANK
    otherwise: ClassVar[float] = 0.0
