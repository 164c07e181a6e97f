"""Cut points: what turns a feature's values into bins.

A feature with `k` cut points has `k + 1` bins; bin `b` holds `cuts[b-1] <= x < cuts[b]`, so the split "bin <= b
goes left" is the split "x < cuts[b] goes left". Values beyond the outermost cut points belong to the outermost
bins, in training and in prediction alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.data.borders import choose_borders
from daskboost.data.cell_counts import CellCounts
from daskboost.data.key_counts import values_of
from daskboost.data.sketch import DataSketch, Refinement
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Bool, Float32, Int32
from daskboost.errors import DataError, ParameterError

PRESENT_THRESHOLD = np.float32(np.finfo(np.float32).max)
"""The split value behind a feature's last bin: every present value goes left, only missing ones can go right."""

MAX_BIN_LIMIT = 65_535
"""The most bins of a feature, missing not counted: bins are uint16 and one symbol is left for missing."""


@dataclass(frozen=True)
class Cuts:
    """Cut points of all features.

    Parameters
    ----------
    values : float32 array, shape (total cut points,)
        Strictly increasing within a feature, finite.
    offsets : int32 array, shape (features + 1,)
        Feature `f` owns `values[offsets[f]:offsets[f + 1]]`.
    has_missing : bool array, shape (features,)
        Whether any training row lacks the feature.
    """

    values: Float32
    offsets: Int32
    has_missing: Bool

    @property
    def n_features(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_bins(self) -> Int32:
        """Bins per feature, missing not counted; int32, shape (features,)."""
        return (np.diff(self.offsets) + 1).astype(np.int32)

    @property
    def bin_offsets(self) -> Int32:
        """First global bin of each feature; int32, shape (features + 1,)."""
        return np.concatenate([[0], np.cumsum(self.n_bins)]).astype(np.int32)

    @property
    def total_bins(self) -> int:
        return len(self.values) + self.n_features

    def slot_layout(self, width: int = 1) -> SlotLayout:
        """Return where features lie in histograms: their bins, and one slot for missing values where the training data
        has any.

        `width` : columns of gradients that trees search side by side.
        """
        slots = self.n_bins.astype(np.int64) + self.has_missing
        return SlotLayout(np.concatenate([[0], np.cumsum(slots)]).astype(np.int64), self.n_bins, width)

    def of(self, feature: int) -> Float32:
        """The cut points of one feature."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def validate(self) -> Cuts:
        """These cut points, once checked; for those that come from a file.

        Raises
        ------
        DataError
            If dtypes, shapes or offsets are wrong, or a feature's values not finite and strictly increasing.
        """
        arrays = (self.values, self.offsets, self.has_missing)
        dtypes = [str(array.dtype) for array in arrays]
        shapes = [array.shape for array in arrays]
        n_features = self.has_missing.size
        if dtypes != ["float32", "int32", "bool"] or shapes != [(self.values.size,), (n_features + 1,), (n_features,)]:
            raise DataError(f"cuts: arrays of {dtypes} and shapes {shapes} are not cut points")
        lengths = np.diff(self.offsets.astype(np.int64))
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or (lengths < 0).any():
            raise DataError(f"cuts: offsets do not divide the {len(self.values)} values among the features")
        if (lengths >= MAX_BIN_LIMIT).any():
            raise DataError(f"cuts: a feature has {lengths.max() + 1} bins; at most {MAX_BIN_LIMIT} are allowed")
        if not np.isfinite(self.values).all():
            raise DataError("cuts: values contain NaN or infinity; cut points are finite")
        if not rises_within(self.values, self.offsets):
            raise DataError("cuts: values of a feature are not strictly increasing")
        return self

    def thresholds(self, features: Int32, bins: Int32) -> Float32:
        """`threshold` of many splits; float32, shape (splits,)."""
        places = self.offsets[features] + bins
        inside = places < self.offsets[features + 1]
        values = np.full(len(places), PRESENT_THRESHOLD, np.float32)
        values[inside] = self.values[places[inside]]
        return values

    def threshold(self, feature: int, bin_: int) -> np.float32:
        """The value `t` for which `x < t` sends exactly the bins `<= bin_` left."""
        cuts = self.of(feature)
        return cuts[bin_] if bin_ < len(cuts) else PRESENT_THRESHOLD


def rises_within(values: npt.NDArray[Any], starts: npt.NDArray[np.integer]) -> bool:
    """Whether values increase strictly within each run.

    Parameters
    ----------
    values : array, shape (values,)
        Without NaN.
    starts : integer array
        Where runs start, each from 0 to the number of values.
    """
    rises = np.ones(len(values) + 1, np.bool_)
    rises[1:-1] = values[1:] > values[:-1]
    rises[starts] = True
    return bool(rises.all())


def cuts_of_sketch(sketch: DataSketch, refine: Callable[[Refinement], DataSketch], max_bin: int) -> Cuts:
    """Choose cut points from a sketch, and from as many further reads as the guarantee needs: mostly none, up to three.

    Parameters
    ----------
    sketch : DataSketch
        Of the whole data.
    refine : callable
        Reads the whole data again and counts it in the finer cells that it is given.
    max_bin : int
        As for :func:`make_cuts`.
    """
    cells = sketch.cells()
    while (refinement := cells.heavy(max_bin)) is not None:
        cells = cells.refined(refinement, refine(refinement))
    return make_cuts(cells, max_bin)


def make_cuts(cells: CellCounts, max_bin: int) -> Cuts:
    """Choose cut points.

    A feature of at most `max_bin` cells gets a bin per cell: per distinct value, since cells are single values then.
    Otherwise values as heavy as a bin get a bin of their own, and the bins left divide the rest into equal weights:
    each cut point is the border of cells that is nearest to its quantile, hence within 0.2 / max_bin of it in rank
    once :meth:`CellCounts.heavy` finds nothing. A cut point between neighbours a < b is their midpoint, rounded to
    float32 so that a < cut <= b.

    Parameters
    ----------
    cells : CellCounts
        Of the whole data.
    max_bin : int
        The most bins of a feature, 2 to 65,535; missing values do not count as a bin.

    Raises
    ------
    ParameterError
        If `max_bin` is out of range.
    """
    if not 2 <= max_bin <= MAX_BIN_LIMIT:
        raise ParameterError(f"max_bin: {max_bin} is out of range; choose 2 to {MAX_BIN_LIMIT}")
    lengths = np.diff(cells.offsets)
    # Whether a cut point follows a cell; first, behind every cell that has a neighbour above it.
    cut_after = np.ones(len(cells.lower), bool)
    cut_after[cells.offsets[1:][lengths > 0] - 1] = False
    for feature in np.flatnonzero(lengths > max_bin).tolist():
        own = slice(cells.offsets[feature], cells.offsets[feature + 1])
        cut_after[own] = False
        cut_after[own.start + choose_borders(cells.counts[own], max_bin) - 1] = True
    below = np.flatnonzero(cut_after)
    offsets = np.searchsorted(below, cells.offsets).astype(np.int32)
    values = _midpoints(values_of(cells.upper[below]), values_of(cells.lower[below + 1]))
    return Cuts(values, offsets, cells.has_missing).validate()


def _midpoints(low: Float32, high: Float32) -> Float32:
    """Numbers t with low < t <= high, halfway if float32 has one there."""
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    return np.where(middle > low, middle, high) + np.float32(0)  # never -0.0
