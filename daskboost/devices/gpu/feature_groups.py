"""Which features a block's shared memory holds the histograms of.

A block of the histogram kernel (`kernels/histogram.cu`) adds the rows of a tile to the bins of a group of neighbouring
features. Groups are as wide as shared memory allows, at most a warp's 32 columns, and start at multiples of their
width:

    features   0 ... 31 with 256 bins   32 ... 39 with 1,000   40 with 60,000   41 ...
    groups     one of 32                one of 8               one, "wide"      ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.dtypes import Int32, Int64

MOST_COLUMNS = 32
"""A warp's lanes, and the banks of shared memory."""
CELL_BYTES = 8
"""32 bits for g and 32 for h."""
GROUP_BYTES = 64 * 1024
"""Shared memory that every architecture gives a block, and three blocks at a time on the largest."""
WIDE = 0
"""In place of a number of columns: features whose bins fit no shared memory."""


@dataclass(frozen=True)
class FeatureGroups:
    """Groups of equal width."""

    columns: int
    """Columns of a group, a power of two; `WIDE` for single features without shared memory."""
    groups: Int32
    """int32, shape (groups, 3): first feature, features, most symbols of one of them."""

    @property
    def shared_bytes(self) -> int:
        """What a block needs."""
        return int(self.groups[:, 2].max(initial=0)) * CELL_BYTES * self.columns


def feature_groups(slots: Int64, n_padded: int) -> list[FeatureGroups]:
    """Divide features with so many histogram slots each; rows have room for `n_padded` symbols."""
    found: dict[int, list[tuple[int, int, int]]] = {}

    def divide(first: int, columns: int) -> None:
        own = slots[first : first + columns]
        if not len(own):
            return
        widest = int(own.max())
        if first + columns <= n_padded and widest * CELL_BYTES * columns <= GROUP_BYTES:
            found.setdefault(columns, []).append((first, len(own), widest))
        elif columns > 1:
            divide(first, columns // 2)
            divide(first + columns // 2, columns // 2)
        else:
            found.setdefault(WIDE, []).append((first, 1, widest))

    for first in range(0, len(slots), MOST_COLUMNS):
        divide(first, MOST_COLUMNS)
    return [FeatureGroups(columns, np.array(groups, np.int32)) for columns, groups in sorted(found.items())]


def padded_row_bytes(n_features: int, symbol_bytes: int) -> int:
    """Bytes from row to row: whole sectors of 32 bytes, which memory hands out, or a power of two below one."""
    needed = max(n_features * symbol_bytes, 4)
    return -(-needed // 32) * 32 if needed > 16 else 1 << (needed - 1).bit_length()
