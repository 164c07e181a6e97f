"""Cut points as quantizing kernels search them: branchlessly, the same number of steps for all values of a feature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.dtypes import Float32, Int32, Int64, UInt8


class SearchTables(NamedTuple):
    """Each feature's cut points, padded to `2**depth - 1` entries with NaN, which compares false and so is never
    counted."""

    cuts: Float32
    """The tables of all features, one after the other."""
    offsets: Int64
    """Where each feature's begins, shape (features + 1,)."""
    depths: UInt8
    """Steps of the search in each, shape (features,)."""
    symbols: Int32
    """What goes with each feature's bins, shape (features,): the symbol of a missing value in a dense layout, -1 where
    that has no room for it; the first global bin in a CSR layout."""

    @classmethod
    def of(cls, values: Float32, offsets: Int32, symbols: Int32) -> SearchTables:
        """Make them of cut points, of which feature `f` has `values[offsets[f]:offsets[f + 1]]`."""
        n_cuts = np.diff(offsets).astype(np.int64)
        depths = np.frexp(n_cuts.astype(np.float64))[1].astype(np.uint8)
        starts = np.concatenate([[0], np.cumsum((1 << depths.astype(np.int64)) - 1)]).astype(np.int64)
        cuts = np.full(starts[-1], np.nan, np.float32)
        cuts[np.arange(len(values)) + np.repeat(starts[:-1] - offsets[:-1], n_cuts)] = values
        return cls(cuts, starts, depths, symbols)

    def group_bytes(self, columns: int) -> int:
        """Bytes of the largest of the groups of so many columns."""
        n = len(self.depths)
        firsts = np.arange(0, n, columns)
        return 4 * int((self.offsets[np.minimum(firsts + columns, n)] - self.offsets[firsts]).max(initial=0))
