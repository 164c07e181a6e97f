"""Sets of categories by which nodes split: for each node the codes that go right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Int32


@dataclass(frozen=True, eq=False)
class CategorySets:
    """The sets of a tree's nodes, one behind the other; a node without categories splits by a threshold, or is a leaf.

    As in XGBoost's model files, categories of a node's set go right. Codes outside it go left, those that training has
    not seen among them; missing values follow the node's default direction.
    """

    begin: Int32
    """Where each node's categories begin, and last where they end; shape (nodes + 1,), or (1,) if no node has any."""
    categories: Int32
    """The codes of each set, at least 0 and increasing within a set."""

    @classmethod
    def of_nodes(cls, sets: Sequence[npt.ArrayLike]) -> CategorySets:
        """Return the sets of nodes, given in their order; an empty one is of a node that has none.

        Codes may come in any order.
        """
        return cls.of_sizes([np.size(each) for each in sets],
                            np.concatenate([NO_SETS.categories, *(np.sort(each) for each in sets)]))  # fmt: skip

    @classmethod
    def of_sizes(cls, sizes: npt.ArrayLike, categories: npt.NDArray[np.integer]) -> CategorySets:
        """Return sets, given how many categories each node has; these lie one set behind the other."""
        if not len(categories):
            return NO_SETS
        begin = np.concatenate([[0], np.cumsum(sizes)])
        return cls(begin.astype(np.int32), categories.astype(np.int32))

    @classmethod
    def joined(cls, trees: Sequence[CategorySets], n_nodes: Sequence[int]) -> CategorySets:
        """Return the sets of trees one behind the other, given how many nodes each has."""
        if not any(map(bool, trees)):
            return NO_SETS
        sizes = [own.sizes(n) for own, n in zip(trees, n_nodes, strict=True)]
        return cls.of_sizes(np.concatenate(sizes), np.concatenate([own.categories for own in trees]))

    def __bool__(self) -> bool:
        """Return whether any node splits by a set."""
        return len(self.categories) > 0

    def sizes(self, n_nodes: int) -> Int32:
        """Return how many categories each of the tree's nodes has; shape (nodes,)."""
        return np.diff(self.begin) if self else np.zeros(n_nodes, np.int32)

    def part(self, first: int, stop: int) -> CategorySets:
        """Return the sets of the nodes `first..stop`."""
        begin = self.begin[first : stop + 1]
        if not self or begin[0] == begin[-1]:
            return NO_SETS
        return CategorySets(begin - begin[0], self.categories[begin[0] : begin[-1]])

    def of(self, node: int) -> Int32:
        """Return the categories of a node that go right; empty if it splits by a threshold."""
        return self.categories[slice(*self.begin[node : node + 2])] if self else self.categories

    @property
    def lists(self) -> list[list[int]]:
        """Return the categories of each node; an empty list if no node has any."""
        codes = self.categories.tolist()
        return [codes[first:stop] for first, stop in pairwise(self.begin.tolist())]


NO_SETS = CategorySets(np.zeros(1, np.int32), np.empty(0, np.int32))
"""The sets of any tree that splits by thresholds alone."""

