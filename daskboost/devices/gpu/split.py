"""The best splits in histograms that lie on a GPU: launches of `kernels/split.cu` and `split_level.cu`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.views import DeviceLayout
from daskboost.dtypes import Float64, Int32, Int64, UInt8, UInt64

THREADS = 128
"""As in the kernels."""
WARP = 32
RESULTS = 6
"""Numbers of a result: gain (its bits), feature, bin, default left, sums of g and h on the left."""


@dataclass(frozen=True)
class Regular:
    """What a fit regularizes with."""

    reg_lambda: float
    alpha: float
    max_step: float
    least_h: float
    plain: bool
    """Whether leaf values have no limits."""
    monotone: Int32
    """int32, shape (features,)."""


@dataclass(frozen=True)
class Level:
    """Nodes to search, on the host; arrays of shape (nodes, ...)."""

    addresses: UInt64
    """Of each node's histogram, its parent's (0 where rows have built its own) and its sibling's; shape (3, nodes)."""
    sums: Int64
    bounds: Float64
    allowed: UInt8
    """Shape (nodes, features), or (1, features) for all."""
    units: tuple[float, float]


@dataclass
class SplitKernels:
    """Searches all features of histograms in one GPU's memory."""

    layout: DeviceLayout
    _monotone: tuple[Int32, DeviceArray] | None = field(default=None, init=False)
    _allowed: tuple[bytes, DeviceArray] | None = field(default=None, init=False)

    @property
    def runtime(self) -> Runtime:
        return self.layout.runtime

    def best_per_node(self, level: Level, regular: Regular) -> npt.NDArray[np.int64]:
        """Each node's best split; int64, shape (nodes, RESULTS), on the host."""
        xp, n, n_features = self.runtime.xp, len(level.sums), len(self.layout.host.n_bins)
        gains, places = xp.empty((n, n_features)), xp.empty((n, n_features), np.int32)
        lefts, results = xp.empty((n, n_features, 2), np.int64), xp.empty((n, RESULTS), np.int64)
        self.runtime.kernel("split", "best_of_features")(
            -(-n * n_features * WARP // THREADS), THREADS, *self._common(level, regular), gains, places, lefts
        )
        self.runtime.kernel("split", "best_of_nodes")(n, THREADS, gains, places, lefts, n_features, results)
        return to_host(results)

    def best_of_level(self, level: Level, regular: Regular) -> npt.NDArray[np.int64]:
        """The one split that gains most over all nodes; int64, shape (nodes, RESULTS), on the host."""
        xp, n, n_features = self.runtime.xp, len(level.sums), len(self.layout.host.n_bins)
        prefix = xp.empty((n, self.layout.host.n_slots, 2), np.int64)
        gains, places = xp.empty(n_features), xp.empty(n_features, np.int32)
        results = xp.empty((n, RESULTS), np.int64)
        common = self._common(level, regular)
        self.runtime.kernel("split_level", "sum_bins")(
            -(-n * n_features * WARP // THREADS), THREADS, *common[:3], *common[7:9], n_features, n, prefix
        )
        self.runtime.kernel("split_level", "best_of_features")(
            n_features, THREADS, prefix, *common[3:], gains, places
        )
        self.runtime.kernel("split_level", "best_of_level")(
            1, THREADS, prefix, *common[3:4], *common[7:9], n_features, n, gains, places, results
        )
        return to_host(results)

    def _common(self, level: Level, regular: Regular) -> tuple[Any, ...]:
        """Arguments that the searching kernels share."""
        n, n_features = len(level.sums), len(self.layout.host.n_bins)
        bounds = np.ascontiguousarray(level.bounds).view(np.int64)
        rows = [*level.addresses.view(np.int64), level.sums.reshape(-1), bounds.reshape(-1)]
        packed = to_device(self.runtime, np.concatenate(rows))  # one copy for all
        own, parents, siblings = (packed[i * n : (i + 1) * n].view(np.uint64) for i in range(3))
        return (
            own, parents, siblings, packed[3 * n : 5 * n], packed[5 * n : 7 * n].view(np.float64),
            self._allowed_of(level.allowed), 0 if len(level.allowed) == 1 else n_features, self.layout.offsets,
            self.layout.n_bins, self._monotone_of(regular.monotone), n_features, n, *level.units, regular.reg_lambda,
            regular.alpha, regular.max_step, regular.least_h, int(regular.plain),
        )  # fmt: skip

    def _allowed_of(self, allowed: UInt8) -> DeviceArray:
        """On the GPU; the last one is kept, since most trees allow every node the same features."""
        key = allowed.tobytes()
        if self._allowed is None or self._allowed[0] != key:
            self._allowed = (key, to_device(self.runtime, allowed))
        return self._allowed[1]

    def _monotone_of(self, monotone: Int32) -> DeviceArray:
        if self._monotone is None or self._monotone[0] is not monotone:
            self._monotone = (monotone, to_device(self.runtime, monotone))
        return self._monotone[1]


def address_of(array: DeviceArray) -> int:
    """Where a device array begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
