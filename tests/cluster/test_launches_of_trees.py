"""Launches of trees that grow on a device: one of each kernel for all nodes of a level, and of all trees of a group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from cluster.takes_of_rounds import Takes, fit, search_entries, takes

from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.cpu.gradients import DIGITS
from daskboost.devices.gpu.rows.vector_rows import AT_ONCE

__all__ = ["takes"]

pytestmark = pytest.mark.emulated

OF_ROWS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "dense": ({}, {"zero_divided", "build", "rough_of_features", "best_of_nodes"}),
    "csr": ({"encoding": "csr"}, {"map_tiles", "fill", "add_shared", "rough_of_features", "best_of_nodes"}),
    "sorted entries": ({"encoding": "csr"}, {"map_tiles", "fill", "place_rows", "best_in_tiles", "best_of_blocks"}),
}
"""How rows are stored, and what finds splits in them."""


def launches(takes: Takes) -> Counter[str]:
    """Of the last graph that was replayed, by kernel."""
    return Counter(takes.replays[-1])


@pytest.mark.parametrize("depth", [2, 5])
@pytest.mark.parametrize("rows", OF_ROWS)
def test_all_nodes_of_a_level_share_launches(
    rows: str, depth: int, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, searching = OF_ROWS[rows]
    if rows == "sorted entries":
        search_entries(monkeypatch)
    fit(takes, {"max_depth": depth, "min_child_weight": 0}, **how)
    found = launches(takes)
    assert {found[kernel] for kernel in searching | {"choose_splits"}} == {depth}
    assert {found[kernel] for kernel in ("count_left", "move_rows")} <= {depth - 1, depth}  # leaves may be walked to
    assert max(found.values()) == depth, found


@pytest.mark.parametrize("n_classes", [3, 9])
@pytest.mark.parametrize("rows", ["dense", "csr"])
def test_outputs_of_vectors_share_launches(rows: str, n_classes: int, takes: Takes) -> None:
    """So many as are gathered at a time."""
    params = {"objective": "multi:softprob", "num_class": n_classes, "multi_strategy": "multi_output_tree"}
    fit(takes, {**params, "max_depth": 3}, **OF_ROWS[rows][0])
    found, building = launches(takes), "build" if rows == "dense" else "add_shared"
    assert found["gather_pairs"] == found[building] == 3 * -(-n_classes // AT_ONCE)
    assert found["sum_chunks"] == found["choose_splits"] == 3


def test_quantiles_of_all_leaves_share_launches(takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches for all trees of a group: each of a key's digits takes two, and one map of tiles serves them."""
    monkeypatch.setattr(plans, "trees_together", lambda *_: 3)
    fit(takes, {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.5, 0.9), "max_depth": 4})
    found = launches(takes)
    assert (found["count_residuals"], found["choose_digits"], found["map_tiles"]) == (len(DIGITS), len(DIGITS), 1)


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
@pytest.mark.parametrize("rows", ["dense", "csr"])
def test_trees_of_a_group_share_launches(
    rows: str, growth: str, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for leaf values of sparse rows: those of each output are added by themselves."""
    monkeypatch.setattr(plans, "trees_together", lambda *_: 3)
    params = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "grow_policy": growth}
    fit(takes, params, **OF_ROWS[rows][0])
    together = launches(takes)
    of_leaves = together.pop("add_leaf_values", 0)
    assert of_leaves == (0 if rows == "dense" else 3)
    assert max(together.values()) == 3, together
