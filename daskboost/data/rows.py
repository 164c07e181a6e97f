"""Rows as they come from a source: one partition's features, label, weight and base margin as plain arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daskboost.data.key_counts import values_of
from daskboost.devices.gpu.download import Download
from daskboost.devices.gpu.labels import LabelSummary
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, active, to_host
from daskboost.dtypes import Float32, Int32, Int64


@dataclass(frozen=True)
class FeatureSchema:
    """Names and kinds of the features, agreed on before any partition is read.

    Parameters
    ----------
    names : tuple of str, or None
        Column names in training order; None where the input has none (arrays, sparse matrices).
    kinds : tuple of str
        One of ``"float"``, ``"int"``, ``"i"`` (boolean indicator) per feature: XGBoost's ``feature_types``.
    """

    names: tuple[str, ...] | None
    kinds: tuple[str, ...]

    @property
    def n_features(self) -> int:
        return len(self.kinds)

    def label(self, feature: int) -> str:
        """How messages and plots call a feature: its name, or ``f<index>``."""
        return self.names[feature] if self.names is not None else f"f{feature}"


@dataclass(frozen=True)
class DenseRows:
    """Features as a matrix; NaN is missing."""

    values: Float32
    """float32, C-contiguous, shape (rows, features); never infinite."""

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])


@dataclass(frozen=True)
class SparseRows:
    """Features as CSR; an absent entry is missing, a stored zero is a value."""

    indptr: Int64
    """int64, shape (rows + 1,)."""
    indices: Int32
    """int32, feature of each entry, increasing within a row."""
    values: Float32
    """float32, never NaN (such entries are dropped on reading), never infinite."""
    n_features: int

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1


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
    """Whether `values` are the memory that was given, not a copy."""

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])

    def on_host(self) -> DenseRows:
        """The same rows in the host's memory."""
        values = np.ascontiguousarray(to_host(self.values))
        values[values == np.float32(self.missing)] = np.nan
        return DenseRows(values)


@dataclass(frozen=True)
class DeviceSparseRows:
    """Features as CSR in a GPU's memory; fields as of `SparseRows`."""

    runtime: Runtime
    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray
    n_features: int

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

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


class UploadedRows(ABC):
    """Features that lie on the host, or in a file, as they came: a GPU takes them block by block."""

    n_rows: int
    n_features: int

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """The GPU that takes them."""

    @property
    @abstractmethod
    def scratch_bytes(self) -> int:
        """Return the bytes of the device's memory that may be used beside a block."""

    @abstractmethod
    def beside(self, held_bytes: int) -> UploadedRows:
        """The same rows where something else takes so many bytes of what they may have."""

    @abstractmethod
    def blocks(self, ends: Sequence[int] = (), threads: int = 1) -> Iterator[tuple[int, DeviceRows]]:
        """First row and rows of one block after the other, none beyond any of the rows in `ends`, which increase.

        Raises
        ------
        DataError, DataTypeError
            What reading the same rows on the host refuses; infinite values once all blocks were seen.
        DeviceError
            Not even the smallest block has room.
        """

    @abstractmethod
    def on_host(self) -> Features:
        """The same rows, read on the host."""


AnyFeatures = Features | DeviceRows | UploadedRows


def host_features(features: AnyFeatures) -> Features:
    """Features in the host's memory: themselves, or a copy of what lies in a GPU's or was to be taken there."""
    return features.on_host() if isinstance(features, DeviceRows | UploadedRows) else features


def host_column(column: Float32 | DeviceColumn) -> Float32:
    """Labels or weights in the host's memory."""
    return column.on_host if isinstance(column, DeviceColumn) else column


@dataclass(frozen=True)
class RowBatch:
    """One partition, converted and checked.

    Parameters
    ----------
    features : DenseRows or SparseRows, either in a GPU's memory, or on its way there
    label : float32 array, shape (rows,), DeviceColumn, or None when predicting
    weight : float32 array, shape (rows,), DeviceColumn, or None for all ones
    base_margin : float32 array, shape (rows, outputs), or None for the model's base score
    """

    features: AnyFeatures
    label: Float32 | DeviceColumn | None = None
    weight: Float32 | DeviceColumn | None = None
    base_margin: Float32 | None = None

    @property
    def n_rows(self) -> int:
        return self.features.n_rows

    def fetch(self, threads: int = 1) -> None:
        """Begin to copy to the host what of labels and weights lies on a GPU, beside the kernels that work there."""
        for column in (self.label, self.weight):
            if isinstance(column, DeviceColumn):
                column.fetch(threads)
