"""Roundings of single trees, as a fit with these parameters has them."""

from __future__ import annotations

from collections.abc import Sequence

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.sampling import draws_below
from daskboost.fit.messages import GradientRange
from daskboost.fit.scales import Scales, joined_range
from daskboost.params import TrainParams


def make_rounding(params: TrainParams, objective_name: str, iteration: int, output: int,
                  ranges: Sequence[GradientRange], total_weight: float | None, largest_searched: float = 0.0
                  ) -> Rounding:  # fmt: skip
    """Return the rounding of one tree; see `Scales`."""
    scales = Scales(
        objective_name, params.random_state, params.subsample, iteration, joined_range(ranges), total_weight,
        largest_searched, params.reg_lambda, params.max_delta_step or 0.0,
    )  # fmt: skip
    return scales.searched([output])[0]


def sample_bound(params: TrainParams) -> int:
    """Return the bound of the sampling bits of rows that grow a tree."""
    return draws_below(params.subsample)
