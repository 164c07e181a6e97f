"""Trees that grow on a device as a whole (`devices/gpu/growth.py`): which can, by which rules, what comes of it."""

from __future__ import annotations

import numpy as np

from daskboost.data.cuts import Cuts
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.gpu.best_first import MOST_LEAVES
from daskboost.devices.gpu.growth import GrowthRules, TreeTables
from daskboost.devices.gpu.split import Regular
from daskboost.dtypes import UInt8
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growth import finished_tree
from daskboost.tree.split import SplitRules
from daskboost.tree.table import TreeTable

DEEPEST = 12
"""Levels have room for all nodes there could be: at this depth 4,096 histograms, most of them of nodes that are not."""


def regular_of(rules: SplitRules) -> Regular:
    """What splits are regularized with, as kernels take it."""
    return Regular(
        rules.reg_lambda, rules.reg_alpha, rules.max_delta_step, rules.least_h, rules.plain, rules.monotone
    )


def needs_host(params: TrainParams) -> str:
    """Say why trees of these parameters grow with the host; empty where a device can grow them by itself.

    Features that depend on a node's path from the root, or are drawn for each node, are the host's to decide; so are,
    for trees that grow best first, features drawn for each level.
    """
    by_node = params.colsample_bynode < 1 and params.grow_policy != "symmetric"
    best_first = params.grow_policy == "lossguide"
    reasons = {
        "interaction_constraints depend on a node's path": params.interaction_constraints is not None,
        "colsample_bynode draws features for each node": by_node,
        "colsample_bylevel draws features for levels that best-first trees do not have":
            best_first and params.colsample_bylevel < 1,
        f"a best-first tree without the host has 1 to {MOST_LEAVES} leaves":
            best_first and not 0 < leaf_limit(params) <= MOST_LEAVES,
        f"levels without the host have room for {DEEPEST} at most": not best_first and params.depth_limit > DEEPEST,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")


def growth_rules(params: TrainParams, rules: SplitRules) -> GrowthRules:
    """The rules of trees that grow without the host."""
    most_leaves = leaf_limit(params) if params.grow_policy == "lossguide" else params.max_leaves
    return GrowthRules(regular_of(rules), rules.symmetric, params.depth_limit, most_leaves, params.gamma)


def drawn_sets(params: TrainParams) -> int:
    """Sets of features that are drawn for a tree: one of each level, or one."""
    return params.depth_limit if params.colsample_bylevel < 1 or params.colsample_bynode < 1 else 1


def leaf_limit(params: TrainParams) -> int:
    """Most leaves of a tree, as many as its depth allows at most; 0 for any number."""
    limits = (params.max_leaves, 1 << params.max_depth if 0 < params.max_depth < 31 else 0)
    return min((limit for limit in limits if limit), default=0)


def allowed_features(features: FeatureRules, params: TrainParams) -> UInt8:
    """Features of each level of a tree; uint8, shape (levels, features), one level where all have the same."""
    same = params.colsample_bylevel == 1 and params.colsample_bynode == 1
    levels = range(1 if same else params.depth_limit)
    return np.concatenate([features.allowed([0], [depth], [frozenset()]) for depth in levels])


def tree_tables(tables: TreeTables, cuts: Cuts) -> list[TreeTable]:
    """Finished trees from tables in the host's memory."""
    found = []
    for tree, (size, _) in enumerate(tables.sizes.tolist()):
        _, _, left, right, feature, split_bin = (column[:size].copy() for column in tables.links[tree])
        default_left, value = tables.default_left[tree, :size] != 0, tables.values[tree, :size].copy()
        grown = WalkArrays(left, right, feature, split_bin, default_left, value)
        hessian = tables.sums[tree, :size, 1] * tables.rounding[tree, 1]
        found.append(finished_tree(cuts, grown, tables.gains[tree, :size], hessian))
    return found
