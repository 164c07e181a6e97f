"""Partitioning, walking and adding leaf values against their naive twins."""

from __future__ import annotations

from dataclasses import fields
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
    pairs_in,
    put_rows,
    rows_in,
    segments_of,
    walk_rows,
    walks_all,
)
from reference import partition as reference
from strategies.pairs import every_pair

from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.rows import feature_groups as tiles
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, WalkColumns, walk_trees
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.row_order import RowSplits


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


@every_pair({"name": VIEWS, "threads": [1, 2, 3, 4], "data": PAIRS})
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
        for alone in set(range(len(sizes))) - set(nodes):
            assert rows_in(rows, alone) == segments[alone]
        for node in {*range(len(sizes)), *splits.left.tolist(), *splits.right.tolist()} - set(nodes):
            own, pairs = rows_in(rows, node), pairs_in(rows, node)
            np.testing.assert_array_equal(pairs, pack(g[own], h[own], pairs.dtype))


@pytest.mark.parametrize("tile_rows", [1024, 4096])
@pytest.mark.parametrize("name", VIEWS)
def test_level_after_level(
    name: str, tile_rows: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of several tiles; nodes that are split late; children in the place of their grandparents."""
    monkeypatch.setattr(tiles, "LEAST_TILE_ROWS", tile_rows)
    n, n_bins = 5000, [9, 7]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n, n_bins)
    rows = make_rows(make_view(name, symbols, layout, 2), n, layout, EagerThreads(2))
    g, h = make_pairs(rng, n)
    put_rows(rows.chunks[0], [np.sort(rng.permutation(n)[: n - 30]).tolist()], g, h)
    open_nodes, n_nodes = [0], 1
    for level in range(4):
        nodes = [node for i, node in enumerate(open_nodes) if level == 0 or i != level]  # one stays for the next level
        before = [rows_in(rows, node) for node in range(n_nodes)]
        splits = random_splits(rng, nodes, n_nodes, layout)
        rows.grow(splits, np.empty(0, np.int32))
        check_splits(rows, before, splits, symbols, layout)
        left = [node for node in open_nodes if node not in nodes]
        assert [rows_in(rows, node) for node in left] == [before[node] for node in left]
        open_nodes, n_nodes = [*left, *splits.left.tolist(), *splits.right.tolist()], n_nodes + 2 * len(nodes)
    for node in open_nodes:
        own, pairs = rows_in(rows, node), pairs_in(rows, node)
        np.testing.assert_array_equal(pairs, pack(g[own], h[own], pairs.dtype))


@pytest.mark.parametrize("n_splits", [5, 1100])
def test_nodes_that_are_not_there_are_not_split(runtime: Runtime, n_splits: int, rng: np.random.Generator) -> None:
    """The device decides which of the splits there are; more than a block counts itself take a map of tiles."""
    n, n_bins = n_splits + 40, [5]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n, n_bins)
    view = DenseView(DeviceLayout(runtime, layout), [symbols.astype(np.uint8)], n, copy_columns=True)
    rows, xp = make_rows(view, n, layout, EagerThreads(1)), runtime.xp
    segments = segments_of(rng, [1] * (n_splits - 1) + [40], n)
    put_rows(rows.chunks[0], segments, *make_pairs(rng, n))
    splits = random_splits(rng, list(range(n_splits)), n_splits, layout)
    there = rng.random(n_splits) < 0.5
    there[-1] = True
    columns = splits.columns
    columns[0, ~there] = -1
    rows.reserve(3 * n_splits, n_splits)
    rows.split_rows(view, rows.chunks[0], xp.asarray(columns))
    real = RowSplits(*(getattr(splits, each.name)[there] for each in fields(splits)))
    check_splits(rows, segments, real, symbols, layout)
    for node in np.flatnonzero(~there).tolist():
        assert rows_in(rows, node) == segments[node]
        assert rows_in(rows, splits.left[node]) == rows_in(rows, splits.right[node]) == []


def test_splitting_takes_no_memory(runtime: Runtime, rng: np.random.Generator) -> None:
    layout, symbols = make_layout([5]), make_symbols(rng, 20, [5])
    view = DenseView(DeviceLayout(runtime, layout), [symbols.astype(np.uint8)], 20, copy_columns=False)
    rows, xp = make_rows(view, 20, layout, EagerThreads(1)), runtime.xp
    none = xp.full((6, 2000), -1, np.int32)
    with pytest.raises(ValueError, match=r"no memory was reserved for .* tiles"):
        rows.split_rows(view, rows.chunks[0], none)
    rows.reserve(1, 2000)
    rows.split_rows(view, rows.chunks[0], none)


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


CSR_VIEWS = [name for name in VIEWS if name.values[0].split()[-1] == "csr"]
ENTRIES = [0, 1, 7, 8, 9, 33, 500]
"""Of rows: beside a sector's eight, and so many that finding one takes a search its most steps."""


def rows_of_entries(rng: np.random.Generator, n: int, layout: SlotLayout) -> Any:
    """Symbols of rows whose entries are first, last or middle features, so that a guess is wrong, or any."""
    n_features = len(layout.n_bins)
    symbols = np.tile(layout.n_bins.astype(np.int64), (n, 1))
    for row in range(1, n - 1):  # the first and the last have none
        size = rng.choice(ENTRIES)
        first = rng.choice([0, (n_features - size) // 2, n_features - size, -1])
        features = rng.permutation(n_features)[:size] if first < 0 else first + np.arange(size)
        symbols[row, features] = rng.integers(0, layout.n_bins[features])
    return symbols


@pytest.mark.parametrize("features", [[0, 1, 49], [50, 299, 300], [301, 599, 600], [601, 648, 649]])
@pytest.mark.parametrize("name", CSR_VIEWS)
def test_rows_of_any_number_of_entries(name: str, features: list[int], rng: np.random.Generator) -> None:
    """What a search finds does not follow from where it begins: not from the slots, not from the rows before."""
    n, n_bins = 2000, [3] * 650
    layout = make_layout(n_bins)
    symbols = rows_of_entries(rng, n, layout)
    rows = make_rows(make_view(name, symbols, layout, 2), n, layout, EagerThreads(2))
    segments = segments_of(rng, [1200, 500, 300], n)
    put_rows(rows.chunks[0], segments, *make_pairs(rng, n))
    splits = splits_of([0, 1, 2], 3, features, rng.integers(0, 3, 3), rng.integers(0, 2, 3))
    rows.grow(splits, np.empty(0, np.int32))
    check_splits(rows, segments, splits, symbols, layout)


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


WALKED = {"few": [3, 1, 17, 8], "32 bytes of one byte": [5] * 27 + [250], "32 bytes of two bytes": [5] * 15 + [250]}
"""Bins of features: GPUs hold rows of 32 bytes in registers."""


@every_pair({"name": VIEWS, "depth": [0, 1, 4, 11], "features": WALKED, "threads": [1, 3]})
def test_walks_end_in_the_naive_leaf(
    name: str, depth: int, features: str, threads: int, rng: np.random.Generator
) -> None:
    """The deepest tree has more nodes than GPUs keep at hand."""
    n, n_bins = 120, WALKED[features]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n, n_bins)
    tree, view = make_tree(rng, layout, depth), make_view(name, symbols, layout, threads)
    some = np.arange(n) if walks_all(view) else np.sort(rng.permutation(n)[:77])
    margins = rng.normal(size=(n, 3)).astype(np.float32)
    expected = margins.copy()
    for row in some:
        expected[row, 1] += tree.value[reference.leaf(tree, symbols[row], layout.n_bins)]
    found = walk_rows(view, tree, some.astype(np.uint32), margins, 1, threads)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", CSR_VIEWS)
def test_walks_of_any_number_of_entries(name: str, rng: np.random.Generator) -> None:
    n, layout = 500, make_layout([3] * 650)
    symbols, tree = rows_of_entries(rng, n, layout), make_tree(rng, layout, 8)
    expected = tree.value[[reference.leaf(tree, row, layout.n_bins) for row in symbols]]
    margins, every = np.zeros((n, 1), np.float32), np.arange(n, dtype=np.uint32)
    found = walk_rows(make_view(name, symbols, layout, 2), tree, every, margins, 0, 2)
    assert found[:, 0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("n_trees", [2, 5, 40])
@pytest.mark.parametrize("name", [name for name in VIEWS if name.values[0].split()[0] in ("emulated", "cuda")])
def test_trees_that_walk_together(name: str, n_trees: int, rng: np.random.Generator) -> None:
    """Each to margins of its own; beside them lie those of others."""
    n, n_bins = 700, WALKED["32 bytes of one byte"]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n, n_bins)
    view = make_view(name, symbols, layout, n_trees)
    runtime = view.runtime
    trees = [make_tree(rng, layout, 3) for _ in range(n_trees)]
    links = np.stack([[tree.left_child, tree.right_child, tree.feature, tree.split_bin] for tree in trees])
    margins = rng.normal(size=(n, n_trees + 2)).astype(np.float32)
    expected = margins.copy()
    for place, tree in enumerate(trees):
        leaves = [reference.leaf(tree, row, layout.n_bins) for row in symbols]
        expected[:, place + 1] += tree.value[leaves]
    links, on_device = runtime.xp.asarray(links), runtime.xp.asarray(margins)
    ends = (np.stack([tree.default_left for tree in trees]).astype(np.uint8), np.stack([tree.value for tree in trees]))
    columns = (*(links[:, i] for i in range(4)), *(runtime.xp.asarray(each) for each in ends))
    walk_trees(runtime, view, WalkColumns.of(columns), on_device[:, 1:-1])
    assert to_host(on_device).tobytes() == expected.tobytes()


@every_pair({"name": VIEWS, "new": ["none", "few", "many"], "sampled": [1.0, 0.4], "threads": [1, 4]})
def test_finishing_a_tree_adds_what_walking_adds(
    name: str, new: str, sampled: float, threads: int, rng: np.random.Generator
) -> None:
    """Rows may know their leaf, or be moved to it, or walk."""
    n_bins = [6, 9]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 150, n_bins)
    view, tree = make_view(name, symbols, layout, threads), make_tree(rng, layout, 4)
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
    on_device = margins if isinstance(rows.chunks[0].order, np.ndarray) else view.runtime.xp.asarray(margins)
    late = {"none": [], "few": [9], "many": [7, 8, 9, 10, 11, 12, 13, 14]}[new]
    for level in ([0], [1, 2], [3, 4, 5, 6], [node for node in range(7, 15) if node not in late]):
        rows.grow(splits(level), np.empty(0, np.int32))
    rows.finish(splits(late), tree, lambda _: on_device[:, 0])
    assert to_host(on_device).tobytes() == expected.tobytes()
