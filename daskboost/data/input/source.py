"""Any supported input becomes partitions of rows: judged by its metadata now, read later, one partition at a time.

X and what goes with its rows → Blocks (cut and aligned) → Partition → ReadSpec.read → RowBatch
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from daskboost.data.input import uploaded_rows as upload
from daskboost.data.input.align import aligned, check_dtype, columns_named, dtypes_of, is_text, width_of
from daskboost.data.input.blocks import Blocks, DaskArrayBlocks, DaskFrameBlocks, LocalBlocks, MadeBlocks, WholeBlocks
from daskboost.data.input.classes import class_array
from daskboost.data.input.frontend import OpenedInput, choose_features, open_input
from daskboost.data.input.held import Held, value_of
from daskboost.data.input.kinds import DEVICE_KINDS, is_lazy, kind_of
from daskboost.data.input.read import ReadSpec
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.data.input.row_columns import COLUMNS, RowBatch, columns_by_argument
from daskboost.data.input.schema import listed, match_by_name
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from dask.delayed import Delayed

    from daskboost.data.input.schema import ColumnType

logger = logging.getLogger(__name__)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns the values of Dask's objects, in order."""


class Reader(Protocol[T_co]):
    """Makes something of each partition; `ReadSpec` makes a `RowBatch`."""

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> T_co:
        """Return what is made of one partition; parameters as of `ReadSpec.read`."""
        ...


AnyReader: TypeAlias = Reader[T] | Held[Reader[T]]
"""A reader, or what stands for one where partitions are read."""


def compute_here(lazy: Sequence[Any]) -> Sequence[Any]:
    """Compute Dask's objects, in one go, with its current scheduler."""
    from dask import compute

    values: Sequence[Any] = compute(*lazy, traverse=False)
    return values


@dataclass(frozen=True)
class Partition:
    """The raw rows of one partition, read only when asked for."""

    index: int
    names: tuple[str, ...]
    """Fields of `RowColumns` that come as blocks of their own."""
    blocks: tuple[Any, ...]
    """x, and the blocks of those fields: raw objects or Delayed; None for blocks that are in `together`."""
    where: str = ""
    """What messages call it."""
    together: Any = None
    """All blocks as one Delayed, which computes what they share once, where several are Dask's and of one kind."""

    def load(self, reader: AnyReader[T], compute: Compute) -> T:
        """Compute the blocks and read them here."""
        blocks: Sequence[Any] = self.blocks
        if self.together is not None:
            (blocks,) = compute([self.together])
        elif lazy := [block for block in blocks if is_lazy(block)]:
            results = iter(compute(lazy))
            blocks = [next(results) if is_lazy(block) else block for block in blocks]
        return _read_blocks(self.names, self.where, *blocks, reader=reader)


@dataclass(frozen=True)
class Source:
    """Partitions of rows with one schema. Made by `make_source`; nothing has been read or computed."""

    schema: FeatureSchema
    spec: ReadSpec
    x: Blocks
    beside: Mapping[str, Blocks]
    """What fields of `RowColumns` are read from, by their names, but for those that are columns of X."""
    label_dtype: ColumnType | None = None
    """The labels' dtype as the metadata gives it; None without labels."""
    compute: Compute = compute_here
    """Computes Dask's objects where this process needs their values."""
    reader: Held[ReadSpec] | None = None
    """Stands for `spec` where tasks read partitions, as what makes features may be too large for a graph."""

    @property
    def is_dask(self) -> bool:
        """Whether the rows lie in a Dask collection."""
        return isinstance(self.x, DaskFrameBlocks | DaskArrayBlocks)

    @property
    def home(self) -> str:
        """Where features are quantized, "cuda" or "cpu": on GPUs if they lie there in a Dask collection, or are to be
        brought there."""
        lies_there = self.is_dask and kind_of(self.x.data._meta) in DEVICE_KINDS
        return "cuda" if lies_there or self.spec.device is not None else "cpu"

    def has(self, column: str) -> bool:
        """Return whether rows have a field of `RowColumns`."""
        return column in self.beside or column in self.spec.inside

    def blocks_of(self, column: str) -> list[Any]:
        """Return the raw blocks of a field that rows have, or a Delayed for each that reads nothing else."""
        if column in self.spec.inside:
            return self.x.column_blocks(self.spec.inside[column][0])
        return self.beside[column].blocks()

    @property
    def n_partitions(self) -> int:
        return self.x.n_partitions

    @property
    def pieces(self) -> tuple[int, ...] | None:
        """Rows at which chunks end besides those at which partitions do; None for no others."""
        return self.x.pieces if isinstance(self.x, WholeBlocks) else None

    @property
    def n_rows(self) -> int | None:
        """Rows in all; None where only computing would tell."""
        return None if self.x.lengths is None else sum(self.x.lengths)

    def lends(self, batch: RowBatch) -> bool:
        """Whether a batch is all rows, and its features are the memory of a GPU that was given, or has taken them."""
        return batch.features.is_lent and isinstance(self.x, WholeBlocks)

    def taken(self, batch: RowBatch, threads: int) -> RowBatch:
        """The batch, its features on the GPU where that takes all rows whole; raises as reading them does."""
        if isinstance(batch.features, upload.UploadedRows) and isinstance(self.x, WholeBlocks):
            return replace(batch, features=batch.features.taken(threads))
        return batch

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """All partitions in order."""
        names, together = tuple(self.beside), self._mapped(_frames_together, _arrays_together) if self.beside else None
        if together is not None:
            nothing = (None,) * len(self._inputs)
            return tuple(Partition(i, names, nothing, self.x.name_of(i), each) for i, each in enumerate(together))
        rows = zip(*(part.blocks() for part in self._inputs), strict=True)
        return tuple(Partition(i, names, blocks, self.x.name_of(i)) for i, blocks in enumerate(rows))

    @property
    def _inputs(self) -> tuple[Blocks, ...]:
        return self.x, *self.beside.values()

    def batches(self, threads: int = 1) -> Iterator[RowBatch]:
        """Read the partitions one after another, each on so many threads; one is in memory at a time.

        Errors are those of `ReadSpec.read`, and DataTypeError for text labels without classes, before anything is read.
        """
        return self.read_by(replace(self.spec, threads=threads))

    def read_by(self, reader: AnyReader[T]) -> Iterator[T]:
        """Read the partitions one after another by other means than `spec`; yield what that makes of them."""
        self.require_numeric_labels()
        return (partition.load(reader, self.compute) for partition in self.partitions)

    def with_classes(self, classes: npt.NDArray[Any]) -> Source:
        """The same rows with labels read as codes 0 to k - 1, by exact match.

        `classes` : distinct strings, booleans or numbers, shape (k,), in the order of their codes. DataError where they
        are not distinct, or none; a label that is none of them is refused when it is read.
        """
        return replace(self, spec=replace(self.spec, classes=tuple(class_array(classes).tolist())))

    def with_schema(self, schema: FeatureSchema, reader: Held[ReadSpec] | None = None) -> Source:
        """The same rows, their features made of the same columns as a model's; `reader` : see `Source`."""
        return replace(self, schema=schema, spec=replace(self.spec, schema=schema), reader=reader)

    def in_order_of(self, trained: FeatureSchema) -> Source:
        """The same rows, their features in the order that a model's columns have; both are named.

        Raises
        ------
        DataError
            Naming columns that the model has and the rows lack, or the other way round.
        """
        given = self.schema
        assert given.names is not None and trained.names is not None
        places = match_by_name(trained, given.names)
        if more := [repr(name) for name in given.names if name not in trained.names]:
            raise DataError(
                f"X has {len(more)} column(s) that the model to be continued was not trained with: {listed(more)}. "
                "Drop them."
            )
        schema = replace(given, names=trained.names, kinds=tuple(given.kinds[i] for i in places))
        columns = tuple(self.spec.places[i] for i in places)
        return replace(self, schema=schema, spec=replace(self.spec, schema=schema, columns=columns))

    def with_made(self, name: str, made: Sequence[Any], sizes: Sequence[int]) -> Source:
        """The same rows, with what was made for each partition given to its reader under a name; `sizes` : their
        rows."""
        return replace(self, beside={**self.beside, name: MadeBlocks(tuple(made), tuple(sizes))})

    def quantized_on(self, device: str | None, memory_limit: int | None = None, *, lends: bool = True) -> Source:
        """The same rows, features on the host to be quantized where `device` says; see `ReadSpec`.

        Data sets of so few rows that a CPU has them quantized before a GPU has begun are left to it.
        """
        n_values = None if self.n_rows is None else self.n_rows * self.schema.n_features
        if device is not None and n_values is not None and n_values < upload.TINY_VALUES:
            logger.debug("%d values are quantized on the CPU: they are few", n_values)
            device = None
        return replace(self, spec=replace(self.spec, device=device, device_memory_limit=memory_limit, lends=lends))

    def at_once(self) -> Source | None:
        """The same rows as one partition, which a GPU takes whole and keeps from one read to the next.

        None for all but plain arrays of the host, and rows whose features are derived there, that have much room on the
        GPU. Refusals do not name a part of the rows, as they do of this source.
        """
        x, n_rows = self.x, self.n_rows
        if type(x) is not LocalBlocks or not n_rows:
            return None
        is_plain = type(x.data) is np.ndarray and self.spec.columns is None
        if not is_plain and not self.schema.categorical and self.schema.encoder is None:
            return None
        whole = {name: replace(own, cuts=(0, n_rows)) for name, own in self.beside.items() if type(own) is LocalBlocks}
        if len(whole) < len(self.beside) or not upload.takes_whole(self.spec, n_rows):
            return None
        return replace(self, x=WholeBlocks(x.data, (0, n_rows), x.cuts), beside=whole)

    def read_late(self) -> Source:
        """The same rows, features on the host to be read where they are predicted; see `ReadSpec.is_late`."""
        return replace(self, spec=replace(self.spec, is_late=True))

    def delayed(self, reader: AnyReader[object] | None = None) -> list[Delayed]:
        """One Delayed per partition that yields its `RowBatch`, in order, with optimised graphs; DataTypeError for text
        labels without classes.

        `reader` : reads partitions, in place of `spec`, and yields something else.

        Loading, aligning and reading a partition of DataFrames or of Arrays is fused into one task, so the raw rows are
        freed as soon as they are read.
        """
        self.require_numeric_labels()
        names, fused = tuple(self.beside), None
        if reader is None and self.schema.encoder is None:
            fused = self._mapped(
                partial(_read_frames, names=names, reader=self.spec),
                partial(_read_arrays, names=names, reader=self.spec),
            )
        if fused is not None:
            return fused
        from dask import delayed, optimize

        name, own = f"daskboost-read-{uuid4().hex}", reader or self.reader or self.spec
        # One value of the graph, which workers get once: a model's encoder may be in it.
        shared = delayed(own, name=f"{name}-shared", traverse=False)
        task = delayed(_read_partition, pure=False, traverse=False)
        lazy = [task(p.names, p.where, p.together, *p.blocks, reader=shared, dask_key_name=f"{name}-{p.index}")
                for p in self.partitions]  # fmt: skip
        return list(optimize(*lazy)) if self.is_dask else lazy

    def _mapped(self, of_frames: Callable[..., Any], of_arrays: Callable[..., Any]) -> list[Delayed] | None:
        """A function of all blocks of a partition, one task each; None where they are not all frames, or all arrays."""
        if all(isinstance(part, DaskFrameBlocks) for part in self._inputs):
            return self._mapped_frames(of_frames)
        return self._mapped_arrays(of_arrays) if all(isinstance(p, DaskArrayBlocks) for p in self._inputs) else None

    def _mapped_frames(self, function: Callable[..., Any]) -> list[Delayed]:
        import dask.dataframe as dd

        frames = [part.data for part in self._inputs]
        batches = dd.map_partitions(
            function, *frames, align_dataframes=False, meta=(None, object), enforce_metadata=False
        )
        return list(batches.to_delayed(optimize_graph=True))

    def _mapped_arrays(self, function: Callable[..., Any]) -> list[Delayed]:
        import dask.array as da

        numbers = da.from_array(np.arange(self.n_partitions), chunks=1)
        pairs: list[Any] = [numbers, (0,)]
        for axis, part in enumerate(self._inputs, start=1):
            pairs += [part.data, (0, axis)[: part.data.ndim]]
        batches = da.blockwise(
            function,
            (0,),
            *pairs,
            dtype=object,
            concatenate=None,  # each is one chunk wide, which Dask would copy
            align_arrays=False,
            meta=np.empty(0, dtype=object),
        )
        return list(batches.to_delayed(optimize_graph=True))

    def require_numeric_labels(self) -> None:
        """Refuse text labels without classes, by their dtype alone."""
        if self.spec.classes is None and self.label_dtype is not None and is_text(self.label_dtype):
            raise DataTypeError(
                f"y is of type {self.label_dtype}, but this objective needs numbers. "
                "Use DaskBoostClassifier for class labels, or convert y to numbers."
            )


def _frames_together(*blocks: object) -> tuple[object, ...]:
    return blocks


def _arrays_together(number: object, *blocks: object) -> tuple[object, ...]:
    return tuple(map(_only, blocks))


def _only(block: Any) -> Any:
    """A partition's block, which Dask gives in a list of those along the features."""
    while isinstance(block, list):
        (block,) = block
    return block


def _read_blocks(names: tuple[str, ...], where: str, *blocks: object, reader: AnyReader[T]) -> T:
    given = dict(zip(names, map(value_of, blocks[1:]), strict=True))
    return value_of(reader).read(blocks[0], given, where=where)


def _read_partition(names: tuple[str, ...], where: str, together: Sequence[object] | None, *blocks: object,
                    reader: AnyReader[T]) -> T:  # fmt: skip
    return _read_blocks(names, where, *(blocks if together is None else together), reader=reader)


def _read_frames(*blocks: Any, names: tuple[str, ...], reader: Reader[T], partition_info: Any = None) -> T:
    """Dask fills in `partition_info`."""
    where = f"partition {partition_info['number']}" if partition_info else ""
    return _read_blocks(names, where, *blocks, reader=reader)


def _read_arrays(number: Any, *blocks: Any, names: tuple[str, ...], reader: Reader[T]) -> T:
    return _read_blocks(names, f"partition {int(number[0])}", *_arrays_together(number, *blocks), reader=reader)


def make_source(
    X: Any,
    y: Any = None,
    *,
    missing: float | None = math.nan,
    feature_names: Sequence[str] | None = None,
    schema: FeatureSchema | None = None,
    categorical: Sequence[Hashable] = (),
    **beside: Any,
) -> Source:
    """Describe any supported input as partitions of rows, without reading them.

    Parameters
    ----------
    X : Dask DataFrame or Array, pandas or polars DataFrame, 2-D NumPy array, pyarrow Table, scipy.sparse matrix, or
        path; CuPy array, cuDF DataFrame or cupyx.scipy.sparse matrix; another eager frame that narwhals or Arrow reads
        Features, shape (rows, features): floats, integers, booleans, nullable types. Dask Arrays may have unknown chunk
        sizes and scipy.sparse blocks. A path is a Parquet file or a directory of them (``protocol://`` through Dask).
        In sparse data an absent entry is missing and a stored zero is a value.
    y, **beside : column name of X, or collection of as many rows, optional
        What goes with the rows, by the arguments of `COLUMNS`: `weight`, `base_margin`, ... A named column is no
        feature. `base_margin` may have several columns, one per output (a list of names).
        A Dask collection must be cut at the same rows as X. A local one goes with a local X, a Parquet path, or a Dask
        Array of known chunk sizes.
    missing : float, default NaN
        A further value that stands for missing (NaN and nulls always do), compared in float32; None is NaN.
    feature_names : sequence of str, optional
        Names for the columns of a matrix; for a frame, which of its columns are the features, in this order.
    schema : FeatureSchema, optional
        Of the training data. Frames are matched to it by name (columns it lacks are ignored), matrices by position.
    categorical : sequence of str or int
        Names or positions of features that hold categories, beside columns of texts and of categories.

    Returns
    -------
    Source

    Raises
    ------
    DataTypeError
        For an unsupported type of input, and columns that cannot be features, naming them.
    DataError
        For zero rows (unless predicting) or columns, duplicate names, other lengths or numbers of partitions, features
        that the schema has and X lacks.
    ParameterError
        When `missing` is not a number, or `categorical` names what there is not.

    Notes
    -----
    What only the rows can tell (infinities, bad weights and labels, lengths inside Dask partitions) is refused when
    they are read.
    """
    opened = open_input(X)
    given = {name: own for name, own in columns_by_argument({"y": y, **beside}).items() if own is not None}
    named = {name: columns_named(own, opened.columns, COLUMNS[name]) for name, own in given.items()}
    inside = {name: columns for name, columns in named.items() if columns is not None}
    features, expected = choose_features(opened, set(chain(*inside.values())), feature_names, schema, categorical)
    spec = ReadSpec(expected, features, missing_value(missing), inside)
    x = opened.cut(None if opened.columns is None else spec.frame_columns)
    blocks = {name: aligned(own, x, COLUMNS[name]) for name, own in given.items() if name not in inside}
    if "base_margin" in given:
        n_outputs = len(inside["base_margin"]) if "base_margin" in inside else width_of(blocks["base_margin"].data)
        spec = replace(spec, n_margin_outputs=n_outputs)
    _check_dtypes(opened, inside)
    if x.lengths is not None and sum(x.lengths) == 0 and (schema is None or y is not None):
        raise DataError("X has 0 rows. Pass at least one row.")
    return Source(expected, spec, x, blocks, _label_dtype(opened, inside, blocks))


def _check_dtypes(opened: OpenedInput, inside: Mapping[str, Sequence[Hashable]]) -> None:
    """Judge columns of X that are no features."""
    dtypes = dict(zip(opened.columns or (), opened.dtypes, strict=False))
    for name, columns in inside.items():
        for column in columns:
            check_dtype(dtypes[column], COLUMNS[name])


def _label_dtype(opened: OpenedInput, inside: Mapping[str, Sequence[Hashable]], blocks: Mapping[str, Blocks]
                 ) -> ColumnType | None:  # fmt: skip
    if "label" in inside:
        return dict(zip(opened.columns or (), opened.dtypes, strict=False))[inside["label"][0]]
    return dtypes_of(blocks["label"].data)[0] if "label" in blocks else None


def missing_value(missing: Any) -> float:
    """The further value that stands for missing, as it is compared; ParameterError for what is no number."""
    if missing is None:
        return math.nan
    is_number = isinstance(missing, int | float | np.integer | np.floating) and not isinstance(missing, bool)
    if not is_number or (isinstance(missing, int) and abs(missing) > sys.float_info.max):
        raise ParameterError(f"missing is {shown(missing)}, but must be a number, e.g. -999, 0 or NaN (the default).")
    with np.errstate(over="ignore"):
        return float(np.float32(missing))  # as it is compared; beyond float32 it is infinite, as such values become
