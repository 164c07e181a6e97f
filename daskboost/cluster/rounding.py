"""How a tree's gradients become integers: scales from what all engines reported.

Either way the scale is the largest power of two that keeps a bound within a limit, so that no histogram overflows:
- large data: every row within 15 bits, so that 2**16 rows fit 32 bits between two spills;
- small data: the total weight times the largest gradient within 31 bits, so that the sums of all rows fit, and rows
  keep 19 bits (`SMALL_ROWS` rows) or more (27 bits where there are 15). `devices/cpu/gradients.py` says what for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daskboost.cluster import messages as m
from daskboost.devices.cpu.rows import Rounding
from daskboost.errors import DataError
from daskboost.hashing import Purpose, key
from daskboost.params import TrainParams

QUANTUM_LIMIT = 2**15 - 1
"""Largest quantized gradient or hessian of a row of large data."""
SMALL_ROWS = 2**12
"""Most rows of small data. Their nearest rounding shifts a sum by at most rows**2 / 2**31 of the largest gradient, here
by 1/128 of one row's, which matters to no split."""
SUM_LIMIT = 2**31 - 1 - SMALL_ROWS
"""Largest sum of all of small data's gradients or hessians but for rounding, which adds half a quantum per row, and
half a quantum per unit of weight (see `quantize_gradients`)."""


def make_rounding(params: TrainParams, objective_name: str, iteration: int, output: int,
                  ranges: Sequence[m.GradientRange], total_weight: float | None) -> Rounding:  # fmt: skip
    """The rounding of one tree; `total_weight` of all rows where data are small, otherwise None.

    Raises
    ------
    DataError
        A gradient or hessian is NaN or infinite.
    """
    tops = [float(np.max([getattr(part, name)[output] for part in ranges])) for name in ("largest_g", "largest_h")]
    for name, top in zip(("gradient", "hessian"), tops, strict=True):
        if not math.isfinite(top):
            raise DataError(
                f"objective {objective_name!r} gave a {name} of {top} in iteration {iteration}; check labels and "
                "weights for extreme values, or lower learning_rate or set max_delta_step"
            )
    # Weights of small data stay as they are, so that integers stay integers, unless they sum to more than its rows may.
    scale_w = 1.0 if total_weight is None else min(1.0, scale(total_weight, SMALL_ROWS))
    bound, limit = (1.0, QUANTUM_LIMIT) if total_weight is None else (total_weight * scale_w, SUM_LIMIT)
    seed, share = params.random_state, params.subsample
    return Rounding(
        scale_g=scale(bound * tops[0], limit),
        scale_h=scale(bound * tops[1], limit),
        round_key=int(key(seed, Purpose.ROUNDING, iteration, output)),
        sample_key=int(key(seed, Purpose.ROW_SAMPLE, iteration, output)),
        sample_below=2**32 if share >= 1 else math.ceil(share * 2**32),
        scale_w=scale_w,
    )


def scale(largest: float, limit: int) -> float:
    """The largest power of two that keeps `largest` within `limit`; 1 for 0."""
    if largest == 0:
        return 1.0
    exponent = limit.bit_length() - math.frexp(largest)[1]
    if largest * 2.0**exponent > limit:
        exponent -= 1
    return float(2.0 ** min(exponent, 1000))
