"""Target statistics in the order of time, one row after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from daskboost.dtypes import Float32


def ordered_statistics(
    values: Sequence[Hashable], labels: Sequence[float], weights: Sequence[float], wanted: Sequence[float],
    priors: Sequence[float],
) -> Float32:  # fmt: skip
    """Return of each row the share of each wanted label among the rows of its value that come before it, with one row
    more that has the prior.

    Rows of no weight, and those of value None, have the priors and do not count.
    """
    found = np.empty((len(values), len(wanted)), np.float32)
    seen: dict[Hashable, list[float]] = {}
    for row in range(len(values)):
        is_counted = values[row] is not None and weights[row] > 0
        before = seen.setdefault(values[row], []) if is_counted else []
        for j, label in enumerate(wanted):
            found[row, j] = (sum(each == label for each in before) + priors[j]) / (len(before) + 1)
        before.append(labels[row])
    return found
