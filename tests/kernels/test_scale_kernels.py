"""Scales from ranges are the host's, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime
from reference import gradients as reference
from strategies.roundings import make_rounding

from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.fit.messages import GradientRange
from daskboost.fit.scales import QUANTUM_LIMIT, scale_rule
from daskboost.params import TrainParams


def scales_on(runtime: Runtime, tops: Any, total_weight: float | None, largest_searched: float = 0.0,
              reg_lambda: float = 1.0, step: float = 0.0) -> Any:  # fmt: skip
    """`kernels/scales.cu` for largest |g| and h; float64, shape (outputs, 6)."""
    rounding = DeviceRounding(runtime, tops.shape[1])
    rounding.tops[:] = runtime.xp.asarray(tops.view(np.uint32))
    rounding.sums[:] = 5
    rounding.find_scales(scale_rule(total_weight, reg_lambda, step, largest_searched=largest_searched))
    assert not to_host(rounding.tops).any() and not to_host(rounding.sums).any()
    np.testing.assert_array_equal(rounding.largest(), tops)
    return to_host(rounding.scales)[:, [0, 1, 2, 3, 4, 7]]


def scales_by_host(tops: Any, total_weight: float | None, largest_searched: float = 0.0, reg_lambda: float = 1.0,
                   step: float = 0.0) -> list[tuple[float, ...]]:  # fmt: skip
    ranges, given = [GradientRange(*tops.astype(np.float64))], (total_weight, largest_searched)
    params = TrainParams(reg_lambda=reg_lambda, max_delta_step=step)
    made = [make_rounding(params, "any", 0, k, ranges, *given) for k in range(tops.shape[1])]
    return [(own.scale_g, own.scale_h, own.scale_w, *own.units, own.noise_gain) for own in made]


TOTALS = [None, 1.0, 15.0, 4096.0, 4096.5, 0.3, 1e-45, 1e-20, 2.0**60]


@pytest.mark.parametrize("total_weight", TOTALS)
def test_scales_of_every_magnitude(total_weight: float | None, runtime: Runtime) -> None:
    """All exponents, subnormal numbers included, with mantissas beside those where a power of two just fits."""
    mantissas = [0, 1, 2**22, 0x7FFDFF, 0x7FFE00, 0x7FFE01, 0x7FEFFF, 0x7FF000, 0x7FFFFF]
    exponents = np.arange(255, dtype=np.uint32) << np.uint32(23)
    tops = (exponents[:, None] | np.array(mantissas, np.uint32)).reshape(-1).view(np.float32)
    tops = np.stack([tops, tops[::-1]])
    for reg_lambda, step in [(1.0, 0.0), (0.0, 0.0), (1.0, 1e-3), (0.0, 1e-3)]:
        given = (tops, total_weight, 0.0, reg_lambda, step)
        np.testing.assert_array_equal(scales_on(runtime, *given), scales_by_host(*given))


@pytest.mark.parametrize("total_weight", [None, 15.0])
def test_scales_of_weights_in_place_of_hessians(total_weight: float | None, runtime: Runtime) -> None:
    tops = np.array([[1.0, 3.0, 0.0], [0.25, 0.0, 2.0**60]], np.float32)
    for largest in (1.0, 2.7, 1e-30):
        found = scales_on(runtime, tops, total_weight, largest)
        np.testing.assert_array_equal(found, scales_by_host(tops, total_weight, largest))
        assert len(set(found[:, 1])) == 1


@given(
    st.lists(st.tuples(*[st.floats(0, allow_infinity=False, allow_nan=False, width=32)] * 2), min_size=1, max_size=200),
    st.none() | st.floats(1e-45, 2.0**72),
)
@example([(0.0, 1.0)], float(SMALL_ROWS))
@example([(float(QUANTUM_LIMIT), float(np.nextafter(np.float32(QUANTUM_LIMIT), np.float32(np.inf))))], None)
def test_scales_equal_the_hosts(pairs: list[tuple[float, float]], total_weight: float | None) -> None:
    tops = np.array(pairs, np.float32).T.copy()
    found = scales_on(EmulatedRuntime(), tops, total_weight)
    np.testing.assert_array_equal(found, scales_by_host(tops, total_weight))
    if total_weight is None:
        assert found[0, 0] == reference.scale(float(tops[0, 0]))
