"""The rounds of a fit, counted on a GPU: launches that are the same in every round find there which one it is, and so
its learning rate, its keys, and the place where its trees wait for the host.

The host uploads nothing for a round and copies nothing after it, so that a recorded round is all that a round takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.cpu.scales import ScaleRule
from daskboost.devices.gpu.rows import rounding as roundings
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.dtypes import UInt64

THREADS = 256
"""Threads of a block, as in `kernels/keep.cu`."""
KEEPING_BLOCKS = 8
"""Most blocks of a multiprocessor that copy what a round leaves."""


def round_shapes(n_rounds: int) -> Shapes:
    """Return the shapes of what `CountedRounds` knows of so many rounds."""
    return {
        "learning_rates": ((n_rounds,), np.float64), "learning_rate": ((1,), np.float64),
        "key_states": ((2,), np.uint64), "numbers": ((2,), np.int32),
    }  # fmt: skip


class CountedRounds:
    """Rounds that follow one another, each of which begins by `begin` and ends by `keep`.

    Parameters
    ----------
    runtime : Runtime
    learning_rates : sequence of float
        Of each round.
    first_iteration : int
        The iteration that is the first round.
    key_states : uint64, shape (2,)
        Of keys of rounding and of sampling (`fit/scales.py`).

    Attributes
    ----------
    learning_rate : float64, shape (1,)
        Of the current round.
    """

    def __init__(self, runtime: Runtime, learning_rates: Sequence[float], first_iteration: int, key_states: UInt64
                 ) -> None:  # fmt: skip
        self._runtime, self._first_iteration = runtime, first_iteration
        made = make_arrays(runtime, round_shapes(len(learning_rates)))
        self._learning_rates, self.learning_rate, self._key_states = (
            made[name] for name in ("learning_rates", "learning_rate", "key_states")
        )
        self._current, self._last = made["numbers"][:1], made["numbers"][1:]
        """Numbers of the round that has begun last, and of the one that has ended last. No launch that may run beside
        the trees of a round reads the former, nor writes the latter."""
        overwrite(runtime, self._learning_rates, np.array(learning_rates, np.float64))
        overwrite(runtime, self._key_states, key_states)
        made["numbers"].fill(-1)

    @property
    def ended(self) -> DeviceArray:
        """The number of the round that has ended last, -1 before the first one; int32, shape (1,)."""
        return self._last

    def begin(self, rounding: DeviceRounding, rule: ScaleRule) -> None:
        """Enqueue the beginning of the next round: scales of all outputs as `DeviceRounding.find_scales` finds them,
        keys and learning rate."""
        blocks = -(-rounding.n_outputs // roundings.THREADS)
        self._runtime.kernel("scales", "begin_round")(
            blocks, roundings.THREADS, rounding.tops, rounding.n_outputs, *rule.arguments, rounding.scales,
            rounding.sums, self._last, self._current, self._key_states, self._first_iteration, self._learning_rates,
            rounding.keys, self.learning_rate,
        )  # fmt: skip

    def keep(self, values: DeviceArray, ring: DeviceArray) -> None:
        """Enqueue: the round has ended, and its place in a ring holds what it left, or its first part, if several are
        kept.

        `values` : uint8, shape (bytes,). `ring` : uint8, shape (places, at least so many bytes), of any stride.
        """
        self._keep(values, self._current, ring, self._last)

    def keep_of_last(self, values: DeviceArray, ring: DeviceArray) -> None:
        """Enqueue the same of the last round that has ended, once more if need be; nothing before the first one."""
        self._keep(values, self._last, ring, None)

    def _keep(self, values: DeviceArray, number: DeviceArray, ring: DeviceArray, ended: DeviceArray | None) -> None:
        if not len(values):
            return
        blocks = min(-(-len(values) // THREADS), KEEPING_BLOCKS * self._runtime.multiprocessors)
        self._runtime.kernel("keep", "keep_bytes")(
            blocks, THREADS, values, len(values), number, len(ring), ring.strides[0], ring, ended
        )
