"""Where flags are set, on a GPU: launches of `kernels/true_places.cu`.

CuPy's own `flatnonzero` passes sums between the lanes of a warp without a barrier, which racecheck reports.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.gradients import THREADS, stretches
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_host


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
