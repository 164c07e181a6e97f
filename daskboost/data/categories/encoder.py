"""How a model's raw columns become the features that its trees split.

A numerical column is one feature. A categorical column becomes target statistics of its levels and their frequency, or
a code where it has but two; behind these come target statistics of pairs of columns. All are numbers, so that all that
comes after (sketches, bins, trees) knows nothing of categories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.categories.folds import FIRST_ROW, FOLD_COUNTS, folds_of
from daskboost.data.categories.levels import UNKNOWN, Levels
from daskboost.data.categories.pairs import CategoryCounts, PairEncoder
from daskboost.data.categories.read_column import MISSING
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.data.input.blocks import n_rows_of
from daskboost.data.input.convert import column_of
from daskboost.data.input.device_read import host_block
from daskboost.data.input.kinds import kind_of
from daskboost.data.input.row_batch import DenseRows, FeatureSchema
from daskboost.devices.cpu.threads import by_ranges, on_threads
from daskboost.dtypes import Float32, Int32, UInt8

if TYPE_CHECKING:
    from daskboost.data.input.kinds import Table
    from daskboost.data.input.parquet import RowGroup
    from daskboost.data.input.read import ReadSpec


TILE_ROWS = 2**14
"""Rows whose features are made together, so that what they are made of stays in a core's cache."""


@dataclass(frozen=True, eq=False)
class ColumnEncoder:
    """The levels of one categorical column, and what their rows have counted."""

    levels: Levels
    table: StatisticTable

    def frequencies(self, codes: Int32) -> Float32:
        """Return how many training rows have the level of each row; float32, shape (rows,)."""
        return self._rows[codes]

    @cached_property
    def _rows(self) -> Float32:
        """The training rows of each code; of `UNKNOWN` and `MISSING`, which are negative, at the end."""
        assert (UNKNOWN, MISSING) == (-2, -1)
        rows = self.table.counts[:, 0].astype(np.float32)
        return np.concatenate([rows[:-1], [np.float32(0)], rows[-1:]])

    def numbers(self, codes: Int32) -> Float32:
        """Return the codes as numbers, the number of levels where a value is none of them; float32, NaN missing."""
        numbers = np.where(codes == UNKNOWN, self.levels.n_levels, codes).astype(np.float32)
        numbers[codes == MISSING] = np.nan
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder."""
        return {"levels": self.levels.to_json(), "table": self.table.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ColumnEncoder:
        """Return the encoder that gave these values; KeyError, TypeError or ValueError where they are none."""
        return cls(Levels.from_json(values["levels"]), StatisticTable.from_json(values["table"]))


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
        What each statistic is of a level of which nothing is known.
    encoders : tuple
        The encoder of each column; None of those that are features as they are.
    pairs : tuple of PairEncoder
        Of the pairs of columns that are features too.
    """

    columns: FeatureSchema
    target: Target
    priors: tuple[float, ...]
    encoders: tuple[ColumnEncoder | None, ...]
    pairs: tuple[PairEncoder, ...] = ()

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Return the first feature of each column, and last the number of features of single columns."""
        widths = [1 if encoder is None else self._n_statistics(encoder) + 1 for encoder in self.encoders]
        return tuple(np.concatenate([[0], np.cumsum(widths)]).tolist())

    @cached_property
    def shared(self) -> tuple[tuple[int, int], ...]:
        """Return the columns of each feature of a pair; these are behind those of single columns."""
        return tuple(own.pair.columns for own in self.pairs for _ in self.priors)

    def _n_statistics(self, encoder: ColumnEncoder) -> int:
        """Return how many statistics a column has: none where two levels, told apart by their codes, are all."""
        return len(self.priors) if encoder.levels.n_levels > 2 else 0

    @cached_property
    def schema(self) -> FeatureSchema:
        """Return the names and kinds of the features."""
        names: dict[str, None] = {}
        kinds: list[str] = []
        for column, (kind, encoder) in enumerate(zip(self.columns.kinds, self.encoders, strict=True)):
            name, n_statistics = self.columns.label(column), 0 if encoder is None else self._n_statistics(encoder)
            statistics = [f"{name} ({what})" for what in (*self.target.labels, "rows")] if n_statistics else [name]
            _add_unique(names, statistics)
            kinds += [*["float"] * n_statistics, kind if encoder is None else "int"]
        for own in self.pairs:
            name = ", ".join(map(self.columns.label, own.pair.columns))
            _add_unique(names, [f"{name} ({what})" for what in self.target.labels])
        return FeatureSchema(tuple(names), (*kinds, *["float"] * len(self.shared)), self)

    def schema_for(self, features: FeatureSchema) -> FeatureSchema:
        """Return the schema of features that a file has, with what makes them; ValueError where this makes others."""
        made = self.schema
        if (made.names, made.kinds) != (features.names, features.kinds):
            raise ValueError(f"the encoder makes {made.n_features} features, not the {features.n_features} there are")
        return made

    def derive(self, block: object, spec: ReadSpec, given: Mapping[str, Any]) -> Float32:
        """Return the features of a block of raw rows.

        Parameters
        ----------
        block : 2-D array, frame or RowGroup
        spec : ReadSpec
            Which columns of the block are the raw ones, and what stands for missing numbers.
        given : mapping
            Of rows that are trained on, whose own labels must not show, the id of the first under `FIRST_ROW`, and
            `CategoryCounts` of all training rows under `FOLD_COUNTS`: statistics are then of rows in other folds. By
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
        rows = host_block(block)
        found = np.empty((n_rows_of(rows), self.schema.n_features), np.float32)
        numbers = self._numbers(rows, spec)
        places = [at for at, encoder in zip(self.edges, self.encoders, strict=False) if encoder is None]
        columns = codes_of([own.levels for own in self.encoders if own is not None], spec, rows)
        counts: CategoryCounts | None = given.get(FOLD_COUNTS)
        if counts is not None:  # found once, on a thread each, before all threads ask for them
            on_threads(lambda own: own.cells, [counts.of_pair(own.pair) for own in self.pairs], spec.threads)

        def fill(start: int, stop: int) -> None:
            for begin in range(start, stop, TILE_ROWS):
                tile = slice(begin, min(begin + TILE_ROWS, stop))
                codes = [column[tile] for column in columns]
                folds = None
                if counts is not None:
                    folds = folds_of(counts.columns.seed, given[FIRST_ROW] + begin, tile.stop - begin)
                if numbers is not None:
                    found[tile, places] = numbers[tile]
                self._fill_codes(codes, counts, folds, found[tile])

        by_ranges(fill, len(found), spec.threads)
        return found

    def _fill_codes(self, columns: Sequence[Int32], counts: CategoryCounts | None, folds: UInt8 | None, out: Float32
                    ) -> None:  # fmt: skip
        """Set the features of categorical columns by their codes; of rows that are trained on by their folds."""
        statistics = self.target.statistics(self.priors)
        encoders = [(at, own) for at, own in enumerate(self.encoders) if own is not None]
        codes_of_columns = dict(zip((at for at, _ in encoders), columns, strict=True))
        for place, (at, encoder) in enumerate(encoders):
            codes, first = codes_of_columns[at], self.edges[at]
            if not self._n_statistics(encoder):
                out[:, first] = encoder.numbers(codes)
                continue
            out[:, self.edges[at + 1] - 1] = encoder.frequencies(codes)
            if counts is None or folds is None:
                values = encoder.table.values(codes, statistics)
            else:
                values = counts.columns.values(place, codes, folds, statistics)
            out[:, first : first + len(self.priors)] = values
        for place, own in enumerate(self.pairs):
            if counts is None or folds is None:
                values = own.values(codes_of_columns, statistics)
            else:
                values = counts.of_pair(own.pair).values(codes_of_columns, folds, statistics)
            first = self.edges[-1] + place * len(self.priors)
            out[:, first : first + len(self.priors)] = values

    def _numbers(self, block: Table | RowGroup, spec: ReadSpec) -> Float32 | None:
        """Return the columns that are features as they are; None where there are none."""
        numbers = [column for column, encoder in enumerate(self.encoders) if encoder is None]
        if not numbers:
            return None
        kinds = tuple(self.columns.kinds[column] for column in numbers)
        schema = FeatureSchema(tuple(map(self.columns.label, numbers)), kinds)
        reader = replace(spec, schema=schema, columns=tuple(spec.places[column] for column in numbers))
        features = reader.host_features(block)
        assert isinstance(features, DenseRows)
        return features.values

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder; "pairs" only where there are some."""
        pairs = {"pairs": [own.to_json() for own in self.pairs]} if self.pairs else {}
        return {
            "names": self.columns.names, "kinds": self.columns.kinds, "target": self.target.to_json(),
            "priors": self.priors,
            "columns": [None if encoder is None else encoder.to_json() for encoder in self.encoders], **pairs,
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Encoder:
        """Return the encoder that gave these values; KeyError, TypeError or ValueError where they are none."""
        names, kinds = values["names"], tuple(values["kinds"])
        columns = FeatureSchema(None if names is None else tuple(names), kinds)
        encoders = [None if own is None else ColumnEncoder.from_json(own) for own in values["columns"]]
        target, priors = Target.from_json(values["target"]), tuple(float(prior) for prior in values["priors"])
        categorical = tuple(at for at, own in enumerate(encoders) if own is not None)
        if len(encoders) != len(kinds) or categorical != columns.categorical:
            raise ValueError("the columns that have encoders are not those of categories")
        n_levels = {at: own.levels.n_levels for at, own in enumerate(encoders) if own is not None}
        pairs = tuple(PairEncoder.from_json(own, n_levels) for own in values.get("pairs", ()))
        widths = {own.table.counts.shape[1] - 1 for own in (*encoders, *pairs) if own is not None}
        if widths != {len(priors)} or len(priors) != target.n_statistics:
            raise ValueError("tables, priors and target are of different numbers of statistics")
        for own in encoders:
            if own is not None and own.table.n_codes != own.levels.n_levels:
                raise ValueError("a table is not of as many levels as its column")
        return cls(columns, target, priors, tuple(encoders), pairs)


def _add_unique(names: dict[str, None], wanted: Iterable[str]) -> None:
    """Add names to others, marked where they are there."""
    for each in wanted:
        unique = each
        while unique in names:  # a further column may be called so
            unique += "'"
        names[unique] = None


def codes_of(levels: Sequence[Levels], spec: ReadSpec, block: Any) -> list[Int32]:
    """Return the codes of each categorical column of a block in the host's memory; `levels` of each."""
    columns = list(zip(levels, category_columns(spec, block), strict=True))
    return on_threads(lambda own: own[0].codes(own[1][1], own[1][0]), columns, spec.threads)


def category_columns(spec: ReadSpec, block: Any) -> list[tuple[str, Any]]:
    """Return the label and the values of each categorical column of a block in the host's memory."""
    columns, places, is_matrix = spec.schema.columns, spec.places, kind_of(block) == "numpy"
    return [
        (columns.label(at), block[:, places[at]] if is_matrix else column_of(block, places[at]))
        for at in columns.categorical
    ]
