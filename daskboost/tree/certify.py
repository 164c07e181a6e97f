"""A tree that was grown on a sample, judged by histograms of all rows: what it loses, and what is to be grown again.

The loss of a split is what the best split of its node gains more, both by exact sums. A node above the last level that
the sample would not split, though all rows would, loses what its best split gains: nobody knows what it has below. The
last level loses nothing, because its nodes take their best splits.

    losses, from the deepest level up and in a level from the least: spent while they fit the tolerance
    topmost nodes whose losses do not fit: replaced by their best splits, grown again below

A loss that was spent stays spent, so that each pass starts at least a level deeper than the one before: there are at
most as many as levels. Splits that all rows forbid are taken out first; then their nodes are leaves that the sample
would not split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.scales import SMALLEST_POSITIVE
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Bool, Float64, Int32, Int64
from daskboost.params import TrainParams
from daskboost.tree.growing_tree import SPLIT, GrowingTree
from daskboost.tree.split_search import Candidates, Scores, SplitRules, scores_of
from daskboost.tree.table import LEAF


def node_dtype(set_words: int) -> np.dtype[np.void]:
    """Return a draft's node, with its own split and its best one; `set_words` as in `SplitRules`."""
    split = np.dtype(list(zip(SPLIT, (np.int32, np.int32, np.uint8, (np.uint32, set_words)), strict=True)))
    return np.dtype([
        ("depth", np.int32), ("left", np.int32), ("right", np.int32), ("sums", np.int64, (2,)),  # of all rows
        ("split", split), ("gain", np.float64), ("best", split), ("best_gain", np.float64),
        ("best_left", np.int64, (2,)),
        ("spent", np.bool_),  # its loss is
    ])  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What becomes of a tree after a pass."""

    replaced: Int64
    """Nodes that take their best splits and are grown again below; none if the tree is certified."""
    spent: Int64
    """Nodes whose losses are accepted."""
    lost: float
    """Sum of their losses."""
    gain: float
    """Gain of the tree's splits, those that leaves will take among them."""


class Draft:
    """A tree of one output between its growth on the sample and its last pass. Children come after their parents.

    Parameters
    ----------
    params, rules
    """

    def __init__(self, params: TrainParams, rules: SplitRules) -> None:
        self._params, self._rules = params, rules
        self.least_gain = SMALLEST_POSITIVE
        """Least gain of a split that is made, by the rounding of all rows (see `tree/growing_tree.py`)."""
        self.nodes = np.zeros(1, node_dtype(rules.set_words))
        self.nodes["left"] = self.nodes["right"] = LEAF
        self.targets: Int64 = np.zeros(1, np.int64)
        """Leaves to be grown on the sample."""
        self.fresh: Int64 = np.zeros(0, np.int64)
        """They and what was grown below, in increasing order, until they are judged."""

    def graft(self, forest: GrowingTree) -> None:
        """Hang trees that were grown on the sample, one per target, below the targets."""
        left, right, split = forest.links
        n_roots = len(self.targets)
        places = np.concatenate([
            self.targets, np.zeros(1 - n_roots % 2, np.int64), len(self.nodes) + np.arange(len(left) - (n_roots | 1)),
        ])  # fmt: skip
        grown = places[n_roots | 1 :]
        self._extend(len(grown))
        inner = np.flatnonzero(left != LEAF)
        at = places[inner]
        self.nodes["left"][at], self.nodes["right"][at] = places[left[inner]], places[right[inner]]
        self.nodes["split"][at] = split[inner]
        depth = self.nodes["depth"]
        for node in at.tolist():
            depth[self.nodes["left"][node]] = depth[self.nodes["right"][node]] = depth[node] + 1
        self.fresh = np.concatenate([self.targets, grown])
        self.targets = self.targets[:0]

    @property
    def frontier(self) -> Int64:
        """Fresh leaves, whose histograms the next pass builds."""
        found: Int64 = self.fresh[self.nodes["left"][self.fresh] == LEAF]
        return found

    def walk_to(self, nodes: Int64) -> WalkArrays:
        """The tree as rows walk it to some of its leaves, whose values are their places among `nodes`; the others' are
        -1."""
        value = np.full(len(self.nodes), -1, np.float32)
        value[nodes] = np.arange(len(nodes))
        left, right = self.nodes["left"].copy(), self.nodes["right"].copy()
        feature, split_bin, default_left, right_bins = (self.nodes["split"][name].copy() for name in SPLIT)
        return WalkArrays(left, right, feature, split_bin, default_left != 0, value, right_bins)

    def set_sums(self, sums: Int64) -> None:
        """Take in the frontier's sums over all rows; the other fresh nodes' are their children's."""
        own = self.nodes["sums"]
        own[self.frontier] = sums
        for node in self._inner(self.fresh)[::-1].tolist():
            own[node] = own[self.nodes["left"][node]] + own[self.nodes["right"][node]]

    def set_best(self, found: Candidates, units: Sequence[float]) -> None:
        """Take in the best splits of the fresh nodes, and take out splits that are not allowed or not worth it."""
        nodes, fresh = self.nodes, self.fresh
        nodes["best_gain"][fresh], nodes["best_left"][fresh] = found.gain, found.left
        for name in SPLIT:
            nodes["best"][name][fresh] = getattr(found, name)
        scores = scores_of(self._rules, units)
        sets = fresh[(found.split_bin == BY_SET) & (found.gain >= self.least_gain)]
        nodes["best_gain"][sets] = self._gains(scores, sets, nodes["best_left"][sets])  # `cat_l2` has chosen, no more
        inner = self._inner(fresh)
        sums, left = nodes["sums"][inner], nodes["sums"][nodes["left"][inner]]
        nodes["gain"][inner] = self._gains(scores, inner, left)
        lighter = np.minimum(left[:, 1], sums[:, 1] - left[:, 1])
        allowed = lighter * units[1] >= self._rules.least_h
        for node, fine in zip(inner.tolist(), allowed.tolist(), strict=True):
            if not (fine and self._worth(nodes["gain"][node]) and self._worth(nodes["best_gain"][node])):
                nodes["left"][node] = nodes["right"][node] = LEAF
        self.fresh = fresh[:0]

    def judge(self, tolerance: float) -> Verdict:
        """Whether the tree is good enough to keep."""
        nodes, alive = self.nodes, self._alive()
        splits = nodes["left"][alive] != LEAF
        takes = ~splits & np.array([self._worth(gain) for gain in nodes["best_gain"][alive]], np.bool_)
        gain = math.fsum(nodes["gain"][alive[splits]].tolist() + nodes["best_gain"][alive[takes]].tolist())
        differs = (splits & ~self._is_best(alive)) | (takes & (nodes["depth"][alive] < self._params.depth_limit - 1))
        differing = alive[differs]
        losses = dict(zip(differing.tolist(), self._losses(differing).tolist(), strict=True))
        spent = [node for node in losses if nodes["spent"][node]]
        room, failing = tolerance * gain - math.fsum(losses[node] for node in spent), []
        for node in sorted(set(losses) - set(spent), key=lambda node: (-nodes["depth"][node], losses[node], node)):
            if tolerance > 0 and losses[node] <= room:
                room -= losses[node]
                spent.append(node)
            else:
                failing.append(node)
        topmost, below = self._topmost(failing)
        kept = np.array(sorted(set(spent) - below), np.int64)
        return Verdict(topmost, kept, math.fsum(losses[node] for node in kept.tolist()), gain)

    def replace(self, verdict: Verdict) -> None:
        """Give nodes their best splits, whose children are to be grown."""
        nodes, replaced = self.nodes, verdict.replaced
        nodes["spent"][verdict.spent] = True
        first = len(nodes)
        self._extend(2 * len(replaced))
        nodes = self.nodes
        nodes["left"][replaced] = first + 2 * np.arange(len(replaced))
        nodes["right"][replaced] = nodes["left"][replaced] + 1
        nodes["split"][replaced], nodes["gain"][replaced] = nodes["best"][replaced], nodes["best_gain"][replaced]
        for side in ("left", "right"):
            nodes["depth"][nodes[side][replaced]] = nodes["depth"][replaced] + 1
        self.targets = np.arange(first, len(nodes))

    def finish(self, tree: GrowingTree) -> None:
        """Grow `tree`, which has its root, to this one, level by level; leaves take their best splits."""
        nodes, level = self.nodes, [(0, 0)]
        while level:
            splits = nodes["left"] != LEAF
            chosen = [(own, node) for own, node in level if splits[node] or self._worth(nodes["best_gain"][node])]
            if not chosen:
                return
            of = np.array([node for _, node in chosen])
            inner = splits[of]
            split, gain, left = nodes["best"][of], nodes["best_gain"][of], nodes["best_left"][of]
            split[inner], gain[inner] = nodes["split"][of[inner]], nodes["gain"][of[inner]]
            left[inner] = nodes["sums"][nodes["left"][of[inner]]]
            candidates = Candidates(gain, **{name: np.ascontiguousarray(split[name]) for name in SPLIT}, left=left)
            _, children = tree.add([(own, row) for row, (own, _) in enumerate(chosen)], candidates)
            pairs = np.array(children).reshape(-1, 2)
            level = [
                (int(own), int(nodes[side][node]))
                for pair, node, goes_on in zip(pairs, of.tolist(), inner.tolist(), strict=True) if goes_on
                for own, side in zip(pair, ("left", "right"), strict=True)
            ]  # fmt: skip

    def _extend(self, n: int) -> None:
        more = np.zeros(n, self.nodes.dtype)
        more["left"] = more["right"] = LEAF
        self.nodes = np.concatenate([self.nodes, more])

    def _inner(self, nodes: Int64) -> Int64:
        found: Int64 = nodes[self.nodes["left"][nodes] != LEAF]
        return found

    def _worth(self, gain: float) -> bool:
        return gain >= self.least_gain

    def _gains(self, scores: Scores, nodes: Int64, left: Int64) -> Float64:
        """Return what nodes gain by splits whose left children have these sums."""
        bounds = np.tile([-np.inf, np.inf], (len(nodes), 1))
        return scores.split_values(self.nodes["sums"][nodes], left, bounds)[0]

    def _is_best(self, nodes: Int64) -> Bool:
        """Return whether nodes have their best splits."""
        same: Bool = self.nodes["split"][nodes] == self.nodes["best"][nodes]
        return same

    def _losses(self, nodes: Int64) -> Float64:
        own = self.nodes[nodes]
        return np.where(own["left"] == LEAF, own["best_gain"], np.maximum(own["best_gain"] - own["gain"], 0))

    def _alive(self) -> Int64:
        """Nodes of the tree, in increasing order; those that were cut off stay in memory."""
        alive = np.zeros(len(self.nodes), np.bool_)
        alive[0] = True
        left, right = self.nodes["left"].tolist(), self.nodes["right"].tolist()
        for node in range(len(alive)):
            if alive[node] and left[node] != LEAF:
                alive[left[node]] = alive[right[node]] = True
        return np.flatnonzero(alive)

    def _topmost(self, failing: Sequence[int]) -> tuple[Int64, set[int]]:
        """Failing nodes that are below no other, and all nodes below them."""
        topmost, below = [], set[int]()
        chosen = set(failing)
        left, right = self.nodes["left"].tolist(), self.nodes["right"].tolist()
        for node in self._alive().tolist():  # parents first
            if node in chosen and node not in below:
                topmost.append(node)
            if (node in chosen or node in below) and left[node] != LEAF:
                below |= {left[node], right[node]}
        return np.array(topmost, np.int64), below


def depth_rows(depths: Int32) -> tuple[list[int], Int64]:
    """The different depths, and for each node the place of its own among them."""
    different, rows = np.unique(depths, return_inverse=True)
    return different.tolist(), rows
