"""Naive twins of target statistics: for each row, all others are looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.cpu.statistics import NOT_COUNTED, Statistics

Sums = list[int]
"""A count, and the sums of m statistics."""


def values_of(sums: Sums, statistics: Statistics, share: float = 1.0) -> list[float]:
    """The statistics of a category, as if only a share of its rows counted."""
    count, *rest = sums
    priors = statistics.priors.tolist()
    return [
        float(np.float32((each * statistics.unit * share + prior) / (count * share + 1)))
        for each, prior in zip(rest, priors, strict=True)
    ]


def sums_of(rows: Sequence[int], levels: Sequence[int], steps: list[list[int]]) -> Sums:
    """How many of the rows are counted, and the sums of what their levels add."""
    counted = [levels[row] for row in rows if levels[row] != NOT_COUNTED]
    return [len(counted), *(sum(steps[level][j] for level in counted) for j in range(len(steps[0])))]


def fold_values(
    codes: Sequence[int], folds: Sequence[int], levels: Sequence[int], statistics: Statistics
) -> list[list[float]]:
    """The statistics of each row by the rows of its code in other folds."""
    rows, steps = range(len(codes)), statistics.steps.tolist()
    return [
        values_of(
            sums_of([o for o in rows if codes[o] == codes[row] >= -1 and folds[o] != folds[row]], levels, steps),
            statistics,
        )
        for row in rows
    ]
