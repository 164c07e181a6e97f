"""How the raw blocks of one partition become a checked `RowBatch`; the only place that judges values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from daskboost.data.input.classes import ClassWeights, read_codes
from daskboost.data.input.convert import column_of, dense_values, float_vector, margin_values
from daskboost.data.input.device_read import Columns, dense_rows, device_column, sparse_rows
from daskboost.data.input.kinds import canonical_csr, is_sparse
from daskboost.data.input.row_batch import (
    AnyFeatures,
    DenseRows,
    DeviceColumn,
    DeviceRows,
    Features,
    FeatureSchema,
    RowBatch,
    SparseRows,
)
from daskboost.data.input.schema import listed
from daskboost.data.input.uploaded_rows import UploadedRows, naming, rows_for_gpu
from daskboost.devices.gpu.runtime.user_arrays import device_kind
from daskboost.dtypes import Float32
from daskboost.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import spmatrix

    from daskboost.data.input.kinds import Table, Vector
    from daskboost.data.input.parquet import RowGroup

T = TypeVar("T", bound=np.generic)
Column = TypeVar("Column", Float32, DeviceColumn, Float32 | DeviceColumn)

_LIMIT = np.finfo(np.float32).max  # the split that sends all present values left is `x < _LIMIT`


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
    label_column, weight_column : hashable, or None
        Column of the frame where the label (weight) lies; None when it comes as a block of its own, or not at all.
    margin_columns : tuple, or None
        Columns of the frame where the base margins lie, one per output.
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
    """

    schema: FeatureSchema
    columns: Columns = None
    missing: float = math.nan
    label_column: Hashable | None = None
    weight_column: Hashable | None = None
    margin_columns: tuple[Hashable, ...] | None = None
    classes: tuple[Any, ...] | None = None
    n_margin_outputs: int | None = None
    class_weights: ClassWeights | None = None
    device: str | None = None
    device_memory_limit: int | None = None

    @property
    def frame_columns(self) -> list[Hashable]:
        """All columns of a frame that `read` looks at, each once."""
        inside = [self.label_column, self.weight_column, *(self.margin_columns or ())]
        return list(dict.fromkeys([*(self.columns or ()), *(name for name in inside if name is not None)]))

    def read(self, x: Any, y: Any = None, weight: Any = None, base_margin: Any = None, *, where: str = "") -> RowBatch:
        """Convert and check one partition.

        Parameters
        ----------
        x : 2-D array, scipy.sparse matrix, pandas DataFrame, pyarrow Table or RowGroup; or its like of CuPy or cuDF
        y, weight, base_margin : 1-D (base_margin: 1-D or 2-D) block of as many rows, or None
        where : str
            What messages call the partition.

        Returns
        -------
        RowBatch
            Its arrays are read-only and may share memory with the blocks. Features stay in the memory where they are;
            those that a GPU shall quantize are not read yet, but `UploadedRows`.

        Raises
        ------
        DataTypeError
            When a column does not hold numbers.
        DataError
            For infinite features, missing or infinite labels and base margins, negative, missing or infinite weights,
            a label that is not among the classes, blocks of different lengths, another number of features.
        """
        with naming(where):
            features = self._features(x, where)
            try:
                return self._read(features, x, y, weight, base_margin)
            except DataError:
                if isinstance(features, UploadedRows):
                    replace(features, where="").check()  # what is wrong with features comes first, wherever read
                raise

    def _read(self, features: AnyFeatures, x: Any, y: Any, weight: Any, base_margin: Any) -> RowBatch:
        self.check_features(features.n_features)
        if self.label_column is not None:
            y = column_of(x, self.label_column)
        if self.weight_column is not None:
            weight = column_of(x, self.weight_column)
        if self.margin_columns is not None:
            base_margin = x
        n = features.n_rows
        label = None if y is None else _of_length(self.label(y), n, "y")
        weight = None if weight is None else _of_length(_read_weight(weight), n, "weight")
        if self.class_weights is not None and label is not None:
            weight = _of_length(self.class_weights.weigh(label, weight), n, "weight")
        return RowBatch(
            features,
            label=label,
            weight=weight,
            base_margin=None if base_margin is None else _of_length(self._margin(base_margin), n, "base_margin"),
        )

    def _features(self, x: Any, where: str) -> AnyFeatures:
        kind = device_kind(x)
        if kind is not None:
            read = sparse_rows if kind == "cupy_sparse" else dense_rows
            features: DeviceRows
            features, beyond = read(x, self.columns, self.missing)
            if beyond.any():
                self.refuse_infinite(np.flatnonzero(beyond))
            return features
        return rows_for_gpu(self, x, where) or self.host_features(x)

    def host_features(self, x: Table | spmatrix | RowGroup) -> Features:
        """Features of a block in the host's memory, converted and checked there; raises as `read`."""
        if is_sparse(x):
            return self._sparse(x)
        values = dense_values(x, self.columns)
        if not math.isnan(self.missing):
            given = values
            values = np.where(given == np.float32(self.missing), np.float32(np.nan), given)
        features = DenseRows(_frozen(values))
        if features.n_rows and _beyond(values):
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
        return SparseRows(_frozen(indptr), _frozen(indices), _frozen(values), int(x.shape[1]))

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

    def label(self, y: Vector) -> Float32 | DeviceColumn:
        """Convert and check one partition's labels; float32, shape (rows,). Raises as `read`."""
        if self.classes is not None:
            return read_codes(y, self.classes)
        found = device_column(y, "y")
        if found is not None:
            _refuse_counts(found.summary.n_missing, found.summary.n_infinite, "y", "labels", "Drop these rows")
            return found
        label = float_vector(y, "y")
        require_finite(label, "y", "labels", "Drop these rows")
        return label

    def _margin(self, base_margin: Table | Vector | RowGroup) -> Float32:
        return self.checked_margin(margin_values(base_margin, self.margin_columns))

    def checked_margin(self, margin: Float32) -> Float32:
        """Base margins, float32 of shape (rows, columns), NumPy's or CuPy's, as they are; raises as `read`."""
        require_finite(margin, "base_margin", "base margins", "Replace them by finite raw scores")
        if self.n_margin_outputs is not None and margin.shape[1] != self.n_margin_outputs:
            raise DataError(
                f"base_margin has {margin.shape[1]} columns here, but {self.n_margin_outputs} elsewhere. "
                "Pass one column per output in every partition."
            )
        return margin


def _read_weight(block: Vector) -> Float32 | DeviceColumn:
    found = device_column(block, "weight")
    if found is not None and (not len(found) or _can_weigh(found)):
        return found
    weight = float_vector(block, "weight")
    bad = ~((weight >= 0) & (weight < _LIMIT))
    if bad.any():
        raise DataError(
            f"weight has {int(bad.sum())} values that are negative, missing or infinite, e.g. {weight[bad][0]}. "
            "Weights must be finite and at least 0; a row of weight 0 is ignored."
        )
    return weight


def _can_weigh(column: DeviceColumn) -> bool:
    least, greatest = column.ends
    return column.summary.n_missing == 0 and least >= 0 and greatest < float(_LIMIT)


def require_finite(values: Float32, name: str, what: str, remedy: str) -> None:
    """Refuse NaN and infinities in a float32 array of NumPy or CuPy; DataError with their number."""
    _refuse_counts(int(np.isnan(values).sum()), int(np.isinf(values).sum()), name, what, remedy)


def _refuse_counts(missing: int, infinite: int, name: str, what: str, remedy: str) -> None:
    if missing:
        raise DataError(f"{name} has {missing} missing values; {what} must be present. {remedy}.")
    if infinite:
        raise DataError(f"{name} has {infinite} values that are infinite or too large for float32 (3.4e38). {remedy}.")


def _of_length(values: Column, n_rows: int, name: str) -> Column:
    require_length(values, n_rows, name)
    return values if isinstance(values, DeviceColumn) else _frozen(values)


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


def _frozen(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """A read-only view: a batch may be the user's own memory, which nobody may write to."""
    view = array.view()
    view.flags.writeable = False
    return view
