"""Which histograms a level's blocks store, and which they add to zeros; sums that spill on the way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from devices.backends import LARGE, make_layout, make_pairs, make_symbols, pack
from devices.histograms import GARBAGE, build, dense
from reference import histogram as reference
from reference.shares import owners

from daskboost.devices.gpu.rows.feature_groups import cut_tiles, mapped
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.runtime.launches import to_host

TILE = 16
"""Rows of a tile, as `devices.histograms.build` has them."""
SIZES = [[1], [0], [40], [16, 32, 16], [5, 0, 0, 70, 3, 16, 0, 33], [0, 0, 0, 0, 0, 0, 0, 0, 0, 9], [200, 7, 1]]


@pytest.mark.parametrize("least_tiles", [1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 4, 7, 40])
@pytest.mark.parametrize("maps", [False, True])
def test_zeros_are_where_blocks_add_and_where_nobody_does(
    maps: bool, blocks: int, least_tiles: int, runtime: Any
) -> None:
    """Features of 5, 3, 4 and 90 bins: a group of two, one of one, and two of a single feature's bins."""
    xp, offsets = runtime.xp, np.array([0, 5, 8, 12, 102], np.int64)
    groups = np.array([[0, 0, 2, 0, 5], [1, 2, 1, 0, 4], [2, 3, 1, 0, 64], [2, 3, 1, 64, 26]], np.int32)
    slots = [slice(0, 8), slice(8, 12), slice(12, 76), slice(76, 102)]
    for sizes in [*SIZES, [1] * 255, [17 * (i % 3) for i in range(130)]]:
        ends = np.cumsum([0, *sizes])
        bounds = xp.asarray(np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64))
        nodes = np.array([*range(len(sizes)), -1], np.int32)
        tiles = mapped(runtime, cut_tiles(bounds, xp.asarray(nodes), TILE, int(ends[-1])), least_tiles)
        assert tiles.starts is not None
        out = xp.full((len(nodes), 102, 2), GARBAGE, np.int64)
        starts = to_host(tiles.starts)
        if maps:
            tiles.starts.fill(-1)
        runtime.kernel("histogram_zeros", "zero_divided")(
            blocks, 256, xp.asarray(groups), len(groups), least_tiles, blocks, xp.asarray(offsets), 4,
            *tiles.arguments, int(maps), out.view(np.uint64),
        )  # fmt: skip
        np.testing.assert_array_equal(to_host(tiles.starts), starts)
        expected = np.full((len(nodes), 102, 2), GARBAGE)
        shared = owners([-(-n // TILE) for n in [*sizes, 0]], len(groups), least_tiles, blocks)
        for (segment, group), own in shared.items():
            if nodes[segment] >= 0 and len(own) != 1:
                expected[segment, slots[group]] = 0
        np.testing.assert_array_equal(to_host(out), expected, err_msg=str(sizes))


@pytest.mark.parametrize("n_blocks", [1, 3, 8])
@pytest.mark.parametrize("in_order, turned", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("large", [*LARGE, pytest.param(None, marks=pytest.mark.gpu)])
def test_blocks_meet_nodes_in_part_and_whole(large: Any, in_order: bool, turned: bool, n_blocks: int,
                                             rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:  # fmt: skip
    """In order: skewed, the only group of 21 features; else also a group of four columns."""
    runtime = large or get_runtime()
    monkeypatch.setattr(runtime, "multiprocessors", n_blocks)
    n_bins = [int(n) for n in rng.integers(1, 120, 21 if in_order else 36)]
    layout, symbols = make_layout(n_bins), make_symbols(rng, 400, n_bins)
    view = dense(runtime, symbols, layout, turn_rows=turned)
    g, h = make_pairs(rng, 400)
    for sizes in SIZES[2:]:
        ends = np.cumsum([0, *sizes])
        segments = [list(range(*each)) for each in pairwise(ends)]
        found = build(view, layout, segments, g, h, in_order=in_order)
        for own, rows in zip(found, segments, strict=True):
            np.testing.assert_array_equal(own, reference.histogram(symbols, rows, g[rows], h[rows], layout, True))


@pytest.mark.parametrize("n_blocks", [1, 2], ids=["whole", "divided"])
@pytest.mark.parametrize("n_features, dtype, in_order, turned", [
    (2, "u2", True, False), (3, "u1", False, False), (20, "u1", True, False), (20, "u1", True, True),
])  # fmt: skip
@pytest.mark.parametrize("large", [*LARGE[:1], pytest.param(None, marks=pytest.mark.gpu)])
def test_sums_that_spill(large: Any, n_features: int, dtype: str, in_order: bool, turned: bool, n_blocks: int,
                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Each block has over 65,536 of the first node's rows, nearly all in one bin."""
    runtime = large or get_runtime()
    monkeypatch.setattr(runtime, "multiprocessors", n_blocks)
    n_rows, n_bins = n_blocks * 66_000, [3 + feature for feature in range(n_features)]
    layout = make_layout(n_bins)
    symbols = np.minimum(np.arange(n_rows)[:, None] % 1000, np.array(n_bins))
    ends = [0, n_rows - 20, n_rows]
    g = np.where(np.arange(n_rows) % 1000 == 1, 2**15 - 1, -(2**15))
    h = np.full(n_rows, 2**15 - 1)
    segments = [list(range(*each)) for each in pairwise(ends)]
    view = dense(runtime, symbols, layout, np.dtype(dtype), turn_rows=turned)
    found = build(view, layout, segments, g, h, in_order=in_order)
    for own, rows in zip(found, segments, strict=True):
        for feature, first in enumerate(layout.offsets[:-1]):
            expected = np.zeros((n_bins[feature] + 1, 2), np.int64)
            np.add.at(expected, symbols[rows, feature], np.stack([g[rows], h[rows]], axis=1))
            np.testing.assert_array_equal(own[first : first + len(expected)], expected)


@pytest.mark.parametrize("n_nodes, n_bins", [(3, [90] * 8 + [4_000] * 3 + [12_000]), (260, [90, 300])],
                         ids=["several leads", "many nodes"])  # fmt: skip
@pytest.mark.parametrize("large", [*LARGE[:1], pytest.param(None, marks=pytest.mark.gpu)])
def test_each_width_of_symbols_has_a_map_of_its_own(large: Any, n_nodes: int, n_bins: list[int],
                                                    rng: np.random.Generator) -> None:  # fmt: skip
    """A map that tiles came with stays as it was: others read it."""
    runtime, n_rows = large or get_runtime(), 2 * n_nodes
    layout, symbols = make_layout(n_bins), make_symbols(rng, n_rows, n_bins)
    view = dense(runtime, symbols, layout, np.dtype("u2"))
    (g, h), xp = make_pairs(rng, n_rows), runtime.xp
    ends = 2 * np.arange(n_nodes + 1)
    bounds = xp.asarray(np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64))
    cut = cut_tiles(bounds, xp.arange(n_nodes, dtype=np.int32), TILE, n_rows)
    given = mapped(runtime, cut)
    assert given.starts is not None
    starts, pairs = to_host(given.starts).copy(), xp.asarray(pack(g, h, np.int32))
    found = [xp.full((n_nodes, layout.n_slots, 2), GARBAGE, np.int64) for _ in range(2)]
    for tiles, out in zip((cut, given), found, strict=True):
        view.build(tiles, xp.arange(n_rows, dtype=np.uint32), pairs, out)
        view.build(tiles, xp.arange(n_rows, dtype=np.uint32), pairs, out, adds=True)
    np.testing.assert_array_equal(to_host(given.starts), starts)
    np.testing.assert_array_equal(to_host(found[0]), to_host(found[1]))
    for node in range(0, n_nodes, 37):
        rows = [2 * node, 2 * node + 1]
        expected = 2 * reference.histogram(symbols, rows, g[rows], h[rows], layout, True)
        np.testing.assert_array_equal(to_host(found[0][node]), expected)
