"""Leaves of trees that grow without the host become quantiles of their rows' residuals: `kernels/residuals.cu`.

`fit/base_score.py` finds the same quantiles where the host takes part. Here rows lie in the order of their leaves, and
their residuals' keys take the place of the pairs, which nobody needs once the last histogram is built. Nothing waits
for the device, and nothing is allocated once a graph is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.cpu.gradients import DIGITS
from daskboost.devices.gpu.rows.feature_groups import map_tiles
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, element_stride, make_arrays, to_device
from daskboost.devices.gpu.trees.known_tree import PairSegments

TILE_ROWS = 2048
"""Rows of a block that counts residuals, as in `kernels/residuals.cu`."""
THREADS = 256
"""Threads of a block, as there."""


class LeafOrder(PairSegments, Protocol):
    """Rows of a chunk in node order, see `row_state.DeviceOrder`."""

    @property
    def half(self) -> int: ...


class GrownTables(Protocol):
    """Trees that grew together, see `growth.TreeTables`."""

    values: DeviceArray


@dataclass(frozen=True)
class Labels:
    """What residuals of a chunk's rows are made of beside margins."""

    label: DeviceArray
    """float32, shape (rows,)."""
    weight: DeviceArray | None
    """float32, shape (rows,); None for ones."""
    weight_scale: float
    """Power of two that makes weights integers."""


class LeafQuantiles:
    """Values leaves of trees that grow together, over all rows of one chunk that grew them.

    Parameters
    ----------
    runtime : Runtime
    labels : Labels
    quantiles : sequence of float
        Quantile of each output's residuals.
    n_trees, most_leaves : int
        Trees that grow together, at most, and leaves of each.
    others : Collective
        Joins the GPUs that have other rows of the same trees.
    """

    def __init__(self, runtime: Runtime, labels: Labels, quantiles: Sequence[float], n_trees: int, most_leaves: int,
                 others: Collective) -> None:  # fmt: skip
        self._runtime, self._labels, self._most_leaves, self._others = runtime, labels, most_leaves, others
        self._quantiles = to_device(runtime, np.array(quantiles, np.float64))
        self._state = make_arrays(runtime, quantile_shapes(n_trees, most_leaves))
        for array in self._state.values():
            array.fill(0)

    def __call__(self, leaves: DeviceArray, first: int, chunk: LeafOrder, margins: DeviceArray,
                 learning_rate: DeviceArray, tables: GrownTables) -> None:  # fmt: skip
        """Enqueue: values in `tables` of the outputs from `first` on become quantiles; leaves without any weight keep
        theirs.

        `leaves` : int32, shape (trees, most_leaves), nodes over all trees, -1 for none, whose rows lie in `chunk`;
        pairs are lost. `margins` : float32, shape (rows, trees), before these trees.
        """
        if chunk.n_rows == 0:
            return
        runtime, labels, (n_trees, per_tree) = self._runtime, self._labels, leaves.shape
        n, nodes, keys = n_trees * per_tree, leaves.ravel(), chunk.pairs.view(np.uint32)
        tiles = map_tiles(runtime, chunk.bounds, nodes, TILE_ROWS, chunk.half)
        counts, prefixes, wanted = (self._state[name] for name in ("counts", "prefixes", "wanted"))
        next_margin, known = int(margins.strides[1]) // int(margins.itemsize), 0
        for bits in DIGITS:
            runtime.kernel("residuals", "count_residuals")(
                tiles.most, THREADS, tiles.bounds, nodes, tiles.starts, n, per_tree, chunk.order, labels.label, margins,
                element_stride(margins), next_margin, labels.weight, labels.weight_scale, prefixes, known, bits, keys,
                counts,
            )  # fmt: skip
            self._others.add_up(counts[: n << bits])
            runtime.kernel("residuals", "choose_digits")(
                n, THREADS, nodes, per_tree, self._quantiles[first:], known, bits, counts, prefixes, wanted,
                learning_rate, tables.values,
            )  # fmt: skip
            known += bits


def quantile_shapes(n_trees: int, most_leaves: int) -> Shapes:
    """Return the shapes of what the rounds of a selection keep of each leaf."""
    n = n_trees * most_leaves
    return {
        "counts": ((n * (1 << max(DIGITS)),), np.uint64), "prefixes": ((n,), np.uint32), "wanted": ((n,), np.uint64),
    }  # fmt: skip
