"""Partitioning, walking and adding leaf values against their naive twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import (
    PAIRS,
    VIEWS,
    WIDE_VIEWS,
    EagerThreads,
    make_layout,
    make_pairs,
    make_rows,
    make_symbols,
    make_view,
    pack,
    put_rows,
    rows_in,
    segments_of,
    walk_rows,
)
from reference import partition as reference

from daskboost.devices.cpu.chunk_order import RowSplits
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.runtime import to_host


def splits_of(nodes: list[int], n_nodes: int, feature: Any, split_bin: Any, default_left: Any) -> RowSplits:
    """Children are numbered behind all nodes there are."""
    left = n_nodes + 2 * np.arange(len(nodes), dtype=np.int32)
    arrays = (np.array(nodes, np.int32), left, left + 1, np.asarray(feature, np.int32), np.asarray(split_bin, np.int32))
    return RowSplits(*arrays, np.asarray(default_left, np.uint8))


def random_splits(rng: np.random.Generator, nodes: list[int], n_nodes: int, layout: SlotLayout) -> RowSplits:
    feature = rng.integers(0, len(layout.n_bins), len(nodes))
    return splits_of(
        nodes, n_nodes, feature, rng.integers(0, layout.n_bins[feature]), rng.integers(0, 2, len(nodes))
    )


def check_splits(rows: Any, before: list[list[int]], splits: RowSplits, symbols: Any, layout: SlotLayout) -> None:
    for i, node in enumerate(splits.node):
        f = splits.feature[i]
        expected = reference.split(
            before[node], symbols[:, f], int(splits.split_bin[i]), int(layout.n_bins[f]), bool(splits.default_left[i])
        )
        assert (rows_in(rows, splits.left[i]), rows_in(rows, splits.right[i])) == expected, node


ODD_SIZES = [[1], [0, 0, 0], [37], [0, 1, 0, 40, 3, 0], [1] * 9, [5, 60, 0, 2, 61, 1], [200, 7]]


@pytest.mark.parametrize("data", PAIRS)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("name", VIEWS)
def test_equals_the_naive_twin(name: str, threads: int, data: str, rng: np.random.Generator) -> None:
    n_bins = [3, 1, 17, 8]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 210, n_bins)
    view, (g, h) = make_view(name, symbols, layout, threads), make_pairs(rng, 210, data)
    for sizes in ODD_SIZES:
        rows = make_rows(view, 210, layout, EagerThreads(threads), data)
        segments = segments_of(rng, sizes, 210)
        put_rows(rows.chunks[0], segments, g, h)
        nodes = rng.permutation(len(sizes))[: max(1, len(sizes) - 1)].tolist()  # one node is left alone
        splits = random_splits(rng, nodes, len(sizes), layout)
        rows.grow(splits, np.empty(0, np.int32))
        check_splits(rows, segments, splits, symbols, layout)
        kept = to_host(rows.chunks[0].order[: rows.chunks[0].kept])
        pairs = to_host(rows.chunks[0].pairs[: len(kept)])
        np.testing.assert_array_equal(pairs, pack(g[kept], h[kept], pairs.dtype))
        for alone in set(range(len(sizes))) - set(nodes):
            assert rows_in(rows, alone) == segments[alone]


@pytest.mark.parametrize("name", WIDE_VIEWS)
def test_wide_features(name: str, rng: np.random.Generator) -> None:
    n_bins = [65_534, 300]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 500, n_bins)
    rows = make_rows(make_view(name, symbols, layout), 500, layout, EagerThreads(3))
    segments = segments_of(rng, [300, 150], 500)
    put_rows(rows.chunks[0], segments, *make_pairs(rng, 500))
    splits = splits_of([0, 1], 2, [0, 0], [60_000, 65_533], [0, 1])
    rows.grow(splits, np.empty(0, np.int32))
    check_splits(rows, segments, splits, symbols, layout)
    assert rows_in(rows, splits.right[1]) == []  # all bins and missing left


def make_tree(rng: np.random.Generator, layout: SlotLayout, depth: int) -> WalkArrays:
    """A full tree of random splits, children behind their parents."""
    n_inner = 2**depth - 1
    n = 2 * n_inner + 1
    inner = np.arange(n) < n_inner
    feature = np.where(inner, rng.integers(0, len(layout.n_bins), n), 0).astype(np.int32)
    nodes = np.arange(n, dtype=np.int32)
    return WalkArrays(
        np.where(inner, 2 * nodes + 1, -1).astype(np.int32), np.where(inner, 2 * nodes + 2, -1).astype(np.int32),
        feature, np.where(inner, rng.integers(0, layout.n_bins[feature]), -1).astype(np.int32),
        inner & (rng.random(n) < 0.5), rng.normal(size=n).astype(np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("name", VIEWS)
def test_walks_end_in_the_naive_leaf(name: str, depth: int, threads: int, rng: np.random.Generator) -> None:
    n_bins = [3, 1, 17, 8]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 120, n_bins)
    tree, some = make_tree(rng, layout, depth), np.sort(rng.permutation(120)[:77]).astype(np.uint32)
    margins = rng.normal(size=(120, 3)).astype(np.float32)
    expected = margins.copy()
    for row in some:
        expected[row, 1] += tree.value[reference.leaf(tree, symbols[row], layout.n_bins)]
    found = walk_rows(make_view(name, symbols, layout, threads), tree, some, margins, 1, threads)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sampled", [1.0, 0.4])
@pytest.mark.parametrize("name", VIEWS)
def test_finishing_a_tree_adds_what_walking_adds(
    name: str, sampled: float, threads: int, rng: np.random.Generator
) -> None:
    """Rows that grew the tree know their leaf, the others walk."""
    n_bins = [6, 9]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 150, n_bins)
    view, tree = make_view(name, symbols, layout, threads), make_tree(rng, layout, 2)
    rows = make_rows(view, 150, layout, EagerThreads(threads))
    put_rows(rows.chunks[0], segments_of(rng, [int(150 * sampled)], 150), *make_pairs(rng, 150))

    def splits(nodes: list[int]) -> RowSplits:
        ids, default_left = np.array(nodes, np.int32), tree.default_left[nodes].astype(np.uint8)
        children = tree.left_child[nodes], tree.right_child[nodes]
        return RowSplits(ids, *children, tree.feature[nodes], tree.split_bin[nodes], default_left)

    margins = rng.normal(size=(150, 1)).astype(np.float32)
    expected = margins.copy()
    for row in range(150):
        expected[row, 0] += tree.value[reference.leaf(tree, symbols[row], layout.n_bins)]
    rows.grow(splits([0]), np.empty(0, np.int32))
    on_device = margins if isinstance(rows.chunks[0].order, np.ndarray) else view.runtime.xp.asarray(margins)
    rows.finish(splits([1, 2]), tree, lambda _: on_device[:, 0])
    assert to_host(on_device).tobytes() == expected.tobytes()
