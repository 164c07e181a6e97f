"""What all rows of a fit have, told by GPUs that are joined, each of which knows that of its own rows.

A GPU tells the others by sums to which these add zeros, so that nothing but adding up is asked of what joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime

BLOCK_BYTES = 1 << 28
"""Bytes that all GPUs tell each other at a time, about."""


@dataclass(frozen=True)
class Everywhere:
    """Where a GPU's rows, or their entries, lie among those of all."""

    runtime: Runtime
    joined: Collective
    begin: int
    n_rows: int
    """Rows of all GPUs."""

    def spread(self, own: DeviceArray, axis: int = 0) -> DeviceArray:
        """Return what all rows have, each GPU's of its own; of any numbers, rows along an axis; collective."""
        xp, shape, rows = self.runtime.xp, list(own.shape), [slice(None)] * own.ndim
        rows[axis], shape[axis] = slice(self.begin, self.begin + own.shape[axis]), self.n_rows
        n_bytes = int(np.prod(shape)) * own.itemsize
        words = xp.zeros(-(-n_bytes // 4), np.uint32)  # numbers of which all others have zeros: any sum has their bits
        found: DeviceArray = words.view(np.uint8)[:n_bytes].view(own.dtype).reshape(shape)
        found[tuple(rows)] = own
        self.joined.add_up(words)
        return found

    def blocks(self, own: DeviceArray) -> Iterator[tuple[int, DeviceArray]]:
        """Give what `spread` returns block by block, with the first row of each; as long as it is, whatever is done
        with them; collective."""
        at_once = max(1, BLOCK_BYTES // own.itemsize)
        for first, last in pairwise([*range(0, self.n_rows, at_once), self.n_rows]):
            begin, end = (min(max(each, first), last) for each in (self.begin, self.begin + len(own)))
            block = replace(self, begin=begin - first, n_rows=last - first)
            yield first, block.spread(own[begin - self.begin : end - self.begin])
