"""Nodes' rows cut into tiles, the work of one block each (`kernels/tiles.cuh`). Sizes never leave the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, Runtime

THREADS = 1024
"""As in `kernels/tiles.cu`."""


@dataclass(frozen=True)
class Tiles:
    """The tiles of some nodes' segments."""

    bounds: DeviceArray
    """Segment of each tree node; int64, shape (nodes of the tree, 2)."""
    nodes: DeviceArray
    """int32, shape (segments,); -1 has no rows."""
    starts: DeviceArray
    """Tiles before each segment; int32, shape (segments + 1,)."""
    tile_rows: int
    most: int
    """At most so many tiles: a grid of as many blocks, of which some may find nothing to do."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take them whose tiles have `tile_rows` rows at run time."""
        return (self.bounds, self.nodes, self.starts, len(self.nodes), self.tile_rows)


def map_tiles(runtime: Runtime, bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """Cut the segments of `nodes`, which have at most `n_rows` rows together."""
    starts = runtime.xp.empty(len(nodes) + 1, np.int32)
    runtime.kernel("tiles", "map_tiles")(1, THREADS, bounds, nodes, len(nodes), tile_rows, starts)
    return Tiles(bounds, nodes, starts, tile_rows, n_rows // tile_rows + len(nodes))
