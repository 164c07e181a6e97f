"""One decision tree as arrays per node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise

import numpy as np

from daskboost.devices.leaf_models import NO_MODELS, LeafModels
from daskboost.dtypes import Bool, Float32, Int32
from daskboost.tree.category_sets import NO_SETS, CategorySets

LEAF = -1
"""`left_child` of a leaf."""
SHOWN_CATEGORIES = 6
"""A condition in words names at most so many categories."""


@dataclass(frozen=True)
class TreeTable:
    """A tree; arrays have shape (nodes,) but for vectors' values, node 0 is the root, children come after their parent.

    A row with value `x` of `feature` goes to `left_child` if `x < threshold`, or if the value is missing and
    `default_left`; otherwise to `right_child`. Where the node has a set of categories, a row goes right if `x` is one
    of them, and a missing value as elsewhere.
    """

    left_child: Int32
    """Left child, or -1 in a leaf."""
    right_child: Int32
    """Right child, or -1 in a leaf."""
    feature: Int32
    """Split feature; 0 in a leaf."""
    split_bin: Int32
    """Last bin that goes left; -1 where the cut points are not known (leaves, models read from files) and where a set
    splits."""
    threshold: Float32
    """Split value; 0 in a leaf, and where a set splits."""
    default_left: Bool
    """Whether missing values go left."""
    gain: Float32
    """Loss reduction of the split; 0 in a leaf."""
    cover: Float32
    """Sum of hessians of the training rows in the node, over all outputs of vectors."""
    value: Float32
    """What a leaf adds to the margin (learning rate included); an inner node's would-be value. Where leaves are
    vectors, of shape (nodes, outputs): what it adds to each output's."""
    sets: CategorySets = NO_SETS
    """Categories that go right, of the nodes that split by a set of them."""
    models: LeafModels = NO_MODELS
    """Models of leaves, which add to `value` what a row's positions are times slopes."""

    @property
    def n_nodes(self) -> int:
        return len(self.left_child)

    @classmethod
    def joined(cls, trees: Sequence[TreeTable]) -> TreeTable:
        """Return trees one behind the other, each with its own numbers of nodes; `parts` gives them back."""
        arrays = [each.name for each in fields(cls) if each.name not in ("sets", "models")]
        n_nodes = [tree.n_nodes for tree in trees]
        return cls(
            **{name: np.concatenate([getattr(tree, name) for tree in trees]) for name in arrays},
            sets=CategorySets.joined([tree.sets for tree in trees], n_nodes),
            models=LeafModels.joined([tree.models for tree in trees], n_nodes),
        )

    def parts(self, ends: Sequence[int]) -> list[TreeTable]:
        """Return trees that lie one behind the other, given how many nodes there are up to the end of each."""
        return [self.part(begin, end) for begin, end in pairwise((0, *ends))]

    def part(self, begin: int, end: int) -> TreeTable:
        """Return the tree of some of the nodes, where several trees lie one behind the other."""
        some = slice(begin, end)
        return TreeTable(
            self.left_child[some], self.right_child[some], self.feature[some], self.split_bin[some],
            self.threshold[some], self.default_left[some], self.gain[some], self.cover[some], self.value[some],
            self.sets.part(begin, end), self.models.part(begin, end),
        )  # fmt: skip

    @property
    def has_vectors(self) -> bool:
        """Whether a leaf has a value per output."""
        return self.value.ndim == 2

    @property
    def values(self) -> Float32:
        """Return a view of `value` in which each value of a node has a column; shape (nodes, values)."""
        return self.value.reshape(self.n_nodes, -1)

    @property
    def leaf_width(self) -> int:
        """Return how many values a leaf has: one, or one per output."""
        return math.prod(self.value.shape[1:])

    def outputs(self, first: int) -> slice:
        """Return the outputs that the tree's leaves add to, of which `first` is the first: that of a tree of vectors
        is 0."""
        return slice(first, first + self.leaf_width)

    @property
    def is_leaf(self) -> Bool:
        leaf: Bool = self.left_child == LEAF
        return leaf

    @property
    def n_leaves(self) -> int:
        return int(np.count_nonzero(self.is_leaf))

    @property
    def has_set(self) -> Bool:
        """Whether a node splits by a set of categories."""
        found: Bool = self.sets.sizes(self.n_nodes) > 0
        return found

    @property
    def yes_child(self) -> Int32:
        """Where rows go for which a node's condition holds: to the left below a threshold, to the right in a set."""
        return np.where(self.has_set, self.right_child, self.left_child)

    @property
    def no_child(self) -> Int32:
        """Where rows go for which a node's condition does not hold."""
        return np.where(self.has_set, self.left_child, self.right_child)

    @property
    def missing_child(self) -> Int32:
        """Where rows go that have no value."""
        return np.where(self.default_left, self.left_child, self.right_child)

    def condition(self, node: int, category: Callable[[int], object] = int) -> str:
        """Return what an inner node asks of a value, in words: "< 3" or "in {1, 4}", where `category` names codes."""
        codes = self.sets.of(node).tolist()
        if not codes:
            return f"< {self.threshold[node]:.6g}"
        more = f" and {len(codes) - SHOWN_CATEGORIES} more" if len(codes) > SHOWN_CATEGORIES else ""
        return f"in {{{', '.join(str(category(code)) for code in codes[:SHOWN_CATEGORIES])}{more}}}"

    @property
    def parent(self) -> Int32:
        """Parent of each node, -1 for the root."""
        parents = np.full(self.n_nodes, -1, np.int32)
        inner = np.flatnonzero(~self.is_leaf)
        parents[self.left_child[inner]] = inner
        parents[self.right_child[inner]] = inner
        return parents

    @property
    def depth(self) -> Int32:
        """Depth of each node, 0 for the root."""
        parents, depths = self.parent, np.zeros(self.n_nodes, np.int32)
        for node in range(1, self.n_nodes):  # children come after their parent
            depths[node] = depths[parents[node]] + 1
        return depths


@dataclass(frozen=True)
class JoinedTrees:
    """Trees as one message: an array takes as long to send as thousands of nodes."""

    nodes: TreeTable | None
    """The nodes of all trees, one tree behind the other; None where there is no tree."""
    ends: list[int]
    """How many nodes there are up to the end of each tree."""

    @classmethod
    def of(cls, trees: Sequence[TreeTable]) -> JoinedTrees:
        """Return trees in their order."""
        ends = list(accumulate(tree.n_nodes for tree in trees))
        return cls(TreeTable.joined(trees) if trees else None, ends)

    @property
    def trees(self) -> list[TreeTable]:
        """Return the trees."""
        return [] if self.nodes is None else self.nodes.parts(self.ends)
