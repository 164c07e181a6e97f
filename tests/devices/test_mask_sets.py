"""Walks of trees that split by sets: sets by slot and lists that are searched send rows the same way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices.backends import make_layout
from reference import partition as reference

from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, SetMasks, walk_trees
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.known_tree import device_tree
from daskboost.devices.gpu.trees.split_sets import MASK_WORDS, MOST_MASKED, set_masks
from daskboost.devices.row_order import BITS, BY_SET
from daskboost.dtypes import Symbols

N_ROWS = 300
FEATURES = {
    "one byte, in short rows": [9] * 18 + [200],
    "one byte, too many for short rows": [9] * 40,
    "two bytes": [9] * 30 + [700],
    "both, few in columns": [9] * 3 + [700] + [9] * 27 + [30, 900],
}  # fmt: skip


def make_tree(rng: np.random.Generator, layout: SlotLayout, depth: int) -> WalkArrays:
    """A full tree whose nodes split by thresholds, by few bins or by all but a few."""
    n_inner = 2**depth - 1
    n, words = 2 * n_inner + 1, -(-int(layout.n_bins.max()) // BITS)
    inner, nodes = np.arange(n) < n_inner, np.arange(n, dtype=np.int32)
    feature = np.where(inner, rng.integers(0, len(layout.n_bins), n), 0).astype(np.int32)
    by_set = inner & (rng.random(n) < 0.7)
    right = np.zeros((n, words * BITS), np.uint8)
    for node in np.flatnonzero(by_set).tolist():
        n_bins = int(layout.n_bins[feature[node]])
        some = rng.permutation(n_bins - 1)[: rng.integers(1, min(n_bins, 60))]
        if rng.random() < 0.5:
            right[node, some] = 1
        else:
            right[node, : n_bins - 1] = 1
            right[node, some[1:]] = 0
    split_bin = np.where(inner, rng.integers(0, layout.n_bins[feature]), -1)
    return WalkArrays(
        np.where(inner, 2 * nodes + 1, -1).astype(np.int32), np.where(inner, 2 * nodes + 2, -1).astype(np.int32),
        feature, np.where(by_set, BY_SET, split_bin).astype(np.int32), inner & (rng.random(n) < 0.5),
        rng.normal(size=n).astype(np.float32),
        np.packbits(right, axis=1, bitorder="little").view("<u4").astype(np.uint32),
    )  # fmt: skip


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("features", FEATURES)
def test_walks_end_in_the_naive_leaf(
    runtime: Runtime, features: str, depth: int, short: bool, rng: np.random.Generator
) -> None:
    n_bins = FEATURES[features]
    layout, symbols = make_layout(n_bins), np.stack([rng.integers(0, n + 1, N_ROWS) for n in n_bins], axis=1)
    rows: Symbols = symbols.astype(np.uint16) if max(n_bins) > 255 else symbols.astype(np.uint8)
    mixes = "both" in features
    view = DenseView(DeviceLayout(runtime, layout), [rows], N_ROWS, copy_columns=mixes, mixes=mixes)
    tree = make_tree(rng, layout, depth)
    if short:  # no more words than the sets need, as trees of models have
        tree = replace(tree, right_bins=tree.right_bins[:, : -(-tree.right_bins.shape[1] // 2)].copy())
    leaves = [reference.leaf(tree, row, layout.n_bins) for row in symbols]
    expected = tree.value[leaves]
    columns = device_tree(runtime, tree, layout.n_bins).columns.alone()
    size = runtime.xp.asarray(np.array([len(tree.value)], np.int32))
    words = runtime.xp.asarray(rng.integers(0, 1 << 32, (layout.n_slots, MASK_WORDS)).astype(np.uint32))
    numbers = runtime.xp.empty(len(tree.value), np.int32)
    for masks in (None, SetMasks(size, words, numbers)):
        margins = runtime.xp.zeros((N_ROWS, 1), np.float32)
        walk_trees(runtime, view, columns._replace(masks=masks), margins)
        assert to_host(margins)[:, 0].tobytes() == expected.tobytes(), masks is None
    vectors = rng.normal(size=(len(tree.value), 3)).astype(np.float32)
    margins = runtime.xp.zeros((N_ROWS, 3), np.float32)
    device_tree(runtime, replace(tree, value=vectors), layout.n_bins).walk(view, margins)
    assert to_host(margins).tobytes() == vectors[leaves].tobytes()


def test_trees_of_more_nodes_and_more_slots_have_no_masks(runtime: Runtime) -> None:
    sizes, numbers = runtime.xp.zeros(2, np.int32), runtime.xp.zeros(MOST_MASKED, np.int32)
    room = {"masks": runtime.xp.zeros((5, MASK_WORDS), np.uint32), "set_numbers": numbers}
    assert set_masks(room, sizes, MOST_MASKED) is not None
    assert set_masks(room, sizes, MOST_MASKED + 1) is None
    assert set_masks({**room, "masks": room["masks"][:0]}, sizes, 3) is None
    assert set_masks({}, sizes, 3) is None
