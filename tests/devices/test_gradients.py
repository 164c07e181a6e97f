"""Quantized gradients against their naive twin, and what their rounding promises."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout
from reference import gradients as reference

from daskboost.cluster.coordinator import _scale
from daskboost.devices.cpu.gradients import largest
from daskboost.devices.cpu.rows import CpuRows, Rounding


def rows_of(sizes: list[int], first_rows: list[int], threads: int) -> CpuRows:
    return CpuRows(lambda: (), sizes, [[(0, first)] for first in first_rows], make_layout([2]), EagerThreads(threads))


def take(pair: tuple[Any, Any], chunk: int) -> tuple[Any, Any]:
    return pair


def rounding_for(g: Any, h: Any, share: float) -> Rounding:
    scales = reference.scale(float(np.abs(g).max())), reference.scale(float(h.max()))
    return Rounding(*scales, reference.key(3, 1), reference.key(3, 2), int(np.ceil(share * 2**32)))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
def test_equals_the_naive_twin(share: float, threads: int, rng: np.random.Generator) -> None:
    sizes, first_rows = [1, 0, 700, 64], [5, 6, 2**40, 2**63 - 1]
    g = [rng.normal(size=(n, 3)).astype(np.float32) for n in sizes]
    h = [rng.random((n, 3)).astype(np.float32) for n in sizes]
    rounding = rounding_for(np.concatenate(g), np.concatenate(h), share)
    rows = rows_of(sizes, first_rows, threads)
    sums = rows.start_tree(lambda chunk: (g[chunk][:, 1], h[chunk][:, 1]), rounding)
    total = [0, 0]
    for index, chunk in enumerate(rows.chunks):
        expected = reference.quantize(g[index][:, 1], h[index][:, 1], rounding, first_rows[index])
        pairs = chunk.pairs[: chunk.kept]
        assert list(zip(chunk.order, pairs >> 16, pairs & 0xFFFF, strict=False))[: chunk.kept] == expected
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
        g, h = rows.chunks[0].pairs >> 16, rows.chunks[0].pairs & 0xFFFF
        assert 16383 <= g[0] <= 32767 and -32767 <= g[1] <= -16383, top
        assert 16383 <= h[0] <= 32767, top
        assert g[2] == h[2] == 0


@pytest.mark.parametrize("top", [1e-45, 3e-7, 0.25, 1.0, 1.9999999, 32767.0, 32767.5, 1e30])
def test_scale_is_the_largest_power_of_two_that_fits(top: float) -> None:
    assert _scale(top) == reference.scale(top)
    assert top * _scale(top) <= 32767 < 2 * top * _scale(top)


def test_no_gradients_have_scale_one() -> None:
    assert _scale(0.0) == reference.scale(0.0) == 1


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
