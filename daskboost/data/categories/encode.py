"""Categorical columns of a source become features: two reads of their columns, and the encoder that these make.

    levels of each column, labels -> codes, targets by level and fold -> encoder, and statistics of training rows

Combinations of three columns take a further read, which counts them beside what was counted before, and those of four
another one. All are sums over partitions, in any order: partitions do not show in the encoder, nor does the place
where they lie. Columns that become no statistics take the first read alone, and no labels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.categories.category_counts import (
    CategoryCounts,
    CategorySummary,
    CountedCombinations,
    KeptCounts,
    LeftOutRows,
)
from daskboost.data.categories.column_encoders import (
    ENCODERS,
    NATIVE,
    ONEHOT,
    TARGET,
    CodeColumn,
    ColumnEncoder,
    OneHotColumn,
    TargetColumn,
)
from daskboost.data.categories.combinations import (
    DEFAULT_COMPLEXITY,
    Combination,
    CombinationChoice,
    by_columns,
)
from daskboost.data.categories.crosses import Cross
from daskboost.data.categories.encoder import CODED, Column, Encoder, category_columns, codes_of, labels_of, marks_of
from daskboost.data.categories.folds import FIRST_ROW, FOLD_COUNTS, N_FOLDS, Division
from daskboost.data.categories.level_rooms import bytes_within, level_rooms
from daskboost.data.categories.level_search import BoundedLevels, CellChoice, ColumnSearch
from daskboost.data.categories.levels import LevelCounts, Levels
from daskboost.data.categories.read_column import CodedColumn, read_column
from daskboost.data.categories.row_statistics import Columns
from daskboost.data.categories.statistics import Target, count_labels
from daskboost.data.cuts.cut_points import MAX_BIN_LIMIT
from daskboost.data.cuts.key_counts import KeyTable
from daskboost.data.input.blocks import cuts_of, n_rows_of
from daskboost.data.input.device_read import host_block
from daskboost.data.input.held import Held, PartOf
from daskboost.data.input.read import ReadSpec
from daskboost.data.input.row_batch import CATEGORICAL, FeatureSchema
from daskboost.data.input.schema import listed, place_of
from daskboost.data.input.source import Source
from daskboost.data.input.uploaded_rows import naming
from daskboost.devices.cpu.threads import on_threads
from daskboost.dtypes import Bool
from daskboost.errors import DataError, ParameterError
from daskboost.foreign_words import hint_of
from daskboost.params import shown

if TYPE_CHECKING:
    from daskboost.data.chunks.build import DatasetInfo, Runner
    from daskboost.data.chunks.row_folds import LeftOut

logger = logging.getLogger(__name__)

MOST_LEVELS = 2**20
"""Levels of a column that a model keeps; others are pooled."""
MOST_CODES = MAX_BIN_LIMIT - 1
"""Levels of a column of codes that have a bin each; others are pooled in one more bin, as which unseen ones count."""
MOST_ONEHOT = 256
"""Levels of a column of which each may be a feature. More of them make histograms of mostly empty features, where one
feature of codes is split by the same sets of one level, and by others."""
KEPT_SHARE = 4
"""Part of the memory for levels in which the columns of all partitions are kept from one read to the next."""
AUTO = "auto"
"""Word of encodings for the default, see `settled`."""
NO_TARGET = Target(np.empty(0, np.float32), ())
"""Has no statistics."""
AUTO_ONEHOT = 4
"""Levels that a column has at most to become a feature of each of them by default, where a level has several
statistics; `docs/categories.md` has what was measured."""
SETS_FROM_ROWS = 2**17
"""Rows from which on columns are split by sets of categories by default, where trees may have them."""
SETS_ROWS_A_LEVEL = 2**11
"""Rows for each level of a column that are wanted for that; `docs/defaults.md` has what was measured of both."""


@dataclass(frozen=True)
class CategoryOptions:
    """How categorical columns become features."""

    seed: int = 0
    """Decides which rows are in which fold."""
    most_levels: int = MOST_LEVELS
    """Levels of a column, and of a combination, that are kept; the rarest others are pooled, and known as unseen."""
    complexity: int = DEFAULT_COMPLEXITY
    """Columns that a combination has at most: see `max_ctr_complexity`."""
    encodings: object = AUTO
    """What columns become, see `encodings_of`."""
    goes_on: bool = False
    """Whether trees of a model, whose encoder there is, are to be followed by further ones of these rows."""
    may_have_sets: bool = False
    """Whether the trees to be grown may split columns by sets of categories, so that these are among the defaults."""
    has_time: bool = False
    """Whether statistics of training rows are of the rows before each, and not of those in other folds."""
    memory_limit: int | None = None
    """Memory of a process, in bytes, of which the levels of single columns and what is counted of them take a quarter
    at most, and combinations of columns another one; see `bytes_within`."""
    crosses: tuple[Cross, ...] = ()
    """Features that are made of two numerical columns."""

    @property
    def division(self) -> Division:
        """Return the folds in which rows are counted; in the order of time one, of all rows."""
        return Division(self.seed, 1 if self.has_time else N_FOLDS)


def check_encodings(value: object) -> None:
    """Refuse what no column could become, before columns are known: ParameterError."""
    by_column = value if isinstance(value, Mapping) else {"": value}
    words = (AUTO, *ENCODERS)
    for column, word in by_column.items():
        if not (isinstance(word, str) and word in words):
            of_column = f" for column {column!r}" if isinstance(value, Mapping) else ""
            hint = hint_of(word if isinstance(word, str) else "", frozenset(words), "encodings")
            raise ParameterError(f"encodings={shown(value)} has {shown(word)}{of_column}, which is no encoding; {hint}")


def encodings_of(value: object, schema: FeatureSchema) -> tuple[str, ...]:
    """Return the word of the encoding of each categorical column; `settled` says what "auto" is.

    Parameters
    ----------
    value : str or mapping
        "target", "onehot", "native" or "auto" for all categorical columns; or such words by the names or positions of
        columns, of which others are "auto".
    schema : FeatureSchema
        The columns.

    Raises
    ------
    ParameterError
        A word that there is not; a column that there is not, or that holds numbers, or that has two words, one by its
        name and one by its position.
    """
    check_encodings(value)
    words = dict.fromkeys(schema.categorical, value if isinstance(value, str) else AUTO)
    if isinstance(value, Mapping):
        named: dict[int, str] = {}
        for column, word in value.items():
            place = _categorical_column(column, schema)
            first = named.setdefault(place, word)
            if first != word:
                raise ParameterError(
                    f"encodings names {schema.label(place)!r} twice, for {first!r} and {word!r}: leave one of them out"
                )
        words |= named
    return tuple(words[at] for at in schema.categorical)


def settled(word: str, n_levels: int, n_statistics: int, n_rows: int, may_have_sets: bool) -> str:
    """Return what a column of so many levels, each with so many statistics, becomes by a word of `encodings_of`.

    By default these are target statistics. But of a column of few levels there are more statistics than levels where
    there are several classes, all of which together tell what a feature of each level does: then it has these. Of two
    levels one feature tells all in either case. Where each level has thousands of rows a node knows more of it than one
    statistic of all rows does: then trees split the column by sets of categories, if they may.
    """
    if word != AUTO:
        return word
    if n_statistics > 1 and 2 < n_levels <= AUTO_ONEHOT:
        return ONEHOT
    has_many_rows = n_rows >= max(SETS_FROM_ROWS, SETS_ROWS_A_LEVEL * n_levels)
    return NATIVE if may_have_sets and has_many_rows and 2 < n_levels <= MOST_CODES else TARGET


def _categorical_column(column: object, schema: FeatureSchema) -> int:
    """Return the place of a column that `encodings` names by its name or position."""
    names = [schema.label(at) for at in range(schema.n_features)]
    place = place_of(column, names, len(names))
    if place is None:
        known = listed([repr(name) for name in names])
        raise ParameterError(f"encodings names {shown(column)}, no column of X; it has {known}.")
    if place not in schema.categorical:
        raise ParameterError(
            f"encodings names {names[place]!r}, a column of numbers: name it in categorical_features too, or leave it "
            "out"
        )
    return place


@dataclass(frozen=True, eq=False)
class KeptColumns:
    """Columns of partitions that were read, so that no later read has to code them anew; `a + b` is those of a, then of
    b, or nothing where these have no room."""

    columns: tuple[tuple[CodedColumn, ...], ...]
    n_bytes: int
    """Memory that they take."""
    room: int
    """Memory that there is for them, in bytes; -1 where they had not enough."""

    @classmethod
    def of(cls, columns: Sequence[CodedColumn], room: int) -> KeptColumns:
        """Return the columns of one partition, if they have room."""
        small = tuple(own.small for own in columns)
        n_bytes = sum(own.nbytes for own in small)
        return cls((), 0, -1) if n_bytes > room else cls((small,), n_bytes, room)

    def __add__(self, other: KeptColumns) -> KeptColumns:
        room, n_bytes = min(self.room, other.room), self.n_bytes + other.n_bytes
        return KeptColumns((), 0, -1) if n_bytes > room else KeptColumns(self.columns + other.columns, n_bytes, room)


@dataclass(frozen=True, eq=False)
class PartitionCategories:
    """What the first read of categorical columns finds; `a + b` is what is found in the partitions of both, in any
    order the same."""

    n_rows: int
    levels: list[BoundedLevels]
    """The levels of each categorical column that is read. `a += b` adds to those of a, one after the other."""
    labels: KeyTable | None
    """None where nothing is made of labels."""
    kept: KeptColumns
    """The columns of each partition, in the order of the sum."""

    def __add__(self, other: PartitionCategories) -> PartitionCategories:
        levels = [a + b for a, b in zip(self.levels, other.levels, strict=True)]
        return PartitionCategories(
            self.n_rows + other.n_rows, levels, self._labels_with(other), self.kept + other.kept
        )  # fmt: skip

    def __iadd__(self, other: PartitionCategories) -> PartitionCategories:
        for at, own in enumerate(other.levels):
            self.levels[at] += own
        return PartitionCategories(
            self.n_rows + other.n_rows, self.levels, self._labels_with(other), self.kept + other.kept
        )  # fmt: skip

    def _labels_with(self, other: PartitionCategories) -> KeyTable | None:
        return None if self.labels is None or other.labels is None else self.labels + other.labels


@dataclass(frozen=True)
class LevelReader:
    """The first read of categorical columns: counts levels, and labels; of columns that are read again some levels."""

    spec: ReadSpec
    counts_labels: bool
    room: int
    """Memory that the levels of a column may take, in bytes."""
    choices: Sequence[CellChoice | None] | None = None
    """Which levels of each column to count, None where the column is not read; by default all of all columns."""
    kept_bytes: int = 0
    """Memory in which the columns of all partitions are kept, if they have room."""

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> PartitionCategories:
        """Return what there is in a partition; parameters and errors as of `ReadSpec.read`."""
        block, spec = host_block(x), self.spec
        with naming(where):
            columns = category_columns(spec, block)
            each = [(own, None) for own in columns] if self.choices is None else [
                (own, choice) for own, choice in zip(columns, self.choices, strict=True) if choice is not None
            ]  # fmt: skip
            found = on_threads(lambda own: self._levels(*own), each, spec.threads)
            labels = count_labels(*labels_of(block, given, spec)) if self.counts_labels else None
            kept = KeptColumns.of([coded for coded, _ in found], self.kept_bytes)
            return PartitionCategories(n_rows_of(block), [levels for _, levels in found], labels, kept)

    def _levels(self, column: Column, choice: CellChoice | None) -> tuple[CodedColumn, BoundedLevels]:
        name, values = column
        coded = read_column(values(), name).lacking(self.spec.missing)
        return coded, BoundedLevels.of(LevelCounts.of_coded(coded, name, choice), self.room)


@dataclass(frozen=True, eq=False)
class FoldReader:
    """The second read of categorical columns: counts targets by level and fold, of columns and of combinations of
    them."""

    spec: ReadSpec
    levels: tuple[Levels | None, ...]
    """Levels of each categorical column; None of those that become no statistics."""
    counted: CountedCombinations
    target: Target
    division: Division
    left_out: LeftOut | None = None
    """Rows that do not count in rare levels."""
    are_rare: Mapping[Columns, Bool] = field(default_factory=dict)
    """See `LeftOutRows`."""

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> CategoryCounts:
        """Return what the rows of a partition count; parameters and errors as of `ReadSpec.read`."""
        block = host_block(x)
        with naming(where):
            codes = codes_of(self.levels, self.spec, block, given)
            levels = self.target.levels(*labels_of(block, given, self.spec))
            left_out = None if self.left_out is None else LeftOutRows(
                marks_of(self.left_out, block, given, self.spec), self.are_rare
            )  # fmt: skip
        each = zip(self.spec.schema.columns.categorical, self.levels, codes, strict=True)
        columns = {at: (found, own.n_levels) for at, own, found in each if own is not None and found is not None}
        return CategoryCounts.of(
            columns, self.counted, self.division, given[FIRST_ROW], levels, self.target, self.spec.threads, left_out
        )


@dataclass(frozen=True)
class FoundColumns:
    """What is known of the levels of categorical columns after a read, without the levels."""

    target: Target
    """`NO_TARGET` where nothing is made of labels."""
    kept: tuple[tuple[CodedColumn, ...], ...]
    """The columns of partitions, see `KeptColumns`."""
    n_open: int
    """Columns that are to be read again."""
    n_levels: tuple[int, ...]
    """Levels of each column that are kept; nothing while some are open."""
    pooled: tuple[tuple[int, int], ...]
    """Levels that are not, and their rows."""


class FoundLevels:
    """The levels of categorical columns, of which some may take further reads. It lies where partitions do."""

    def __init__(self, found: PartitionCategories, words: Sequence[str], most: Sequence[int], n_bytes: int,
                 are_classes: bool) -> None:  # fmt: skip
        """Take what the first read found, whose memory is free then; parameters as of `level_rooms`."""
        self._target = NO_TARGET if found.labels is None else Target.of(found.labels, are_classes)
        self._kept = found.kept.columns
        likely = [TARGET if word == AUTO else word for word in words]
        rooms = level_rooms(found.levels, likely, most, n_bytes, self._target.n_statistics)
        self._search = ColumnSearch(found.levels, rooms, n_bytes // 2)

    @property
    def told(self) -> FoundColumns:
        """Return what there is beside the levels."""
        levels = () if self._search.n_open else self._search.levels
        return FoundColumns(
            self._target, self._kept, self._search.n_open, tuple(own.n_levels for own in levels),
            tuple((own.n_pooled_levels, own.n_pooled_rows) for own in levels),
        )  # fmt: skip

    def reader(self, spec: ReadSpec) -> LevelReader:
        """Return what reads columns again."""
        return LevelReader(spec, False, self._search.room, self._search.next())

    def take(self, found: PartitionCategories) -> FoundLevels:
        """Take what this has read; return itself."""
        self._search.take(found.levels)
        return self

    def of(self, are_wanted: Sequence[bool]) -> tuple[Levels | None, ...]:
        """Return the levels of some columns, None of others, once no column is open."""
        return tuple(own if is_wanted else None for own, is_wanted in zip(self._search.levels, are_wanted, strict=True))


@dataclass(frozen=True, eq=False)
class EncoderOf:
    """Makes an encoder of levels, and of what these have counted."""

    columns: FeatureSchema
    words: tuple[str, ...]
    """Encodings of the categorical columns."""
    target: Target
    has_time: bool
    crosses: tuple[Cross, ...]

    def made(self, found: FoundLevels, summary: CategorySummary | None = None) -> Encoder:
        """Return the encoder; `summary` : what levels have counted, where some columns become statistics."""
        tables = iter(() if summary is None else summary.columns.tables)
        plain: dict[str, type[ColumnEncoder]] = {ONEHOT: OneHotColumn, NATIVE: CodeColumn}
        levels = zip(found.of([True] * len(self.words)), self.words, strict=True)
        each = iter([
            plain[word](own) if word in plain else TargetColumn(own, next(tables))
            for own, word in levels if own is not None
        ])  # fmt: skip
        of_columns = tuple(next(each) if kind == CATEGORICAL else None for kind in self.columns.kinds)
        priors, combined = ((), ()) if summary is None else (summary.columns.priors, summary.combinations)
        in_time = summary is not None and self.has_time
        share = 1.0 if summary is None or in_time else Division(0).share
        return Encoder(self.columns, self.target, priors, of_columns, combined, in_time, self.crosses, share)


def encoded(source: Source, options: CategoryOptions, runner: Runner) -> Source:
    """Return a source of the same rows whose features are made of its columns; itself where none is categorical, and
    none are crossed.

    Raises
    ------
    DataError, DataTypeError
        As `LevelCounts.of`, and of labels as `ReadSpec.read`; no labels where statistics are made of them; more levels
        than an encoding takes.
    ParameterError
        As `encodings_of`.
    """
    schema = source.schema
    if isinstance(schema.encoder, Encoder):
        own = _counted_again(source, schema.encoder, options, runner) if options.goes_on else source
        return _with_features(own, runner.sent(schema.encoder), schema, runner)
    words = encodings_of(options.encodings, schema)
    if not words:
        if not options.crosses:
            return source
        encoder = Encoder(schema, NO_TARGET, (), (None,) * schema.n_features, crosses=options.crosses)
        return _with_features(source, runner.sent(encoder), encoder.schema, runner)
    names = [schema.label(at) for at in schema.categorical]
    of_labels = [name for name, word in zip(names, words, strict=True) if word in (AUTO, TARGET)]
    if of_labels and not source.has("label"):
        raise DataError(
            f"X has categorical columns, such as {of_labels[0]!r}, whose statistics need labels: pass y, "
            "or reference= of the data set that a model is trained on, or encodings='native'"
        )
    spec, n_bytes = replace(source.spec, threads=runner.threads), bytes_within(options.memory_limit)
    kept_bytes = n_bytes // KEPT_SHARE if runner.is_here else 0
    first = LevelReader(spec, bool(of_labels), n_bytes // len(words), kept_bytes=kept_bytes)
    most = tuple(min(options.most_levels, MOST_CODES) if word == NATIVE else options.most_levels for word in words)
    take = partial(FoundLevels, words=words, most=most, n_bytes=n_bytes, are_classes=source.spec.classes is not None)
    sizes, total = runner.total(source, first)
    levels = runner.made(take, total)
    del total
    found = runner.told(levels, attrgetter("told"))
    if found.kept:
        source = source.with_made(CODED, found.kept, sizes)
    while found.n_open:
        logger.info("%d columns have more levels than there is room for: they are read again", found.n_open)
        again = runner.made(methodcaller("reader", spec), levels)
        levels = runner.made(FoundLevels.take, levels, runner.total(source, again)[1])
        found = runner.told(levels, attrgetter("told"))
    _say_pooled(names, found)
    target = found.target
    words, choice, pairs = _settled(words, found, sum(sizes), schema, options)
    for name, n, word in zip(names, found.n_levels, words, strict=True):
        if word == ONEHOT and n > MOST_ONEHOT:
            raise DataError(
                f"encodings: column {name!r} has {n} levels, and {ONEHOT!r} makes features of at most "
                f"{MOST_ONEHOT}: choose {NATIVE!r} or {TARGET!r} for it"
            )
    encoder_of = EncoderOf(schema, words, target if TARGET in words else NO_TARGET, options.has_time, options.crosses)
    if TARGET not in words:
        return _encoded_by(source, runner.made(encoder_of.made, levels), runner)
    first_rows = cuts_of(sizes)[:-1]
    numbered = source.with_made(FIRST_ROW, first_rows, sizes)
    are_counted = tuple(word == TARGET for word in words)
    read_by = partial(_fold_reader, spec=spec, are_counted=are_counted, target=target, options=options)

    def counted(combinations: tuple[Combination, ...], *known: Held[CategorySummary]
                ) -> tuple[Sequence[object], Held[CategorySummary]]:  # fmt: skip
        reader = runner.made(partial(read_by, combinations=combinations), levels, *known)
        return _counts_of(numbered, len(sizes), reader, options.has_time, runner)

    counts, summary = counted(pairs)
    for n_combined in range(3, options.complexity + 1):
        kept = runner.told(summary, attrgetter("n_levels"))
        more = choice.of(n_combined, kept)
        if not more:
            break
        logger.info("%d combinations of %d categorical columns: rows are read again", len(more), n_combined)
        counts, summary = counted((*kept, *more), summary)
    made = runner.made(encoder_of.made, levels, summary)
    return _encoded_by(numbered.with_made(FOLD_COUNTS, counts, sizes), made, runner)


def _counts_of(source: Source, n_parts: int, reader: Held[FoldReader], has_time: bool, runner: Runner
               ) -> tuple[Sequence[object], Held[CategorySummary]]:  # fmt: skip
    """Return what stands for each partition's `TrainingCounts`, and the summary of what all rows have counted."""
    if has_time:
        return runner.earlier(source, reader, attrgetter("kept.summary"))
    kept = runner.made(attrgetter("kept"), runner.total(source, reader)[1])
    return [kept] * n_parts, runner.made(attrgetter("summary"), kept)


def _settled(words: tuple[str, ...], found: FoundColumns, n_rows: int, schema: FeatureSchema, options: CategoryOptions
             ) -> tuple[tuple[str, ...], CombinationChoice, tuple[Combination, ...]]:  # fmt: skip
    """Return what the categorical columns become, what chooses combinations of them that become statistics too, and
    the pairs that it does.

    Columns of a pair are not split by sets by default: what both of their levels tell together is in its statistics.
    """
    n_statistics, levels = found.target.n_statistics, dict(zip(schema.categorical, found.n_levels, strict=True))

    def settle(may_have_sets: Mapping[int, bool]) -> dict[int, str]:
        return {
            at: settled(word, levels[at], n_statistics, n_rows, may_have_sets[at])
            for at, word in zip(levels, words, strict=True)
        }

    counted = {at: levels[at] for at, word in settle(dict.fromkeys(levels, False)).items() if word == TARGET}
    choice = CombinationChoice(counted, n_rows, n_statistics, options.complexity, bytes_within(options.memory_limit))
    pairs = choice.of(2, {})
    in_pairs = {at for pair in pairs for at in pair.columns}
    chosen = settle({at: options.may_have_sets and at not in in_pairs for at in levels})
    return tuple(chosen.values()), choice, pairs


def _fold_reader(found: FoundLevels, known: CategorySummary | None = None, *, spec: ReadSpec,
                 are_counted: tuple[bool, ...], combinations: tuple[Combination, ...], target: Target,
                 options: CategoryOptions) -> FoldReader:  # fmt: skip
    """Return what counts combinations, of which longer ones are joined of those that are known."""
    encoders = {} if known is None else by_columns(known.combinations)
    counted = CountedCombinations(combinations, options.most_levels, encoders)
    return FoldReader(spec, found.of(are_counted), counted, target, options.division)


def _counted_again(source: Source, encoder: Encoder, options: CategoryOptions, runner: Runner) -> Source:
    """Return the source with what keeps a row's own label out of its statistics, where its rows are those that the
    encoder has counted; other rows had no part in these, and have them as rows do that are predicted."""
    if not encoder.has_statistics or not source.has("label"):
        return source
    spec = replace(source.spec, threads=runner.threads)
    sizes, _ = runner.total(source, LevelReader(spec, False, 0, [None] * len(encoder.columns.categorical)))
    numbered, held = source.with_made(FIRST_ROW, cuts_of(sizes)[:-1], sizes), runner.sent(encoder)
    reader = runner.made(partial(_reader_of, spec=spec, options=replace(options, has_time=encoder.has_time)), held)
    counts, summary = _counts_of(numbered, len(sizes), reader, encoder.has_time, runner)
    if runner.told(runner.made(has_counted, summary, held), bool):
        return numbered.with_made(FOLD_COUNTS, counts, sizes)
    logger.info(
        "target statistics are those of the rows that init_model was trained on, which are not these rows: where some "
        "of them are the same, their own labels have a part in them"
    )
    return source


def encoded_without(source: Source, encoder: Encoder, left_out: LeftOut, n_counted: int, info: DatasetInfo, seed: int,
                    runner: Runner) -> Source:  # fmt: skip
    """Return a source of rows that `encoded` gave with the same features, but that no statistic of a rare level knows
    the labels of the rows left out, which have statistics as rows do that are predicted.

    Parameters
    ----------
    encoder : Encoder
        What made the features; its levels, and combinations of them, stay.
    n_counted : int
        How many rows that count are not left out.
    info : DatasetInfo
        Of the same rows.
    seed : int
        As of the encoder.

    Raises
    ------
    DataError
        Other rows than those that the encoder has counted.
    """
    spec, sizes = replace(source.spec, threads=runner.threads), np.diff([*info.first_rows, info.n_rows]).tolist()
    held, options = runner.sent(encoder), CategoryOptions(seed)
    reader = runner.made(partial(_reader_of, spec=spec, options=options, left_out=left_out), held)
    total = runner.total(source, reader)[1]
    if not runner.told(runner.made(_may_be_of, total, held), bool):
        raise DataError(
            "rows are read again for folds, and have changed since the data set was made: leave X, y and what else it "
            "was made of as they are until it is closed, or make it again"
        )
    counts = runner.made(partial(_kept_by, left_out=left_out), total, held)
    share = encoder.share * n_counted / info.stats.positive_weight_rows
    own = runner.made(partial(_with_share, share=share), held)
    source = source.with_made(FOLD_COUNTS, [counts] * len(sizes), sizes)
    return _with_features(source, own, _with_share(encoder, share).schema, runner)


def _may_be_of(counts: CategoryCounts, encoder: Encoder) -> bool:
    """Return whether what was counted without some rows of rare levels may be of the rows that an encoder has
    counted."""
    own = counts.columns.summary
    each = zip(own.tables, encoder.tables.items(), strict=True)
    return own.priors == encoder.priors and all(
        np.array_equal(a.counts[~encoder.are_rare[(at,)]], b.counts[~encoder.are_rare[(at,)]])
        and bool((a.counts <= b.counts).all()) for a, (at, b) in each
    )  # fmt: skip


def _kept_by(counts: CategoryCounts, encoder: Encoder, left_out: LeftOut) -> KeptCounts:
    return replace(counts.kept_by(encoder.by_columns), left_out=left_out)


def _with_share(encoder: Encoder, share: float) -> Encoder:
    return replace(encoder, share=share)


def _reader_of(encoder: Encoder, spec: ReadSpec, options: CategoryOptions, left_out: LeftOut | None = None
               ) -> FoldReader:  # fmt: skip
    levels = tuple(own.levels if own.table is not None else None for own in encoder.encoders if own is not None)
    combinations = tuple(own.combination for own in encoder.combinations)
    counted = CountedCombinations(combinations, options.most_levels, encoder.by_columns)
    return FoldReader(spec, levels, counted, encoder.target, options.division, left_out, encoder.are_rare)


def has_counted(summary: CategorySummary, encoder: Encoder) -> bool:
    """Return whether an encoder's tables are what some rows have counted."""
    each = list(zip(summary.combinations, encoder.combinations, strict=False))
    tables = zip(
        (*summary.columns.tables, *(a.table for a, _ in each)),
        (*encoder.tables.values(), *(b.table for _, b in each)), strict=True,
    )  # fmt: skip
    return (
        summary.columns.priors == encoder.priors and len(summary.combinations) == len(encoder.combinations)
        and all(a.combination == b.combination and np.array_equal(a.keys, b.keys) for a, b in each)
        and all(np.array_equal(a.counts, b.counts) for a, b in tables)
    )  # fmt: skip


def _encoded_by(source: Source, encoder: Held[Encoder], runner: Runner) -> Source:
    """Return the source with features that are made where its partitions are read; the model has a copy of what makes
    them."""
    return _with_features(source, encoder, runner.fetched(encoder).schema, runner)


def _with_features(source: Source, encoder: Held[Encoder], schema: FeatureSchema, runner: Runner) -> Source:
    """Return the source with features of this schema."""
    raw = replace(source.spec, schema=schema.columns, threads=runner.threads_alone)
    return source.with_schema(schema, PartOf(encoder, partial(_spec, raw=raw)))


def _spec(encoder: Encoder, raw: ReadSpec) -> ReadSpec:
    return replace(raw, schema=encoder.schema)


def _say_pooled(names: Sequence[str], found: FoundColumns) -> None:
    for name, n_kept, (n_levels, n_rows) in zip(names, found.n_levels, found.pooled, strict=True):
        if n_levels:
            logger.info(
                "column %r has %d levels: the %d rarest, of %d rows, are pooled, and known as unseen", name,
                n_kept + n_levels, n_levels, n_rows,
            )  # fmt: skip
