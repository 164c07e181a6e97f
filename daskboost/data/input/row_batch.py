"""Rows as they come from a source: one partition's features, and columns that lie on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from daskboost.data.cuts.feature_keys import KeyBlocks, dense_key_blocks, sparse_key_blocks
from daskboost.data.cuts.key_counts import values_of
from daskboost.devices.gpu.quantize.bins import LabelSummary, Matrix
from daskboost.devices.gpu.quantize.sketch import Entries
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, to_host
from daskboost.devices.gpu.runtime.transfers import Download
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import Array, Bool, Csr, Float32, Int8, Int32, Int64, UInt8, UInt16, UInt32

if TYPE_CHECKING:
    from daskboost.data.input.read import ReadSpec
    from daskboost.data.input.uploaded_rows import UploadedRows
    from daskboost.devices.cpu.predict import PackedForest
    from daskboost.devices.cpu.predict_models import PackedModels

R = TypeVar("R")
VALUES_PER_THREAD = 1 << 18
"""Values that a thread converts or checks in a tenth of a millisecond, which is what it takes to start it."""
QUANTIZED_PER_THREAD = 1 << 15
"""The same of values that it looks up among cut points."""
BLOCK_ROWS = 1 << 12
"""Rows whose values are counted while they are in a core's cache."""
FOUND_BYTES = 32
"""For each value of dense rows whose entries are found: two indices of 64 bits, and what is kept of them."""


CATEGORICAL = "c"
"""Kind of a column that holds categories, of which an encoder makes features: XGBoost's word."""
CATEGORY_CODE = "code"
"""Kind of a feature that holds codes of categories: whole numbers in float32, NaN missing; files say "c"."""


class FeatureMaker(Protocol):
    """Makes features of the columns that users give."""

    @property
    def columns(self) -> FeatureSchema:
        """Return the names and kinds of the columns."""
        ...

    @property
    def edges(self) -> tuple[int, ...]:
        """Return the first feature that is made of each column alone, and last the number of these; a column has one at
        least."""
        ...

    @property
    def shared(self) -> tuple[tuple[int, ...], ...]:
        """Return the columns of each feature that is made of several; such features are behind all others."""
        ...

    @property
    def codes(self) -> Mapping[int, int]:
        """Return the features that are codes of categories, each with the number of these."""
        ...

    @property
    def has_statistics(self) -> bool:
        """Return whether features are made of what the rows of categories have counted."""
        ...

    def category(self, feature: int, code: int) -> object:
        """Return the value that a code of a feature stands for; the code itself where none is known."""
        ...

    def derive(self, block: object, spec: ReadSpec, given: Mapping[str, Any]) -> Float32:
        """Return the features of a block; float32, shape (rows, features).

        `given` : what else there is of the block's rows, as `ReadSpec.read` has it.
        """
        ...


@dataclass(frozen=True)
class FeatureSchema:
    """Names and kinds of the features, agreed on before any partition is read.

    Parameters
    ----------
    names : tuple of str, or None
        Column names in training order; None where the input has none (arrays, sparse matrices).
    kinds : tuple of str
        One of ``"float"``, ``"int"``, ``"i"`` (boolean indicator), ``"c"`` (categories) per feature: XGBoost's
        ``feature_types``; and ``"code"`` for codes of categories, which splits by sets may divide.
    encoder : FeatureMaker, optional
        Makes these features of the columns that users give, where some of those are categorical; None where features
        are the columns.
    """

    names: tuple[str, ...] | None
    kinds: tuple[str, ...]
    encoder: FeatureMaker | None = None

    @property
    def n_features(self) -> int:
        return len(self.kinds)

    @property
    def columns(self) -> FeatureSchema:
        """Return the names and kinds of the columns that users give."""
        return self if self.encoder is None else self.encoder.columns

    @property
    def categorical(self) -> tuple[int, ...]:
        """Return the features that hold categories, in increasing order."""
        return tuple(feature for feature, kind in enumerate(self.kinds) if kind == CATEGORICAL)

    @property
    def is_code(self) -> Bool:
        """Return whether each feature is of codes, which sets of them split; bool, shape (features,)."""
        return np.array([kind == CATEGORY_CODE for kind in self.kinds], np.bool_)

    def of_column(self, column: int) -> range:
        """Return the features that are made of a column that users give, and of no other."""
        if self.encoder is None:
            return range(column, column + 1)
        first, after = self.encoder.edges[column : column + 2]
        return range(first, after)

    @property
    def of_several(self) -> dict[int, tuple[int, ...]]:
        """Return the columns of each feature that is made of several."""
        return {} if self.encoder is None else dict(enumerate(self.encoder.shared, self.encoder.edges[-1]))

    def by_column(self, values: Array) -> Array:
        """Add up what belongs to features by the columns that they are made of, along the last axis; columns of the
        same feature have equal parts of it."""
        if self.encoder is None:
            return values
        summed: Array = np.add.reduceat(values[..., : self.encoder.edges[-1]], self.encoder.edges[:-1], axis=-1)
        if not self.encoder.shared:
            return summed
        summed = summed.astype(np.float64)
        for feature, columns in self.of_several.items():
            summed[..., list(columns)] += values[..., feature, None] / len(columns)
        return summed

    def label(self, feature: int) -> str:
        """How messages and plots call a feature: its name, or ``f<index>``."""
        return self.names[feature] if self.names is not None else f"f{feature}"

    def category(self, feature: int, code: int) -> object:
        """Return what users call a category of a feature of codes: its value, or the code where that is all there
        is."""
        return code if self.encoder is None else self.encoder.category(feature, code)


def by_rows(function: Callable[[int, int], R], values: Float32, threads: int) -> list[R]:
    """Run a function of NumPy's on ranges of a matrix's rows, each on a thread and with work that is worth one."""
    from daskboost.devices.cpu.threads import by_ranges

    return by_ranges(function, len(values), threads, VALUES_PER_THREAD // max(values.shape[1], 1))


def _missing_values(values: Float32) -> Int64:
    """Count the NaNs of each column, block by block; a block that has none is only looked at."""
    counts = np.zeros(values.shape[1], np.int64)
    for start in range(0, len(values), BLOCK_ROWS):
        block = values[start : start + BLOCK_ROWS]
        if block.size and np.isnan(block.min()):
            counts += np.count_nonzero(np.isnan(block), axis=0)
    return counts


@dataclass(frozen=True)
class DenseRows:
    """Features as a matrix; NaN is missing."""

    values: Float32
    """float32, C-contiguous, shape (rows, features); never infinite."""
    is_lent = False

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])

    def part(self, start: int, stop: int) -> DenseRows:
        """Return the rows `start..stop`, as views."""
        return DenseRows(self.values[start:stop])

    def missing_values(self, threads: int = 1) -> Int64:
        """Return how many rows lack each feature; int64, shape (features,)."""
        parts = by_rows(lambda start, stop: _missing_values(self.values[start:stop]), self.values, threads)
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(self.n_features, np.int64)

    def matrix(self) -> Float32:
        """Return the values of all features; float32, shape (rows, features), NaN missing."""
        return self.values

    def exported(self) -> Float32:
        """Return the rows as other libraries take them."""
        return self.values

    def on_host(self) -> DenseRows:
        """Return the rows in the host's memory: themselves."""
        return self

    def key_blocks(self, weights: Int64, columns: Int64, max_workers: int) -> KeyBlocks:
        """Divide the rows into pieces of work, see `dense_key_blocks`."""
        return dense_key_blocks(self.values, weights, columns, max_workers)

    def fill_symbols(self, search: SearchTables, out: UInt8 | UInt16, threads: int) -> int:
        """Write the symbols of all features; return a feature that lacks the one for missing values, or -1."""
        from daskboost.devices.cpu.quantize import quantize_dense
        from daskboost.devices.cpu.threads import by_ranges

        least = QUANTIZED_PER_THREAD // max(self.values.shape[1], 1)
        return max(by_ranges(
            lambda start, stop: quantize_dense(self.values, search, start, stop, out), self.n_rows, threads, least
        ), default=-1)  # fmt: skip

    def entry_starts(self, threads: int) -> Int64:
        """Return the first present value of each row, and how many there are; int64, shape (rows + 1,)."""
        from daskboost.devices.cpu.quantize import count_present
        from daskboost.devices.cpu.threads import by_ranges

        counts = np.zeros(self.n_rows, np.int64)
        by_ranges(lambda start, stop: count_present(self.values, start, stop, counts), self.n_rows, threads)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def fill_bins(self, search: SearchTables, starts: Int64, out: UInt32, threads: int) -> None:
        """Write the global bins of all present values; `starts` : see `entry_starts`."""
        from daskboost.devices.cpu.quantize import compress_dense
        from daskboost.devices.cpu.threads import by_ranges

        by_ranges(
            lambda start, stop: compress_dense(self.values, search, starts, start, stop, out), self.n_rows, threads
        )

    def walk(self, forest: PackedForest, trees: tuple[int, int], block: int, rows: slice, leaves: Int32,
             margins: Float32) -> None:  # fmt: skip
        """Predict some rows, `block` at a time; see `predict_dense`."""
        from daskboost.devices.cpu.predict import predict_dense

        predict_dense(forest, self.values.view(np.uint32)[rows], *trees, block, leaves[rows], margins[rows])

    def fill_positions(self, models: PackedModels, out: Int8) -> None:
        """Write the positions of all rows in models of leaves; see `dense_positions`."""
        from daskboost.devices.cpu.predict_models import dense_positions

        dense_positions(models, self.values, out)


@dataclass(frozen=True)
class SparseRows:
    """Features as CSR, with the operations of `DenseRows`; an absent entry is missing, a stored zero is a value."""

    indptr: Int64
    """int64, shape (rows + 1,)."""
    indices: Int32
    """int32, feature of each entry, increasing within a row."""
    values: Float32
    """float32, never NaN (such entries are dropped on reading), never infinite."""
    n_features: int
    is_lent = False

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def csr(self) -> Csr:
        """The same as kernels take it."""
        return Csr(self.indptr, self.indices, self.values)

    def part(self, start: int, stop: int) -> SparseRows:
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - first
        return SparseRows(indptr, self.indices[first:last], self.values[first:last], self.n_features)

    def missing_values(self, threads: int = 1) -> Int64:
        return self.n_rows - np.bincount(self.indices, minlength=self.n_features)

    def matrix(self) -> Float32:
        dense = np.full((self.n_rows, self.n_features), np.nan, np.float32)
        dense[np.repeat(np.arange(self.n_rows), np.diff(self.indptr)), self.indices] = self.values
        return dense

    def exported(self) -> Any:
        from scipy.sparse import csr_matrix

        return csr_matrix((self.values, self.indices, self.indptr), (self.n_rows, self.n_features))

    def on_host(self) -> SparseRows:
        return self

    def key_blocks(self, weights: Int64, columns: Int64, max_workers: int) -> KeyBlocks:
        return sparse_key_blocks(self.csr, self.n_features, weights, columns, max_workers)

    def fill_symbols(self, search: SearchTables, out: UInt8 | UInt16, threads: int) -> int:
        from daskboost.devices.cpu.quantize import scatter_sparse
        from daskboost.devices.cpu.threads import by_ranges

        entries = self.csr
        return max(by_ranges(
            lambda start, stop: scatter_sparse(entries, search, start, stop, out), self.n_rows, threads
        ), default=-1)  # fmt: skip

    def entry_starts(self, threads: int) -> Int64:
        return self.indptr

    def fill_bins(self, search: SearchTables, starts: Int64, out: UInt32, threads: int) -> None:
        from daskboost.devices.cpu.quantize import quantize_entries
        from daskboost.devices.cpu.threads import by_ranges

        entries = self.csr
        by_ranges(lambda start, stop: quantize_entries(entries, search, start, stop, out), len(out), threads)

    def walk(self, forest: PackedForest, trees: tuple[int, int], block: int, rows: slice, leaves: Int32,
             margins: Float32) -> None:  # fmt: skip
        from daskboost.devices.cpu.predict import predict_sparse

        entries = Csr(self.indptr[rows.start : rows.stop + 1], self.indices, self.values.view(np.uint32))
        predict_sparse(forest, entries, *trees, block, leaves[rows], margins[rows])

    def fill_positions(self, models: PackedModels, out: Int8) -> None:
        from daskboost.devices.cpu.predict_models import sparse_positions

        sparse_positions(models, self.csr, out)


@dataclass(frozen=True)
class DeviceDenseRows:
    """Features as a matrix in a GPU's memory; NaN and `missing` stand for no value."""

    runtime: Runtime
    values: DeviceArray
    """float32, any strides, shape (rows, features); present values are never infinite."""
    missing: float
    """Compared in float32; NaN for no value but NaN."""
    n_missing: Int64
    """int64, shape (features,): rows without a value; on the host."""
    is_lent: bool = False
    """Whether `values` are the memory that was given, or took all rows whole: they stay from one read to the next."""

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])

    def lent(self) -> DeviceDenseRows:
        """Return the same as rows that stay from one read to the next."""
        return replace(self, is_lent=True)

    def part(self, start: int, stop: int) -> DeviceDenseRows:
        """Return the rows `start..stop`, as views."""
        return replace(self, values=self.values[start:stop])

    def missing_values(self, threads: int = 1) -> Int64:
        """Return how many rows lack each feature; int64, on the host."""
        return self.n_missing

    def series(self, weights: DeviceArray | None) -> tuple[Matrix, DeviceArray | None]:
        """Return the values as sketches count them, and the weight of each."""
        return Matrix(self.values, self.missing), weights

    def matrices(self, scratch_bytes: int) -> Iterator[tuple[Matrix, int]]:
        """Yield the rows as matrices with their first rows, made in at most so many bytes."""
        yield Matrix(self.values, self.missing), 0

    def entries(self) -> DeviceSparseRows:
        """Return the present values as CSR."""
        from daskboost.devices.gpu.runtime.stretches import true_places

        runtime, xp = self.runtime, self.runtime.xp
        present = Matrix(self.values, self.missing).present(runtime)
        indptr = xp.zeros(self.n_rows + 1, np.int64)
        indptr[1:] = xp.cumsum(present.sum(axis=1), dtype=np.int64)
        places = true_places(runtime, xp.ascontiguousarray(present).ravel())
        values, indices = xp.ascontiguousarray(self.values).ravel()[places], (places % self.n_features).astype(np.int32)
        return DeviceSparseRows(runtime, indptr, indices, values, self.n_features)

    def entry_parts(self, scratch_bytes: int) -> Iterator[DeviceSparseRows]:
        """Yield the entries of so many rows at a time as there is room to find them."""
        step = max(1, scratch_bytes // (FOUND_BYTES * self.n_features))
        for start in range(0, self.n_rows, step):
            yield self.part(start, start + step).entries()

    def on_host(self) -> DenseRows:
        """The same rows in the host's memory."""
        values = np.ascontiguousarray(to_host(self.values))
        values[values == np.float32(self.missing)] = np.nan
        return DenseRows(values)


@dataclass(frozen=True)
class DeviceSparseRows:
    """Features as CSR in a GPU's memory; fields as of `SparseRows`, operations as of `DeviceDenseRows`."""

    runtime: Runtime
    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray
    n_features: int
    is_lent = False

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    def lent(self) -> DeviceSparseRows:
        """Return the same, see `DeviceDenseRows`: chunks never share their memory."""
        return self

    def part(self, start: int, stop: int) -> DeviceSparseRows:
        first, last = (int(self.indptr[at]) for at in (start, stop))
        indptr = self.indptr[start : stop + 1] - first
        return replace(self, indptr=indptr, indices=self.indices[first:last], values=self.values[first:last])

    def missing_values(self, threads: int = 1) -> Int64:
        with active(self.runtime):
            present = self.runtime.xp.bincount(self.indices, minlength=self.n_features)
        return np.asarray(self.n_rows - to_host(present), np.int64)

    @property
    def entry_rows(self) -> DeviceArray:
        """The row of each entry; int64."""
        xp = self.runtime.xp
        places = xp.arange(len(self.values), dtype=np.int64)
        found: DeviceArray = xp.searchsorted(self.indptr, places, side="right") - 1
        return found

    def series(self, weights: DeviceArray | None) -> tuple[Entries, DeviceArray | None]:
        """Return the entries as sketches count them, and the weight of each."""
        found = Entries(self.indices, self.values, self.n_features)
        return found, None if weights is None else weights[self.entry_rows]

    def matrices(self, scratch_bytes: int) -> Iterator[tuple[Matrix, int]]:
        """Yield matrices, NaN where an entry is absent, piece by piece."""
        step, xp = max(1, scratch_bytes // (4 * self.n_features)), self.runtime.xp
        for start in range(0, self.n_rows, step):
            part = self.part(start, min(start + step, self.n_rows))
            values = xp.full((part.n_rows, part.n_features), np.nan, np.float32)
            values[part.entry_rows, part.indices] = part.values
            yield Matrix(values, math.nan), start

    def entries(self) -> DeviceSparseRows:
        return self

    def entry_parts(self, scratch_bytes: int) -> Iterator[DeviceSparseRows]:
        yield self

    def on_host(self) -> SparseRows:
        """The same rows in the host's memory."""
        return SparseRows(to_host(self.indptr), to_host(self.indices), to_host(self.values), self.n_features)


Features = DenseRows | SparseRows


@dataclass(eq=False)
class DeviceColumn:
    """Labels or weights in a GPU's memory, looked at there; they are fetched, once, when chunks are made."""

    runtime: Runtime
    values: DeviceArray
    """float32, shape (rows,), contiguous."""
    summary: LabelSummary
    _fetched: tuple[Float32, Download] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def ends(self) -> tuple[float, float]:
        """The least value and the greatest, of those that are not missing; one at least."""
        least, greatest = values_of(np.array([self.summary.least_key, self.summary.greatest_key], np.uint32)).tolist()
        return least, greatest

    def __reduce__(self) -> Any:
        """Pickle the rows for another process, to which Dask may move them: it fetches them itself."""
        return DeviceColumn, (self.runtime, self.values, self.summary)

    def fetch(self, threads: int = 1) -> tuple[Float32, Download]:
        """Begin to copy them to the host, if that has not begun."""
        if self._fetched is None:
            host = np.empty(len(self.values), np.float32)
            with active(self.runtime):
                self._fetched = host, Download(self.runtime, [(self.values, host)], threads)
        return self._fetched

    @property
    def on_host(self) -> Float32:
        """The same values in the host's memory; float32, shape (rows,)."""
        host, download = self.fetch()
        download.wait()
        return host


DeviceRows = DeviceDenseRows | DeviceSparseRows


AnyFeatures: TypeAlias = "Features | DeviceRows | UploadedRows"


def host_column(column: Float32 | DeviceColumn) -> Float32:
    """Labels or weights in the host's memory."""
    return column.on_host if isinstance(column, DeviceColumn) else column
