"""Splits of sparse rows found in sorted entries are those found in histograms, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, csr, make_layout, make_pairs, make_rows, put_rows, segments_of
from devices.test_sparse_histogram import slots_added

from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.feature_sizes import FeatureSizes
from daskboost.devices.gpu.chunk_rows import ChunkRows
from daskboost.devices.gpu.entry_search import EntrySearch
from daskboost.devices.gpu.runtime import Runtime, to_host
from daskboost.devices.gpu.sorted_entries import TILE, entry_tiles, most_sums, most_tiles
from daskboost.devices.gpu.split import Level, SplitKernels
from daskboost.devices.gpu.views import DeviceLayout, SparseView
from daskboost.devices.set_size import SetSize
from daskboost.dtypes import Int64
from daskboost.tree.device_trees import regular_of
from daskboost.tree.split import OpenNodes, SplitRules, SplitSearch

UNITS = (2.0**-9, 2.0**-11)


def sparse_symbols(rng: np.random.Generator, n_rows: int, n_bins: list[int], density: list[float]) -> Any:
    """Features that are there in shares of the rows."""
    symbols = rng.integers(0, np.array(n_bins), (n_rows, len(n_bins)))
    return np.where(rng.random(symbols.shape) < np.array(density), symbols, np.array(n_bins))


def rules_for(n_features: int, reg_lambda: float = 1.0, least_h: float = 0.0) -> SplitRules:
    return SplitRules(reg_lambda, 0.0, 0.0, least_h, np.zeros(n_features, np.int32), False)


def searched(runtime: Runtime, layout: SlotLayout, symbols: Any, segments: list[list[int]], g: Any, h: Any,
             rules: SplitRules, allowed: Any, data: str, absent: tuple[int, ...] = ()) -> Int64:  # fmt: skip
    """What the kernels find; `absent` : nodes that are not searched."""
    xp, device_layout = runtime.xp, DeviceLayout(runtime, layout)
    view = SparseView(device_layout, *csr(symbols, layout), copy_columns=False, sort_entries=True)
    rows = make_rows(view, len(symbols), layout, Threads(1), data)
    put_rows(rows.chunks[0], segments, g, h)
    nodes = np.arange(len(segments), dtype=np.int32)
    nodes[list(absent)] = -1
    sums = np.array([[g[own].sum(), h[own].sum()] for own in segments], np.int64)
    level = Level(
        xp.asarray((nodes >= 0).astype(np.uint64)), xp.zeros(len(nodes), np.uint64), xp.zeros(len(nodes), np.uint64),
        xp.asarray(sums), xp.zeros((len(nodes), 2)), xp.asarray(np.asarray(allowed, np.uint8)[None]), len(nodes),
        xp.asarray(np.array(UNITS)), len(nodes),
    )  # fmt: skip
    assert view.sorted_entries is not None
    search = EntrySearch(SplitKernels(device_layout), view.sorted_entries, len(nodes))
    chunk_rows = ChunkRows(rows, view, rows.chunks[0], in_order=False)
    found = search.best_per_node(level, regular_of(rules), xp.asarray(nodes), chunk_rows, is_root=False)
    return to_host(found)


def expected_of(layout: SlotLayout, symbols: Any, segments: list[list[int]], g: Any, h: Any, rules: SplitRules,
                allowed: Any) -> Any:  # fmt: skip
    """What the CPU finds in histograms."""
    ids = np.arange(1, len(segments) + 1, dtype=np.int32)
    sums = np.array([[g[own].sum(), h[own].sum()] for own in segments], np.int64)
    limits = np.tile([-np.inf, np.inf], (len(segments), 1))
    every = np.asarray(allowed, np.uint8)[None]
    nodes = OpenNodes(ids, np.full(len(ids), -1, np.int32), ids, sums, limits, every, UNITS)
    search = SplitSearch(layout, rules, EagerThreads(1), (0, len(layout.n_bins)))
    return search.search(nodes, slots_added(segments, symbols, layout, g, h))


def assert_found(found: Int64, expected: Any, absent: tuple[int, ...] = ()) -> None:
    """Where no split gains anything, none needs to be named."""
    gains = np.ascontiguousarray(found[:, 0]).view(np.float64)
    n_compared = 0
    for node, gain in enumerate(expected.gain):
        if node in absent:
            continue
        if gain <= 0:
            assert gains[node] <= 0
            continue
        n_compared += 1
        left = expected.left[node].tolist()
        assert [gains[node], *found[node, 1:].tolist()] == [
            gain, expected.feature[node], expected.split_bin[node], expected.default_left[node], *left
        ]  # fmt: skip
    assert n_compared, "a test that compares nothing"


@pytest.mark.parametrize("data", ["large", "small"])
@pytest.mark.parametrize("sizes", [[700], [300, 0, 399, 1], [20] * 35])
def test_features_that_share_tiles(sizes: list[int], data: str, runtime: Any, rng: np.random.Generator) -> None:
    n_bins = [1, 40, 256, 3, 700, 2, 90, 1, 5000]
    density = [0.5, 0.02, 0.3, 1.0, 0.9, 0.0, 0.6, 0.01, 0.8]
    layout, symbols = make_layout(n_bins), sparse_symbols(rng, 700, n_bins, density)
    g, h = make_pairs(rng, 700, data)
    segments, rules = segments_of(rng, sizes, 700), rules_for(9, 0.5, 0.1)
    allowed = np.ones(9)
    allowed[3] = 0
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed)
    assert_found(searched(runtime, layout, symbols, segments, g, h, rules, allowed, data), expected)


@pytest.mark.parametrize("data", ["large", "small"])
@pytest.mark.parametrize("n_bins", [[4000], [1], [3, 2, 300]])
def test_features_of_more_entries_than_a_tile(n_bins: list[int], data: str, runtime: Any,
                                              rng: np.random.Generator) -> None:  # fmt: skip
    """Slices that end within a bin, bins of several slices, and nodes that have nothing in the last of them."""
    n = TILE + 150
    layout, symbols = make_layout([*n_bins, 5]), sparse_symbols(rng, n, [*n_bins, 5], [0.9] * len(n_bins) + [0.01])
    g, h = make_pairs(rng, n, data)
    few = np.sort(rng.choice(n, 60, replace=False)).tolist()
    others = np.setdiff1d(np.arange(n), few)
    segments = [few[:30], others[: n // 2].tolist(), few[30:], others[n // 2 :].tolist()]
    rules, allowed = rules_for(len(layout.n_bins)), np.ones(len(layout.n_bins))
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed)
    assert_found(searched(runtime, layout, symbols, segments, g, h, rules, allowed, data), expected)


def test_rows_that_end_early_in_a_bin_of_many_slices(runtime: Any, rng: np.random.Generator) -> None:
    """The first rows have the split's bin in the first slice only; it ends two slices later."""
    n = 2 * TILE + 10
    layout, symbols = make_layout([2]), np.zeros((n, 1), np.int64)
    symbols[-20:] = 1
    symbols[:10] = 2  # missing
    segments = [[*range(40), *range(n - 20, n)], list(range(40, n - 20))]
    g, h = make_pairs(rng, n)
    g[:] = np.where(symbols[:, 0] == 1, -9, 5)
    rules, allowed = rules_for(1), np.ones(1)
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed)
    assert expected.split_bin[0] == 0
    assert_found(searched(runtime, layout, symbols, segments, g, h, rules, allowed, "large"), expected)


def test_ties_go_to_the_first_feature(runtime: Any, rng: np.random.Generator) -> None:
    """Equal and mirrored columns, in one tile and in others; missing values go right."""
    one = sparse_symbols(rng, 90, [6], [0.7])
    symbols = np.repeat(one, 60, axis=1)
    symbols[:, 1::2] = np.where(symbols[:, 1::2] < 6, 5 - symbols[:, 1::2], 6)
    layout, (g, h) = make_layout([6] * 60), make_pairs(rng, 90)
    segments, rules, allowed = [list(range(0, 50)), list(range(50, 90))], rules_for(60), np.ones(60)
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed)
    assert expected.feature.tolist() == [0, 0]
    assert_found(searched(runtime, layout, symbols, segments, g, h, rules, allowed, "large"), expected)


def test_ties_within_a_feature_go_to_the_lowest_bin(runtime: Any) -> None:
    """Bins that mirror each other; then values of one bin and missing ones, whose splits mirror each other too."""
    symbols = np.array([[0, 0], [1, 0], [2, 1], [0, 1], [1, 1], [2, 1]])
    g, h = np.array([40, 0, -40, 40, 0, -40]), np.full(6, 64)
    for n_bins in ([3, 2], [2, 2]):
        layout, rules, allowed = make_layout(n_bins), rules_for(2), np.array([1, 0])
        expected = expected_of(layout, symbols, [list(range(6))], g, h, rules, allowed)
        assert (expected.split_bin[0], expected.default_left[0]) == (0, 0)
        assert_found(searched(runtime, layout, symbols, [list(range(6))], g, h, rules, allowed, "large"), expected)


def test_nodes_that_are_not_there(runtime: Any, rng: np.random.Generator) -> None:
    layout, symbols = make_layout([30, 2]), sparse_symbols(rng, 500, [30, 2], [0.2, 0.99])
    g, h = make_pairs(rng, len(symbols))
    segments = segments_of(rng, [200, 150, 150], len(symbols))
    rules, allowed = rules_for(2), np.ones(2)
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed)
    found = searched(runtime, layout, symbols, segments, g, h, rules, allowed, "large", absent=(1,))
    assert_found(found, expected, absent=(1,))


def test_tiles_hold_whole_features_or_slices() -> None:
    counts = np.array([0, 5, TILE - 5, 1, 0, 3 * TILE + 1, 7, TILE + 1, 0])
    tiles = entry_tiles(np.cumsum(counts))
    ends = np.cumsum(counts).tolist()
    assert tiles[0].tolist() == [0, TILE, 0, 3, -1, -1]
    assert tiles[1].tolist() == [TILE, TILE + 1, 3, 5, -1, -1]
    large = tiles[2:6]
    assert large[:, 4].tolist() == [0, 1, 2, 3]
    assert (large[:, 5] == 4).all()
    assert (large[0, 0], large[-1, 1]) == (ends[4], ends[5])
    assert tiles[7:, 4].tolist() == [5, 6]
    np.testing.assert_array_equal(tiles[1:, 0], tiles[:-1, 1])
    assert (tiles[:, 1] - tiles[:, 0] <= TILE).all()
    assert tiles[-1, 1] == ends[-1]


@pytest.mark.parametrize("counts", [
    [1, TILE + 1] * 50, [TILE - 1, 2] * 50, [TILE + 1] * 50, [1, 2 * TILE + 1] * 30, [1], [TILE + 1], [0, 0, 3]
], ids=lambda counts: f"{len(counts)} features of {counts[:2]}")  # fmt: skip
def test_tiles_and_sums_are_no_more_than_planned(counts: list[int]) -> None:
    tiles = entry_tiles(np.cumsum(counts))
    assert len(tiles) <= most_tiles(sum(counts)) <= 2 * len(tiles) + 2
    n_sums = max(tiles[:, 5].max() + 1, 0)
    assert n_sums == most_sums(*FeatureSizes.of(np.array(counts)).above(TILE))
    assert n_sums <= most_sums(*SetSize(1, len(counts), 0, n_entries=sum(counts)).features_above(TILE))
