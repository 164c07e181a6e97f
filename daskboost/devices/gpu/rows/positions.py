"""Chances of clicks by position on a GPU: launches of `kernels/positions.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskboost.devices.cpu.positions import Positions
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.devices.losses import PositionStart
from daskboost.dtypes import Array

THREADS = 256
"""Threads of the only block, as in `kernels/positions.cu`."""


def position_shapes(n: int) -> Shapes:
    """Return the shapes of what is known of so many positions."""
    return {
        "chances": ((2, n), np.float32), "ratios": ((2, n), np.float32), "shrink": ((n + (n > 0),), np.float64),
        "costs": ((2, n, 2), np.int64),
    }  # fmt: skip


class PositionKernels:
    """The chances of positions, as rounds estimate them on a GPU; `devices/cpu/positions.py` has its twin.

    Parameters
    ----------
    runtime : Runtime
    start : PositionStart, optional
        What is known before the first round.
    n : int
        How many positions there are; 0 where none is corrected for.
    """

    def __init__(self, runtime: Runtime, start: PositionStart | None, n: int) -> None:
        self._runtime, self._n, self._power = runtime, n, 1.0 if start is None else start.power
        made = make_arrays(runtime, position_shapes(n))
        self.chances, self._ratios, self._shrink, self._costs = (
            made[name] for name in ("chances", "ratios", "shrink", "costs")
        )
        if n:
            known = Positions(start, n)
            overwrite(runtime, self.chances, known.chances)
            overwrite(runtime, self._ratios, known.ratios.of_chances)
            overwrite(runtime, self._shrink, known.ratios.shrink)
            overwrite(runtime, self._costs, known.ratios.costs)

    @property
    def arguments(self) -> tuple[DeviceArray | int, ...]:
        """What kernels multiply pairs by, and add their costs to."""
        return self._ratios, self._shrink, self._n, self._costs.view(np.uint64)

    def learn(self, add_up: Callable[[Array], None]) -> None:
        """Enqueue: the chances become those that the costs since the last time tell; `add_up` has them be those of all
        engines, in place."""
        add_up(self._costs)
        self._runtime.kernel("positions", "find_chances")(
            1, THREADS, self._costs.view(np.uint64), self._power, self._n, self.chances, self._ratios, self._shrink
        )
