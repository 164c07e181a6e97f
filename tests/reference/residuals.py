"""Naive twin of the radix selection: sort the residuals and walk up to the weight that is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def quantile(residuals: Sequence[np.float32], weights: Sequence[int], alpha: float) -> float:
    """The smallest residual at which `alpha` of the integer weights is reached; NaN without any weight."""
    total = sum(weights)
    if total == 0:
        return math.nan
    target = max(math.ceil(alpha * total), 1)
    reached = 0
    for i in sorted(range(len(residuals)), key=lambda i: residuals[i]):
        reached += weights[i]
        if reached >= target:
            return float(residuals[i])
    raise AssertionError("the weights do not add up to their sum")


def integer_weights(weight: Sequence[float], largest: float) -> list[int]:
    """Weights in units that make the largest of the whole data set about 2**20."""
    unit = 2.0 ** (20 - math.frexp(largest)[1])
    return [round(float(w) * unit) for w in weight]
