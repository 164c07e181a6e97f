"""Rows that go to the nodes of a known tree, and their histograms, against naive twins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from devices.backends import (
    ENCODINGS,
    VIEWS,
    EagerThreads,
    built,
    device_of,
    make_layout,
    make_pairs,
    make_rows,
    make_symbols,
    make_view,
    pairs_in,
    put_rows,
    rows_in,
    unpack,
    walk_rows,
    walks_all,
)
from reference import histogram, partition
from strategies.pairs import every_pair

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.samples import RowRoom as CpuRoom
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.gpu.rows.samples import RoomSize
from daskboost.devices.gpu.rows.samples import RowRoom as GpuRoom
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import to_host

N_BINS = [5, 3, 7, 2]
SOME_VIEWS = [view for view in VIEWS if view.values[0] in ENCODINGS or "columns" not in view.values[0]]
"""On GPUs, what moves rows knows only what it is told of columns."""


def random_tree(rng: np.random.Generator, n_splits: int, n_places: int, n_bins: Sequence[int] = N_BINS) -> WalkArrays:
    """A tree whose leaves are places in any order; leaves beyond their number are left out."""
    n = 2 * n_splits + 1
    left, right = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    leaves = [0]
    for split in range(n_splits):
        node = leaves.pop(int(rng.integers(len(leaves))))
        left[node], right[node] = 2 * split + 1, 2 * split + 2
        leaves += [2 * split + 1, 2 * split + 2]
    value = np.full(n, -1, np.float32)
    chosen = rng.permutation(leaves)[:n_places]
    value[chosen] = np.arange(len(chosen))
    feature = rng.integers(0, len(n_bins), n).astype(np.int32)
    split_bin = rng.integers(0, np.array(n_bins)[feature]).astype(np.int32)
    return WalkArrays(left, right, feature, split_bin, rng.random(n) < 0.5, value)


def expected_rows(tree: WalkArrays, symbols: Any, layout: SlotLayout, order: list[int], n: int) -> list[list[int]]:
    """Rows of each place, in the order they came."""
    found: list[list[int]] = [[] for _ in range(n)]
    for row in order:
        place = int(tree.value[partition.leaf(tree, symbols[row], layout.n_bins)])
        if place >= 0:
            found[place].append(row)
    return found


def beside(view: Any, values: Any) -> Any:
    """Values where a view lies."""
    return view.runtime.xp.asarray(values) if walks_all(view) else values


@every_pair({
    "n_rows, n_splits, n_places": [(0, 0, 1), (1, 1, 2), (97, 0, 1), (301, 6, 7), (301, 6, 3)],
    "encoding": SOME_VIEWS, "threads": [1, 3], "data": ["large", "small"],
})  # fmt: skip
def test_rows_go_to_their_places(n_rows: int, n_splits: int, n_places: int, encoding: str, threads: int, data: str
                                 ) -> None:  # fmt: skip
    rng, layout = np.random.default_rng(n_rows + n_splits), make_layout(N_BINS)
    symbols, tree = make_symbols(rng, n_rows, N_BINS), random_tree(rng, n_splits, n_places)
    rows = make_rows(make_view(encoding, symbols, layout), n_rows, layout, EagerThreads(threads), data)
    g, h = make_pairs(rng, n_rows, data)
    order = rng.permutation(n_rows)[: n_rows * 4 // 5].tolist()  # the others are not in the sample
    put_rows(rows.chunks[0], [order], g, h)
    sums = rows.settle(tree, n_places)
    for place, expected in enumerate(expected_rows(tree, symbols, layout, order, n_places)):
        assert rows_in(rows, place) == expected
        assert [part.tolist() for part in unpack(pairs_in(rows, place))] == [g[expected].tolist(), h[expected].tolist()]
        assert sums[place].tolist() == [g[expected].sum(), h[expected].sum()]


@every_pair({"encoding": SOME_VIEWS, "threads": [1, 3], "small": [False, True]})
def test_histograms_of_a_pass(encoding: str, threads: int, small: bool) -> None:
    """Two trees, several chunks; those of inner nodes are their children's sums."""
    rng, layout = np.random.default_rng(5), make_layout(N_BINS)
    trees = [random_tree(rng, 4, 5), random_tree(rng, 3, 2)]
    spans, first_row = [(0, 5), (5, 7)], 0
    frontier: Any = None
    expected, expected_sums = np.zeros((7, layout.n_slots, 2), np.int64), np.zeros((7, 2), np.int64)
    for n_rows in (40, 1, 333):
        symbols = make_symbols(rng, n_rows, N_BINS)
        view = make_view(encoding, symbols, layout, threads)
        frontier = frontier or device_of(view, layout, EagerThreads(threads)).frontier(7, 333)
        weight = rng.integers(0, 3, n_rows).astype(np.float32) if small else None
        for (first, last), tree in zip(spans, trees, strict=True):
            g, h = rng.integers(-9, 9, n_rows), rng.integers(0, 9, n_rows)  # integers, which no draw rounds
            rounding = Rounding(1.0, 1.0, 11, 12, 2**32)
            gradient = tuple(beside(view, each.astype(np.float32)) for each in (g, h))
            own = None if weight is None else beside(view, weight)
            frontier.add(view, tree, (first, last), gradient, [(0, first_row)], own, rounding)
            times = np.ones(n_rows, np.int64) if weight is None else weight.astype(np.int64)
            for place, rows in enumerate(expected_rows(tree, symbols, layout, list(range(n_rows)), last - first)):
                expected[first + place] += histogram.histogram(
                    symbols, rows, (g * times)[rows], (h * times)[rows], layout, missing="csr" not in encoding
                )
                expected_sums[first + place] += (g * times)[rows].sum(), (h * times)[rows].sum()
        first_row += n_rows
    assert (frontier.end_pass() == expected_sums).all()
    assert (to_host(frontier.histograms) == expected).all()
    tree = trees[0]
    nodes = np.arange(len(tree.value), dtype=np.int32)
    of_nodes = to_host(frontier.of_nodes(nodes, tree.value.astype(np.int32), tree.left_child, tree.right_child))
    of_nodes = of_nodes.reshape(len(nodes), layout.n_slots, 2)  # some have an axis of outputs
    assert (of_nodes[0] == expected[:5].sum(axis=0)).all()
    for node in np.flatnonzero(tree.left_child >= 0).tolist():
        assert (of_nodes[node] == of_nodes[tree.left_child[node]] + of_nodes[tree.right_child[node]]).all()


def room_of(view: Any, layout: SlotLayout, copies_columns: bool) -> CpuRoom | GpuRoom:
    """For rows of such views, of which five are expected."""
    if walks_all(view):
        return GpuRoom(DeviceLayout(view.runtime, layout), RoomSize(5))
    return CpuRoom(layout, 5, EagerThreads(2), copies_columns=copies_columns)


WIDE = [5] * 40
"""Features of two planes."""


@pytest.mark.parametrize("n_bins", [N_BINS, WIDE, [300, *N_BINS]], ids=["narrow", "wide", "many bins"])
@pytest.mark.parametrize("encoding", VIEWS)
def test_rows_taken_from_views(encoding: str, n_bins: list[int]) -> None:
    if max(n_bins) > 255 and "uint8" in encoding:
        pytest.skip("they have no room")
    check_rows_taken(encoding, n_bins)


@pytest.mark.emulated
def test_rows_of_two_bytes_are_taken() -> None:
    check_rows_taken("emulated uint16", [300])


def check_rows_taken(encoding: str, n_bins: list[int]) -> None:
    """Each row has the symbols that it had, in histograms and on a walk; there are more than expected."""
    rng, layout, threads = np.random.default_rng(6), make_layout(n_bins), EagerThreads(2)
    parts = [make_symbols(rng, n, n_bins) for n in (50, 3, 20)]
    chosen = [np.flatnonzero(rng.random(len(part)) < 0.4) for part in parts]
    chosen[1] = chosen[1][:0]
    views = [make_view(encoding, part, layout, 2) for part in parts]
    n_rows, room = sum(map(len, chosen)), room_of(views[0], layout, "columns" in encoding)
    for taken in ([np.arange(2)] * 3, chosen):  # in place of others
        room.clear()
        for part, own in zip(views, taken, strict=True):
            room.add(part, beside(part, own.astype(np.uint32)))
    view = room.view()
    symbols = np.concatenate([part[rows] for part, rows in zip(parts, chosen, strict=True)])
    rows = make_rows(view, n_rows, layout, threads)
    put_rows(rows.chunks[0], [list(range(n_rows))], np.arange(n_rows), np.ones(n_rows, np.int64))
    found = built(rows, None, np.zeros(1, np.int32))
    expected = histogram.histogram(
        symbols, range(n_rows), np.arange(n_rows), np.ones(n_rows, int), layout, "csr" not in encoding
    )
    assert (found[0] == expected).all()
    tree = random_tree(rng, 6, 7, n_bins)
    margins = walk_rows(view, tree, np.arange(n_rows, dtype=np.uint32), np.zeros((n_rows, 1), np.float32), 0, 1)
    assert margins[:, 0].tolist() == [tree.value[partition.leaf(tree, row, layout.n_bins)] for row in symbols]
