"""What an engine needs of the device that its rows lie on. One engine's code serves all of them; the operations differ.

Arrays of a device (margins, labels, gradients) are of its array module `xp`: NumPy's on the CPU, CuPy's on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from daskboost.devices.cpu.gradients import ResidualQuery
from daskboost.devices.cpu.losses import GradientLoops
from daskboost.devices.cpu.queries import Queries
from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CsrParts, WalkArrays
from daskboost.devices.gpu.rows.gradients import GradientPair, Source
from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.gpu.rows.streamed import ChunkStream, DenseChunks, SparseChunks
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.gpu.runtime.ring import PackedChunks
from daskboost.devices.gpu.trees.split import SplitKernels
from daskboost.devices.losses import DeviceLoss, KernelLoss
from daskboost.devices.row_order import Following, Root, RowSplits
from daskboost.devices.sampling import RowsToDraw, Sample, TakenSample, TurnRows, UniformSize
from daskboost.dtypes import Array, ArrayModule, Float32, Float64, Int32, Int64, Symbols, UInt8, UInt64

T = TypeVar("T")
View = Any
"""A chunk as the device's row loops see it."""


class Rows(Protocol):
    """Row state of an engine's training rows while trees grow over them."""

    def draw_by(self, codes: Sequence[UInt64]) -> None:
        """Have trees draw rows by the codes of each chunk's rows, on the host, in place of their global ids: rows of
        one code are drawn together."""

    def start_tree(self, gradient: Callable[[int], Any], rounding: Rounding) -> tuple[int, int]:
        """Quantize one output's gradients; all rows in the root; integer sums of g and h.

        `gradient(chunk)` gives a pair of columns, or what `RowGradients.columns` of this device gives.
        """

    def leaf_sums(self, gradient: Callable[[int], tuple[Array, Array]], roundings: Sequence[Rounding],
                  leaves: Int32) -> Int64:  # fmt: skip
        """Integer sums of g and h of all outputs over the rows of leaves; int64, shape (leaves, 2 * outputs), on the
        host."""

    def column_leaf_sums(self, gradient: Callable[[int], Any], rounding: Rounding, leaves: Int32) -> Int64:
        """Integer sums of g and h over the rows of leaves, `rounding` being another one than the tree was started with;
        int64, shape (leaves, 2), on the host. `gradient` as in `start_tree`."""

    def equations(self, splits: RowSplits | None, gradient: Callable[[int], Any], rounding: Rounding, leaves: Int32,
                  terms: Int32) -> Int64:  # fmt: skip
        """Apply the last splits, then sum up the normal equations of the models of leaves, whose features `terms` are,
        int32 of shape (leaves, terms); int64, shape (leaves, `n_sums`), on the host. `gradient` as in `start_tree`."""

    def grow(self, splits: RowSplits | None, nodes: Int32, words: bool = False) -> Array:
        """Apply splits, then build the histograms of `nodes`: int64, in a form of the device's own.

        With `words` the device may answer with words, see `devices/cpu/histogram.py`.
        """

    def finish(self, splits: RowSplits | None, tree: WalkArrays, margin: Callable[[int], Array],
               following: Following | None = None) -> Root | None:  # fmt: skip
        """Apply the last splits and add the tree's leaf values to `margin(chunk)`, float32 of shape (rows,).

        If that takes a pass over the chunks, the root of the `following` tree comes out of it.
        """

    def count_residuals(self, index: int, query: ResidualQuery, label: Array, margin: Array, weight: Array | None
                        ) -> Int64:  # fmt: skip
        """Integer weights of a chunk's rows by leaf (-1: all rows) and by the next digit of the residual's key.

        int64, shape (leaves, 2**next_bits), in the host's memory.
        """

    def start_vector_tree(self, gradient: Callable[[int], tuple[Array, Array]], roundings: Sequence[Rounding]
                          ) -> tuple[int, ...]:  # fmt: skip
        """`start_tree` of all columns, shape (rows, columns), that a tree searches; sums of g and h of each."""

    def settle(self, tree: WalkArrays, n_places: int) -> Int64:
        """Move all rows of the root to the nodes 0 to `n_places`, those whose numbers the leaves of `tree` hold as
        values; rows of negative ones leave. Sums of g and h of the nodes; int64, shape (places, 2), on the host."""


class RowGradients(Protocol):
    """Float gradients of an engine's rows, by chunk: by kernels of the loss, or by array expressions."""

    def find_range(self, index: int) -> None:
        """Have a chunk's gradients there, by its margins as they are now, and take them into the range."""

    def found_ranges(self) -> Float64:
        """Return the largest |g|, then h, of each output over the chunks that `find_range` took in since the last time;
        float64, shape (2, outputs)."""

    def compute(self, index: int) -> None:
        """Have a chunk's gradients there, by its margins as they are now."""

    def recall(self, index: int) -> None:
        """Have a chunk's gradients there again, if those of another chunk have taken their place."""

    def columns(self, index: int, output: int, *, by_weight: bool = False) -> GradientPair:
        """Return what `Rows.start_tree` takes for one output of a chunk whose gradients are there; with weights in
        place of hessians if `by_weight`."""

    def all_outputs(self, index: int) -> GradientPair:
        """Compute a chunk's gradients, by its margins as they are now; what `RowsToDraw` has of all outputs."""

    def gradients(self, index: int) -> tuple[Array, Array]:
        """Return a chunk's g and h of all outputs, where they are stored: float32, shape (rows, outputs)."""

    def recorded(self, runtime: Runtime) -> tuple[Source, Callable[[], None]]:
        """Return what rounds that a GPU records take the gradients of the only chunk from, and what has them there
        before each round: nothing where kernels compute them within it."""


class Frontier(Protocol):
    """Histograms of the nodes that known trees end in, see `devices/cpu/device.py`."""

    def end_pass(self) -> Int64:
        """Integer sums of g and h of all places; int64, shape (places, 2), on the host. Nothing is added later."""

    def add(self, view: View, tree: WalkArrays, places: tuple[int, int], gradient: Any, pieces: Pieces,
            weight: Array | None, rounding: Rounding) -> None:  # fmt: skip
        """Add a chunk's rows to the places `[first, last)` of one tree, whose leaves hold them as values, from 0 on;
        rows of negative ones are left out. The view is not needed afterwards, and nothing is waited for.

        `gradient` : what `Rows.start_tree` takes for a chunk; `weight` : of the rows, where data are small.
        """

    def of_nodes(self, nodes: Int32, place: Int32, left: Int32, right: Int32) -> Array:
        """Histograms of nodes of one tree, in increasing order: of a place, or the sum of the children's, which are
        among the nodes. int64, shape (nodes, entries, 2), on the device."""


class UniformSample(Protocol):
    """Rows drawn by their hashes, all with the same probability, and copied out of the chunks of a pass with what they
    have then; memory is used again from sample to sample."""

    def start(self, key: int) -> None:
        """Begin the sample that has this key; that of the time before is gone."""

    def add(self, view: View, rows: TurnRows) -> None:
        """Take a chunk's rows of the sample. The view is not needed afterwards."""

    def taken(self) -> TakenSample | None:
        """The rows that are there, if any, by increasing number within each chunk; until `start`."""


class Candidates(Protocol):
    """Rows that may be of a round's sample, copied out of the chunks of a pass, see `devices/sampling.py`."""

    n_drawn: int
    """Rows that the pass has drawn."""

    @property
    def counts(self) -> Int64:
        """The rows of the pass by the cells of their norms; int64, shape (N_CELLS,), on the host."""

    def start(self, key: int, threshold: float, most_rows: int) -> None:
        """Begin a pass, forgetting the last one: rows with draw < norm / threshold are kept, of an infinite threshold
        none; if they are more than `most_rows`, none is kept any longer."""

    def add(self, view: View, rows: RowsToDraw) -> None:
        """Count the norms of a chunk's rows and keep those that are drawn. The view, which need not be there for an
        infinite threshold, and gradients are not needed afterwards."""

    def take(self, threshold: float) -> Sample | None:
        """The candidates with draw < norm / threshold, if any, as they stand for all rows; the threshold is not below
        the pass's. Candidates may be gone then; the sample is until the next one is taken."""


class StreamingDevice(Protocol):
    """A device to which chunks come packed, through the host's memory: once if they stay, or else in every pass."""

    def pinned(self, n_bytes: int) -> UInt8:
        """Memory of the host that chunks can stream from."""

    def open_stream(self, chunks: PackedChunks, kind: DenseChunks | SparseChunks) -> ChunkStream:
        """The views of groups of chunks; closed by the device, and the chunks with it."""

    def load(self, chunks: PackedChunks, kind: DenseChunks | SparseChunks, *, copy_columns: bool) -> View:
        """The one view of chunks that come once, to stay in its memory; closes them. `copy_columns` : as of
        `dense_view` and `sparse_view`."""


class QueryFilling(Protocol):
    """Fills the gradients of a ranking loss."""

    def fill(self, key: np.uint64, margin: Array, g: Array, h: Array) -> None:
        """Fill `g` and `h` of all rows of queries, float32 of shape (rows,); `key` : that of the round's draws."""


class Device(Protocol):
    """The device of one engine."""

    name: str
    """"cpu", or "cuda:1" of the GPU of this number."""
    xp: ArrayModule
    """Array module of margins, labels and gradients."""
    threads: Threads
    """For what stays on the host; closed by `close`."""
    group_rows: int
    """Rows up to which neighbouring chunks are worked on together."""
    gradient_rows: int
    """Rows whose gradients are computed at a time."""
    compiles_trees: bool
    """Whether its trees may grow in one compiled call each (`engine/compiled_grower.py`)."""
    without_host: bool
    """Whether the plan of the fit is that trees grow on the device alone (`FitSize.without_host`)."""
    orders_rows: bool
    """Whether the plan of the fit is that training rows take the order of the first tree's leaves."""
    resident: tuple[int, ...] | None
    """How many chunks of the training set, and of each evaluation set, stay in a GPU's memory, the first of each set by
    the order of `kept_first`; None for all."""
    stream_bytes: int
    """Most packed bytes of streamed chunks that come together, unless one alone has more; 0 for one at a time."""
    split_kernels: SplitKernels | None
    """What searches histograms in the device's memory; None where that is the host's."""
    joined: Collective | None
    """Joins it with the GPUs of the fit's other engines, which then add histograms up where these lie; None where their
    hosts do, or nobody else has rows."""
    metric_kernels: MetricKernels | None
    """What computes metrics there, likewise."""
    watches: bool
    """Whether the plan of the fit is that metrics are computed on the device behind the trees (`FitSize.watched`)."""
    metric_rows: int
    """Rows up to which metrics of neighbouring chunks are computed together."""

    @property
    def streaming(self) -> StreamingDevice | None:
        """Return the device itself, where chunks come to it packed."""

    @property
    def ring_bytes(self) -> int:
        """Return the bytes of a GPU's memory that packed chunks are copied to."""

    def put(self, array: Float32) -> Array:
        """A host array in the device's memory; the array itself where that is the host's."""

    def fetch(self, array: Array) -> Array:
        """A device array in the host's memory."""

    def fetch_histograms(self, built: Array) -> Int64:
        """Return what `Rows.grow` built in the host's memory, the outputs of each slot side by side; int64, shape
        (nodes, entries, 2), or (nodes, entries) of words."""

    def column_room(self, most_bytes: int) -> int:
        """Bytes that column-major copies of bins may take."""

    def join_room(self, column_bytes: int) -> float:
        """Return the bytes of bins that may be copied to join chunks, where column-major copies may take
        `column_bytes`."""

    def dense_view(self, parts: Iterable[Symbols], n_rows: int, *, copy_columns: bool) -> View:
        """The view of dense chunks, one after the other, `n_rows` in all."""

    def sparse_view(self, parts: CsrParts, *, copy_columns: bool) -> View:
        """The view of CSR rows, one part after the other; `copy_columns` : where a copy by feature helps."""

    def rows(self, views: Callable[[], Iterable[tuple[int, View]]], sizes: Sequence[int], pieces: Sequence[Pieces],
             weights: Sequence[Float32] | None, *, room_rows: int = 0) -> Rows:  # fmt: skip
        """Return the row state of training rows, see `CpuRows`; `room_rows` : memory may be taken for so many rows of a
        chunk, that the state of others fits it later."""

    def walker(self, tree: WalkArrays) -> Callable[[View, Array], None]:
        """What adds a tree's leaf values to the margins of all rows of a chunk, by bins; for any number of chunks."""

    def each_range(self, n_rows: int, work: Callable[[int, int], T]) -> list[T]:
        """Do `work(begin, end)` on ranges of rows that may go side by side."""

    def largest(self, values: Array) -> Float64:
        """Largest absolute value of each column, NaN where there is one; float64, shape (columns,), on the host."""

    def project(self, values: Array, projection: Float32, out: Array) -> None:
        """`out`, shape (rows, columns), becomes the matrix product of `values`, shape (rows, outputs), and
        `projection`, shape (outputs, columns), of entries -1, 0 and 1; all float32.

        The outputs of a column are added one after the other, so that a row's result depends on that row alone: the
        order of a library's matrix product depends on shapes and machines.
        """

    def loss_rows(self, loss: DeviceLoss | None, labels: Sequence[Array], margins: Sequence[Array],
                  weights: Sequence[Array | None], n_outputs: int, *, small_data: bool, stored: bool,
                  room_rows: int = 0) -> RowGradients | None:  # fmt: skip
        """Gradients by kernels, of each chunk; None where the objective's array expressions compute them.

        `stored` : whether those of all outputs must be there for a round, as trees of vector leaves need them;
        `room_rows` : memory may be taken for so many rows of a chunk.
        """

    def gradient_loops(self, loss: DeviceLoss) -> GradientLoops | None:
        """Return what fills gradients of a loss, with the bits of its array expressions; None where these do."""

    def query_loops(self, loss: KernelLoss, queries: Queries) -> QueryFilling:
        """Return what fills the gradients of a ranking loss."""

    def uniform_sample(self, size: UniformSize, *, copies_columns: bool) -> UniformSample:
        """Return what draws samples for all rounds of a fit; `copies_columns` : where a column-major copy helps."""

    def frontier(self, n_places: int, most_rows: int) -> Frontier:
        """Return the frontier of a pass over chunks of at most `most_rows` rows."""

    def candidates(self, n_outputs: int, copies_columns: Callable[[int], bool]) -> Candidates:
        """Return what draws rows by gradients in all rounds of a fit; `copies_columns` says whether a sample of so many
        rows has room for a column-major copy."""

    def errors(self) -> AbstractContextManager[None]:
        """Within it, what the device refuses to do becomes an error of ours that says so."""

    def close(self) -> None:
        """Free threads; memory goes with the arrays."""
