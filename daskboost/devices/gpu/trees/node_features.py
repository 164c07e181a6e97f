"""The features that nodes may split on where trees grow without the host: launches of `kernels/node_features.cu`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.dtypes import Bool, UInt32

THREADS = 256
"""Threads of a block, as in the kernel."""
WORD = 32
"""Groups of a word."""


@dataclass(frozen=True)
class NodeRules:
    """What makes the features of a node others than its level's."""

    n_of_level: int
    """Features that each level draws from its tree's; 0 where it has all of the given ones."""
    n_drawn: int
    """Features that each node draws from its level's; 0 for all."""
    members: UInt32
    """Bits of the groups of interaction constraints that each feature is in, shape (features, words); no words where
    there are none."""


def group_words(n_groups: int) -> int:
    """Return the words that hold a bit for each group."""
    return -(-n_groups // WORD)


def group_members(groups: Bool) -> UInt32:
    """Return membership in groups, shape (groups, features), as `NodeRules.members` has it."""
    padded = np.zeros((groups.shape[1], WORD * group_words(len(groups))), np.bool_)
    padded[:, : len(groups)] = groups.T
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


@dataclass(frozen=True)
class TreeNodes:
    """Nodes of trees that are about to be searched."""

    nodes: DeviceArray
    """Numbers of the nodes in their trees, int32; -1 is none."""
    per_tree: int
    capacity: int
    """Nodes that a tree has room for."""
    links: DeviceArray
    """See `TreeTables.links`."""


@dataclass(frozen=True)
class LevelFeatures:
    """What levels allow, in device memory that others write before a tree grows."""

    of_level: DeviceArray
    """uint8, shape (1 or depth, trees, features): features that the nodes of each level may use, or draw from."""
    states: DeviceArray
    """uint64, shape (2, trees): `FeatureRules.states` of each tree."""

    def at(self, depth: int) -> DeviceArray:
        """Return the features of one level of each tree."""
        found: DeviceArray = self.of_level[min(depth, len(self.of_level) - 1)]
        return found


class SharedFeatures:
    """All nodes of a tree's level may use the same features."""

    def allowed(self, features: LevelFeatures, depth: int, nodes: TreeNodes) -> tuple[DeviceArray, int]:
        """Return lists of features that nodes may split on, uint8 of shape (lists, features), and how many nodes share
        each."""
        return features.at(depth), nodes.per_tree


class NodeFeatures(SharedFeatures):
    """Each node has features of its own.

    Parameters
    ----------
    runtime : Runtime
    rules : NodeRules
    n_trees, capacity : int
        Trees that grow together, and nodes that each has room for.
    n_nodes : int
        Most nodes of a search, of all trees.
    """

    def __init__(self, runtime: Runtime, rules: NodeRules, n_trees: int, capacity: int, n_nodes: int) -> None:
        self._runtime, self._counts, self._words = runtime, (rules.n_of_level, rules.n_drawn), rules.members.shape[1]
        made = make_arrays(runtime, feature_shapes(n_trees * capacity, n_nodes, *rules.members.shape))
        self._members, self._open_groups, self._allowed = made["members"], made["open_groups"], made["allowed"]
        overwrite(runtime, self._members, rules.members)

    def allowed(self, features: LevelFeatures, depth: int, nodes: TreeNodes) -> tuple[DeviceArray, int]:
        n, found = len(nodes.nodes), self._allowed[: len(nodes.nodes)]
        self._runtime.kernel("node_features", "allow_features")(
            n, THREADS, nodes.nodes, nodes.per_tree, nodes.capacity, nodes.links, features.at(depth), found.shape[1],
            *self._counts, features.states, self._members, self._words, self._open_groups, found,
        )  # fmt: skip
        return found, 1


def feature_shapes(n_grown: int, n_nodes: int, n_features: int, n_words: int) -> Shapes:
    """Return the shapes of the arrays of `NodeFeatures`.

    `n_grown` : nodes that all trees have room for. `n_nodes` : most nodes of a search. `n_words` : of groups.
    """
    return {
        "members": ((n_features, n_words), np.uint32), "open_groups": ((n_grown, n_words), np.uint32),
        "allowed": ((n_nodes, n_features), np.uint8),
    }  # fmt: skip


def make_features(runtime: Runtime, rules: NodeRules | None, n_trees: int, capacity: int, n_nodes: int
                  ) -> SharedFeatures:  # fmt: skip
    """Return what tells the features of nodes, by rules of their own if there are any."""
    return SharedFeatures() if rules is None else NodeFeatures(runtime, rules, n_trees, capacity, n_nodes)
