"""Target statistics in the order of time, one row after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from daskboost.dtypes import Float32


def ordered_statistics(
    values: Sequence[Hashable], levels: Sequence[int], weights: Sequence[float], worth: Sequence[Sequence[float]],
    priors: Sequence[float],
) -> Float32:  # fmt: skip
    """Return of each row the mean of what the levels of targets are worth, for each statistic, over the rows of its
    value that come before it, with one row more that has the prior.

    Rows of no weight, and those of value None, have the priors and do not count.
    """
    found = np.empty((len(values), len(priors)), np.float32)
    seen: dict[Hashable, list[int]] = {}
    for row in range(len(values)):
        is_counted = values[row] is not None and weights[row] > 0
        before = seen.setdefault(values[row], []) if is_counted else []
        for j, prior in enumerate(priors):
            found[row, j] = (sum(worth[each][j] for each in before) + prior) / (len(before) + 1)
        before.append(levels[row])
    return found
