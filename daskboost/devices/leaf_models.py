"""Models of leaves: what a row adds to its leaf's value, linear in the positions of the row's bins.

A bin's position is an integer from -REACH to REACH, in even steps over the feature's bins, and 0 for a missing value.
So it tells a row's rank, not its value: heavy tails are harmless, nothing is extrapolated beyond the training values,
and rows in training, which have bins alone, get what predictions of their values get. Of 256 bins nearly each has a
position of its own. `docs/growth.md` has what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.dtypes import Float32, Int8, Int32, Int64

MOST_TERMS = 5
"""Features of a leaf's model, at most: the last ones on its path."""
REACH = 127
"""The position of a feature's last bin, in one signed byte."""
LARGEST_SQUARE = (2**15 - 1) * REACH**2
"""The most that a row of large data adds to a sum of hessian times two positions; small data's sums are below that of
its gradients, 2**31, times REACH**2."""
MOST_ROWS = (2**63 - 1) // LARGEST_SQUARE
"""Rows whose sums are sure to fit int64: 17 billion."""
NONE = -1
"""Feature of a term that there is not; there are none behind it."""


@dataclass(frozen=True, eq=False)
class LeafModels:
    """The models of a tree's leaves; arrays have shape (nodes, terms), or (0, 0) where all leaves are constant."""

    feature: Int32
    """Feature of each term, NONE from the first that a node has not on."""
    slope: Float32
    """What a row adds for each step of its position; learning rate included."""

    def __bool__(self) -> bool:
        """Return whether some leaf has a model."""
        return self.feature.size > 0

    @classmethod
    def of_nodes(cls, feature: Int32, slope: Float32) -> LeafModels:
        """Return models of nodes, without terms that none has; `NO_MODELS` where no node has any."""
        n_terms = int((feature != NONE).sum(axis=1).max(initial=0))
        if not n_terms:
            return NO_MODELS
        return cls(np.ascontiguousarray(feature[:, :n_terms]), np.ascontiguousarray(slope[:, :n_terms]))

    @classmethod
    def of_sizes(cls, sizes: Int64, feature: Int64, slope: Float32) -> LeafModels:
        """Return models of nodes whose terms lie one node behind the other, given how many each node has."""
        shape = len(sizes), int(sizes.max(initial=0))
        features, slopes = np.full(shape, NONE, np.int32), np.zeros(shape, np.float32)
        is_term = np.arange(shape[1]) < sizes[:, None]
        features[is_term], slopes[is_term] = feature, slope
        return cls.of_nodes(features, slopes)

    @classmethod
    def joined(cls, trees: Sequence[LeafModels], n_nodes: Sequence[int]) -> LeafModels:
        """Return the models of trees one behind the other, given how many nodes each has."""
        n_terms = max((own.feature.shape[1] for own in trees), default=0)
        if not n_terms:
            return NO_MODELS
        shape = sum(n_nodes), n_terms
        feature, slope = np.full(shape, NONE, np.int32), np.zeros(shape, np.float32)
        begin = 0
        for own, n in zip(trees, n_nodes, strict=True):
            if own:
                feature[begin : begin + n, : own.feature.shape[1]] = own.feature
                slope[begin : begin + n, : own.feature.shape[1]] = own.slope
            begin += n
        return cls(feature, slope)

    def part(self, begin: int, end: int) -> LeafModels:
        """Return the models of the nodes `begin..end`."""
        return LeafModels.of_nodes(self.feature[begin:end], self.slope[begin:end]) if self else NO_MODELS

    def terms(self, node: int) -> list[tuple[int, float]]:
        """Return the features of a node's model with their slopes."""
        if not self:
            return []
        pairs = zip(self.feature[node].tolist(), self.slope[node].tolist(), strict=True)
        return [(feature, slope) for feature, slope in pairs if feature != NONE]

    def sizes(self, n_nodes: int) -> Int64:
        """Return how many terms each of the tree's nodes has; shape (nodes,)."""
        return (self.feature != NONE).sum(axis=1, dtype=np.int64) if self else np.zeros(n_nodes, np.int64)

    def reach(self, n_nodes: int) -> Float32:
        """Return the most by which a row's sum can differ from its leaf's value; shape (nodes,)."""
        return np.abs(self.slope).sum(axis=1) * np.float32(REACH) if self else np.zeros(n_nodes, np.float32)

    def over(self, divisor: np.float32) -> LeafModels:
        """Return the models with all slopes divided."""
        return LeafModels(self.feature, self.slope / divisor) if self else self


NO_MODELS = LeafModels(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))
"""The models of any tree whose leaves are constant."""


def positions(n_bins: int) -> Int8:
    """Return the position of each of a feature's bins, and last that of a missing value; shape (bins + 1,).

    In even steps from -REACH to REACH, rounded half up; a feature of one bin has position 0.
    """
    out = np.zeros(n_bins + 1, np.int8)
    if n_bins > 1:
        top = n_bins - 1
        out[:-1] = (2 * REACH * (2 * np.arange(n_bins, dtype=np.int64) - top) + top) // (2 * top)
    return out


@dataclass(frozen=True, eq=False)
class PositionTable:
    """Positions of the bins of several features, one feature behind the other."""

    begin: Int64
    """Where those of each feature begin, shape (features + 1,)."""
    position: Int8

    @classmethod
    def of(cls, n_bins: Sequence[int]) -> PositionTable:
        """Return the positions of features of so many bins."""
        tables = [positions(n) for n in n_bins]
        begin = np.cumsum([0, *map(len, tables)]).astype(np.int64)
        return cls(begin, np.concatenate([np.empty(0, np.int8), *tables]))


def n_sums(n_terms: int) -> int:
    """Return how many sums a leaf's normal equations have: g times 1 and times each position, then h times each pair of
    these, the lower triangle row by row."""
    return (n_terms + 1) * (n_terms + 4) // 2
