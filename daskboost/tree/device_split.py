"""Split search over histograms in a GPU's memory: `SplitSearch` of `split.py` for the only engine of a fit."""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, to_host
from daskboost.devices.gpu.split import HostNodes, SplitKernels, address_of, empty_histograms
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
        """Best splits of `nodes`; `built` : of the nodes that rows have built, as `empty_histograms` gives them."""
        places = self._places(nodes, built)
        given = HostNodes(places[0], places[1], nodes.sums, nodes.bounds, nodes.allowed, np.array(nodes.units))
        found = to_host(self._kernels.search(given, self._regular, symmetric=self._symmetric))
        for parent in set(nodes.parents.tolist()):  # not before: the kernels read them
            self._searched.pop(parent, None)
        return Candidates(
            np.ascontiguousarray(found[:, 0]).view(np.float64), found[:, 1].astype(np.int32),
            found[:, 2].astype(np.int32), found[:, 3].astype(np.uint8), np.ascontiguousarray(found[:, 4:]),
        )  # fmt: skip

    def _places(self, nodes: OpenNodes, built: DeviceArray) -> UInt64:
        """Where histograms of the nodes, their parents and their siblings lie, and how far it is from one output's to
        the next one's; shape (2, 3, nodes), see `HostNodes`."""
        layout, node_bytes = self._kernels.layout, built.strides[0]
        built_places = {int(node): place for place, node in enumerate(nodes.built)}
        ids, parents, siblings = (array.tolist() for array in (nodes.ids, nodes.parents, sibling(nodes.ids)))
        rest = [i for i, node in enumerate(ids) if node not in built_places]
        made = empty_histograms(layout.runtime, len(rest), layout.host.n_slots, built.shape[2])
        found: UInt64 = np.zeros((2, 3, len(ids)), np.uint64)
        searched = {
            node: (built, address_of(built) + built_places[node] * node_bytes) for node in ids if node in built_places
        }
        for place, i in enumerate(rest):
            searched[ids[i]] = (made, address_of(made) + place * node_bytes)
            parent, address = self._searched[parents[i]]
            found[:, 1, i] = address, parent.strides[2]
            found[:, 2, i] = address_of(built) + built_places[siblings[i]] * node_bytes, built.strides[2]
        for i, node in enumerate(ids):
            array, address = searched[node]
            found[:, 0, i] = address, array.strides[2]
        self._searched |= searched
        return found
