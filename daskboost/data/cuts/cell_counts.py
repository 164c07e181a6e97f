"""Counted cells: intervals of values and their weights over the whole data, refined until cut points are sure.

A cell that holds several values and more than 0.2 / max_bin of its feature's weight could hide a cut point; such
heavy cells are counted again, finer, in another pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Bool, Int64, UInt32, UInt64
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.data.cuts.sketch import DataSketch

RANK_ERROR_PARTS = 5  # cells of several values hold at most 1 / (5 max_bin) of the weight: rank error 0.2 / max_bin
CHANGED = "data: it changed between two passes; persist it, or make its source repeatable"
_REFINED_CELLS = 128  # per heavy cell: each pass resolves at least seven more bits of the 32


@dataclass(frozen=True, eq=False)
class Refinement:
    """The heavy cells to count again.

    Parameters
    ----------
    offsets : int64 array, shape (features + 1,)
    lower, upper : uint32 arrays, shape (heavy cells,)
        Least and greatest key of each, both inclusive; disjoint and increasing within a feature.
    """

    offsets: Int64
    lower: UInt32
    upper: UInt32

    @property
    def capacities(self) -> Int64:
        """Cells per feature that the next pass may occupy; int64, shape (features,)."""
        capacities: Int64 = np.maximum(np.diff(self.offsets) * _REFINED_CELLS, 1)
        return capacities


@dataclass(frozen=True, eq=False)
class CellCounts:
    """Disjoint intervals of values and what each weighs, over the whole data: what cut points are made from.

    Parameters
    ----------
    offsets : int64 array, shape (features + 1,)
    lower, upper : uint32 arrays, shape (cells,)
        Least and greatest key seen in each cell, increasing within a feature; equal for a single value.
    counts : int64 array, shape (cells,)
        Positive: rows, or integer weights.
    has_missing : bool array, shape (features,)
    """

    offsets: Int64
    lower: UInt32
    upper: UInt32
    counts: Int64
    has_missing: Bool

    @property
    def n_features(self) -> int:
        return len(self.offsets) - 1

    @property
    def features(self) -> Int64:
        """The feature of each cell; int64, shape (cells,)."""
        return np.repeat(np.arange(self.n_features), np.diff(self.offsets))

    def _reduced(self, operation: np.ufunc) -> Int64:
        """An operation over the counts of each feature, 0 without any; int64, shape (features,)."""
        filled = np.diff(self.offsets) > 0
        found = np.zeros(self.n_features, np.int64)
        found[filled] = operation.reduceat(self.counts, self.offsets[:-1][filled])
        return found

    def heavy(self, max_bin: int) -> Refinement | None:
        """The cells of several values that weigh more than 0.2 / max_bin of their feature; None if there are none."""
        allowed = self._reduced(np.add) // (RANK_ERROR_PARTS * max_bin)
        if (self._reduced(np.maximum) <= allowed).all():  # mostly; then cells are not looked at one by one
            return None
        heavy = (self.lower < self.upper) & (self.counts > np.repeat(allowed, np.diff(self.offsets)))
        if not heavy.any():
            return None
        per_feature = np.bincount(self.features[heavy], minlength=self.n_features)
        return Refinement(_offsets(per_feature), self.lower[heavy], self.upper[heavy])

    def refined(self, refinement: Refinement, finer: DataSketch) -> CellCounts:
        """These cells with the heavy ones replaced by their finer counts.

        Parameters
        ----------
        refinement : Refinement
            What :meth:`heavy` gave.
        finer : DataSketch
            The merged results of :func:`daskboost.data.cuts.sketch.refine_batch` over the whole data.

        Raises
        ------
        DataError
            If the finer counts do not add up to the replaced ones: the data changed between the passes.
        """
        inner = finer.cells()
        places, inner_places = _places(self), _places(inner)
        heavy = np.isin(places, _places(refinement))
        replaced = np.zeros(self.n_features, np.int64)
        np.add.at(replaced, self.features[heavy], self.counts[heavy])
        if not np.array_equal(replaced, inner._reduced(np.add)):
            raise DataError(CHANGED)
        places = np.concatenate([places[~heavy], inner_places])
        order = np.argsort(places, kind="stable")
        lower = np.concatenate([self.lower[~heavy], inner.lower])[order]
        upper = np.concatenate([self.upper[~heavy], inner.upper])[order]
        counts = np.concatenate([self.counts[~heavy], inner.counts])[order]
        per_feature = np.bincount((places >> np.uint64(32)).astype(np.int64), minlength=self.n_features)
        return CellCounts(_offsets(per_feature), lower, upper, counts, self.has_missing)


def _places(cells: CellCounts | Refinement) -> UInt64:
    """Feature times 2**32 plus least key of each cell: increasing."""
    features = np.repeat(np.arange(len(cells.offsets) - 1, dtype=np.uint64), np.diff(cells.offsets))
    return features << np.uint64(32) | cells.lower


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
