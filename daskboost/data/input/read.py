"""How the raw blocks of one partition become a checked `RowBatch`; the only place that judges values."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from daskboost.data.input.classes import ClassWeights
from daskboost.data.input.convert import column_of, dense_values
from daskboost.data.input.device_read import Columns, device_rows
from daskboost.data.input.kinds import canonical_csr, is_sparse
from daskboost.data.input.queries import kind_of_ids
from daskboost.data.input.row_batch import (
    AnyFeatures,
    DenseRows,
    DeviceColumn,
    Features,
    FeatureSchema,
    SparseRows,
    by_rows,
)
from daskboost.data.input.row_columns import (
    COLUMNS,
    FLOAT32_LIMIT,
    AnyColumn,
    HostOrDevice,
    RowBatch,
    RowColumns,
)
from daskboost.data.input.schema import listed
from daskboost.data.input.uploaded_rows import UploadedRows, naming, rows_of_host
from daskboost.devices.gpu.runtime.user_arrays import is_device_array
from daskboost.dtypes import Float32, read_only
from daskboost.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import spmatrix

    from daskboost.data.input.kinds import Table
    from daskboost.data.input.parquet import RowGroup

_LIMIT = np.float32(FLOAT32_LIMIT)  # the split that sends all present values left is `x < _LIMIT`


@dataclass(frozen=True)
class ReadSpec:
    """What `read` must know about every partition: small, and the same for all.

    Parameters
    ----------
    columns : tuple, or None
        The features within a block, in the schema's order: names of a frame's columns, positions of an array's;
        None for all of an array's columns.
    missing : float
        A further value that stands for missing, compared in float32; NaN for none.
    inside : mapping
        Columns of the frame where fields of `RowColumns` lie, by their names; other fields come as blocks of their own,
        or not at all.
    classes : tuple, or None
        Class labels in the order of their codes; None when labels are numbers.
    n_margin_outputs : int, or None
        Columns every base margin must have; None where the source does not tell.
    class_weights : ClassWeights, or None
        Factors on the weights of rows by their class.
    device : str, or None
        Where features on the host shall be quantized; None for the CPU. What lies on a GPU stays there.
    device_memory_limit : int, or None
        Bytes of a GPU that quantizing may take; None for what is free.
    lends : bool
        Whether a fit takes bins that stay on a GPU as they are; else it copies them, and there must be room for both.
    is_late : bool
        Whether features on the host stay `UploadedRows`, to be read where they are predicted.
    threads : int
        Row ranges of dense features that are converted and checked on the host at the same time.
    """

    schema: FeatureSchema
    columns: Columns = None
    missing: float = math.nan
    inside: Mapping[str, tuple[Hashable, ...]] = field(default_factory=dict)
    classes: tuple[Any, ...] | None = None
    n_margin_outputs: int | None = None
    class_weights: ClassWeights | None = None
    device: str | None = None
    device_memory_limit: int | None = None
    lends: bool = True
    is_late: bool = False
    threads: int = 1

    @property
    def device_room(self) -> int:
        """Return `device_memory_limit`; more bytes than any GPU has, where there is none."""
        return sys.maxsize if self.device_memory_limit is None else self.device_memory_limit

    @property
    def frame_columns(self) -> list[Hashable]:
        """All columns of a frame that `read` looks at, each once."""
        return list(dict.fromkeys(chain(self.columns or (), *self.inside.values())))

    @property
    def places(self) -> Sequence[Hashable]:
        """Return where the columns of `schema` lie in a block: their names in a frame, their positions in an array."""
        return range(self.schema.columns.n_features) if self.columns is None else self.columns

    def read(self, x: Any, given: Mapping[str, Any], *, where: str = "") -> RowBatch:
        """Convert and check one partition.

        Parameters
        ----------
        x : 2-D array, scipy.sparse matrix, pandas DataFrame, pyarrow Table or RowGroup; or its like of CuPy or cuDF
        given : mapping
            Blocks of as many rows, by the names of the fields of `RowColumns`; None where absent.
        where : str
            What messages call the partition.

        Returns
        -------
        RowBatch
            Its arrays are read-only and may share memory with the blocks. Features stay in the memory where they are;
            those that a GPU shall quantize, or may predict, are not read yet, but `UploadedRows`.

        Raises
        ------
        DataTypeError
            When a column does not hold numbers.
        DataError
            For infinite features, missing or infinite labels and base margins, negative, missing or infinite weights,
            a label that is not among the classes, blocks of different lengths, another number of features.
        """
        with naming(where):
            encoder = self.schema.encoder
            if encoder is None:
                features = self._features(x, where)
            else:
                features = self.derived._features(encoder.derive(x, self, given), where)
            try:
                return self._read(features, x, given)
            except DataError:
                if isinstance(features, UploadedRows):
                    replace(features, where="").check()  # what is wrong with features comes first, wherever read
                raise

    @property
    def derived(self) -> ReadSpec:
        """Return what reads the features that an encoder has made of a block."""
        return replace(self, columns=None, missing=math.nan)

    def _read(self, features: AnyFeatures, x: Any, given: Mapping[str, Any]) -> RowBatch:
        self.check_features(features.n_features)
        columns, qid = self.columns_of(features.n_rows, x, given), self._block_of("qid", x, given)
        return RowBatch(features, columns, "" if qid is None or not features.n_rows else kind_of_ids(qid))

    def columns_of(self, n: int, x: object, given: Mapping[str, Any]) -> RowColumns[HostOrDevice]:
        """Read what the `n` rows of a partition have beside features; parameters and errors as of `read`."""
        found = dict[str, Any]()
        for name, rule in COLUMNS.items():
            block = self._block_of(name, x, given)
            found[name] = None if block is None else _of_length(rule.read(block, self), n, rule.argument)
        columns: RowColumns[HostOrDevice] = RowColumns(**found)
        if self.class_weights is not None and columns.label is not None:
            weight = self.class_weights.weigh(columns.label, columns.weight)
            columns = replace(columns, weight=_of_length(weight, n, "weight"))
        return columns

    def _block_of(self, name: str, x: object, given: Mapping[str, Any]) -> object:
        """Return the block that a field of `RowColumns` is read from; None where rows have none."""
        if name not in self.inside:
            return given.get(name)
        return x if COLUMNS[name].several else column_of(x, self.inside[name][0])

    def _features(self, x: Any, where: str) -> AnyFeatures:
        if is_device_array(x):
            features, beyond = device_rows(x, self.columns, self.missing)
            if beyond.any():
                self.refuse_infinite(np.flatnonzero(beyond))
            return features
        return rows_of_host(self, x, where)

    def host_features(self, x: Table | spmatrix | RowGroup) -> Features:
        """Features of a block in the host's memory, converted and checked there; raises as `read`."""
        if is_sparse(x):
            return self._sparse(x)
        values = dense_values(x, self.columns, self.threads)
        if not math.isnan(self.missing):
            given = values
            values = np.where(given == np.float32(self.missing), np.float32(np.nan), given)
        features = DenseRows(read_only(values))
        if any(by_rows(lambda start, stop: _beyond(values[start:stop]), values, self.threads)):
            with np.errstate(invalid="ignore"):
                self.refuse_infinite(np.flatnonzero((np.abs(values) >= _LIMIT).any(axis=0)))
        return features

    def _sparse(self, x: spmatrix) -> SparseRows:
        x = canonical_csr(x, self.columns)
        with np.errstate(over="ignore"):
            values = x.data[: x.indptr[-1]].astype(np.float32, copy=False)
        indices = x.indices[: len(values)].astype(np.int32, copy=False)
        indptr = x.indptr.astype(np.int64, copy=False)
        absent = np.isnan(values)
        if not math.isnan(self.missing):
            absent |= values == np.float32(self.missing)
        if absent.any():
            kept = np.concatenate([[0], np.cumsum(~absent)])
            values, indices, indptr = values[~absent], indices[~absent], kept[indptr]
        if len(values) and _beyond(values):
            self.refuse_infinite(np.unique(indices[np.abs(values) >= _LIMIT]))
        return SparseRows(read_only(indptr), read_only(indices), read_only(values), int(x.shape[1]))

    def check_features(self, n_features: int) -> None:
        """Refuse a partition of another number of features."""
        if n_features != self.schema.n_features:
            raise DataError(
                f"X has {n_features} features here, but {self.schema.n_features} were expected. "
                "Make all partitions have the same columns."
            )

    def refuse_infinite(self, features: npt.NDArray[Any]) -> NoReturn:
        """The error for features that hold infinite values."""
        names = [repr(self.schema.label(int(i))) for i in features]
        raise DataError(
            f"X has values that are infinite or too large for float32 (3.4e38) in: {listed(names)}. "
            "Replace them, e.g. by NaN if they mean missing, or by a finite bound."
        )


def _of_length(values: AnyColumn, n_rows: int, name: str) -> AnyColumn:
    require_length(values, n_rows, name)
    return values if isinstance(values, DeviceColumn) else read_only(values)


def require_length(values: Sized, n_rows: int, name: str) -> None:
    """Refuse an array with another number of rows than X; DataError with both."""
    if len(values) != n_rows:
        raise DataError(
            f"{name} has {len(values)} rows where X has {n_rows}. Pass them with the same rows in the same order and, "
            "as Dask collections, cut into partitions at the same rows."
        )


def _beyond(values: Float32) -> bool:
    """Whether any value is at or beyond float32's largest; NaN is not."""
    return bool(np.fmax.reduce(values, axis=None) >= _LIMIT or np.fmin.reduce(values, axis=None) <= -_LIMIT)
