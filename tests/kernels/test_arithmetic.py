"""What host and device share gives the CPU kernels' bits: hashing, rounding, leaf values and gains, unpacking."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from reference import gradients as reference

from daskboost.data.chunks.packing import n_words
from daskboost.devices.cpu import quantize as pack
from daskboost.devices.cpu import split
from daskboost.devices.cpu.scales import SMALLEST_POSITIVE
from daskboost.devices.cpu.split_sets import NO_SET_RULES
from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.devices.gpu.runtime.kernel_source import parse
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.hashing import draws

SOURCE = parse("arithmetic", (Path(__file__).parent / "arithmetic.cu").read_text())
THREADS = 64
limited_gains: Any = numba.njit(lambda *given: split._limited_gains(*given))  # which are for compiled code alone
plain_gains: Any = numba.njit(lambda *given: split._plain_gains(*given))


def launch(runtime: Runtime, entry: str, n: int, *arguments: Any) -> None:
    """One thread per case; arrays of the host are copied to the device."""
    kernel = cast(EmulatedRuntime | CudaRuntime, runtime).kernel_of(SOURCE, entry, SOURCE.variants[0])
    on_device = [runtime.xp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
    kernel(-(-n // THREADS), THREADS, *on_device)


def test_draws(runtime: Runtime, rng: np.random.Generator) -> None:
    ids = np.concatenate([np.arange(70), rng.integers(0, 2**63, 900, np.uint64) * np.uint64(2)]).astype(np.uint64)
    for key in (0, 1, 2**64 - 1, reference.key(3, 1)):
        out, sampled = runtime.xp.zeros(len(ids), np.uint64), runtime.xp.zeros(len(ids), np.uint8)
        launch(runtime, "draws", len(ids), key, ids, len(ids), 2**31, out, sampled)
        expected = draws(np.uint64(key), ids)
        np.testing.assert_array_equal(to_host(out), expected)
        np.testing.assert_array_equal(to_host(sampled), expected >> np.uint64(32) < 2**31)
        assert reference.bits(key, int(ids[-1])) == expected[-1]


def test_rounding(runtime: Runtime, rng: np.random.Generator) -> None:
    """Ties, signed zeros, subnormal numbers and fractions that random bits just reach are among the cases."""
    n, xp = 3000, runtime.xp
    g = np.concatenate([rng.normal(size=n - 1000), rng.integers(-9, 9, 994) / 2, [-1, 1, -0.0, 1e-45, -1e-45, 0]])
    g = g.astype(np.float32)
    h = np.abs(rng.permutation(g))
    bits = rng.integers(0, 2**64, n, np.uint64)
    bits[:100] = rng.choice(np.array([0, 2**64 - 1, 2**63, 2**31], np.uint64), 100)
    times = rng.choice([0.0, 1.0, 3.0, 0.3, 2.5], n)
    large, small, parts = xp.zeros(n, np.int32), xp.zeros(n, np.int64), xp.zeros((n, 4), np.int32)
    for scale in (1.0, 0.25, 4096.0, 2.0**-60):
        launch(runtime, "quantized", n, g, h, times, bits, n, scale, scale, large, small, parts)
        found = to_host(parts)
        for i in range(n):
            up_g, up_h = int(bits[i] >> np.uint64(32)) / 2**32, int(bits[i] & np.uint64(2**32 - 1)) / 2**32
            stochastic = [int(np.floor(float(g[i]) * scale + up_g)), int(np.floor(float(h[i]) * scale + up_h))]
            nearest = [round(round(float(x) * scale) * float(times[i])) for x in (g[i], h[i])]
            assert found[i].tolist() == stochastic + nearest, (g[i], h[i])
        halves = found.astype(np.int64)
        np.testing.assert_array_equal(to_host(large), halves[:, 0] * 2**16 + halves[:, 1])
        np.testing.assert_array_equal(to_host(small), halves[:, 2] * 2**32 + halves[:, 3])


def test_shifts_round_products_to_whole_numbers(runtime: Runtime, rng: np.random.Generator) -> None:
    """Products of float32 are exact in float64; ties and both signs are among the cases."""
    n = 3000
    y = (rng.uniform(-1, 1, n) * 2.0 ** -rng.integers(0, 30, n)).astype(np.float32)
    y[:1000] = rng.choice(np.array([-1, 1, 0.5, -0.25, 0], np.float32), 1000)
    for shift, unit in ((12582912.0, 1.0), (2097152.0, 0.25)):
        x = (rng.integers(0, 2**23, n) / 2 * unit).astype(np.float32)
        signed = y if unit == 1.0 else np.abs(y)
        out = runtime.xp.zeros(n, np.uint32)
        launch(runtime, "shifted_products", n, x, signed, shift, n, out)
        expected = np.rint(x.astype(np.float64) * signed / unit).astype(np.int64)
        found = to_host(out).astype(np.int64) - int(np.float32(shift).view(np.uint32))
        np.testing.assert_array_equal(found, expected)


def test_reciprocals_are_rounded_as_divisions_are(runtime: Runtime, rng: np.random.Generator) -> None:
    """A GPU has all mantissas of float32, an emulated one some."""
    n = 2**23 if isinstance(runtime, CudaRuntime) else 3000
    mantissas = np.arange(n, dtype=np.uint32) if n == 2**23 else rng.integers(0, 2**23, n, dtype=np.uint32)
    for exponent in (-120, -7, 0, 1, 119):
        x = (mantissas + np.uint32((127 + exponent) << 23)).view(np.float32)
        out = runtime.xp.zeros(n, np.float32)
        launch(runtime, "reciprocals", n, x, n, out)
        np.testing.assert_array_equal(to_host(out), np.float32(1) / x)


REGULAR = [
    (1.0, 0.0, 0.0, 1.0),
    (0.0, 0.0, 0.0, SMALLEST_POSITIVE),
    (0.5, 0.0, 0.0, 0.0),
    (0.3, 0.7, 0.0, 1e-3),
    (1.0, 0.0, 0.25, 0.0),
    (2.0, 0.1, 1e-3, 5.0),
]
"""lambda, alpha, max_step, least_h."""


@pytest.mark.parametrize("regular", REGULAR)
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("monotone", [-1, 0, 1])
def test_weights_and_gains(runtime: Runtime, regular: tuple[float, float, float, float], limited: bool, monotone: int,
                           rng: np.random.Generator) -> None:  # fmt: skip
    """Bit for bit what numba computes: one division or multiplication in another order would show."""
    n = 2000
    reg_lambda = regular[0]
    left, right = (np.stack([_integers(rng, n, -1), _integers(rng, n, 0)], axis=1) for _ in range(2))
    sums = left + right
    sums[:, 1] = np.maximum(sums[:, 1], reg_lambda == 0)  # 0/0 is no gain that a fit asks for
    left[:, 1] = np.minimum(left[:, 1], sums[:, 1])
    unit_g, unit_h = 2.0**-9, 2.0**-14
    bounds = np.tile([-np.inf, np.inf], (n, 1))
    if limited:
        bounds = np.sort(rng.choice([-np.inf, -0.5, -1e-3, 0.0, 0.02, 0.7], (n, 2)), axis=1)
        bounds[bounds[:, 1] == -np.inf, 1] = np.inf
    out = runtime.xp.zeros((n, 7))
    launch(runtime, "weights_and_gains", n, sums, left, bounds, n, unit_g, unit_h, *regular, monotone, out)
    found = to_host(out)
    units, rules = (unit_g, unit_h), split.Regular(*regular, False, np.zeros(1, np.int32), NO_SET_RULES)
    same_bits(found[:, 0], split.leaf_weights(sums, units, rules, bounds))
    gain, left_weight, right_weight = split.split_values(sums, left, units, rules, bounds)
    same_bits(found[:, 1], left_weight)
    same_bits(found[:, 2], right_weight)
    for i in range(n):
        prefix, own = left[i].astype(np.float64)[:, None], np.empty(2)
        node = split.NodeTotals(float(sums[i, 0]), float(sums[i, 1]), unit_g, unit_h, bounds[i, 0], bounds[i, 1])
        # A second bin, since the last bin of a feature is not held to constraints.
        two = np.repeat(prefix, 2, axis=1)
        limited_gains(two, 2, (0.0, 0.0), node, rules, monotone, own)
        same_bits(found[i, 3], own[0])
        if reg_lambda > 0:
            plain_gains(prefix, 1, (0.0, 0.0), node, rules, own)
            same_bits(found[i, 4], own[0])
    is_allowed = np.isfinite(found[:, 3])
    same_bits(found[is_allowed, 3] - found[is_allowed, 5], gain[is_allowed])
    assert 0 < is_allowed.sum()


def _integers(rng: np.random.Generator, n: int, sign: int) -> Any:
    """Integers of all sizes below 2**52, with zeros among them."""
    values = rng.integers(0, 2 ** rng.integers(0, 52, n, np.int64))
    return values * rng.choice([-1, 1], n) if sign else values


def same_bits(found: Any, expected: Any) -> None:
    """Equal to the last bit, signs of zeros included."""
    np.testing.assert_array_equal(np.asarray(found).view(np.int64), np.asarray(expected, np.float64).view(np.int64))


@pytest.mark.parametrize("width", range(1, 33))
def test_symbols_of_every_width(runtime: Runtime, width: int, rng: np.random.Generator) -> None:
    n = 200
    values = rng.integers(0, 2**width, n, np.uint64).astype(np.uint32)
    values[:2] = 0, 2**width - 1
    words = np.zeros(n_words(n * width), np.uint32)
    pack.pack_stream(values, width, 0, n, words.view(np.uint8))
    out = runtime.xp.zeros(n, np.uint32)
    places = np.arange(n, dtype=np.uint64) * np.uint64(width)
    launch(runtime, "symbols", n, words, places, np.full(n, width, np.uint32), n, out)
    np.testing.assert_array_equal(to_host(out), values)
