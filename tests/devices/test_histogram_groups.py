"""What histograms on a GPU have of their own: groups of features, shares of blocks, rows in order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from devices.backends import LARGE, make_layout, make_pairs, make_symbols, segments_of
from devices.histograms import build, dense, sparse
from reference import histogram as reference

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows import views
from daskboost.devices.gpu.rows.feature_groups import (
    LEAST_COLUMNS,
    MOST_GROUP_BYTES,
    SKEWED_BINS,
    SKEWED_COLUMNS,
    FeatureGroups,
    feature_groups,
)
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.trees import sparse_columns
from daskboost.dtypes import Int64


def naive(symbols: Any, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any, missing: bool = True) -> Int64:
    return np.stack([reference.histogram(symbols, rows, g[rows], h[rows], layout, missing) for rows in segments])


@pytest.mark.parametrize("dtype, data", [
    (np.uint8, "large"), (np.uint8, "small"), (np.uint16, "large"), (np.uint16, "small"),
])  # fmt: skip
@pytest.mark.parametrize("n_features", [1, 5, 9, 17, 28, 33, 45])
def test_features_of_any_number(n_features: int, dtype: Any, data: str, runtime: Any, rng: np.random.Generator) -> None:
    n_bins = [int(n) for n in rng.integers(1, 9, n_features)]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 150, n_bins)
    g, h = make_pairs(rng, 150, data)
    segments = segments_of(rng, [97, 3, 0, 50], 150)
    found = build(dense(runtime, symbols, layout, dtype), layout, segments, g, h, data=data)
    np.testing.assert_array_equal(found, naive(symbols, layout, segments, g, h))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("n_features, most_bins", [(17, 255), (20, 9), (23, 100), (28, 255)])
@pytest.mark.parametrize("large", [*LARGE, pytest.param(None, marks=pytest.mark.gpu)])
def test_rows_in_order_of_fewer_columns_than_banks(large: Any, n_features: int, most_bins: int, turned: bool,
                                                   rng: np.random.Generator) -> None:  # fmt: skip
    """Of a copy, too, whose tiles of 32 rows nodes begin and end in."""
    n_bins = [most_bins, *(int(n) for n in rng.integers(1, most_bins + 1, n_features - 1))]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 330, n_bins)
    g, h = make_pairs(rng, 330)
    ends = [0, 3, 3, 211, 212, 330]
    segments = [list(range(*each)) for each in pairwise(ends)]
    view = dense(large or get_runtime(), symbols, layout, turn_rows=turned)
    found = build(view, layout, segments, g, h, in_order=True)
    np.testing.assert_array_equal(found, naive(symbols, layout, segments, g, h))


@pytest.mark.parametrize("most_bins", SKEWED_BINS)
@pytest.mark.parametrize("columns", SKEWED_COLUMNS)
@pytest.mark.parametrize("large", [LARGE[1], pytest.param(None, marks=pytest.mark.gpu)])
def test_every_kernel_of_narrow_rows(large: Any, columns: int, most_bins: int, rng: np.random.Generator) -> None:
    """Kernels of many bins need more shared memory than the emulation has by default."""
    runtime, n_bins = large or get_runtime(), [most_bins - 1] * columns
    (group,) = feature_groups(np.array(n_bins) + 1, 1, runtime.shared_bytes)
    assert group.skewed(runtime.shared_bytes) == (columns, most_bins)
    layout, symbols = make_layout(n_bins), make_symbols(rng, 300, n_bins)
    g, h = make_pairs(rng, 300)
    for in_order, turned in ((False, False), (True, False), (True, True)):
        segments = [list(range(300))] if in_order else segments_of(rng, [150, 0, 1, 100], 300)
        view = dense(runtime, symbols, layout, turn_rows=turned)
        found = build(view, layout, segments, g, h, in_order=in_order)
        np.testing.assert_array_equal(found, naive(symbols, layout, segments, g, h))


@pytest.mark.parametrize("kind", ["skewed", "turned", "dense", "sparse in shared memory", "sparse by row"])
@pytest.mark.parametrize("large", [*LARGE, pytest.param(None, marks=pytest.mark.gpu)])
def test_rows_in_order_of_several_trees(large: Any, kind: str, rng: np.random.Generator,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Each tree has all rows, in places of its own with pairs of its own."""
    n, n_bins = 210, [250, *([9] * 27)] if kind in ("skewed", "turned") else [3, 1, 17, 8]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n, n_bins)
    if kind == "sparse by row":
        monkeypatch.setattr("daskboost.devices.gpu.rows.feature_groups.MOST_GROUP_BYTES", 64)
        monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 10**6)
    runtime = large or get_runtime()
    sequence = partial(dense, turn_rows=kind == "turned")
    view: Any = (sparse if "sparse" in kind else sequence)(runtime, symbols, layout)
    assert view.joins_trees
    g, h = make_pairs(rng, 3 * n)
    segments = [list(range(*each)) for each in pairwise([0, n, n + 70, n + 71, 2 * n, 3 * n])]
    expected = naive(np.tile(symbols, (3, 1)), layout, segments, g, h, "sparse" not in kind)
    np.testing.assert_array_equal(build(view, layout, segments, g, h, in_order=True), expected)


@pytest.mark.parametrize("large", [*LARGE, pytest.param(None, marks=pytest.mark.gpu)])
def test_many_nodes_and_groups_halve_the_blocks(large: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:  # fmt: skip
    monkeypatch.setattr(views, "MANY_PIECES", 0.05)  # of all multiprocessors of a GPU, too
    n_bins = [int(n) for n in rng.integers(1, 256, 70)]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 300, n_bins)
    g, h = make_pairs(rng, 300)
    segments = segments_of(rng, [100, 3, 0, 150, 40], 300)
    view = dense(large or get_runtime(), symbols, layout)
    found = build(view, layout, segments, g, h)
    np.testing.assert_array_equal(found, naive(symbols, layout, segments, g, h))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_positions_may_be_rows_and_nodes_may_be_absent(kind: str, runtime: Any, rng: np.random.Generator) -> None:
    n_bins = [3, 1, 17, 8]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 210, n_bins)
    g, h = make_pairs(rng, 210)
    view: Any = dense(runtime, symbols, layout) if kind == "dense" else sparse(runtime, symbols, layout)
    ends = [0, 120, 120, 121, 210]
    segments = [list(range(*each)) for each in pairwise(ends)]
    expected = naive(symbols, layout, segments, g, h, kind == "dense")
    np.testing.assert_array_equal(build(view, layout, segments, g, h, in_order=True), expected)
    found = build(view, layout, segments, g, h, [-1, 3, -1, -1, 0, 1, -1], in_order=True)
    nothing = np.zeros_like(expected[0])
    wanted = [nothing, expected[3], nothing, nothing, expected[0], nothing, nothing]
    np.testing.assert_array_equal(found, np.stack(wanted))
    assert not build(view, layout, segments, g, h, [-1, -1]).any()


@pytest.mark.parametrize("pair", [(-(2**15), 2**15 - 1), (2**15 - 1, 2**15 - 1)])
@pytest.mark.parametrize("n_bins", [300, 70_000 // 2], ids=["one group", "groups of bins"])
def test_a_block_hands_over_sums_before_they_overflow(n_bins: int, pair: tuple[int, int], runtime: Any) -> None:
    """One column of 2-byte symbols: all rows of a block in one cell."""
    n_rows = 2 * 70_000  # blocks of the emulation: two
    layout, symbols = make_layout([n_bins]), np.full((n_rows, 1), n_bins - 1)
    view = dense(runtime, symbols, layout, np.uint16)
    g, h = np.full(n_rows, pair[0]), np.full(n_rows, pair[1])
    found = build(view, layout, [list(range(n_rows))], g, h, in_order=True)[0]
    assert found[n_bins - 1].tolist() == [n_rows * pair[0], n_rows * pair[1]]
    assert np.count_nonzero(found.any(axis=1)) == 1


def members(groups: list[FeatureGroups]) -> list[tuple[int, int, int, int]]:
    """(columns, first, features, bins) of all groups."""
    return [(each.columns, int(f), int(n), int(bins)) for each in groups for _, f, n, _, bins in each.groups]


def test_feature_groups() -> None:
    kib = 1024
    assert members(feature_groups(np.full(28, 256), 1, 64 * kib)) == [(32, 0, 28, 256)]
    found = members(feature_groups(np.full(200, 256), 1, 227 * kib))
    assert found == [*((32, 32 * k, 32, 256) for k in range(6)), (8, 192, 8, 256)]
    assert members(feature_groups(np.full(100, 64), 1, 64 * kib))[-1] == (4, 96, 4, 64)
    assert members(feature_groups(np.array([1000] * 8 + [60_000]), 2, 64 * kib)) == [
        (8, 0, 8, 1000), *((1, 8, 1, 8192) for _ in range(7)), (1, 8, 1, 60_000 - 7 * 8192),
    ]  # fmt: skip
    assert members(feature_groups(np.array([600] * 20), 2, 227 * kib)) == [(32, 0, 20, 600)]


def test_groups_are_of_one_width_where_few_columns_are_idle() -> None:
    """Unless there is but one group, or features that have no room in a wide one."""
    room, slots = 227 << 10, np.full(1000, 256)
    assert members(feature_groups(slots, 1, room, 23))[-1] == (8, 992, 8, 256)
    assert members(feature_groups(slots, 1, room, 24))[-1] == (32, 992, 8, 256)
    assert members(feature_groups(slots[:8], 1, room, 24)) == [(8, 0, 8, 256)]
    assert members(feature_groups(np.array([9] * 32 + [60_000]), 2, room, 31))[1] == (1, 32, 1, 20480)


def test_groups_that_rows_in_order_skew() -> None:
    def skewed(n_features: int, n_bins: int, shared_kib: int, symbol_bytes: int = 1) -> Any:
        first, *_ = feature_groups(np.full(n_features, n_bins), symbol_bytes, shared_kib << 10)
        return first.skewed(shared_kib << 10)

    assert skewed(28, 256, 227) == (28, 256)
    assert skewed(28, 256, 99) is None
    assert skewed(28, 128, 64) == (28, 128)
    assert skewed(17, 65, 64) == (20, 128)
    assert skewed(21, 3, 64) == (24, 64)
    assert skewed(29, 3, 64) is None
    assert skewed(16, 3, 64) is None
    assert skewed(60, 3, 64) is None
    assert skewed(28, 300, 227, 2) is None


@pytest.mark.parametrize("symbol_bytes, shared_kib", [(1, 64), (1, 227), (2, 64), (2, 99), (2, 227)])
def test_every_bin_is_in_one_group_that_fits(symbol_bytes: int, shared_kib: int, rng: np.random.Generator) -> None:
    for n_features in (1, 3, 31, 32, 64, 77):
        most = 256 if symbol_bytes == 1 else 1 << int(rng.integers(9, 17))
        slots = rng.integers(1, most + 1, n_features)
        counts = [np.zeros(n, int) for n in slots]
        for each in feature_groups(slots, symbol_bytes, shared_kib << 10):
            assert each.columns >= LEAST_COLUMNS[symbol_bytes]
            assert each.shared_bytes <= min(shared_kib << 10, MOST_GROUP_BYTES)
            for _, first, n, low, bins in each.groups:
                assert n <= each.columns and (each.columns == 1 or low == 0)
                for feature in range(first, first + n):
                    counts[feature][low : low + bins] += 1
        assert all((count == 1).all() for count in counts)
