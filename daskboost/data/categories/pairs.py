"""Pairs of categorical columns: which are worth a feature, the levels that they have, and the targets of these.

    levels of columns -> Pair, counted by key and fold -> PairCounts, summed -> KeptPair: values of training rows
                                                                                    |-> PairEncoder of other rows

A level of a pair is a pair of codes that some row has. Of two columns of 7,000 and 4,000 levels 28 million could be
there, and no more are than rows, so only those that are there are counted, by a key that numbers all that could be.
Pairs help where the target depends on both columns at once in a way that few splits do not find, which is where both
have many levels (`LEAST_LEVELS`); trees find what there is in pairs of few levels themselves, and another column of
sums only gives them more to fit noise with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.categories.folds import N_FOLDS, CountSummary, Division, FoldCounts, FoldTable, most_counts
from daskboost.data.categories.level_rooms import MOST_BYTES
from daskboost.data.categories.levels import UNKNOWN
from daskboost.data.categories.row_statistics import ByTile, Codes, TrainedRows
from daskboost.data.categories.statistics import StatisticTable, Target, most_frequent
from daskboost.dtypes import Float32, Int32, Int64, Integers, UInt8, for_kernels
from daskboost.errors import ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from daskboost.devices.cpu.statistics import Statistics

MOST_COMPLEXITY = 2
"""Columns that a combination has at most."""
LEAST_LEVELS = 128
"""Both columns of a pair have as many levels or more; `docs/categories.md` has what was measured."""
LEAST_GROWTH = 1.5
"""A pair has more than so many times the levels of either column: where it has not, one column nearly tells the other,
and the pair says what that column says."""
MOST_PAIRS = 45
"""Pairs of ten columns; of more columns those pairs are taken that have fewest possible levels."""
MOST_STATISTICS = 90
"""Statistics of all pairs together: of many classes fewer pairs are taken, and one at least."""
logger = logging.getLogger(__name__)


def check_complexity(value: object) -> int:
    """Return `max_ctr_complexity`; ParameterError for what is not possible."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= MOST_COMPLEXITY:
        return int(value)
    raise ParameterError(
        f"max_ctr_complexity={shown(value)} is not possible: 1 makes features of single categorical columns alone, 2 "
        "of pairs of them too; for combinations of more columns make a column of them"
    )


@dataclass(frozen=True)
class Pair:
    """Two categorical columns, and the keys of pairs of their codes."""

    columns: tuple[int, int]
    """The numbers of both columns, increasing."""
    sizes: tuple[int, int]
    """Levels of each, and one for missing values."""

    @property
    def n_keys(self) -> int:
        """Return how many levels there could be."""
        return self.sizes[0] * self.sizes[1]

    def keys(self, codes: Codes) -> Int64:
        """Return the key of each row's codes, `UNKNOWN` where one of these is; int64, shape (rows,)."""
        first, second = (codes[column] for column in self.columns)
        keys = (first.astype(np.int64) + 1) * self.sizes[1] + (second + 1)
        return np.where((first == UNKNOWN) | (second == UNKNOWN), UNKNOWN, keys)


def chosen_pairs(n_levels: Mapping[int, int], n_rows: int, n_statistics: int, complexity: int,
                 n_bytes: int = MOST_BYTES) -> tuple[Pair, ...]:  # fmt: skip
    """Return the pairs that are to be counted, by the numbers of their columns.

    Parameters
    ----------
    n_levels : mapping
        Levels of each categorical column, by its number.
    n_rows : int
    n_statistics : int
        How many statistics each level has.
    complexity : int
        See `check_complexity`.
    n_bytes : int
        Memory that the counts of all pairs may take on a worker while rows are quantized; pairs beyond are left out.
    """
    if complexity < MOST_COMPLEXITY or not n_statistics:
        return ()
    # A pair has no more levels than there are rows, so a column of nearly as many cannot be surpassed.
    columns = sorted(column for column, n in n_levels.items() if n >= LEAST_LEVELS and n * LEAST_GROWTH < n_rows)
    pairs = [Pair((a, b), (n_levels[a] + 1, n_levels[b] + 1)) for a, b in combinations(columns, 2)]
    pairs.sort(key=lambda pair: (pair.n_keys, pair.columns))
    n_most, left, chosen = min(MOST_PAIRS, max(MOST_STATISTICS // n_statistics, 1)), n_bytes, list[Pair]()
    for pair in pairs[:n_most]:
        left -= 2 * most_counts(n_rows, pair.n_keys) * 8 * (2 + n_statistics)  # of levels by fold, and of levels
        if left < 0:
            break
        chosen.append(pair)
    if len(chosen) < len(pairs):
        logger.info(
            "of %d pairs of categorical columns %d are counted, those of fewest possible levels: there are %d at most, "
            "which take %d MB at most", len(pairs), len(chosen), n_most, n_bytes >> 20,
        )  # fmt: skip
    return tuple(sorted(chosen, key=lambda pair: pair.columns))


@dataclass(frozen=True, eq=False)
class PairCounts:
    """What the levels of a pair have counted in each fold; `a + b` is what the rows of both count, in any order the
    same."""

    pair: Pair
    by_key: FoldTable
    """A code of this table is a key."""
    most_levels: int
    """Levels that are kept: the most frequent ones, of those with as many rows the ones of lesser keys."""

    @classmethod
    def of(cls, pair: Pair, codes: Codes, most_levels: int, folds: UInt8, levels: UInt8, steps: UInt8,
           n_folds: int = N_FOLDS) -> PairCounts:  # fmt: skip
        """Count the rows of one partition; further parameters as of `FoldTable.of`."""
        return cls(pair, FoldTable.of(pair.keys(codes), pair.n_keys, folds, levels, steps, n_folds), most_levels)

    def __add__(self, other: PairCounts) -> PairCounts:
        return PairCounts(self.pair, self.by_key + other.by_key, self.most_levels)

    def __iadd__(self, other: PairCounts) -> PairCounts:
        table = self.by_key
        table += other.by_key
        return PairCounts(self.pair, table, self.most_levels)

    def __reduce__(self) -> tuple[Callable[..., PairCounts], tuple[Pair, FoldTable, int]]:
        """Leave out what follows from the counts, which would be sent along with them."""
        return PairCounts, (self.pair, self.by_key, self.most_levels)

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
    def kept(self) -> KeptPair:
        """The levels that are kept."""
        (cells, counts), starts, n_folds = self._present, self._starts, self.by_key.n_folds
        if len(starts) > self.most_levels:
            places = most_frequent(np.add.reduceat(counts[:, 0], starts), self.most_levels)
            widths = np.append(starts[1:], len(cells))[places] - starts[places]
            firsts = np.cumsum(widths) - widths
            own = np.repeat(starts[places] - firsts, widths) + np.arange(widths.sum())
            cells, counts, starts = cells[own], counts[own], firsts
        totals = np.zeros((len(starts) + 1, counts.shape[1]), np.int64)  # last missing: keys have it as a code
        if len(starts):
            np.add.reduceat(counts, starts, out=totals[:-1], dtype=np.int64)
        encoder = PairEncoder(self.pair, cells[starts] // n_folds, StatisticTable(totals))
        return KeptPair(encoder, np.append(starts, len(cells)), (cells % n_folds).astype(np.uint8), counts)

    @property
    def is_new(self) -> bool:
        """Whether the pair says what neither column does alone: see `LEAST_GROWTH`."""
        return len(self._starts) > LEAST_GROWTH * (max(self.pair.sizes) - 1)

    @property
    def are_same(self) -> bool:
        """Whether each of the columns tells the other, so that pairs with a third column are the same of both."""
        if not 0 < len(self._starts) <= min(self.pair.sizes):
            return False
        keys, size = self._present[0][self._starts] // self.by_key.n_folds, self.pair.sizes[1]
        return len(np.unique(keys // size)) == len(np.unique(keys % size)) == len(keys)


@dataclass(frozen=True, eq=False)
class KeptPair:
    """The levels of a pair that a model knows, and what these have counted in each fold."""

    encoder: PairEncoder
    starts: Int64
    """Where the cells of each level begin, and behind the last one."""
    folds: UInt8
    """The fold of each cell."""
    counts: Integers
    """What each cell has counted, shape (cells, 1 + m)."""

    def __reduce__(self) -> tuple[Callable[..., KeptPair], tuple[PairEncoder, Int64, UInt8, Integers]]:
        return _kept_received, (self.encoder, self.starts, self.folds, self.counts)

    def values(self, codes: Codes, folds: UInt8, statistics: Statistics) -> Float32:
        """Return the statistics of training rows, by what their levels have counted in the other folds; float32, shape
        (rows, m)."""
        from daskboost.devices.cpu.statistics import sparse_fold_values

        places, totals = self.encoder.places(codes), self.encoder.table.counts
        values = np.empty((len(places), totals.shape[1] - 1), np.float32)
        sparse_fold_values(places, folds, self.starts, self.folds, self.counts, totals, statistics, values)
        return values


def _kept_received(encoder: PairEncoder, starts: Int64, folds: UInt8, counts: Integers) -> KeptPair:
    return KeptPair(encoder, for_kernels(starts), for_kernels(folds), for_kernels(counts))


@dataclass(frozen=True, eq=False)
class PairEncoder:
    """The levels of a pair that a model knows, and what their rows have counted.

    Parameters
    ----------
    keys : int64 array, shape (levels,)
        Increasing. The code of a level is its place.
    table : StatisticTable
        Of the codes.
    """

    pair: Pair
    keys: Int64
    table: StatisticTable

    def __reduce__(self) -> tuple[Callable[..., PairEncoder], tuple[Pair, Int64, StatisticTable]]:
        return _received, (self.pair, self.keys, self.table)

    @property
    def nbytes(self) -> int:
        """Return the memory of keys and counts."""
        return self.keys.nbytes + self.table.counts.nbytes

    @cached_property
    def _starts(self) -> Int64:
        """Where the keys of each code of the first column begin, and behind the last one."""
        return np.searchsorted(self.keys, np.arange(self.pair.sizes[0] + 1) * self.pair.sizes[1])

    def places(self, codes: Codes) -> Int32:
        """Return the code of each row's level, `UNKNOWN` where it is none of these; int32, shape (rows,)."""
        from daskboost.devices.cpu.pairs import find_pairs

        first, second = (codes[column] for column in self.pair.columns)
        places = np.empty(len(first), np.int32)
        find_pairs(first, second, self.pair.sizes[1], self.keys, self._starts, UNKNOWN, places)
        return places

    def values(self, codes: Codes, statistics: Statistics) -> Float32:
        """Return the statistics of rows that had no part in the table; float32, shape (rows, m)."""
        return self.table.values(self.places(codes), statistics)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes the same encoder."""
        return {"columns": list(self.pair.columns), "keys": self.keys.tolist(), "table": self.table.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any], n_levels: Mapping[int, int]) -> PairEncoder:
        """Return the encoder that gave these values; KeyError, TypeError or ValueError where they are none.

        `n_levels` : levels of each categorical column, by its number.
        """
        first, second = map(int, values["columns"])
        pair = Pair((first, second), (n_levels[first] + 1, n_levels[second] + 1))
        keys, table = np.array(values["keys"], np.int64), StatisticTable.from_json(values["table"])
        if first >= second or len(keys.shape) != 1 or table.n_codes != len(keys):
            raise ValueError("a pair has no two columns, or not as many keys as counts")
        if len(keys) and (keys[0] < 0 or keys[-1] >= pair.n_keys or not (np.diff(keys) > 0).all()):
            raise ValueError("the keys of a pair do not increase, or are not of its columns")
        return cls(pair, keys, table)


def _received(pair: Pair, keys: Int64, table: StatisticTable) -> PairEncoder:
    return PairEncoder(pair, for_kernels(keys), table)


@dataclass(frozen=True, eq=False)
class CategorySummary:
    """What columns and pairs have counted in all folds together: see `KeptCounts`."""

    columns: CountSummary
    pairs: tuple[PairEncoder, ...]


@dataclass(frozen=True, eq=False)
class CategoryCounts:
    """What categorical columns and their pairs have counted in each fold; `a + b` is what both count, in any order the
    same, and `a += b` the same in the memory of a, one column after the other."""

    columns: FoldCounts
    """One column at least."""
    pairs: list[PairCounts]

    @property
    def n_rows(self) -> int:
        """Return the rows that were read."""
        return self.columns.tables[0].n_rows

    @classmethod
    def of(cls, columns: Mapping[int, tuple[Int32, int]], pairs: Sequence[Pair], most_levels: int, division: Division,
           first_row: int, levels: UInt8, target: Target, threads: int = 1) -> CategoryCounts:  # fmt: skip
        """Count the rows of one partition, so many columns at the same time.

        Parameters
        ----------
        columns : mapping of (int32 array, int)
            The codes of the rows in each categorical column, by its number, and how many codes it has.
        most_levels : int
            See `PairCounts`.
        division : Division
        first_row : int
            The id of the first row, which with the others' tells their folds.
        levels, target
            As of `FoldCounts.of`.
        """
        from daskboost.devices.cpu.threads import on_threads

        folds = division.of(first_row, len(levels))
        codes, n_codes = {at: own for at, (own, _) in columns.items()}, [n for _, n in columns.values()]
        counts = FoldCounts.of(list(codes.values()), n_codes, division, folds, levels, target, threads)
        return cls(counts, on_threads(
            lambda pair: PairCounts.of(pair, codes, most_levels, folds, levels, target.steps, division.n_folds), pairs,
            threads,
        ))  # fmt: skip

    def __add__(self, other: CategoryCounts) -> CategoryCounts:
        pairs = [a + b for a, b in zip(self.pairs, other.pairs, strict=True)]
        return CategoryCounts(self.columns + other.columns, pairs)

    def __iadd__(self, other: CategoryCounts) -> CategoryCounts:
        columns = self.columns
        columns += other.columns
        for at, own in enumerate(other.pairs):
            self.pairs[at] += own
        return CategoryCounts(columns, self.pairs)

    @property
    def kept(self) -> KeptCounts:
        """Return what features are made of: of pairs those that say something new, of those that say the same only
        one, and of their levels those that are kept."""
        copies = {own.pair.columns[1] for own in self.pairs if own.are_same}  # of a column before them
        new = (own for own in self.pairs if own.is_new and copies.isdisjoint(own.pair.columns))
        return KeptCounts(self.columns, tuple(own.kept for own in new))


@dataclass(frozen=True, eq=False)
class KeptCounts:
    """What the columns and pairs of which features are made have counted in each fold."""

    columns: FoldCounts
    pairs: tuple[KeptPair, ...]

    @property
    def summary(self) -> CategorySummary:
        """Return what models need."""
        return CategorySummary(self.columns.summary, tuple(own.encoder for own in self.pairs))

    def of_pair(self, pair: Pair) -> KeptPair:
        """Return what a pair has counted."""
        return next(own for own in self.pairs if own.encoder.pair == pair)

    def by_tile(self, rows: TrainedRows, statistics: Statistics) -> ByTile:
        """See `TrainingCounts`."""
        division = self.columns.division

        def of(tile: slice) -> OfOtherFolds:
            folds = division.of(rows.first_row + tile.start, tile.stop - tile.start)
            return OfOtherFolds(self, folds, statistics)

        return of


@dataclass(frozen=True, eq=False)
class OfOtherFolds:
    """Statistics of the rows in other folds, of some rows that are trained on."""

    counts: KeptCounts
    folds: UInt8
    statistics: Statistics

    def of(self, place: int, table: StatisticTable, codes: Int32) -> Float32:
        """See `RowStatistics.of`."""
        return self.counts.columns.values(place, codes, self.folds, self.statistics)

    def of_pair(self, own: PairEncoder, codes: Codes) -> Float32:
        """See `RowStatistics.of_pair`."""
        return self.counts.of_pair(own.pair).values(codes, self.folds, self.statistics)
