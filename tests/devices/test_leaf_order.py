"""Rows in the order of leaves: kernels against their naive twins, and views whose rows have moved."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout, make_pairs, make_symbols
from devices.histograms import build
from reference import leaf_order as reference

from daskboost.devices.cpu.rows import Pieces, Rounding
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.rows.gradients import ALL, Columns, Quantizer
from daskboost.devices.gpu.rows.leaf_order import leaf_order, taken
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.rows.row_state import DeviceOrder
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
from daskboost.devices.gpu.runtime.launches import Runtime, to_host


@pytest.mark.parametrize("n_trees", [1, 3])
@pytest.mark.parametrize("sizes", [[1], [0, 3, 0], [5, 60, 0, 2, 61, 1], [1_500, 7, 2_100], [1] * 1_100])
def test_leaves_lie_in_either_half(
    sizes: list[int], n_trees: int, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Leaves come in any order of their numbers; more than a block counts itself take a map of tiles."""
    n, half = sum(sizes), n_trees * sum(sizes)
    order, bounds = np.full(2 * half, 2**32 - 1, np.uint32), np.zeros((2 * len(sizes), 2), np.int64)
    nodes, segments = rng.permutation(2 * len(sizes))[: len(sizes)], []
    for node, begin, size in zip(nodes, accumulate(sizes, initial=0), sizes, strict=False):
        rows, first = rng.integers(0, 2**31, size), begin + int(rng.integers(2)) * half
        order[first : first + size] = rows
        bounds[node] = first, first + size
        segments.append((begin, rows.tolist()))
    chunk = DeviceOrder(runtime, n, None, n_trees)
    chunk.order[:], chunk.bounds = runtime.xp.asarray(order), runtime.xp.asarray(bounds)
    leaves = np.full(len(sizes) + 3, -1, np.int32)
    leaves[rng.permutation(len(leaves))[: len(sizes)]] = rng.permutation(nodes)
    found = leaf_order(runtime, chunk, runtime.xp.asarray(leaves))
    filled = [segment for segment in segments if segment[1]]
    assert to_host(found).tolist() == reference.leaf_order(filled)


@pytest.mark.parametrize("shape", [(1,), (700,), (301, 1), (257, 3), (40, 26)])
def test_values_are_numpys(shape: tuple[int, ...], runtime: Runtime, rng: np.random.Generator) -> None:
    values, order = rng.normal(size=shape).astype(np.float32), rng.permutation(shape[0]).astype(np.uint32)
    values[rng.random(shape) < 0.2] = np.nan
    found = taken(runtime, runtime.xp.asarray(values), runtime.xp.asarray(order))
    np.testing.assert_array_equal(to_host(found), values[order])


PIECES: dict[str, Pieces] = {
    "from the first on": ((0, 0),),
    "some": ((0, 7), (100, 1_000), (101, 2**31), (430, 2**32 - 71)),
    "listed": np.random.default_rng(0).permutation(501).astype(np.uint64),
}


@pytest.mark.parametrize("name", PIECES)
def test_rows_draw_by_the_ids_they_had(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    """Rows that have moved are quantized to the integers that they had before, whether all are drawn or some."""
    n, xp = 501, runtime.xp
    order = rng.permutation(n).astype(np.uint32)
    g, h = (rng.random(n).astype(np.float32) for _ in range(2))
    rounding = DeviceRounding(runtime, 1)
    rounding.put(0, Rounding(2.0**9, 2.0**9, 5, 3, ALL))
    ids = [reference.global_id(PIECES[name], row) for row in range(n)]
    found = []
    for moves in (False, True):
        quantizer, rows = Quantizer(runtime, PIECES[name], n), order if moves else np.arange(n)
        if moves:
            quantizer.put_in_order(xp.asarray(order))
            assert to_host(quantizer.pieces[0].view(np.uint32))[:n].tolist() == [ids[row] for row in order]
        columns = Columns(xp.asarray(g[rows]), xp.asarray(h[rows]))
        for below in (ALL, 2**31):
            places, pairs = xp.empty(n, np.uint32), xp.empty(n, np.int32)
            bounds, sums = xp.zeros((1, 2), np.int64), rounding.of(0)
            quantizer(columns, sums, below, places, pairs, bounds)
            kept = int(to_host(bounds)[0, 1])
            own = rows[to_host(places)[:kept]]
            found.append(dict(zip(own.tolist(), to_host(pairs)[:kept].tolist(), strict=True)))
    assert found[:2] == found[2:]
    assert len(found[0]) == n > len(found[1]) > 0


@pytest.mark.parametrize("copy_columns", [False, True])
@pytest.mark.parametrize(("n_bins", "dtype"), [
    ([9] * 25, np.uint8), ([30, 7, 60], np.uint8), ([200] * 39, np.uint8), ([300, 9, 900], np.uint16),
])  # fmt: skip
def test_a_views_rows_move(
    n_bins: list[int], dtype: Any, copy_columns: bool, runtime: Runtime, rng: np.random.Generator
) -> None:
    """With all copies of them; symbols that are lent stay as they are."""
    n, layout = 333, make_layout(n_bins)
    symbols, order = make_symbols(rng, n, n_bins).astype(dtype), rng.permutation(n).astype(np.uint32)
    device_layout, xp = DeviceLayout(runtime, layout), runtime.xp
    lent = DeviceSymbols.empty(runtime, device_layout.places(np.dtype(dtype)), n)
    lent.put(0, xp.asarray(symbols))

    def view(rows: Any) -> DenseView:
        return DenseView(device_layout, [rows], n, copy_columns=copy_columns, turn_rows=copy_columns)

    moved, expected = view(lent), view(symbols[order])
    n_bytes = moved.nbytes
    moved.put_in_order(xp.asarray(order))
    np.testing.assert_array_equal(to_host(lent.rows(0, n)), symbols)
    assert moved.nbytes == n_bytes == expected.nbytes
    for own, other in zip(moved.planes, expected.planes, strict=True):
        np.testing.assert_array_equal(to_host(own), to_host(other))
    np.testing.assert_array_equal(to_host(moved.symbols[0]), to_host(expected.symbols[0]))
    segments, (g, h) = [list(range(n))], make_pairs(rng, n)
    found, wanted = (build(each, layout, segments, g, h, in_order=True) for each in (moved, expected))
    np.testing.assert_array_equal(found, wanted)
