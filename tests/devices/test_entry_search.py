"""Splits of sparse rows found in sorted entries are those found in histograms, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, csr, make_layout, make_pairs, make_rows, put_rows, segments_of
from devices.test_sparse_histogram import slots_added
from reference import split as reference

from daskboost.devices.budget.set_size import FeatureSizes, SparseSet
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.row_state import ChunkRows
from daskboost.devices.gpu.rows.views import DeviceLayout, SparseView
from daskboost.devices.gpu.runtime.collective import Sharing
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.devices.gpu.trees.sorted_entries import TILE, entry_tiles, most_sums, most_tiles
from daskboost.devices.gpu.trees.split import Level, SplitKernels
from daskboost.dtypes import Float64, Int64
from daskboost.tree.split_search import OpenNodes, SplitRules, SplitSearch

UNITS = (2.0**-9, 2.0**-11)
PENALTIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "L1": {"reg_alpha": 0.02},
    "steps": {"max_delta_step": 0.02},
    "monotone": {"directions": (1, -1, 1, 0)},
    "all": {"reg_alpha": 0.3, "max_delta_step": 0.05, "directions": (-1, 1, 0)},
}
"""What leaves gains exact, and trees to the same search."""


def sparse_symbols(rng: np.random.Generator, n_rows: int, n_bins: list[int], density: list[float]) -> Any:
    """Features that are there in shares of the rows."""
    symbols = rng.integers(0, np.array(n_bins), (n_rows, len(n_bins)))
    return np.where(rng.random(symbols.shape) < np.array(density), symbols, np.array(n_bins))


def rules_for(n_features: int, reg_lambda: float = 1.0, least_h: float = 0.0, penalties: str = "plain") -> SplitRules:
    given = {"reg_alpha": 0.0, "max_delta_step": 0.0, "directions": (0,), **PENALTIES[penalties]}
    monotone = np.resize(np.array(given["directions"], np.int32), n_features)
    return SplitRules(reg_lambda, given["reg_alpha"], given["max_delta_step"], least_h, monotone, False)


def limits_for(rules: SplitRules, rng: np.random.Generator, n_nodes: int) -> Float64:
    """Limits of leaf values, as monotone constraints may have set them above; of some nodes on one side of zero."""
    limits = np.tile([-np.inf, np.inf], (n_nodes, 1))
    if rules.monotone.any():
        limits[::2] = np.sort(rng.uniform(0.02, 0.2, (len(limits[::2]), 2))) * [-1, 1]
        limits[1::3] = np.sort(rng.normal(scale=0.1, size=(len(limits[1::3]), 2)))
    return limits


def searched(runtime: Runtime, layout: SlotLayout, symbols: Any, segments: list[list[int]], g: Any, h: Any,
             rules: SplitRules, allowed: Any, limits: Float64, data: str = "large", absent: tuple[int, ...] = (),
             units: tuple[float, float] = UNITS) -> Int64:  # fmt: skip
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
        xp.asarray(sums), xp.asarray(limits), xp.asarray(np.asarray(allowed, np.uint8)[None]), len(nodes),
        xp.asarray(np.array(units)), len(nodes),
    )  # fmt: skip
    assert view.sorted_entries is not None
    search = EntrySearch(SplitKernels(device_layout), view.sorted_entries, len(nodes))
    chunk_rows = ChunkRows(rows, view, rows.chunks[0], Sharing(), in_order=False)
    found = search.best_per_node(level, rules.regular, xp.asarray(nodes), chunk_rows, is_root=False)
    return to_host(found)


def expected_of(layout: SlotLayout, symbols: Any, segments: list[list[int]], g: Any, h: Any, rules: SplitRules,
                allowed: Any, limits: Float64, units: tuple[float, float] = UNITS) -> Any:  # fmt: skip
    """What the CPU finds in histograms."""
    ids = np.arange(1, len(segments) + 1, dtype=np.int32)
    sums = np.array([[g[own].sum(), h[own].sum()] for own in segments], np.int64)
    every = np.asarray(allowed, np.uint8)[None]
    nodes = OpenNodes(ids, np.full(len(ids), -1, np.int32), ids, sums, limits, every, units)
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


def compare(runtime: Runtime, rng: np.random.Generator, layout: SlotLayout, symbols: Any, segments: list[list[int]],
            g: Any, h: Any, rules: SplitRules, allowed: Any = None, data: str = "large", absent: tuple[int, ...] = (),
            units: tuple[float, float] = UNITS) -> Any:  # fmt: skip
    """Hold the kernels to what the CPU finds, which is returned."""
    allowed = np.ones(len(layout.n_bins)) if allowed is None else allowed
    limits = limits_for(rules, rng, len(segments))
    expected = expected_of(layout, symbols, segments, g, h, rules, allowed, limits, units)
    found = searched(runtime, layout, symbols, segments, g, h, rules, allowed, limits, data, absent, units)
    assert_found(found, expected, absent)
    return expected


@pytest.mark.parametrize("data", ["large", "small"])
@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("sizes", [[700], [300, 0, 399, 1], [20] * 35])
def test_features_that_share_tiles(sizes: list[int], penalties: str, data: str, runtime: Any,
                                   rng: np.random.Generator) -> None:  # fmt: skip
    n_bins = [1, 40, 256, 3, 700, 2, 90, 1, 5000]
    density = [0.5, 0.02, 0.3, 1.0, 0.9, 0.0, 0.6, 0.01, 0.8]
    layout, symbols = make_layout(n_bins), sparse_symbols(rng, 700, n_bins, density)
    g, h = make_pairs(rng, 700, data)
    segments, rules = segments_of(rng, sizes, 700), rules_for(9, 0.5, 0.1, penalties)
    allowed = np.ones(9)
    allowed[3] = 0
    compare(runtime, rng, layout, symbols, segments, g, h, rules, allowed, data)


@pytest.mark.parametrize("data", ["large", "small"])
@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("n_bins", [[4000], [1], [3, 2, 300]])
def test_features_of_more_entries_than_a_tile(n_bins: list[int], penalties: str, data: str, runtime: Any,
                                              rng: np.random.Generator) -> None:  # fmt: skip
    """Slices that end within a bin, bins of several slices, and nodes that have nothing in the last of them."""
    n = TILE + 150
    layout, symbols = make_layout([*n_bins, 5]), sparse_symbols(rng, n, [*n_bins, 5], [0.9] * len(n_bins) + [0.01])
    g, h = make_pairs(rng, n, data)
    few = np.sort(rng.choice(n, 60, replace=False)).tolist()
    others = np.setdiff1d(np.arange(n), few)
    segments = [few[:30], others[: n // 2].tolist(), few[30:], others[n // 2 :].tolist()]
    rules = rules_for(len(layout.n_bins), penalties=penalties)
    compare(runtime, rng, layout, symbols, segments, g, h, rules, data=data)


def test_rows_that_end_early_in_a_bin_of_many_slices(runtime: Any, rng: np.random.Generator) -> None:
    """The first rows have the split's bin in the first slice only; it ends two slices later."""
    n = 2 * TILE + 10
    layout, symbols = make_layout([2]), np.zeros((n, 1), np.int64)
    symbols[-20:] = 1
    symbols[:10] = 2  # missing
    segments = [[*range(40), *range(n - 20, n)], list(range(40, n - 20))]
    g, h = make_pairs(rng, n)
    g[:] = np.where(symbols[:, 0] == 1, -9, 5)
    expected = compare(runtime, rng, layout, symbols, segments, g, h, rules_for(1))
    assert expected.split_bin[0] == 0


@pytest.mark.parametrize("penalties", ["plain", "L1", "steps"])
def test_ties_go_to_the_first_feature(penalties: str, runtime: Any, rng: np.random.Generator) -> None:
    """Equal and mirrored columns, in one tile and in others; missing values go right."""
    one = sparse_symbols(rng, 90, [6], [0.7])
    symbols = np.repeat(one, 60, axis=1)
    symbols[:, 1::2] = np.where(symbols[:, 1::2] < 6, 5 - symbols[:, 1::2], 6)
    layout, (g, h) = make_layout([6] * 60), make_pairs(rng, 90)
    segments, rules = [list(range(0, 50)), list(range(50, 90))], rules_for(60, penalties=penalties)
    expected = compare(runtime, rng, layout, symbols, segments, g, h, rules)
    assert expected.feature.tolist() == [0, 0]


@pytest.mark.parametrize("penalties", ["plain", "L1", "steps"])
def test_ties_within_a_feature_go_to_the_lowest_bin(penalties: str, runtime: Any, rng: np.random.Generator) -> None:
    """Bins that mirror each other; then values of one bin and missing ones, whose splits mirror each other too."""
    symbols = np.array([[0, 0], [1, 0], [2, 1], [0, 1], [1, 1], [2, 1]])
    g, h = np.array([40, 0, -40, 40, 0, -40]), np.full(6, 64)
    for n_bins in ([3, 2], [2, 2]):
        layout, rules = make_layout(n_bins), rules_for(2, penalties=penalties)
        expected = compare(runtime, rng, layout, symbols, [list(range(6))], g, h, rules, np.array([1, 0]))
        assert (expected.split_bin[0], expected.default_left[0]) == (0, 0)


@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("value", [0, 2, 4])
def test_one_value_against_missing_ones(value: int, sign: int, direction: int, runtime: Any) -> None:
    """The split lies in the value's bin, unless against the direction, which does not hold the last bin."""
    layout, symbols = make_layout([5]), np.array([[value]] * 3 + [[5]] * 3)
    g, h = np.array([30, 50, 40, -30, -50, -40]) * sign, np.full(6, 64)
    rules = SplitRules(1.0, 0.0, 0.0, 0.0, np.array([direction], np.int32), False)
    problem = (layout, symbols, [list(range(6))], g, h, rules, np.ones(1), np.array([[-np.inf, np.inf]]))
    found = searched(runtime, *problem)
    own_bin = direction * sign >= 0  # values are lower where g is positive
    assert found[0, 1:4].tolist() == [0, value if own_bin else 4, 0]
    assert_found(found, expected_of(*problem))


@pytest.mark.parametrize("penalties", PENALTIES)
def test_few_entries_of_many_bins_as_by_definition(penalties: str, runtime: Any, rng: np.random.Generator) -> None:
    """Most bins are empty, sums tie, and some rows weigh nothing."""
    n_bins, n = [9, 2, 30, 5, 1, 12], 48
    layout, rules = make_layout(n_bins), rules_for(6, 0.5, penalties=penalties)
    n_compared = 0
    for _ in range(6):
        symbols = sparse_symbols(rng, n, n_bins, [0.15, 0.5, 0.3, 0.9, 0.4, 1.0])
        symbols[:, 5] = rng.choice([3, 8])
        g, h = rng.integers(-3, 4, n) * 100, rng.integers(0, 3, n) * 512
        segments = segments_of(rng, [20, 12, 16], n)
        limits = limits_for(rules, rng, 3)
        found = searched(runtime, layout, symbols, segments, g, h, rules, np.ones(6), limits)
        for node, own in enumerate(segments):
            twins = reference.Rules(0.5, rules.reg_alpha, rules.max_delta_step, 0.0, rules.monotone.tolist())
            low, high = limits[node].tolist()
            rows = reference.Rows(symbols[own], g[own], h[own], n_bins, UNITS, (low, high))
            best = reference.best(twins, rows, range(6))
            if best.gain <= 0:
                continue
            n_compared += 1
            assert found[node, 1:].tolist() == [best.feature, best.bin, best.default_left, *best.left]
            assert found[node, :1].view(np.float64) == best.gain
    assert n_compared > 6


@pytest.mark.parametrize("sign", [-1, 1])
def test_last_values_of_rows_that_weigh_nothing(sign: int, runtime: Any) -> None:
    """The bin before theirs has all weight but not all values: it is held to the direction, unlike the last one."""
    layout, symbols = make_layout([5]), np.array([[1]] * 3 + [[3]] + [[5]] * 3)
    g, h = np.array([30, 30, 30, -20, -30, -30, -30]) * sign, np.array([64, 64, 64, 0, 64, 64, 64])
    rules = SplitRules(1.0, 0.0, 0.0, 0.0, np.array([-sign], np.int32), False)
    limits = np.array([[-np.inf, np.inf]])
    expected = expected_of(layout, symbols, [list(range(7))], g, h, rules, np.ones(1), limits)
    assert (expected.split_bin[0], expected.left[0, 0]) == (4, 70 * sign)
    assert_found(searched(runtime, layout, symbols, [list(range(7))], g, h, rules, np.ones(1), limits), expected)


@pytest.mark.parametrize("penalties, units", [("steps", (2.0**-100, 2.0**-3)), ("L1", (2.0**60, 2.0**-60))])
def test_gains_that_no_float_holds(penalties: str, units: tuple[float, float], runtime: Any,
                                   rng: np.random.Generator) -> None:  # fmt: skip
    """Below the smallest or above the largest, all are alike until they are computed again."""
    layout, symbols = make_layout([20, 7]), sparse_symbols(rng, 300, [20, 7], [0.8, 0.3])
    g, h = make_pairs(rng, 300)
    segments, rules = segments_of(rng, [200, 100], 300), rules_for(2, penalties=penalties)
    expected = compare(runtime, rng, layout, symbols, segments, g, h, rules, units=units)
    with np.errstate(over="ignore"):
        assert not set(expected.gain.astype(np.float32).tolist()) - {0.0, np.inf}


def test_nodes_that_are_not_there(runtime: Any, rng: np.random.Generator) -> None:
    layout, symbols = make_layout([30, 2]), sparse_symbols(rng, 500, [30, 2], [0.2, 0.99])
    g, h = make_pairs(rng, len(symbols))
    segments = segments_of(rng, [200, 150, 150], len(symbols))
    compare(runtime, rng, layout, symbols, segments, g, h, rules_for(2), absent=(1,))


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
    assert n_sums <= most_sums(*SparseSet(1, len(counts), sum(counts)).features_above(TILE))
