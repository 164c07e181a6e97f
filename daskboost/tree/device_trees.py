"""Trees that grow on a device as a whole (`devices/gpu/trees/growth.py`): which can, by which rules, what comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.bin_lists import bins_of_lists
from daskboost.devices.budget.plan import most_nodes
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.gpu.runtime.cuda import address_of
from daskboost.devices.gpu.runtime.launches import DeviceArray, to_host
from daskboost.devices.gpu.trees.best_first import MOST_LEAVES
from daskboost.devices.gpu.trees.growth import GrowthRules, LevelSizes, TreeTables
from daskboost.devices.gpu.trees.node_features import NodeRules, group_members
from daskboost.devices.gpu.trees.split import HostNodes, SplitKernels, empty_histograms
from daskboost.devices.leaf_models import MOST_TERMS, NONE, LeafModels
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Bool, UInt8, UInt64, flat
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules, draws_by_node, features_of_levels, n_groups
from daskboost.tree.growing_tree import finished_tree
from daskboost.tree.set_bins import sets_of_lists
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, sibling
from daskboost.tree.table import LEAF, TreeTable


def needs_host(params: TrainParams) -> str:
    """Say why trees of these parameters grow with the host; empty where a device can grow them by itself.

    Nodes of trees that grow best first are searched before they are numbered, by which they would draw features.
    """
    best_first = params.grow_policy == "lossguide"
    reasons = {
        "colsample_bynode draws features by numbers that nodes of best-first trees get when they are split":
            best_first and draws_by_node(params),
        f"a best-first tree without the host has 1 to {MOST_LEAVES} leaves":
            best_first and not 0 < leaf_limit(params) <= MOST_LEAVES,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")


def growth_rules(params: TrainParams, rules: SplitRules, n_rows: int, n_features: int, groups: Bool | None
                 ) -> GrowthRules:  # fmt: skip
    """The rules of trees that grow without the host; `groups` : those of `interaction_constraints`, if there are any,
    shape (groups, features)."""
    most_leaves = leaf_limit(params) if params.grow_policy == "lossguide" else params.max_leaves
    depth = params.depth_limit
    levels = LevelSizes(depth, most_nodes(depth, params.grow_policy, n_rows, leaf_limit(params)))
    of_nodes = None
    if has_own_features(params):
        members = np.zeros((0, n_features), np.bool_) if groups is None else groups
        drawn = FeatureRules(params, n_features, groups, 0, 0)
        of_nodes = NodeRules(drawn.n_of_level if levels_are_apart(params) else 0, drawn.n_drawn, group_members(members))
    leaf_terms = MOST_TERMS if params.linear_leaves else 0
    return GrowthRules(rules.regular, rules.symmetric, levels, most_leaves, params.gamma, of_nodes, leaf_terms)


def has_own_features(params: TrainParams) -> bool:
    """Whether nodes that are searched together may use different features."""
    return draws_by_node(params) or levels_are_apart(params) or n_groups(params.interaction_constraints) > 0


def levels_are_apart(params: TrainParams) -> bool:
    """Whether levels draw features and nodes of several are searched together, as those of best-first trees are."""
    return params.grow_policy == "lossguide" and params.colsample_bylevel < 1


def drawn_sets(params: TrainParams) -> int:
    """Sets of features that are drawn for a tree: one of each level, or one."""
    by_level = params.colsample_bylevel < 1 or (params.colsample_bynode < 1 and not draws_by_node(params))
    return params.depth_limit if by_level and not levels_are_apart(params) else 1


def leaf_limit(params: TrainParams) -> int:
    """Most leaves of a tree, as many as its depth allows at most; 0 for any number."""
    limits = (params.max_leaves, 1 << params.max_depth if 0 < params.max_depth < 31 else 0)
    return min((limit for limit in limits if limit), default=0)


def allowed_features(trees: Sequence[FeatureRules], params: TrainParams) -> UInt8:
    """Return the features of each level of trees; uint8, shape (trees, levels, features), one level where all have the
    same, or draw from the same."""
    if levels_are_apart(params):
        return np.stack([tree.of_tree[None] for tree in trees])
    return features_of_levels(trees, params, range(drawn_sets(params)))


def tree_tables(tables: TreeTables, cuts: Cuts) -> list[TreeTable]:
    """Finished trees from tables of any number of rounds in the host's memory, those of a round one after the other:
    made as one of all nodes and taken apart."""
    capacity, sizes = tables.capacity, tables.sizes[..., 0]
    is_node = np.arange(capacity) < sizes[..., None]
    width = tables.sums.shape[-1] // 2
    _, _, left, right, feature, split_bin = (tables.links[..., column, :][is_node] for column in range(6))
    values = tables.values.reshape(*sizes.shape, capacity, width)[is_node]
    by_set = (left != LEAF) & (split_bin < 0)
    sets = sets_of_lists(split_bin, tables.sets[is_node], by_set)
    bins = np.where(by_set, BY_SET, split_bin)
    grown = WalkArrays(left, right, feature, bins, tables.default_left[is_node] != 0, flat(values))
    units = tables.rounding[..., 1].reshape(-1, width).repeat(sizes.ravel(), axis=0)
    hessian = (tables.sums[is_node][:, 1::2] * units).sum(axis=1)
    found = finished_tree(cuts, grown, sets, tables.gains[is_node], hessian)
    if tables.n_terms:
        terms, slopes = tables.terms[is_node], tables.slopes[is_node]  # those of nodes without terms are anything
        terms = np.where((left == LEAF)[:, None], terms, NONE)
        found = replace(found, models=LeafModels.of_nodes(terms, np.where(terms == NONE, np.float32(0), slopes)))
    return found.parts(np.cumsum(sizes).tolist())


# Split search over histograms in a GPU's memory: `SplitSearch` of `split.py` for the only engine of a fit.

class DeviceSearch:
    """Histograms of all features on one GPU, and the best splits in them.

    Parameters
    ----------
    kernels : SplitKernels
    rules : SplitRules
    """

    def __init__(self, kernels: SplitKernels, rules: SplitRules) -> None:
        self._symmetric, self._regular, self._set_words = rules.symmetric, rules.regular, rules.set_words
        self._kernels = kernels.with_sets(self._regular.sets)
        self._searched: dict[int, tuple[DeviceArray, int]] = {}
        """Address of a searched node's histogram, and the array that it lies in."""

    def forget(self) -> None:
        """Drop all histograms: the tree is done."""
        self._searched.clear()

    def search(self, nodes: OpenNodes, built: DeviceArray) -> Candidates:
        """Best splits of `nodes`; `built` : of the nodes that rows have built, as `empty_histograms` gives them."""
        places = self._places(nodes, built)
        given = HostNodes(places[0], places[1], nodes.sums, nodes.bounds, nodes.allowed, np.array(nodes.units))
        results, lists = self._kernels.search(given, self._regular, symmetric=self._symmetric)
        found = to_host(results)
        for parent in set(nodes.parents.tolist()):  # not before: the kernels read them
            self._searched.pop(parent, None)
        bins, right_bins = found[:, 2].astype(np.int32), np.zeros((len(found), self._set_words), np.uint32)
        by_set = bins < 0
        if lists is not None and by_set.any():
            right_bins = bins_of_lists(bins, to_host(lists), by_set, self._set_words)
            bins[by_set] = BY_SET
        return Candidates(
            np.ascontiguousarray(found[:, 0]).view(np.float64), found[:, 1].astype(np.int32), bins,
            found[:, 3].astype(np.uint8), np.ascontiguousarray(found[:, 4:]), right_bins,
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
