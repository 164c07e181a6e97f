"""Logistic loss of all pairs of rows of a query with different labels, with the name of CatBoost 1.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.objectives.by_query import QueryObjective
from daskboost.objectives.ranking import RankPairwise

MOST_ROWS = 2**16
"""Rows of a query, of which all pairs are computed in every round: two billion."""


@dataclass(frozen=True)
class PairLogit(QueryObjective):
    """The chance that of two rows of a query the one with the larger label comes first is the logistic function of the
    difference of their scores; all pairs with different labels count the same, and labels' sizes do not.

    Source: Burges et al., "Learning to Rank using Gradient Descent", 2005 (RankNet). Labels are any numbers.
    """

    name: ClassVar[str] = "pairlogit"
    default_metric: ClassVar[str] = "ndcg"
    most_query_rows: ClassVar[int] = MOST_ROWS

    @property
    def query_loss(self) -> QueryLoss:
        """See `Objective.query_loss`; ``rank:pairwise`` counts each second derivative twice."""
        return QueryLoss(
            PairWeight.ONE, top=MOST_ROWS, drawn=0, exponential=False, normalized=False, by_score=False, curvature=1.0
        )

    def foreign_config(self) -> dict[str, Any]:
        return RankPairwise().config()
