"""Counted cells: intervals of values and their weights over the whole data, refined until cut points are sure.

A cell that holds several values and more than 0.2 / max_bin of its feature's weight could hide a cut point; such
heavy cells are counted again, finer, in another pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from daskboost.dtypes import Bool, Int64, UInt32
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.data.cuts.sketch import DataSketch
    from daskboost.devices.cpu.cuts import FeatureCells

T = TypeVar("T")
LEAST_CELLS = 1 << 17
"""Least cells that a thread is worth: it looks at them in a fifth of a millisecond."""
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

    @classmethod
    def empty(cls, n_features: int) -> Refinement:
        """No cells."""
        return cls(np.zeros(n_features + 1, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))

    @classmethod
    def concatenate(cls, parts: Sequence[Refinement]) -> Refinement:
        """The cells of several runs of features, one after the other."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(
            _offsets(lengths), np.concatenate([part.lower for part in parts]),
            np.concatenate([part.upper for part in parts]),
        )  # fmt: skip

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

    def _kernel_cells(self) -> FeatureCells:
        """The cells as kernels take them."""
        from daskboost.devices.cpu.cuts import FeatureCells

        return FeatureCells(self.offsets, self.lower, self.upper, self.counts)

    def heavy(self, max_bin: int, threads: int = 1) -> Refinement | None:
        """The cells of several values that weigh more than 0.2 / max_bin of their feature; None if there are none."""
        filled, parts = np.diff(self.offsets) > 0, RANK_ERROR_PARTS * max_bin
        starts = self.offsets[:-1][filled]
        if not len(starts):
            return None
        most, totals = (operation.reduceat(self.counts, starts) for operation in (np.maximum, np.add))
        if (most <= totals // parts).all():  # mostly; then cells are not looked at one by one
            return None
        from daskboost.devices.cpu.cuts import mark_heavy

        is_heavy, n_heavy = np.empty(len(self.lower), np.bool_), np.empty(self.n_features, np.int64)
        cells = self._kernel_cells()
        by_features(lambda first, last: mark_heavy(cells, parts, first, last, is_heavy, n_heavy), self.offsets, threads)
        if not n_heavy.any():
            return None
        return Refinement(_offsets(n_heavy), self.lower[is_heavy], self.upper[is_heavy])

    def refined(self, refinement: Refinement, finer: DataSketch, threads: int = 1) -> CellCounts:
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
        from daskboost.devices.cpu.cuts import FeatureCells, refine_cells

        inner = finer.cells()
        lengths = np.diff(self.offsets) - np.diff(refinement.offsets) + np.diff(inner.offsets)
        offsets = _offsets(lengths)
        n = int(offsets[-1])
        cells, within = self._kernel_cells(), inner._kernel_cells()
        out = FeatureCells(offsets, np.empty(n, np.uint32), np.empty(n, np.uint32), np.empty(n, np.int64))
        if not all(by_features(lambda first, last: refine_cells(
            cells, refinement.offsets, refinement.lower, within, first, last, out
        ), offsets, threads)):  # fmt: skip
            raise DataError(CHANGED)
        return CellCounts(*out, self.has_missing)


def by_features(kernel: Callable[[int, int], T], offsets: Int64, threads: int) -> list[T]:
    """Run `kernel(first, last)` over features, whose cells begin at `offsets`, in ranges that are each worth a thread.
    """
    from daskboost.devices.cpu.threads import by_ranges

    n_features = len(offsets) - 1
    return by_ranges(kernel, n_features, threads, LEAST_CELLS * n_features // max(int(offsets[-1]), 1))


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
