"""Rows in stretches, one for each block of a kernel that passes over all of them in order.

`true_places` says where flags are set (`kernels/true_places.cu`): CuPy's own `flatnonzero` passes sums between the
lanes of a warp without a barrier, which racecheck reports.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_host

THREADS = 256
TILE_ROWS = 4 * THREADS
"""Both as in `kernels/gradients.cu`, `range.cu` and `true_places.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Two rounds of the four that fit: enough to even out, and few enough for one atomic per block and sum."""


def stretches(runtime: Runtime, n_rows: int) -> tuple[int, int]:
    """Blocks, at least one, and how many rows each takes: whole tiles, one after the other."""
    most = BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors
    tiles = -(-n_rows // TILE_ROWS)
    block_rows = max(1, -(-tiles // most)) * TILE_ROWS
    return max(1, -(-n_rows // block_rows)), block_rows


def true_places(runtime: Runtime, flags: DeviceArray) -> DeviceArray:
    """Places of the flags that are set, increasing; int64, shape (set flags,). Waits.

    `flags` : uint8 or bool, shape (n,), C-contiguous.
    """
    xp, n = runtime.xp, flags.size
    if n == 0:
        none: DeviceArray = xp.empty(0, np.int64)
        return none
    blocks, block_flags = stretches(runtime, n)
    counts = xp.empty(blocks, np.uint32)
    common = (flags.view(np.uint8), n, block_flags, counts)
    runtime.kernel("true_places", "count_true")(blocks, THREADS, *common)
    places: DeviceArray = xp.empty(int(to_host(counts).sum(dtype=np.int64)), np.int64)
    runtime.kernel("true_places", "put_places")(blocks, THREADS, *common, places)
    return places
