"""Views on a GPU and histograms of any of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from devices.backends import csr, pack

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.feature_groups import cut_tiles
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, SparseView
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.dtypes import Int64

GARBAGE = 0x5A5A5A5A5A5A5A5A


def dense(runtime: Runtime, symbols: Any, layout: SlotLayout, dtype: Any = np.uint8, *, turn_rows: bool = False
          ) -> DenseView:  # fmt: skip
    parts = np.array_split(symbols.astype(dtype), [len(symbols) // 3])
    return DenseView(DeviceLayout(runtime, layout), parts, len(symbols), copy_columns=False, turn_rows=turn_rows)


def sparse(runtime: Runtime, symbols: Any, layout: SlotLayout) -> SparseView:
    return SparseView(DeviceLayout(runtime, layout), *csr(symbols, layout))


def build(view: DenseView | SparseView, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any,
          nodes: list[int] | None = None, in_order: bool = False, data: str = "large") -> Int64:  # fmt: skip
    """Histograms of nodes whose rows are `segments`, where there was garbage before; a node of -1 is all zeros.

    `in_order` : segments are neighbours, and positions are rows.
    """
    xp = view.runtime.xp
    rows = np.array([row for segment in segments for row in segment], np.uint32)
    ends = np.cumsum([len(segment) for segment in segments])
    bounds = xp.asarray(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64))
    wanted = np.array(range(len(segments)) if nodes is None else nodes, np.int32)
    tiles = cut_tiles(bounds, xp.asarray(wanted), 16, len(rows))
    pairs = xp.asarray(pack(g[rows], h[rows], np.int64 if data == "small" else np.int32))
    order = None if in_order else xp.asarray(rows)
    out = xp.full((len(wanted), layout.n_slots, 2), GARBAGE, np.int64)
    view.build(tiles, order, pairs, out)
    found = to_host(out).copy()
    found[wanted < 0] = 0  # undefined
    view.build(tiles, order, pairs, out, adds=True)
    np.testing.assert_array_equal(to_host(out)[wanted >= 0], 2 * found[wanted >= 0])
    return found
