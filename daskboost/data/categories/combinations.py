"""Combinations of categorical columns: which are worth a feature, the levels that they have, and the targets of these.

    levels of columns -> Combination, counted by key and fold -> CombinationCounts, summed -> KeptCombination: values of
                              ^                                                                  |    training rows
                              |------------- CombinationEncoder: codes of its levels <-----------|-> of other rows

A combination joins a column to a smaller one, a pair to another column, so a level of it is a pair of codes that some
row has. Of two columns of 7,000 and 4,000 levels 28 million could be there, and no more are than rows, so only those
that are there are counted, by a key that numbers all that could be. Codes of a smaller combination are of the levels
that are kept, 2**20 at most, so that keys of any number of columns stay below 2**41. A read of the rows counts
combinations of one column more than the one before, as levels are known after it.

Combinations help where the target depends on all columns at once in a way that few splits do not find, which is where
all have many levels (`LEAST_LEVELS`); trees find what there is in combinations of few levels themselves, and another
column of sums only gives them more to fit noise with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from daskboost.data.categories.folds import N_FOLDS, FoldTable, most_counts
from daskboost.data.categories.level_rooms import MOST_BYTES
from daskboost.data.categories.levels import UNKNOWN
from daskboost.data.categories.row_statistics import Codes, Columns
from daskboost.data.categories.statistics import StatisticTable, most_frequent
from daskboost.dtypes import Float32, Int32, Int64, Integers, UInt8, for_kernels
from daskboost.errors import ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics

MOST_COMPLEXITY = 4
"""Columns that a combination has at most: CatBoost's default."""
DEFAULT_COMPLEXITY = 2
"""The same unless it is said: pairs; `docs/categories.md` has what was measured of more."""
LEAST_LEVELS = 128
"""All columns of a combination have as many levels or more; `docs/categories.md` has what was measured."""
LEAST_GROWTH = 1.5
"""A combination has more than so many times the levels of each of its parts: where it has not, one part nearly tells
the others, and the combination says what that part says."""
MOST_COMBINATIONS = 45
"""Combinations of each number of columns: pairs of ten. Of more those are taken that have fewest possible levels."""
MOST_STATISTICS = 90
"""Statistics of all combinations of a number of columns together: of many classes fewer combinations are taken, and one
at least."""
logger = logging.getLogger(__name__)


def check_complexity(value: object) -> int:
    """Return `max_ctr_complexity`; ParameterError for what is not possible."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= MOST_COMPLEXITY:
        return int(value)
    raise ParameterError(
        f"max_ctr_complexity={shown(value)} is not possible: 1 makes features of single categorical columns alone, 2 "
        f"to {MOST_COMPLEXITY} of combinations of up to so many of them too; for combinations of more columns make a "
        "column of them"
    )


@dataclass(frozen=True)
class Combination:
    """Several categorical columns, and the keys of their levels: pairs of codes of two parts."""

    parts: tuple[Columns, Columns]
    """All columns but one, and the one that is joined to them."""
    sizes: tuple[int, int]
    """Levels of either part, and one for missing values, which levels of several columns never are."""

    @property
    def columns(self) -> Columns:
        """Return the numbers of all columns."""
        return tuple(sorted(at for part in self.parts for at in part))

    @property
    def n_keys(self) -> int:
        """Return how many levels there could be."""
        return self.sizes[0] * self.sizes[1]

    def keys(self, codes: Codes) -> Int64:
        """Return the key of each row's codes, `UNKNOWN` where one of these is; int64, shape (rows,)."""
        first, second = (codes[part] for part in self.parts)
        keys = (first.astype(np.int64) + 1) * self.sizes[1] + (second + 1)
        return np.where((first == UNKNOWN) | (second == UNKNOWN), UNKNOWN, keys)


_Possible: TypeAlias = tuple[int, Columns, tuple[Columns, Columns], tuple[int, int]]
"""How many levels a combination could have, its columns, and its parts and their sizes: a tuple, since of a thousand
columns there are half a million pairs."""


@dataclass(frozen=True)
class CombinationChoice:
    """Which combinations are counted: what follows from counts alone, never from labels."""

    n_levels: Mapping[int, int]
    """Levels of each categorical column that has statistics, by its number."""
    n_rows: int
    n_statistics: int
    """How many statistics each level has."""
    complexity: int = DEFAULT_COMPLEXITY
    """See `check_complexity`."""
    n_bytes: int = MOST_BYTES
    """Memory that the counts of all combinations may take on a worker while rows are quantized; those beyond are left
    out."""

    def of(self, n_combined: int, kept: Mapping[Combination, int]) -> tuple[Combination, ...]:
        """Return the combinations of so many columns, two or more, that are to be counted, by their columns.

        Each of their parts of one column less is a column of many levels, or a combination that is kept.

        Parameters
        ----------
        n_combined : int
        kept : mapping
            The combinations of fewer columns that are features, and how many levels each has.
        """
        found = [] if n_combined > self.complexity or not self.n_statistics else self._possible(n_combined, kept)
        n_most = min(MOST_COMBINATIONS, max(MOST_STATISTICS // max(self.n_statistics, 1), 1))
        left, chosen = self.n_bytes - sum(map(self._bytes_of, kept)), list[Combination]()
        for _, _, parts, sizes in sorted(found)[:n_most]:
            own = Combination(parts, sizes)
            left -= self._bytes_of(own)
            if left < 0:
                break
            chosen.append(own)
        if len(chosen) < len(found):
            logger.info(
                "of %d combinations of %d categorical columns %d are counted, those of fewest possible levels: there "
                "are %d at most, and combinations of all numbers of columns take %d MB at most", len(found), n_combined,
                len(chosen), n_most, self.n_bytes >> 20,
            )  # fmt: skip
        return tuple(sorted(chosen, key=lambda own: own.columns))

    def _possible(self, n_combined: int, kept: Mapping[Combination, int]) -> list[_Possible]:
        """Return all combinations of so many columns whose parts have many levels."""
        known: dict[Columns, int] = {(column,): n for column, n in self.n_levels.items() if n >= LEAST_LEVELS}
        known |= {own.columns: n for own, n in kept.items()}
        # A combination has no more levels than there are rows, so a part of nearly as many cannot be surpassed.
        parts = {own: n for own, n in known.items() if len(own) == n_combined - 1 and n * LEAST_GROWTH < self.n_rows}
        singles = sorted({column for part in parts for column in part})
        joined = ((*part, column) for part in parts for column in singles if column > part[-1])
        return [
            self._joined(columns, parts) for columns in joined
            if all(part in parts for part in combinations(columns, n_combined - 1))
        ]  # fmt: skip

    def _joined(self, columns: Columns, parts: Mapping[Columns, int]) -> _Possible:
        """Return the combination of some columns, with the part of it that leaves fewest possible levels."""
        found = []
        for at, column in enumerate(columns):
            part = columns[:at] + columns[at + 1 :]
            n, m = parts[part] + 1, self.n_levels[column] + 1
            found.append((n * m, columns, (part, (column,)), (n, m)))
        return min(found)

    def _bytes_of(self, own: Combination) -> int:
        """Return the memory, in bytes, that a combination's counts take at most: of levels by fold, and of levels."""
        return 2 * most_counts(self.n_rows, own.n_keys) * 8 * (2 + self.n_statistics)


@dataclass(frozen=True, eq=False)
class CombinationCounts:
    """What the levels of a combination have counted in each fold; `a + b` is what the rows of both count, in any order
    the same."""

    combination: Combination
    by_key: FoldTable
    """A code of this table is a key."""
    most_levels: int
    """Levels that are kept: the most frequent ones, of those with as many rows the ones of lesser keys."""

    @classmethod
    def of(cls, combination: Combination, codes: Codes, most_levels: int, folds: UInt8, levels: UInt8, steps: UInt8,
           n_folds: int = N_FOLDS) -> CombinationCounts:  # fmt: skip
        """Count the rows of one partition; further parameters as of `FoldTable.of`."""
        table = FoldTable.of(combination.keys(codes), combination.n_keys, folds, levels, steps, n_folds)
        return cls(combination, table, most_levels)

    def __add__(self, other: CombinationCounts) -> CombinationCounts:
        return CombinationCounts(self.combination, self.by_key + other.by_key, self.most_levels)

    def __iadd__(self, other: CombinationCounts) -> CombinationCounts:
        table = self.by_key
        table += other.by_key
        return CombinationCounts(self.combination, table, self.most_levels)

    def __reduce__(self) -> tuple[Callable[..., CombinationCounts], tuple[Combination, FoldTable, int]]:
        """Leave out what follows from the counts, which would be sent along with them."""
        return CombinationCounts, (self.combination, self.by_key, self.most_levels)

    @cached_property
    def _present(self) -> tuple[Int64, Integers]:
        """The cells with rows, and what they count."""
        cells, counts = self.by_key.cells, self.by_key.counts
        if cells is not None:
            return cells, counts
        own = np.flatnonzero(counts[:, 0])  # full tables have all cells
        return own, counts[own]

    @cached_property
    def _starts(self) -> Int64:
        """Where the cells of each level begin among those with rows."""
        from daskboost.devices.cpu.sorted_counts import find_starts

        cells = self._present[0]
        starts = np.empty(find_starts(cells, self.by_key.n_folds, np.empty(0, np.int64)), np.int64)
        find_starts(cells, self.by_key.n_folds, starts)
        return starts

    @cached_property
    def kept(self) -> KeptCombination:
        """The levels that are kept."""
        starts = self._starts
        chosen = np.arange(len(starts))
        if len(starts) > self.most_levels:
            chosen = most_frequent(np.add.reduceat(self._present[1][:, 0], starts), self.most_levels)
        return self._levels(chosen, self._keys[chosen], np.arange(len(chosen)))

    def kept_as(self, encoder: CombinationEncoder) -> KeptCombination:
        """Return what the levels that an encoder knows have counted, some of which may have counted nothing here."""
        places = np.searchsorted(encoder.keys, self._keys)
        chosen = np.flatnonzero(np.append(encoder.keys, -1)[places] == self._keys)
        return self._levels(chosen, encoder.keys, places[chosen])

    @property
    def _keys(self) -> Int64:
        """The key of each level that has rows, increasing."""
        return self._present[0][self._starts] // self.by_key.n_folds

    def _levels(self, chosen: Int64, keys: Int64, places: Int64) -> KeptCombination:
        """Return levels of some keys, of which those at some places are chosen ones of these, in their order; others
        have counted nothing."""
        (cells, counts), starts, n_folds = self._present, self._starts, self.by_key.n_folds
        widths = np.append(starts[1:], len(cells))[chosen] - starts[chosen]
        firsts = np.cumsum(widths) - widths
        if len(chosen) < len(starts):
            own = np.repeat(starts[chosen] - firsts, widths) + np.arange(widths.sum())
            cells, counts = cells[own], counts[own]
        totals = np.zeros((len(keys) + 1, counts.shape[1]), np.int64)  # last missing: keys have it as a code
        if len(chosen):
            totals[places] = np.add.reduceat(counts, firsts, dtype=np.int64)
        width_of = np.zeros(len(keys) + 1, np.int64)
        width_of[1 + places] = widths
        encoder = CombinationEncoder(self.combination, keys, StatisticTable(totals))
        return KeptCombination(encoder, np.cumsum(width_of), (cells % n_folds).astype(np.uint8), counts)

    def says_more(self, n_levels: Iterable[int]) -> bool:
        """Return whether the combination says what no part of it does alone: see `LEAST_GROWTH`.

        `n_levels` : levels of further parts than the two that are joined.
        """
        return len(self._starts) > LEAST_GROWTH * max(*(size - 1 for size in self.combination.sizes), *n_levels)

    @property
    def are_same(self) -> bool:
        """Whether it is of two columns each of which tells the other, so that combinations with further columns are the
        same of both."""
        if len(self.combination.columns) > 2 or not 0 < len(self._starts) <= min(self.combination.sizes):
            return False
        keys, size = self._keys, self.combination.sizes[1]
        return len(np.unique(keys // size)) == len(np.unique(keys % size)) == len(keys)


@dataclass(frozen=True, eq=False)
class KeptCombination:
    """The levels of a combination that a model knows, and what these have counted in each fold."""

    encoder: CombinationEncoder
    starts: Int64
    """Where the cells of each level begin, and behind the last one."""
    folds: UInt8
    """The fold of each cell."""
    counts: Integers
    """What each cell has counted, shape (cells, 1 + m)."""

    def __reduce__(self) -> tuple[Callable[..., KeptCombination], tuple[CombinationEncoder, Int64, UInt8, Integers]]:
        return _kept_received, (self.encoder, self.starts, self.folds, self.counts)

    def values(self, places: Int32, folds: UInt8, statistics: Statistics) -> Float32:
        """Return the statistics of training rows of these levels, by what their levels have counted in the other folds;
        float32, shape (rows, m)."""
        from daskboost.devices.cpu.statistics import sparse_fold_values

        totals = self.encoder.table.counts
        values = np.empty((len(places), totals.shape[1] - 1), np.float32)
        sparse_fold_values(places, folds, self.starts, self.folds, self.counts, totals, statistics, values)
        return values


def _kept_received(encoder: CombinationEncoder, starts: Int64, folds: UInt8, counts: Integers) -> KeptCombination:
    return KeptCombination(encoder, for_kernels(starts), for_kernels(folds), for_kernels(counts))


@dataclass(frozen=True, eq=False)
class CombinationEncoder:
    """The levels of a combination that a model knows, and what their rows have counted.

    Parameters
    ----------
    keys : int64 array, shape (levels,)
        Increasing. The code of a level is its place.
    table : StatisticTable
        Of the codes.
    """

    combination: Combination
    keys: Int64
    table: StatisticTable

    def __reduce__(self) -> tuple[Callable[..., CombinationEncoder], tuple[Combination, Int64, StatisticTable]]:
        return _received, (self.combination, self.keys, self.table)

    @property
    def n_levels(self) -> int:
        """Return how many levels there are."""
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Return the memory of keys and counts."""
        return self.keys.nbytes + self.table.counts.nbytes

    @cached_property
    def _starts(self) -> Int64:
        """Where the keys of each code of the first part begin, and behind the last one."""
        return np.searchsorted(self.keys, np.arange(self.combination.sizes[0] + 1) * self.combination.sizes[1])

    def places(self, codes: Codes) -> Int32:
        """Return the code of each row's level, `UNKNOWN` where it is none of these; int32, shape (rows,)."""
        from daskboost.devices.cpu.pairs import find_pairs

        first, second = (codes[part] for part in self.combination.parts)
        places = np.empty(len(first), np.int32)
        find_pairs(first, second, self.combination.sizes[1], self.keys, self._starts, UNKNOWN, places)
        return places

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder; "joined" only where any column of several
        could be."""
        columns, (_, (joined,)) = self.combination.columns, self.combination.parts
        more = {"joined": joined} if len(columns) > 2 else {}
        return {"columns": list(columns), **more, "keys": self.keys.tolist(), "table": self.table.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any], n_levels: Mapping[Columns, int]) -> CombinationEncoder:
        """Return the encoder that gave these values; KeyError, TypeError or ValueError where they are none.

        `n_levels` : levels of each categorical column, and of each combination that came before.
        """
        columns = tuple(map(int, values["columns"]))
        if len(columns) < 2 or list(columns) != sorted(set(columns)) or columns in n_levels:
            raise ValueError("a combination is of fewer than two columns, or of the same as another one")
        joined = int(values["joined"]) if len(columns) > 2 else columns[-1]
        parts = tuple(column for column in columns if column != joined), (joined,)
        own = Combination(parts, (n_levels[parts[0]] + 1, n_levels[parts[1]] + 1))
        keys, table = np.array(values["keys"], np.int64), StatisticTable.from_json(values["table"])
        if len(keys.shape) != 1 or table.n_codes != len(keys):
            raise ValueError("a combination has not as many keys as counts")
        if len(keys) and (keys[0] < 0 or keys[-1] >= own.n_keys or not (np.diff(keys) > 0).all()):
            raise ValueError("the keys of a combination do not increase, or are not of its columns")
        return cls(own, keys, table)


def by_columns(encoders: Iterable[CombinationEncoder]) -> dict[Columns, CombinationEncoder]:
    """Return encoders by the columns of each, in their order."""
    return {own.combination.columns: own for own in encoders}


def _received(combination: Combination, keys: Int64, table: StatisticTable) -> CombinationEncoder:
    return CombinationEncoder(combination, for_kernels(keys), table)
