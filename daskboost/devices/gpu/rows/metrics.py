"""Sums of losses and counts of scores: launches of `kernels/metric_losses.cu` and `kernels/score_counts.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    KernelArgument,
    Runtime,
    element_stride,
    to_device,
    to_host,
)
from daskboost.devices.gpu.runtime.stretches import true_places
from daskboost.dtypes import Int64, UInt32

THREADS = 256
"""Threads of a block, as in both kernels."""
LOSSES = (
    "squared", "absolute", "relative", "pseudo-huber", "pinball", "log", "wrong side", "multiclass log", "wrong class",
    "squared log", "gamma",
)  # fmt: skip
"""By their numbers in `kernels/metric_losses.cu`."""
UNIT_EXPONENT = -100
"""Exponent of a unit of the sums of `kernels/wide_sum.cuh`."""
BLOCKS_PER_MULTIPROCESSOR = 4
"""Enough to hide the latency of reading rows; threads stride over the rest."""
SCORE_ROWS = 2**22
"""Rows whose scores are counted at a time; neighbouring groups of rows that have no more margins are evaluated
together."""
SCORE_ROW_BYTES = 42
"""Memory of each: words, their sorted copy and what sorting takes; or words, units and their running sums."""
LIMB_BYTES = 2 * 2048 * 2 * 8
"""Bytes of the sums that losses beyond the usual magnitudes go to."""
KEY_BITS = 32

_SMALLEST_EXPONENT = -1074  # of a float64: ExactSum's unit
_USED_LIMBS = 8  # in `specials`
_LOW_BITS = 26


@dataclass(frozen=True)
class ScoreCells:
    """Counted cells of scores in the host's memory, as `KeyTable` has one series."""

    bits: int
    lower: UInt32
    upper: UInt32
    counts: Int64
    """Shape (cells, 2): negatives, positives."""


class MetricKernels:
    """What metrics ask of the device that labels and predictions lie on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def sum_losses(
        self, loss: str, label: DeviceArray, prediction: DeviceArray, weight: DeviceArray | None,
        parameters: Sequence[float] = (),
    ) -> tuple[tuple[int, int], tuple[int, int]]:  # fmt: skip
        """Exact sums of losses times weights, and of weights, each as the `units` and `specials` of an `ExactSum`.

        Parameters
        ----------
        loss : str
            One of `LOSSES`.
        label : float32 array, shape (rows,)
        prediction : float32 array, shape (rows,) or (rows, outputs)
        weight : float32 array, shape (rows,), or None for ones
        parameters : sequence of float
            The loss's own.
        """
        runtime, xp, n = self._runtime, self._runtime.xp, len(label)
        if n == 0:
            return (0, 0), (0, 0)
        prediction = xp.ascontiguousarray(prediction)
        blocks = min(-(-n // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
        sums, specials = xp.empty((blocks, 6), np.uint64), xp.zeros(2, np.uint32)
        limbs = xp.zeros((2, 2048, 2), np.uint64)
        runtime.kernel("metric_losses", "sum_losses", LOSS=LOSSES.index(loss))(
            blocks, THREADS, label, prediction, prediction.size // n, weight,
            to_device(runtime, np.array([*parameters, 0.0], np.float64)), n, sums, limbs, specials,
        )  # fmt: skip
        partial, flags = to_host(sums), to_host(specials).tolist()
        found = []
        for which in range(2):
            units = _total(partial[:, 3 * which : 3 * which + 3]) << (UNIT_EXPONENT - _SMALLEST_EXPONENT)
            if flags[which] & _USED_LIMBS:
                units += _limb_total(to_host(limbs[which]))
            found.append((units, flags[which] & ~_USED_LIMBS))
        if weight is None:
            found[1] = (n << -_SMALLEST_EXPONENT, 0)
        return found[0], found[1]

    def count_scores(
        self, label: DeviceArray, score: DeviceArray, weight: DeviceArray | None, scale: float, capacity: int
    ) -> ScoreCells | None:
        """Count fewer than 2**32 rows in the finest cells that number at most `capacity`.

        Parameters
        ----------
        label : float32 array, shape (rows,)
        score : float32 array, shape (rows,), any stride
        weight : float32 array, shape (rows,), or None for ones
        scale : float
            A power of two; weights times it are counted.

        Returns
        -------
        ScoreCells, or None where a label is neither 0 nor 1 or a score is NaN
        """
        xp, n = self._runtime.xp, len(label)
        words, found = xp.empty(n, np.uint64), xp.zeros(2, np.uint32)
        if n:
            self._kernel("pack_scores", n, score, element_stride(score), label, weight, scale, n, words, found)
        n_dropped, is_bad = to_host(found).tolist()
        if is_bad:
            return None
        n -= n_dropped
        if n == 0:
            return ScoreCells(KEY_BITS, np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty((0, 2), np.int64))
        words = xp.sort(words)
        bits = self._resolution(words, n, capacity)
        begins, units = xp.empty(n, np.uint8), xp.empty((2, n), np.int64)
        self._kernel("sort_counts", n, words, n, KEY_BITS - bits, label, weight, scale, begins, units)
        first = true_places(self._runtime, begins)
        last = xp.concatenate([first[1:], xp.asarray([n])]) - 1
        running = xp.stack([xp.cumsum(own)[last] for own in units], axis=1)
        counts = running.copy()
        counts[1:] -= running[:-1]
        shift = np.uint64(KEY_BITS)
        lower, upper = ((words[places] >> shift).astype(np.uint32) for places in (first, last))
        return ScoreCells(bits, to_host(lower), to_host(upper), to_host(counts))

    def _resolution(self, words: DeviceArray, n: int, capacity: int) -> int:
        """The most leading bits of the keys by which they occupy at most `capacity` cells."""
        shared = self._runtime.xp.zeros(KEY_BITS + 1, np.uint32)
        blocks = min(-(-n // THREADS), BLOCKS_PER_MULTIPROCESSOR * self._runtime.multiprocessors)
        self._runtime.kernel("score_counts", "count_cells")(blocks, THREADS, words, n, shared)
        cells = 1 + np.concatenate([[0], np.cumsum(to_host(shared).astype(np.int64)[:KEY_BITS])])
        return int(np.flatnonzero(cells <= capacity)[-1])

    def _kernel(self, entry: str, n: int, *arguments: KernelArgument) -> None:
        self._runtime.kernel("score_counts", entry)(-(-n // THREADS), THREADS, *arguments)


def _total(words: npt.NDArray[np.uint64]) -> int:
    """The sum of integers of three words each, two's complement."""
    halves = np.ascontiguousarray(words).view(np.uint32).astype(np.int64)
    halves[:, -1] = halves[:, -1].astype(np.int32)  # the sign
    return sum(total << 32 * place for place, total in enumerate(halves.sum(axis=0).tolist()))


def _limb_total(limbs: npt.NDArray[np.uint64]) -> int:
    """The sum that limbs hold, in units of ExactSum; shape (exponents, 2)."""
    signed = limbs.view(np.int64)
    return sum(
        ((high << _LOW_BITS) + low) << max(exponent - 1, 0)
        for exponent, (high, low) in enumerate(signed.tolist())
        if high or low
    )
