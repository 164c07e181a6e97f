"""How a model's raw columns become the features that its trees split.

A numerical column is one feature. A categorical column becomes what its encoding says (`column_encoders.py`); behind
these come target statistics of combinations of columns, and last differences and products of numerical ones
(`crosses.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import getitem
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from daskboost.data.categories.column_encoders import ColumnEncoder, encoder_from_json
from daskboost.data.categories.combinations import CombinationEncoder, by_columns
from daskboost.data.categories.crosses import Cross
from daskboost.data.categories.folds import FIRST_ROW, FOLD_COUNTS
from daskboost.data.categories.levels import Levels
from daskboost.data.categories.read_column import CodedColumn
from daskboost.data.categories.row_statistics import (
    ByTile,
    Codes,
    Columns,
    OfAllRows,
    RowStatistics,
    TrainedRows,
    TrainingCounts,
)
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.data.input.blocks import n_rows_of
from daskboost.data.input.convert import column_of
from daskboost.data.input.device_read import host_block
from daskboost.data.input.kinds import kind_of
from daskboost.data.input.row_batch import FeatureSchema, host_column
from daskboost.dtypes import Bool, Float32, Int32, Int64, UInt8

if TYPE_CHECKING:
    from daskboost.data.chunks.row_folds import LeftOut
    from daskboost.data.input.kinds import Table
    from daskboost.data.input.parquet import RowGroup
    from daskboost.data.input.read import ReadSpec

FREQUENT = 256
"""Rows from which on statistics of a level have the labels of rows that are held out as well; `docs/categories.md` has
what was measured."""
TELLING = 2**15
"""Rows of a level up to which its statistics by folds tell a row's own label, so that rows that are held out need
others; `docs/categories.md` has what was measured."""
CROSSES_VERSION, LONGER_VERSION = 3, 4
VERSION = SHARE_VERSION = 5
"""The newest version of encoders in files: 2 has columns that are not target statistics, 3 has crosses, 4 has
combinations of three columns and more, 5 has statistics of a share of the rows, and mean ranks."""
CODED = "coded"
"""Name of a partition's columns as `read_column` gives them, among what is given with it, where they were kept."""
TILE_ROWS = 2**14
"""Rows whose features are made together, so that what they are made of stays in a core's cache."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Derives features from raw columns.

    Parameters
    ----------
    columns : FeatureSchema
        The raw columns; those that hold categories are of the kind "c".
    target : Target
        What labels statistics are about.
    priors : tuple of float
        What rows add to the sum of each statistic on average.
    encoders : tuple
        The encoder of each column; None of those that are features as they are.
    combinations : tuple of CombinationEncoder
        Of the combinations of columns that are features too, each behind those that it is joined of.
    has_time : bool, default False
        Whether statistics of the rows that it was made for are of the rows before each.
    crosses : tuple of Cross
        Features that are made of two numerical columns.
    share : float, default 1
        The part of the rows that it was made for that count in the statistics of each of them, 0.9 where these are of
        nine folds of ten; statistics of other rows are as if the same part did (`devices/cpu/statistics.py`).
    """

    columns: FeatureSchema
    target: Target
    priors: tuple[float, ...]
    encoders: tuple[ColumnEncoder | None, ...]
    combinations: tuple[CombinationEncoder, ...] = ()
    has_time: bool = False
    crosses: tuple[Cross, ...] = ()
    share: float = 1.0

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Return the first feature of each column, and last the number of features of single columns."""
        widths = [1 if encoder is None else len(encoder.features(self.target)) for encoder in self.encoders]
        return tuple(np.concatenate([[0], np.cumsum(widths)]).tolist())

    @cached_property
    def shared(self) -> tuple[Columns, ...]:
        """Return the columns of each feature of a combination, and of each cross; these are behind those of single
        columns."""
        combined = tuple(own.combination.columns for own in self.combinations for _ in self.priors)
        return (*combined, *(own.columns for own in self.crosses))

    @cached_property
    def by_columns(self) -> dict[Columns, CombinationEncoder]:
        """Return the encoder of each combination, by its columns."""
        return by_columns(self.combinations)

    @cached_property
    def codes(self) -> dict[int, int]:
        """Return the features that are codes of levels, each with the number of these."""
        return {
            self.edges[column]: encoder.levels.n_levels for column, encoder in enumerate(self.encoders)
            if encoder is not None and encoder.has_codes
        }  # fmt: skip

    @property
    def tables(self) -> dict[int, StatisticTable]:
        """Return what the levels of each column have counted that becomes statistics, by its number."""
        return {
            at: own.table for at, own in enumerate(self.encoders) if own is not None and own.table is not None
        }  # fmt: skip

    @cached_property
    def are_rare(self) -> dict[Columns, Bool]:
        """Return which levels, of columns and combinations that become statistics, have fewer rows than `FREQUENT`, but
        some; bool, shape (levels + 1,), that of missing values last."""
        return {columns: (rows > 0) & (rows < FREQUENT) for columns, rows in self._rows.items()}

    @property
    def _rows(self) -> dict[Columns, Int64]:
        """Return how many rows count in each level, of columns and combinations that become statistics."""
        tables: dict[Columns, StatisticTable] = {(at,): table for at, table in self.tables.items()}
        tables |= {columns: own.table for columns, own in self.by_columns.items()}
        return {columns: own.counts[:, 0] for columns, own in tables.items()}

    @property
    def has_statistics(self) -> bool:
        """Whether features are made of what the rows of levels have counted."""
        return bool(self.tables)

    @property
    def tells_labels(self) -> bool:
        """Whether statistics of rows that are trained on tell some of these rows' own labels, by what other rows of a
        level have: where these are by folds, and some level has no more rows than `TELLING`."""
        few = {(at,) for at in self.tables if self.edges[at + 1] - self.edges[at] == 1}  # their codes are the features
        each = (rows for columns, rows in self._rows.items() if columns not in few)
        return not self.has_time and any(((rows > 0) & (rows <= TELLING)).any() for rows in each)

    def has_codes_of(self, other: Encoder) -> bool:
        """Whether codes are of the same categories in the features of both."""
        def codes(encoder: Encoder) -> list[tuple[int, object]]:
            return [
                (at, own.names) for at, own in enumerate(encoder.encoders)
                if own is not None and own.has_codes
            ]  # fmt: skip

        return codes(self) == codes(other)

    @cached_property
    def schema(self) -> FeatureSchema:
        """Return the names and kinds of the features."""
        names: dict[str, None] = {}
        kinds: list[str] = []
        for column, (kind, encoder) in enumerate(zip(self.columns.kinds, self.encoders, strict=True)):
            made = [("", kind)] if encoder is None else encoder.features(self.target)
            name = self.columns.label(column)
            _add_unique(names, [f"{name} ({what})" if what else name for what, _ in made])
            kinds += [kind_of_feature for _, kind_of_feature in made]
        for columns in self.by_columns:
            name = ", ".join(map(self.columns.label, columns))
            _add_unique(names, [f"{name} ({what})" for what in self.target.labels])
        for cross in self.crosses:
            first, second = map(self.columns.label, cross.columns)
            _add_unique(names, [cross.name((first, second))])
        return FeatureSchema(tuple(names), (*kinds, *["float"] * len(self.shared)), self)

    def schema_for(self, features: FeatureSchema) -> FeatureSchema:
        """Return the schema of features that a file has, with what makes them; ValueError where this makes others."""
        made = self.schema
        if (made.names, made.kinds) != (features.names, features.kinds):
            raise ValueError(f"the encoder makes {made.n_features} features, not the {features.n_features} there are")
        return made

    def category(self, feature: int, code: int) -> object:
        """Return the level whose code is a feature's value; the code itself where no level has it."""
        own = self.encoders[bisect_right(self.edges, feature) - 1]
        return code if own is None or code >= own.levels.n_levels else own.names[code]

    def derive(self, block: object, spec: ReadSpec, given: Mapping[str, Any]) -> Float32:
        """Return the features of a block of raw rows.

        Parameters
        ----------
        block : 2-D array, frame or RowGroup
        spec : ReadSpec
            Which columns of the block are the raw ones, and what stands for missing numbers.
        given : mapping
            Of rows that are trained on, whose own labels must not show, the id of the first under `FIRST_ROW`, and
            `TrainingCounts` under `FOLD_COUNTS`: statistics are then of rows in other folds, or of those before. By
            default they are those of all rows that the model was trained on.

        Returns
        -------
        float32 array, shape (rows, features)
            NaN where a number is missing.

        Raises
        ------
        DataTypeError, DataError
            As `ReadSpec.read` of numerical columns, and `Levels.codes` of categorical ones.
        """
        from daskboost.devices.cpu.threads import by_ranges

        rows = host_block(block)
        found = np.empty((n_rows_of(rows), self.schema.n_features), np.float32)
        numbers = self._numbers(rows, spec)
        places = [at for at, encoder in zip(self.edges, self.encoders, strict=False) if encoder is None]
        levels = [own.levels for own in self.encoders if own is not None]
        each = zip(self.columns.categorical, codes_of(levels, spec, rows, given), strict=True)
        codes = Codes({(at,): own for at, own in each if own is not None}, self.by_columns)
        statistics_of = self._statistics(codes, rows, spec, given)

        def fill(start: int, stop: int) -> None:
            for begin in range(start, stop, TILE_ROWS):
                tile = slice(begin, min(begin + TILE_ROWS, stop))
                if numbers is not None:
                    found[tile, places] = numbers[tile]
                self._fill_codes(codes.of_rows(tile), statistics_of(tile), found[tile])
                self._fill_crosses(found[tile])

        by_ranges(fill, len(found), spec.threads)
        return found

    def _statistics(self, codes: Codes, block: object, spec: ReadSpec, given: Mapping[str, Any]) -> ByTile:
        """Return how the rows of a block, which have these codes, get statistics; parameters as of `derive`."""
        statistics = self.target.statistics(self.priors, self.share)
        counts: TrainingCounts | None = given.get(FOLD_COUNTS)
        if counts is None:
            return lambda tile: OfAllRows(statistics)
        def levels() -> UInt8:
            return self.target.levels(*labels_of(block, given, spec))

        tabled, first_row = tuple(self.tables), given[FIRST_ROW]
        marks = partial(marks_of, block=block, given=given, spec=spec)
        return counts.by_tile(
            TrainedRows(codes, tabled, self.combinations, first_row, levels, marks, spec.threads), statistics
        )

    def _fill_codes(self, codes: Codes, statistics: RowStatistics, out: Float32) -> None:
        """Set the features of categorical columns by their codes."""
        place = 0
        for at, encoder in enumerate(self.encoders):
            if encoder is not None:
                own = out[:, self.edges[at] : self.edges[at + 1]]
                encoder.fill(codes[(at,)], partial(statistics.of, place), own)
                place += encoder.table is not None
        for place, combined in enumerate(self.combinations):
            first = self.edges[-1] + place * len(self.priors)
            out[:, first : first + len(self.priors)] = statistics.of_combination(combined, codes)

    def _fill_crosses(self, out: Float32) -> None:
        """Set the features that are made of two numerical columns, whose own features are set already."""
        first = self.schema.n_features - len(self.crosses)
        for place, cross in enumerate(self.crosses, first):
            a, b = (self.edges[column] for column in cross.columns)
            out[:, place] = cross.values(out[:, a], out[:, b])

    def _numbers(self, block: Table | RowGroup, spec: ReadSpec) -> Float32 | None:
        """Return the columns that are features as they are; None where there are none."""
        numbers = [column for column, encoder in enumerate(self.encoders) if encoder is None]
        if not numbers:
            return None
        kinds = tuple(self.columns.kinds[column] for column in numbers)
        schema = FeatureSchema(tuple(map(self.columns.label, numbers)), kinds)
        reader = replace(spec, schema=schema, columns=tuple(spec.places[column] for column in numbers))
        return reader.host_features(block).matrix()

    @property
    def sizes(self) -> list[int]:
        """See `Parted`."""
        each = *self.encoders, *self.combinations
        return [0, *(0 if own is None else own.nbytes for own in each)]

    def pieces(self, numbers: range) -> list[object]:
        """See `Parted`: what columns and combinations share, then the encoder of each."""
        each = replace(self, encoders=(), combinations=()), *self.encoders, *self.combinations
        return [each[number] for number in numbers]

    @classmethod
    def joined(cls, pieces: Sequence[object]) -> Encoder:
        """See `Parted`."""
        shared, *each = pieces
        assert isinstance(shared, Encoder)
        n_columns = len(shared.columns.kinds)
        return replace(
            shared, encoders=tuple(own if isinstance(own, ColumnEncoder) else None for own in each[:n_columns]),
            combinations=tuple(own for own in each[n_columns:] if isinstance(own, CombinationEncoder)),
        )  # fmt: skip

    @property
    def parts(self) -> dict[str, Any]:
        """Return what `to_json` does, with the encoders of columns and combinations as they are: these have `to_json`
        too, so that one after the other can be written, as plain values of millions of levels take much memory."""
        version = max((encoder.version for encoder in self.encoders if encoder is not None), default=1)
        more: dict[str, Any] = {"pairs": list(self.combinations)} if self.combinations else {}
        if self.has_time:
            more["has_time"] = True
        if self.crosses:
            version, more["crosses"] = CROSSES_VERSION, [own.to_json() for own in self.crosses]
        if any(len(columns) > 2 for columns in self.by_columns):
            version = LONGER_VERSION
        if self.share != 1.0:
            more["share"] = self.share
        if self.share != 1.0 or self.target.is_mean:
            version = SHARE_VERSION
        return ({} if version == 1 else {"version": version}) | {
            "names": self.columns.names, "kinds": self.columns.kinds, "target": self.target.to_json(),
            "priors": self.priors, "columns": list(self.encoders), **more,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder; "pairs", which combinations of any columns
        are called there, "has_time", "crosses" and "share" only where there are some."""
        each = {name: self.parts[name] for name in ("columns", "pairs") if name in self.parts}
        made = {name: [None if own is None else own.to_json() for own in parts] for name, parts in each.items()}
        return self.parts | made

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Encoder:
        """Return the encoder that gave these values; KeyError, TypeError or ValueError where they are none.

        Files say the least version that reads them: 1, which is not said, has statistics alone.
        """
        if not 1 <= values.get("version", 1) <= VERSION:
            raise ValueError(f"the encoder has version {values['version']}, this daskboost reads up to {VERSION}")
        names, kinds = values["names"], tuple(values["kinds"])
        columns = FeatureSchema(None if names is None else tuple(names), kinds)
        encoders = [None if own is None else encoder_from_json(own) for own in values["columns"]]
        target, priors = Target.from_json(values["target"]), tuple(float(prior) for prior in values["priors"])
        categorical = tuple(at for at, own in enumerate(encoders) if own is not None)
        if len(encoders) != len(kinds) or categorical != columns.categorical:
            raise ValueError("the columns that have encoders are not those of categories")
        n_levels: dict[Columns, int] = {
            (at,): own.levels.n_levels for at, own in enumerate(encoders) if own is not None and own.table is not None
        }
        combinations: list[CombinationEncoder] = []
        for each in values.get("pairs", ()):
            combinations.append(CombinationEncoder.from_json(each, n_levels))
            n_levels[combinations[-1].combination.columns] = combinations[-1].n_levels
        counted = [(own, own.table) for own in encoders if own is not None and own.table is not None]
        tables = [*(table for _, table in counted), *(own.table for own in combinations)]
        widths = {table.counts.shape[1] - 1 for table in tables} or {len(priors)}
        if widths != {len(priors)} or len(priors) != target.n_statistics:
            raise ValueError("tables, priors and target are of different numbers of statistics")
        if any(table.n_codes != own.levels.n_levels for own, table in counted):
            raise ValueError("a table is not of as many levels as its column")
        numerical = [own is None for own in encoders]
        crosses = tuple(Cross.from_json(own, numerical) for own in values.get("crosses", ()))
        has_time, share = bool(values.get("has_time", False)), float(values.get("share", 1.0))
        if not 0 < share <= 1:
            raise ValueError("the share of rows that count is none")
        return cls(columns, target, priors, tuple(encoders), tuple(combinations), has_time, crosses, share)


def _add_unique(names: dict[str, None], wanted: Iterable[str]) -> None:
    """Add names to others, marked where they are there."""
    for each in wanted:
        unique = each
        while unique in names:  # a further column may be called so
            unique += "'"
        names[unique] = None


def codes_of(levels: Sequence[Levels | None], spec: ReadSpec, block: Any, given: Mapping[str, Any]
             ) -> list[Int32 | None]:  # fmt: skip
    """Return the codes of each categorical column of a block in the host's memory, None where its levels are.

    `given` : of a partition that was read before, its columns under `CODED`, if they were kept.
    """
    from daskboost.devices.cpu.threads import on_threads

    columns = category_columns(spec, block)
    kept: Sequence[CodedColumn | None] = given.get(CODED) or [None] * len(columns)

    def coded(own: tuple[Levels | None, Column, CodedColumn | None]) -> Int32 | None:
        known, (name, column), read = own
        if known is None:
            return None
        return known.codes(column(), name, spec.missing) if read is None else known.codes_of(read, name)

    return on_threads(coded, list(zip(levels, columns, kept, strict=True)), spec.threads)


Column: TypeAlias = tuple[str, Callable[[], object]]
"""The label of a column, and what reads its values."""


def category_columns(spec: ReadSpec, block: Any) -> list[Column]:
    """Return each categorical column of a block in the host's memory."""
    columns, places, is_matrix = spec.schema.columns, spec.places, kind_of(block) == "numpy"

    def reads(place: Hashable) -> Callable[[], object]:
        return partial(getitem, block, (slice(None), place)) if is_matrix else partial(column_of, block, place)

    return [(columns.label(at), reads(places[at])) for at in columns.categorical]


def marks_of(left_out: LeftOut, block: object, given: Mapping[str, Any], spec: ReadSpec) -> Bool:
    """Return which rows of a partition that is trained on are left out; bool, shape (rows,)."""
    from daskboost.data.chunks.row_folds import PartitionRows  # which loads what chunks are

    n_rows = n_rows_of(block)
    own = spec.columns_of(n_rows, block, given).copied(0, n_rows)
    return left_out.marks(PartitionRows(given[FIRST_ROW], n_rows, own))


def labels_of(block: object, given: Mapping[str, Any], spec: ReadSpec) -> tuple[Float32, Float32 | None]:
    """Return the labels and weights of a partition's rows."""
    columns = spec.columns_of(n_rows_of(block), block, given)
    assert columns.label is not None
    return host_column(columns.label), None if columns.weight is None else host_column(columns.weight)
