"""Losses that devices have kernels for, by the numbers of `kernels/objectives.cuh`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np

from daskboost.dtypes import ArrayModule, Bool, Float32, Int64


class LossKernel(IntEnum):
    """What a kernel computes gradients of, and what its two parameters are."""

    GIVEN = 0
    """Nothing: gradients and hessians are there already."""
    SQUARED_ERROR = 1
    ABSOLUTE_ERROR = 2
    QUANTILE = 3
    """Gradient where the margin is not below the label, and where it is."""
    PSEUDO_HUBER = 4
    """Slope."""
    LOGISTIC = 5
    """Weight of rows whose label is 1."""
    POISSON = 6
    """Largest step."""
    GAMMA = 7
    TWEEDIE = 8
    """1 and 2 less the variance power."""
    SOFTMAX = 9
    """Softmax, of all outputs of a row together."""


class LinkKernel(IntEnum):
    """What a kernel makes of margins for metrics to see (`kernels/predictions.cu`, `kernels/softmax.cu`)."""

    MARGIN = 0
    """Nothing: metrics see margins."""
    SIGMOID = 1
    EXP = 2
    SOFTMAX = 3


@dataclass(frozen=True)
class DeviceLoss:
    """A loss in the words of a kernel."""

    kernel: LossKernel
    parameters: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    """Two float32 numbers per output, exactly those of the array expressions. All kernels but SOFTMAX's compute an
    output from its own margin alone."""


def ones_of(xp: ArrayModule, n: int) -> Float32:
    """Return so many ones, float32, in the memory of one; `xp` : numpy or cupy."""
    ones: Float32 = xp.lib.stride_tricks.as_strided(xp.ones(1, np.float32), (n,), (0,))
    return ones


def is_positive(values: Float32) -> Bool:
    """Which float32 numbers, none of them NaN, are above 0; by their bits, since expressions of CuPy take those below
    2**-126 for 0."""
    return values.view(np.int32) > 0


class PairWeight(IntEnum):
    """What a pair of rows of a query counts in a ranking loss."""

    ONE = 0
    """Each pair the same."""
    NDCG = 1
    """How much the query's NDCG would change if both rows swapped their places."""
    MAP = 2
    """How much its average precision would."""
    MRR = 3
    """How much the reciprocal rank of its first relevant row would; in noisy orders only, as the next."""
    ERR = 4
    """How much its expected reciprocal rank would, labels being chances that a row satisfies."""


class Noise(IntEnum):
    """What is added to scores; u is drawn from (0, 1)."""

    LOGISTIC = 0
    """log(u / (1 - u))."""
    GUMBEL = 1
    """-log(-log(u))."""


@dataclass(frozen=True)
class NoisyOrders:
    """Pairs of rows that lie near each other in the order of noisy scores."""

    neighbors: int
    """Places below its own that a row is paired with."""
    noise: Noise
    power: float
    """What noise is multiplied by."""
    decay: float
    """What a pair counts less from place to place, apart from the difference of gains; 0 where a metric tells it."""
    by_ideal: bool
    """Whether DCG is divided by that of the order of labels."""


@dataclass(frozen=True)
class PositionStart:
    """What a fit begins with that estimates the chances of clicks by the positions of rows."""

    relevant: tuple[float, ...]
    """Chances of rows that are clicked, by position, divided by that of the first one; 1 of positions beyond."""
    irrelevant: tuple[float, ...]
    """Chances of rows that are not, likewise."""
    power: float
    """What each round's estimates are raised to."""


@dataclass(frozen=True)
class QueryLoss:
    """A loss of pairs of rows of a query, which one of them should come before."""

    weight: PairWeight
    top: int
    """Rows of highest scores that are each paired with all rows of lower scores; 0 where pairs are drawn."""
    drawn: int
    """Pairs that are drawn for each row, with rows of other labels; 0 where pairs are those of `top`. Of `orders` their
    number, and `top` the rows that their metric sees, or 0."""
    exponential: bool
    """Whether a label's gain is 2**label - 1, rather than the label."""
    normalized: bool
    """Whether a query's gradients are divided by what grows with its pairs."""
    by_score: bool
    """Whether what a pair counts is divided by the difference of its scores and 0.01."""
    orders: NoisyOrders | None = None
    """Orders whose neighbors are the pairs."""
    label_gain: tuple[float, ...] = ()
    """Gain of each label, or () where `exponential` tells it."""
    curvature: float = 2.0
    """What second derivatives of pairs that are not of `orders` are multiplied by; XGBoost doubles them."""
    positions: int = 0
    """Positions of rows in the order of their ids, at most, whose chances of clicks divide what pairs count; 0 where
    labels are no clicks."""
    start: PositionStart | None = None
    """What is known of these positions before the first round."""

    @property
    def pairs_a_row(self) -> int:
        """Return how many pairs a row of a large query begins."""
        return self.drawn * (1 if self.orders is None else self.orders.neighbors) or self.top


class ListKernel(IntEnum):
    """What a loss of all rows of a query together is (`kernels/query_lists.cu`)."""

    SOFTMAX = 0
    """Cross-entropy of the softmax of scores with the labels."""
    RMSE = 1
    """Squared error, from which the mean residual of the query is taken away."""


class Undrawn:
    """A loss of queries that draws no pairs and corrects for no positions, as `QueryLoss` may."""

    drawn: ClassVar[int] = 0
    positions: ClassVar[int] = 0


@dataclass(frozen=True)
class ListLoss(Undrawn):
    """A loss of all rows of a query together, in time that grows as their number."""

    kernel: ListKernel
    beta: float = 1.0
    """What scores are multiplied by, of SOFTMAX."""
    penalty: float = 0.0
    """What is added to the second derivative of each row, of SOFTMAX, for a unit of the sum of labels and of `beta`."""


@dataclass(frozen=True)
class OwnLoss(Undrawn):
    """A loss of whole queries whose derivatives a function of arrays of the host gives."""

    function: Callable[[Float32, Float32, Int64], tuple[Float32, Float32]]
    """Returns g and h of rows, given their labels and scores, those of a query side by side, and the number of rows of
    each query."""


@dataclass(frozen=True, eq=False)
class GivenPairs(Undrawn):
    """Logistic loss of pairs of rows that users name; arrays of shape (pairs,)."""

    winner: Int64
    """Global ids of the rows that should come first."""
    loser: Int64
    """Global ids of the others."""
    weight: Float32
    """What each pair counts."""


@dataclass(frozen=True, eq=False)
class PlacedPairs(Undrawn):
    """`GivenPairs` of the rows of an engine's queries, which are known by their places in the order of queries."""

    winner: Int64
    loser: Int64
    weight: Float32


KernelLoss = QueryLoss | ListLoss | PlacedPairs
"""A loss of queries that devices compute."""
EngineLoss = KernelLoss | OwnLoss
"""A loss of queries as an engine has it."""
AnyQueryLoss = QueryLoss | ListLoss | OwnLoss | GivenPairs
"""A loss whose gradients need the rows of a query together."""
