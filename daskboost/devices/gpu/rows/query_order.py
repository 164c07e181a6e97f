"""Queries on a GPU by their sizes: small ones have blocks, which sort their rows; others are sorted by launches of
`kernels/sort_queries.cu`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    Runtime,
    Shapes,
    element_stride,
    make_arrays,
    overwrite,
    to_device,
)
from daskboost.dtypes import Int64

WARP = 32
WARP_ROWS = 128
"""Rows of a query that a warp has."""
MOST_WARPS = 16
"""Most warps of a block that has a query, where its kernel takes as many."""
THREADS = 512
"""Threads of a block that has a tile."""
TILE = 2048
"""Rows of a larger query that a block sorts."""
STATIC_BYTES = 512
"""Bytes of shared memory that a block has beside those that are asked for, at most."""

@dataclass(frozen=True)
class BlockSize:
    """How large blocks are that have queries."""

    bytes_of: Callable[[int], int]
    """Bytes of dynamic shared memory of one that has a query of so many rows."""
    most_warps: int = MOST_WARPS
    """Warps of one, at most."""


def room(n_rows: int) -> int:
    """Return the least power of two from a number of rows on, as many as a block sorts."""
    return 1 << max(n_rows - 1, 0).bit_length()


def padded(n_rows: int) -> int:
    """Return the least multiple of a warp's lanes from a number on."""
    return -(-n_rows // WARP) * WARP


def most_block_rows(size: BlockSize, shared_bytes: int) -> int:
    """Return the most rows of a query that has a block, by the shared memory that one may have."""
    most = WARP_ROWS * size.most_warps
    while size.bytes_of(most) + STATIC_BYTES > shared_bytes:
        most //= 2
    return most


def sort_shapes(n_rows: int, n_tiles: int) -> Shapes:
    """Return the shapes of what sorts queries that have no block; `n_rows` : of these, each query's padded."""
    return {"tiles": ((n_tiles, 5), np.int64), "keys": ((2, n_rows), np.uint64)}


@dataclass(frozen=True)
class Blocks:
    """Queries that have blocks of as many threads."""

    which: DeviceArray
    threads: int
    shared_bytes: int


class LargeQueries:
    """Queries that have no block, `which` of these sizes."""

    def __init__(self, runtime: Runtime, which: Int64, sizes: Int64) -> None:
        self._runtime, self._most = runtime, int(sizes.max())
        bases, tiles = np.cumsum([0, *(padded(n) for n in sizes.tolist())]), []
        for number, (query, n) in enumerate(zip(which.tolist(), sizes.tolist(), strict=True)):
            tiles += [(query, number, int(bases[number]), first, n) for first in range(0, n, TILE)]
        self.n_queries, self.n_rows, self.n_tiles = len(which), int(bases[-1]), len(tiles)
        made = make_arrays(runtime, sort_shapes(self.n_rows, self.n_tiles))
        self.tiles, self._keys = made["tiles"], made["keys"]
        overwrite(runtime, self.tiles, np.array(tiles, np.int64))

    def sorted_keys(self, begins: DeviceArray, order: DeviceArray, scores: DeviceArray) -> DeviceArray:
        """Enqueue the sort by `scores` of all rows, float32 of any stride; return where the keys will be."""
        keys: DeviceArray
        keys, merged = self._keys
        self._runtime.kernel("sort_queries", "sort_tiles", THREADS=THREADS)(
            self.n_tiles, THREADS, self.tiles, begins, order, scores, element_stride(scores), keys
        )
        run = TILE
        while run < self._most:
            self._runtime.kernel("sort_queries", "merge_tiles", THREADS=THREADS)(
                self.n_tiles, THREADS, self.tiles, keys, run, merged
            )
            keys, merged, run = merged, keys, 2 * run
        return keys


class QueryOrder:
    """Queries of these sizes by how they are sorted."""

    def __init__(self, runtime: Runtime, sizes: Int64, of_blocks: BlockSize) -> None:
        most = most_block_rows(of_blocks, runtime.shared_bytes)
        self.blocks: list[Blocks] = []
        """In each class the largest queries first."""
        edges = [0, *(rows for k in range(MOST_WARPS.bit_length()) if (rows := WARP_ROWS << k) <= most)]
        for least, largest in pairwise(edges):
            which = np.flatnonzero((sizes > least) & (sizes <= largest))
            if len(which):
                which = which[np.argsort(-sizes[which], kind="stable")]
                on_device = to_device(runtime, which.astype(np.uint32))
                own_bytes = of_blocks.bytes_of(int(sizes[which[0]]))
                self.blocks.append(Blocks(on_device, largest // WARP_ROWS * WARP, own_bytes))
        large = np.flatnonzero(sizes > most)
        self.large = LargeQueries(runtime, large, sizes[large]) if len(large) else None
