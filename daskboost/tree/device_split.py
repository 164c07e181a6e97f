"""Split search over histograms in a GPU's memory: `SplitSearch` of `split.py` for the only engine of a fit."""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, to_host
from daskboost.devices.gpu.split import SplitKernels, address_of
from daskboost.dtypes import UInt64
from daskboost.tree.device_trees import regular_of
from daskboost.tree.split import Candidates, OpenNodes, SplitRules, sibling


class DeviceSearch:
    """Histograms of all features on one GPU, and the best splits in them.

    Parameters
    ----------
    kernels : SplitKernels
    rules : SplitRules
    """

    def __init__(self, kernels: SplitKernels, rules: SplitRules) -> None:
        self._kernels, self._symmetric = kernels, rules.symmetric
        self._regular = regular_of(rules)
        self._searched: dict[int, tuple[DeviceArray, int]] = {}
        """Address of a searched node's histogram, and the array that it lies in."""

    def forget(self) -> None:
        """Drop all histograms: the tree is done."""
        self._searched.clear()

    def search(self, nodes: OpenNodes, built: DeviceArray) -> Candidates:
        """Best splits of `nodes`; `built` : int64, shape (built nodes, slots, 2), on the GPU."""
        level = self._kernels.upload(
            self._addresses(nodes, built), nodes.sums, nodes.bounds, nodes.allowed, nodes.one_unit
        )
        search = self._kernels.best_of_level if self._symmetric else self._kernels.best_per_node
        found = to_host(search(level, self._regular))
        for parent in set(nodes.parents.tolist()):  # not before: the kernels read them
            self._searched.pop(parent, None)
        return Candidates(
            np.ascontiguousarray(found[:, 0]).view(np.float64), found[:, 1].astype(np.int32),
            found[:, 2].astype(np.int32), found[:, 3].astype(np.uint8), np.ascontiguousarray(found[:, 4:]),
        )  # fmt: skip

    def _addresses(self, nodes: OpenNodes, built: DeviceArray) -> UInt64:
        """Where histograms of the nodes, their parents and their siblings lie, see `Level`."""
        node_bytes = built.strides[0]
        places = {int(node): place for place, node in enumerate(nodes.built)}
        ids, parents, siblings = (array.tolist() for array in (nodes.ids, nodes.parents, sibling(nodes.ids)))
        rest = [i for i, node in enumerate(ids) if node not in places]
        made = self._kernels.runtime.xp.empty((len(rest), *built.shape[1:]), np.int64)
        addresses: UInt64 = np.zeros((3, len(ids)), np.uint64)
        searched = {
            node: (built, address_of(built) + places[node] * node_bytes) for node in ids if node in places
        }
        for place, i in enumerate(rest):
            searched[ids[i]] = (made, address_of(made) + place * node_bytes)
            addresses[1, i] = self._searched[parents[i]][1]
            addresses[2, i] = address_of(built) + places[siblings[i]] * node_bytes
        addresses[0] = [searched[node][1] for node in ids]
        self._searched |= searched
        return addresses
