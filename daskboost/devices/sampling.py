"""Minimal-variance sampling: what is known of the norms of rows' gradients, on every device.

Ibragimov and Gusev, "Minimal Variance Sampling in Stochastic Gradient Boosting", NeurIPS 2019: a row is kept with
probability p = min(1, norm / threshold), norm = sqrt(sum over outputs of g**2 + lambda h**2), and its gradients are
multiplied by 1 / p, so that sums over rows keep their expectation. Of all samples of that size in expectation, theirs
vary least in the gains of splits. Where splits are scored by weights, these take the place of h.

Norms are float64, in which squares of float32 neither overflow nor underflow, and every step of p is one that IEEE 754
rounds alike everywhere. They are counted in cells, by exponent and leading bits: integers that no order, chunk or
worker changes, from which the threshold follows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from daskboost.dtypes import Float64

NORM_LAMBDA = 0.1
"""Lambda of the norm: what XGBoost has, and CatBoost's `mvs_reg`, for any objective."""
CELL_BITS = 6
"""Leading bits after the first by which norms are told apart: cells are at most 1.6 % wide."""
LEAST_EXPONENT = -128
"""Norms below 2**-128 count as that large, those from 2**128 on as the largest."""
N_CELLS = 256 << CELL_BITS
FIRST_CELL = (1023 + LEAST_EXPONENT) << CELL_BITS
"""Of the leading bits of a float64, those of the first cell."""


def cell_norms() -> Float64:
    """The norm in the middle of each cell; float64, shape (N_CELLS,), increasing."""
    cells = np.arange(N_CELLS)
    exponent, leading = cells >> CELL_BITS, cells & ((1 << CELL_BITS) - 1)
    return np.asarray(np.ldexp(1 + (leading + 0.5) / (1 << CELL_BITS), exponent + LEAST_EXPONENT), np.float64)


class DrawnRows(NamedTuple):
    """Rows of a chunk that may be kept, in order; arrays of the device."""

    rows: Any
    """int64."""
    norms: Any
    """float64; infinite where gradients are not finite."""
    draws: Any
    """float64 in [0, 1): a row is kept if its draw is less than norm / threshold."""
