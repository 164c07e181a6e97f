"""Target statistics by folds, one row after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from daskboost.dtypes import Float32


def fold_statistics(
    values: Sequence[Hashable], folds: Sequence[int], labels: Sequence[float], weights: Sequence[float],
    wanted: Sequence[float],
) -> Float32:  # fmt: skip
    """Return of each row the share of each wanted label among rows of its value in other folds, with one row more that
    has the share of all rows."""
    rows = range(len(values))
    counted = [i for i in rows if weights[i] > 0]
    found = np.empty((len(values), len(wanted)), np.float32)
    for j, label in enumerate(wanted):
        prior = sum(labels[i] == label for i in counted) / max(len(counted), 1)
        for row in rows:
            others = [i for i in counted if values[i] == values[row] and folds[i] != folds[row]]
            found[row, j] = (sum(labels[i] == label for i in others) + prior) / (len(others) + 1)
    return found
