"""Naive twins of combinations of columns: Python's dictionaries of tuples of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from daskboost.data.categories.combinations import LEAST_GROWTH

Codes = Sequence[int]
"""Codes of a column's levels; -1 is missing, -2 unknown."""
Level = tuple[int, ...]
"""Codes of a row in some columns, those that are joined later behind the others."""


def levels_of(columns: Sequence[Codes], counted: Sequence[bool], most: int) -> list[Level]:
    """The levels that counted rows have, of those whose level without the last of more than two columns is kept: the
    most frequent ones, in the order of their codes."""
    base = set(levels_of(columns[:-1], counted, most)) if len(columns) > 2 else None
    rows = Counter(
        level for level, is_counted in zip(zip(*columns, strict=True), counted, strict=True)
        if is_counted and -2 not in level and (base is None or level[:-1] in base)
    )  # fmt: skip
    return sorted(sorted(rows, key=lambda level: (-rows[level], level))[:most])


def says_more(n_levels: int, of_parts: Sequence[int]) -> bool:
    """Whether a combination has so many levels that no part of it tells the others."""
    return n_levels > LEAST_GROWTH * max(of_parts)


def values(columns: Sequence[Codes], folds: Sequence[int], labels: Sequence[int | None], prior: float, most: int
           ) -> list[float]:  # fmt: skip
    """The share of label 1 among rows of each row's level in other folds; rows whose label is None do not count."""
    known = levels_of(columns, [label is not None for label in labels], most)
    levels, found = list(zip(*columns, strict=True)), []
    for level, fold in zip(levels, folds, strict=True):
        others = [
            label for other, other_fold, label in zip(levels, folds, labels, strict=True)
            if other == level and other_fold != fold and label is not None and level in known
        ]  # fmt: skip
        found.append((sum(others) + prior) / (len(others) + 1))
    return found
