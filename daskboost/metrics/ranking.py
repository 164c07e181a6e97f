"""Metrics of rankings: a value of each query, averaged over queries by their weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.queries import discounts_of, gain_table
from daskboost.devices.cpu.query_metrics import Measure, QueryValue, query_values
from daskboost.dtypes import Array, Float64, UInt64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.elementwise import LabelRange
from daskboost.metrics.metric import Metric, RankedRows, RatioState, one_per_row, refuse_argument
from daskboost.objectives.ranking import MOST_EXPONENTIAL_LABEL, check_gains

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.devices.gpu.rows.metrics import MetricKernels, Words
    from daskboost.devices.gpu.rows.watched import WatchedRows
    from daskboost.devices.gpu.runtime.launches import DeviceArray

NO_PLACE = "prediction holds NaN, which metric {!r} cannot rank; look for NaN in margins"
MOST_ROWS = 2**31
"""How many rows are the first ones where a metric takes all."""
PATIENCE = 0.85
"""Probability that a user of PFound goes on behind a row that did not satisfy."""


@dataclass(frozen=True)
class RankingMetric(Metric[RatioState]):
    """What metrics of rankings share. Written ``ndcg``, ``ndcg@10`` or ``ndcg@10-``.

    Parameters
    ----------
    top : int
        Rows of highest scores that count; 0 for all.
    minus : bool
        Whether queries without a relevant row, a label above 0, are worth 0; else they are worth `otherwise`, or do not
        count where that is NaN.
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
        values, weights = self.values(rows, prediction), rows.weights
        counted = ~np.isnan(values)
        if not counted.all():
            values, weights = values[counted], weights[counted]
        return RatioState(ExactSum.of(values * weights), ExactSum.of(weights))

    def values(self, rows: RankedRows, prediction: Array) -> Float64:
        """Return what each query is worth, NaN where it does not count, shape (queries,); raises as `of_queries`."""
        score = prediction[rows.order].astype(np.float32)
        if np.isnan(score).any():
            raise DataError(NO_PLACE.format(self.name))
        values = np.empty(len(rows.weights))
        largest = int(np.diff(rows.begins).max(initial=0))
        query_values(self._measure, rows.label, score, rows.begins, discounts_of(largest), values)
        return values

    @property
    def _measure(self) -> Measure:
        """What is computed of each query; values that are NaN do not count."""
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


@dataclass(frozen=True)
class QueryRecall(RankingMetric):
    """Share of the relevant rows that are among those of highest scores. Queries without one are worth 1, as in
    CatBoost's ``RecallAt``: nothing is missed there."""

    base_name: ClassVar[str] = "recall"
    kind: ClassVar[QueryValue] = QueryValue.RECALL


@dataclass(frozen=True)
class ExpectedReciprocalRank(RankingMetric):
    """Mean of 1 / place of the row at which a user stops, who reads from the first place on and is satisfied by a row
    of label g with the probability ``(2**g - 1) / 2**largest``. Queries without a relevant row are worth 0. Source:
    Chapelle et al., "Expected reciprocal rank for graded relevance", 2009.

    Parameters
    ----------
    largest : int, optional
        The largest label that there is. By default `prepare` takes that of the rows that are evaluated; give
        ``ExpectedReciprocalRank(10, largest=4)`` as ``eval_metric`` to have the same for all sets.
    """

    base_name: ClassVar[str] = "err"
    kind: ClassVar[QueryValue] = QueryValue.EXPECTED_RECIPROCAL_RANK
    otherwise: ClassVar[float] = 0.0
    largest: int | None = None

    @property
    def gains(self) -> tuple[float, ...]:
        return tuple(gain_table(True).tolist())

    def prepare(self, stats: LabelStats) -> Self:
        """See `Metric.prepare`; DataError for labels that are no grades from 0 to `largest`."""
        most = MOST_EXPONENTIAL_LABEL if self.largest is None else self.largest
        if stats.n_rows and not (stats.all_integer and stats.maximum <= most):
            value = f"label {stats.maximum:g}" if stats.all_integer else "labels that are not whole"
            raise DataError(
                f"metric {self.name!r} takes whole labels from 0 to {most}, not {value}; make grades of them"
            )
        largest = max(int(stats.maximum), 0) if stats.n_rows and self.largest is None else self.largest
        return replace(super().prepare(stats), largest=largest or 0)

    @property
    def _measure(self) -> Measure:
        if self.largest is None:
            raise ParameterError(f"metric {self.name!r} needs the largest label of all rows; call prepare(stats) first")
        return super()._measure._replace(unit=math.ldexp(1.0, -self.largest))


@dataclass(frozen=True)
class PFound(RankingMetric):
    """Probability that a user finds a row that satisfies, who reads from the first place on, is satisfied by a row with
    the probability that its label is, and otherwise gives up with the probability .15. Queries without a relevant row
    are worth 0. Source: Gulin, Karpovich, Raskovalov and Segalovich, "Yandex at ROMIP'2009", 2009; CatBoost's
    ``PFound``."""

    base_name: ClassVar[str] = "pfound"
    kind: ClassVar[QueryValue] = QueryValue.PFOUND
    otherwise: ClassVar[float] = 0.0

    def prepare(self, stats: LabelStats) -> Self:
        """See `Metric.prepare`; DataError for labels that are no probabilities."""
        LabelRange(0.0, 1.0).check(self.name, stats)
        return self

    @property
    def _measure(self) -> Measure:
        return super()._measure._replace(patience=PATIENCE)


@dataclass(frozen=True)
class QueryAuc(RankingMetric):
    """Probability that a relevant row of a query has a higher score than another of its rows, equal scores counting
    half. Queries whose rows are all relevant, or none, do not count."""

    base_name: ClassVar[str] = "query-auc"
    kind: ClassVar[QueryValue] = QueryValue.AUC
    otherwise: ClassVar[float] = math.nan

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        """Take no argument: `Metric.from_argument`."""
        refuse_argument(cls.base_name, argument)
        return cls()


@dataclass(frozen=True, eq=False)
class QueryState:
    """What queries that count are worth, by increasing codes; arrays of shape (queries,)."""

    codes: UInt64
    values: Float64
    weights: Float64

    def __add__(self, other: QueryState) -> QueryState:
        own, others = self.to_arrays(), other.to_arrays()
        return QueryState.of(**{name: np.concatenate([own[name], others[name]]) for name in own})

    @classmethod
    def of(cls, codes: UInt64, values: Float64, weights: Float64) -> QueryState:
        """Return the state of queries in any order, of which those that are worth NaN do not count."""
        order = np.argsort(codes)
        order = order[~np.isnan(values[order])]
        return cls(codes[order], values[order], weights[order])

    def to_arrays(self) -> dict[str, Any]:
        return {"codes": self.codes, "values": self.values, "weights": self.weights}

    @property
    def ratio(self) -> RatioState:
        """What the metric itself knows of these queries."""
        return RatioState(ExactSum.of(self.values * self.weights), ExactSum.of(self.weights))


@dataclass(frozen=True)
class KeptValues(Metric[QueryState]):
    """A metric of rankings that keeps what each query of an evaluation set was worth, for fits in this process.

    Parameters
    ----------
    metric : RankingMetric
    rounds : list of QueryState
        One per round; `prepare` begins another list for each evaluation set of each fit.
    """

    base_name: ClassVar[str] = "kept"
    by_query: ClassVar[bool] = True
    metric: RankingMetric
    rounds: list[QueryState] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def maximize(self) -> bool:
        return self.metric.maximize

    def prepare(self, stats: LabelStats) -> KeptValues:
        return KeptValues(self.metric.prepare(stats))

    def partial(
        self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0
    ) -> QueryState:
        self.metric.partial(label, prediction, weight, first_row=first_row)
        return QueryState(np.empty(0, np.uint64), np.empty(0), np.empty(0))

    def of_queries(self, rows: RankedRows, prediction: Array) -> QueryState:
        return QueryState.of(rows.codes, self.metric.values(rows, prediction), rows.weights)

    def value(self, state: QueryState) -> float:
        return self.metric.value(state.ratio)

    def named_value(self, state: QueryState) -> tuple[str, float]:
        self.rounds.append(state)
        return super().named_value(state)

    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> QueryState:
        return QueryState(arrays["codes"], arrays["values"], arrays["weights"])
