"""Gradients quantized on the GPU, its emulation and the CPU against their naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout, unpack
from kernels.runtimes import RUNTIMES
from reference import gradients as reference
from strategies.pairs import every_pair

from daskboost.devices.cpu.gradients import Gradients, RowRange, quantize_gradients
from daskboost.devices.cpu.rows import CpuRows, Rounding
from daskboost.devices.gpu.rows.gradients import Columns, Quantizer, largest
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.rows.row_state import GpuRows
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.runtime.stretches import TILE_ROWS
from daskboost.devices.row_order import RowOrder
from daskboost.dtypes import Float32


def quantize_on(make_runtime: Any, g: Any, h: Any, weight: Float32 | None, rounding: Rounding, first_row: int
                ) -> tuple[Any, Any, tuple[int, int]]:  # fmt: skip
    """Kept rows, their pairs, and the sums, by the CPU's kernel or a runtime's."""
    dtype: Any = np.int32 if weight is None else np.int64
    if make_runtime is None:
        order, pairs = np.zeros(len(g), np.uint32), np.zeros(len(g), dtype)
        rows, into = RowRange(0, len(g), first_row), RowOrder(order, pairs)
        kept, *sums = quantize_gradients(Gradients(g, h, weight), rounding.quanta, rounding.draw, rows, into)
        return order[:kept], pairs[:kept], (sums[0], sums[1])
    runtime: Runtime = make_runtime()
    xp = runtime.xp
    order, pairs, bounds = xp.zeros(len(g), np.uint32), xp.zeros(len(g), dtype), xp.full((3, 2), 7, np.int64)
    state = DeviceRounding(runtime, 2)
    state.put(1, rounding)
    pieces: Any = [(0, first_row)]
    if first_row == 2**40:  # one by one
        pieces = np.arange(first_row, first_row + len(g), dtype=np.uint64)
    quantizer = Quantizer(runtime, pieces, len(g), None if weight is None else xp.asarray(weight))
    columns = Columns(xp.asarray(g), xp.asarray(h))
    quantizer(columns, state.of(1), rounding.sample_below, order, pairs, bounds)
    found = to_host(bounds).tolist()
    assert found[0][0] == 0 and found[1:] == [[7, 7], [7, 7]] and state.sums_of(0) == (0, 0)
    kept = found[0][1]
    return to_host(order[:kept]), to_host(pairs[:kept]), state.sums_of(1)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.01, 0.0])
@pytest.mark.parametrize("n", [0, 1, 33, TILE_ROWS, 2 * TILE_ROWS + 77])
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_equals_the_naive_twin(make_runtime: Any, n: int, share: float, small: bool, rng: np.random.Generator) -> None:
    g, h = rng.normal(size=(n, 3)).astype(np.float32), rng.random((n, 2)).astype(np.float32)
    weight = None
    if small:
        weight = (rng.integers(0, 3, n) * rng.random(n)).astype(np.float32)
        weight[:1] = 1  # not all are zero
    scales = reference.scales(g[:, 1], h[:, 0], weight) if n else (1.0, 1.0, 1.0)
    keys = reference.key(3, 1), reference.key(3, 2)
    rounding = Rounding(scales[0], scales[1], *keys, int(np.ceil(share * 2**32)), scales[2])
    for first_row in (0, 2**40, 2**63 - 1 - n):
        order, pairs, sums = quantize_on(make_runtime, g[:, 1], h[:, 0], weight, rounding, first_row)
        expected = reference.quantize(g[:, 1], h[:, 0], rounding, first_row, weight)
        assert [(row, *pair) for row, *pair in zip(order, *unpack(pairs), strict=True)] == expected
        assert sums == (sum(row[1] for row in expected), sum(row[2] for row in expected))


@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_extreme_gradients(make_runtime: Any) -> None:
    for top in (1e-45, 1e-30, 0.99999994, 32767.0, 32767.5, 32768.0, 3.4e38):
        g = np.array([top, -top, 0, -0.0], np.float32)
        scale_g, scale_h, _ = reference.scales(g, np.abs(g))
        rounding = Rounding(scale_g, scale_h, 5, 6, 2**32)
        _, pairs, _ = quantize_on(make_runtime, g, np.abs(g), None, rounding, 0)
        found = list(zip(*(part.tolist() for part in unpack(pairs)), strict=True))
        assert found == [pair[1:] for pair in reference.quantize(g, np.abs(g), rounding)], top


@pytest.mark.parametrize("n_columns", [1, 3, 80, 256, 300])
@pytest.mark.parametrize("n_rows", [0, 1, 40, 3_001])
def test_largest_of_columns(n_rows: int, n_columns: int, runtime: Runtime, rng: np.random.Generator) -> None:
    values = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    values[:, ::2] = -np.abs(values[:, ::2])
    values[n_rows // 2 :, 0] = 1e-45
    if n_rows > 1 and n_columns > 2:
        values[-1, 1], values[n_rows // 3, 2], values[0, 2] = np.inf, np.nan, np.inf
    found = largest(runtime, runtime.xp.asarray(values))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.abs(values).max(axis=0, initial=0))


@every_pair({
    "small": [False, True], "share": [1.0, 0.4], "n": [1, 33, 2 * TILE_ROWS + 77],
    "make_runtime": [pytest.param(None, id="cpu"), *RUNTIMES],
})  # fmt: skip
def test_rows_of_a_query_are_drawn_together(
    make_runtime: Any, n: int, share: float, small: bool, rng: np.random.Generator
) -> None:
    """Codes decide who is drawn, ids alone how gradients are rounded; any 64 bits are a code."""
    g, h = rng.normal(size=n).astype(np.float32), rng.random(n).astype(np.float32)
    weight = rng.integers(1, 3, n).astype(np.float32) if small else None
    scale_g, scale_h, scale_w = reference.scales(g, h, weight)
    keys = reference.key(3, 1), reference.key(3, 2)
    rounding = Rounding(scale_g, scale_h, *keys, int(np.ceil(share * 2**32)), scale_w)
    query = rng.integers(0, 1 + n // 20, n)
    codes = rng.integers(0, 2**64, 1 + n // 20, np.uint64)[query]
    weights, layout = None if weight is None else [weight], make_layout([2])
    rows: Any
    if make_runtime is None:
        rows, put = CpuRows(list, [n], [[(0, 9)]], layout, EagerThreads(3), weights), np.asarray
    else:
        runtime = make_runtime()
        rows, put = GpuRows(runtime, list, [n], [[(0, 9)]], layout, weights), runtime.xp.asarray
    rows.draw_by([codes])
    rows.start_tree(lambda _: (put(g), put(h)), rounding)
    chunk = rows.chunks[0]
    order = to_host(chunk.order[: chunk.kept])
    found = zip(order, *unpack(to_host(chunk.pairs[: chunk.kept])), strict=True)
    assert list(found) == reference.quantize(g, h, rounding, 9, weight, codes)
    assert not set(query[order]) & set(np.delete(query, order))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_stretches_of_rows(share: float, runtime: Runtime, rng: np.random.Generator) -> None:
    """Neighbours with consecutive global ids, which are quantized together, and others."""
    g, h = rng.normal(size=300).astype(np.float32), rng.random(300).astype(np.float32)
    scale_g, scale_h, scale_w = reference.scales(g, h, None)
    keys = reference.key(3, 1), reference.key(3, 2)
    rounding = Rounding(scale_g, scale_h, *keys, int(np.ceil(share * 2**32)), scale_w)
    pieces = [(0, 50), (70, 120), (150, 1_000), (151, 1_001), (200, 1_051)]
    rows = GpuRows(runtime, lambda: (), [300], [pieces], make_layout([2]))
    xp = runtime.xp
    sums = rows.start_tree(lambda _: (xp.asarray(g), xp.asarray(h)), rounding)
    expected = []
    for (begin, first_row), end in zip(pieces, [70, 150, 151, 200, 300], strict=True):
        part = reference.quantize(g[begin:end], h[begin:end], rounding, first_row)
        expected += [(begin + row, *pair) for row, *pair in part]
    chunk = rows.chunks[0]
    found = zip(to_host(chunk.order[: chunk.kept]), *unpack(to_host(chunk.pairs[: chunk.kept])), strict=True)
    assert list(found) == expected
    assert sums == (sum(row[1] for row in expected), sum(row[2] for row in expected))
