"""Cut points: what turns a feature's values into bins.

A feature with `k` cut points has `k + 1` bins; bin `b` holds `cuts[b-1] <= x < cuts[b]`, so the split "bin <= b
goes left" is the split "x < cuts[b] goes left". Values beyond the outermost cut points belong to the outermost
bins, in training and in prediction alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.data.cuts.cell_counts import CellCounts, by_features
from daskboost.data.cuts.key_counts import values_of
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Bool, Float32, Int32, Int64
from daskboost.errors import DataError, ParameterError

# Dividing weighted cells into bins: the decision behind cut points, on plain arrays.
#
# Quantiles alone would spend several of a feature's bins on one heavy value (a zero that half of the rows share), of
# which all but one stay empty. So heavy cells get a bin each, and the other bins divide what is left equally.

def choose_borders(weights: Int64, max_bin: int) -> Int64:
    """Divide more than `max_bin` cells into `max_bin` bins.

    Parameters
    ----------
    weights : int64 array, shape (cells,)
        Positive; they sum to less than 2**63.

    Returns
    -------
    int64 array, shape (bins - 1,)
        Cells below each border: strictly increasing, within 1 and cells - 1.
    """
    # Quantiles are rounded to integers: weights that count rows must be the same ones as counts to round alike.
    if weights.min() > 1:
        weights = weights // np.gcd.reduce(weights)
    heavy = _heavy_cells(weights, max_bin)
    running = np.zeros(len(weights) + 1, np.int64)
    np.cumsum(weights, out=running[1:])
    if not heavy.any():
        return _equal_weights(running, max_bin)[1:-1]
    # Runs of light cells lie between heavy ones; a run is [start, stop).
    bounds = np.flatnonzero(np.diff(np.concatenate([[True], heavy, [True]])))
    starts, stops = bounds[0::2], bounds[1::2]
    bins = _apportion(running[stops] - running[starts], stops - starts, max_bin - int(heavy.sum()))
    borders = [np.flatnonzero(heavy), np.flatnonzero(heavy) + 1]
    for start, stop, count in zip(starts.tolist(), stops.tolist(), bins.tolist(), strict=True):
        if count > 0:
            borders.append(start + _equal_weights(running[start : stop + 1] - running[start], count))
    chosen = np.unique(np.concatenate(borders))
    # A run without a bin joins the heavy cell above it, or the one below if it is the last.
    empty = bins == 0
    joined = np.where(stops[empty] < len(weights), stops[empty], starts[empty])
    return np.setdiff1d(chosen, [0, len(weights), *joined])


def _heavy_cells(weights: Int64, max_bin: int) -> Bool:
    """Which cells weigh at least the mean bin of what remains once heavier ones have bins of their own."""
    heavy = np.zeros(len(weights), bool)
    if weights.max() < -(-weights.sum() // max_bin):
        return heavy
    order = np.argsort(-weights, kind="stable")[:max_bin]
    heaviest = weights[order]
    rest = weights.sum() - (np.cumsum(heaviest) - heaviest)
    light = np.flatnonzero(heaviest < -(-rest // np.arange(max_bin, 0, -1)))
    heavy[order[: light[0]]] = True  # the last of max_bin cells cannot hold the rest of more than max_bin
    return heavy


def _apportion(weights: Int64, cells: Int64, bins: int) -> Int64:
    """Share bins among runs of cells so that the heaviest bin is as light as can be (Adams's method).

    No run gets more bins than it has cells; if the runs outnumber the bins, the lightest get none.
    """
    shares = np.zeros(len(weights), np.int64)
    if len(weights) == 1:
        shares[0] = bins
        return shares
    shares[np.argsort(-weights, kind="stable")[:bins]] = 1
    queue = [(-weight, run) for run, weight in enumerate(weights.tolist())] if len(weights) < bins else []
    heapq.heapify(queue)
    for _ in range(bins - len(weights)):
        while queue and shares[queue[0][1]] == cells[queue[0][1]]:
            heapq.heappop(queue)
        run = queue[0][1]
        shares[run] += 1
        heapq.heapreplace(queue, (-weights[run] / shares[run], run))
    return shares


def _equal_weights(running: Int64, bins: int) -> Int64:
    """Borders of `bins` bins of about equal weight, both ends included, given the running weight at each border."""
    last, total = len(running) - 1, int(running[-1])
    inner = np.arange(1, bins)
    targets = inner * (total // bins) + inner * (total % bins) // bins
    above = np.searchsorted(running, targets)
    nearest = np.where(targets - running[above - 1] <= running[above] - targets, above - 1, above)
    # Strictly increasing, and room for the cells of every bin on either side.
    spread = np.maximum.accumulate(np.maximum(nearest - inner, 0)) + inner
    return np.concatenate([[0], np.minimum(spread, last - bins + inner), [last]])


PRESENT_THRESHOLD = np.float32(np.finfo(np.float32).max)
"""The split value behind a feature's last bin: every present value goes left, only missing ones can go right."""

MAX_BIN_LIMIT = 65_535
"""The most bins of a feature, missing not counted: bins are uint16 and one symbol is left for missing."""

MANY_CELLS = 1 << 22
"""With fewer cells, NumPy divides those of all features sooner than a new process has loaded a compiled loop: a feature
takes it .2 ms."""


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

    @classmethod
    def concatenate(cls, parts: Sequence[Cuts]) -> Cuts:
        """The cut points of several runs of features, one after the other."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return cls(
            np.concatenate([part.values for part in parts]), offsets,
            np.concatenate([part.has_missing for part in parts]),
        )  # fmt: skip

    @property
    def n_features(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_bins(self) -> Int32:
        """Bins per feature, missing not counted; int32, shape (features,)."""
        return (np.diff(self.offsets) + 1).astype(np.int32)

    @property
    def n_slots(self) -> Int64:
        """Bins per feature, and one for missing values where there are any; int64, shape (features,)."""
        return self.n_bins.astype(np.int64) + self.has_missing

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
        found = self._layouts.get(width)
        if found is None:
            offsets = np.concatenate([[0], np.cumsum(self.n_slots)]).astype(np.int64)
            found = self._layouts[width] = SlotLayout(offsets, self.n_bins, width)
        return found

    @cached_property
    def _layouts(self) -> dict[int, SlotLayout]:
        """Layouts of histograms by their width, which all fits of a data set have in common."""
        return {}

    def of(self, feature: int) -> Float32:
        """The cut points of one feature."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def validate(self) -> Cuts:
        """These cut points, once checked, for those that come from a file; DataError where dtypes, shapes or offsets
        are wrong, or a feature's values not finite and strictly increasing."""
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
        """The values `t` for which `x < t` sends exactly the bins `<= bins` left; float32, shape (splits,). A bin of -1
        has no meaning and gives any value."""
        places = self.offsets[features] + bins
        inside = places < self.offsets[features + 1]
        if not len(self.values):
            return np.full(len(places), PRESENT_THRESHOLD, np.float32)
        return np.where(inside, self.values.take(places, mode="clip"), PRESENT_THRESHOLD)


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


def make_cuts(cells: CellCounts, max_bin: int, threads: int = 1) -> Cuts:
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
    threads : int, default 1
        That may share in the work.

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
    if (lengths > max_bin).any():
        _divide(cells, max_bin, cut_after, threads)
    below = np.flatnonzero(cut_after)
    offsets = np.searchsorted(below, cells.offsets).astype(np.int32)
    values = _midpoints(values_of(cells.upper[below]), values_of(cells.lower[below + 1]))
    return Cuts(values, offsets, cells.has_missing).validate()


def with_codes(cuts: Cuts, codes: Mapping[int, int]) -> Cuts:
    """Give each code of some features a bin of its own, its number, whatever the rows have.

    `codes` : features with how many codes each has. The bin behind these is of values that are none of them.
    """
    if not codes:
        return cuts
    own = {feature: np.arange(1, n + 1, dtype=np.float32) for feature, n in codes.items()}
    values = [own[f] if f in own else cuts.of(f) for f in range(cuts.n_features)]
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return Cuts(np.concatenate(values), offsets, cuts.has_missing).validate()


def _divide(cells: CellCounts, max_bin: int, cut_after: Bool, threads: int) -> None:
    """Divide the cells of each feature that has more than `max_bin`."""
    offsets, counts = cells.offsets, cells.counts
    is_left = np.diff(offsets) > max_bin
    if len(counts) >= MANY_CELLS:
        from daskboost.devices.cpu.cuts import cut_features

        def cut(first: int, last: int) -> None:
            cut_features(offsets, counts, np.empty(max_bin - 1, np.int64), first, last, cut_after, is_left)

        by_features(cut, offsets, threads)
    for feature in np.flatnonzero(is_left).tolist():
        own = slice(offsets[feature], offsets[feature + 1])
        cut_after[own] = False
        cut_after[own.start + choose_borders(counts[own], max_bin) - 1] = True


def _midpoints(low: Float32, high: Float32) -> Float32:
    """Numbers t with low < t <= high, halfway if float32 has one there."""
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    return np.where(middle > low, middle, high) + np.float32(0)  # never -0.0
