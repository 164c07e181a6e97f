"""The features of nodes that a GPU finds are those of `FeatureRules`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.growth import make_tables
from daskboost.devices.gpu.trees.node_features import LevelFeatures, NodeFeatures, NodeRules, group_members
from daskboost.dtypes import Bool
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.device_trees import allowed_features

N_TREES, DEPTH = 2, 4
BEST = {"grow_policy": "lossguide"}


def random_groups(rng: np.random.Generator, n_groups: int, n_features: int) -> Bool:
    """Groups of two to four features, which leave some features without a group."""
    groups = np.zeros((n_groups, n_features), np.bool_)
    for group in groups:
        group[rng.integers(0, max(1, n_features - 2), rng.integers(2, 5))] = True
    return groups


@pytest.mark.parametrize("n_features, n_groups, shares", [
    (7, 3, {}), (7, 0, {"colsample_bynode": 0.5}), (1, 1, {"colsample_bynode": 0.01}),
    (40, 33, {"colsample_bynode": 0.3, "colsample_bylevel": 0.7}), (13, 0, {"colsample_bylevel": 0.4, **BEST}),
    (400, 9, {"colsample_bynode": 0.3, "colsample_bylevel": 0.7, "colsample_bytree": 0.9, **BEST}),
    (40, 70, {"colsample_bytree": 0.5}),
    (9_000, 0, {"colsample_bynode": 0.999, "colsample_bytree": 0.8}), (9_000, 5, {"colsample_bynode": 0.1}),
], ids=str)  # fmt: skip
def test_they_are_those_of_the_definition(
    n_features: int, n_groups: int, shares: dict[str, Any], runtime: Runtime
) -> None:
    """Of two trees, whose nodes are split at random, level by level; every fourth is not to be searched."""
    rng, xp, capacity = np.random.default_rng(n_features + n_groups), runtime.xp, 2 ** (DEPTH + 1)
    params = TrainParams(**shares, max_depth=DEPTH, random_state=7)
    groups = random_groups(rng, n_groups, n_features) if n_groups else None
    rules = [FeatureRules(params, n_features, groups, 3, output) for output in range(N_TREES)]
    n_of_level = rules[0].n_of_level if params.grow_policy == "lossguide" else 0
    of_level = np.ascontiguousarray(allowed_features(rules, params).swapaxes(0, 1))
    features = LevelFeatures(
        xp.asarray(of_level), xp.asarray(np.ascontiguousarray(np.array([each.states for each in rules], np.uint64).T))
    )
    members = group_members(np.zeros((0, n_features), np.bool_) if groups is None else groups)
    tables = make_tables(runtime, N_TREES, capacity)
    links = np.zeros((N_TREES, 6, capacity), np.int32)
    links[:, 0, 0] = -1
    made = NodeFeatures(runtime, NodeRules(n_of_level, rules[0].n_drawn, members), N_TREES, capacity, N_TREES << DEPTH)
    paths: list[dict[int, frozenset[int]]] = [{0: frozenset()} for _ in range(N_TREES)]
    searched = np.zeros((N_TREES, 1), np.int32)
    for depth in range(DEPTH):
        tables.links[...] = xp.asarray(links)
        found, per_list = made.allowed(
            features, depth, tables.at(xp.asarray(searched.ravel()), searched.shape[1])
        )
        assert per_list == 1
        lists = to_host(found).reshape(N_TREES, searched.shape[1], n_features)
        below = np.full((N_TREES, 2 * searched.shape[1]), -1, np.int32)
        for tree, slot in np.argwhere(searched >= 0).tolist():
            node, own = int(searched[tree, slot]), paths[tree]
            (expected,) = rules[tree].allowed([node], [depth], [own[node]])
            np.testing.assert_array_equal(lists[tree, slot], expected, err_msg=f"node {node} of tree {tree}")
            usable = np.flatnonzero(expected)
            if not len(usable):
                continue
            links[tree, 4, node] = rng.choice(usable)
            for side in (0, 1):
                child = 2 * node + 1 + side
                links[tree, :2, child] = node, depth + 1
                own[child] = own[node] | {int(links[tree, 4, node])}
                if depth == 0 or rng.random() < 0.75:
                    below[tree, 2 * slot + side] = child
        searched = below
    assert all(len(own) > 2 for own in paths)


def test_members_are_bits_of_groups() -> None:
    groups = np.zeros((34, 3), np.bool_)
    groups[0, 0] = groups[33, 0] = groups[5, 2] = True
    assert group_members(groups).tolist() == [[1, 2], [0, 0], [32, 0]]
    assert group_members(groups[:0]).shape == (3, 0)
