"""How a tree's gradients become integers: scales from what all engines reported.

Either way the scale is the largest power of two that keeps a bound within a limit, so that no histogram overflows:
- large data: every row within 15 bits, so that 2**16 rows fit 32 bits between two spills;
- small data: the total weight times the largest gradient within 31 bits, so that the sums of all rows fit, and rows
  keep 19 bits (`SMALL_ROWS` rows) or more (27 bits where there are 15). `devices/cpu/gradients.py` says what for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.scales import ScaleRule, scale, scales_by
from daskboost.devices.sampling import draws_below
from daskboost.dtypes import Float64, UInt64
from daskboost.errors import DataError
from daskboost.fit import messages as m
from daskboost.hashing import Purpose, key, key_state

QUANTUM_LIMIT = 2**15 - 1
"""Largest quantized gradient or hessian of a row of large data."""
PURPOSES = Purpose.ROUNDING, Purpose.ROW_SAMPLE
"""What the two keys of a tree are for."""
SUM_LIMIT = 2**31 - 1 - SMALL_ROWS
"""Largest sum of all of small data's gradients or hessians but for rounding, which adds half a quantum per row, and
half a quantum per unit of weight (see `quantize_gradients`)."""


def is_small(n_rows: int) -> bool:
    """Return whether `n_rows` in all are small data."""
    return n_rows <= SMALL_ROWS


@dataclass(frozen=True)
class Scales:
    """How the gradients of a round become integers: by the largest of each column over all rows."""

    objective_name: str
    """For messages."""
    seed: int
    subsample: float
    """Share of the rows that each tree draws."""
    iteration: int
    largest: Float64
    """Largest |g|, then h, of each column (see `GradientRange`); float64, shape (2, columns)."""
    total_weight: float | None = None
    """Total weight of all rows, where data are small."""
    largest_searched: float = 0.0
    """Bound of what a search has in place of hessians; 0 where it has these."""
    reg_lambda: float = 0.0
    """Penalty of leaf values, which gains are divided by."""
    max_delta_step: float = 0.0
    """Largest leaf value that gains are of; 0 is unlimited."""

    def of_round(self, iteration: int) -> Scales:
        """Return what another round would have by the same range."""
        return replace(self, iteration=iteration)

    def exact(self, columns: Sequence[int]) -> tuple[Rounding, ...]:
        """Return the roundings of columns whose sums value leaves.

        Raises
        ------
        DataError
            A gradient or hessian is NaN or infinite.
        """
        return tuple(self._rounding(column, 0.0) for column in columns)

    def searched(self, columns: Sequence[int]) -> tuple[Rounding, ...]:
        """Return the roundings of columns as trees are searched on them; raises as `exact`."""
        return tuple(self._rounding(column, self.largest_searched) for column in columns)

    def _rounding(self, column: int, largest_searched: float) -> Rounding:
        g, h = self.largest[:, column].tolist()
        check_range(self.objective_name, self.iteration, g, h)
        rule = scale_rule(
            self.total_weight, self.reg_lambda, self.max_delta_step, largest_searched=largest_searched
        )  # fmt: skip
        scale_g, scale_h, noise = scales_by(rule, g, h)
        round_key, sample_key = tree_keys(self.seed, self.iteration, column)
        return Rounding(
            scale_g=scale_g, scale_h=scale_h, round_key=round_key, sample_key=sample_key,
            sample_below=draws_below(self.subsample), scale_w=rule.scale_w, noise_gain=noise,
        )  # fmt: skip


def joined_range(parts: Sequence[m.GradientRange]) -> Float64:
    """Return the largest |g| and h per column over all engines; float64, shape (2, columns)."""
    return np.asarray(np.max([[part.largest_g, part.largest_h] for part in parts], axis=0))


def scale_rule(total_weight: float | None, reg_lambda: float, max_delta_step: float, *, largest_searched: float = 0.0
               ) -> ScaleRule:  # fmt: skip
    """Return what scales keep within which limit, of what `Scales` has.

    Penalties become floats: CPU kernels are compiled for the types that they are given, and would be once more for a
    penalty that the user gave as an integer.
    """
    penalties = float(reg_lambda), float(max_delta_step)
    if total_weight is None:
        return ScaleRule(1.0, QUANTUM_LIMIT, 1.0, *penalties, largest_searched)
    # Weights of small data stay as they are, so that integers stay integers, unless they sum to more than its rows may.
    scale_w = min(1.0, scale(total_weight, SMALL_ROWS))
    return ScaleRule(total_weight * scale_w, SUM_LIMIT, scale_w, *penalties, largest_searched)


def tree_keys(seed: int, iteration: int, output: int) -> tuple[int, int]:
    """Return the hash keys of one tree: of its rounding and of its sample of rows."""
    rounding, sample = (int(key(seed, purpose, iteration, output)) for purpose in PURPOSES)
    return rounding, sample


def key_states(seed: int) -> UInt64:
    """Return what the keys of all trees come from in compiled code (`tree_key` there); uint64, shape (2,)."""
    return np.array([key_state(seed, purpose) for purpose in PURPOSES], np.uint64)


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
