"""Exact sums against math.fsum and against themselves in another order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum

unhurried = settings(deadline=None)  # the first example compiles
finite = hnp.arrays(np.float64, st.integers(0, 60), elements=st.floats(allow_nan=False, allow_infinity=False))
anything = hnp.arrays(np.float64, st.integers(0, 20), elements=st.floats())


def reference(values: np.ndarray) -> float:
    """The sum as a Fraction, rounded once."""
    total = sum((Fraction(v) for v in values.tolist()), Fraction(0))
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@unhurried
@given(finite)
def test_value_is_the_correctly_rounded_sum(values: np.ndarray) -> None:
    assert ExactSum.of(values).value() == reference(values)


@unhurried
@given(anything)
def test_infinities_and_nan_propagate_as_in_addition(values: np.ndarray) -> None:
    special = values[~np.isfinite(values)]
    expected = float(sum(special.tolist())) if len(special) else reference(values)
    np.testing.assert_equal(ExactSum.of(values).value(), expected)


WHOLE = [[], [3], [0.0, -0.0], [1.0] * 5, [2.0**38, -(2.0**38)] * 3 + [2.0**38], [2.0**38] * 20_000, [-7] * 40_000]


@pytest.mark.parametrize("values", WHOLE)
def test_whole_numbers_need_no_kernel(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactSum, "_of_block", lambda _: pytest.fail("a kernel was compiled"))
    assert ExactSum.of(values) == ExactSum(int(sum(map(Fraction, values))) << 1074)


@pytest.mark.parametrize("other", [0.5, 2.0**38 + 1, 2.0**60, -(2.0**900), math.inf, math.nan, 5e-324])
@pytest.mark.parametrize("place", [0, 5, 20_000])
def test_one_other_number_among_many(other: float, place: int) -> None:
    values = [float(value) for value in range(30_000)]
    values[place] = other
    expected = ExactSum(sum(map(int, values[:place] + values[place + 1 :])) << 1074) + ExactSum._of_block(
        np.array([other])
    )
    assert ExactSum.of(values) == expected


@unhurried
@given(anything, st.randoms(use_true_random=False), st.integers(0, 20))
def test_order_and_partitioning_do_not_matter(values: np.ndarray, random: object, cut: int) -> None:
    shuffled = values.tolist()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = ExactSum.of(shuffled[cut:]) + ExactSum.of(shuffled[:cut])
    assert parts == ExactSum.of(values)
    assert parts.to_array().tobytes() == ExactSum.of(values).to_array().tobytes()


@unhurried
@given(anything)
def test_the_wire_form_returns(values: np.ndarray) -> None:
    total = ExactSum.of(values)
    assert ExactSum.from_array(total.to_array()) == total


@unhurried
@given(finite, finite)
def test_ratio_is_rounded_once(numerator: np.ndarray, denominator: np.ndarray) -> None:
    below = ExactSum.of(denominator)
    ratio = ExactSum.of(numerator).ratio(below)
    if below.units == 0:
        assert math.isnan(ratio)
    else:
        quotient = Fraction(ExactSum.of(numerator).units, below.units)
        try:
            assert ratio == quotient.numerator / quotient.denominator
        except OverflowError:
            assert math.isinf(ratio)


def test_sums_that_float64_addition_loses() -> None:
    values = np.array([1e308, 1.0, 1e-300, -1e308, 5e-324] * 1000)
    assert ExactSum.of(values).value() == math.fsum(values) == 1000.0
    assert ExactSum.of(values - 1.0).value() == math.fsum(values - 1.0)


def test_many_values_equal_fsum() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(100_000) * np.exp(rng.normal(0, 20, 100_000))
    assert ExactSum.of(values).value() == math.fsum(values)
    assert ExactSum.of(values.astype(np.float32).reshape(100, -1)).value() == math.fsum(values.astype(np.float32))


def test_overflow_is_an_infinity_that_later_values_can_undo() -> None:
    large = ExactSum.of([1.7e308, 1.7e308])
    assert large.value() == math.inf
    assert (large + ExactSum.of([-1.7e308])).value() == 1.7e308


def test_ratios_of_infinities_follow_float64_division() -> None:
    assert math.isnan(ExactSum.of([math.inf]).ratio(ExactSum.of([math.inf])))
    assert ExactSum.of([math.inf]).ratio(ExactSum.of([-2.0])) == -math.inf


@pytest.mark.parametrize("array", [np.zeros(1, np.uint8), np.array([8, 0], np.uint8), np.zeros(2, np.int64)])
def test_a_foreign_array_is_refused(array: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"is not an exact sum; pass what ExactSum\.to_array returned"):
        ExactSum.from_array(array)
