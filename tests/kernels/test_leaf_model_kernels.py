"""Models of leaves on the CPU, on the GPU and its emulation against their naive twins."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import VIEWS, EagerThreads, device_of, make_layout, make_rows, make_symbols, make_view, put_order
from reference import gradients as naive_gradients
from reference import leaf_models as reference
from reference import partition

from daskboost.devices.cpu.leaf_models import Ridge, find_terms, fit_leaves
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, WalkColumns, walk_trees
from daskboost.devices.gpu.runtime.launches import Runtime, to_device, to_host
from daskboost.devices.gpu.trees.growth import make_tables
from daskboost.devices.gpu.trees.known_tree import device_tree
from daskboost.devices.leaf_models import MOST_TERMS, NONE, LeafModels, n_sums, positions
from daskboost.dtypes import Float32, Int32

N_BINS = [1, 2, 7, 300, 64, 256, 5]
SMALL_BINS = [1, 2, 7, 30, 64, 250, 5]


def bins_of(view: str) -> list[int]:
    return SMALL_BINS if "uint8" in view else N_BINS


def positions_of(layout: SlotLayout, symbols: Any) -> Any:
    """By the naive twin; shape (rows, features)."""
    bins = layout.n_bins.tolist()
    return np.array([[reference.position(n, int(s)) for n, s in zip(bins, row, strict=True)] for row in symbols])


@pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_equations_are_the_naive_twins(name: str, threads: int, small: bool, rng: np.random.Generator) -> None:
    """Of rows in some leaves, whose models have up to five features; other rows are elsewhere."""
    bins, n_rows = bins_of(name), 900
    layout, symbols = make_layout(bins), make_symbols(rng, n_rows, bins)
    view = make_view(name, symbols, layout, threads)
    rows = make_rows(view, n_rows, layout, EagerThreads(threads), "small" if small else "large")
    put = device_of(view, layout, EagerThreads(threads)).put
    g, h = rng.normal(size=n_rows).astype(np.float32), rng.random(n_rows).astype(np.float32)
    limit = 2**20 if small else naive_gradients.LIMIT
    scales = naive_gradients.scale(float(np.abs(g).max()), limit), naive_gradients.scale(float(h.max()), limit)
    rounding = Rounding(*scales, 99, 55, 2**32)
    rows.start_tree(lambda _: (put(g), put(h)), rounding)
    order = rng.permutation(n_rows)[:800]
    segments = [part.tolist() for part in np.array_split(order, [300, 300, 310, 600])]
    put_order(rows.chunks[0], segments)
    leaves = np.array([3, 0, 1, 4], np.int32)
    terms = np.full((4, MOST_TERMS), NONE, np.int32)
    for leaf, n in enumerate([5, 3, 2, 0]):
        terms[leaf, :n] = rng.permutation(len(bins))[:n]
    found = rows.equations(None, lambda _: (put(g), put(h)), rounding, leaves, terms)
    weight = np.ones(n_rows, np.float32) if small else None
    pairs = {row: pair for row, *pair in naive_gradients.quantize(g, h, rounding, weight=weight)}
    x = positions_of(layout, symbols)
    expected = np.zeros((4, n_sums(MOST_TERMS)), np.int64)
    for place, leaf in enumerate(leaves.tolist()):
        own = [feature for feature in terms[place].tolist() if feature >= 0]
        for row in segments[leaf]:
            one, (row_g, row_h) = [1, *(x[row, feature] for feature in own)], pairs[row]
            for j, value in enumerate(one):
                expected[place, j] += row_g * value
                for k in range(j + 1):
                    expected[place, MOST_TERMS + 1 + j * (j + 1) // 2 + k] += row_h * value * one[k]
    np.testing.assert_array_equal(found, expected)


def random_tree(rng: np.random.Generator, bins: list[int], n_splits: int) -> WalkArrays:
    """A tree whose leaves have models of some features, or none."""
    n = 2 * n_splits + 1
    left, right = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    feature, split_bin = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    leaves = [0]
    for k in range(n_splits):
        node = leaves.pop(int(rng.integers(len(leaves))))
        left[node], right[node] = 2 * k + 1, 2 * k + 2
        feature[node] = rng.integers(len(bins))
        split_bin[node] = rng.integers(bins[feature[node]])
        leaves += [2 * k + 1, 2 * k + 2]
    terms, slopes = np.full((n, MOST_TERMS), NONE, np.int32), np.zeros((n, MOST_TERMS), np.float32)
    for leaf in leaves:
        own = rng.permutation(len(bins))[: rng.integers(MOST_TERMS + 1)]
        terms[leaf, : len(own)], slopes[leaf, : len(own)] = own, rng.normal(size=len(own))
    value, default_left = rng.normal(size=n).astype(np.float32), rng.random(n) < 0.5
    return WalkArrays(
        left, right, feature, split_bin, default_left, value, models=LeafModels.of_nodes(terms, slopes)
    )


def leaf_of(value: float, feature: int, slope: float) -> WalkArrays:
    """A tree that is a leaf."""
    return WalkArrays(
        np.array([-1], np.int32), np.array([-1], np.int32), np.zeros(1, np.int32), np.array([-1], np.int32),
        np.zeros(1, np.bool_), np.array([value], np.float32),
        models=LeafModels(np.array([[feature]], np.int32), np.array([[slope]], np.float32)),
    )  # fmt: skip


def naive_margins(tree: WalkArrays, layout: SlotLayout, symbols: Any, margin: Float32) -> Float32:
    x, found = positions_of(layout, symbols), margin.copy()
    for row, own in enumerate(symbols):
        leaf = partition.leaf(tree, own, layout.n_bins)
        total = float(tree.value[leaf])
        for feature, slope in tree.models.terms(leaf):
            total += slope * float(x[row, feature])
        found[row] += np.float32(total)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_margins_are_the_naive_twins(name: str, threads: int, rng: np.random.Generator) -> None:
    """Of all rows, by walking, and where a tree that has grown is finished."""
    bins, n_rows = bins_of(name), 700
    layout, symbols = make_layout(bins), make_symbols(rng, n_rows, bins)
    tree, margin = random_tree(rng, bins, 30), rng.normal(size=(n_rows, 3)).astype(np.float32)
    expected = naive_margins(tree, layout, symbols, margin[:, 1])
    view = make_view(name, symbols, layout, threads)
    device = device_of(view, layout, EagerThreads(threads))
    on_device = device.put(margin.copy())
    device.walker(tree)(view, on_device[:, 1])
    np.testing.assert_array_equal(device.fetch(on_device)[:, 1], expected)
    rows, again = make_rows(view, n_rows, layout, EagerThreads(threads)), device.put(margin.copy())
    ones = device.put(np.ones(n_rows, np.float32))
    rows.start_tree(lambda _: (ones, ones), Rounding(1.0, 1.0, 1, 2, 2**31))  # some rows do not grow it
    rows.finish(None, leaf_of(0.5, 3, 2.0), lambda _: again[:, 1])
    x = positions_of(layout, symbols)[:, 3]
    np.testing.assert_array_equal(device.fetch(again)[:, 1], margin[:, 1] + (0.5 + 2 * x).astype(np.float32))


@pytest.mark.parametrize("n_bins", [2, 3, 128, 255, 65_535])
def test_positions_of_kernels_are_those_of_tables(n_bins: int, runtime: Runtime) -> None:
    """Each row has another bin, and its position as its margin."""
    layout = make_layout([n_bins])
    name = "uint8" if n_bins < 255 else "uint16"
    symbols = np.arange(n_bins + 1)[:, None] if n_bins < 1_000 else np.arange(0, n_bins + 1, 13)[:, None]
    view = DenseView(DeviceLayout(runtime, layout), [symbols.astype(name)], len(symbols), copy_columns=False)
    margin = runtime.xp.zeros(len(symbols), np.float32)
    device_tree(runtime, leaf_of(0.0, 0, 1.0), layout.n_bins).walk(view, margin)
    np.testing.assert_array_equal(to_host(margin), positions(n_bins)[symbols[:, 0]])


def leaf_equations(rng: np.random.Generator, n_terms: int) -> Any:
    """Sums of a leaf of some rows, of which some columns do not vary, or vary together."""
    n_rows = int(rng.integers(0, 40))
    x = rng.integers(-127, 128, (n_rows, n_terms))
    if n_terms > 1 and rng.random() < 0.4:
        x[:, 1] = x[:, 0] if rng.random() < 0.5 else 5
    g, h = rng.integers(-30_000, 30_000, n_rows), rng.integers(0, 30_000, n_rows)
    sums, one = np.zeros(n_sums(MOST_TERMS), np.int64), np.ones((n_rows, MOST_TERMS + 1), np.int64)
    one[:, 1:] = 0
    one[:, 1 : n_terms + 1] = x
    sums[: MOST_TERMS + 1] = g @ one
    products = (one * h[:, None]).T @ one
    sums[MOST_TERMS + 1 :] = products[np.tril_indices(MOST_TERMS + 1)]
    return sums


@pytest.mark.parametrize("penalty", [0.0, 0.3, 20.0])
def test_slopes_are_the_cpus(penalty: float, rng: np.random.Generator, runtime: Runtime) -> None:
    """To the last bit, of several trees, each with scales of its own."""
    n_trees, per_tree, capacity = 2, 150, 300
    tables = make_tables(runtime, n_trees, capacity, n_terms=MOST_TERMS)
    leaves = np.full((n_trees, per_tree), -1, np.int32)
    scales, values = np.zeros((n_trees, 8)), rng.normal(size=(n_trees, capacity)).astype(np.float32)
    terms: Int32 = np.full((n_trees, capacity, MOST_TERMS), NONE, np.int32)
    sums = np.zeros((n_trees, per_tree, n_sums(MOST_TERMS)), np.int64)
    expected = []
    for tree in range(n_trees):
        nodes = np.sort(rng.permutation(capacity)[: per_tree - 7])
        leaves[tree, : len(nodes)] = tree * capacity + nodes
        scales[tree, 3:5] = 2.0 ** rng.integers(-20, -9, 2)
        sizes = rng.integers(0, MOST_TERMS + 1, len(nodes))
        for place, (node, n) in enumerate(zip(nodes.tolist(), sizes.tolist(), strict=True)):
            terms[tree, node, :n] = rng.permutation(40)[:n]
            sums[tree, place] = leaf_equations(rng, n)
        rule = Ridge(float(scales[tree, 3]), float(scales[tree, 4]), penalty, 0.05, 0.3)
        own_terms, own_values = terms[tree, nodes].copy(), values[tree, nodes].copy()
        slopes = np.zeros((len(nodes), MOST_TERMS), np.float32)
        fit_leaves(sums[tree, : len(nodes)], own_terms, rule, own_values, slopes)
        expected.append((nodes, own_terms, own_values, slopes))
    xp, put = runtime.xp, partial(to_device, runtime)
    tables.values[...], tables.terms[...] = put(values), put(terms)
    flat = put(leaves.ravel())
    runtime.kernel("fit_leaves", "fit_leaves")(
        -(-flat.size // 64), 64, flat, flat.size, capacity, put(sums), put(scales), penalty, 0.05,
        xp.full(1, 0.3, np.float64), tables.values, tables.terms, tables.slopes,
    )  # fmt: skip
    n_fitted = 0
    for tree, (nodes, own_terms, own_values, slopes) in enumerate(expected):
        np.testing.assert_array_equal(to_host(tables.terms)[tree, nodes], own_terms)
        assert to_host(tables.values)[tree, nodes].tobytes() == own_values.tobytes()
        assert to_host(tables.slopes)[tree, nodes].tobytes() == slopes.tobytes()
        n_fitted += int((own_terms[:, 0] >= 0).sum())
    assert 0.3 * 2 * per_tree < n_fitted < 0.95 * 2 * per_tree


@pytest.mark.parametrize("all_usable", [True, False])
def test_terms_are_the_cpus(all_usable: bool, rng: np.random.Generator, runtime: Runtime) -> None:
    n_trees, capacity, n_features = 3, 81, 9
    usable = np.ones(n_features, np.bool_) if all_usable else rng.random(n_features) < 0.6
    tables = make_tables(runtime, n_trees, capacity, n_terms=MOST_TERMS)
    links = np.full((n_trees, 6, capacity), -1, np.int32)
    trees = [random_tree(rng, [9] * n_features, n_splits) for n_splits in (40, 0, 17)]
    leaves = np.full((n_trees, 41), -1, np.int32)
    for k, tree in enumerate(trees):
        n = len(tree.left_child)
        inner = np.flatnonzero(tree.left_child >= 0)
        for side in (tree.left_child, tree.right_child):
            links[k, 0, side[inner]] = inner
        links[k, 4, :n] = tree.feature
        own = np.flatnonzero(tree.left_child < 0)
        leaves[k, : len(own)] = k * capacity + own
    tables.links[...] = to_device(runtime, links)
    tables.terms.fill(NONE)
    flat = to_device(runtime, leaves.ravel())
    flags = None if all_usable else to_device(runtime, usable.view(np.uint8))
    runtime.kernel("fit_leaves", "find_terms")(
        -(-flat.size // 64), 64, flat, flat.size, capacity, tables.links, flags, tables.terms
    )
    for k, tree in enumerate(trees):
        expected = find_terms(tree.left_child, tree.right_child, tree.feature, usable, MOST_TERMS)
        is_leaf = tree.left_child < 0
        np.testing.assert_array_equal(to_host(tables.terms)[k, : len(is_leaf)][is_leaf], expected[is_leaf])


def test_several_trees_walk_at_once(rng: np.random.Generator, runtime: Runtime) -> None:
    layout, symbols = make_layout(SMALL_BINS), make_symbols(rng, 500, SMALL_BINS)
    view = DenseView(DeviceLayout(runtime, layout), [symbols.astype(np.uint8)], 500, copy_columns=True)
    trees = [random_tree(rng, SMALL_BINS, 12) for _ in range(3)]
    alone = [device_tree(runtime, tree, layout.n_bins).columns for tree in trees]
    margin = rng.normal(size=(500, 3)).astype(np.float32)
    on_device, stack = to_device(runtime, margin), runtime.xp.stack
    models = [np.stack([to_host(each.models[k]) for each in alone if each.models is not None]) for k in range(2)]
    together = WalkColumns.of(
        (stack(list(each)) for each in zip(*(own.columns for own in alone), strict=True)), None,
        (to_device(runtime, models[0]), to_device(runtime, models[1])),
    )  # fmt: skip
    walk_trees(runtime, view, together, on_device)
    for k, tree in enumerate(trees):
        np.testing.assert_array_equal(to_host(on_device)[:, k], naive_margins(tree, layout, symbols, margin[:, k]))
