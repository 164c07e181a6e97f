"""Naive twins of pairs of columns: Python's dictionaries of pairs of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from daskboost.data.categories.pairs import LEAST_GROWTH

Codes = Sequence[int]
"""Codes of a column's levels; -1 is missing, -2 unknown."""


def levels_of(first: Codes, second: Codes, counted: Sequence[bool], most: int) -> list[tuple[int, int]]:
    """The pairs that counted rows have: the most frequent ones, in the order of their codes."""
    rows = Counter(pair for pair, is_counted in zip(zip(first, second, strict=True), counted, strict=True)
                   if is_counted and -2 not in pair)  # fmt: skip
    return sorted(sorted(rows, key=lambda pair: (-rows[pair], pair))[:most])


def is_new(n_pairs: int, n_first: int, n_second: int) -> bool:
    """Whether a pair has so many levels that neither column tells the other."""
    return n_pairs > LEAST_GROWTH * max(n_first, n_second)


def values(first: Codes, second: Codes, folds: Sequence[int], labels: Sequence[int | None], prior: float, most: int
           ) -> list[float]:  # fmt: skip
    """The share of label 1 among rows of each row's pair in other folds; rows whose label is None do not count."""
    known = levels_of(first, second, [label is not None for label in labels], most)
    pairs, found = list(zip(first, second, strict=True)), []
    for pair, fold in zip(pairs, folds, strict=True):
        others = [
            label for other, other_fold, label in zip(pairs, folds, labels, strict=True)
            if other == pair and other_fold != fold and label is not None and pair in known
        ]  # fmt: skip
        found.append((sum(others) + prior) / (len(others) + 1))
    return found
