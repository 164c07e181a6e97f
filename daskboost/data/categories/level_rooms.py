"""How much memory the levels of categorical columns and what is counted of them may take, and each column of it."""

from __future__ import annotations

from collections.abc import Sequence

from daskboost.data.categories.column_encoders import TARGET
from daskboost.data.categories.folds import N_FOLDS
from daskboost.data.categories.level_search import BoundedLevels
from daskboost.data.categories.levels import LevelCounts, LevelRoom

MOST_BYTES = 1 << 30
"""Memory of a process for levels and counts of all single columns together, and again for those of combinations."""
LEAST_BYTES = 1 << 26
"""Least memory for either, however low the limit."""
LIMIT_SHARE = 4
"""Part of a memory limit that each of the two takes."""
LEVEL_BYTES = 52
"""Memory of a level that is kept, beside its value: where that ends, rows, hash, places by hash; rows as a feature."""
COUNT_BYTES, TOTAL_BYTES = 4, 8
"""Memory of a count in one fold, and in all together."""


def bytes_within(memory_limit: int | None) -> int:
    """Return the memory, in bytes, for levels and counts of single columns, and again for counts of combinations.

    Without a limit, and with one of 4 GiB or more, that is `MOST_BYTES`, so that a model does not depend on the limit;
    below, a quarter of it, for which more levels and combinations may be left out; never less than `LEAST_BYTES`.
    """
    if memory_limit is None:
        return MOST_BYTES
    return max(min(MOST_BYTES, memory_limit // LIMIT_SHARE), LEAST_BYTES)


def level_rooms(columns: Sequence[BoundedLevels], words: Sequence[str], most_levels: Sequence[int], n_bytes: int,
                n_statistics: int) -> list[LevelRoom]:  # fmt: skip
    """Return how many levels of each column are kept.

    Columns share the memory equally, but what some do not need is for the others.

    Parameters
    ----------
    columns : sequence of BoundedLevels
        All their levels, or cells.
    words : sequence of str
        Their encodings.
    most_levels : sequence of int
        Levels of each that are kept at most.
    n_bytes : int
        Memory of all columns.
    n_statistics : int
        Target statistics of a level.
    """
    of_counts = (COUNT_BYTES * N_FOLDS + TOTAL_BYTES) * (1 + n_statistics)
    of_levels = [LEVEL_BYTES + (of_counts if word == TARGET else 0) for word in words]
    each_column = zip(columns, most_levels, of_levels, strict=True)
    needs = [_need(own, most, level_bytes, n_bytes) for own, most, level_bytes in each_column]
    shares, left = [0] * len(needs), n_bytes
    order = sorted(range(len(needs)), key=lambda at: needs[at])
    for place, at in enumerate(order):
        shares[at] = min(needs[at], left // (len(order) - place))
        left -= shares[at]
    return [LevelRoom(*each) for each in zip(most_levels, shares, of_levels, strict=True)]


def _need(column: BoundedLevels, most: int, level_bytes: int, n_bytes: int) -> int:
    """Return the memory that a column's levels need, all of it where they have no room."""
    if not isinstance(column.found, LevelCounts):
        return n_bytes
    return min(column.found.n_levels, most) * level_bytes + len(column.found.values.data)
