"""Kernels of losses have the bits of the array expressions, whatever the margin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from objectives.losses import LOSSES

from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.devices.gpu.runtime.kernel_source import parse
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import LossKernel
from daskboost.objectives.objective import Objective, exp, kernel_of

SOURCE = parse("losses", (Path(__file__).parent / "losses.cu").read_text())
THREADS = 64
EXTREME = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-39, -1e-39, 80.0, -80.0, 80.00001, 87.0, -87.0,
     3e38, -3e38, 16.635532, 0.34657359, -0.34657359, 1e12, 1e-12, 0.5, 2.0], np.float32,
)  # fmt: skip


def kernel_for(runtime: Runtime, entry: str, loss: LossKernel) -> Any:
    found = cast(EmulatedRuntime | CudaRuntime, runtime)
    return found.kernel_of(SOURCE, entry, SOURCE.variant({"OBJECTIVE": int(loss)}))


def bits(values: Any) -> Any:
    """Of float32; processors differ in the bits of their NaN, which no result keeps."""
    found = np.ascontiguousarray(values, np.float32).view(np.uint32).copy()
    found[np.isnan(values)] = 0x7FC00000
    return found


def all_pairs(rng: np.random.Generator) -> tuple[Any, Any]:
    """Labels and margins: everything extreme with everything extreme, and ordinary rows."""
    label, margin = (side.reshape(-1) for side in np.meshgrid(EXTREME, EXTREME))
    ordinary = rng.normal(scale=rng.choice([1e-3, 1.0, 30.0, 1e6], (2, 3000))).astype(np.float32)
    ordinary[0, ::2] = rng.integers(0, 3, 1500)
    return np.concatenate([label, ordinary[0]]), np.concatenate([margin, ordinary[1]])


@pytest.mark.parametrize("objective", LOSSES)
def test_gradients_have_the_array_expressions_bits(
    objective: Objective, runtime: Runtime, rng: np.random.Generator
) -> None:
    loss, (label, margin) = kernel_of(objective), all_pairs(rng)
    assert loss is not None and len(loss.parameters) == objective.n_outputs
    margins = np.stack([np.roll(margin, k) for k in range(objective.n_outputs)], axis=1)
    with np.errstate(all="ignore"):
        expected = objective.gradients(label, margins)
    xp, n = runtime.xp, len(label)
    for output, parameters in enumerate(loss.parameters):
        g, h = xp.zeros(n, np.float32), xp.zeros(n, np.float32)
        kernel_for(runtime, "gradients_of_rows", loss.kernel)(
            -(-n // THREADS), THREADS, xp.asarray(label), xp.asarray(margins[:, output].copy()),
            xp.asarray(np.array(parameters, np.float32)), n, g, h,
        )  # fmt: skip
        for name, found, wanted in (("g", g, expected[0]), ("h", h, expected[1])):
            same = bits(to_host(found)) == bits(wanted[:, output])
            assert same.all(), (name, label[~same][:5], margins[~same, output][:5])


def test_exp_has_numpys_bits(runtime: Runtime, rng: np.random.Generator) -> None:
    spread = rng.integers(0, 2**32, 20_000, np.uint64).astype(np.uint32).view(np.float32)
    halves = (np.arange(-240, 240) / 2 * np.log(2)).astype(np.float32)  # where rounding to a whole power changes
    x = np.concatenate([EXTREME, np.linspace(-81, 81, 9_001, dtype=np.float32), spread, halves])
    x = np.concatenate([x, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))])
    out = runtime.xp.zeros(len(x), np.float32)
    kernel_for(runtime, "exps", LossKernel.GIVEN)(-(-len(x) // THREADS), THREADS, runtime.xp.asarray(x), len(x), out)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(to_host(out)), bits(exp(x)))
