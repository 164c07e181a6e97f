"""What features one categorical column becomes: target statistics, a feature of each level, or the codes of its levels.

A class for each word of `encodings`, and one place, `ENCODERS`, that knows them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from daskboost.data.categories.levels import UNKNOWN, Levels
from daskboost.data.categories.read_column import MISSING
from daskboost.data.categories.statistics import StatisticTable, Target
from daskboost.data.input.row_batch import CATEGORY_CODE
from daskboost.dtypes import Float32, Int32

TARGET, ONEHOT, NATIVE = "target", "onehot", "native"
"""Words of encodings."""


StatisticsOf: TypeAlias = Callable[[StatisticTable, Int32], Float32]
"""Returns the statistics of rows by a column's table and their codes."""


@dataclass(frozen=True, eq=False)
class ColumnEncoder(ABC):
    """The levels of one categorical column, and what features are made of them."""

    levels: Levels
    table: ClassVar[StatisticTable | None] = None
    """What the rows of each level have counted, where features are made of that."""
    has_codes: ClassVar[bool] = False
    """Whether the feature is the code of a level, which trees split by sets of codes."""
    word: ClassVar[str]
    version: ClassVar[int] = 2
    """The least version of encoders in files that has it."""

    @cached_property
    def names(self) -> Sequence[str | int | bool]:
        """Return the levels as values of Python, in the order of their codes."""
        return self.levels.values.plain

    @property
    def nbytes(self) -> int:
        """Return the memory of values, where these end, rows, and what else these have counted."""
        values, counts = self.levels.values, 0 if self.table is None else self.table.counts.nbytes
        return len(values.data) + values.ends.nbytes + self.levels.counts.nbytes + counts

    @abstractmethod
    def features(self, target: Target) -> list[tuple[str, str]]:
        """Return what tells each feature from others of the column, and its kind, see `FeatureSchema.kinds`."""

    @abstractmethod
    def fill(self, codes: Int32, statistics: StatisticsOf, out: Float32) -> None:
        """Write the features of rows whose levels have these codes; `out` : float32, shape (rows, features)."""

    def numbers(self, codes: Int32) -> Float32:
        """Return the codes as numbers, the number of levels where a value is none of them; float32, NaN missing."""
        numbers = np.where(codes == UNKNOWN, self.levels.n_levels, codes).astype(np.float32)
        numbers[codes == MISSING] = np.nan
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `encoder_from_json` makes the same encoder."""
        return {"encoding": self.word, "levels": self.levels.to_json()}

    @classmethod
    def from_json(cls, levels: Levels, values: dict[str, Any]) -> ColumnEncoder:
        """Return the encoder of levels that gave these values; KeyError, TypeError or ValueError where they are none.
        """
        return cls(levels)


@dataclass(frozen=True, eq=False)
class TargetColumn(ColumnEncoder):
    """Target statistics of the levels and their frequency; of two levels, which codes tell apart, the code alone."""

    table: StatisticTable  # type: ignore[misc]  # a field here, where others have none
    word = TARGET
    version = 1

    def features(self, target: Target) -> list[tuple[str, str]]:
        if self.levels.n_levels <= 2 or not target.n_statistics:
            return [("", "int")]
        return [*((label, "float") for label in target.labels), ("rows", "int")]

    def fill(self, codes: Int32, statistics: StatisticsOf, out: Float32) -> None:
        if out.shape[1] == 1:
            out[:, 0] = self.numbers(codes)
            return
        out[:, :-1], out[:, -1] = statistics(self.table, codes), self.frequencies(codes)

    def frequencies(self, codes: Int32) -> Float32:
        """Return how many training rows have the level of each row; float32, shape (rows,)."""
        return self._rows[codes]

    @cached_property
    def _rows(self) -> Float32:
        """The training rows of each code; of `UNKNOWN` and `MISSING`, which are negative, at the end."""
        assert (UNKNOWN, MISSING) == (-2, -1)
        rows = self.table.counts[:, 0].astype(np.float32)
        return np.concatenate([rows[:-1], [np.float32(0)], rows[-1:]])

    def to_json(self) -> dict[str, Any]:
        return {"levels": self.levels.to_json(), "table": self.table.to_json()}

    @classmethod
    def from_json(cls, levels: Levels, values: dict[str, Any]) -> ColumnEncoder:
        return cls(levels, StatisticTable.from_json(values["table"]))


@dataclass(frozen=True, eq=False)
class OneHotColumn(ColumnEncoder):
    """A feature of each level: 1 in its rows, 0 in those of others, seen in training or not.

    Missing values are missing in all of them, as trees have a direction for these: rows without a value are not taken
    for those of another level, and may be told from all others.
    """

    word = ONEHOT

    def features(self, target: Target) -> list[tuple[str, str]]:
        return [(str(name), "i") for name in self.levels.values.plain] or [("", "i")]

    def fill(self, codes: Int32, statistics: StatisticsOf, out: Float32) -> None:
        out[:] = codes[:, None] == np.arange(out.shape[1])
        out[codes == MISSING] = np.nan


@dataclass(frozen=True, eq=False)
class CodeColumn(ColumnEncoder):
    """The code of the level, which trees split by sets of codes; that of levels that training did not see is in none.
    """

    word = NATIVE
    has_codes = True

    def features(self, target: Target) -> list[tuple[str, str]]:
        return [("", CATEGORY_CODE)]

    def fill(self, codes: Int32, statistics: StatisticsOf, out: Float32) -> None:
        out[:, 0] = self.numbers(codes)


ENCODERS: dict[str, type[ColumnEncoder]] = {each.word: each for each in (TargetColumn, OneHotColumn, CodeColumn)}
"""What makes features of a column, by the word of its encoding."""


def encoder_from_json(values: dict[str, Any]) -> ColumnEncoder:
    """Return the encoder of a column that gave these values; KeyError, TypeError or ValueError where they are none."""
    kind = ENCODERS[values.get("encoding", TARGET)]
    return kind.from_json(Levels.from_json(values["levels"]), values)
