"""Sets of categories in tables of trees: joined, taken apart, sent, and put in words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daskboost import wire
from daskboost.fit.messages import WIRE_TYPES
from daskboost.tree.category_sets import NO_SETS, CategorySets
from daskboost.tree.table import SHOWN_CATEGORIES, JoinedTrees, TreeTable

codes = st.sets(st.integers(0, 70), max_size=5)
"""Codes of a node's set, of which there are often none."""


def table_of(sets: list[set[int]]) -> TreeTable:
    """A chain of splits by these sets, or, where one is empty, by a threshold."""
    n = 2 * len(sets) + 1
    inner = np.arange(n) % 2 == 0
    inner[-1] = False
    child = np.where(inner, np.arange(n) + 1, -1).astype(np.int32)
    floats = np.arange(n, dtype=np.float32)
    of_nodes = [sorted(sets[i // 2]) if inner[i] else [] for i in range(n)]
    return TreeTable(
        child, np.where(inner, child + 1, -1).astype(np.int32), np.zeros(n, np.int32), np.full(n, -1, np.int32),
        floats, inner, floats, floats, floats, CategorySets.of_nodes(of_nodes),
    )  # fmt: skip


@given(st.lists(st.lists(codes, max_size=6), max_size=4))
def test_trees_come_apart_as_they_were_joined(sets: list[list[set[int]]]) -> None:
    for kind in WIRE_TYPES:  # as what sends them does
        wire.register(kind)
    trees = [table_of(own) for own in sets]
    joined = wire.decode(wire.encode(JoinedTrees.of(trees)))
    assert len(joined.trees) == len(trees)
    for own, tree, found in zip(sets, trees, joined.trees, strict=True):
        assert found.sets.begin.tolist() == tree.sets.begin.tolist()
        assert found.sets.categories.dtype == found.sets.begin.dtype == np.int32
        assert [set(found.sets.of(node).tolist()) for node in range(0, found.n_nodes - 1, 2)] == own
        assert found.has_set.tolist() == [len(found.sets.of(node)) > 0 for node in range(found.n_nodes)]
        assert bool(found.sets) == any(own) and len(found.sets.sizes(found.n_nodes)) == found.n_nodes


def test_trees_without_sets_share_the_empty_value() -> None:
    tree = table_of([set(), set()])
    assert tree.sets is NO_SETS
    assert TreeTable.joined([tree, tree]).sets is NO_SETS
    mixed = TreeTable.joined([tree, table_of([{3}])])
    assert mixed.sets and mixed.part(0, tree.n_nodes).sets is NO_SETS


def test_codes_are_kept_in_order() -> None:
    assert CategorySets.of_nodes([[5, 1, 3], [], [0]]).lists == [[1, 3, 5], [], [0]]


def test_conditions_in_words() -> None:
    tree = table_of([{2, 0}, set(), set(range(SHOWN_CATEGORIES + 2))])
    assert tree.condition(0) == "in {0, 2}"
    assert tree.condition(0, "abc".__getitem__) == "in {a, c}"
    assert tree.condition(2) == "< 2"
    assert (tree.yes_child[0], tree.no_child[0], tree.missing_child[0]) == (2, 1, 1)
    assert (tree.yes_child[2], tree.no_child[2], tree.missing_child[2]) == (3, 4, 3)
    assert tree.condition(4) == "in {0, 1, 2, 3, 4, 5 and 2 more}"
