"""Growing trees: the tree under construction, and the three policies that choose which nodes split.

`grow_nodes` is the tree loop, the only one: all policies, devices and reductions go through it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.row_order import BY_SET, RowSplits
from daskboost.dtypes import FLOAT32_MAX, Float32, Float64, Int32, Int64
from daskboost.params import TrainParams
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.set_bins import bins_of_sets, sets_of_bins
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, scores_of
from daskboost.tree.table import LEAF, TreeTable

SPLIT = ("feature", "split_bin", "default_left", "right_bins")
"""Fields of nodes, and of `Candidates`, that say which rows go left."""


def node_dtype(n_sums: int, set_words: int) -> np.dtype[np.void]:
    """A node of a tree under construction. In arrays: a Python object per node costs more than its split search."""
    return np.dtype([
        ("parent", np.int32), ("depth", np.int32),
        ("sums", np.int64, (n_sums,)),  # of g and h of the node's rows, for each output that is searched
        ("low", np.float64), ("high", np.float64),  # limits of the leaf value under monotone constraints
        ("left", np.int32), ("right", np.int32), ("feature", np.int32), ("split_bin", np.int32),
        ("default_left", np.uint8), ("gain", np.float64),
        ("right_bins", np.uint32, (set_words,)),  # where a set of bins goes right, a bit for each
    ])  # fmt: skip


class GrowingTree:
    """A tree under construction: decisions and integer sums, never rows.

    Parameters
    ----------
    params, rules, cuts
    features : FeatureRules
        Of this tree.
    sums : sequence of int
        Integer sums of g and h over all rows; of several outputs, g and h of one after the other.
    units : sequence of float
        What one quantum of each is worth.
    depth_limit : int, optional
        Other than the parameters'.
    """

    def __init__(self, params: TrainParams, rules: SplitRules, cuts: Cuts, features: FeatureRules, sums: Sequence[int],
                 units: Sequence[float], depth_limit: int | None = None) -> None:  # fmt: skip
        self._params, self._rules, self._cuts, self._features = params, rules, cuts, features
        self._units, self._scores = tuple(units), scores_of(rules, units)
        self._unit_h = np.array(self._units[1::2])
        self._nodes = np.zeros(64, node_dtype(len(sums), rules.set_words))
        self._nodes[0] = (-1, 0, sums, -np.inf, np.inf, LEAF, LEAF, 0, -1, 0, 0.0, np.zeros(rules.set_words, np.uint32))
        self._paths: list[frozenset[int]] = [frozenset()]
        self._size = 1
        self.n_leaves = 1
        self._depth_limit = params.depth_limit if depth_limit is None else depth_limit

    def plant(self, depths: Int32, sums: Int64) -> None:
        """Make this a forest, of several roots: nodes 0 to their number, at depths of a larger tree; `sums` of each."""
        self._reserve(len(depths) | 1)
        roots = self._nodes[: len(depths) | 1]  # children are numbered in pairs, from an odd number on
        roots[:] = roots[0]
        roots["depth"][: len(depths)], roots["sums"][: len(depths)] = depths, sums
        self._paths = [frozenset()] * len(roots)
        self._size, self.n_leaves = len(roots), len(depths)

    @property
    def links(self) -> tuple[Int32, Int32, np.ndarray]:
        """Return left and right child of each node, -1 of a leaf, and its split, whose fields are `SPLIT`."""
        nodes = self._nodes[: self._size]
        return nodes["left"].copy(), nodes["right"].copy(), nodes[list(SPLIT)].copy()

    def openable(self, ids: Sequence[int]) -> list[int]:
        """Return those of newly made nodes whose best split is worth finding: depth, leaves and weight leave room for
        it."""
        if self._params.max_leaves and self.n_leaves >= self._params.max_leaves:
            return []
        nodes = self._nodes[np.asarray(ids, np.int64)]
        heavy = (nodes["sums"][:, 1::2] * self._unit_h >= self._scores.least_h).any(axis=1)
        possible = (nodes["depth"] < self._depth_limit) & (heavy | self._rules.symmetric)
        return [node for node, open_ in zip(ids, possible.tolist(), strict=True) if open_]

    def open(self, ids: Sequence[int]) -> OpenNodes:
        """Describe nodes for the split search; of two siblings only the lighter one is built from rows."""
        nodes = self._nodes[np.asarray(ids, np.int64)]
        paths = [self._paths[i] for i in ids] if self._features.by_path else []
        return OpenNodes(
            ids=np.array(ids, np.int32),
            parents=np.ascontiguousarray(nodes["parent"]),
            built=self._lighter(nodes["parent"]) if nodes["parent"][0] >= 0 else np.array(ids, np.int32),
            sums=np.ascontiguousarray(nodes["sums"]),
            bounds=np.stack([nodes["low"], nodes["high"]], axis=1),
            allowed=self._features.allowed(ids, nodes["depth"].tolist(), paths),
            units=self._units,
        )

    def _lighter(self, parents: Int32) -> Int32:
        """The lighter child of each parent, the left one if they weigh the same; in order of the parents."""
        parents = np.unique(parents)
        left, right = self._nodes["left"][parents], self._nodes["right"][parents]
        weight_left, weight_right = (
            (self._nodes["sums"][side, 1::2] * self._unit_h).sum(axis=1) for side in (left, right)
        )
        lighter: Int32 = np.where(weight_left <= weight_right, left, right).astype(np.int32)
        return lighter

    def add(self, chosen: Sequence[tuple[int, int]], candidates: Candidates) -> tuple[RowSplits, list[int]]:
        """Split nodes; `chosen` pairs each node with its row in `candidates`. Returns the splits and the children."""
        ids, rows = np.array(chosen, np.int64).T
        feature = candidates.feature[rows]
        left_ids = (self._size + 2 * np.arange(len(ids))).astype(np.int32)
        right_ids = left_ids + np.int32(1)
        self._reserve(self._size + 2 * len(ids))
        parents = self._nodes[ids]
        sums, left = np.ascontiguousarray(parents["sums"]), candidates.left[rows]
        bounds = np.stack([parents["low"], parents["high"]], axis=1)
        gain, left_weight, right_weight = self._scores.split_values(sums, left, bounds)
        columns = {
            "left": left_ids, "right": right_ids, "feature": feature, "split_bin": candidates.split_bin[rows],
            "default_left": candidates.default_left[rows], "gain": gain, "right_bins": candidates.right_bins[rows],
        }  # fmt: skip
        for name, values in columns.items():
            self._nodes[name][ids] = values
        new = np.zeros((len(ids), 2), self._nodes.dtype)
        new["parent"], new["depth"] = ids[:, None], parents["depth"][:, None] + 1
        new["sums"] = np.stack([left, sums - left], axis=1)
        new["left"] = new["right"] = LEAF
        new["split_bin"] = -1
        new["low"], new["high"] = bounds[:, :1], bounds[:, 1:]
        if self._rules.monotone.any():
            direction = self._directions(feature, columns["split_bin"], right_weight - left_weight)
            self._tighten(new, direction, (left_weight + right_weight) / 2)
        self._nodes[self._size : self._size + 2 * len(ids)] = new.ravel()
        if self._features.by_path:
            for node, used in zip(ids.tolist(), feature.tolist(), strict=True):
                self._paths += [self._paths[node] | {used}] * 2
        self._size += 2 * len(ids)
        self.n_leaves += len(ids)
        splits = RowSplits(
            ids.astype(np.int32), left_ids, right_ids, feature, columns["split_bin"], columns["default_left"],
            columns["right_bins"],
        )
        return splits, np.stack([left_ids, right_ids], axis=1).ravel().tolist()

    def _reserve(self, size: int) -> None:
        if size > len(self._nodes):
            grown = np.zeros(max(size, 2 * len(self._nodes)), self._nodes.dtype)
            grown[: self._size] = self._nodes[: self._size]
            self._nodes = grown

    def _directions(self, feature: Int32, split_bin: Int32, rise: Float64) -> Int32:
        """Monotone direction that each split keeps; `rise` is the right child's value less the left's."""
        direction = self._rules.monotone[feature]
        last = self._cuts.offsets[feature] + split_bin == self._cuts.offsets[feature + 1]
        # Present against missing values: either may be the higher, and stays so.
        return np.where(last & (direction != 0), np.sign(rise), direction).astype(np.int32)

    @staticmethod
    def _tighten(children: np.ndarray, direction: Int32, middle: Float64) -> None:
        """Keep the sides of constrained splits apart at the middle; `children` has shape (splits, 2)."""
        for side, upper in ((0, direction < 0), (1, direction > 0)):
            lower = (direction != 0) & ~upper
            children["low"][upper, side] = middle[upper]
            children["high"][lower, side] = middle[lower]

    @property
    def leaves(self) -> Int32:
        """Nodes that are leaves by now."""
        return np.flatnonzero(self._nodes["left"][: self._size] == LEAF).astype(np.int32)

    def table(self, learning_rate: float, exact: tuple[Int64, Sequence[float], SplitRules] | None = None) -> TreeTable:
        """The finished tree; values include the learning rate.

        `exact` : sums of `leaves`, their units and rules, where the tree was searched on a sketch of the outputs or on
        weights in place of hessians: values, gains and covers then come from these.
        """
        nodes = self._nodes[: self._size]
        if exact is None:
            sums, units, rules = np.ascontiguousarray(nodes["sums"]), self._units, self._rules
        else:
            (sums, units), rules = self._all_sums(*exact[:2]), exact[2]
        bounds = np.stack([nodes["low"], nodes["high"]], axis=1)
        scores = scores_of(rules, units)
        weights = scores.leaf_values(sums, bounds)
        gain = nodes["gain"]
        if exact is not None:
            inner = nodes["left"] != LEAF
            gain = np.zeros(len(nodes))
            gain[inner] = scores.split_values(sums[inner], sums[nodes["left"][inner]], bounds[inner])[0]
        tree = WalkArrays(
            nodes["left"].copy(), nodes["right"].copy(), nodes["feature"].copy(), nodes["split_bin"].copy(),
            nodes["default_left"].astype(np.bool_), saturated(weights * learning_rate), nodes["right_bins"].copy(),
        )  # fmt: skip
        by_set = (tree.left_child != LEAF) & (tree.split_bin == BY_SET)
        hessian = (sums[:, 1::2] * np.array(units[1::2])).sum(axis=1)
        return finished_tree(self._cuts, tree, sets_of_bins(tree.right_bins, by_set), gain, hessian)

    def _all_sums(self, of_leaves: Int64, units: Sequence[float]) -> tuple[Int64, tuple[float, ...]]:
        """Sums of all nodes from those of the leaves; children come after their parents."""
        sums = np.zeros((self._size, of_leaves.shape[1]), np.int64)
        sums[self.leaves] = of_leaves
        left, right = self._nodes["left"], self._nodes["right"]
        for node in np.flatnonzero(left[: self._size] != LEAF)[::-1].tolist():
            sums[node] = sums[left[node]] + sums[right[node]]
        return sums, tuple(units)


def finished_tree(cuts: Cuts, tree: WalkArrays, sets: CategorySets, gain: Float64, hessian: Float64) -> TreeTable:
    """A tree as models have it; `sets` : those that nodes split by; `gain`, `hessian` : per node, of its split and of
    its rows."""
    inner = tree.left_child != LEAF
    by_set = inner & (tree.split_bin == BY_SET)
    threshold = np.where(inner & ~by_set, cuts.thresholds(tree.feature, tree.split_bin), np.float32(0))
    return TreeTable(
        left_child=tree.left_child, right_child=tree.right_child, feature=tree.feature, split_bin=tree.split_bin,
        threshold=threshold, default_left=tree.default_left, gain=saturated(np.where(inner, gain, 0)),
        cover=saturated(hessian), value=tree.value, sets=sets,
    )  # fmt: skip


def saturated(values: Float64) -> Float32:
    """Return the values as float32, models' type; what extreme weights or gradients carry beyond it stays finite."""
    limited = np.minimum(np.maximum(values, -FLOAT32_MAX), FLOAT32_MAX)  # np.clip takes longer
    return limited.astype(np.float32)


def walk_arrays(table: TreeTable) -> WalkArrays:
    """A tree as the row walk needs it."""
    return WalkArrays(
        table.left_child, table.right_child, table.feature, table.split_bin, table.default_left, table.value,
        bins_of_sets(table.sets, table.n_nodes), table.models,
    )


class GrowPolicy(Protocol):
    """Which open nodes split next."""

    def choose(self, tree: GrowingTree, nodes: OpenNodes | None, candidates: Candidates | None
               ) -> tuple[list[tuple[int, int]], Candidates | None]:  # fmt: skip
        """Take in the candidates of newly opened nodes; give (node, row of candidates) pairs to split now."""
        ...


class Depthwise:
    """Split every node of a level that is worth it; the best ones where `max_leaves` ends the tree."""

    def __init__(self, params: TrainParams, least: float) -> None:
        self._params, self._least = params, least

    def choose(self, tree: GrowingTree, nodes: OpenNodes | None, candidates: Candidates | None
               ) -> tuple[list[tuple[int, int]], Candidates | None]:  # fmt: skip
        if nodes is None or candidates is None:
            return [], None
        worth = [row for row in range(len(nodes)) if candidates.gain[row] >= self._least]
        room = self._params.max_leaves - tree.n_leaves if self._params.max_leaves else len(worth)
        if len(worth) > room:
            worth = sorted(sorted(worth, key=lambda row: -candidates.gain[row])[:room])
        return [(int(nodes.ids[row]), row) for row in worth], candidates


class Symmetric:
    """Split all nodes of a level by the one split that gains most in sum (CatBoost's oblivious trees)."""

    def __init__(self, params: TrainParams, least: float) -> None:
        self._least = least

    def choose(self, tree: GrowingTree, nodes: OpenNodes | None, candidates: Candidates | None
               ) -> tuple[list[tuple[int, int]], Candidates | None]:  # fmt: skip
        if nodes is None or candidates is None or not candidates.gain[0] >= self._least:
            return [], None
        return [(int(node), row) for row, node in enumerate(nodes.ids)], candidates


class Lossguide:
    """Split the node with the largest gain, one at a time; ties go to the node that was made first."""

    def __init__(self, params: TrainParams, least: float) -> None:
        self._params, self._least = params, least
        self._waiting: list[tuple[float, int, int, Candidates]] = []

    def choose(self, tree: GrowingTree, nodes: OpenNodes | None, candidates: Candidates | None
               ) -> tuple[list[tuple[int, int]], Candidates | None]:  # fmt: skip
        if nodes is not None and candidates is not None:
            for row, node in enumerate(nodes.ids.tolist()):
                gain = float(candidates.gain[row])
                if gain >= self._least:
                    heapq.heappush(self._waiting, (-gain, node, row, candidates))
        full = self._params.max_leaves and tree.n_leaves >= self._params.max_leaves
        if full or not self._waiting:
            return [], None
        _, node, row, found = heapq.heappop(self._waiting)
        return [(node, row)], found


def make_policy(params: TrainParams, least: float) -> GrowPolicy:
    """The policy that `grow_policy` names, fresh for one tree, whose splits gain `least` or more."""
    policies: dict[str, Callable[[TrainParams, float], GrowPolicy]] = {
        "depthwise": Depthwise,
        "symmetric": Symmetric,
        "lossguide": Lossguide,
    }
    return policies[params.grow_policy](params, least)


def grow_nodes(search: Callable[[RowSplits | None, OpenNodes], Candidates], tree: GrowingTree, policy: GrowPolicy,
               roots: Sequence[int]) -> RowSplits | None:  # fmt: skip
    """The tree loop: split nodes below `roots` until the policy chooses none. Gives the splits that no search applied.

    `search(splits, nodes)` applies splits to all rows, then finds the best splits of nodes.
    """
    opened, pending = tree.openable(roots), None
    while True:
        nodes = tree.open(opened) if opened else None
        found = None
        if nodes is not None:
            found, pending = search(pending, nodes), None
        chosen, candidates = policy.choose(tree, nodes, found)
        if not chosen or candidates is None:
            return pending
        splits, children = tree.add(chosen, candidates)
        pending = splits if pending is None else pending.followed_by(splits)
        opened = tree.openable(children)
