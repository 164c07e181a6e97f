"""Margins of rows on a GPU by trees whose leaves are vectors: launches of `kernels/predict_vectors.cu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daskboost.devices.gpu.predict import BLOCKS_PER_MULTIPROCESSOR, DeviceForest, Values
from daskboost.devices.gpu.runtime import DeviceArray, Runtime
from daskboost.dtypes import Int32

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict import PackedForest

THREADS = 256
"""Threads of a block, as in `kernels/predict_vectors.cu`."""
LEAF_BYTES = 2**28
"""Leaves of so many bytes are found at a time."""


class VectorForest:
    """A forest of trees of all outputs on a device.

    Parameters
    ----------
    runtime : Runtime
    forest : PackedForest
    """

    def __init__(self, runtime: Runtime, forest: PackedForest) -> None:
        self._runtime, self._n_trees = runtime, len(forest.node_start)
        self._leaves = DeviceForest(runtime, forest, range(self._n_trees), leaves=True)
        self._values, self._starts = runtime.xp.asarray(forest.values), runtime.xp.asarray(forest.node_start)

    def run(self, rows: Values, out: DeviceArray) -> Int32:
        """Add margins as `DeviceForest.run` does."""
        runtime, n_outputs = self._runtime, out.shape[1]
        step = max(1, LEAF_BYTES // (4 * self._n_trees))
        infinite: Int32 = np.empty(0, np.int32)
        for begin in range(0, rows.n_rows, step):
            part = rows.part(begin, min(begin + step, rows.n_rows))
            leaves = runtime.xp.zeros((part.n_rows, self._n_trees), np.int32)
            infinite = np.union1d(infinite, self._leaves.run(part, leaves)).astype(np.int32)
            margin = out[begin : begin + part.n_rows]
            most = BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors
            runtime.kernel("predict_vectors", "add_vectors")(
                min(-(-margin.size // THREADS), most), THREADS, leaves, self._n_trees, self._values, self._starts,
                n_outputs, part.n_rows, margin,
            )  # fmt: skip
        return infinite
