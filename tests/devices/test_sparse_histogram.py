"""Histograms of sparse rows on a GPU: by feature where cells are few and rows many, by row elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout, make_pairs, make_symbols, segments_of
from devices.histograms import build, sparse
from kernels.emulation import EmulatedRuntime

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows import views
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.gpu.trees import sparse_columns
from daskboost.dtypes import Int64


def tangled(rng: np.random.Generator, n_rows: int) -> tuple[SlotLayout, Any]:
    """Sparse rows of many slots: dense features among thin ones, and one with more bins than shared memory holds."""
    n_bins = [2, 65_534, 1, 30, 1, 500]
    layout, symbols = make_layout(n_bins), make_symbols(rng, n_rows, n_bins)
    symbols[rng.random(symbols.shape) < [0.0, 0.0, 0.9, 0.5, 0.0, 0.7]] = 2**17
    return layout, np.minimum(symbols, layout.n_bins)


def slots_added(segments: list[list[int]], symbols: Any, layout: SlotLayout, g: Any, h: Any) -> Int64:
    """As `naive`, faster."""
    expected = np.zeros((len(segments), layout.n_slots, 2), np.int64)
    for node, rows in enumerate(segments):
        for feature, n_bins in enumerate(layout.n_bins):
            own = np.array(rows, np.int64)[symbols[rows, feature] < n_bins]
            np.add.at(expected[node], layout.offsets[feature] + symbols[own, feature], np.stack([g[own], h[own]], 1))
    return expected


@pytest.mark.parametrize("data", ["large", "small"])
@pytest.mark.parametrize(("sizes", "by_feature"), [
    ([3000], True), ([2400], True), ([1700, 0, 1100], True), ([10, 5], False), ([1], False),
])  # fmt: skip
def test_sparse_rows_by_feature_and_by_row(
    sizes: list[int], by_feature: bool, data: str, runtime: Any, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Many rows of few nodes take the copy by feature, and write down their nodes for that; few rows do not."""
    monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0)
    monkeypatch.setattr(sparse_columns, "MOST_NODES", 4)
    layout, symbols = tangled(rng, 3000)
    g, h = make_pairs(rng, 3000, data)
    segments = segments_of(rng, sizes, 3000)
    view = sparse(runtime, symbols, layout)
    expected = slots_added(segments, symbols, layout, g, h)
    np.testing.assert_array_equal(build(view, layout, segments, g, h, data=data), expected)
    assert view._columns is not None
    assert (to_host(view._columns._states) != -1).any() == by_feature


def test_hardly_any_entries(runtime: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may want more tiles than there are, and than 32 bits count, as of 10M rows with one entry in all."""
    monkeypatch.setattr(views, "LEAST_ENTRIES_PER_SLOT", 1 << 33)
    n_bins = [3, 50]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 500, n_bins)
    symbols[3:] = layout.n_bins
    g, h = make_pairs(rng, 500)
    view, segments = sparse(runtime, symbols, layout), segments_of(rng, [200, 300], 500)
    np.testing.assert_array_equal(
        build(view, layout, segments, g, h), slots_added(segments, symbols, layout, g, h)
    )


@pytest.mark.emulated
@pytest.mark.parametrize("n_rows", [30, 9000])
def test_entries_are_copied_where_that_has_room(n_rows: int, rng: np.random.Generator,
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What rows' pairs and nodes take counts as well, which is most where rows have few entries."""
    monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0)
    layout, symbols = tangled(rng, n_rows)
    symbols[30:] = layout.n_bins
    runtime, n_entries = EmulatedRuntime(), int((symbols < layout.n_bins).sum())
    state_bytes = 8 * sparse_columns.state_words(n_rows)
    runtime.free_bytes = 24 * n_entries + state_bytes
    assert sparse(runtime, symbols, layout)._columns is None
    runtime.free_bytes += 1
    view = sparse(runtime, symbols, layout)
    assert view._columns is not None and view._columns.nbytes >= 8 * n_entries + state_bytes


@pytest.mark.parametrize("sizes", [[1], [5, 0, 2], [0, 0, 3, 0], [1, 1]], ids=str)
def test_entries_by_feature(sizes: list[int], runtime: Any, rng: np.random.Generator) -> None:
    """In the order of rows within each; features of no slot, and of no entry."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    for n_entries in (1, 2, 3, 4, 257):
        slots = rng.integers(0, offsets[-1], n_entries, np.int32)
        feature = np.repeat(np.arange(len(sizes)), sizes)[slots]
        order, counts = sparse_columns._by_feature(runtime.xp, offsets, runtime.xp.asarray(slots))
        assert to_host(order).tolist() == np.argsort(feature, kind="stable").tolist()
        assert counts.tolist() == np.bincount(feature, minlength=len(sizes)).tolist()


def test_nodes_that_are_not_there_have_no_histogram(runtime: Any, rng: np.random.Generator,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0)
    layout, symbols = tangled(rng, 900)
    g, h = make_pairs(rng, 900)
    view, segments = sparse(runtime, symbols, layout), segments_of(rng, [300, 400, 200], 900)
    expected = slots_added(segments, symbols, layout, g, h)[[2, 0, 0]]
    expected[1] = 0
    np.testing.assert_array_equal(build(view, layout, segments, g, h, [2, -1, 0]), expected)


def test_sparse_rows_by_feature_in_the_order_of_another_tree(runtime: Any, rng: np.random.Generator,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A tree at a time, since each entry looks up its row's only node."""
    monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0)
    monkeypatch.setattr(sparse_columns, "MOST_NODES", 4)
    layout, symbols = tangled(rng, 900)
    g, h = make_pairs(rng, 1800)
    view, segments = sparse(runtime, symbols, layout), [list(range(900)), list(range(900, 1800))]
    assert not view.joins_trees
    expected = slots_added(segments, np.tile(symbols, (2, 1)), layout, g, h)
    found = [build(view, layout, segments, g, h, [tree], in_order=True)[0] for tree in (0, 1)]
    np.testing.assert_array_equal(found, expected)


def test_many_nodes_of_sparse_rows_go_by_row(runtime: Any, rng: np.random.Generator) -> None:
    layout, symbols = tangled(rng, 400)
    g, h = make_pairs(rng, 400)
    segments = segments_of(rng, [100, 200, 0, 31, 69], 400)
    view = sparse(runtime, symbols, layout)
    np.testing.assert_array_equal(
        build(view, layout, segments, g, h), slots_added(segments, symbols, layout, g, h)
    )


@pytest.mark.parametrize("n_bins", [[2, 65_534], [2, 2]], ids=["by feature", "in shared memory"])
def test_sums_of_sparse_rows_do_not_overflow(n_bins: list[int], runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0)
    monkeypatch.setattr(sparse_columns, "MOST_NODES", 1)
    n_rows = 2 * 70_000
    layout = make_layout(n_bins)
    symbols = np.stack([np.ones(n_rows, np.int64), np.full(n_rows, n_bins[1])], axis=1)
    view = sparse(runtime, symbols, layout)
    for pair in ((-(2**15), 2**15 - 1), (2**15 - 1, 2**15 - 1)):
        g, h = np.full(n_rows, pair[0]), np.full(n_rows, pair[1])
        found = build(view, layout, [list(range(n_rows))], g, h)[0]
        assert found[1].tolist() == [n_rows * pair[0], n_rows * pair[1]]
        assert np.count_nonzero(found.any(axis=1)) == 1
