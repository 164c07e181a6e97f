"""Gradients become integers on a GPU, and rounds of them without the host: launches of `kernels/gradients.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture a
round; `DeviceRounding` says in which order. `losses.py` has what gradients are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.cpu.rows import Pieces
from daskboost.devices.cpu.scales import ScaleRule
from daskboost.devices.gpu.rows.rounding import DeviceRounding, OutputRounding
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride, to_device, to_host
from daskboost.devices.gpu.runtime.stretches import BLOCKS_PER_MULTIPROCESSOR, THREADS, stretches
from daskboost.devices.losses import DeviceLoss, LossKernel, ones_of
from daskboost.dtypes import Float32, Float64, UInt64

MOST_LEAF_ROWS = 2**16
"""Most rows of a block that adds up leaves: as many as 15 bits allow in a sum of 32."""
SHORT_IDS = -1
"""In place of a number of pieces: ids are listed, of 32 bits, see `kernels/global_ids.cuh`."""
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

    def stored(self) -> tuple[DeviceArray, DeviceArray]:
        """Return g and h of all outputs, where they are stored: float32, shape (rows, outputs).

        Raises
        ------
        TypeError
            They are computed wherever they are needed.
        """


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
        self._codes: DeviceArray | None = None

    def draw_by(self, codes: UInt64) -> None:
        """Have samples draw rows by these codes, shape (rows,), on the host, in place of their global ids."""
        self._codes = to_device(self._runtime, codes)

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
        rows = (sample_below, self._codes, *self.pieces, self._n_rows, self._block_rows, self._counts)
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

    def put_in_order(self, rows: DeviceArray) -> None:
        """Enqueue: row i has the global id that row `rows[i]` had, uint32, each row once; ids of a fit of one engine
        have 32 bits."""
        ids = self._runtime.xp.empty(-(-self._n_rows // 2), np.int64)  # of 32 bits, as their kernels declare them
        blocks = min(-(-self._n_rows // THREADS), BLOCKS_PER_MULTIPROCESSOR * self._runtime.multiprocessors)
        self._runtime.kernel("leaf_order", "number_rows")(
            blocks, THREADS, *self.pieces, rows, self._n_rows, ids.view(np.uint32)
        )
        self.pieces = ids, SHORT_IDS

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
            rounding.keys, sample_below, self._codes, *self.pieces, self._n_rows, block_rows, leaf, len(sums),
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


# Few sums of many outputs' gradients: launches of `kernels/project.cu`.

PROJECTION_THREADS = 256
"""Threads of a block, as in `kernels/project.cu`."""
ROOM_BYTES = 24 << 10
"""Shared memory of a block, of which two or more then fit every multiprocessor."""


def project(runtime: Runtime, values: DeviceArray, projection: Float32, out: DeviceArray) -> None:
    """Enqueue: `out` becomes the projection of `values`, as `Device.project` has it."""
    n_rows, n_outputs = values.shape
    if not n_rows:
        return
    n_columns = projection.shape[1]
    columns, outputs = np.nonzero(projection.T)
    starts = np.searchsorted(columns, np.arange(n_columns + 1)).astype(np.int32)
    at_once = min(ROOM_BYTES // (4 * n_outputs), PROJECTION_THREADS)
    blocks = min(-(-n_rows // max(at_once, 1)), 2 * BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
    runtime.kernel("project", "project")(
        blocks, PROJECTION_THREADS, values, n_rows, n_outputs, to_device(runtime, starts),
        to_device(runtime, outputs.astype(np.int32)), to_device(runtime, projection.T[columns, outputs]), n_columns,
        at_once, out, shared_bytes=4 * n_outputs * at_once,
    )  # fmt: skip


# Gradients of a chunk's rows on a GPU and their range: launches of `kernels/range.cu`, `softmax.cu` and `largest.cu`.
#
# Each class is a `Source` of `gradients.py`: it enqueues, waits for nothing and allocates nothing once it is made.

WARP = 32
SOFTMAX_SHARED_BYTES = 48 << 10
"""Bytes of a block: more would leave too few warps to hide the memory's latency."""


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

    def columns(self, output: int, *, by_weight: bool = False) -> Columns:
        margin, parameters = self._margin[:, output], self._parameters[output]
        return Columns(
            self._label, margin, self._weight, self._kernel, parameters, 0, _column_stride(self._margin), by_weight
        )

    def stored(self) -> tuple[DeviceArray, DeviceArray]:
        raise TypeError("the gradients of a LossChunk are not stored")


class StoredChunk:
    """Gradients that were computed before, weighted, as float32 of shape (rows, outputs), with what multiplied them,
    float32 of shape (rows,) and of any stride."""

    def __init__(self, runtime: Runtime, g: DeviceArray, h: DeviceArray, weight: DeviceArray) -> None:
        self._runtime, self._g, self._h, self._weight = runtime, g, h, weight

    def find_range(self, tops: DeviceArray) -> None:
        _find_largest(self._runtime, self._g, tops[0])
        _find_largest(self._runtime, self._h, tops[1])

    def columns(self, output: int, *, by_weight: bool = False) -> Columns:
        if by_weight:
            return weighted_columns(self._g, self._weight, output)
        return given_columns(self._g, self._h, output)

    def stored(self) -> tuple[DeviceArray, DeviceArray]:
        return self._g, self._h


class SoftmaxChunk:
    """Gradients of all classes, in which every margin of a row has a part: stored while trees change the margins.

    Parameters are those of `LossChunk`; `label` holds classes 0, 1, ..., outputs - 1. Memory is taken for `room_rows`
    rows if there are fewer, so that chunks of other sizes take the same later.
    """

    def __init__(self, runtime: Runtime, label: DeviceArray, margin: DeviceArray, weight: DeviceArray | None, *,
                 small_data: bool, room_rows: int = 0) -> None:  # fmt: skip
        self._runtime, self._label, self._margin, self._weight = runtime, label, margin, weight
        self._small = int(small_data)
        shape = max(len(margin), room_rows), margin.shape[1]
        g, h = (runtime.xp.empty(shape, np.float32)[: len(margin)] for _ in range(2))
        self.gradients = g, h
        """g and h of the round."""
        self._multiplied = ones_of(runtime.xp, len(label)) if weight is None or small_data else weight
        """What multiplied them."""

    def find_range(self, tops: DeviceArray) -> None:
        n, n_classes = self._margin.shape
        blocks, threads, group, shared_bytes = _softmax_launch(self._runtime, n, n_classes)
        self._runtime.kernel("softmax", "softmax_gradients")(
            blocks, threads, self._label, self._margin, self._weight, self._small, n_classes, group, n,
            *self.gradients, tops, shared_bytes=shared_bytes,
        )  # fmt: skip

    def columns(self, output: int, *, by_weight: bool = False) -> Columns:
        g, h = self.gradients
        return weighted_columns(g, self._multiplied, output) if by_weight else given_columns(g, h, output)

    def stored(self) -> tuple[DeviceArray, DeviceArray]:
        return self.gradients


def given_columns(g: DeviceArray, h: DeviceArray, output: int) -> Columns:
    """Gradients of an output that are there; `g`, `h` : float32, shape (rows, outputs)."""
    return Columns(g[:, output], h[:, output], next_first=_column_stride(g), next_second=_column_stride(h))


def weighted_columns(g: DeviceArray, weight: DeviceArray, output: int) -> Columns:
    """Gradients of an output that are there, with weights, shape (rows,) and shared by all outputs, for hessians."""
    return Columns(g[:, output], weight, next_first=_column_stride(g), next_second=0)


def _column_stride(matrix: DeviceArray) -> int:
    return int(matrix.strides[1]) // int(matrix.dtype.itemsize)


def softmax_probabilities(runtime: Runtime, margin: DeviceArray, out: DeviceArray) -> DeviceArray:
    """Launch what makes `out` the probabilities of classes; float32 of the margins' shape, (rows, classes)."""
    n, n_classes = margin.shape
    blocks, threads, group, shared_bytes = _softmax_launch(runtime, n, n_classes)
    runtime.kernel("softmax", "softmax_probabilities")(
        blocks, threads, margin, n_classes, group, n, out, shared_bytes=shared_bytes
    )
    return out


def has_softmax_kernel(n_classes: int) -> bool:
    """Whether a warp's rows of so many classes fit the shared memory that every GPU has."""
    return _softmax_block(n_classes)[0] > 0


def _softmax_launch(runtime: Runtime, n_rows: int, n_classes: int) -> tuple[int, int, int, int]:
    """Blocks, threads of each, lanes of a row, and bytes of shared memory."""
    group = min(WARP, 1 << (n_classes - 1).bit_length())
    threads, shared_bytes = _softmax_block(n_classes)
    blocks = -(-n_rows * group // threads)
    return max(1, min(blocks, BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)), threads, group, shared_bytes


def _softmax_block(n_classes: int) -> tuple[int, int]:
    """Threads of a block, and bytes of shared memory; no threads where not even a warp's would fit."""
    group = min(WARP, 1 << (n_classes - 1).bit_length())
    for threads in (THREADS, THREADS // 2, THREADS // 4, THREADS // 8):
        nbytes = 4 * (2 * n_classes + threads // group * (n_classes + n_classes // 2))
        if nbytes <= SOFTMAX_SHARED_BYTES:
            return threads, nbytes
    return 0, 0


def loss_source(runtime: Runtime, loss: DeviceLoss, label: DeviceArray, margin: DeviceArray,
                weight: DeviceArray | None, *, small_data: bool, room_rows: int = 0) -> Source:  # fmt: skip
    """The gradients of a chunk by the loss's kernel."""
    if loss.kernel != LossKernel.SOFTMAX:
        return LossChunk(runtime, loss, label, margin, weight, small_data=small_data)
    return SoftmaxChunk(runtime, label, margin, weight, small_data=small_data, room_rows=room_rows)


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

    def find_range(self, index: int) -> None:
        """Enqueue: a chunk enters the range, by its margins as they are now; computes gradients that are stored."""
        self.sources[index].find_range(self._rounding.tops)

    def compute(self, index: int) -> None:
        """Enqueue: a chunk's gradients are stored, where they are, by its margins as they are now."""
        if isinstance(self.sources[index], SoftmaxChunk):
            self.find_range(index)

    def recall(self, index: int) -> None:
        """Do nothing: gradients are computed wherever they are needed, or those of all chunks are stored."""

    def found_ranges(self) -> Float64:
        """Return the largest |g|, then h, of each output over the chunks that entered since the last time; float64,
        shape (2, outputs); waits."""
        self._rounding.find_scales(ScaleRule(1.0, 1, 1.0, 0.0, 0.0))  # for its ranges; others decide the scales
        return self._rounding.largest()

    def columns(self, index: int, output: int, *, by_weight: bool = False) -> Columns:
        """What a chunk's gradients of one output are quantized from."""
        return self.sources[index].columns(output, by_weight=by_weight)

    def all_outputs(self, index: int) -> Columns:
        """Enqueue `compute`; the columns of all outputs, from the first one on."""
        self.compute(index)
        return self.columns(index, 0)

    def gradients(self, index: int) -> tuple[DeviceArray, DeviceArray]:
        """A chunk's g and h of all outputs, where they are stored: float32, shape (rows, outputs)."""
        return self.sources[index].stored()

    def recorded(self, runtime: Runtime) -> tuple[Source, Callable[[], None]]:
        """Return the only chunk's gradients, which kernels compute within a round, and what does nothing before it."""
        return self.sources[0], lambda: None


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
