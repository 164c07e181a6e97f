"""What rows have beside features: a record of named columns, and what each needs of being read, moved and saved.

A further column is a field of `RowColumns`, its rule in `COLUMNS`, and an argument of the functions that take rows from
users; all that carries rows from there on (sources, partitions, chunks, files, groups of chunks) goes through these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from daskboost.data.input.classes import read_codes
from daskboost.data.input.convert import float_vector, margin_values
from daskboost.data.input.device_read import device_column
from daskboost.data.input.queries import check_kinds_of_ids, query_codes
from daskboost.data.input.row_batch import AnyFeatures, DeviceColumn
from daskboost.dtypes import Array, Bool, Float32, Int32, Int64
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.data.input.kinds import Vector
    from daskboost.data.input.read import ReadSpec

ColumnT = TypeVar("ColumnT", covariant=True)
HostOrDevice = Float32 | DeviceColumn
AnyColumn = Array | DeviceColumn
FLOAT32_LIMIT = float(np.finfo(np.float32).max)
"""Labels, weights and margins are smaller than this."""


@dataclass(frozen=True, eq=False)
class RowColumns(Generic[ColumnT]):
    """Columns of some rows, each of which all rows have or none.

    Parameters
    ----------
    label : float32 column, shape (rows,), or None when predicting
    weight : float32 column, shape (rows,), or None for all ones
    base_margin : float32 array, shape (rows, outputs), or None for the model's base score
    qid : int64 array, shape (rows,), or None
        The code of each row's query: rows of one code are ranked together, wherever they lie.
    """

    label: ColumnT | None = None
    weight: ColumnT | None = None
    base_margin: Float32 | None = None
    qid: Int64 | None = None

    @property
    def present(self) -> dict[str, Any]:
        """The columns that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in found.items() if column is not None}

    def taken(self, rows: slice | Bool | Int32) -> RowColumns[ColumnT]:
        """Return some of the rows of host columns."""
        return RowColumns(**{name: column[rows] for name, column in self.present.items()})

    def copied(self, start: int, stop: int) -> ChunkRows:
        """Return copies of the rows `start..stop` in the host's memory, so that what they come from can be freed."""
        own: dict[str, Any] = {
            name: column.on_host[start:stop] if isinstance(column, DeviceColumn)  # fetched: nobody else's
            else np.array(column[start:stop], column.dtype, order="C")
            for name, column in self.present.items()
        }  # fmt: skip
        return RowColumns(**own)


ChunkRows = RowColumns[Float32]
"""Columns in the host's memory."""


def joined(parts: Sequence[ChunkRows]) -> ChunkRows:
    """Return the rows of all parts one after the other; of a single part no copy."""
    if len(parts) == 1:
        return parts[0]
    return RowColumns(**{
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (parts[0].present if parts else ())
    })  # fmt: skip


@dataclass(frozen=True)
class RowBatch:
    """One partition, converted and checked.

    Parameters
    ----------
    features : DenseRows or SparseRows, either in a GPU's memory, or on its way there
    columns : RowColumns
        What its rows have beside features; labels and weights may lie in a GPU's memory.
    query_kind : str
        See `kind_of_ids`; empty where rows have no queries, or there are none.
    """

    features: AnyFeatures
    columns: RowColumns[HostOrDevice] = RowColumns()  # frozen, so a shared default is safe
    query_kind: str = ""

    @property
    def n_rows(self) -> int:
        return self.features.n_rows

    def fetch(self, threads: int = 1) -> None:
        """Begin to copy to the host what of the columns lies on a GPU, beside the kernels that work there."""
        for column in self.columns.present.values():
            if isinstance(column, DeviceColumn):
                column.fetch(threads)


@dataclass(frozen=True)
class ColumnSummary:
    """What is known of the columns of many rows without looking at them again; `a + b` is that of both, in any order.

    Parameters
    ----------
    names : frozenset of str
        The fields of `RowColumns` that rows have.
    query_kinds : frozenset of str
        Of which kinds the ids of queries are.
    """

    names: frozenset[str] = frozenset()
    query_kinds: frozenset[str] = frozenset()

    @classmethod
    def of(cls, batch: RowBatch) -> ColumnSummary:
        """Return the summary of one partition; without rows it has no columns."""
        if not batch.n_rows:
            return cls()
        return cls(frozenset(batch.columns.present), frozenset({batch.query_kind} - {""}))

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        return ColumnSummary(self.names | other.names, self.query_kinds | other.query_kinds)

    def check(self) -> None:
        """Refuse partitions whose columns do not belong together; DataTypeError."""
        check_kinds_of_ids(self.query_kinds)


@dataclass(frozen=True)
class ColumnRule:
    """What one kind of column needs on its way from the user's data to files."""

    argument: str
    """What users call it, and messages."""
    read: Callable[[Any, ReadSpec], AnyColumn]
    """Converts and checks a block of it; raises as `ReadSpec.read`."""
    several: bool = False
    """Whether it has two dimensions, a column for every output; blocks are whole frames then, where it lies in X."""
    takes_text: bool = False
    """Whether a column of texts can be it."""
    dtype: str = "<f4"
    """Its type in files."""
    least: float = -math.inf
    """Its least value."""


def read_label(block: Vector, spec: ReadSpec) -> HostOrDevice:
    """Convert and check labels: codes of classes where the reader knows these, else numbers."""
    if spec.classes is not None:
        return read_codes(block, spec.classes)
    found = device_column(block, "y")
    if found is not None:
        _refuse_counts(found.summary.n_missing, found.summary.n_infinite, "y", "labels", "Drop these rows")
        return found
    label = float_vector(block, "y")
    _require_finite(label, "y", "labels", "Drop these rows")
    return label


def read_weight(block: Vector, spec: ReadSpec) -> HostOrDevice:
    """Convert and check weights."""
    found = device_column(block, "weight")
    if found is not None and (not len(found) or _can_weigh(found)):
        return found
    weight = float_vector(block, "weight")
    bad = ~((weight >= 0) & (weight < FLOAT32_LIMIT))
    if bad.any():
        raise DataError(
            f"weight has {int(bad.sum())} values that are negative, missing or infinite, e.g. {weight[bad][0]}. "
            "Weights must be finite and at least 0; a row of weight 0 is ignored."
        )
    return weight


def read_margin(block: Any, spec: ReadSpec) -> Float32:
    """Convert and check base margins, a block's or those in columns of X."""
    return checked_margin(margin_values(block, spec.inside.get("base_margin")), spec)


def read_qid(block: Vector, spec: ReadSpec) -> Int64:
    """Convert and check ids of queries."""
    return query_codes(block)


def checked_margin(margin: Float32, spec: ReadSpec) -> Float32:
    """Return base margins, float32 of shape (rows, columns), NumPy's or CuPy's, as they are; raises as `read`."""
    _require_finite(margin, "base_margin", "base margins", "Replace them by finite raw scores")
    if spec.n_margin_outputs is not None and margin.shape[1] != spec.n_margin_outputs:
        raise DataError(
            f"base_margin has {margin.shape[1]} columns here, but {spec.n_margin_outputs} elsewhere. "
            "Pass one column per output in every partition."
        )
    return margin


COLUMNS = {
    "label": ColumnRule("y", read_label, takes_text=True),
    "weight": ColumnRule("weight", read_weight, least=0.0),
    "base_margin": ColumnRule("base_margin", read_margin, several=True),
    "qid": ColumnRule("qid", read_qid, takes_text=True, dtype="<i8"),
}
"""The rule of each field of `RowColumns`, in the order in which they are read."""


def columns_by_argument(given: dict[str, object]) -> dict[str, object]:
    """Return what users gave for columns, None for those that they did not, by the names of the fields.

    Raises
    ------
    TypeError
        An argument that is no column.
    """
    unknown = [name for name in given if name not in {rule.argument for rule in COLUMNS.values()}]
    if unknown:
        raise TypeError(f"{unknown[0]!r} is no column of rows: {', '.join(rule.argument for rule in COLUMNS.values())}")
    return {name: given.get(rule.argument) for name, rule in COLUMNS.items()}


def _can_weigh(column: DeviceColumn) -> bool:
    least, greatest = column.ends
    return column.summary.n_missing == 0 and least >= 0 and greatest < FLOAT32_LIMIT


def _require_finite(values: Float32, name: str, what: str, remedy: str) -> None:
    """Refuse NaN and infinities in a float32 array of NumPy or CuPy; DataError with their number."""
    _refuse_counts(int(np.isnan(values).sum()), int(np.isinf(values).sum()), name, what, remedy)


def _refuse_counts(missing: int, infinite: int, name: str, what: str, remedy: str) -> None:
    if missing:
        raise DataError(f"{name} has {missing} missing values; {what} must be present. {remedy}.")
    if infinite:
        raise DataError(f"{name} has {infinite} values that are infinite or too large for float32 (3.4e38). {remedy}.")
