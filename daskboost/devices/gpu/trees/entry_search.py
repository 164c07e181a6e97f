"""The best splits of many nodes, found in sorted entries: launches of `kernels/split_entries.cu`."""

from __future__ import annotations

import numpy as np

from daskboost.devices.budget.set_size import SetSize
from daskboost.devices.cpu.split import Regular
from daskboost.devices.gpu.rows.feature_groups import map_tiles
from daskboost.devices.gpu.rows.row_state import ChunkRows
from daskboost.devices.gpu.rows.views import small_data
from daskboost.devices.gpu.runtime.launches import DeviceArray, KernelArgument
from daskboost.devices.gpu.trees.sorted_entries import THREADS, TILE, SortedEntries, most_sums, most_tiles
from daskboost.devices.gpu.trees.sparse_columns import place_rows
from daskboost.devices.gpu.trees.split import RESULTS, WARP, Level, SplitKernels

STATE_ROWS = 256
"""Rows of a tile whose nodes are looked up."""
BLOCKS = 3
"""Blocks of a multiprocessor at the same time, as `kernels/split_entries.cu` bounds registers for: each has an equal
share of the tiles, so that more would only wait for them."""
EXACT_BLOCKS = 2
"""The same of the variant EXACT, which takes more registers."""
MOST_BLOCKS = 512
"""Enough for any GPU, as plans count."""
BEST_BYTES = 32
"""Bytes of `Best`."""
SUM_BYTES = 16
"""Bytes of a slice's sums of a node."""


class EntrySearch:
    """Searches many nodes of one tree together.

    Parameters
    ----------
    kernels : SplitKernels
    entries : SortedEntries
        Of all rows of the only chunk.
    n_nodes : int
        Most nodes of a search.
    """

    def __init__(self, kernels: SplitKernels, entries: SortedEntries, n_nodes: int) -> None:
        self._kernels, self._runtime, self._entries = kernels, kernels.runtime, entries
        self._blocks = min(BLOCKS * self._runtime.multiprocessors, MOST_BLOCKS, entries.n_tiles)
        xp = self._runtime.xp
        self._before = xp.empty((entries.n_sums * n_nodes, 2), np.int64)
        self._found = xp.empty((self._blocks * n_nodes, BEST_BYTES // 8), np.int64)
        self.room = kernels.result_room(n_nodes)
        """Where a search's splits are, and what other GPUs find."""

    def best_per_node(self, level: Level, regular: Regular, nodes: DeviceArray, rows: ChunkRows, *, is_root: bool
                      ) -> DeviceArray:  # fmt: skip
        """Return the splits that `SplitKernels.best_per_node` finds, but none where no gain is positive; `nodes` :
        int32, those of the level."""
        entries, kernels, n, level = self._entries, self._kernels, level.n_nodes, self._kernels.here(level)
        chunk, order = rows.chunk, None if is_root and rows.in_order else rows.chunk.order
        small, exact, layout = small_data(chunk.pairs), int(not regular.is_rough), kernels.layout
        blocks = min(self._blocks, (EXACT_BLOCKS if exact else BLOCKS) * self._runtime.multiprocessors)
        tiles = map_tiles(self._runtime, chunk.bounds, nodes, STATE_ROWS, chunk.kept)
        place_rows(self._runtime, tiles, 0, entries.n_rows, order, chunk.pairs, entries.states, small)
        results = self.room["results"][:n]

        def launch(kernel: str, grid: int, *arguments: KernelArgument, shared_bytes: int = 0) -> None:
            if grid:
                entry = self._runtime.kernel("split_entries", kernel, SMALL=small, EXACT=exact)
                entry(grid, THREADS, *arguments, shared_bytes=shared_bytes)

        launch(
            "sum_slices", entries.n_slices, entries.rows, entries.tiles, entries.slices, entries.states, n,
            self._before, shared_bytes=0 if small else 8 * n,
        )  # fmt: skip
        launch("add_slices", entries.n_spans * -(-2 * n // THREADS), entries.spans, entries.n_spans, n, self._before)
        launch(
            "best_in_tiles", blocks, entries.rows, entries.slots, entries.features, entries.tiles,
            entries.n_tiles, entries.states, n, level.own, level.sums, level.allowed, level.list_stride,
            level.units, layout.offsets, self._before, regular.reg_lambda, regular.least_h, regular.alpha,
            regular.max_step, level.bounds, kernels.own_of(kernels.monotone_of(regular)), layout.n_bins,
            int(regular.plain), self._found, shared_bytes=entry_tile_bytes(n, bool(small)),
        )  # fmt: skip
        launch("best_of_blocks", -(-n * WARP // THREADS), self._found, blocks, n, level.own, results)
        return results


def entry_search_bytes(rows: SetSize, n_nodes: int, multiprocessors: int | None) -> int:
    """Return the bytes of sums of slices, at most, of what blocks find, and of results; without multiprocessors, on any
    GPU."""
    n_blocks = min(MOST_BLOCKS, BLOCKS * (multiprocessors or MOST_BLOCKS), most_tiles(rows.n_entries))
    return n_nodes * (SUM_BYTES * most_sums(*rows.features_above(TILE)) + BEST_BYTES * n_blocks + 8 * RESULTS)


def entry_tile_bytes(n_nodes: int, small: bool) -> int:
    """Shared memory of a block: `Tiled` of `kernels/entry_tile.cuh`."""
    warps = THREADS // WARP
    of_entries = (2 * (8 if small else 4) + 4 + 5 * 2) * TILE
    of_nodes = (4 + 4 + 2 * warps + 2) * n_nodes
    return of_entries + of_nodes + 4 * (warps + 1) + 2 * 2
