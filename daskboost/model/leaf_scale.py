"""What models of leaves need to know of features: their cut points, which make positions of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.devices.leaf_models import NONE, PositionTable
from daskboost.dtypes import Float32, Int32, Int64
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.data.cuts.cut_points import Cuts


@dataclass(frozen=True, eq=False)
class LeafScale:
    """The cut points of the features that some leaf's model has."""

    feature: Int32
    """Increasing, shape (scaled features,)."""
    begin: Int64
    """Where the cut points of each begin, shape (scaled features + 1,)."""
    cuts: Float32
    """Increasing within a feature; a value is in the bin of as many as are not above it."""

    @classmethod
    def of_features(cls, cuts_of: dict[int, Float32]) -> LeafScale | None:
        """Return the scale of features; None of no feature."""
        if not cuts_of:
            return None
        feature = np.array(sorted(cuts_of), np.int32)
        found = [cuts_of[each] for each in feature.tolist()]
        begin = np.cumsum([0, *map(len, found)]).astype(np.int64)
        return cls(feature, begin, np.concatenate(found).astype(np.float32, copy=False))

    @classmethod
    def of_trees(cls, trees: Iterable[TreeTable], cuts: Cuts, earlier: LeafScale | None = None) -> LeafScale | None:
        """Return the scale of trees that have grown on data with these cut points, and of an earlier model, whose
        features have the same."""
        models = [tree.models for tree in trees if tree.models]
        used = {feature for each in models for feature in np.unique(each.feature).tolist()} - {NONE}
        own = cls.of_features({feature: cuts.of(feature) for feature in used})
        return joined([own, earlier])

    def of(self, feature: int) -> Float32:
        """Return the cut points of a feature; none of one that the scale has not."""
        at = int(np.searchsorted(self.feature, feature))
        is_here = at < len(self.feature) and self.feature[at] == feature
        return self.cuts[self.begin[at] : self.begin[at + 1]] if is_here else self.cuts[:0]

    @property
    def n_bins(self) -> list[int]:
        """Bins of each feature."""
        bins: list[int] = (np.diff(self.begin) + 1).tolist()
        return bins

    @property
    def positions(self) -> PositionTable:
        """The positions of the features' bins."""
        return PositionTable.of(self.n_bins)

    def agrees(self, other: LeafScale) -> bool:
        """Return whether the features that both have are cut at the same points."""
        both = np.intersect1d(self.feature, other.feature).tolist()
        return all(np.array_equal(self.of(feature), other.of(feature)) for feature in both)


def joined(scales: Sequence[LeafScale | None]) -> LeafScale | None:
    """Return the scale of the features of several, which agree."""
    return LeafScale.of_features({
        feature: scale.of(feature) for scale in scales if scale is not None for feature in scale.feature.tolist()
    })
