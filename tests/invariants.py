"""What holds of every tree, whatever grew it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskboost import Booster
from daskboost.objectives.objective import scores_weights
from daskboost.params import TrainParams
from daskboost.tree.table import TreeTable


def check_tree(tree: TreeTable, params: TrainParams, *, by_weight: bool = False) -> None:
    """Structure, sums, gains and limits of one tree.

    `by_weight` : splits are scored by weights, of which trees keep nothing: their gains and covers are Newton's.
    """
    inner, leaf = np.flatnonzero(~tree.is_leaf), np.flatnonzero(tree.is_leaf)
    left, right = tree.left_child[inner], tree.right_child[inner]
    assert sorted([0, *left.tolist(), *right.tolist()]) == list(range(tree.n_nodes))  # each node has one parent
    assert (left > inner).all() and (right == left + 1).all() and (left % 2 == 1).all()
    assert (tree.right_child[leaf] == -1).all() and (tree.split_bin[leaf] == -1).all() and (tree.gain[leaf] == 0).all()
    assert tree.cover[left] + tree.cover[right] == pytest.approx(tree.cover[inner], rel=1e-6)
    assert all(np.isfinite(each).all() for each in (tree.value, tree.gain, tree.cover, tree.threshold))
    assert tree.depth.max() <= params.depth_limit
    assert not params.max_leaves or tree.n_leaves <= params.max_leaves
    if params.grow_policy == "symmetric":
        check_symmetric(tree, params)
    elif not by_weight:
        assert (tree.gain[inner] > 0).all()
        assert (tree.gain[inner] >= params.gamma * (1 - 1e-6)).all()
        assert (np.minimum(tree.cover[left], tree.cover[right]) >= params.min_child_weight * (1 - 1e-6)).all()
    if params.grow_policy == "lossguide" and not by_weight:
        check_best_first(tree)
    if params.max_delta_step:
        assert (np.abs(tree.value) <= params.learning_rate * params.max_delta_step * (1 + 1e-6)).all()


def check_symmetric(tree: TreeTable, params: TrainParams) -> None:
    """One split per level, all leaves at one depth, and a level's gains add up to something worth it."""
    assert len(set(tree.depth[tree.is_leaf].tolist())) == 1
    for depth in range(int(tree.depth.max())):
        level = np.flatnonzero(tree.depth == depth)
        assert len(level) == 2**depth
        splits = set(zip(tree.feature[level], tree.split_bin[level], tree.default_left[level], strict=True))
        assert len(splits) == 1, f"level {depth} has {len(splits)} splits"


def check_best_first(tree: TreeTable) -> None:
    """Of the nodes that could have split, the one that did gains most: children are numbered in order of splitting."""
    order = sorted(np.flatnonzero(~tree.is_leaf).tolist(), key=lambda node: int(tree.left_child[node]))
    for i, node in enumerate(order):
        waiting = [other for other in order[i + 1 :] if other < tree.left_child[node]]
        assert all(tree.gain[other] <= tree.gain[node] * (1 + 1e-6) for other in waiting)


def check_model(model: Booster, params: TrainParams) -> None:
    """All trees."""
    for tree in model.trees:
        check_tree(tree, params, by_weight=scores_weights(params, model.objective))


def paths(tree: TreeTable) -> list[set[int]]:
    """The features on the way to each leaf."""
    used: list[set[int]] = [set() for _ in range(tree.n_nodes)]
    for node in np.flatnonzero(~tree.is_leaf).tolist():
        for child in (tree.left_child[node], tree.right_child[node]):
            used[child] = used[node] | {int(tree.feature[node])}
    return [used[node] for node in np.flatnonzero(tree.is_leaf).tolist()]


def check_interactions(model: Booster, groups: list[list[int]]) -> None:
    """Features that meet on a path share a group."""
    for tree in model.trees:
        for path in paths(tree):
            assert len(path) <= 1 or any(path <= set(group) for group in groups), path


def check_monotone(model: Booster, X: Any, directions: list[int]) -> None:
    """Predictions over the whole range of each constrained feature, the other features as they are in `X`."""
    for feature, direction in enumerate(directions):
        if direction == 0:
            continue
        grid = np.unique(X[:, feature][~np.isnan(X[:, feature])])
        moved = np.repeat(X, len(grid), axis=0)
        moved[:, feature] = np.tile(grid, len(X))
        margin = np.asarray(model.predict(moved, output="margin"), np.float64).reshape(len(X), len(grid))
        assert (direction * np.diff(margin, axis=1) >= -1e-6 * np.abs(margin).max()).all(), feature
