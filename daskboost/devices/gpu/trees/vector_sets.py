"""The best sets of features of codes for leaves that are vectors: launches of `kernels/split_vector_sets.cu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskboost.devices.budget.plan import SetSizes
from daskboost.devices.cpu.split import Regular
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import DeviceArray, Shapes
from daskboost.devices.gpu.trees.split_sets import THREADS, WARP, SetKernels, level_nodes, set_shapes

OF_DIRECTION = 3
"""Numbers of an output that `project_codes` works with."""


def vector_set_shapes(sizes: SetSizes, n_nodes: int, n_slots: int, width: int, *, symmetric: bool) -> Shapes:
    """Return the shapes of the arrays of a search for vectors of `width` outputs, as `set_shapes`.

    `symmetric` : whether the nodes are a level that has one split, or else each has its own.
    """
    if not sizes.splits_codes:
        return {}
    n_trees = 1 if symmetric else n_nodes
    of_codes = (n_trees, sizes.n_codes)
    return {
        **set_shapes(sizes, n_nodes, n_slots, n_trees),
        "present": ((0,), np.int64), "level_sums": ((width, n_slots if symmetric else 0, 2), np.int64),
        "code_keys": (of_codes, np.uint64), "code_weights": (of_codes, np.float64), "code_list": (of_codes, np.int32),
        "directions": ((n_trees, sizes.n_coded, OF_DIRECTION, width), np.float64),
        "set_groups": ((n_nodes, sizes.n_coded, 2, width), np.int64),
    }  # fmt: skip


@dataclass(frozen=True)
class VectorNodes:
    """Nodes whose histograms of all outputs are there; see `Level` of `split.py`."""

    own: DeviceArray
    steps: DeviceArray
    """uint64, shape (nodes,): bytes from one output's histogram to the next one's."""
    allowed: DeviceArray
    per_list: int
    per_tree: int
    """Nodes that have one split."""
    units: DeviceArray
    units_stride: int
    layout: DeviceLayout
    searched: tuple[Any, ...]
    """What searching kernels share (`SEARCHED_VECTORS`)."""


class VectorSetKernels(SetKernels):
    """`SetKernels` of histograms of several outputs."""

    def search_vectors(
        self, nodes: VectorNodes, regular: Regular, room: Mapping[str, DeviceArray], results: DeviceArray
    ) -> None:
        """Enqueue: `results`, the best splits by thresholds, become the best of all, and the lists of those that are
        sets lie in `room["sets"]`; `room` : `vector_set_shapes`."""
        sizes, rules, layout, n, per_tree = self.sizes, self._rules, nodes.layout, len(nodes.own), nodes.per_tree
        if not sizes.n_coded:
            return
        n_trees, width, n_features = n // per_tree, layout.host.width, len(layout.host.n_bins)
        features, n_searched = (self._coded, sizes.n_coded), n_trees * sizes.n_coded
        own, steps = (nodes.own, nodes.steps) if per_tree == 1 else self._sum_level(nodes, room)
        keys, n_sets, ends = room["code_keys"], room["n_sets"], self._ends(room)
        tried, gains = (room["code_orders"], n_sets), (sizes.most_tried, room["set_gains"])
        found, usable = (room["set_results"], room["lists"]), (nodes.allowed, nodes.per_list)
        launch = partial(self._launch, file="split_vector_sets")
        rank = partial(self._launch, file="split_level_sets")
        launch("project_codes", n_searched, own, steps, *usable, per_tree, nodes.units, nodes.units_stride, width,
               layout.offsets, layout.n_bins, n_features, *regular.numbers, rules.smooth, *features, sizes.n_codes,
               room["code_list"], room["code_weights"], keys, room["directions"], n_sets)  # fmt: skip
        launch("ends_of_codes", n_trees * sizes.n_chunks, own, layout.n_bins, *features, self._chunks, sizes.n_chunks,
               sizes.n_codes, keys, n_sets, *ends)  # fmt: skip
        self._join(own, ends)
        rank("order_codes", n_searched, nodes.own, *usable, layout.n_bins, n_features, per_tree, rules.smooth,
             *features, *ends, *tried)  # fmt: skip
        launch("gain_of_codes", n * sizes.n_coded, *nodes.searched, per_tree, rules.l2, rules.least_group, *features,
               sizes.most, *tried, sizes.most_tried, room["set_groups"], room["set_gains"])  # fmt: skip
        rank("best_of_codes", n_searched, nodes.own, layout.n_bins, per_tree, *features, sizes.most, *tried, *gains,
             sizes.width, *found)  # fmt: skip
        launch("best_of_sets", -(-n * WARP // THREADS), *nodes.searched, per_tree, sizes.n_coded, *found, sizes.width,
               results, room["sets"])  # fmt: skip

    def _sum_level(self, nodes: VectorNodes, room: Mapping[str, DeviceArray]) -> tuple[DeviceArray, DeviceArray]:
        """Enqueue: sums of codes over the nodes of a level; return their address, and bytes from one output's to the
        next one's, as arrays."""
        sizes, layout, (own, steps) = self.sizes, nodes.layout, level_nodes(room, 1)
        self._launch("sum_level", layout.host.width * sizes.n_chunks, nodes.own, nodes.steps, len(nodes.own),
                     layout.offsets, layout.n_bins, self._coded, self._chunks, sizes.n_chunks, 2 * layout.host.n_slots,
                     room["level_sums"], own, steps, file="split_vector_sets")  # fmt: skip
        return own, steps
