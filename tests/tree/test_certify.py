"""Judging trees that were grown on a sample, against the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import certify as reference

from daskboost.params import TrainParams
from daskboost.tree.certify import Draft
from daskboost.tree.split_search import SetSearch, SplitRules
from daskboost.tree.table import LEAF

DEPTH = 5


def random_draft(rng: np.random.Generator, gamma: float) -> tuple[Draft, reference.Node]:
    """A judged draft of any shape, and the same as the twin has it; gains tie now and then."""
    params = TrainParams(max_depth=DEPTH, gamma=gamma)
    sets = SetSearch(np.array([True, False, False]), 40, 4, 64)
    draft = Draft(params, SplitRules(1, 0, 0, 1, np.zeros(3, np.int32), symmetric=False, sets=sets))
    draft.least_gain = least = max(gamma, reference.NOISE)
    gains = rng.choice([0.0, 1e-7, 0.5, 1.0, 2.5, 4.0], 200)

    def grow(node: int, depth: int) -> reference.Node:
        best = float(gains[node])
        draft.nodes["depth"][node], draft.nodes["best_gain"][node] = depth, best
        made = reference.Node(depth, best, name=node)
        if best < least or depth == DEPTH - 1 or (depth and rng.random() < 0.2):
            return made
        made.is_best, made.spent = bool(rng.random() < 0.3), bool(rng.random() < 0.2)
        made.gain = best if made.is_best else best * float(rng.choice([0.5, 0.9, 1.0]))
        draft.nodes["gain"][node], draft.nodes["spent"][node] = made.gain, made.spent
        if not made.is_best:
            draft.nodes["best"]["split_bin" if rng.random() < 0.5 else "right_bins"][node] = 1
        left = len(draft.nodes)
        draft._extend(2)
        draft.nodes["left"][node], draft.nodes["right"][node] = left, left + 1
        made.children = [grow(left, depth + 1), grow(left + 1, depth + 1)]
        return made

    return draft, grow(0, 0)


@pytest.mark.parametrize("gamma", [0.0, 0.7])
@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_judging(seed: int, tolerance: float, gamma: float) -> None:
    draft, twin = random_draft(np.random.default_rng(seed), gamma)
    found = draft.judge(tolerance)
    replaced, spent, lost, gain = reference.judge(twin, tolerance, DEPTH, gamma)
    assert (set(found.replaced.tolist()), set(found.spent.tolist())) == (replaced, spent)
    assert (found.lost, found.gain) == (lost, gain)


def test_certified_is_what_loses_no_more_than_the_tolerance() -> None:
    """All at once or not at all, where nothing was spent before."""
    for seed in range(50):
        draft, twin = random_draft(np.random.default_rng(seed), 0.0)
        draft.nodes["spent"] = False
        losses = [reference.loss(node, DEPTH, 0.0) or 0.0 for node in reference.all_nodes(twin)]
        verdict = draft.judge(0.3)
        assert (len(verdict.replaced) == 0) == (sum(losses) <= 0.3 * verdict.gain + 1e-12)


def test_replaced_nodes_have_their_best_splits_and_new_leaves() -> None:
    draft, _ = random_draft(np.random.default_rng(4), 0.0)
    draft.nodes["spent"] = False
    verdict = draft.judge(0.0)
    assert len(verdict.replaced)
    size = len(draft.nodes)
    draft.replace(verdict)
    nodes: Any = draft.nodes
    assert draft.targets.tolist() == list(range(size, size + 2 * len(verdict.replaced)))
    assert (nodes["left"][draft.targets] == LEAF).all()
    for node in verdict.replaced.tolist():
        assert nodes["split"][node] == nodes["best"][node] and nodes["gain"][node] == nodes["best_gain"][node]
        assert nodes["depth"][nodes["left"][node]] == nodes["depth"][nodes["right"][node]] == nodes["depth"][node] + 1
        assert not set(draft.judge(0.0).replaced.tolist()) & {node}
