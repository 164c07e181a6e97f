"""Rows on a GPU whose features of few slots have symbols of one byte, where others have two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout
from devices.histograms import build
from devices.test_histogram_groups import members, naive

from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.rows.feature_groups import feature_groups, mixed_row_bytes
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
from daskboost.devices.gpu.runtime.launches import to_host


def test_features_of_few_slots_take_a_byte_where_widths_mix() -> None:
    kib = 1024
    slots = np.array([256] * 20 + [60_000, 300] + [9] * 3)
    groups = feature_groups(slots, 2, 227 * kib, mixes=True)
    assert [each.symbol_bytes for each in groups] == [1, 1, 2]
    assert members(groups) == [
        (32, 0, 20, 256), (4, 22, 3, 9), (1, 20, 1, 20480), (1, 20, 1, 20480), (1, 20, 1, 60_000 - 2 * 20480),
        (1, 21, 1, 300),
    ]  # fmt: skip
    assert mixed_row_bytes(slots) == 32 + 2 * 2 + 4
    assert mixed_row_bytes(np.array([300, 400])) == mixed_row_bytes(np.array([3, 256])) == 0
    assert feature_groups(slots[20:22], 2, 227 * kib, mixes=True)[0].symbol_bytes == 2


@pytest.mark.parametrize("is_there", [False, True])
def test_histograms_of_mixed_widths(is_there: bool, runtime: Any, rng: np.random.Generator) -> None:
    """Of rows in the host's memory, and of those on the device, in order or not; columns have all symbols."""
    n_rows, n_bins = 700, [255, 9, 700, 4, 60, 30_000, 256]
    layout = make_layout(n_bins)
    symbols = np.stack([rng.integers(0, n, n_rows) for n in n_bins], axis=1)
    device_layout = DeviceLayout(runtime, layout)
    parts: list[Any] = [symbols[:300].astype(np.uint16), symbols[300:].astype(np.uint16)]
    if is_there:
        there = DeviceSymbols.empty(runtime, device_layout.places(np.dtype(np.uint16)), n_rows)
        there.put(0, runtime.xp.asarray(symbols.astype(np.uint16)))
        parts = [there]
    view = DenseView(device_layout, parts, n_rows, copy_columns=True, mixes=True)
    assert {planes.dtype.itemsize for planes in view.planes} == {1, 2}
    assert view.nbytes < 2 * 2 * n_rows * len(n_bins) + n_rows * 10
    np.testing.assert_array_equal(to_host(view.by_feature), symbols.T)
    g, h = rng.integers(-9, 10, n_rows), rng.integers(0, 9, n_rows)
    for rows, in_order in (list(range(n_rows)), True), (rng.permutation(n_rows)[:500].tolist(), False):
        expected = naive(symbols, layout, [rows], g, h)[0]
        np.testing.assert_array_equal(build(view, layout, [rows], g, h, in_order=in_order)[0], expected)
    view.put_in_order(runtime.xp.asarray(np.arange(n_rows)[::-1].astype(np.uint32)))
    np.testing.assert_array_equal(to_host(view.by_feature), symbols[::-1].T)
    expected = naive(symbols[::-1], layout, [list(range(n_rows))], g, h)[0]
    np.testing.assert_array_equal(build(view, layout, [list(range(n_rows))], g, h, in_order=True)[0], expected)
