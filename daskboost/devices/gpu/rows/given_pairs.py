"""Gradients of pairs that users name, on a GPU: launches of `kernels/given_pairs.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture it.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu.given_pairs import pair_lists
from daskboost.devices.cpu.queries import Queries
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.devices.losses import PlacedPairs
from daskboost.dtypes import UInt64

THREADS = 256
"""Threads of a block, as in `kernels/given_pairs.cu`."""
WARPS = THREADS // 32


def list_shapes(n_rows: int, n_entries: int) -> Shapes:
    """Return the shapes of what is known of rows that have pairs, of which there are two entries each."""
    return {
        "rows": ((n_rows,), np.uint32), "begins": ((n_rows + 1,), np.int64), "others": ((n_entries,), np.uint32),
        "worths": ((n_entries,), np.float32), "factors": ((n_rows,), np.float64),
    }  # fmt: skip


class PairKernels:
    """Fills the gradients of given pairs on a GPU; `PairLoops` of `devices/cpu/given_pairs.py` is its twin.

    Parameters
    ----------
    runtime : Runtime
    pairs : PlacedPairs
    queries : Queries
        On the host, as the pairs.
    """

    def __init__(self, runtime: Runtime, pairs: PlacedPairs, queries: Queries) -> None:
        self.runtime = runtime
        lists = pair_lists(pairs, queries)
        self._n_rows = len(lists.rows)
        self._held = make_arrays(runtime, list_shapes(self._n_rows, len(lists.others)))
        for name, values in lists._asdict().items():
            overwrite(runtime, self._held[name], values)

    def fill(self, key: np.uint64, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue: `g` and `h` of the rows that have pairs, float32 of shape (rows,); `key` is not read."""
        self.fill_next(margin, g, h)

    def follow(self, draw_keys: UInt64, ended: DeviceArray) -> None:
        """Take nothing: there are no draws."""

    def fill_next(self, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue what `fill` does."""
        if self._n_rows:
            held = self._held
            self.runtime.kernel("given_pairs", "fill_pairs", THREADS=THREADS)(
                -(-self._n_rows // WARPS), THREADS, held["rows"], self._n_rows, held["begins"], held["others"],
                held["worths"], held["factors"], margin, g, h,
            )  # fmt: skip
