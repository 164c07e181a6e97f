"""How a tree's gradients become integers: scales from what all engines reported.

Either way the scale is the largest power of two that keeps a bound within a limit, so that no histogram overflows:
- large data: every row within 15 bits, so that 2**16 rows fit 32 bits between two spills;
- packed gradients of large data, on which only splits are chosen: every row within `PACKED_LIMIT`;
- small data: the total weight times the largest gradient within 31 bits, so that the sums of all rows fit, and rows
  keep 19 bits (`SMALL_ROWS` rows) or more (27 bits where there are 15). `devices/cpu/gradients.py` says what for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daskboost.cluster import messages as m
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.gpu.rounding import ScaleRule
from daskboost.devices.plan import SMALL_ROWS
from daskboost.devices.sampling import draws_below
from daskboost.errors import DataError
from daskboost.hashing import Purpose, key
from daskboost.params import TrainParams

QUANTUM_LIMIT = 2**15 - 1
"""Largest quantized gradient or hessian of a row of large data."""
PACKED_LIMIT = 4
"""Largest packed gradient or hessian of a row, so that thousands of rows fit 16 bits each between two spills
(`kernels/packed.cuh`). More levels would spill so often that nothing is won over two sums of 32 bits."""
SUM_LIMIT = 2**31 - 1 - SMALL_ROWS
"""Largest sum of all of small data's gradients or hessians but for rounding, which adds half a quantum per row, and
half a quantum per unit of weight (see `quantize_gradients`)."""


def is_small(params: TrainParams, n_rows: int) -> bool:
    """Whether `n_rows` in all are small data. Rows drawn by their gradients never are: weights of rows that stand for
    others count no rows."""
    return n_rows <= SMALL_ROWS and params.out_of_core != "sampled"


def make_rounding(params: TrainParams, objective_name: str, iteration: int, output: int,
                  ranges: Sequence[m.GradientRange], total_weight: float | None, packed: bool = False,
                  largest_searched: float = 0.0) -> Rounding:  # fmt: skip
    """The rounding of one tree; `total_weight` of all rows where data are small, otherwise None. `packed` : to few
    levels, never for small data. `largest_searched` : bound of what a search has in place of hessians, if anything.

    Raises
    ------
    DataError
        A gradient or hessian is NaN or infinite.
    """
    tops = [float(np.max([getattr(part, name)[output] for part in ranges])) for name in ("largest_g", "largest_h")]
    check_range(objective_name, iteration, *tops)
    rule = scale_rule(total_weight, packed=packed, largest_searched=largest_searched)
    round_key, sample_key = tree_keys(params, iteration, output)
    return Rounding(
        scale_g=scale(rule.bound * tops[0], rule.limit),
        scale_h=scale(rule.bound * (rule.largest_searched or tops[1]), rule.limit),
        round_key=round_key,
        sample_key=sample_key,
        sample_below=sample_bound(params),
        scale_w=rule.scale_w,
    )


def scale_rule(total_weight: float | None, *, packed: bool = False, largest_searched: float = 0.0) -> ScaleRule:
    """What scales keep within which limit, of what `make_rounding` takes."""
    if total_weight is None:
        return ScaleRule(1.0, PACKED_LIMIT if packed else QUANTUM_LIMIT, 1.0, largest_searched)
    if packed:
        raise ValueError("gradients of small data are never packed")
    # Weights of small data stay as they are, so that integers stay integers, unless they sum to more than its rows may.
    scale_w = min(1.0, scale(total_weight, SMALL_ROWS))
    return ScaleRule(total_weight * scale_w, SUM_LIMIT, scale_w, largest_searched)


def tree_keys(params: TrainParams, iteration: int, output: int) -> tuple[int, int]:
    """Hash keys of one tree: of its rounding and of its sample of rows."""
    seed = params.random_state
    return (
        int(key(seed, Purpose.ROUNDING, iteration, output)),
        int(key(seed, Purpose.ROW_SAMPLE, iteration, output)),
    )


def sample_bound(params: TrainParams) -> int:
    """A row grows a tree if its 32 sampling bits are below: all do of rows drawn by their gradients."""
    return draws_below(1 if params.out_of_core == "sampled" else params.subsample)


def check_range(objective_name: str, iteration: int, largest_g: float, largest_h: float) -> None:
    """Refuse gradients of one output that no scale could hold.

    Raises
    ------
    DataError
        A gradient or hessian is NaN or infinite.
    """
    for name, top in (("gradient", largest_g), ("hessian", largest_h)):
        if not math.isfinite(top):
            raise DataError(
                f"objective {objective_name!r} gave a {name} of {top} in iteration {iteration}; check labels and "
                "weights for extreme values, or lower learning_rate or set max_delta_step"
            )


def scale(largest: float, limit: int) -> float:
    """The largest power of two that keeps `largest` within `limit`; 1 for 0."""
    if largest == 0:
        return 1.0
    exponent = limit.bit_length() - math.frexp(largest)[1]
    if largest * 2.0**exponent > limit:
        exponent -= 1
    return float(2.0 ** min(exponent, 1000))
