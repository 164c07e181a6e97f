"""Rows go to the nodes of a tree that is known whole: level by level, as `kernels/partition.cu` moves them.

A walk and a sort by node would move rows once where this moves them per level, but wants another order of them, counts
per block and node, and memory for all; a level's move of what a chunk brings takes a tenth of the time to bring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.gpu.refit import PairSegments
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device
from daskboost.devices.gpu.tiles import count_tiles, rows_per_tile
from daskboost.devices.gpu.views import small_data

THREADS = 256
"""Threads of a block, as in `kernels/frontier.cu`."""


@dataclass(frozen=True)
class KnownTree:
    """A tree on the device, whose leaves are places."""

    levels: Sequence[DeviceArray]
    """Splits of each level that lead to places, as `kernels/partition.cu` takes them; int32, shape (6, splits)."""
    leaves: DeviceArray
    """The node of each place; int32."""
    n_nodes: int
    """Nodes of the tree, and one that no rows reach."""

    @property
    def most_splits(self) -> int:
        """Most splits of a level."""
        return max((splits.shape[1] for splits in self.levels), default=0)


def known_tree(runtime: Runtime, tree: WalkArrays, n_places: int) -> KnownTree:
    """A tree whose leaves hold places 0 to `n_places` as values, or negative ones where rows are not wanted."""
    left, right = tree.left_child, tree.right_child
    levels, at = [], np.zeros(1, np.int64)
    leads = np.zeros(len(left), np.bool_)
    leaves = np.full(n_places, len(left), np.int32)
    while len(at):
        inner, ends = at[left[at] >= 0], at[left[at] < 0]
        ends = ends[tree.value[ends] >= 0]
        leads[ends] = True
        leaves[tree.value[ends].astype(np.int64)] = ends
        levels.append(inner)
        at = np.concatenate([left[inner], right[inner]]).astype(np.int64)
    for inner in reversed(levels):
        leads[inner] = leads[left[inner]] | leads[right[inner]]
    chosen = [inner[leads[inner]] for inner in levels]
    columns = (left, right, tree.feature, tree.split_bin, tree.default_left)
    uploaded = [
        to_device(runtime, np.stack([np.asarray(each, np.int32) for each in (inner, *(own[inner] for own in columns))]))
        for inner in chosen if len(inner)
    ]  # fmt: skip
    return KnownTree(uploaded, to_device(runtime, leaves), len(left) + 1)


def sum_segments(runtime: Runtime, chunk: PairSegments, nodes: DeviceArray, sums: DeviceArray) -> None:
    """Enqueue: `sums`, int64 of shape (nodes, 2), grow by the g and h of the nodes' rows."""
    if chunk.n_rows == 0 or len(nodes) == 0:
        return
    tile_rows = rows_per_tile(runtime, chunk.n_rows)
    tiles = count_tiles(runtime, chunk.bounds, nodes, tile_rows, chunk.n_rows)
    runtime.kernel("frontier", "sum_segments", SMALL=small_data(chunk.pairs))(
        tiles.most, THREADS, tiles.bounds, nodes, tiles.starts, len(nodes), tile_rows, chunk.pairs,
        sums.view(np.uint64),
    )  # fmt: skip
