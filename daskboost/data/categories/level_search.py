"""The most frequent levels of a column that has more than there is room for, found by further reads of its rows.

    levels of partitions -> counted while they have room, then rows by cell of hashes
                            cells of most rows -> read again: their levels -> those of most rows

No level has more rows than its cell. So once so many levels are found that no cell that is left has more rows than the
last of them, they are the most frequent ones: the same as without a limit of memory, which decides nothing but how
often rows are read. The idea is that of count-min sketches (Cormode and Muthukrishnan, An improved data stream summary:
the count-min sketch and its applications, 2005), of which counts are no more than upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.data.categories.levels import LevelCounts, LevelRoom, Levels, Rank
from daskboost.data.categories.statistics import most_frequent
from daskboost.dtypes import Bool, Int64, UInt8, UInt64, for_kernels, read_only
from daskboost.errors import DataError

CELL_SHARE = 4
"""Cells take no more than this part of the room of a column's levels."""
LEAST_CELL_BITS, MOST_CELL_BITS = 8, 28
MOST_ROWS = 255
"""Cells of so many rows and more are not told apart: a byte each makes many cells, which have few levels each. The
levels of all these are counted, and so many rows have few."""
SPARE = 1.25
"""Cells are read again that are believed to have levels for the room divided by this."""


def _n_bits(cells: UInt8 | Bool) -> int:
    return len(cells).bit_length() - 1


def _cells_of(hashes: UInt64, n_bits: int) -> Int64:
    """Return the cell of each hash: its first bits."""
    return (hashes >> np.uint64(64 - n_bits)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LevelCells:
    """Rows of the levels of a column by the cells that their hashes fall into.

    Parameters
    ----------
    name : str
        What messages call the column.
    example : LevelCounts
        One of the levels, of whichever partition.
    counts : uint8 array, shape (cells,)
        Rows, at most `MOST_ROWS`; as many cells as a power of two.
    n_rows, n_missing : int
        Rows with a value, and without.
    """

    name: str
    example: LevelCounts
    counts: UInt8
    n_rows: int
    n_missing: int

    @classmethod
    def of(cls, counts: LevelCounts, room: int) -> LevelCells:
        """Return the cells of some levels: so many as a column has whose levels have this room, in bytes."""
        bits = min(max((room // CELL_SHARE).bit_length() - 1, LEAST_CELL_BITS), MOST_CELL_BITS)
        example = LevelCounts(counts.name, counts.values.taken(np.zeros(1, np.int64)), counts.counts[:1], 0)
        empty = cls(counts.name, example, np.zeros(1 << bits, np.uint8), 0, 0)
        return empty.plus(counts)

    def __reduce__(self) -> tuple[Callable[..., LevelCells], tuple[str, LevelCounts, UInt8, int, int]]:
        return _received, (self.name, self.example, self.counts, self.n_rows, self.n_missing)

    def plus(self, other: LevelCounts | LevelCells) -> LevelCells:
        """Add the rows of levels, or of their cells, to these cells in place; DataTypeError for another kind."""
        from daskboost.devices.cpu.byte_strings import count_cells

        if isinstance(other, LevelCells):
            self.example.require_kind(other.example.values)
            self.counts[:] += np.minimum(other.counts, MOST_ROWS - self.counts)
            n_rows = self.n_rows + other.n_rows
        else:
            self.example.require_kind(other.values)
            count_cells(other.hashes, read_only(other.counts), _n_bits(self.counts), MOST_ROWS, self.counts)
            n_rows = self.n_rows + int(other.counts.sum())
        return replace(self, n_rows=n_rows, n_missing=self.n_missing + other.n_missing)

    @property
    def n_levels(self) -> int:
        """Return about how many levels there are, by the cells that have none (Whang and others, A linear-time
        probabilistic counting algorithm, 1990)."""
        n, n_used = len(self.counts), int(np.count_nonzero(self.counts))
        return round(n * math.log(n / max(n - n_used, 1)))


def _received(name: str, example: LevelCounts, counts: UInt8, n_rows: int, n_missing: int) -> LevelCells:
    return LevelCells(name, example, for_kernels(counts), n_rows, n_missing)


@dataclass(frozen=True, eq=False)
class BoundedLevels:
    """Levels of a column, or where they have no room their cells; `a + b` is that of both, in any order the same, and
    `a += b` the same in the memory of a, where that has cells."""

    found: LevelCounts | LevelCells
    room: int
    """Memory of the levels at most, in bytes."""

    @classmethod
    def of(cls, counts: LevelCounts, room: int) -> BoundedLevels:
        """Return levels where they have room, and else their cells."""
        return cls(counts if counts.nbytes <= room else LevelCells.of(counts, room), room)

    def __add__(self, other: BoundedLevels) -> BoundedLevels:
        own, others = self.found, other.found
        if isinstance(own, LevelCounts) and isinstance(others, LevelCounts):
            return self.of(own + others, self.room)
        if isinstance(own, LevelCounts):
            own, others = others, own
        assert isinstance(own, LevelCells)
        return BoundedLevels(replace(own, counts=own.counts.copy()).plus(others), self.room)

    def __iadd__(self, other: BoundedLevels) -> BoundedLevels:
        if isinstance(self.found, LevelCells):
            return BoundedLevels(self.found.plus(other.found), self.room)
        return self + other


@dataclass(frozen=True, eq=False)
class CellChoice:
    """Cells of which the levels are counted."""

    is_chosen: Bool

    def __call__(self, hashes: UInt64) -> Bool:
        """Return whether levels of these hashes are in one of the cells."""
        return self.is_chosen[_cells_of(hashes, _n_bits(self.is_chosen))]


class LevelSearch:
    """Finds the levels of a column for which there is room, by the rows of cells, and the levels of some of these."""

    def __init__(self, cells: LevelCells, room: LevelRoom) -> None:
        self._cells, self._room = cells, room
        self._left = cells.counts > 0
        """Cells whose levels may be among the most frequent ones, and are not counted."""
        self._best: LevelCounts | None = None
        self._levels_per_cell = SPARE * cells.n_levels / max(int(np.count_nonzero(self._left)), 1)

    def next(self, n_bytes: int) -> CellChoice:
        """Return the cells of most rows, of which to count the levels next: such as may have room."""
        level_bytes = self._cells.example.nbytes
        n = max(int(n_bytes / (level_bytes * self._levels_per_cell)), 1)
        places = np.flatnonzero(self._left)
        self._chosen = np.zeros(len(self._left), np.bool_)
        self._chosen[places[most_frequent(self._cells.counts[places], n)]] = True
        return CellChoice(self._chosen)

    def take(self, found: BoundedLevels) -> None:
        """Take the levels of the chosen cells, or what there is where they had no room: fewer are chosen then."""
        if isinstance(found.found, LevelCells):
            if np.count_nonzero(self._chosen) > 1:
                self._levels_per_cell *= 2
                return
            raise DataError(
                f"column {self._cells.name!r} has too many or too long values for host_memory_limit: raise it, or "
                "leave the column out"
            )
        own = found.found
        self._left &= ~self._chosen
        self._best, dropped = (own if self._best is None else self._best + own).most_frequent(self._room)
        if dropped is not None:
            self._left &= self._before(dropped)

    def _before(self, rank: Rank) -> Bool:
        """Return which cells may have a level that comes before another one."""
        counts, n_rows = self._cells.counts, -rank.less_rows
        may_be: Bool = counts >= min(n_rows + 1, MOST_ROWS)
        if n_rows >= MOST_ROWS:
            return may_be
        last = int(_cells_of(np.array([rank.hash], np.uint64), _n_bits(counts))[0])
        may_be[: last + 1] |= counts[: last + 1] == n_rows
        return may_be

    @property
    def levels(self) -> Levels | None:
        """Return the levels that are kept; None while others may be."""
        if self._best is None or self._left.any():
            return None
        best = LevelCounts(self._best.name, self._best.values, self._best.counts, self._cells.n_missing)
        return Levels.of(best, max(self._cells.n_levels, best.n_levels), self._cells.n_rows)


class ColumnSearch:
    """Finds the levels of all columns that are kept.

    Parameters
    ----------
    columns : list of BoundedLevels
        All levels, or cells, of each column; emptied, so that their memory is free when it is needed again.
    rooms : sequence of LevelRoom
        Of each column.
    n_bytes : int
        Memory that the levels of further reads may take.
    """

    def __init__(self, columns: list[BoundedLevels], rooms: Sequence[LevelRoom], n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._searches: dict[int, LevelSearch] = {}
        self._kept: dict[int, Levels] = {}
        for at in reversed(range(len(columns))):
            own = columns.pop().found
            if isinstance(own, LevelCells):
                self._searches[at] = LevelSearch(own, rooms[at])
            else:
                self._kept[at] = Levels.kept(own, rooms[at])
            del own

    @property
    def n_open(self) -> int:
        """Return how many columns are to be read again."""
        return len(self._searches)

    @property
    def room(self) -> int:
        """Return the memory of the levels of each column that is read again, in bytes."""
        return self._n_bytes // len(self._searches)

    def next(self) -> tuple[CellChoice | None, ...]:
        """Return the cells of each column of which to count the levels next, None where it is not read again."""
        chosen = {at: search.next(self.room) for at, search in self._searches.items()}
        return tuple(map(chosen.get, range(len(self._kept) + len(chosen))))

    def take(self, found: Sequence[BoundedLevels]) -> None:
        """Take the levels of the chosen cells, of each column that was read again, in order."""
        for own, (at, search) in zip(found, sorted(self._searches.items()), strict=True):
            search.take(own)
            levels = search.levels
            if levels is not None:
                self._kept[at] = levels
                del self._searches[at]

    @property
    def levels(self) -> tuple[Levels, ...]:
        """Return the levels of each column, once none is open."""
        return tuple(own for _, own in sorted(self._kept.items()))
