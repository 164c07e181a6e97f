"""Categorical columns of a source become features: two reads of their columns, and the encoder that these make.

    levels of each column, labels -> codes, targets by level and fold -> encoder, and statistics of training rows

Both are sums over partitions, in any order: partitions do not show in the encoder, nor does the place where they lie.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from daskboost.data.categories.encoder import ColumnEncoder, Encoder, category_columns, codes_of
from daskboost.data.categories.folds import FIRST_ROW, FOLD_COUNTS, FoldCounts, folds_of
from daskboost.data.categories.levels import LevelCounts, Levels
from daskboost.data.categories.pairs import MOST_COMPLEXITY, CategoryCounts, Pair, PairCounts, chosen_pairs
from daskboost.data.categories.statistics import Target, count_labels
from daskboost.data.cuts.key_counts import KeyTable
from daskboost.data.input.blocks import cuts_of, n_rows_of
from daskboost.data.input.device_read import host_block
from daskboost.data.input.read import ReadSpec
from daskboost.data.input.row_batch import CATEGORICAL, host_column
from daskboost.data.input.source import Source
from daskboost.data.input.uploaded_rows import naming
from daskboost.devices.cpu.threads import on_threads
from daskboost.dtypes import Float32
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.data.chunks.build import Runner

logger = logging.getLogger(__name__)

MOST_LEVELS = 2**20
"""Levels of a column that a model keeps; others are pooled. While rows are quantized, counts of so many in ten folds
take 168 MB on each worker for one statistic."""


@dataclass(frozen=True)
class CategoryOptions:
    """How categorical columns become features."""

    seed: int = 0
    """Decides which rows are in which fold."""
    most_levels: int = MOST_LEVELS
    """Levels of a column, and of a pair, that are kept; the rarest others are pooled, and known as unseen."""
    complexity: int = MOST_COMPLEXITY
    """Columns that a combination has at most: see `max_ctr_complexity`."""


@dataclass(frozen=True, eq=False)
class PartitionCategories:
    """What the first read of categorical columns finds; `a + b` is what is found in the partitions of a, then of b."""

    sizes: tuple[int, ...]
    """Rows of each partition."""
    levels: tuple[LevelCounts, ...]
    """The levels of each categorical column."""
    labels: KeyTable

    def __add__(self, other: PartitionCategories) -> PartitionCategories:
        levels = tuple(a + b for a, b in zip(self.levels, other.levels, strict=True))
        return PartitionCategories(self.sizes + other.sizes, levels, self.labels + other.labels)


@dataclass(frozen=True)
class LevelReader:
    """The first read of categorical columns: counts levels and labels."""

    spec: ReadSpec

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> PartitionCategories:
        """Return what there is in a partition; parameters and errors as of `ReadSpec.read`."""
        block, spec = host_block(x), self.spec
        with naming(where):
            columns = category_columns(spec, block)
            levels = on_threads(lambda found: LevelCounts.of(found[1], found[0]), columns, spec.threads)
            label, weight = _labels(block, given, spec)
            return PartitionCategories((n_rows_of(block),), tuple(levels), count_labels(label, weight))


@dataclass(frozen=True, eq=False)
class FoldReader:
    """The second read of categorical columns: counts targets by level and fold, of columns and of pairs of them."""

    spec: ReadSpec
    levels: tuple[Levels, ...]
    pairs: tuple[Pair, ...]
    target: Target
    options: CategoryOptions

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> CategoryCounts:
        """Return what the rows of a partition count; parameters and errors as of `ReadSpec.read`."""
        block = host_block(x)
        with naming(where):
            codes = codes_of(self.levels, self.spec, block)
            levels = self.target.levels(*_labels(block, given, self.spec))
        n_codes, (seed, first_row) = [own.n_levels for own in self.levels], (self.options.seed, given[FIRST_ROW])
        counts = FoldCounts.of(codes, n_codes, seed, first_row, levels, self.target, self.spec.threads)
        of_columns = dict(zip(self.spec.schema.columns.categorical, codes, strict=True))
        folds, most, steps = folds_of(seed, first_row, len(levels)), self.options.most_levels, self.target.steps
        pairs = on_threads(
            lambda pair: PairCounts.of(pair, of_columns, most, folds, levels, steps), self.pairs, self.spec.threads
        )
        return CategoryCounts(counts, tuple(pairs))


def _labels(x: object, given: Mapping[str, Any], spec: ReadSpec) -> tuple[Float32, Float32 | None]:
    """Return the labels and weights of a partition's rows."""
    columns = spec.columns_of(n_rows_of(x), x, given)
    assert columns.label is not None
    return host_column(columns.label), None if columns.weight is None else host_column(columns.weight)


def encoded(source: Source, options: CategoryOptions, runner: Runner) -> Source:
    """Return a source of the same rows whose features are made of its columns; itself where none is categorical.

    Raises
    ------
    DataError, DataTypeError
        As `LevelCounts.of`, and of labels as `ReadSpec.read`; no labels.
    """
    if not source.schema.categorical or source.schema.encoder is not None:
        return source
    names = [source.schema.label(at) for at in source.schema.categorical]
    if not source.has("label"):
        raise DataError(
            f"X has categorical columns, such as {names[0]!r}, whose statistics need labels: pass y, or reference= of "
            "the data set that a model is trained on"
        )
    spec = replace(source.spec, threads=runner.threads)
    found = runner.total(source, LevelReader(spec))
    levels = tuple(Levels.kept(counts, options.most_levels) for counts in found.levels)
    _say_pooled(names, levels)
    target = Target.of(found.labels, source.spec.classes is not None)
    first_rows = cuts_of(found.sizes)[:-1]
    numbered = source.with_made(FIRST_ROW, first_rows, found.sizes)
    n_levels = {at: own.n_levels for at, own in zip(source.schema.categorical, levels, strict=True)}
    pairs = chosen_pairs(n_levels, sum(found.sizes), target.n_statistics, options.complexity)
    reader = FoldReader(spec, levels, pairs, target, options)
    counts, summary = runner.kept_total(numbered, reader, attrgetter("summary"))
    encoders = iter([ColumnEncoder(*each) for each in zip(levels, summary.columns.tables, strict=True)])
    encoder = Encoder(
        source.schema, target, summary.columns.priors,
        tuple(next(encoders) if kind == CATEGORICAL else None for kind in source.schema.kinds), summary.pairs,
    )  # fmt: skip
    trained = numbered.with_made(FOLD_COUNTS, [counts] * len(first_rows), found.sizes)
    return trained.with_schema(encoder.schema)


def _say_pooled(names: Sequence[str], levels: Sequence[Levels]) -> None:
    for name, own in zip(names, levels, strict=True):
        if own.n_pooled_levels:
            logger.info(
                "column %r has %d levels: the %d rarest, of %d rows, are pooled, and known as unseen", name,
                own.n_levels + own.n_pooled_levels, own.n_pooled_levels, own.n_pooled_rows,
            )  # fmt: skip
