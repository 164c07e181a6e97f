"""Logistic loss of pairs of rows of a query, all or those that users name, with the name of CatBoost 1.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from daskboost.devices.losses import AnyQueryLoss, GivenPairs, PairWeight, QueryLoss
from daskboost.dtypes import Float32, Int64
from daskboost.errors import DataError
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
    def query_loss(self) -> AnyQueryLoss:
        """See `Objective.query_loss`; ``rank:pairwise`` counts each second derivative twice."""
        return QueryLoss(
            PairWeight.ONE, top=MOST_ROWS, drawn=0, exponential=False, normalized=False, by_score=False, curvature=1.0
        )

    def config(self) -> dict[str, Any]:
        return {"name": self.name}

    def foreign_config(self) -> dict[str, Any]:
        return RankPairwise().config()


@dataclass(frozen=True, repr=False)
class PairLogitOfPairs(PairLogit):
    """`PairLogit` of given pairs, in place of all with different labels; see `pair_logit`, which makes it."""

    needs: ClassVar[tuple[str, ...]] = ("qid",)
    pairs: GivenPairs

    def __repr__(self) -> str:
        return self.name

    @property
    def query_loss(self) -> GivenPairs:
        return self.pairs

    def check_rows(self, n_rows: int) -> None:
        """Refuse pairs of rows that training data of so many rows has not: DataError."""
        pairs = self.pairs
        bad = np.maximum(pairs.winner, pairs.loser) >= n_rows
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"pairs[{at}] is ({pairs.winner[at]}, {pairs.loser[at]}), but the training data has {n_rows} rows, "
                "numbered from 0 on; number rows by their places in the data that is trained on"
            )

    @property
    def of_model(self) -> PairLogit:
        """See `Objective.of_model`: pairs are data, which models do not keep."""
        return PairLogit()


def pair_logit(pairs: object, pair_weight: object = None) -> PairLogitOfPairs:
    """Return the objective of pairs that users name.

    ``train(..., pairs=...)`` and ``DaskBoostRanker.fit(..., pairs=...)`` make it; for `cv`, `train_many` and
    `evaluate_features` it is what ``params["objective"]`` can be.

    Parameters
    ----------
    pairs : array of integers, shape (pairs, 2)
        Rows of the training data by their numbers, from 0 on: the one that should come first, and the other. A pair
        that is there twice counts twice.
    pair_weight : array, shape (pairs,), optional
        What each pair counts, finite and at least 0; 1 by default.

    Raises
    ------
    DataError
        Another shape, numbers that are no rows, a row paired with itself, weights that are negative or not finite.
    """
    rows = _row_numbers(np.asarray(pairs))
    weight = np.ones(len(rows), np.float32) if pair_weight is None else _weights(np.asarray(pair_weight), len(rows))
    return PairLogitOfPairs(
        GivenPairs(np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]), weight)
    )


def _row_numbers(given: npt.NDArray[Any]) -> Int64:
    if given.shape[1:] != (2,) or not len(given):
        raise DataError(
            f"pairs has the shape {given.shape}; give an array of shape (pairs, 2), the row that should come first and "
            "the other, with at least one pair"
        )
    if given.dtype.kind not in "iuf":
        raise DataError(f"pairs has the dtype {given.dtype}; give numbers of rows, which are integers")
    bad = ~((given >= 0) & (given < 2.0**53) & (np.rint(given) == given)).all(axis=1)  # also catches NaN
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(
            f"pairs[{at}] is ({given[at, 0]}, {given[at, 1]}), which are no numbers of rows; give integers from 0 on"
        )
    rows = given.astype(np.int64)
    twice = rows[:, 0] == rows[:, 1]
    if twice.any():
        at = int(np.argmax(twice))
        raise DataError(f"pairs[{at}] has row {rows[at, 0]} twice; pair two different rows, or leave it out")
    return rows


def _weights(given: npt.NDArray[Any], n: int) -> Float32:
    if given.shape != (n,) or given.dtype.kind not in "iufb":
        raise DataError(
            f"pair_weight has the shape {given.shape} and dtype {given.dtype} for {n} pairs; give a number for each"
        )
    bad = ~((given >= 0) & (given < np.finfo(np.float32).max))
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(
            f"pair_weight[{at}] is {given[at]}; weights must be finite and at least 0; a pair of weight 0 is ignored"
        )
    return given.astype(np.float32)

