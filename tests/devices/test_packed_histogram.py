"""Histograms whose two sums share a word: equal to the naive twin, up to the last value that the word's halves hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import LARGE, declared, make_layout, make_pairs, make_symbols, segments_of
from devices.histograms import build, dense, sparse
from devices.test_histogram import naive
from hypothesis import given
from hypothesis import strategies as st

from daskboost.cluster.rounding import PACKED_LIMIT
from daskboost.devices.gpu.cuda import get_runtime
from daskboost.devices.gpu.feature_groups import SKEWED_BINS, SKEWED_COLUMNS, feature_groups
from daskboost.devices.gpu.runtime import Runtime

EDGE = 2**12 - 1
"""The largest |g| that stays in shared memory at a spill."""
ROWS = 7168
"""Rows between two spills."""


def constant(name: str) -> int:
    """A number of `kernels/packed.cuh`."""
    return int(eval(declared("packed.cuh", f"i32 {name}"), {"__builtins__": {}}))


def test_both_sides_know_the_same_limit() -> None:
    assert constant("PACKED_LIMIT") == PACKED_LIMIT
    assert (constant("PACKED_G_FROM"), constant("PACKED_ROWS")) == (EDGE + 1, ROWS)


@given(st.integers(-EDGE, EDGE), st.data())
def test_words_hold_all_rows_between_two_spills(g: int, data: st.DataObject) -> None:
    """Whatever a spill left, and whatever rows come: both sums are read back; one row more could be one too many."""
    h = data.draw(st.integers(0, constant("PACKED_H_FROM") - 1))
    more_g = data.draw(st.integers(-PACKED_LIMIT * ROWS, PACKED_LIMIT * ROWS))
    more_h = data.draw(st.integers(0, PACKED_LIMIT * ROWS))
    assert taken_apart(g + more_g, h + more_h) == (g + more_g, h + more_h)
    for sign in (-1, 1):
        assert taken_apart(g + sign * PACKED_LIMIT * ROWS, h + more_h) == (g + sign * PACKED_LIMIT * ROWS, h + more_h)
    one_more = EDGE + PACKED_LIMIT * (ROWS + 1)
    assert taken_apart(one_more, 0) != (one_more, 0)


def taken_apart(g: int, h: int) -> tuple[int, int]:
    """The halves of the word of two sums."""
    word = np.array((g * 65536 + h) & 0xFFFFFFFF, np.uint32).view(np.int32)
    return int(word >> 16), int(word & 0xFFFF)


def packed_pairs(rng: np.random.Generator, n_rows: int) -> tuple[Any, Any]:
    return rng.integers(-PACKED_LIMIT, PACKED_LIMIT + 1, n_rows), rng.integers(0, PACKED_LIMIT + 1, n_rows)


SHAPES = {
    "full groups": [3, 9, 250] * 20, "one feature": [40], "few columns": [250, 3, 7, 60, 1, 2], "two groups": [5] * 45,
    **{f"skewed {columns}": [200, 64, 3, 9] * (columns // 4) for columns in SKEWED_COLUMNS},
    "skewed 64 bins": [60, 3] * 14, "skewed 128 bins": [120, 3, 9] * 9,
}  # fmt: skip
"""Bins of features, of which some fill a group's columns and others leave room."""


@pytest.mark.parametrize("shape, in_order, turned", [
    *((shape, in_order, False) for shape in SHAPES for in_order in (False, True)),
    *((shape, True, True) for shape in SHAPES if "skewed" in shape),
])  # fmt: skip
def test_equals_the_naive_twin(shape: str, in_order: bool, turned: bool, runtime: Runtime, rng: np.random.Generator
                               ) -> None:  # fmt: skip
    n_bins, n_rows = SHAPES[shape], 400
    layout, symbols = make_layout(n_bins), make_symbols(rng, n_rows, n_bins)
    g, h = packed_pairs(rng, n_rows)
    segments = [list(range(n_rows))] if in_order else segments_of(rng, [150, 0, 1, 200], n_rows)
    view = dense(runtime, symbols, layout, turn_rows=turned)
    found = build(view, layout, segments, g, h, in_order=in_order, packed=True)
    np.testing.assert_array_equal(found, naive("dense", symbols, layout, segments, g, h))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("most_bins", SKEWED_BINS)
@pytest.mark.parametrize("columns", SKEWED_COLUMNS)
@pytest.mark.parametrize("large", [LARGE[1], pytest.param(None, marks=pytest.mark.gpu)])
def test_every_kernel_of_narrow_rows(large: Any, columns: int, most_bins: int, packed: bool, rng: np.random.Generator
                                     ) -> None:  # fmt: skip
    """Those of many bins need more shared memory than the emulation has by default."""
    runtime, n_bins = large or get_runtime(), [most_bins - 1] * columns
    (group,) = feature_groups(np.array(n_bins) + 1, 1, runtime.shared_bytes)
    assert group.skewed(1, runtime.shared_bytes) == (columns, most_bins)
    layout, symbols = make_layout(n_bins), make_symbols(rng, 300, n_bins)
    g, h = packed_pairs(rng, 300) if packed else make_pairs(rng, 300)
    for in_order, turned in ((False, False), (True, False), (True, True)):
        segments = [list(range(300))] if in_order else segments_of(rng, [150, 0, 1, 100], 300)
        view = dense(runtime, symbols, layout, turn_rows=turned)
        found = build(view, layout, segments, g, h, in_order=in_order, packed=packed)
        np.testing.assert_array_equal(found, naive("dense", symbols, layout, segments, g, h))


@pytest.mark.parametrize("n_features, in_order, turned", [
    *((n_features, in_order, False) for n_features in (6, 26, 32) for in_order in (False, True)), (26, True, True),
])  # fmt: skip
@pytest.mark.parametrize("sign", [-1, 1])
def test_no_sum_overflows(n_features: int, in_order: bool, turned: bool, sign: int, runtime: Runtime) -> None:
    """All rows lie in one bin: what may stay at a spill stays, and then come the largest rows there are."""
    n_rows = 5 * ROWS + 77  # blocks take half of them each
    layout, symbols = make_layout([2] * n_features), np.ones((n_rows, n_features), np.uint8)
    g, h = np.full(n_rows, PACKED_LIMIT), np.full(n_rows, PACKED_LIMIT)
    g[:ROWS] = np.clip(EDGE - PACKED_LIMIT * np.arange(ROWS), 0, PACKED_LIMIT)
    g *= sign
    segments = [list(range(n_rows))]
    view = dense(runtime, symbols, layout, turn_rows=turned)
    found = build(view, layout, segments, g, h, in_order=in_order, packed=True)
    expected = np.zeros((1, layout.n_slots, 2), np.int64)
    expected[0, 1::3] = g.sum(), h.sum()
    np.testing.assert_array_equal(found, expected)


def test_wide_symbols_and_sparse_rows_have_two_sums(runtime: Runtime, rng: np.random.Generator) -> None:
    """Few levels or many, theirs are sums of 32 bits."""
    n_bins = [300, 20]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 300, n_bins)
    g, h = packed_pairs(rng, 300)
    segments = segments_of(rng, [100, 150], 300)
    wide, csr = dense(runtime, symbols, layout, np.uint16), sparse(runtime, symbols, layout)
    for name, view in (("dense", wide), ("csr", csr)):
        found = build(view, layout, segments, g, h, packed=True)
        np.testing.assert_array_equal(found, naive(name, symbols, layout, segments, g, h))
