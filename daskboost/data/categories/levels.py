"""Levels of a categorical column: counted per partition, merged in any order, and the codes of those that models keep.

A level is one distinct value. Which levels there are, how many rows they have and which codes they get depends on the
values alone: not on containers, dictionaries, partitions or their order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daskboost import wire
from daskboost.data.categories.read_column import MISSING, CodedColumn, read_column
from daskboost.data.categories.refusals import mixed, with_example
from daskboost.data.categories.statistics import most_frequent
from daskboost.data.categories.values import BOOLEAN, INTEGER, NOTHING, TEXT, LevelValues, Names
from daskboost.dtypes import Bool, Int32, Int64, UInt64
from daskboost.errors import DataTypeError, ModelFormatError

UNKNOWN = -2
"""Code of a value that is not among the levels: unseen in training, or pooled."""

class _OfValues:
    """What levels are, by the values that they have."""

    values: LevelValues

    @property
    def kind(self) -> str:
        """Return "text", "integer", "boolean", or "" for a column without values."""
        return self.values.kind

    @property
    def names(self) -> Names:
        """Return the levels as an object array of `str`, or as int64; booleans are 0 and 1."""
        return self.values.names

    @property
    def n_levels(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class LevelRoom:
    """How many levels of a column are kept. Those of more rows come first, of as many rows those of lesser hashes."""

    most: int
    """Levels at most."""
    n_bytes: int = sys.maxsize
    """Memory at most that they take with what is counted of them."""
    level_bytes: int = 0
    """What one of them takes, beside the bytes of its value."""


class Rank(NamedTuple):
    """Where a level comes among others: the lesser one first."""

    less_rows: int
    """Its rows, as a negative number."""
    hash: int


@wire.register
@dataclass(frozen=True, eq=False)
class LevelCounts(_OfValues):
    """Distinct values of one categorical column with their rows; `a + b` is that of both, in any order the same.

    Parameters
    ----------
    name : str
        What messages call the column.
    values : LevelValues
        The levels by their hashes, which increase; those of the same hash by their bytes.
    counts : int64 array, shape (levels,)
        Rows of each level, at least 1.
    n_missing : int
        Rows without a value.
    """

    name: str
    values: LevelValues
    counts: Int64
    n_missing: int

    @classmethod
    def of(cls, column: object, name: str, wanted: Callable[[UInt64], Bool] | None = None) -> LevelCounts:
        """Return the levels of one partition's column; parameters and errors as of `read_column`.

        `wanted` : tells by their hashes which levels are counted, by default all.
        """
        return cls.of_coded(read_column(column, name), name, wanted)

    @classmethod
    def of_coded(cls, coded: CodedColumn, name: str, wanted: Callable[[UInt64], Bool] | None = None) -> LevelCounts:
        """Return the levels of a column that was read; parameters as of `of`."""
        values, counts, n_missing = coded.values, coded.counts[:-1], int(coded.counts[-1])
        if wanted is not None:
            places = np.flatnonzero(wanted(values.hashes))
            values, counts = values.taken(places), counts[places]
        order, first = values.distinct()
        counts = np.add.reduceat(counts[order], first) if len(first) else counts[:0]
        return cls(name, values.taken(order[first]), counts, n_missing)

    def __add__(self, other: LevelCounts) -> LevelCounts:
        """Return the levels of the rows of both; DataTypeError where these are of different kinds."""
        self.require_kind(other.values)
        values, counts = self.values.merged(self.counts, other.values, other.counts)
        return LevelCounts(self.name, values, counts, self.n_missing + other.n_missing)

    def require_kind(self, values: LevelValues) -> None:
        """Refuse values of another kind: DataTypeError."""
        if NOTHING not in (self.kind, values.kind) and self.kind != values.kind:
            raise mixed({own.kind: own.example for own in (self.values, values)}, self.name)

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes: values, their ends, hashes and rows."""
        return len(self.values.data) + 24 * self.n_levels

    def most_frequent(self, room: LevelRoom) -> tuple[LevelCounts, Rank | None]:
        """Return the levels that come first, as many as there is room for, and the rank of the first of the others."""
        places = most_frequent(self.counts, room.most + 1)
        order = places[np.argsort(-self.counts[places], kind="stable")]
        sizes = np.cumsum(np.diff(self.values.ends)[order] + room.level_bytes)
        n = min(room.most, int(np.searchsorted(sizes, room.n_bytes, side="right")))
        kept = np.sort(order[:n])
        own = LevelCounts(self.name, self.values.taken(kept), self.counts[kept], self.n_missing)
        return own, Rank(-int(self.counts[order[n]]), int(self.hashes[order[n]])) if n < len(order) else None

    @property
    def hashes(self) -> UInt64:
        """Return the hash of each level, increasing."""
        return self.values.hashes

    @property
    def n_rows(self) -> int:
        """Return the rows, those without a value among them."""
        return int(self.counts.sum()) + self.n_missing


@wire.register
@dataclass(frozen=True, eq=False)
class Levels(_OfValues):
    """The levels of a column that a model knows, in the order of their codes.

    Parameters
    ----------
    values : LevelValues
        The levels.
    counts : int64 array, shape (levels,)
        Rows of each level in training, at least 1.
    n_pooled_levels, n_pooled_rows : int
        Levels that were too rare to be kept, and their rows.
    n_missing : int
        Rows without a value.
    """

    values: LevelValues
    counts: Int64
    n_pooled_levels: int
    n_pooled_rows: int
    n_missing: int

    @classmethod
    def kept(cls, counts: LevelCounts, room: LevelRoom) -> Levels:
        """Return the levels for which there is room, of the levels of all training rows; the others are pooled."""
        own, _ = counts.most_frequent(room)
        return cls.of(own, counts.n_levels, int(counts.counts.sum()))

    @classmethod
    def of(cls, kept: LevelCounts, n_levels: int, n_rows: int) -> Levels:
        """Return the levels that are kept, of so many levels of so many rows.

        Of levels with the same number of rows the lesser value comes first: texts by code points, integers by size,
        False before True.
        """
        import pyarrow as pa
        from pyarrow import compute

        table = pa.table({"count": kept.counts, "value": kept.values.sortable})
        keys = [("count", "descending"), ("value", "ascending")]  # no two levels have the same
        order = compute.sort_indices(table, sort_keys=keys).to_numpy()
        n_pooled_rows = n_rows - int(kept.counts.sum())
        return cls(
            kept.values.taken(order), kept.counts[order], n_levels - kept.n_levels, n_pooled_rows, kept.n_missing
        )  # fmt: skip

    def codes(self, column: object, name: str, missing: float = math.nan) -> Int32:
        """Return the code of each row's level, shape (rows,): its place among the levels, `MISSING` where the row has
        no value, or the number that stands for none, `UNKNOWN` where its value is none of them.

        Raises as `read_column`, and DataTypeError where the column has values of another kind than in training.
        """
        return self.codes_of(read_column(column, name).lacking(missing), name)

    def codes_of(self, coded: CodedColumn, name: str) -> Int32:
        """Return what `codes` does, of a column that was read."""
        self._require_kind(coded.values, name)
        return coded.mapped(np.append(self.values.places_of(coded.values, UNKNOWN), np.int32(MISSING)))

    def _require_kind(self, values: LevelValues, name: Hashable) -> None:
        if NOTHING in (values.kind, self.kind) or values.kind == self.kind:
            return
        raise DataTypeError(
            f"column {name!r} holds {with_example(values.kind, values.example)}, but "
            f"{with_example(self.kind, self.values.example)} in training. Convert it to the type that it had there."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the levels as plain values: `from_json` reads them."""
        return {
            "kind": self.kind, "names": self.values.plain, "counts": self.counts.tolist(),
            "n_pooled_levels": self.n_pooled_levels, "n_pooled_rows": self.n_pooled_rows, "n_missing": self.n_missing,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: object, where: str = "levels") -> Levels:
        """Return the levels that `to_json` wrote; ModelFormatError, naming the place, for anything that it would not
        have written.

        Parameters
        ----------
        value : object
            Plain values from a file, which are trusted in nothing.
        where : str
            What messages call their place in the file.
        """
        if not isinstance(value, dict) or set(value) != {*_NUMBERS, "kind", "names", "counts"}:
            raise _malformed(where, "lacks fields or has others")
        kind, names, counts = value["kind"], value["names"], value["counts"]
        if not isinstance(names, list) or not isinstance(counts, list) or len(names) != len(counts):
            raise _malformed(where, "has no list of names and one of as many counts")
        allowed = _TYPES.get(kind) if isinstance(kind, str) else None
        if allowed is None or any(type(name) not in allowed for name in names):
            raise _malformed(where, f"has names that are not of the kind {kind!r}")
        numbers = [value[field] for field in _NUMBERS]
        if not all(type(number) is int and 0 <= number < 2**63 for number in (*numbers, *counts)) or 0 in counts:
            raise _malformed(where, "has numbers of rows or levels that cannot be")
        try:
            values = LevelValues.of_names(names, kind)
        except (UnicodeEncodeError, OverflowError) as error:
            raise _malformed(where, f"has a name that cannot be: {error}") from error
        if len(values.distinct()[1]) < len(values):
            raise _malformed(where, "has the same name twice")
        return cls(values, np.array(counts, np.int64), *numbers)


_NUMBERS = ("n_pooled_levels", "n_pooled_rows", "n_missing")
_TYPES: dict[str, tuple[type, ...]] = {TEXT: (str,), INTEGER: (int,), BOOLEAN: (bool,), NOTHING: ()}
"""Types that names of each kind have in JSON; a column without values has no names."""


def _malformed(where: str, what: str) -> ModelFormatError:
    return ModelFormatError(f"the model is corrupt: {where} {what}")
