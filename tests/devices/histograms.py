"""Views on a GPU and histograms of any of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from devices.backends import pack

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.runtime import Runtime, to_host
from daskboost.devices.gpu.tiles import map_tiles
from daskboost.devices.gpu.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.dtypes import Int64


def dense(runtime: Runtime, symbols: Any, layout: SlotLayout, dtype: Any = np.uint8) -> DenseView:
    parts = np.array_split(symbols.astype(dtype), [len(symbols) // 3])
    return DenseView(DeviceLayout(runtime, layout), parts, len(symbols), copy_columns=False)


def sparse(runtime: Runtime, symbols: Any, layout: SlotLayout) -> SparseView:
    present = symbols < layout.n_bins
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseView(DeviceLayout(runtime, layout), indptr, (symbols + layout.offsets[:-1])[present].astype(np.int32))


def build(view: Any, layout: SlotLayout, segments: list[list[int]], g: Any, h: Any, nodes: list[int] | None = None,
          in_order: bool = False, data: str = "large", packed: bool = False) -> Int64:  # fmt: skip
    """Histograms of nodes whose rows are `segments`; `in_order` : these are neighbours, and positions are rows."""
    runtime, xp = view.runtime, view.runtime.xp
    rows = np.array([row for segment in segments for row in segment], np.uint32)
    ends = np.cumsum([len(segment) for segment in segments])
    bounds = xp.asarray(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64))
    wanted = np.array(range(len(segments)) if nodes is None else nodes, np.int32)
    tiles = map_tiles(runtime, bounds, xp.asarray(wanted), 16, len(rows))
    pairs = xp.asarray(pack(g[rows], h[rows], np.int64 if data == "small" else np.int32))
    out = xp.ones((len(wanted), layout.n_slots, 2), np.int64)
    as_view: GpuView = view
    as_view.add_rows(tiles, None if in_order else xp.asarray(rows), pairs, out, packed=packed)
    return to_host(out) - 1
