"""The split search of GPUs against the naive twin and against the CPU's, to the last bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout, make_pairs, make_symbols
from devices.test_split_search import LAYOUT, N_BINS, RULES, SIZES, UNITS, check, make_level, open_nodes, rules_of
from reference import histogram
from reference import split as reference

from daskboost.data.cuts.cut_points import MAX_BIN_LIMIT
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.cuda import address_of
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.growth import node_bytes
from daskboost.devices.gpu.trees.split import FEW_FEATURES, HostNodes, SplitKernels
from daskboost.dtypes import Int64
from daskboost.tree.device_trees import DeviceSearch
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, SplitSearch

KEPT_NODES = 128
"""As `NODES` of `kernels/split_level.cu`."""


def searching(runtime: Runtime, rules: SplitRules, layout: SlotLayout = LAYOUT) -> DeviceSearch:
    return DeviceSearch(SplitKernels(DeviceLayout(runtime, layout)), rules)


def on_device(runtime: Runtime, built: Int64) -> Any:
    """Histograms of one output as a GPU has them."""
    return runtime.xp.asarray(built)[:, :, None]


def assert_same(found: Candidates, expected: Candidates) -> None:
    for name in ("gain", "feature", "split_bin", "default_left", "left"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other, err_msg=name)


@pytest.mark.parametrize("name", RULES)
def test_best_split_of_each_node(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    rules = RULES[name]
    for sizes in SIZES:
        built, nodes = make_level(rng, sizes, rules)
        allowed = rng.random((len(nodes), len(N_BINS))) < 0.7
        found = searching(runtime, rules_of(rules, False)).search(open_nodes(nodes, allowed), on_device(runtime, built))
        for row, node in enumerate(nodes):
            expected = reference.best(rules, node, np.flatnonzero(allowed[row]).tolist())
            check(found, row, expected, expected.left)


@pytest.mark.parametrize("name", RULES)
def test_best_split_of_a_level(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    rules = RULES[name]
    for sizes in SIZES:
        built, nodes = make_level(rng, sizes, rules)
        allowed = rng.random((1, len(N_BINS))) < 0.8
        found = searching(runtime, rules_of(rules, True)).search(open_nodes(nodes, allowed), on_device(runtime, built))
        expected = reference.best_of_level(rules, nodes, np.flatnonzero(allowed[0]).tolist())
        for row, node in enumerate(nodes):
            left = reference.left_of(node, expected.feature, expected.bin, expected.default_left)
            check(found, row, expected, left)


@pytest.mark.parametrize("symmetric", [False, True])
def test_ties_go_to_the_first_feature(symmetric: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """Of features that are equal, or mirrored: equal gains then lie at other bins, which other lanes of a warp find."""
    layout, n = make_layout([6] * 300), 50
    symbols = np.repeat(make_symbols(rng, n, [6]), 300, axis=1)
    mirrored = np.where(symbols < 6, 5 - symbols, symbols)
    symbols[:, np.arange(300) // 8 % 2 == 1] = mirrored[:, np.arange(300) // 8 % 2 == 1]
    g, h = make_pairs(rng, n)
    built = histogram.histogram(symbols, list(range(n)), g, h, layout, True)[None]
    nodes = open_nodes([reference.Rows(symbols, g, h, [6] * 300, UNITS)], np.ones((1, 300)))
    rules = SplitRules(1.0, 0.0, 0.0, 0.0, np.zeros(300, np.int32), symmetric)
    found = searching(runtime, rules, layout).search(nodes, on_device(runtime, built))
    assert found.feature.tolist() == [0]
    assert_same(found, SplitSearch(layout, rules, EagerThreads(1), (0, 300)).search(nodes, built))


@pytest.mark.parametrize("n_features", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("side", [0, 1])
def test_ties_go_to_the_first_bin(
    side: int, n_features: int, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Of a feature whose bins several warps share, if features are few; with missing values on the right if either side
    gains as much."""
    layout = make_layout([300] * n_features)
    rules = SplitRules(1.0, 0.0, 0.0, 0.0, np.zeros(n_features, np.int32), False)
    built = np.zeros((2, layout.n_slots, 2), np.int64)
    for first in layout.offsets[:-1]:
        built[:, first + 40], built[:, first + 270] = [300, 500], [-300, 500]  # and nothing between
    totals = np.array([[0, 1000], [-80 if side == 0 else 80, 1200]], np.int64)
    found = assert_searched_alike(runtime, rules, layout, built, totals, rng)
    assert found.feature.tolist() == [0, 0] and found.split_bin.tolist() == [40, 40]
    assert found.default_left.tolist() == [0, side]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("n_features", [1, 2, 3, 5, 9])
def test_ties_go_to_missing_values_on_the_right(
    n_features: int, symmetric: bool, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Also if their bin is higher, and another block's: what lies in it is worth as much as what is missing."""
    layout = make_layout([300] * n_features)
    rules = SplitRules(1.0, 0.0, 0.0, 100 * UNITS[1], np.zeros(n_features, np.int32), symmetric)
    built = np.zeros((1, layout.n_slots, 2), np.int64)
    for first in layout.offsets[:-1]:
        built[:, first + 40], built[:, first + 270] = [-500, 1], [300, 500]
    found = assert_searched_alike(runtime, rules, layout, built, np.array([[100, 1001]], np.int64), rng)
    assert (found.split_bin.tolist(), found.default_left.tolist(), found.feature.tolist()) == ([270], [0], [0])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", ["plain", "all"])
def test_many_bins_as_on_the_cpu(name: str, symmetric: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """Bins beyond a warp and beyond a block, and nodes without rows."""
    n_bins = [31, 32, 33, 700, 1]
    layout, rules = make_layout(n_bins), rules_of(RULES[name], symmetric)
    built = make_histograms(rng, 6, layout)
    built[2] = 0
    totals = built[:, layout.offsets[3] : layout.offsets[4]].sum(axis=1)
    assert_searched_alike(runtime, rules, layout, built, totals, rng)


@pytest.mark.parametrize("n_features", [3, FEW_FEATURES + 1])
@pytest.mark.parametrize("some_missing", [False, True])
@pytest.mark.parametrize("name", ["plain", "all"])
def test_level_of_many_nodes_as_on_the_cpu(name: str, some_missing: bool, n_features: int, runtime: Runtime,
                                           rng: np.random.Generator) -> None:  # fmt: skip
    """More than a block keeps the sums of at a time, and more bins than it has threads for; by blocks of both sizes."""
    n_bins, n_nodes = [130, 40, *[2] * (n_features - 2)], 2 * KEPT_NODES + 3
    rules = RULES[name]
    monotone = np.resize(np.array(rules.monotone or [0], np.int32), n_features)
    layout = make_layout(n_bins)
    built = make_histograms(rng, n_nodes, layout)
    totals = built[:, : n_bins[0]].sum(axis=1)
    for first, bins in zip(layout.offsets, n_bins, strict=False):  # as many rows have a value of every feature
        built[:, first + bins - 1] += totals - built[:, first : first + bins].sum(axis=1)
    if some_missing:
        totals[KEPT_NODES :: 5] += [100, 2**19]
    level = SplitRules(rules.reg_lambda, rules.alpha, rules.step, rules.least_h, monotone, True)
    assert_searched_alike(runtime, level, layout, built, totals, rng)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("side", [0, 1])
def test_the_last_of_most_bins(side: int, symmetric: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """The best splits lie behind the last bin, or behind the one before it with missing values on the left."""
    layout, rules = make_layout([MAX_BIN_LIMIT]), SplitRules(1.0, 0.0, 0.0, 0.0, np.zeros(1, np.int32), symmetric)
    built = np.zeros((2, layout.n_slots, 2), np.int64)
    built[:, MAX_BIN_LIMIT - 2] = [300, 500]
    built[:, MAX_BIN_LIMIT - 1] = [-400 if side else 300, 500]
    totals = built.sum(axis=1)
    totals += [200 if side else -500, 400]
    found = assert_searched_alike(runtime, rules, layout, built, totals, rng)
    assert found.split_bin.tolist() == [MAX_BIN_LIMIT - 1 - side] * 2
    assert found.default_left.tolist() == [side] * 2


def make_histograms(rng: np.random.Generator, n_nodes: int, layout: SlotLayout) -> Int64:
    found = rng.integers(-(2**20), 2**20, (n_nodes, layout.n_slots, 2))
    found[..., 1] = np.abs(found[..., 1])
    return found


def assert_searched_alike(runtime: Runtime, rules: SplitRules, layout: SlotLayout, built: Int64, totals: Int64,
                          rng: np.random.Generator) -> Candidates:  # fmt: skip
    """On the CPU and by the kernels, with leaf bounds where values are limited; what is found."""
    n, n_features = len(built), len(layout.n_bins)
    ids = np.arange(1, n + 1, dtype=np.int32)
    bounds = np.tile([-np.inf, np.inf], (n, 1)) if rules.regular.plain else np.sort(rng.normal(size=(n, 2)), axis=1)
    allowed = np.ones((1, n_features), np.uint8)
    nodes = OpenNodes(ids, np.full(n, -1, np.int32), ids, totals, bounds, allowed, UNITS)
    found = searching(runtime, rules, layout).search(nodes, on_device(runtime, built))
    assert_same(found, SplitSearch(layout, rules, EagerThreads(1), (0, n_features)).search(nodes, built))
    return found


@pytest.mark.parametrize("symmetric", [False, True])
def test_siblings_are_subtracted(symmetric: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """A node whose histogram nobody built gets its parent's less its sibling's, over two levels."""
    rules, everything = rules_of(RULES["plain"], symmetric), np.ones((1, len(N_BINS)))
    built, leaves = make_level(rng, [30, 45, 5, 12], RULES["plain"])

    def join(rows: list[reference.Rows]) -> reference.Rows:
        symbols, g, h = (np.concatenate([getattr(row, name) for row in rows]) for name in ("symbols", "g", "h"))
        return reference.Rows(symbols, g, h, N_BINS, UNITS)

    own = searching(runtime, rules)

    def search(ids: list[int], parents: list[int], rows: list[reference.Rows], built_ids: list[int], sums: Any) -> Any:
        nodes = dataclasses.replace(
            open_nodes(rows, everything), ids=np.array(ids, np.int32), parents=np.array(parents, np.int32),
            built=np.array(built_ids, np.int32),
        )  # fmt: skip
        return nodes, own.search(nodes, on_device(runtime, np.ascontiguousarray(sums)))

    search([0], [-1], [join(leaves)], [0], built.sum(axis=0)[None])
    search([1, 2], [0, 0], [join(leaves[:2]), join(leaves[2:])], [2], built[2:].sum(axis=0)[None])
    nodes, found = search([3, 4, 5, 6], [1, 1, 2, 2], leaves, [3, 6], built[[0, 3]])
    direct = dataclasses.replace(nodes, built=nodes.ids)
    assert_same(found, SplitSearch(LAYOUT, rules, EagerThreads(2), (0, 5)).search(direct, built))


@pytest.mark.parametrize("name", ["plain", "all"])
def test_what_is_built_elsewhere_is_copied_by_the_search(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    """Without a sibling the parent's histogram becomes the node's, features that may not split too."""
    rules, xp = rules_of(RULES[name], False), runtime.xp
    built, rows = make_level(rng, [40, 25], RULES[name])
    there, own = xp.asarray(built), xp.full(built.shape, 77, np.int64)
    nodes = open_nodes(rows, (rng.random((2, len(N_BINS))) < 0.7))
    kernels, none = SplitKernels(DeviceLayout(runtime, LAYOUT)), np.zeros(2, np.uint64)

    def search(*addresses: Any) -> Any:
        rest = (np.zeros((3, 2), np.uint64), nodes.sums, nodes.bounds, nodes.allowed, np.array(UNITS))
        level = kernels.upload(HostNodes(np.stack(addresses), *rest))
        return to_host(kernels.best_per_node(level, rules.regular, kernels.room(2)))

    places, copies = (
        (address_of(each) + np.arange(2) * node_bytes(each)).astype(np.uint64) for each in (there, own)
    )  # fmt: skip
    np.testing.assert_array_equal(search(copies, places, none), search(places, none, none))
    np.testing.assert_array_equal(to_host(own), built)
