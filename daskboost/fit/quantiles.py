"""Exact weighted quantiles of residuals over all engines, by radix selection on integer counts.

Three rounds of 11, 11 and 10 bits find the quantile's float32 exactly, whatever the number of rows and engines.
"""

from __future__ import annotations

import numpy as np

from daskboost.data.key_counts import values_of
from daskboost.devices.cpu.residuals import ResidualQuery
from daskboost.dtypes import Float32, Int32, Int64, UInt32
from daskboost.fit.messages import ResidualCounts
from daskboost.fit.outbox import AsksEngines

DIGITS = (11, 11, 10)
WEIGHT_BITS = 20
"""The largest weight becomes at most 2**20, so that 2**43 rows can be counted."""


def weight_scale(largest_weight: float) -> float:
    """The power of two that weights are multiplied by before they are rounded to integers."""
    return float(2.0 ** (WEIGHT_BITS - np.frexp(largest_weight)[1]))


def residual_quantiles(engines: AsksEngines, output: int, leaves: Int32, alpha: float, largest_weight: float
                       ) -> Float32:  # fmt: skip
    """The smallest residual of each leaf at which `alpha` of the leaf's weight is reached; NaN for empty leaves.

    float32, shape (leaves,). This is the lower weighted quantile, as scikit-learn's boosting uses for its leaves.
    """
    prefixes: UInt32 = np.zeros(len(leaves), np.uint32)
    below: Int64 = np.zeros(len(leaves), np.int64)
    target: Int64 | None = None
    known = 0
    for bits in DIGITS:
        query = ResidualQuery(leaves, prefixes, known, bits, weight_scale(largest_weight))
        request = ResidualCounts(output, query)
        counts: Int64 = np.sum([reply.counts for reply in engines.ask(request)], axis=0)
        running = below[:, None] + np.cumsum(counts, axis=1)
        if target is None:
            total = running[:, -1]
            target = np.maximum(np.ceil(alpha * total).astype(np.int64), 1)
        digit = np.minimum((running < target[:, None]).sum(axis=1), (1 << bits) - 1)
        rows = np.arange(len(leaves))
        below = running[rows, digit] - counts[rows, digit]
        prefixes = (prefixes << np.uint32(bits)) | digit.astype(np.uint32)
        known += bits
    result = values_of(prefixes)
    result[total == 0] = np.nan
    return result
