"""Quantized gradients against their naive twin, and what their rounding promises."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout, unpack
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import gradients as reference
from strategies.roundings import make_rounding

from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.cpu.gradients import largest
from daskboost.devices.cpu.rows import CpuRows, Rounding
from daskboost.devices.cpu.scales import scale
from daskboost.dtypes import Float32
from daskboost.fit.messages import GradientRange
from daskboost.fit.scales import QUANTUM_LIMIT, SUM_LIMIT
from daskboost.params import TrainParams


def rows_of(sizes: list[int], first_rows: list[int], threads: int, weights: list[Float32] | None = None) -> CpuRows:
    pieces = [[(0, first)] for first in first_rows]
    return CpuRows(lambda: (), sizes, pieces, make_layout([2]), EagerThreads(threads), weights)


def take(pair: tuple[Any, Any], chunk: int) -> tuple[Any, Any]:
    return pair


def rounding_for(g: Any, h: Any, share: float, weight: Float32 | None = None) -> Rounding:
    scale_g, scale_h, scale_w = reference.scales(g, h, weight)
    return Rounding(scale_g, scale_h, reference.key(3, 1), reference.key(3, 2), int(np.ceil(share * 2**32)), scale_w)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
def test_equals_the_naive_twin(share: float, threads: int, small: bool, rng: np.random.Generator) -> None:
    sizes, first_rows = [1, 0, 700, 64], [5, 6, 2**40, 2**63 - 1]
    g = [rng.normal(size=(n, 3)).astype(np.float32) for n in sizes]
    h = [rng.random((n, 3)).astype(np.float32) for n in sizes]
    weights = [(rng.integers(0, 3, n) * rng.random(n)).astype(np.float32) for n in sizes] if small else None
    whole = None if weights is None else np.concatenate(weights)
    rounding = rounding_for(np.concatenate(g)[:, 1], np.concatenate(h)[:, 1], share, whole)
    rows = rows_of(sizes, first_rows, threads, weights)
    sums = rows.start_tree(lambda chunk: (g[chunk][:, 1], h[chunk][:, 1]), rounding)
    total = [0, 0]
    for index, chunk in enumerate(rows.chunks):
        expected = reference.quantize(
            g[index][:, 1], h[index][:, 1], rounding, first_rows[index], None if weights is None else weights[index]
        )
        assert list(zip(chunk.order[: chunk.kept], *unpack(chunk.pairs[: chunk.kept]), strict=True)) == expected
        assert chunk.bounds.tolist() == [[0, len(expected)]]
        total = [total[i] + sum(pair[i + 1] for pair in expected) for i in range(2)]
    assert list(sums) == total


def test_extreme_gradients_fit_15_bits() -> None:
    for top in (1e-45, 1e-30, 0.99999994, 1.0, 2.0, 32767.0, 32767.5, 32768.0, 3.4e38):
        values = np.array([top, -top, 0], np.float32)
        rows = rows_of([3], [0], 1)
        rounding = rounding_for(values, np.abs(values), 1)
        pair = (values, np.abs(values))
        rows.start_tree(partial(take, pair), rounding)
        g, h = unpack(rows.chunks[0].pairs)
        assert 16383 <= g[0] <= 32767 and -32767 <= g[1] <= -16383, top
        assert 16383 <= h[0] <= 32767, top
        assert g[2] == h[2] == 0


@pytest.mark.parametrize("limit", [QUANTUM_LIMIT, SUM_LIMIT, SMALL_ROWS])
@pytest.mark.parametrize("top", [1e-45, 3e-7, 0.25, 1.0, 1.9999999, 32767.0, 32767.5, 1e30])
def test_scale_is_the_largest_power_of_two_that_fits(top: float, limit: int) -> None:
    assert scale(top, limit) == reference.scale(top, limit)
    assert top * scale(top, limit) <= limit < 2 * top * scale(top, limit)


def test_no_gradients_have_scale_one() -> None:
    assert scale(0.0, QUANTUM_LIMIT) == reference.scale(0.0) == 1


WEIGHTS = st.floats(0, 2.0**60, width=32) | st.integers(0, 5) | st.sampled_from([1e-45, 1e-30, 3e38])
VALUES = st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from([-1.0, 1.0, 0.0, 1e-45])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(VALUES, WEIGHTS), min_size=1, max_size=20), st.sampled_from([1, 7, 200]))
@example([(1.0, 1.0)], SMALL_ROWS)
@example([(-1.0, 0.99999994)], SMALL_ROWS)
@example([(3.0, 1e30), (1.0, 0.5)], SMALL_ROWS // 2)
def test_all_rows_of_small_data_fit_31_bits(rows: list[tuple[float, float]], times: int) -> None:
    """Whichever rows a histogram adds, and whatever the weights."""
    g, weight = np.tile(np.array(rows, np.float32), (times, 1)).T.copy()
    if not weight.any():
        weight[0] = 1
    tops = np.array([largest(g * (weight > 0), 0, len(g))])
    total = math.fsum(weight.tolist())
    rounding = make_rounding(TrainParams(), "any", 0, 0, [GradientRange(tops, tops)], total)
    chunks = rows_of([len(g)], [0], 1, [weight])
    chunks.start_tree(lambda _: (g, np.abs(g)), rounding)
    found_g, found_h = unpack(chunks.chunks[0].pairs)
    assert np.abs(found_g).sum() == found_h.sum() < 2**31
    assert (np.abs(found_g[weight == 0]) == 0).all()
    error = found_g * rounding.units[0] - g.astype(np.float64) * weight
    quanta = rounding.units[0] * (0.5 + 0.5 * weight.astype(np.float64) * rounding.scale_w)
    assert (np.abs(error) <= quanta * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(VALUES, st.integers(0, 9)), min_size=1, max_size=30))
def test_a_weight_counts_rows(rows: list[tuple[float, int]]) -> None:
    """Integer weights and repeated rows of small data have the same sums, bit for bit."""
    g, weight = np.array(rows, np.float32).T.copy()
    if not weight.any():
        weight[0] = 1
    repeated = np.repeat(g, weight.astype(int))
    sums = []
    for values, weights in ((g, weight), (repeated, np.ones_like(repeated))):
        tops = np.array([largest(values * (weights > 0), 0, len(values))])
        rounding = make_rounding(TrainParams(), "any", 0, 0, [GradientRange(tops, tops)], float(weights.sum()))
        chunks = rows_of([len(values)], [0], 1, [weights])
        sums.append((chunks.start_tree(partial(take, (values, np.abs(values))), rounding), rounding.units))
    assert sums[0] == sums[1]


def test_rounding_is_unbiased() -> None:
    """A hundredth of a quantum in every row must not vanish, as it would under rounding to nearest."""
    n = 200_000
    g = np.full(n, 0.01, np.float32)
    rows = rows_of([n], [0], 1)
    sum_g, sum_h = rows.start_tree(lambda _: (g, -g * 0), Rounding(1.0, 1.0, reference.key(0, 1), 0, 2**32))
    assert abs(sum_g - 0.01 * n) < 5 * np.sqrt(0.01 * n)
    assert sum_h == 0


def test_a_share_of_the_rows_is_sampled() -> None:
    n = 100_000
    g = np.ones(n, np.float32)
    rows = rows_of([n], [0], 2)
    rows.start_tree(lambda _: (g, g), Rounding(1.0, 1.0, 1, reference.key(9), int(0.3 * 2**32)))
    assert abs(rows.chunks[0].kept - 0.3 * n) < 5 * np.sqrt(0.21 * n)
    kept = rows.chunks[0].order[: rows.chunks[0].kept].astype(np.int64)
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("values, expected", [
    ([], 0.0), ([0.0, -0.0], 0.0), ([1, -3, 2], 3.0), ([1, np.nan, 2], np.nan), ([np.nan], np.nan),
    ([-np.inf, 1], np.inf),
])  # fmt: skip
def test_largest(values: list[float], expected: float) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_equal(largest(array, 0, len(array)), expected)
