"""Kernels of several outputs against the naive twins of one: histograms, split search, sums of leaves, margins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import (
    ENCODINGS,
    FORMS,
    PAIRS,
    VIEWS,
    EagerThreads,
    built,
    lack_features,
    make_layout,
    make_pairs,
    make_rows,
    make_symbols,
    make_view,
    pack,
    put_beside,
    put_order,
    rows_in,
    segments_of,
    walks_all,
)
from devices.test_histogram import ODD_SIZES, UNEVEN
from devices.test_partition import make_tree, random_splits, splits_of
from kernels.runtimes import RUNTIMES
from reference import gradients, histogram, partition, split_vectors
from reference import split as reference
from reference.split import Rows
from strategies.pairs import every_pair

from daskboost.devices import row_order as chunk_order
from daskboost.devices.cpu import histogram as kernels
from daskboost.devices.cpu.rows import CpuRows, Rounding, walk
from daskboost.devices.cpu.views import SCRATCH_ENTRIES, SlotLayout, WalkArrays
from daskboost.devices.gpu.rows.vector_rows import VectorRows
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.gpu.trees.known_tree import device_tree
from daskboost.dtypes import Int64
from daskboost.fit.peers import feature_shares
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, SplitSearch, combine

N_BINS = [4, 1, 17, 2, 5]


def wide(layout: SlotLayout, width: int) -> SlotLayout:
    return SlotLayout(layout.offsets, layout.n_bins, width)


def make_outputs(rng: np.random.Generator, n_rows: int, width: int, data: str = "large") -> tuple[Any, Any]:
    """Gradients and hessians by row, shape (rows, outputs)."""
    pairs = [make_pairs(rng, n_rows, data) for _ in range(width)]
    return np.stack([g for g, _ in pairs], axis=1), np.stack([h for _, h in pairs], axis=1)


def put_outputs(chunk: Any, segments: list[list[int]], g: Any, h: Any) -> None:
    """As `put_rows`; pairs of several outputs stay in the order of rows."""
    put_order(chunk, segments)
    chunk.pairs[:] = put_beside(chunk.order, pack(g, h, chunk.pairs.dtype))


def naive(name: str, symbols: Any, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any) -> Int64:
    """Outputs side by side in each slot; int64, shape (segments, slots * outputs, 2)."""
    parts = [
        np.stack([histogram.histogram(symbols, rows, g[rows, k], h[rows, k], layout, "csr" not in name)
                  for k in range(g.shape[1])], axis=1)
        for rows in segments
    ]  # fmt: skip
    return np.stack(parts).reshape(len(segments), -1, 2)


@every_pair({"name, form": FORMS, "width": [2, 3, 9], "threads": [1, 2, 3], "data": PAIRS})
def test_histograms(name: str, form: str, width: int, threads: int, data: str, rng: np.random.Generator) -> None:
    layout, symbols = wide(make_layout(N_BINS), width), make_symbols(rng, 210, N_BINS)
    g, h = make_outputs(rng, 210, width, data)
    for sizes in ODD_SIZES:
        segments = segments_of(rng, sizes, 210)
        rows = make_rows(make_view(name, symbols, layout, threads), 210, layout, EagerThreads(threads), data)
        put_outputs(rows.chunks[0], segments, g, h)
        found = built(rows, None, np.arange(len(sizes), dtype=np.int32), form)
        np.testing.assert_array_equal(found, naive(name, symbols, layout, segments, g, h), err_msg=str(sizes))


@every_pair({"name, form": FORMS, "threads": [1, 3], "uneven": UNEVEN})
def test_rows_move_and_pairs_stay(
    name: str, form: str, threads: int, uneven: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_order, "UNEVEN", uneven)
    layout, symbols = wide(make_layout(N_BINS), 3), make_symbols(rng, 210, N_BINS)
    g, h = make_outputs(rng, 210, 3)
    for sizes in ODD_SIZES:
        rows = make_rows(make_view(name, symbols, layout, threads), 210, layout, EagerThreads(threads))
        segments = segments_of(rng, sizes, 210)
        put_outputs(rows.chunks[0], segments, g, h)
        splits = random_splits(rng, list(range(len(sizes))), len(sizes), layout)
        found = built(rows, splits, splits.right, form)
        for node, left, right in zip(splits.node, splits.left, splits.right, strict=True):
            f = splits.feature[node]
            expected = partition.split(
                segments[node], symbols[:, f], int(splits.split_bin[node]), int(layout.n_bins[f]),
                bool(splits.default_left[node]),
            )  # fmt: skip
            assert (rows_in(rows, left), rows_in(rows, right)) == expected
        children = [rows_in(rows, node) for node in splits.right]
        np.testing.assert_array_equal(found, naive(name, symbols, layout, children, g, h))
        np.testing.assert_array_equal(to_host(rows.chunks[0].pairs), pack(g, h, np.int32))


@pytest.mark.parametrize("name, form", FORMS)
def test_more_entries_than_the_scratch_array(name: str, form: str, rng: np.random.Generator) -> None:
    n_bins = [254, 1, 200] * 45
    layout, symbols = wide(make_layout(n_bins), 13), make_symbols(rng, 90, n_bins)
    assert len(layout.blocks) > 2 and layout.n_entries == 13 * layout.n_slots
    assert layout.scratch_entries <= SCRATCH_ENTRIES < layout.n_entries
    g, h = make_outputs(rng, 90, 13)
    segments = segments_of(rng, [80, 3], 90)
    rows = make_rows(make_view(name, symbols, layout), 90, layout, EagerThreads(2))
    put_outputs(rows.chunks[0], segments, g, h)
    found = built(rows, None, np.arange(2, dtype=np.int32), form)
    np.testing.assert_array_equal(found, naive(name, symbols, layout, segments, g, h))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("n_rows", [65_536, 65_537, 140_001])
def test_no_sum_of_a_large_node_overflows(n_rows: int, name: str) -> None:
    """All rows in one bin with the most extreme pairs."""
    layout, symbols = wide(make_layout([2]), 2), np.ones((n_rows, 1), np.int64)
    pairs = np.array([[-(2**15), 2**15 - 1], [2**15 - 1, 2**15 - 1]])
    g, h = np.tile(pairs[:, 0], (n_rows, 1)), np.tile(pairs[:, 1], (n_rows, 1))
    rows = make_rows(make_view(name, symbols, layout), n_rows, layout, EagerThreads(1))
    put_outputs(rows.chunks[0], [list(range(n_rows))], g, h)
    form = "words" if n_rows <= kernels.WORD_ROWS else "pairs"
    found = built(rows, None, np.zeros(1, np.int32), form)
    assert found[0, 2:4].tolist() == (n_rows * pairs).tolist() and not found[0, [0, 1, 4, 5]].any()


UNITS = tuple(2.0**-exponent for exponent in (9, 11, 10, 12, 8, 11))
RULES = {
    "plain": reference.Rules(),
    "penalties": reference.Rules(0.5, alpha=60.0, least_h=300.0),
    "no_penalty": reference.Rules(0.0),
    "steps": reference.Rules(1.0, alpha=3.0, step=0.02, least_h=100.0),
}


def make_level(rng: np.random.Generator, sizes: list[int]) -> tuple[Int64, list[list[Rows]]]:
    """Histograms of some nodes, and their rows for each of three outputs."""
    layout, n = make_layout(N_BINS), sum(sizes)
    symbols, (g, h) = make_symbols(rng, n, N_BINS), make_outputs(rng, n, 3)
    symbols[:, 3] %= N_BINS[3]  # one feature is never missing
    segments = segments_of(rng, sizes, n)
    for rows in segments:
        lack_features(rng, symbols, rows, N_BINS)
    nodes = [
        [Rows(symbols[rows], g[rows, k], h[rows, k], N_BINS, (UNITS[2 * k], UNITS[2 * k + 1])) for k in range(3)]
        for rows in segments
    ]
    return naive("uint8", symbols, layout, segments, g, h), nodes


def open_nodes(nodes: list[list[Rows]], allowed: Any) -> OpenNodes:
    ids = np.arange(1, len(nodes) + 1, dtype=np.int32)
    sums = np.array([[part for rows in outputs for part in rows.sums] for outputs in nodes], np.int64)
    return OpenNodes(
        ids, np.full(len(nodes), -1, np.int32), ids, sums, np.tile([-np.inf, np.inf], (len(nodes), 1)),
        np.asarray(allowed, np.uint8), UNITS,
    )  # fmt: skip


def search(name: str, symmetric: bool, threads: int, histograms: Int64, nodes: OpenNodes, n_peers: int, form: str
           ) -> Candidates:  # fmt: skip
    layout, given = wide(make_layout(N_BINS), 3), RULES[name]
    rules = SplitRules(given.reg_lambda, given.alpha, given.step, given.least_h, np.zeros(5, np.int32), symmetric)
    parts = []
    for features in feature_shares(layout, n_peers):
        own = SplitSearch(layout, rules, EagerThreads(threads), features)
        part = histograms[:, own.entries[0] : own.entries[1]]
        part = (part[..., 0] << 32) + part[..., 1] if form == "words" else part
        parts.append(own.search(nodes, np.ascontiguousarray(part)))
    return combine(parts)


def check(found: Candidates, row: int, expected: reference.Split, lefts: list[tuple[int, int]]) -> None:
    assert found.gain[row] == expected.gain
    if expected.gain > -np.inf:
        chosen = (int(found.feature[row]), int(found.split_bin[row]), bool(found.default_left[row]))
        assert chosen == (expected.feature, expected.bin, expected.default_left)
        assert found.left[row].reshape(-1, 2).tolist() == [list(left) for left in lefts]


SEARCHES: dict[str, Any] = {"name": RULES, "threads": [1, 3], "n_peers": [1, 2, 9], "form": ["pairs", "words"]}


@every_pair(SEARCHES)
def test_best_split_of_each_node(name: str, threads: int, n_peers: int, form: str, rng: np.random.Generator) -> None:
    for sizes in ([40], [1], [2, 3, 50, 1, 30, 7]):
        histograms, nodes = make_level(rng, sizes)
        allowed = rng.random((len(nodes), len(N_BINS))) < 0.7
        found = search(name, False, threads, histograms, open_nodes(nodes, allowed), n_peers, form)
        for row, outputs in enumerate(nodes):
            check(found, row, *split_vectors.best(RULES[name], outputs, np.flatnonzero(allowed[row]).tolist()))


@every_pair(SEARCHES)
def test_best_split_of_a_level(name: str, threads: int, n_peers: int, form: str, rng: np.random.Generator) -> None:
    for sizes in ([40], [1], [2, 3, 50, 1, 30, 7]):
        histograms, nodes = make_level(rng, sizes)
        allowed = rng.random((1, len(N_BINS))) < 0.8
        found = search(name, True, threads, histograms, open_nodes(nodes, allowed), n_peers, form)
        expected = split_vectors.best_of_level(RULES[name], nodes, np.flatnonzero(allowed[0]).tolist())
        for row, outputs in enumerate(nodes):
            where = (expected.feature, expected.bin, expected.default_left)
            check(found, row, expected, split_vectors.lefts_of(outputs, *where) if expected.gain > -np.inf else [])


def roundings_of(g: Any, h: Any, weight: Any, share: float) -> list[Rounding]:
    found = []
    for k in range(g.shape[1]):
        scale_g, scale_h, scale_w = gradients.scales(g[:, k], h[:, k], weight)
        keys = (gradients.key(3, 1, k), gradients.key(3, 2, k))
        found.append(Rounding(scale_g, scale_h, *keys, int(np.ceil(share * 2**32)), scale_w))
    return found


def cpu_rows(threads: int, views: Any, sizes: Any, pieces: Any, layout: SlotLayout, weights: Any) -> CpuRows:
    return CpuRows(views, sizes, pieces, layout, EagerThreads(threads), weights)


def gpu_rows(make_runtime: Any, *given: Any) -> VectorRows:
    return VectorRows(make_runtime(), *given)


ROWS = [
    *(pytest.param(partial(cpu_rows, threads), id=f"{threads} threads") for threads in (1, 2, 4)),
    *(pytest.param(partial(gpu_rows, each.values[0]), id=each.id, marks=each.marks) for each in RUNTIMES),
]


@every_pair({"share": [1.0, 0.5, 0.01], "make": ROWS, "small": [False, True], "by_query": [False, True]})
def test_quantizing_and_sums_of_leaves(
    share: float, make: Any, small: bool, by_query: bool, rng: np.random.Generator
) -> None:
    """Rows are those of the first column's sample; leaves sum the integers that a tree would search."""
    sizes, first_rows = [1, 0, 700, 64], [5, 6, 2**40, 2**63 - 1]
    chunks = [(rng.normal(size=(n, 3)).astype(np.float32), rng.random((n, 3)).astype(np.float32)) for n in sizes]
    weights = [(rng.integers(0, 3, n) * rng.random(n)).astype(np.float32) for n in sizes] if small else None
    whole = [np.concatenate([chunk[side] for chunk in chunks]) for side in (0, 1)]
    roundings = roundings_of(whole[0], whole[1], None if weights is None else np.concatenate(weights), share)
    layout = wide(make_layout([2]), 3)
    rows = make(lambda: (), sizes, [[(0, first)] for first in first_rows], layout, weights)
    codes = [rng.integers(0, 40, n).astype(np.uint64) for n in sizes]
    if by_query:
        rows.draw_by(codes)

    def gradient(index: int) -> tuple[Any, Any]:
        g, h = chunks[index]
        return put_beside(rows.chunks[0].order, g), put_beside(rows.chunks[0].order, h)

    sums = rows.start_vector_tree(gradient, roundings)
    total = np.zeros((3, 2), np.int64)
    leaves = np.zeros((2, 3, 2), np.int64)
    for index, (g, h) in enumerate(chunks):
        chunk, columns = rows.chunks[index], []
        for k, rounding in enumerate(roundings):
            sampled = Rounding(
                rounding.scale_g, rounding.scale_h, rounding.round_key, roundings[0].sample_key, rounding.sample_below,
                rounding.scale_w,
            )  # fmt: skip
            weight = None if weights is None else weights[index]
            units = codes[index] if by_query else None
            columns.append(gradients.quantize(g[:, k], h[:, k], sampled, first_rows[index], weight, units))
        kept = [row for row, _, _ in columns[0]]
        assert chunk.order[: chunk.kept].tolist() == kept and chunk.bounds[0].tolist() == [0, len(kept)]
        assert not chunk.bounds[1:].any()
        pairs = np.array([[pair[1:] for pair in column] for column in columns], np.int64).reshape(3, -1, 2)
        found = to_host(chunk.pairs)[kept]
        np.testing.assert_array_equal(found, pack(pairs[..., 0], pairs[..., 1], chunk.pairs.dtype).T)
        total += pairs.sum(axis=1)
        middle = len(kept) // 3
        bounds = np.array([[0, len(kept)], [0, middle], [middle, len(kept)]], np.int64)
        chunk.bounds = put_beside(chunk.order, bounds)
        leaves += np.stack([pairs[:, :middle].sum(axis=1), pairs[:, middle:].sum(axis=1)])
    assert list(sums) == total.ravel().tolist()
    found = rows.leaf_sums(gradient, roundings, np.array([1, 2], np.int32))
    np.testing.assert_array_equal(found, leaves.reshape(2, 6))


def vector_tree(rng: np.random.Generator, layout: SlotLayout, depth: int, width: int) -> WalkArrays:
    tree = make_tree(rng, layout, depth)
    values = rng.normal(size=(len(tree.value), width)).astype(np.float32)
    return replace(tree, value=values)


@every_pair({"name": VIEWS, "sampled": [1.0, 0.4], "threads, width": [(1, 3), (3, 45)]})
def test_values_are_added_to_all_margins(
    name: str, width: int, sampled: float, threads: int, rng: np.random.Generator
) -> None:
    """Rows that grew the tree know their leaf, the others walk; so does every row of an evaluation set."""
    n_bins = [6, 9]
    layout, symbols = wide(make_layout(n_bins), width), make_symbols(rng, 150, n_bins)
    view, tree = make_view(name, symbols, layout, threads), vector_tree(rng, layout, 2, width)
    own, of_another = (make_rows(view, 150, layout, EagerThreads(threads)) for _ in range(2))
    segments = segments_of(rng, [int(150 * sampled)], 150)
    for rows in (own, of_another):
        put_outputs(rows.chunks[0], segments, *make_outputs(rng, 150, width))
    given = rng.normal(size=(150, width)).astype(np.float32)
    expected = given.copy()
    for row in range(150):
        expected[row] += tree.value[partition.leaf(tree, symbols[row], layout.n_bins)]
    walked, margins, gathered = (put_beside(rows.chunks[0].order, given.copy()) for _ in range(3))
    if walks_all(view):
        device_tree(view.runtime, tree, layout.n_bins).walk(view, walked)
    else:
        walk(view, tree, np.arange(150, dtype=np.uint32), walked, EagerThreads(threads))
    assert to_host(walked).tobytes() == expected.tobytes()
    splits = [
        splits_of(nodes, 1 + nodes[0] * 2, tree.feature[nodes], tree.split_bin[nodes], tree.default_left[nodes])
        for nodes in ([0], [1, 2])
    ]
    nothing = np.empty(0, np.int32)
    own.grow(splits[0], nothing)
    own.finish(splits[1], tree, lambda _: margins)
    assert to_host(margins).tobytes() == expected.tobytes()
    for split in splits:
        of_another.grow(split, nothing)
    of_another.finish(None, tree, lambda _: gathered)  # all rows in the order of their leaves
    assert to_host(gathered).tobytes() == expected.tobytes()
