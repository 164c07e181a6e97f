"""Gradients from margins to integers on a GPU, whose arithmetic is `objectives/`' and `devices/cpu/gradients.py`'s.

Launches of `kernels/range.cu`, `largest.cu` and `gradients.cu`. Nothing here waits for the device, and nothing is
allocated once objects are made, so that a CUDA graph may capture a round; `DeviceRounding` says in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.gpu.rounding import DeviceRounding, OutputRounding, ScaleRule
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_device, to_host
from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.dtypes import Float64

THREADS = 256
TILE_ROWS = 4 * THREADS
"""Both as in `kernels/gradients.cu` and `range.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Two rounds of the four that fit: enough to even out, and few enough for one atomic per block and sum."""
ALL = 2**32
"""A bound of 32 random bits that keeps every row."""


@dataclass(frozen=True)
class Columns:
    """What one output's gradients of a chunk are computed from; float32, shape (rows,), the first two of any stride."""

    first: DeviceArray
    """Labels, or the gradients themselves of `LossKernel.GIVEN`."""
    second: DeviceArray
    """Margins, or hessians."""
    weight: DeviceArray | None = None
    """Multiplies the gradients of a loss; given ones contain it."""
    kernel: LossKernel = LossKernel.GIVEN
    parameters: DeviceArray | None = None
    """float32, shape (2,), see `LossKernel`."""


class Source(Protocol):
    """One chunk's gradients of all outputs."""

    def find_range(self, tops: DeviceArray) -> None:
        """Enqueue: `DeviceRounding.tops` grow to the largest |g| and h of the margins as they are now."""

    def columns(self, output: int) -> Columns:
        """For quantizing them."""


class Quantizer:
    """Turns gradients of one chunk's rows into pairs.

    Parameters
    ----------
    runtime : Runtime
    pieces : sequence of (int, int)
        Stretches of rows with consecutive global ids: place of the first, which is 0 for the first one, and its id.
    n_rows : int
        Less than 2**32.
    weight : float32, shape (rows,), optional
        Of small data, whose integers it multiplies.
    """

    def __init__(self, runtime: Runtime, pieces: Sequence[tuple[int, int]], n_rows: int,
                 weight: DeviceArray | None = None) -> None:  # fmt: skip
        self._runtime, self._n_rows, self._weight = runtime, n_rows, weight
        self._pieces = to_device(runtime, np.array(pieces or [(0, 0)], np.int64))
        self._blocks, self._block_rows = stretches(runtime, n_rows)
        self._counts = runtime.xp.empty(self._blocks, np.uint32)

    def __call__(self, columns: Columns, rounding: OutputRounding, sample_below: int, order: DeviceArray | None,
                 pairs: DeviceArray, bounds: DeviceArray) -> None:  # fmt: skip
        """Enqueue: pairs and `order` of the sampled rows, their number as `bounds[0] = (0, rows)`, their sums.

        `order` : uint32, shape (rows,); None leaves it to the caller that all rows are there, in order. `pairs` :
        int32, shape (rows,); int64 for small data. `bounds` : int64, shape (at least 1, 2).
        """
        sampled = sample_below < ALL
        if sampled and order is None:
            raise ValueError("a sample of the rows needs an array for their order")
        rows = (sample_below, self._pieces, len(self._pieces), self._n_rows, self._block_rows, self._counts)
        variant = {"OBJECTIVE": int(columns.kernel), "SMALL": int(self._weight is not None), "SAMPLED": int(sampled)}
        if sampled:
            count = self._runtime.kernel("gradients", "count_sampled", **variant)
            count(self._blocks, THREADS, rounding.keys, *rows)
        self._runtime.kernel("gradients", "quantize_gradients", **variant)(
            self._blocks, THREADS, columns.first, columns.second,
            columns.weight if self._weight is None else self._weight, element_stride(columns.first),
            element_stride(columns.second), columns.parameters, rounding.scales, rounding.keys, *rows, order, pairs,
            bounds, rounding.sums,
        )  # fmt: skip


class RoundGradients:
    """One chunk's gradients of a round: their range, then each output's pairs, with no word from the host.

    Parameters
    ----------
    source : Source
    quantizer : Quantizer
    rounding : DeviceRounding
        Shared by all chunks of an engine.
    sample_below : int, default 2**32
        A row grows a tree if its 32 sampling bits are below; 2**32 keeps all.
    """

    def __init__(self, source: Source, quantizer: Quantizer, rounding: DeviceRounding, sample_below: int = ALL) -> None:
        self._source, self._quantizer, self._rounding = source, quantizer, rounding
        self._sample_below = sample_below

    def find_range(self) -> None:
        """Enqueue: the range takes this chunk in; computes gradients that are stored."""
        self._source.find_range(self._rounding.tops)

    def quantize(self, output: int, order: DeviceArray | None, pairs: DeviceArray, bounds: DeviceArray) -> None:
        """Enqueue: all sampled rows into the root, see `Quantizer`."""
        columns, rounding = self._source.columns(output), self._rounding.of(output)
        self._quantizer(columns, rounding, self._sample_below, order, pairs, bounds)


class LossChunk:
    """Gradients that are computed from labels and margins wherever they are needed, and stored nowhere.

    Margins of an output may change once its pairs are made: no other output's gradients look at them.

    Parameters
    ----------
    runtime : Runtime
    loss : DeviceLoss
    label, weight : float32, shape (rows,)
        On the device; `weight` may be None.
    margin : float32, shape (rows, outputs)
    small_data : bool
        Whether weights multiply integers later, so that here they only take out rows that have none.
    """

    def __init__(self, runtime: Runtime, loss: DeviceLoss, label: DeviceArray, margin: DeviceArray,
                 weight: DeviceArray | None, *, small_data: bool) -> None:  # fmt: skip
        self._runtime, self._kernel, self._small = runtime, loss.kernel, int(small_data)
        self._label, self._margin, self._weight = label, margin, weight
        self._parameters = to_device(runtime, np.array(loss.parameters, np.float32))

    def find_range(self, tops: DeviceArray) -> None:
        n = len(self._label)
        blocks, block_rows = stretches(self._runtime, n)
        kernel = self._runtime.kernel("range", "find_range", OBJECTIVE=int(self._kernel))
        for output in range(self._margin.shape[1]):
            margin = self._margin[:, output]
            kernel(
                blocks, THREADS, self._label, margin, self._weight, element_stride(self._label),
                element_stride(margin), self._parameters[output], self._small, n, block_rows, tops[0, output:],
                tops[1, output:],
            )  # fmt: skip

    def columns(self, output: int) -> Columns:
        margin, parameters = self._margin[:, output], self._parameters[output]
        return Columns(self._label, margin, self._weight, self._kernel, parameters)


class StoredChunk:
    """Gradients that were computed before, weighted, as float32 of shape (rows, outputs)."""

    def __init__(self, runtime: Runtime, g: DeviceArray, h: DeviceArray) -> None:
        self._runtime, self._g, self._h = runtime, g, h

    def find_range(self, tops: DeviceArray) -> None:
        _find_largest(self._runtime, self._g, tops[0])
        _find_largest(self._runtime, self._h, tops[1])

    def columns(self, output: int) -> Columns:
        return Columns(self._g[:, output], self._h[:, output])


class LossRows:
    """Gradients of all chunks of an engine that takes its scales from elsewhere, as `Device.loss_rows` has it.

    Parameters
    ----------
    runtime : Runtime
    sources : sequence of Source
        Of each chunk.
    n_outputs : int
    """

    def __init__(self, runtime: Runtime, sources: Sequence[Source], n_outputs: int) -> None:
        self.sources = sources
        self._rounding = DeviceRounding(runtime, n_outputs)

    def ranges(self) -> Float64:
        """Largest |g|, then h, of each output at the margins as they are now; float64, shape (2, outputs); waits."""
        for source in self.sources:
            source.find_range(self._rounding.tops)
        self._rounding.find_scales(ScaleRule(1.0, 1, 1.0))  # for what it says of the range; others decide the scales
        return self._rounding.largest()

    def columns(self, index: int, output: int) -> Columns:
        """What a chunk's gradients of one output are quantized from."""
        return self.sources[index].columns(output)


def stretches(runtime: Runtime, n_rows: int) -> tuple[int, int]:
    """Blocks, at least one, and how many rows each takes: whole tiles, one after the other."""
    most = BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors
    tiles = -(-n_rows // TILE_ROWS)
    block_rows = max(1, -(-tiles // most)) * TILE_ROWS
    return max(1, -(-n_rows // block_rows)), block_rows


def _find_largest(runtime: Runtime, values: DeviceArray, tops: DeviceArray) -> None:
    """Enqueue: `tops`, uint32, grow to the bits of the largest absolute value of each column."""
    if values.size:
        n_columns = values.shape[1]
        blocks = min(-(-values.size // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
        blocks = -(-blocks // n_columns) * n_columns  # each thread stays in one column
        kernel = runtime.kernel("largest", "largest_of_columns")
        kernel(blocks, THREADS, values, values.size, n_columns, tops)


def largest(runtime: Runtime, values: DeviceArray) -> Float64:
    """Largest absolute value of each column, NaN where there is one; float64, shape (columns,), on the host.

    `values` : float32, shape (rows, columns), C-contiguous.
    """
    tops = runtime.xp.zeros(values.shape[1], np.uint32)
    _find_largest(runtime, values, tops)
    return to_host(tops).view(np.float32).astype(np.float64)
