"""Raw blocks of the host's memory, or row groups of files, become rows on a GPU: block by block, in bounded memory.

    raw rows -> slice -> upload in the types they have -> float32 -> values that are walked, for predictions
                                                                  -> look for infinite values -> rows to be quantized

Nothing is converted, filled or looked at on the host but nulls of nullable columns. A block takes at most half of the
device memory that there is for quantizing, so partitions may be of any size; the other half is for what is made of it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.cuts.cell_counts import CHANGED
from daskboost.data.input.blocks import n_rows_of, row_slice
from daskboost.data.input.convert import part_of_frame, raw_values
from daskboost.data.input.device_read import inspected, on_device
from daskboost.data.input.kinds import canonical_csr, is_sparse, kind_of
from daskboost.data.input.parquet import RowGroup
from daskboost.data.input.row_batch import DeviceRows, Features
from daskboost.devices.gpu.predict import DenseValues, SparseValues, Values
from daskboost.devices.gpu.quantize.bins import TYPES
from daskboost.devices.gpu.quantize.sketch import SERIES_BYTES
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.gpu.runtime.transfers import Uploader
from daskboost.dtypes import Int64
from daskboost.errors import DataError, DeviceError, MissingDependencyError, format_bytes
from daskboost.params import split_device

if TYPE_CHECKING:
    from daskboost.data.input.read import ReadSpec

logger = logging.getLogger(__name__)

TINY_VALUES = 1 << 18
"""Values of a data set that a CPU quantizes in the few milliseconds that the launches for one partition take."""
MOST_BLOCK_BYTES = 1 << 30
"""Bytes of a block and what is made of it, so much as a partition cut from local data takes."""
LEAST_ROWS = 256
"""Rows of a block that the device must have room for."""
VALUE_BYTES = 16
"""Bytes of device memory for a value: as it came, as float32, and its symbol twice, where it lies and on its way
back."""
ENTRY_BYTES = 32
"""The same of an entry of sparse rows: two kinds of indices, two of values, its bin, and copies without absent ones."""


WHOLE_SHARE = 0.25
"""Share of a device's free memory that rows may need, while they are quantized, to be taken whole: so small that it
decides nothing of what else finds room."""
WHOLE_ROW_BYTES = 64
"""Bytes of such a row beside its values: what a fit has of it."""


@dataclass(frozen=True)
class BlockLimit:
    """What a block of rows may take of a device's memory."""

    n_bytes: int
    """Bytes of the block and of what is made of its rows."""
    row_bytes: int = 0
    """Bytes of what is made of a row beside what is made of its values."""


def gpu_of_uploads(device: str | None) -> Runtime | None:
    """The GPU that rows of the host's memory are to be quantized on, None where it is the CPU.

    MissingDependencyError or DeviceError where a GPU was asked for by name and cannot be used.
    """
    kind, number = split_device(device or "cpu")
    if kind == "cpu":
        return None
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    try:
        return get_runtime(number)
    except (MissingDependencyError, DeviceError) as error:
        if kind != "auto":
            raise
        logger.debug("rows are quantized on the CPU: %s", error)
        return None


def rows_of_host(spec: ReadSpec, block: Any, where: str) -> UploadedRows | Features:
    """Return rows of the host's memory as they are, for the GPU that quantizes them or for whoever reads them later, or
    their features, where the CPU quantizes them at once: "auto" chooses it where the GPU has no room."""
    rows = UploadedRows(spec, block, where)
    if spec.is_late:
        return rows
    if gpu_of_uploads(spec.device) is None:
        return spec.host_features(block)
    if spec.device != "auto" or rows.has_room:
        return rows
    say_no_room(rows.n_features, rows.least_bytes)
    return spec.host_features(block)


def takes_whole(spec: ReadSpec, n_rows: int) -> bool:
    """Whether a GPU takes dense rows of the host's memory whole: where that leaves most of its memory free."""
    runtime = gpu_of_uploads(spec.device)
    if runtime is None or spec.device_memory_limit is not None:
        return False
    row_bytes = VALUE_BYTES * spec.schema.n_features + WHOLE_ROW_BYTES
    return n_rows * row_bytes <= WHOLE_SHARE * runtime.free_bytes


@functools.lru_cache(maxsize=64)  # all partitions of a data set would say the same
def say_no_room(n_features: int, least_bytes: int) -> None:
    logger.warning(
        "device='auto' quantizes rows of %d features on the CPU: on a GPU they need %s of its memory at least, and "
        "less is free, or allowed by device_memory_limit", n_features, format_bytes(least_bytes),
    )  # fmt: skip


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within it, errors of the data begin with what messages call a partition."""
    try:
        yield
    except DataError as error:
        if not where:
            raise
        raise type(error)(f"{where}: {error}") from error


@dataclass(frozen=True, eq=False)
class UploadedRows:
    """Features of one partition as they came: a GPU takes them block by block.

    Parameters
    ----------
    spec : ReadSpec
        How they are to be read; its `device` is where they are quantized.
    block : 2-D array, scipy.sparse matrix, pandas DataFrame, pyarrow Table or RowGroup
    where : str
        What messages call the partition.
    held_bytes : int
        Taken already of the limit that `spec` has for device memory.
    """

    spec: ReadSpec
    block: Any
    where: str
    held_bytes: int = 0
    is_lent = False

    @cached_property
    def n_rows(self) -> int:
        return n_rows_of(self.block)

    @cached_property
    def n_features(self) -> int:
        columns = self.spec.columns
        if isinstance(self.block, RowGroup):
            return len(columns or self.block.columns)
        return int(self.block.shape[1]) if columns is None else len(columns)

    @property
    def runtime(self) -> Runtime:
        """The GPU that takes them."""
        found = gpu_of_uploads(self.spec.device)
        assert found is not None, "rows on their way to a GPU came to a process without one"
        return found

    @property
    def room_bytes(self) -> int:
        """Return the bytes of the device's memory."""
        return max(0, min(self.runtime.free_bytes, self.spec.device_room - self.held_bytes))

    def beside(self, held_bytes: int) -> UploadedRows:
        """The same rows where something else takes so many bytes of what they may have."""
        return replace(self, held_bytes=self.held_bytes + held_bytes)

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of the device's memory that may be used beside a block."""
        return self.room_bytes * 15 // 32  # half, of what is not lost to CuPy's pool, which rounds up

    def on_host(self) -> Features:
        """The same rows, read on the host."""
        with naming(self.where):
            return self.spec.host_features(self.block)

    def check(self) -> None:
        """Raise what reading the features on the host would."""
        if self.spec.device is None:
            self.on_host()
            return
        for _ in self.blocks():
            pass

    @property
    def row_bytes(self) -> float:
        """Return the bytes of a row as it comes, about."""
        if is_sparse(self.block):
            return 12.0 * int(self.block.nnz) / max(self.n_rows, 1)
        dtype = getattr(self.block, "dtype", None)
        return float(self.n_features) * (8 if dtype is None else int(dtype.itemsize))

    def taken(self, threads: int = 1) -> DeviceRows:
        """Return all rows on the GPU, to stay there as if they had been given so; raises as `blocks`."""
        with naming(self.where), on_device(self.runtime):
            with Uploader(self.runtime, threads) as uploader:
                rows, beyond = inspected(self.runtime, self._upload(uploader, self.block))
            if beyond.any():
                self.spec.refuse_infinite(np.flatnonzero(beyond))
        return rows.lent()

    def missing_values(self, threads: int = 1) -> Int64:
        """Return how many rows lack each feature; int64, shape (features,)."""
        counts = (block.missing_values() for _, block in self.blocks(threads=threads))
        return sum(counts, np.zeros(self.n_features, np.int64))

    def blocks(self, ends: Sequence[int] = (), threads: int = 1) -> Iterator[tuple[int, DeviceRows]]:
        """First row and rows of one block after the other, none beyond any of the rows in `ends`, which increase.

        Raises
        ------
        DataError, DataTypeError
            What reading the same rows on the host refuses; infinite values once all blocks were seen.
        DeviceError
            Not even the smallest block has room.
        """
        runtime, beyond, start = self.runtime, np.zeros(self.n_features, np.bool_), 0
        if not ends:  # cells are counted, and bins have not taken their part of the room yet
            self._check_room()
        limit = BlockLimit(min(self.scratch_bytes, MOST_BLOCK_BYTES))
        with Uploader(runtime, threads) as uploader, closing(self.values(uploader, limit, ends)) as uploads:
            while True:
                with naming(self.where), on_device(runtime):
                    values = next(uploads, None)
                    if values is None:
                        break
                    rows, too_large = inspected(runtime, values)
                    beyond |= too_large
                    del values
                n_rows = rows.n_rows
                yield start, rows
                del rows
                start += n_rows
        if beyond.any():
            with naming(self.where):
                self.spec.refuse_infinite(np.flatnonzero(beyond))

    def values(self, uploader: Uploader, limit: BlockLimit, ends: Sequence[int] = ()
               ) -> Generator[Values, None, None]:  # fmt: skip
        """Yield the values of one block after the other, none beyond any of the rows in `ends`, which increase.

        Nobody has looked at them: they may be infinite. Copies are queued up in the stream that is the current one when
        a block is asked for, and whoever asks names the partition in errors.
        """
        for raw in self._slices(limit, ends):
            yield self._upload(uploader, raw)  # of which nothing is kept here

    def _slices(self, limit: BlockLimit, ends: Sequence[int]) -> Iterator[Any]:
        """Raw rows of each block: a slice of the raw block, or lists of columns of a row group's batches."""
        columns = self.spec.columns
        if isinstance(self.block, RowGroup):
            names = columns or self.block.columns
            yield from _regrouped(self.block.batches(columns), self._stops(limit, ends), names)
            return
        block, indptr = self.block, None
        if is_sparse(block):
            block = canonical_csr(block, columns)
            indptr = block.indptr.astype(np.int64, copy=False)
        start = 0
        for stop in self._stops(limit, ends, indptr):
            yield row_slice(block, start, stop)
            start = stop

    def _stops(self, limit: BlockLimit, ends: Sequence[int], indptr: Int64 | None = None) -> Iterator[int]:
        """Where blocks end, as much room as each has."""
        edges = sorted({end for end in ends if 0 < end < self.n_rows} | {self.n_rows})
        most_rows = max(LEAST_ROWS, limit.n_bytes // max(self._row_bytes + limit.row_bytes, 1))
        start = 0
        for edge in edges:
            while start < edge:
                stop = min(edge, start + most_rows)
                if indptr is not None:
                    last = indptr[start] + limit.n_bytes // ENTRY_BYTES
                    stop = max(start + 1, min(stop, int(np.searchsorted(indptr, last, "right")) - 1))
                yield stop
                start = stop

    @property
    def least_bytes(self) -> int:
        """Return the bytes of device memory for the smallest block, so that half of it is left for what is made of
        it."""
        return 4 * max(LEAST_ROWS * self._row_bytes, SERIES_BYTES)

    @property
    def _row_bytes(self) -> int:
        """Return the bytes of device memory; of a sparse row, about."""
        return VALUE_BYTES * (8 if is_sparse(self.block) else self.n_features)

    @property
    def has_room(self) -> bool:
        return self.room_bytes >= self.least_bytes

    def _check_room(self) -> None:
        if not self.has_room:
            raise DeviceError(
                f"quantizing rows of {self.n_features} features on a GPU needs {self.least_bytes:,} bytes of its "
                f"memory at least, and there are {self.room_bytes:,}: raise device_memory_limit, free what else is "
                "there, or use device='cpu'"
            )

    def _upload(self, uploader: Uploader, raw: Any) -> Values:
        """Values of a block on the device, float32."""
        missing = self.spec.missing
        if is_sparse(raw):
            n_entries = int(raw.indptr[-1])
            return SparseValues(
                uploader.array(raw.indptr.astype(np.int64, copy=False)),
                uploader.array(raw.indices[:n_entries].astype(np.int32, copy=False)),
                uploader.numbers(raw.data[:n_entries]), int(raw.shape[1]), missing,
            )  # fmt: skip
        if isinstance(raw, list):
            return DenseValues(self._columns(uploader, raw), missing)
        values = _frame_matrix(raw, self.spec.columns)
        if values is None:
            found = raw_values(raw, self.spec.columns)
            if isinstance(found, list):
                return DenseValues(self._columns(uploader, [found]), missing)
            values = found
        return DenseValues(uploader.numbers(values), missing)

    def _columns(self, uploader: Uploader, batches: Sequence[Sequence[npt.NDArray[Any]]]) -> Any:
        """Columns of batches, one batch below the other, as a matrix."""
        n_rows = sum(len(batch[0]) for batch in batches if batch)
        out = uploader.empty((n_rows, self.n_features), "F")
        start = 0
        for batch in batches:
            stop = start + len(batch[0]) if batch else start
            uploader.columns(batch, out[start:stop])
            start = stop
        return out


def _regrouped(batches: Iterator[Any], stops: Iterator[int], names: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Columns of record batches, divided and put together so that each list ends at the next stop."""
    row, stop = 0, next(stops, 0)
    held: list[Any] = []
    for batch in batches:
        rest = batch
        while len(rest):
            if row == stop:
                raise DataError(CHANGED)
            part = rest.slice(0, stop - row)
            held.append(raw_values(part, names))
            row, rest = row + len(part), rest.slice(len(part))
            if row == stop:
                yield held
                stop, held = next(stops, stop), []
    if held:
        raise DataError(CHANGED)


def _frame_matrix(block: Any, columns: Any) -> npt.NDArray[Any] | None:
    """A pandas frame of one type of NumPy's as a matrix, without a copy where it is one; None for all else."""
    if kind_of(block) != "pandas":
        return None
    frame = part_of_frame(block, columns)
    types = set(frame.dtypes)
    is_plain = len(types) == 1 and all(isinstance(dtype, np.dtype) and str(dtype) in TYPES for dtype in types)
    return np.asarray(frame) if is_plain else None
