"""How the gradients of a tree become integers, by their range: arithmetic that the host does, and compiled code alike.

`fit/scales.py` says what bounds and limits there are; `kernels/scales.cu` is the twin for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., object])

NOISE_QUANTA = 8.0
"""The best of thousands of splits of n rows whose gradients differ by rounding alone gains up to about 6 squared quanta
over h: n / 4 of them are the sum's variance, and the largest of so many chi-squared numbers is about 23."""
NOISE_SHARE = 2.0**-20
"""Gains of n rows of the largest gradient are off by up to n / 2**50 of its square over h, in float64: less than this
for all small data, whose quanta may be finer."""
SMALLEST_POSITIVE = 2.0**-1074
"""The smallest positive float64."""


def _jitable(function: F) -> F:
    """Have a function serve Python and compiled code; in this, nothing is checked before divisions."""
    return register_jitable(error_model="numpy")(function)


class ScaleRule(NamedTuple):
    """What scales keep within what: `scale_rule` of `fit/scales.py` makes it."""

    bound: float
    """The largest |g| and h are multiplied by this before they must stay within `limit`."""
    limit: int
    scale_w: float
    """Power of two that weights of small data are multiplied by."""
    reg_lambda: float
    """Penalty of leaf values, for `noise_gain`."""
    max_delta_step: float
    """Largest leaf value, for `noise_gain`; 0 is unlimited."""
    largest_searched: float = 0.0
    """Bound of what is quantized in place of hessians; 0 for hessians, whose largest is found."""

    @property
    def arguments(self) -> tuple[float, float, float, float, float, float]:
        """The rule as kernels of GPUs take it."""
        gain = self.reg_lambda, self.max_delta_step
        return self.bound, float(self.limit), self.scale_w, *gain, self.largest_searched


@_jitable
def scale(largest: float, limit: int) -> float:
    """The largest power of two that keeps `largest` within `limit`; 1 for 0."""
    if largest == 0:
        return 1.0
    exponent = math.frexp(limit)[1] - math.frexp(largest)[1]
    if math.ldexp(largest, exponent) > limit:
        exponent -= 1
    return math.ldexp(1.0, min(exponent, 1000))


@_jitable
def noise_gain(unit_g: float, largest_g: float, divisor: float, step: float) -> float:
    """Return the gain of a row whose gradient is `NOISE_QUANTA` quanta, or `NOISE_SHARE` of the largest.

    Gains up to this cannot be told from what rounding gradients to integers, and gains to float64, may add to a node's.
    It grows with the square of the gradients as gains do, so that trees do not depend on the scale of labels. Where
    `max_delta_step` limits the row's leaf value it grows linearly, as gains do there.

    Parameters
    ----------
    unit_g : float
        What a quantum of g is worth.
    largest_g : float
        Of a row; of small data whose weights are scaled down, of a row of the weight that becomes 1.
    divisor : float
        The largest h of such a row, and `reg_lambda`.
    step : float
        The largest leaf value, `max_delta_step`; 0 is unlimited.
    """
    if largest_g == 0 or divisor == 0:
        return 0.0
    noise = max(NOISE_QUANTA * unit_g, NOISE_SHARE * largest_g)
    if 0 < step < noise / divisor:
        return 2.0 * noise * step - divisor * step * step
    return noise * noise / divisor


@_jitable
def units_of(scale_g: float, scale_h: float, scale_w: float) -> tuple[float, float]:
    """Return what one quantum of g and of h is worth."""
    return 1.0 / (scale_g * scale_w), 1.0 / (scale_h * scale_w)


@_jitable
def scales_by(rule: ScaleRule, largest_g: float, largest_h: float) -> tuple[float, float, float]:
    """Return the powers of two that gradients and hessians are multiplied by whose largest are these, and the gain
    below which a split tells nothing (`noise_gain`)."""
    if rule.largest_searched > 0:
        largest_h = rule.largest_searched
    scale_g, scale_h = scale(rule.bound * largest_g, rule.limit), scale(rule.bound * largest_h, rule.limit)
    unit_g, _ = units_of(scale_g, scale_h, rule.scale_w)
    divisor = largest_h / rule.scale_w + rule.reg_lambda
    return scale_g, scale_h, noise_gain(unit_g, largest_g / rule.scale_w, divisor, rule.max_delta_step)


@_jitable
def least_gain(gamma: float, noise: float) -> float:
    """Return the least gain of a split that is made: it beats `gamma` and noise (`noise_gain`)."""
    return max(gamma, noise, SMALLEST_POSITIVE)
