"""Trees that grow on a device do without the host: it replays graphs, and reads what they left when a take of rounds
ends; best-first trees ask it once in some steps. `test_waits_are_found.py` shows that this can fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster.takes_of_rounds import (
    BEST_FIRST,
    GROUP,
    GROWTH,
    LAST_METRICS,
    N_ROWS,
    Takes,
    check,
    check_best_first,
    fit,
    search_entries,
    takes,
)

from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.gpu.trees.best_first import STEPS
from daskboost.fit import scales as rounding
from daskboost.objectives.regression import SquaredError

__all__ = ["takes"]

pytestmark = pytest.mark.emulated

SOFTMAX: dict[str, Any] = {"objective": "multi:softprob", "num_class": 3}
ROWS: dict[str, dict[str, Any]] = {"dense": {}, "csr": {"encoding": "csr"}}
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "by weight": ({"objective": "binary:logistic", "score_function": "l2"}, "refit_trees"),
    "subsample": ({"subsample": 0.5}, "count_sampled"),
    "medians": ({"objective": "reg:absoluteerror"}, "choose_digits"),
    "quantiles of samples": (
        {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.5, 0.9), "subsample": 0.5}, "choose_digits"
    ),
    "linear leaves": ({"linear_leaves": True}, "fit_leaves"),
    "linear leaves by weight": (
        {"linear_leaves": True, "objective": "binary:logistic", "score_function": "l2"}, "add_equations"
    ),
    "monotone": ({"monotone_constraints": (1, -1, 0, 1, 0)}, "quantize_gradients"),
}
"""And a kernel that is in their graphs."""


@pytest.mark.parametrize("growth", GROWTH)
@pytest.mark.parametrize("rows", ["dense", "csr"])
def test_a_round_is_a_graph(rows: str, growth: str, takes: Takes) -> None:
    fit(takes, GROWTH[growth], **ROWS[rows])
    check(takes, GROUP, 1)


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
@pytest.mark.parametrize("rule", RULES)
def test_a_round_is_a_graph_whatever_the_rules(rule: str, growth: str, takes: Takes) -> None:
    params, kernel = RULES[rule]
    fit(takes, {**GROWTH[growth], **params})
    check(takes, GROUP, 1)
    assert kernel in {note.what for note in takes.in_graphs}


@pytest.mark.parametrize("name", ["depthwise", "best first"])
def test_a_round_is_a_graph_of_sorted_entries_too(
    name: str, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose search takes so long that best-first trees ask before each one."""
    search_entries(monkeypatch)
    fit(takes, BEST_FIRST if name == "best first" else GROWTH[name], **ROWS["csr"])
    assert "best_in_tiles" in {note.what for note in takes.in_graphs}
    if name == "best first":
        check_best_first(takes, at_once=1)
    else:
        check(takes, GROUP, 1)


@pytest.mark.parametrize("share", ["colsample_bytree", "colsample_bylevel", "colsample_bynode"])
def test_features_that_are_drawn_are_uploaded_before_the_graph(share: str, takes: Takes) -> None:
    growth = GROWTH["symmetric" if share == "colsample_bynode" else "depthwise"]
    fit(takes, {**growth, share: 0.6})
    check(takes, "u" + GROUP, 1)


def test_features_of_nodes_are_found_in_the_graph(takes: Takes) -> None:
    """Before it come the features of levels, and what nodes draw by."""
    fit(takes, {**GROWTH["depthwise"], "colsample_bynode": 0.6, "interaction_constraints": [[0, 1, 2], [2, 3]]})
    check(takes, "uu" + GROUP, 1)
    assert "allow_features" in {note.what for note in takes.in_graphs}


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
@pytest.mark.parametrize("together", [3, 2, 1])
def test_each_group_of_trees_is_a_graph(
    together: int, growth: str, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "trees_together", lambda *_: together)
    fit(takes, {**SOFTMAX, **GROWTH[growth], "colsample_bylevel": 0.7})
    n_groups = -(-3 // together)
    check(takes, f"(?:u{GROUP}){{{n_groups}}}", n_groups)


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
@pytest.mark.parametrize("rows", ["dense", "csr"])
@pytest.mark.parametrize("more", [{}, {"subsample": 0.5}])
def test_vectors_grow_by_a_graph(more: dict[str, Any], rows: str, growth: str, takes: Takes) -> None:
    fit(takes, {**SOFTMAX, **GROWTH[growth], **more, "multi_strategy": "multi_output_tree"}, **ROWS[rows])
    check(takes, GROUP, 1)
    searching = "best_of_level_features" if growth == "symmetric" else "best_of_features"
    assert searching in {note.what for note in takes.in_graphs}


def test_vectors_are_evaluated_beside_the_trees(takes: Takes) -> None:
    params = {**SOFTMAX, "max_depth": 3, "multi_strategy": "multi_output_tree", "eval_metric": ["mlogloss", "merror"]}
    fit(takes, params, evaluated=True)
    check(takes, GROUP, 2, end=LAST_METRICS)


def test_small_data_grow_by_graphs(takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "SMALL_ROWS", N_ROWS)
    fit(takes, {"max_depth": 3})
    check(takes, GROUP, 1)


@pytest.mark.parametrize(("objective", "metrics"), [
    ("reg:squarederror", ["rmse", "mae"]), ("binary:logistic", ["logloss", "auc", "error", "aucpr"]),
    ("multi:softprob", ["mlogloss", "merror"]), ("count:poisson", ["rmse"]),
])  # fmt: skip
def test_metrics_are_in_the_graph_of_the_next_trees(objective: str, metrics: list[str], takes: Takes) -> None:
    """Those of a take's last round in one of their own: the host reads them with the trees, when the take ends."""
    classes = {"num_class": 3} if objective.startswith("multi") else {}
    fit(takes, {"objective": objective, "max_depth": 2, "eval_metric": metrics, **classes}, evaluated=True)
    check(takes, GROUP, 2, end=LAST_METRICS)
    of_trees = [launched for launched in takes.replays if "finish_trees" in launched]
    assert all("sum_losses" in launched for launched in of_trees) and len(of_trees) == 3


def worst(label: Any, prediction: Any) -> float:
    return float(np.abs(label - prediction).max())


@pytest.mark.parametrize("metrics", [["poisson-deviance"], ["rmse", worst]])
def test_metrics_of_the_host_wait_between_trees_only(metrics: list[Any], takes: Takes) -> None:
    fit(takes, {"objective": "count:poisson", "max_depth": 3, "eval_metric": metrics}, evaluated=True)
    check(takes, f"{GROUP}[lru]+", 1, "[lru]+", ahead=False)


class Halves(SquaredError):
    """Without a kernel."""

    def gradients(self, label: Any, margin: Any, xp: Any = np) -> tuple[Any, Any]:
        return (margin - label[:, None]) / 2, xp.full(margin.shape, 0.5, np.float32)


def test_gradients_without_a_kernel_come_before_the_graph(takes: Takes) -> None:
    """Nobody waits for the launches of their expressions."""
    fit(takes, {"max_depth": 3}, objective=Halves())
    check(takes, f"[lu]+{GROUP}", 1)


def test_users_gradients_come_before_the_graph(takes: Takes) -> None:
    """Their function takes labels and margins on the host."""
    fit(takes, {"max_depth": 3}, objective=lambda label, margin: (margin - label, margin * 0 + 1))
    check(takes, f"rruul+{GROUP}", 1, "rruu[lu]+")


@pytest.mark.parametrize("rows", ["dense", "csr"])
@pytest.mark.parametrize("more", [
    {}, {"max_leaves": 2}, {"objective": "binary:logistic", "score_function": "l2", "subsample": 0.6},
    {"max_leaves": 120, "max_depth": 8},
])  # fmt: skip
def test_best_first_trees_ask_once_in_some_steps(more: dict[str, Any], rows: str, takes: Takes) -> None:
    assert STEPS > 1
    fit(takes, {**BEST_FIRST, **more}, **ROWS[rows])
    check_best_first(takes)


def test_best_first_trees_of_several_outputs_ask_each(takes: Takes) -> None:
    fit(takes, {**BEST_FIRST, **SOFTMAX, "max_leaves": 8, "colsample_bytree": 0.6})
    check_best_first(takes, 3, "u")
