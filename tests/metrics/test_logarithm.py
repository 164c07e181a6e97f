"""Our logarithms: to a unit in the last place, and the same bits on the CPU and on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.cpu.arithmetic import short_logarithm_of_one_plus
from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.devices.gpu.runtime.kernel_source import parse
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.dtypes import Float64
from daskboost.metrics.metric import log, log1p

SOURCE = parse("logarithms", (Path(__file__).parents[1] / "kernels" / "logarithms.cu").read_text())


def cases(rng: np.random.Generator, n: int) -> Float64:
    """Of all magnitudes, near 1 and near 0, at the boundaries of the reduction, and what is no number."""
    limits = np.array([0.0, 1.0, 2.0, 0.5, np.sqrt(0.5), np.sqrt(2.0), 5e-324, 2.2250738585072014e-308, 1.8e308, 1e-16])
    boundaries = np.array([0x3FE6A09E00000000, 0x3FF6A09E00000000, 0x4006A09E00000000]).view(np.float64)
    limits = np.concatenate([limits, boundaries, boundaries * 2.0**-1030])  # subnormal ones, too
    ends = np.concatenate(
        [limits, np.nextafter(limits, 0), np.nextafter(limits, np.inf), [np.nan, np.inf, -1.0, -np.inf]]
    )
    bits = rng.integers(1, 0x7FF0000000000000, n)
    near = 1 + rng.normal(size=n) * 2.0 ** -rng.integers(0, 53, n)
    return np.concatenate(
        [ends, bits.view(np.float64), near, rng.random(n), -rng.random(n) * 2.0 ** -rng.integers(0, 60, n)]
    )


@pytest.mark.parametrize("ours", ["log", "log1p"])
def test_to_a_unit_in_the_last_place(ours: str, rng: np.random.Generator) -> None:
    values = cases(rng, 20_000)
    with np.errstate(all="ignore"):
        wide = values.astype(np.longdouble)
        expected = np.log(wide) if ours == "log" else np.log1p(wide)
        rounded = expected.astype(np.float64)
        found = log(values) if ours == "log" else log1p(values)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(found[~finite], rounded[~finite])
        units = np.abs(found[finite] - expected[finite]) / np.spacing(np.abs(rounded[finite]))
    assert units.max() < (1.0 if ours == "log" else 2.0)


def test_special_values() -> None:
    np.testing.assert_array_equal(log(np.array([1.0, 0.0, np.inf])), [0.0, -np.inf, np.inf])
    np.testing.assert_array_equal(log1p(np.array([0.0, -1.0, np.inf])), [0.0, -np.inf, np.inf])
    assert log(np.ones((3, 2))).shape == (3, 2)


def test_gpu_gives_the_cpus_bits(runtime: Runtime, rng: np.random.Generator) -> None:
    values = cases(rng, 3_000)
    n, xp = len(values), runtime.xp
    logs, of_one_plus, in_short = xp.empty(n), xp.empty(n), xp.empty(n, np.float32)
    kernel = cast(EmulatedRuntime | CudaRuntime, runtime).kernel_of(SOURCE, "logarithms", SOURCE.variants[0])
    kernel(-(-n // 64), 64, xp.asarray(values), n, logs, of_one_plus, in_short)
    for found, expected in ((logs, log(values)), (of_one_plus, log1p(values))):
        found = to_host(found)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        present = ~np.isnan(expected)
        np.testing.assert_array_equal(found[present].view(np.int64), expected[present].view(np.int64))
    with np.errstate(all="ignore"):
        short = values.astype(np.float32)
    present = (values >= 0) & (values <= 2.0**119)
    expected = np.array([short_logarithm_of_one_plus(value) for value in short[present]], np.float32)
    np.testing.assert_array_equal(to_host(in_short)[present].view(np.int32), expected.view(np.int32))
    np.testing.assert_allclose(expected, np.log1p(short[present].astype(np.float64)), rtol=4e-7)
