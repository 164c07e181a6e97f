"""Nodes' rows cut into tiles, the work of one block each (`kernels/tiles.cuh`). Sizes never leave the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, Runtime

THREADS = 1024
"""Threads of a block, as in `kernels/tiles.cu`."""
MOST_COUNTED = 1024
"""Segments whose tiles a block counts itself (`kernels/block_tile.cuh`); a map costs less than counting more."""
LEAST_TILE_ROWS = 1024
"""Four warps with eight rows per thread, as `kernels/partition.cu` and `margins.cu` take them."""
MOST_TILE_ROWS = 1 << 15
"""Bounds the flags of tiles that are mostly empty."""
TILES_PER_PROCESSOR = 24
"""Two or three rounds of the blocks that run at the same time."""


@dataclass(frozen=True)
class Tiles:
    """The tiles of some nodes' segments."""

    bounds: DeviceArray
    """Segment of each tree node; int64, shape (nodes of the tree, 2)."""
    nodes: DeviceArray
    """int32, shape (segments,); -1 has no rows."""
    starts: DeviceArray | None
    """Tiles before each segment; int32, shape (segments + 1,). None where blocks count tiles themselves."""
    tile_rows: int
    most: int
    """At most so many tiles: a grid of as many blocks, of which some may find nothing to do."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The tiles as kernels take them whose tiles have `tile_rows` rows at run time."""
        return (self.bounds, self.nodes, self.starts, len(self.nodes), self.tile_rows)


def map_tiles(runtime: Runtime, bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """Cut the segments of `nodes`, which have at most `n_rows` rows together."""
    starts = runtime.xp.empty(len(nodes) + 1, np.int32)
    runtime.kernel("tiles", "map_tiles")(1, THREADS, bounds, nodes, len(nodes), tile_rows, starts)
    return Tiles(bounds, nodes, starts, tile_rows, n_rows // tile_rows + len(nodes))


def count_tiles(runtime: Runtime, bounds: DeviceArray, nodes: DeviceArray, tile_rows: int, n_rows: int) -> Tiles:
    """The same for kernels that take their tile from `tile_of_block`, which need a map of many segments only."""
    if len(nodes) > MOST_COUNTED:
        return map_tiles(runtime, bounds, nodes, tile_rows, n_rows)
    return Tiles(bounds, nodes, None, tile_rows, n_rows // tile_rows + len(nodes))


def rows_per_tile(runtime: Runtime, n_rows: int) -> int:
    """Return the rows of a tile of kernels that touch each row once: a power of two; so many tiles that the GPU is busy
    to the end.

    And no more: a block that moves rows reads the counts of all tiles of its segment. It follows from the rows of the
    chunk alone, so that the memory that tiles need grows with the segments.
    """
    rows = n_rows // (runtime.multiprocessors * TILES_PER_PROCESSOR)
    return min(max(1 << rows.bit_length(), LEAST_TILE_ROWS), MOST_TILE_ROWS)
