"""Levels of a categorical column: counted per partition, merged in any order, and the codes of those that models keep.

A level is one distinct value. Which levels there are, how many rows they have and which codes they get depends on the
values alone: not on containers, dictionaries, partitions or their order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost import wire
from daskboost.data.categories.read_column import MISSING, CodedColumn, read_column
from daskboost.data.categories.refusals import mixed, with_example
from daskboost.data.categories.values import BOOLEAN, INTEGER, NOTHING, TEXT, LevelValues, Names
from daskboost.dtypes import Int32, Int64, UInt64
from daskboost.errors import DataTypeError, ModelFormatError

UNKNOWN = -2
"""Code of a value that is not among the levels: unseen in training, or pooled."""

WORTH_SELECTING = 32
"""Levels that are as frequent as those kept, for each of these, from which on selecting takes less time than sorting:
selecting 1,000 of 2 million took a fifteenth of sorting them, selecting a third of them five times as long."""


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
    def of(cls, column: object, name: str) -> LevelCounts:
        """Return the levels of one partition's column; parameters and errors as of `read_column`."""
        return cls._of_coded(read_column(column, name), name)

    @classmethod
    def _of_coded(cls, coded: CodedColumn, name: str) -> LevelCounts:
        counts = coded.counts
        return cls._grouped(name, coded.values, counts[:-1], int(counts[-1]))

    @classmethod
    def _grouped(cls, name: str, values: LevelValues, counts: Int64, n_missing: int) -> LevelCounts:
        """Return values in any order, among which some may be the same, as levels."""
        order, first = values.distinct()
        counts = np.add.reduceat(counts[order], first) if len(first) else counts[:0]
        return cls(name, values.taken(order[first]), counts, n_missing)

    @classmethod
    def merged(cls, parts: Sequence[LevelCounts]) -> LevelCounts:
        """Return the levels of the rows of one or more partitions, in any order the same; DataTypeError where these
        are of different kinds."""
        name = parts[0].name
        examples = {part.kind: part.values.example for part in parts if part.kind != NOTHING}
        if len(examples) > 1:
            raise mixed(examples, name)
        counts = np.concatenate([part.counts for part in parts])
        values = LevelValues.joined([part.values for part in parts])
        return cls._grouped(name, values, counts, sum(part.n_missing for part in parts))

    def __add__(self, other: LevelCounts) -> LevelCounts:
        """Return the levels of the rows of both, as `merged` does for many at once."""
        return self.merged([self, other])

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
    def kept(cls, counts: LevelCounts, most: int) -> Levels:
        """Return the most frequent levels; the others are pooled.

        Parameters
        ----------
        counts : LevelCounts
            All levels of the training rows.
        most : int
            Number of levels that are kept at most. Of levels with the same number of rows the lesser value comes
            first: texts by code points, integers by size, False before True.
        """
        import pyarrow as pa
        from pyarrow import compute

        wanted = min(most, counts.n_levels)
        least = -np.partition(-counts.counts, wanted - 1)[wanted - 1] if wanted else np.iinfo(np.int64).max
        frequent = np.flatnonzero(counts.counts >= least)  # sorting rarer ones too would take most of the time
        table = pa.table({"count": counts.counts[frequent], "value": counts.values.taken(frequent).sortable})
        keys = [("count", "descending"), ("value", "ascending")]  # no two levels have the same
        if wanted < len(frequent) // WORTH_SELECTING:
            places = compute.select_k_unstable(table, wanted, sort_keys=keys)
        else:
            places = compute.sort_indices(table, sort_keys=keys)
        order = frequent[places.to_numpy()[:wanted]]
        kept = counts.counts[order]
        n_pooled_rows = int(counts.counts.sum() - kept.sum())
        return cls(counts.values.taken(order), kept, counts.n_levels - len(kept), n_pooled_rows, counts.n_missing)

    def codes(self, column: object, name: str) -> Int32:
        """Return the code of each row's level, shape (rows,): its place among the levels, `MISSING` where the row has
        no value, `UNKNOWN` where its value is none of them.

        Raises as `read_column`, and DataTypeError where the column has values of another kind than in training.
        """
        coded = read_column(column, name)
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
