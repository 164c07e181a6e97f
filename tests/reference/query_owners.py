"""Who may own a query, by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def most_rows(engines: Sequence[int]) -> set[int]:
    """Return the engines that have most of a query's rows, given the engine of each row."""
    counts = Counter(engines)
    return {engine for engine, n in counts.items() if n == max(counts.values())}
