"""How a model's raw columns become the features that its trees split.

A numerical column is one feature. A categorical column becomes target statistics of its levels and their frequency, or
a code where it has but two: numbers, so that all that comes after (sketches, bins, trees) knows nothing of categories.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.categories.folds import FIRST_ROW, FOLD_COUNTS, FoldCounts, folds_of
from daskboost.data.categories.levels import UNKNOWN, Levels
from daskboost.data.categories.read_column import MISSING
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.data.input.blocks import n_rows_of
from daskboost.data.input.convert import column_of
from daskboost.data.input.device_read import host_block
from daskboost.data.input.kinds import kind_of
from daskboost.data.input.row_batch import DenseRows, FeatureSchema
from daskboost.dtypes import Float32, Int32

if TYPE_CHECKING:
    from daskboost.data.input.kinds import Table
    from daskboost.data.input.parquet import RowGroup
    from daskboost.data.input.read import ReadSpec


@dataclass(frozen=True, eq=False)
class ColumnEncoder:
    """The levels of one categorical column, and what their rows have counted."""

    levels: Levels
    table: StatisticTable

    @cached_property
    def names(self) -> Sequence[str | int | bool]:
        """Return the levels as values of Python, in the order of their codes."""
        return self.levels.values.plain

    def frequencies(self, codes: Int32) -> Float32:
        """Return how many training rows have the level of each row; float32, shape (rows,)."""
        rows = np.append(self.table.counts[:, 0], 0)  # behind those of missing values, of levels that are not known
        places = np.where(codes == UNKNOWN, len(rows) - 1, np.where(codes == MISSING, len(rows) - 2, codes))
        return rows[places].astype(np.float32)

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
    """

    columns: FeatureSchema
    target: Target
    priors: tuple[float, ...]
    encoders: tuple[ColumnEncoder | None, ...]

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Return the first feature of each column, and last the number of features."""
        widths = [1 if encoder is None else self._n_statistics(encoder) + 1 for encoder in self.encoders]
        return tuple(np.concatenate([[0], np.cumsum(widths)]).tolist())

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
            for each in statistics:
                unique = each
                while unique in names:  # a further column may be called so
                    unique += "'"
                names[unique] = None
            kinds += [*["float"] * n_statistics, kind if encoder is None else "int"]
        return FeatureSchema(tuple(names), tuple(kinds), self)

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
            `FoldCounts` of all training rows under `FOLD_COUNTS`: statistics are then of rows in other folds. By
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
        found = np.empty((n_rows_of(rows), self.edges[-1]), np.float32)
        self._fill_numbers(rows, spec, found)
        statistics = self.target.statistics(self.priors)
        counts: FoldCounts | None = given.get(FOLD_COUNTS)
        folds = None if counts is None else folds_of(counts.seed, given[FIRST_ROW], len(found))
        encoders = [(at, own) for at, own in enumerate(self.encoders) if own is not None]
        columns = category_columns(spec, rows)
        for place, ((at, encoder), (name, column)) in enumerate(zip(encoders, columns, strict=True)):
            codes, first = encoder.levels.codes(column, name), self.edges[at]
            if not self._n_statistics(encoder):
                found[:, first] = encoder.numbers(codes)
                continue
            found[:, self.edges[at + 1] - 1] = encoder.frequencies(codes)
            if counts is None or folds is None:
                values = encoder.table.values(codes, statistics)
            else:
                values = counts.values(place, codes, folds, statistics)
            found[:, first : first + len(self.priors)] = values
        return found

    def _fill_numbers(self, block: Table | RowGroup, spec: ReadSpec, out: Float32) -> None:
        """Copy the columns that are features as they are."""
        numbers = [column for column, encoder in enumerate(self.encoders) if encoder is None]
        if not numbers:
            return
        kinds = tuple(self.columns.kinds[column] for column in numbers)
        schema = FeatureSchema(tuple(map(self.columns.label, numbers)), kinds)
        reader = replace(spec, schema=schema, columns=tuple(spec.places[column] for column in numbers))
        features = reader.host_features(block)
        assert isinstance(features, DenseRows)
        out[:, [self.edges[column] for column in numbers]] = features.values

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder."""
        return {
            "names": self.columns.names, "kinds": self.columns.kinds, "target": self.target.to_json(),
            "priors": self.priors,
            "columns": [None if encoder is None else encoder.to_json() for encoder in self.encoders],
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
        widths = {own.table.counts.shape[1] - 1 for own in encoders if own is not None}
        if widths != {len(priors)} or len(priors) != target.n_statistics:
            raise ValueError("tables, priors and target are of different numbers of statistics")
        for own in encoders:
            if own is not None and own.table.n_codes != own.levels.n_levels:
                raise ValueError("a table is not of as many levels as its column")
        return cls(columns, target, priors, tuple(encoders))


def category_columns(spec: ReadSpec, block: Any) -> list[tuple[str, Any]]:
    """Return the label and the values of each categorical column of a block in the host's memory."""
    columns, places, is_matrix = spec.schema.columns, spec.places, kind_of(block) == "numpy"
    return [
        (columns.label(at), block[:, places[at]] if is_matrix else column_of(block, places[at]))
        for at in columns.categorical
    ]
