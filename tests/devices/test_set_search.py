"""The search for sets of GPUs against the naive twin and against the CPU's, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout
from devices.test_vectors import wide
from devices.test_vectors_on_gpu import on_device
from reference import split, split_sets
from tree.test_category_splits import UNITS, Case, side_by_side

from daskboost.devices.bin_lists import bins_of_lists, lists_of_bins
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.device import tree_kind
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.gpu.trees.split_sets import CHUNK, MOST_TAKEN, SetTables
from daskboost.devices.row_order import ALL_BUT, BY_SET
from daskboost.dtypes import Int64
from daskboost.tree.device_trees import DeviceSearch
from daskboost.tree.set_bins import sets_of_bins
from daskboost.tree.split_search import Candidates, OpenNodes, SetSearch, SplitRules, SplitSearch

RULES = {
    "plain": split.Rules(1.0), "no penalty": split.Rules(0.0, least_h=0.5),
    "limits": split.Rules(3.5, alpha=0.4, step=0.3, least_h=3.0),
}  # fmt: skip

LIMITS = {
    "none": split_sets.SetRules(frozenset({0, 2, 3})),
    "smooth": split_sets.SetRules(frozenset({0, 2, 3}), smooth=0.75),
    "all": split_sets.SetRules(frozenset({0, 2, 3}), smooth=0.5, l2=2.5, least_group=1.5),
    "large": split_sets.SetRules(frozenset({0, 2, 3}), smooth=4.0, least_group=6.0),
}  # fmt: skip


def make_case(rng: np.random.Generator, n_bins: list[int], n_rows: int, limits: split_sets.SetRules, rules: str,
              n_outputs: int = 1) -> Case:  # fmt: skip
    """Rows of one node, some of which lack values, of codes and of numbers; ties are frequent."""
    symbols = np.stack([rng.integers(0, n + 1, n_rows) for n in n_bins], axis=1)
    first, *others = (
        split.Rows(symbols, rng.integers(-3, 4, n_rows), rng.integers(1, 5, n_rows), n_bins, units)
        for units in units_of(n_outputs)
    )
    return Case(first, RULES[rules], limits, others)


def units_of(n_outputs: int) -> list[tuple[float, float]]:
    return [(UNITS[0] / 2 ** (k % 3), UNITS[1] * 2 ** (k % 3)) for k in range(n_outputs)]


def layout_of(case: Case) -> SlotLayout:
    layout, n_outputs = make_layout(list(case.rows.n_bins)), len(case.outputs)
    return wide(layout, n_outputs) if n_outputs > 1 else layout


def searching(runtime: Runtime, layout: SlotLayout, rules: SplitRules) -> DeviceSearch:
    return DeviceSearch(tree_kind(layout).kernels(DeviceLayout(runtime, layout)), rules)


def rules_of(case: Case, *, symmetric: bool = False) -> SplitRules:
    n_bins, limits, rules = case.rows.n_bins, case.limits, case.rules
    is_code = np.array([feature in limits.codes for feature in range(len(n_bins))])
    most = max(n - 1 for n, own in zip(n_bins, is_code, strict=True) if own)
    sets = SetSearch(
        is_code, most, limits.max_onehot, limits.max_threshold, limits.smooth, limits.l2, limits.least_group
    )
    monotone = np.zeros(len(n_bins), np.int32)
    return SplitRules(rules.reg_lambda, rules.alpha, rules.step, rules.least_h, monotone, symmetric, sets)


def nodes_of(cases: list[Case], allowed: Any = None) -> tuple[OpenNodes, Int64]:
    """The nodes of these cases, and histograms that rows have built."""
    ids, bounds = np.arange(len(cases), dtype=np.int32), np.tile([-np.inf, np.inf], (len(cases), 1))
    allowed = np.ones((1, len(cases[0].rows.n_bins)), np.uint8) if allowed is None else allowed
    sums = np.array([[part for rows in case.outputs for part in rows.sums] for case in cases], np.int64)
    built = np.stack([side_by_side(case.outputs, "pairs") for case in cases])
    units = tuple(unit for rows in cases[0].outputs for unit in rows.units)
    return OpenNodes(ids, np.full_like(ids, -1), ids, sums, bounds, allowed, units), built


def find_both(runtime: Runtime, cases: list[Case], allowed: Any = None, *, symmetric: bool = False
              ) -> tuple[Candidates, Candidates]:  # fmt: skip
    """What a GPU finds, and what a CPU does; `symmetric` : one split for all nodes."""
    layout, rules = layout_of(cases[0]), rules_of(cases[0], symmetric=symmetric)
    nodes, built = nodes_of(cases, allowed)
    found = searching(runtime, layout, rules).search(nodes, on_device(runtime, layout, built))
    n_features = len(layout.n_bins)
    return found, SplitSearch(layout, rules, EagerThreads(1), (0, n_features)).search(nodes, built)


def assert_same(found: Candidates, expected: Candidates) -> None:
    for name in ("gain", "feature", "split_bin", "default_left", "left"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    by_set = expected.split_bin == BY_SET
    mine, other = (sets_of_bins(each.right_bins, by_set) for each in (found, expected))
    assert mine.lists == other.lists


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("own", LIMITS)
@pytest.mark.parametrize("rules", RULES)
def test_the_best_set_is_the_naive_one(rules: str, own: str, n_outputs: int, runtime: Runtime,
                                       rng: np.random.Generator) -> None:  # fmt: skip
    """Of one level and of several, among thresholds; features that may not be used are not."""
    for max_onehot, max_threshold in (4, 64), (30, 64), (1, 3):
        limits = replace(LIMITS[own], max_onehot=max_onehot, max_threshold=max_threshold)
        cases = [make_case(rng, [26, 5, 3, 1], n, limits, rules, n_outputs) for n in (1, 7, 60, 90)]
        allowed = (rng.random((len(cases), 4)) < 0.8).astype(np.uint8)
        found, expected = find_both(runtime, cases, allowed)
        assert_same(found, expected)
        for row, case in enumerate(cases):
            naive = split_sets.best(case.rules, limits, case.outputs, np.flatnonzero(allowed[row]).tolist())
            assert found.gain[row] == naive.gain
            if naive.gain > -np.inf:
                assert (found.feature[row], found.split_bin[row]) == (naive.feature, naive.bin)
                lefts = split_sets.lefts_of(case.outputs, naive)
                assert found.left[row].reshape(-1, 2).tolist() == [*map(list, lefts)]
                assert frozenset(sets_of_bins(found.right_bins[row][None], np.array([naive.bin == BY_SET]))
                                 .categories.tolist()) == split_sets.right_bins_of(naive)  # fmt: skip


@pytest.mark.parametrize(("n_codes", "max_threshold"), [
    (CHUNK, 64), (CHUNK + 1, 2), (5 * CHUNK - 3, MOST_TAKEN + 1), (2 * CHUNK + 7, 300),
])  # fmt: skip
@pytest.mark.parametrize(("smooth", "n_outputs"), [(0.0, 1), (0.125, 1), (1.0, 1), (0.0, 2), (1.0, 2), (0.5, 37)])
def test_many_codes(n_codes: int, max_threshold: int, smooth: float, n_outputs: int, runtime: Runtime,
                    rng: np.random.Generator) -> None:  # fmt: skip
    """In several chunks, and where ends of chunks are joined before the last; most codes have no rows and are equal, or
    are too light."""
    limits = split_sets.SetRules(frozenset({1}), 4, max_threshold, smooth, 0.5 * smooth, smooth)
    n_bins = [1 if smooth else 4, n_codes + 1]
    cases = [make_case(rng, n_bins, n, limits, "plain", n_outputs) for n in (40, 3 * n_codes)]
    found, expected = find_both(runtime, cases)
    assert (expected.split_bin == BY_SET).any()
    assert_same(found, expected)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("own", LIMITS)
@pytest.mark.parametrize("rules", RULES)
def test_the_best_set_of_a_level_is_the_naive_one(rules: str, own: str, n_outputs: int, runtime: Runtime,
                                                  rng: np.random.Generator) -> None:  # fmt: skip
    """Of nodes some of which have few rows or none; features that one of them may not use are not."""
    for max_onehot, max_threshold in (4, 64), (30, 64), (1, 3):
        limits = replace(LIMITS[own], max_onehot=max_onehot, max_threshold=max_threshold)
        cases = [make_case(rng, [26, 5, 3, 1], n, limits, rules, n_outputs) for n in (0, 7, 60, 90, 33)]
        allowed = np.ones((5, 4), np.uint8)
        allowed[rng.integers(5), rng.integers(3)] = 0
        for given in (None, allowed):
            found, expected = find_both(runtime, cases, given, symmetric=True)
            assert_same(found, expected)
            usable = range(4) if given is None else np.flatnonzero(given.all(axis=0)).tolist()
            naive = split_sets.best_of_level(cases[0].rules, limits, [case.outputs for case in cases], usable)
            assert set(found.gain.tolist()) == {naive.gain}
            if naive.gain > -np.inf:
                assert set(found.feature.tolist()) == {naive.feature}


@pytest.mark.parametrize(("n_codes", "max_threshold", "smooth"), [
    (CHUNK, 64, 0.0), (CHUNK + 1, 9, 0.0), (3 * CHUNK - 3, MOST_TAKEN + 1, 0.0), (2 * CHUNK + 7, 300, 0.5),
])  # fmt: skip
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_many_codes_of_a_level(n_codes: int, max_threshold: int, smooth: float, n_outputs: int, runtime: Runtime,
                               rng: np.random.Generator) -> None:  # fmt: skip
    limits = split_sets.SetRules(frozenset({1}), 4, max_threshold, smooth, smooth, smooth)
    cases = [make_case(rng, [1, n_codes + 1], n, limits, "plain", n_outputs) for n in (40, 2 * n_codes, n_codes)]
    found, expected = find_both(runtime, cases, symmetric=True)
    assert (expected.split_bin == BY_SET).all()
    assert_same(found, expected)


def test_chunks_are_joined_until_a_block_takes_them() -> None:
    n_bins, rules = np.array([3 * CHUNK + 1, 9, 40 * CHUNK + 1, 70, 1, 2], np.int32), SetSearch(
        np.array([True, False, True, True, True, True]), 40 * CHUNK, 4, 64
    ).rules  # fmt: skip
    tables = SetTables.of(n_bins, rules)
    assert [row[0] for row in tables.coded] == [0, 2, 3, 5]
    assert [row[2] for row in tables.coded] == [3, 40, 1, 1]
    assert [row[3] for row in tables.coded] == [63, 63, 63, 0]
    assert [row[5] for row in tables.coded] == [3, 2, 1, 0]
    assert [len(joins) for joins in tables.joins] == [2]
    assert all(n * 63 <= CHUNK for joins in tables.joins for _, _, n, _ in joins)
    assert tables.sizes.n_ends == 3 + 40 + 2 + 1 and tables.sizes.width == 66


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("symmetric", [False, True])
def test_children_of_built_siblings(symmetric: bool, n_outputs: int, runtime: Runtime, rng: np.random.Generator
                                    ) -> None:  # fmt: skip
    """Sums of a node that rows did not build are its parent's less its sibling's, and kept for its children."""
    limits = split_sets.SetRules(frozenset({0, 2}), 4, 9)
    parent = make_case(rng, [CHUNK + 50, 4, 3], 300, limits, "plain", n_outputs)
    layout, rules = layout_of(parent), rules_of(parent, symmetric=symmetric)
    root, built = nodes_of([parent])
    device = searching(runtime, layout, rules)
    cpu = SplitSearch(layout, rules, EagerThreads(1), (0, 3))
    assert_same(device.search(root, on_device(runtime, layout, built)), cpu.search(root, built.copy()))
    first = 0
    for n in (100, 40):  # rows of the built child; then the other one's children
        child, rest = part_of(parent, slice(first, first + n)), part_of(parent, slice(first + n, None))
        left = 1 if first == 0 else 3
        ids, above = np.array([left, left + 1], np.int32), np.full(2, 0 if first == 0 else 2, np.int32)
        given, histograms = nodes_of([child, rest])
        nodes = replace(given, ids=ids, parents=above, built=ids[:1])
        assert_same(device.search(nodes, on_device(runtime, layout, histograms[:1])), cpu.search(nodes, histograms[:1]))
        first += n


def part_of(case: Case, some: slice) -> Case:
    """Some rows of a node."""
    first, *others = (
        replace(rows, symbols=rows.symbols[some], g=rows.g[some], h=rows.h[some]) for rows in case.outputs
    )
    return replace(case, rows=first, others=others)


def test_lists_have_what_is_shorter(rng: np.random.Generator) -> None:
    bits = np.zeros((5, 64), np.uint8)
    bits[0, [3, 40]] = bits[1, :60] = bits[3, :50] = 1
    bits[1, 7] = bits[3, 20] = 0
    words = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    by_set = np.array([True, True, False, True, False])
    bins, splits = np.array([BY_SET, BY_SET, 6, BY_SET, BY_SET], np.int32), np.array([True] * 4 + [False])
    n_bins = np.full(5, 66, np.int32)  # two more than there are bits for
    kinds, lists = lists_of_bins(bins, words, splits, n_bins)
    assert kinds.tolist() == [BY_SET, ALL_BUT, 6, ALL_BUT, BY_SET]
    assert lists[0, :3].tolist() == [2, 3, 40]
    assert lists[1, : lists[1, 0] + 1].tolist() == [7, 7, 60, 61, 62, 63, 64, 65]
    np.testing.assert_array_equal(bins_of_lists(kinds, lists, by_set, 2)[by_set], words[by_set])
    assert lists_of_bins(bins, words, ~by_set & splits, n_bins)[1].shape == (5, 0), "no node splits by a set"
