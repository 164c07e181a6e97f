"""Gradients become integers on a GPU, and rounds of them without the host: launches of `kernels/gradients.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture a
round; `DeviceRounding` says in which order. `losses.py` has what gradients are computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.cpu.rows import Pieces
from daskboost.devices.gpu.rounding import DeviceRounding, OutputRounding
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, element_stride, to_device
from daskboost.devices.losses import LossKernel

THREADS = 256
TILE_ROWS = 4 * THREADS
"""Both as in `kernels/gradients.cu` and `range.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Two rounds of the four that fit: enough to even out, and few enough for one atomic per block and sum."""
MOST_LEAF_ROWS = 2**16
"""Most rows of a block that adds up leaves: as many as 15 bits allow in a sum of 32."""
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
    """float32, shape (2,), see `LossKernel`; those of the next output follow."""
    next_first: int = 0
    """Numbers from `first` of this output to that of the next one."""
    next_second: int = 0
    """The same of `second`."""
    by_weight: bool = False
    """Whether a loss's weights take the place of its hessians; given ones are what they are to be."""



GradientPair = Columns | tuple[DeviceArray, DeviceArray]
"""One output's g and h of a chunk: columns, float32 of shape (rows,), or what a kernel computes them from."""


class Source(Protocol):
    """One chunk's gradients of all outputs."""

    def find_range(self, tops: DeviceArray) -> None:
        """Enqueue: `DeviceRounding.tops` grow to the largest |g| and h of the margins as they are now."""

    def columns(self, output: int, *, by_weight: bool = False) -> Columns:
        """For quantizing them, or weights in place of hessians."""


class Quantizer:
    """Turns gradients of one chunk's rows into pairs.

    Parameters
    ----------
    runtime : Runtime
    pieces : Pieces
        As `device_pieces` takes them.
    n_rows : int
        Less than 2**32.
    weight : float32, shape (rows,), optional
        Of small data, whose integers it multiplies.
    most_trees : int, default 1
        Outputs that are quantized at once.
    """

    def __init__(self, runtime: Runtime, pieces: Pieces, n_rows: int,
                 weight: DeviceArray | None = None, most_trees: int = 1) -> None:  # fmt: skip
        self._runtime, self._n_rows, self._weight = runtime, n_rows, weight
        self.pieces = device_pieces(runtime, pieces)
        """Global ids of the rows, as kernels take them."""
        self._blocks, self._block_rows = stretches(runtime, n_rows)
        self._counts = runtime.xp.empty(self._blocks * most_trees, np.uint32)

    def __call__(self, columns: Columns, rounding: OutputRounding, sample_below: int, order: DeviceArray | None,
                 pairs: DeviceArray, bounds: DeviceArray, n_trees: int = 1, nodes_per_tree: int = 0
                 ) -> None:  # fmt: skip
        """Enqueue: pairs and `order` of the sampled rows, their number as `bounds[0] = (0, rows)`, their sums.

        `order` : uint32, shape (rows,); None leaves it to the caller that all rows are there, in order. `pairs` :
        int32, shape (rows,); int64 for small data. `bounds` : int64, shape (at least 1, 2).

        Several trees' are those of the given output and the ones after it: tree t has the places from `t * rows` on, of
        `order` and of `pairs`, and `bounds[t * nodes_per_tree]`.
        """
        sampled = sample_below < ALL
        if sampled and order is None:
            raise ValueError("a sample of the rows needs an array for their order")
        rows = (sample_below, *self.pieces, self._n_rows, self._block_rows, self._counts)
        variant = {"OBJECTIVE": int(columns.kernel), "SMALL": int(self._weight is not None), "SAMPLED": int(sampled)}
        if sampled:
            count = self._runtime.kernel("gradients", "count_sampled", **variant)
            count(self._blocks * n_trees, THREADS, rounding.keys, *rows, n_trees)
        self._runtime.kernel("gradients", "quantize_gradients", **variant)(
            self._blocks * n_trees, THREADS, columns.first, columns.second,
            columns.weight if self._weight is None else self._weight, element_stride(columns.first),
            element_stride(columns.second), columns.next_first, columns.next_second, columns.parameters,
            int(columns.by_weight), rounding.scales, rounding.keys, *rows, n_trees, nodes_per_tree, order, pairs,
            bounds, rounding.sums,
        )  # fmt: skip

    def add_to_leaves(self, columns: Columns, rounding: OutputRounding, sample_below: int, leaf: DeviceArray,
                      sums: DeviceArray) -> None:  # fmt: skip
        """Enqueue: `sums`, int64 of shape (leaves, 2), grow by the integers of the sampled rows of each leaf.

        `leaf` : int32, shape (rows,), negative for rows of none.
        """
        block_rows = min(self._block_rows, MOST_LEAF_ROWS)
        self._runtime.kernel("leaf_sums", "add_to_leaves", OBJECTIVE=int(columns.kernel))(
            max(1, -(-self._n_rows // block_rows)), THREADS, columns.first, columns.second,
            columns.weight if self._weight is None else self._weight, element_stride(columns.first),
            element_stride(columns.second), columns.parameters, int(self._weight is not None), rounding.scales,
            rounding.keys, sample_below, *self.pieces, self._n_rows, block_rows, leaf, len(sums),
            sums.view(np.uint64),
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
    by_weight : bool, default False
        Whether weights take the place of hessians.
    """

    def __init__(self, source: Source, quantizer: Quantizer, rounding: DeviceRounding, sample_below: int = ALL, *,
                 by_weight: bool = False) -> None:  # fmt: skip
        self._source, self._quantizer, self._rounding = source, quantizer, rounding
        self._sample_below, self._by_weight = sample_below, by_weight

    def find_range(self) -> None:
        """Enqueue: the range takes this chunk in; computes gradients that are stored."""
        self._source.find_range(self._rounding.tops)

    def quantize(self, output: int, order: DeviceArray | None, pairs: DeviceArray, bounds: DeviceArray,
                 n_trees: int = 1, nodes_per_tree: int = 0) -> None:  # fmt: skip
        """Enqueue: all sampled rows into the root, or into the roots of several outputs' trees, see `Quantizer`."""
        columns, rounding = self._source.columns(output, by_weight=self._by_weight), self._rounding.of(output)
        self._quantizer(columns, rounding, self._sample_below, order, pairs, bounds, n_trees, nodes_per_tree)


def device_pieces(runtime: Runtime, pieces: Pieces) -> tuple[DeviceArray, int]:
    """Global ids of a chunk's rows as kernels take them (`kernels/global_ids.cuh`).

    `pieces` : (int, int) of stretches of rows with consecutive ids: place of the first, which is 0 for the first one,
    and its id; neighbours that go on become one, for kernels to look through fewer. Or all ids, of 64 bits, shape
    (rows,), on the host or the device.
    """
    if not isinstance(pieces, Sequence):
        ids = pieces.view(np.int64)
        return (ids if isinstance(ids, runtime.xp.ndarray) else to_device(runtime, ids)), 0
    found: list[tuple[int, int]] = []
    for begin, first_row in pieces:
        if not found or first_row - begin != found[-1][1] - found[-1][0]:
            found.append((begin, first_row))
    return to_device(runtime, np.array(found or [(0, 0)], np.int64)), max(1, len(found))


def stretches(runtime: Runtime, n_rows: int) -> tuple[int, int]:
    """Blocks, at least one, and how many rows each takes: whole tiles, one after the other."""
    most = BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors
    tiles = -(-n_rows // TILE_ROWS)
    block_rows = max(1, -(-tiles // most)) * TILE_ROWS
    return max(1, -(-n_rows // block_rows)), block_rows
