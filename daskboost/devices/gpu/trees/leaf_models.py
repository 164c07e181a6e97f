"""Models of leaves on a GPU: sums of their normal equations, slopes, and trees whose leaves have them.

Launches of `kernels/leaf_equations.cu` and `fit_leaves.cu`; rows walk such trees by `walk_models.cu`. Gradients are
quantized again where the pairs of the tree's rows lay, which nobody needs once the last histogram is built: by row, so
that it does not matter what the tree was searched on, nor which rows grew it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.gpu.rows.feature_groups import count_tiles, rows_per_tile
from daskboost.devices.gpu.rows.gradients import ALL, Columns, Quantizer
from daskboost.devices.gpu.rows.rounding import OutputRounding
from daskboost.devices.gpu.rows.views import GpuView, small_data
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, to_device
from daskboost.devices.leaf_models import MOST_TERMS, NONE, LeafModels, n_sums
from daskboost.dtypes import Bool

EQUATION_THREADS = 128
"""Threads of a block, as in `kernels/leaf_equations.cu`."""
FIT_THREADS = 64
"""Threads of a block, as in `kernels/fit_leaves.cu`."""
EQUATION_BYTES = 8 * n_sums(MOST_TERMS)
"""Bytes of a leaf's sums."""


class PairSegments(Protocol):
    """Rows of a chunk in node order, see `rows.DeviceOrder`."""

    n_rows: int
    order: DeviceArray
    pairs: DeviceArray
    bounds: DeviceArray

    @property
    def half(self) -> int: ...


class PairsByRow:
    """Quantizes a chunk's gradients in the order of its rows, where their pairs lay in the order of nodes.

    Parameters
    ----------
    runtime : Runtime
    n_trees : int
        Outputs that are quantized at once.
    """

    def __init__(self, runtime: Runtime, n_trees: int) -> None:
        rooms = make_arrays(runtime, root_shapes(n_trees))
        self._sums, self._bounds = rooms["sums"], rooms["bounds"]

    def __call__(self, quantizer: Quantizer, columns: Columns, rounding: OutputRounding, pairs: DeviceArray,
                 n_trees: int) -> None:  # fmt: skip
        """Enqueue: of `n_trees` outputs, from that of `columns` and `rounding` on."""
        own = OutputRounding(rounding.scales, rounding.keys, self._sums.view(np.uint64))
        quantizer(columns, own, ALL, None, pairs, self._bounds, n_trees, 1)


def root_shapes(n_trees: int) -> Shapes:
    """Return the shapes of what `PairsByRow` has no use for: sums of all rows, and the segments of roots."""
    return {"sums": ((n_trees, 2), np.int64), "bounds": ((n_trees, 2), np.int64)}


def add_equations(runtime: Runtime, view: GpuView, chunk: PairSegments, nodes: DeviceArray, terms: DeviceArray,
                  sums: DeviceArray, capacity: int = 0) -> None:  # fmt: skip
    """Enqueue: `sums`, int64 of shape (nodes, `n_sums`), grow by the rows of nodes, whose pairs are there by row.

    `nodes` : int32, -1 for none, counted over trees of `capacity` nodes each, by which `terms` are then; or of a single
    tree, and `terms` of shape (nodes, MOST_TERMS).
    """
    if chunk.n_rows == 0 or len(nodes) == 0:
        return
    tiles = count_tiles(runtime, chunk.bounds, nodes, rows_per_tile(runtime, chunk.half), chunk.half)
    kernel = runtime.kernel(
        "leaf_equations", "add_equations", SYMBOL_BYTES=view.symbol_bytes, SMALL=small_data(chunk.pairs)
    )
    kernel(
        tiles.most, EQUATION_THREADS, *view.symbols, tiles.bounds, nodes, tiles.starts, len(nodes), tiles.tile_rows,
        chunk.order, chunk.pairs, chunk.n_rows, capacity or np.iinfo(np.int32).max, int(capacity > 0), terms,
        sums.view(np.uint64),
    )  # fmt: skip


class Tables(Protocol):
    """Trees that grew together, see `growth.TreeTables`."""

    capacity: int
    links: DeviceArray
    values: DeviceArray
    terms: DeviceArray
    slopes: DeviceArray


@dataclass(frozen=True)
class LeafRules:
    """How models of leaves are fitted."""

    ridge: float
    """Penalty of slopes, in hessians."""
    least_h: float
    """Leaves of less hessian are constant."""
    usable: Bool
    """Whether a model may have a feature, shape (features,)."""


class LeafFits:
    """Fits models to the leaves of trees that grow without the host, over all rows of one chunk.

    Parameters
    ----------
    runtime : Runtime
    rules : LeafRules
    n_trees, most_leaves : int
        Trees that grow together, and leaves of each.
    others : Collective
        Joins the GPUs that have other rows of the same trees.
    """

    def __init__(self, runtime: Runtime, rules: LeafRules, n_trees: int, most_leaves: int, others: Collective) -> None:
        self._runtime, self._rules, self._others = runtime, rules, others
        self._by_row = PairsByRow(runtime, n_trees)
        self._sums = make_arrays(runtime, fit_shapes(n_trees, most_leaves))["equations"]
        self._usable = None if rules.usable.all() else to_device(runtime, rules.usable.view(np.uint8))

    def __call__(self, tables: Tables, leaves: DeviceArray, columns: Columns, rounding: OutputRounding,
                 quantizer: Quantizer, view: GpuView, chunk: PairSegments, learning_rate: DeviceArray
                 ) -> None:  # fmt: skip
        """Enqueue: leaves, in whose order rows lie, have models; int32 of shape (trees, most leaves).

        `columns`, `rounding` : of the first tree's output, by exact scales.
        """
        n_trees, nodes = len(leaves), leaves.reshape(-1)
        sums = self._sums[: len(nodes)]
        sums.fill(0)
        tables.terms.fill(NONE)
        blocks = -(-len(nodes) // FIT_THREADS)
        self._runtime.kernel("fit_leaves", "find_terms")(
            blocks, FIT_THREADS, nodes, len(nodes), tables.capacity, tables.links, self._usable, tables.terms
        )  # fmt: skip
        self._by_row(quantizer, columns, rounding, chunk.pairs, n_trees)
        add_equations(self._runtime, view, chunk, nodes, tables.terms, sums, tables.capacity)
        self._others.add_up(sums)
        self._runtime.kernel("fit_leaves", "fit_leaves")(
            blocks, FIT_THREADS, nodes, len(nodes), tables.capacity, sums, rounding.scales, self._rules.ridge,
            self._rules.least_h, learning_rate, tables.values, tables.terms, tables.slopes,
        )  # fmt: skip


def fit_shapes(n_trees: int, most_leaves: int) -> Shapes:
    """Return the shapes of what `LeafFits` keeps beside `PairsByRow`."""
    return {"equations": ((n_trees * most_leaves, n_sums(MOST_TERMS)), np.int64)}


def models_on_device(runtime: Runtime, models: LeafModels) -> tuple[DeviceArray, DeviceArray]:
    """Return the features and slopes of models, MOST_TERMS of each node."""
    feature = np.full((len(models.feature), MOST_TERMS), NONE, np.int32)
    slope = np.zeros(feature.shape, np.float32)
    feature[:, : models.feature.shape[1]], slope[:, : models.slope.shape[1]] = models.feature, models.slope
    return to_device(runtime, feature), to_device(runtime, slope)
