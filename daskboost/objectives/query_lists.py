"""Losses of all rows of a query together, with the names, parameters and defaults of CatBoost 1.2.

`daskboost/devices/cpu/query_lists.py` computes their gradients, from what `query_loss` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from daskboost.devices.losses import ListKernel, ListLoss
from daskboost.errors import DataError
from daskboost.objectives.by_query import QueryObjective
from daskboost.objectives.objective import number_parameter
from daskboost.objectives.ranking import RankPairwise

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats

LARGEST = 1e6
"""What parameters must be below."""


class ListObjective(QueryObjective):
    """A loss that XGBoost lacks: files for it say ``rank:pairwise``, whose predictions are scores as well."""

    default_metric: ClassVar[str] = "ndcg"

    def foreign_config(self) -> dict[str, Any]:
        return RankPairwise().config()

    def parameters(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class QuerySoftMax(ListObjective):
    """Cross-entropy of a query's labels with the softmax of its scores: ``-sum(label * log(softmax(beta * score)))``.

    Source: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach", 2007, whose top-one
    probabilities are these; the second derivative and its penalty are CatBoost's.

    Parameters
    ----------
    querysoftmax_beta : float in (0, 1e6), default 1
        What scores are multiplied by.
    querysoftmax_lambda : float in [0, 1e6), default 0.01
        What is added to the second derivative of each row, ``beta * p * (1 - p)``, before that is multiplied by `beta`
        and the sum of the query's labels.
    """

    name: ClassVar[str] = "querysoftmax"
    section: ClassVar[str] = "query_softmax_param"
    querysoftmax_beta: float = 1.0
    querysoftmax_lambda: float = 0.01

    @property
    def query_loss(self) -> ListLoss:
        return ListLoss(ListKernel.SOFTMAX, self.querysoftmax_beta, self.querysoftmax_lambda)

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        if stats.minimum < 0:
            raise DataError(
                f"label {stats.minimum:g} is out of range for objective {self.name!r}: labels are shares of a query's "
                "softmax, at least 0; add a constant to them, or use objective='queryrmse'"
            )

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return cls(
            number_parameter(params, "querysoftmax_beta", 1.0, 0.0, LARGEST),
            number_parameter(params, "querysoftmax_lambda", 0.01, 0.0, LARGEST, closed_low=True),
        )


@dataclass(frozen=True)
class QueryRmse(ListObjective):
    """Squared error, from which the mean residual of the query is taken away: ``sum((r - mean(r))**2) / 2``, ``r``
    being ``label - score``. What all rows of a query have in common need not be learnt.

    The second derivative counts 1 for each row, as in CatBoost.
    """

    name: ClassVar[str] = "queryrmse"

    @property
    def query_loss(self) -> ListLoss:
        return ListLoss(ListKernel.RMSE)
