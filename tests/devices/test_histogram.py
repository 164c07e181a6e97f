"""Histograms against their naive twin, in every encoding, over odd segments and any division among threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import (
    ENCODINGS,
    FORMS,
    PAIRS,
    VIEWS,
    WIDE_VIEWS,
    EagerThreads,
    built,
    make_layout,
    make_pairs,
    make_rows,
    make_symbols,
    make_view,
    put_rows,
    rows_in,
    segments_of,
)
from reference import histogram as reference
from strategies.pairs import every_pair

from daskboost.devices import row_order as chunk_order
from daskboost.devices.cpu.views import SCRATCH_SLOTS, SlotLayout
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import Int64


def build(name: str, symbols: Any, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any, threads: int,
          nodes: list[int] | None = None, data: str = "large", form: str = "pairs") -> Int64:  # fmt: skip
    view = make_view(name, symbols, layout, threads)
    rows = make_rows(view, len(symbols), layout, EagerThreads(threads), data)
    put_rows(rows.chunks[0], segments, g, h)
    return built(rows, None, np.array(range(len(segments)) if nodes is None else nodes, np.int32), form)


def naive(name: str, symbols: Any, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any) -> Int64:
    parts = [reference.histogram(symbols, rows, g[rows], h[rows], layout, "csr" not in name) for rows in segments]
    return np.stack(parts)


ODD_SIZES = [[1], [0, 0, 0], [37], [0, 1, 0, 40, 3, 0], [1] * 9, [5, 60, 0, 2, 61, 1], [200, 7]]
UNEVEN = [pytest.param(0.0, id="in two steps"), pytest.param(1e9, id="whole splits")]


@every_pair({"name, form": FORMS, "threads": [1, 2, 3, 4], "data": PAIRS})
def test_equals_the_naive_twin(name: str, threads: int, data: str, form: str, rng: np.random.Generator) -> None:
    n_bins = [3, 1, 17, 8] if threads % 2 else [3]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 210, n_bins)
    g, h = make_pairs(rng, 210, data)
    for sizes in ODD_SIZES:
        segments = segments_of(rng, sizes, 210)
        found = build(name, symbols, layout, segments, g, h, threads, data=data, form=form)
        np.testing.assert_array_equal(found, naive(name, symbols, layout, segments, g, h), err_msg=str(sizes))


@pytest.mark.parametrize("name", VIEWS)
def test_nodes_in_any_order_and_number(name: str, rng: np.random.Generator) -> None:
    layout, symbols = make_layout([4, 4]), make_symbols(rng, 100, [4, 4])
    g, h = make_pairs(rng, 100)
    segments = segments_of(rng, [20, 0, 35, 30], 100)
    expected = naive(name, symbols, layout, segments, g, h)
    for nodes in ([3, 0], [2], [1, 3, 2], []):
        found = build(name, symbols, layout, segments, g, h, 3, nodes)
        np.testing.assert_array_equal(found, expected[nodes].reshape(len(nodes), layout.n_slots, 2))


@every_pair({
    "n_rows": [65_535, 65_536, 65_537, 140_001], "pair": [(-(2**15), 2**15 - 1), (2**15 - 1, 2**15 - 1), (-1, 0)],
    "name": VIEWS,
})  # fmt: skip
def test_no_sum_of_a_large_node_overflows(n_rows: int, pair: tuple[int, int], name: str) -> None:
    """All rows of a node in one bin with the most extreme pairs: words must be emptied, or not be used, in time."""
    layout, symbols = make_layout([2]), np.ones((n_rows, 1), np.int64)
    g, h = np.full(n_rows, pair[0]), np.full(n_rows, pair[1])
    expected = [[[0, 0], [n_rows * pair[0], n_rows * pair[1]], [0, 0]]]
    rows = make_rows(make_view(name, symbols, layout), n_rows, layout, EagerThreads(1))
    put_rows(rows.chunks[0], [list(range(n_rows))], g, h)
    root = np.zeros(1, np.int32)
    assert built(rows, None, root).tolist() == expected
    if name in ENCODINGS:
        found = rows.grow(None, root, words=True)
        assert found.ndim == (2 if n_rows <= 65_536 else 3)
        assert (built(rows, None, root, "words") if n_rows <= 65_536 else found).tolist() == expected


@every_pair({"name, form": FORMS, "threads": [1, 2, 3], "uneven": UNEVEN})
def test_children_are_built_from_the_rows_that_splits_send_them(
    name: str, threads: int, form: str, uneven: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_order, "UNEVEN", uneven)
    n_bins = [3, 1, 17, 8]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 210, n_bins)
    g, h = make_pairs(rng, 210)
    for sizes in ODD_SIZES:
        rows = make_rows(make_view(name, symbols, layout, threads), 210, layout, EagerThreads(threads))
        put_rows(rows.chunks[0], segments_of(rng, sizes, 210), g, h)
        n = len(sizes)
        left = (n + 2 * np.arange(n)).astype(np.int32)
        feature = rng.integers(0, 4, n).astype(np.int32)
        splits = RowSplits(
            np.arange(n, dtype=np.int32), left, left + 1, feature,
            rng.integers(0, layout.n_bins[feature], dtype=np.int32), rng.integers(0, 2, n).astype(np.uint8),
        )  # fmt: skip
        nodes = (left + rng.integers(0, 2, n)).astype(np.int32)[rng.random(n) < 0.8]  # some parents' are not opened
        found = built(rows, splits, nodes, form)
        children = [rows_in(rows, node) for node in nodes]
        expected = naive(name, symbols, layout, children, g, h) if len(nodes) else np.empty((0, layout.n_slots, 2))
        np.testing.assert_array_equal(found, expected, err_msg=str(sizes))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name, form", FORMS)
def test_more_slots_than_the_scratch_array(name: str, threads: int, form: str, rng: np.random.Generator) -> None:
    n_bins = [254, 1, 200] * 45
    layout, symbols = make_layout(n_bins), make_symbols(rng, 330, n_bins)
    assert len(layout.blocks) > 2 and layout.scratch_entries <= SCRATCH_SLOTS < layout.n_slots
    g, h = make_pairs(rng, 330)
    segments = segments_of(rng, [180, 3, 140], 330)
    found = build(name, symbols, layout, segments, g, h, threads, form=form)
    np.testing.assert_array_equal(found, naive(name, symbols, layout, segments, g, h))


@pytest.mark.parametrize("name", WIDE_VIEWS)
def test_one_feature_wider_than_the_scratch_array(name: str, rng: np.random.Generator) -> None:
    n_bins = [2, 40_000, 2, 65_534]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 60_000, n_bins)
    g, h = make_pairs(rng, 60_000)
    found = build(name, symbols, layout, [list(range(60_000))], g, h, 2)[0]
    for feature, width in enumerate(n_bins):
        own = found[layout.offsets[feature] : layout.offsets[feature + 1]]
        expected = np.zeros_like(own)
        np.add.at(expected, symbols[:, feature], np.stack([g, h], axis=1))
        if "csr" in name:
            expected[width] = 0
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("name", VIEWS)
def test_order_does_not_matter(name: str, rng: np.random.Generator) -> None:
    layout, symbols = make_layout([9, 5]), make_symbols(rng, 300, [9, 5])
    g, h = make_pairs(rng, 300)
    rows = list(range(300))
    shuffled = rng.permutation(300).tolist()
    first, second = (build(name, symbols, layout, [each], g, h, 2) for each in (rows, shuffled))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", VIEWS)
def test_children_add_up_to_their_parent(name: str, rng: np.random.Generator) -> None:
    """What sibling subtraction rests on."""
    layout, symbols = make_layout([9, 5]), make_symbols(rng, 300, [9, 5])
    g, h = make_pairs(rng, 300)
    left, right = segments_of(rng, [90, 210], 300)
    parent = build(name, symbols, layout, [sorted(left + right)], g, h, 1)[0]
    children = build(name, symbols, layout, [left, right], g, h, 1)
    np.testing.assert_array_equal(parent - children[0], children[1])
