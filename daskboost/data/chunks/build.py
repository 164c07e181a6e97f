"""From a source to quantized shards: the steps, each a function of one partition or of what partitions reported.

    weights -> summaries (sketches) -> [refinements] -> cuts, layout, row ids -> quantized chunks

The source is read twice (a third time only where the first sketch was too coarse somewhere), one partition at a
time per place, wherever a `Runner` runs the steps: in this process, or as one task per partition on a cluster.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any, Protocol, TypeVar

import numpy as np

from daskboost.data.categories.category_counts import CategoryCounts
from daskboost.data.categories.encode import CategoryOptions
from daskboost.data.chunks.fold import PartitionReport, PartitionSummary, Reading
from daskboost.data.chunks.packing import Layout, choose_layout
from daskboost.data.cuts.cell_counts import Refinement
from daskboost.data.cuts.cut_points import MAX_BIN_LIMIT, Cuts, with_codes
from daskboost.data.cuts.sketch import default_capacity, refine_batch, sketch_batch, weight_exponent
from daskboost.data.input.held import Held, Parted
from daskboost.data.input.labels import LabelStats, total_weight
from daskboost.data.input.row_batch import Features, FeatureSchema
from daskboost.data.input.row_columns import ColumnSummary, RowBatch
from daskboost.data.input.source import AnyReader, Source
from daskboost.devices.budget.set_size import FeatureSizes
from daskboost.dtypes import Bool, Float32
from daskboost.errors import DatasetFormatError, StorageError, shortened
from daskboost.tracebacks import without_locals

P = TypeVar("P", bound=Parted)
R = TypeVar("R")
T = TypeVar("T")
CHUNK_BYTES = 2**25
"""Target size of a chunk: large enough that per-chunk work is rare, small enough to stream and to balance."""
ROW_STATE_BYTES = 24
"""Bytes of a row on a GPU beside its bins, at least."""
PADDING_BYTES = 12
"""Most that a chunk takes beyond its share of the layout's bytes: unused bits, a guard, a row pointer."""
LEAST_CHUNK_ROWS, MOST_CHUNK_ROWS = 2**12, 2**20
MarginOf = Callable[[Features, Float32 | None], Float32]
"""Margins that rows start from, of a model that the fit continues."""


class Part(Protocol):
    """What a reader makes of some rows; of several ones there is a sum, by `+`."""

    @property
    def n_rows(self) -> int: ...


A = TypeVar("A", bound=Part)


class Runner(Protocol):
    """Runs a function on every partition where the data lies."""

    is_here: bool
    """Whether partitions are read in this process, in their order."""

    @property
    def threads(self) -> int:
        """Threads that a partition may be read on while others are read beside it."""
        ...

    @property
    def threads_alone(self) -> int:
        """Threads that a partition may be read on while no other one is read in the same process."""
        ...

    def fold(self, source: Source, read: Reading) -> tuple[list[int], PartitionReport]:
        """Rows of each partition, and the sum of what all partitions report."""
        ...

    def find_cuts(self, source: Source, read: Reading, again: Callable[..., PartitionReport], max_bin: int
                  ) -> tuple[list[int], PartitionSummary, Cuts]:  # fmt: skip
        """Rows of each partition, the sum of what all partitions report, and cut points from their sketches.

        `again` : `again(batches, refinement=..., threads=...)`, as `read`: a further read, of the finer cells.
        """
        ...

    def apply(self, blocks: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
        """`function(block)` of raw blocks, some of them lazy."""
        ...

    def total(self, source: Source, reader: AnyReader[A]) -> tuple[list[int], Held[A]]:
        """Rows of each partition, and the sum of what a reader makes of them, in any order; parts are added by `+=`,
        which may change the first of them."""
        ...

    def earlier(self, source: Source, reader: AnyReader[CategoryCounts], summary: Callable[[CategoryCounts], R]
                ) -> tuple[Sequence[object], Held[R]]:  # fmt: skip
        """What stands for the `EarlierCounts` of each partition, as these may stay where partitions lie; and the
        summary of what all count together."""
        ...

    def made(self, function: Callable[..., R], *held: Held[object]) -> Held[R]:
        """What a function makes of values, where the first of them lies; it may change that."""
        ...

    def told(self, held: Held[T], function: Callable[[T], R]) -> R:
        """What a function tells of a value: small."""
        ...

    def fetched(self, held: Held[P]) -> P:
        """A value, in this process."""
        ...

    def sent(self, value: P) -> Held[P]:
        """What stands for a value of this process."""
        ...


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a whole data set, however it is divided."""

    cuts: Cuts
    layout: Layout
    schema: FeatureSchema
    max_bin: int
    stats: LabelStats
    n_entries: int
    """Values that are not missing."""
    feature_sizes: FeatureSizes | None
    """How many of them features have; None of data sets that were saved before this was counted."""
    has_missing: Bool
    columns: ColumnSummary
    chunk_rows: int
    first_rows: tuple[int, ...]
    """Global id of each partition's first row."""
    init_model_digest: str | None = None
    """`Booster.digest` of the model from whose margins rows start, and which a fit on them continues."""

    def has(self, column: str) -> bool:
        """Return whether rows have a field of `RowColumns`."""
        return column in self.columns.names

    @property
    def n_rows(self) -> int:
        return self.stats.n_rows

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks, but for their padding."""
        return self.layout.nbytes(self.n_rows, self.n_entries)

    def to_json(self) -> dict[str, Any]:
        """What a saved data set's manifest keeps beside cuts, layout and schema."""
        return {
            "max_bin": self.max_bin,
            "stats": {name: _json_number(value) for name, value in asdict(self.stats).items()},
            "n_entries": self.n_entries,
            "feature_sizes": None if self.feature_sizes is None else asdict(self.feature_sizes),
            "features_with_missing": np.flatnonzero(self.has_missing).tolist(),
            "has_weight": self.has("weight"),
            "chunk_rows": self.chunk_rows,
            "init_model_digest": self.init_model_digest,
        }

    @classmethod
    def from_json(cls, cuts: Cuts, layout: Layout, schema: FeatureSchema, columns: ColumnSummary,
                  values: dict[str, Any], where: str) -> DatasetInfo:  # fmt: skip
        """The inverse of `to_json`, with what is saved beside it; DatasetFormatError where a value is absent
        or of another type, or rows start from a model of which nothing is known."""
        if values.get("has_init_margin"):
            raise DatasetFormatError(
                f"{where}: rows start from a model's margins, and format version 1 does not say which model's; make "
                "the data set again with QuantizedDataset.from_dask(..., init_model=model)"
            )
        try:
            has_missing = np.zeros(cuts.n_features, np.bool_)
            has_missing[np.asarray(values["features_with_missing"], np.int64)] = True
            stats = LabelStats(**{
                name: kind(values["stats"][name]) for name, kind in _STATS_TYPES.items()
            })  # fmt: skip
            stats.check_trainable()
            return cls(
                cuts=cuts, layout=layout, schema=schema, stats=stats, has_missing=has_missing,
                max_bin=_whole(values, "max_bin", 2, MAX_BIN_LIMIT),
                n_entries=_whole(values, "n_entries", 0, stats.n_rows * cuts.n_features),
                feature_sizes=_feature_sizes(values, stats.n_rows, cuts.n_features),
                columns=columns,
                chunk_rows=_whole(values, "chunk_rows", 1, 2**31 - 1), first_rows=(),
                init_model_digest=_init_model_digest(values),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DatasetFormatError(
                f"{where}: the manifest's metadata is not what daskboost writes: {shortened(repr(error))}"
            ) from error


_STATS_TYPES: dict[str, Callable[[Any], Any]] = {
    "n_rows": int, "minimum": float, "maximum": float, "all_integer": bool, "max_weight": float,
    "positive_weight_rows": int,
}  # fmt: skip


def _init_model_digest(values: dict[str, Any]) -> str | None:
    if "has_init_margin" in values:  # format version 1, and false
        return None
    digest: str | None = values["init_model_digest"]
    if digest is not None and not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"init_model_digest {reprlib.repr(digest)} is not a SHA-256")
    return digest


def _whole(values: dict[str, Any], name: str, least: int, most: int) -> int:
    number = int(values[name])
    if not least <= number <= most:
        raise ValueError(f"{name} is {reprlib.repr(number)}, not from {least} to {most}")
    return number


def _feature_sizes(values: dict[str, Any], n_rows: int, most_features: int) -> FeatureSizes | None:
    found = values.get("feature_sizes")  # which was not always counted
    if found is None:
        return None
    n_features, n_entries = (tuple(map(int, found[name])) for name in ("n_features", "n_entries"))
    if len(n_features) != len(n_entries) or min((0, *n_features, *n_entries)) < 0:
        raise ValueError(f"feature_sizes {reprlib.repr(found)}: not two lists of equal length")
    if sum(n_features) > most_features or sum(n_entries) > n_rows * most_features:
        raise ValueError(f"feature_sizes {reprlib.repr(found)}: more than {n_rows} rows of {most_features} features")
    return FeatureSizes(n_features, n_entries)


def _json_number(value: Any) -> Any:
    """JSON has no infinities: as text, which `float` reads back."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class BuildOptions:
    """How a data set is quantized."""

    max_bin: int = 256
    encoding: str = "auto"
    packing: str = "aligned"
    chunk_rows: int = 0
    """Rows per chunk; 0 chooses by `CHUNK_BYTES`."""
    device_budget_bytes: int | None = None
    """Bytes that are free on the GPU that will train on it: what exceeds them is packed in as few bits as can be, since
    it streams in every pass. None where it is the CPU, which reads aligned symbols fastest."""
    categories: CategoryOptions = field(default_factory=CategoryOptions)
    """How categorical columns become features."""


@without_locals()
def describe(source: Source, options: BuildOptions, runner: Runner, reference: DatasetInfo | None) -> DatasetInfo:
    """Read the source once and decide cuts, layout and row ids.

    Parameters
    ----------
    reference : DatasetInfo, optional
        Take the cuts of this (training) data set instead of making some.

    Raises
    ------
    DataError
        Whatever the source refuses in its rows; no rows; no positive weight.
    """
    on_device = source.spec.device_room
    if reference is None:
        weights = total_weight(source, runner.apply)
        exponent = None if weights is None else weight_exponent(weights)
        capacity = default_capacity(options.max_bin, source.schema.n_features)
        read = partial(summarize, capacity=capacity, exponent=exponent, device_bytes=on_device)
        again = partial(refine, exponent=exponent, device_bytes=on_device)
        sizes, total, cuts = runner.find_cuts(source, read, again, options.max_bin)
        cuts = with_codes(cuts, {} if source.schema.encoder is None else source.schema.encoder.codes)
    else:
        read = partial(summarize, capacity=None, exponent=None, device_bytes=on_device)
        sizes, told = runner.fold(source, read)
        total, cuts = told.summarized(), reference.cuts
    total.stats.check_trainable()
    total.columns.check()
    present, lacked = total.stats.n_rows - total.missing, total.missing > 0
    n_entries = int(present.sum())
    if reference is not None:  # one may train on this data set too, so histograms need its missing values' slots
        cuts = replace(cuts, has_missing=lacked | cuts.has_missing)
    has_missing = lacked | cuts.has_missing
    choose = partial(
        choose_layout, cuts, has_missing, n_rows=sum(sizes), n_entries=n_entries,
        encoding=options.encoding,  # type: ignore[arg-type]
    )  # fmt: skip
    layout = choose(packing=options.packing)  # type: ignore[arg-type]
    needed = layout.nbytes(sum(sizes), n_entries) + ROW_STATE_BYTES * sum(sizes)
    if options.device_budget_bytes is not None and needed > options.device_budget_bytes:
        layout = choose(packing="tight")
    return DatasetInfo(
        cuts=cuts, layout=layout, schema=source.schema, max_bin=options.max_bin, stats=total.stats,
        n_entries=n_entries, feature_sizes=FeatureSizes.of(present), has_missing=has_missing,
        columns=total.columns,
        chunk_rows=options.chunk_rows or default_chunk_rows(layout, sum(sizes), n_entries),
        first_rows=tuple(np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int).tolist()),
    )  # fmt: skip


def summarize(batches: Sequence[RowBatch], *, capacity: int | None, exponent: int | None, device_bytes: int,
              threads: int) -> PartitionReport:  # fmt: skip
    """The first read of partitions; without a capacity, no sketch."""
    (features, weight), *beside = ((batch.features, batch.columns.weight) for batch in batches)
    sketch = None
    if capacity is not None:
        sketch = sketch_batch(
            features, weight, capacity=capacity, weight_exponent=exponent, max_workers=threads,
            device_bytes=device_bytes, beside=beside,
        )  # fmt: skip
        missing = sketch.missing
    else:
        missing = np.sum([batch.features.missing_values(threads) for batch in batches], axis=0, dtype=np.int64)
    stats, columns = reduce(add, map(LabelStats.of, batches)), reduce(add, map(ColumnSummary.of, batches))
    return PartitionReport(PartitionSummary(stats, missing, columns), sketch)


def refine(batches: Sequence[RowBatch], *, refinement: Refinement, exponent: int | None, device_bytes: int,
           threads: int) -> PartitionReport:  # fmt: skip
    """A further read of partitions, where the first sketch was too coarse for the promised rank error."""
    (features, weight), *beside = ((batch.features, batch.columns.weight) for batch in batches)
    return PartitionReport(None, refine_batch(
        features, weight, refinement, weight_exponent=exponent, max_workers=threads, device_bytes=device_bytes,
        beside=beside,
    ))  # fmt: skip


def check_room(info: DatasetInfo, ram_budget_bytes: int, taken_bytes: int) -> None:
    """Refuse chunks without room in RAM where there is no disk for them, before rows are quantized: StorageError with
    the least budget that has room.

    `taken_bytes` : of the budget, by the chunks of a `reference`, or of the same rows for other folds.
    """
    edges = np.array([*info.first_rows, info.n_rows])
    n_chunks = int(np.sum(-(-np.diff(edges) // info.chunk_rows)))
    if taken_bytes + info.nbytes > ram_budget_bytes:
        others = f" beside {taken_bytes} bytes of its reference, or of the same rows for other folds"
        beside = others if taken_bytes else ""
        raise no_room(ram_budget_bytes, info.n_rows, taken_bytes + info.nbytes + PADDING_BYTES * n_chunks, beside)


def no_room(ram_budget_bytes: int, n_rows: int, least_bytes: int, beside: str = "") -> StorageError:
    """What refuses chunks that have neither room in RAM nor a disk."""
    return StorageError(
        f"host_memory_limit={ram_budget_bytes} bytes has no room for the chunks of {n_rows} rows{beside}: set "
        f"spill_directory, where what exceeds it goes, or a host_memory_limit of at least {least_bytes}"
    )


def most_rows(sizes: Iterable[int], owners: Iterable[str]) -> int:
    """Return the rows of the owner that has most, of partitions of so many rows each."""
    rows: Counter[str] = Counter()
    for n_rows, owner in zip(sizes, owners, strict=True):
        rows[owner] += n_rows
    return max(rows.values(), default=0)


def default_chunk_rows(layout: Layout, n_rows: int, n_entries: int) -> int:
    """Rows of a chunk of about `CHUNK_BYTES`, a multiple of 64."""
    row_bytes = max(layout.nbytes(n_rows, n_entries) / max(n_rows, 1), 1e-9)
    return int(min(max(CHUNK_BYTES / row_bytes, LEAST_CHUNK_ROWS), MOST_CHUNK_ROWS)) // 64 * 64


def with_margin(batch: RowBatch, margin_of: MarginOf | None) -> RowBatch:
    """The batch, its rows starting from another model's margins."""
    if margin_of is None:
        return batch
    margin = margin_of(batch.features.on_host(), batch.columns.base_margin)
    return replace(batch, columns=replace(batch.columns, base_margin=margin))
