"""How a round's gradients are rounded, in a GPU's memory: ranges, scales, keys and sums of all outputs.

`fit/scales.py` decides the same on the host where several engines share a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.scales import ScaleRule
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, overwrite, to_host
from daskboost.dtypes import Float64

THREADS = 128
"""Threads of a block, as in `kernels/scales.cu`."""
SCALES = 8
"""Numbers of `DeviceRounding.scales` per output, as in `kernels/rounding.cuh`."""
_WORDS = SCALES + 2 + 2
"""Words of an output: scales, keys, sums."""


@dataclass(frozen=True)
class OutputRounding:
    """One output's part of a `DeviceRounding`, as kernels take it."""

    scales: DeviceArray
    keys: DeviceArray
    sums: DeviceArray


class DeviceRounding:
    """Ranges, scales, keys and sums; nothing is allocated after it is made.

    A round without the host: `RoundGradients.find_range` of all chunks, `CountedRounds.begin`, which writes scales and
    keys, then for each output `RoundGradients.quantize` of all chunks. The host may look at `largest` after: where it
    is not finite, all integers of that output were 0.

    Attributes
    ----------
    tops : uint32, shape (2, outputs)
        Bits of the largest |g|, then h, so far; zeros when a round begins.
    scales : float64, shape (outputs, SCALES)
        Scales of g, h and weights, what one quantum of g and of h is worth, the largest |g| and h, the gain of noise.
    keys : uint64, shape (outputs, 2)
        Of rounding and of sampling.
    units : float64, shape (outputs, 2)
        What one quantum of g and of h is worth, of `scales`.
    sums : int64, shape (outputs, 2)
        Of the quantized g and h; zeros when a round begins.
    """

    def __init__(self, runtime: Runtime, n_outputs: int) -> None:
        self._runtime, self._n_outputs = runtime, n_outputs
        self._words = runtime.xp.zeros(_WORDS * n_outputs, np.int64)  # one array, so that the host's are one copy
        self._host = np.zeros(_WORDS * n_outputs, np.int64)
        self.tops = runtime.xp.zeros((2, n_outputs), np.uint32)
        self.scales, self.keys, self.sums = self._parts(self._words)
        self.units = self.scales[:, 3:5]

    def _parts(self, words: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        keys, sums = SCALES * self._n_outputs, (SCALES + 2) * self._n_outputs
        return (
            words[:keys].view(np.float64).reshape(-1, SCALES), words[keys:sums].view(np.uint64).reshape(-1, 2),
            words[sums:].reshape(-1, 2),
        )  # fmt: skip

    def of(self, output: int) -> OutputRounding:
        """One output's part."""
        return OutputRounding(self.scales[output], self.keys[output], self.sums[output].view(np.uint64))

    @property
    def n_outputs(self) -> int:
        return self._n_outputs

    def find_scales(self, rule: ScaleRule) -> None:
        """Enqueue: scales from ranges, which become zeros, as do sums."""
        blocks = -(-self._n_outputs // THREADS)
        self._runtime.kernel("scales", "find_scales")(
            blocks, THREADS, self.tops, self._n_outputs, *rule.arguments, self.scales, self.sums
        )

    def change_scales(self, rule: ScaleRule, out: DeviceArray) -> None:
        """Enqueue: what `scales` would be by another rule; `out` : float64, shape (outputs, SCALES)."""
        blocks = -(-self._n_outputs // THREADS)
        self._runtime.kernel("scales", "change_scales")(
            blocks, THREADS, self.scales, self._n_outputs, *rule.arguments, out
        )

    def put(self, output: int, rounding: Rounding) -> None:
        """Enqueue what the host decided for one output, and sums of zero."""
        self._decide(output, rounding)
        overwrite(self._runtime, self._words, self._host)

    def put_all(self, roundings: Sequence[Rounding]) -> None:
        """The same for all outputs."""
        for output, rounding in enumerate(roundings):
            self._decide(output, rounding)
        overwrite(self._runtime, self._words, self._host)

    def _decide(self, output: int, rounding: Rounding) -> None:
        scales, keys, _ = self._parts(self._host)
        scales[output] = rounding.scale_g, rounding.scale_h, rounding.scale_w, *rounding.units, 0, 0, 0
        keys[output] = rounding.round_key, rounding.sample_key

    def largest(self) -> Float64:
        """Largest |g|, then h, of each output in the last round; float64, shape (2, outputs); waits."""
        return np.ascontiguousarray(to_host(self.scales)[:, 5:7].T)

    def sums_of(self, output: int) -> tuple[int, int]:
        """Integer sums of g and h; waits."""
        g, h = to_host(self.sums[output]).tolist()
        return g, h
