"""The split search against its naive twin, which tries every split on the rows themselves."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, lack_features, make_layout, make_pairs, make_symbols, segments_of
from reference import histogram
from reference import split as reference

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu.views import SCRATCH_ENTRIES, SCRATCH_SLOTS, SlotLayout
from daskboost.dtypes import Int64
from daskboost.fit.peers import feature_shares, narrow
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, SplitSearch, combine, sibling

N_BINS = [4, 1, 7, 2, 5]
LAYOUT = make_layout(N_BINS)
UNITS = (2.0**-9, 2.0**-11)
RULES = {
    "plain": reference.Rules(),
    "penalties": reference.Rules(0.5, alpha=60.0, least_h=300.0),
    "no_penalty": reference.Rules(0.0),
    "steps": reference.Rules(1.0, alpha=3.0, step=0.02),
    "monotone": reference.Rules(1.0, monotone=(1, -1, 1, 0, -1)),
    "all": reference.Rules(0.5, 2.0, 0.05, 100.0, (-1, 1, 0, 1, -1)),
}


def rules_of(rules: reference.Rules, symmetric: bool) -> SplitRules:
    monotone = np.array(rules.monotone or [0] * len(N_BINS), np.int32)
    return SplitRules(rules.reg_lambda, rules.alpha, rules.step, rules.least_h, monotone, symmetric)


def make_level(rng: np.random.Generator, sizes: list[int], rules: reference.Rules
               ) -> tuple[Int64, list[reference.Rows]]:  # fmt: skip
    """Histograms and rows of some nodes, with leaf bounds where constraints would have set some."""
    n = sum(sizes)
    symbols, (g, h) = make_symbols(rng, n, N_BINS), make_pairs(rng, n)
    symbols[:, 3] %= N_BINS[3]  # one feature is never missing
    nodes, histograms = [], []
    for rows in segments_of(rng, sizes, n):
        lack_features(rng, symbols, rows, N_BINS)
        bounds = (-0.1 * rng.random(), 0.1 * rng.random()) if rules.monotone else (-np.inf, np.inf)
        nodes.append(reference.Rows(symbols[rows], g[rows], h[rows], N_BINS, UNITS, bounds))
        histograms.append(histogram.histogram(symbols, rows, g[rows], h[rows], LAYOUT, bool(rng.integers(2))))
    return np.stack(histograms), nodes


def open_nodes(nodes: list[reference.Rows], allowed: Any) -> OpenNodes:
    ids = np.arange(1, len(nodes) + 1, dtype=np.int32)
    return OpenNodes(
        ids, np.full(len(nodes), -1, np.int32), ids, np.array([node.sums for node in nodes], np.int64),
        np.array([node.bounds for node in nodes]), np.asarray(allowed, np.uint8), UNITS,
    )  # fmt: skip


def in_form(form: str, histograms: Int64) -> Int64:
    """Histograms of pairs as they are, or as words."""
    return (histograms[..., 0] << 32) + histograms[..., 1] if form == "words" else histograms


def search(rules: SplitRules, threads: int, built: Int64, nodes: OpenNodes, n_peers: int, form: str) -> Candidates:
    """Among peers, each of which searches its share of the features."""
    parts = []
    built = in_form(form, built)
    for features in feature_shares(LAYOUT, n_peers):
        own = SplitSearch(LAYOUT, rules, EagerThreads(threads), features)
        parts.append(own.search(nodes, np.ascontiguousarray(built[:, own.entries[0] : own.entries[1]])))
    return combine(parts)


def check(found: Candidates, row: int, expected: reference.Split, left: tuple[int, int]) -> None:
    assert found.gain[row] == expected.gain
    if expected.gain > -np.inf:
        chosen = (int(found.feature[row]), int(found.split_bin[row]), bool(found.default_left[row]))
        assert chosen == (expected.feature, expected.bin, expected.default_left)
        assert tuple(found.left[row].tolist()) == left


SIZES = [[40], [1], [2, 3, 50, 1, 30, 7], [25] * 12]


@pytest.mark.parametrize("form", ["pairs", "words"])
@pytest.mark.parametrize("n_peers", [1, 2, 9])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", RULES)
def test_best_split_of_each_node(name: str, threads: int, n_peers: int, form: str, rng: np.random.Generator) -> None:
    rules = RULES[name]
    for sizes in SIZES:
        built, nodes = make_level(rng, sizes, rules)
        allowed = rng.random((len(nodes), len(N_BINS))) < 0.7
        found = search(rules_of(rules, False), threads, built, open_nodes(nodes, allowed), n_peers, form)
        for row, node in enumerate(nodes):
            expected = reference.best(rules, node, np.flatnonzero(allowed[row]).tolist())
            check(found, row, expected, expected.left)


@pytest.mark.parametrize("form", ["pairs", "words"])
@pytest.mark.parametrize("n_peers", [1, 2, 9])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", RULES)
def test_best_split_of_a_level(name: str, threads: int, n_peers: int, form: str, rng: np.random.Generator) -> None:
    rules = RULES[name]
    for sizes in SIZES:
        built, nodes = make_level(rng, sizes, rules)
        allowed = rng.random((1, len(N_BINS))) < 0.8
        found = search(rules_of(rules, True), threads, built, open_nodes(nodes, allowed), n_peers, form)
        expected = reference.best_of_level(rules, nodes, np.flatnonzero(allowed[0]).tolist())
        for row, node in enumerate(nodes):
            left = reference.left_of(node, expected.feature, expected.bin, expected.default_left)
            check(found, row, expected, left)


@pytest.mark.parametrize("symmetric", [False, True])
def test_ties_go_to_the_first_feature_whoever_searches(symmetric: bool, rng: np.random.Generator) -> None:
    layout = make_layout([6] * 8)
    symbols = np.repeat(make_symbols(rng, 50, [6]), 8, axis=1)
    g, h = make_pairs(rng, 50)
    built = histogram.histogram(symbols, list(range(50)), g, h, layout, True)[None]
    node = reference.Rows(symbols, g, h, [6] * 8, UNITS)
    nodes = open_nodes([node], np.ones((1, 8)))
    rules = SplitRules(1.0, 0.0, 0.0, 0.0, np.zeros(8, np.int32), symmetric)
    for n_peers, threads in itertools.product((1, 3, 8), (1, 2, 5)):
        parts = []
        for features in feature_shares(layout, n_peers):
            own = SplitSearch(layout, rules, EagerThreads(threads), features)
            parts.append(own.search(nodes, np.ascontiguousarray(built[:, own.entries[0] : own.entries[1]])))
        assert combine(parts).feature.tolist() == [0]


@pytest.mark.parametrize("sibling_form", ["pairs", "words"])
@pytest.mark.parametrize("parent_form", ["pairs", "words"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_siblings_are_subtracted(
    symmetric: bool, parent_form: str, sibling_form: str, rng: np.random.Generator
) -> None:
    """A node whose histogram nobody built gets its parent's less its sibling's, and the same split."""
    rules = rules_of(RULES["plain"], symmetric)
    built, (left, right) = make_level(rng, [30, 45], RULES["plain"])
    symbols, g, h = (np.concatenate([getattr(side, name) for side in (left, right)]) for name in ("symbols", "g", "h"))
    both = reference.Rows(symbols, g, h, N_BINS, UNITS)
    everything = np.ones((1, len(N_BINS)))
    direct = SplitSearch(LAYOUT, rules, EagerThreads(2), (0, 5)).search(open_nodes([left, right], everything), built)
    for light in (0, 1):
        own = SplitSearch(LAYOUT, rules, EagerThreads(2), (0, 5))
        root = dataclasses.replace(
            open_nodes([both], everything), ids=np.zeros(1, np.int32), built=np.zeros(1, np.int32)
        )
        own.search(root, in_form(parent_form, built.sum(axis=0)[None]))
        children = dataclasses.replace(
            open_nodes([left, right], everything), parents=np.zeros(2, np.int32), built=np.array([light + 1], np.int32)
        )
        found = own.search(children, in_form(sibling_form, built[[light]]))
        for name in ("gain", "feature", "split_bin", "default_left", "left"):
            np.testing.assert_array_equal(getattr(found, name), getattr(direct, name))


def test_siblings() -> None:
    assert sibling(np.array([1, 2, 3, 4, 11], np.int32)).tolist() == [2, 1, 4, 3, 12]


@pytest.mark.parametrize("n_peers", [1, 2, 3, 7])
@pytest.mark.parametrize("n_bins", [[5], [1] * 6, [1000, 1, 1, 1], [1, 1, 1, 1000], [3, 700, 2, 700, 9]])
def test_shares_cover_all_features_once(n_bins: list[int], n_peers: int) -> None:
    shares = feature_shares(make_layout(n_bins), n_peers)
    assert len(shares) == n_peers
    assert [f for first, last in shares for f in range(first, last)] == list(range(len(n_bins)))


@pytest.mark.parametrize("value, dtype", [(2**31 - 1, np.int32), (-(2**31) + 1, np.int32), (2**31, np.int64),
                                          (-(2**31) - 1, np.int64)])  # fmt: skip
def test_sums_travel_in_the_bytes_they_need(value: int, dtype: Any) -> None:
    sums = np.array([[0, value], [5, -3]], np.int64)
    assert narrow(sums, Buffers()).dtype == dtype
    np.testing.assert_array_equal(narrow(sums, Buffers()), sums)


def test_blocks_hold_what_fits_the_scratch_array() -> None:
    layout = SlotLayout(np.array([0, 16_000, 16_384, 16_385, 50_000, 50_001], np.int64), np.ones(5, np.int32))
    assert layout.blocks.tolist() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize("most", [3, 40, 5_000])
def test_blocks_are_as_many_features_as_fit(most: int, width: int, rng: np.random.Generator) -> None:
    for n_features in (0, 1, 2, 900):
        ends = np.cumsum(rng.integers(1, most + 1, n_features))
        layout = SlotLayout(np.concatenate([[0], ends]).astype(np.int64), np.ones(n_features, np.int32), width)
        edges, room = [0], SCRATCH_SLOTS if width == 1 else SCRATCH_ENTRIES
        for feature in range(1, n_features):
            if (layout.offsets[feature + 1] - layout.offsets[edges[-1]]) * width > room:
                edges.append(feature)
        assert layout.blocks.tolist() == [*edges, n_features]
