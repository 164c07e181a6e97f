"""Pictures of a model: importance, one tree, the learning curve, by matplotlib or Graphviz (the extra ``plot``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.errors import MissingDependencyError, ParameterError
from daskboost.model.importance import get_score
from daskboost.model.tree_drawing import TreeDrawing, branches
from daskboost.params import REPORT_NAME
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from graphviz import Source
    from matplotlib.axes import Axes

    from daskboost.model.booster import Booster

MAX_DRAWN_LEAVES = 512
"""More boxes than this no picture can show; `to_graphviz` has no limit."""


def _axes(ax: Axes | None) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib; install it: pip install 'daskboost[plot]'") from error
    return pyplot.subplots()[1] if ax is None else ax


def plot_importance(
    booster: Any, importance_type: str = "gain", max_num_features: int | None = 20, ax: Axes | None = None
) -> Axes:
    """Bars of the most important features, the first on top.

    Parameters
    ----------
    booster : Booster or fitted estimator
    importance_type : str, default "gain"
        As in `Booster.get_score`.
    max_num_features : int or None, default 20
        How many to show, as many as a page has room for; None for all.
    ax : matplotlib Axes, optional

    Raises
    ------
    ParameterError
        A model without any split.
    MissingDependencyError
        matplotlib is not installed.
    """
    scores = sorted(get_score(booster_of(booster), importance_type).items(), key=lambda item: item[1])
    if not scores:
        raise ParameterError("the model has no splits, so no feature has any importance to plot")
    ax = _axes(ax)
    shown = scores[-max_num_features:] if max_num_features else scores
    bars = ax.barh([name for name, _ in shown], [score for _, score in shown])
    ax.bar_label(bars, fmt="%.3g", padding=2)
    ax.margins(x=0.12)
    ax.set(xlabel=importance_type.replace("_", " "), title="Feature importance")
    return ax


def plot_learning_curve(
    evals_result: Any,
    metric: str | None = None,
    best_iteration: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The metric of every evaluation set over the iterations.

    Parameters
    ----------
    evals_result : mapping of set name to mapping of metric name to values per iteration, or fitted estimator
    metric : str, optional
        Default: the last metric of the first set, which is the one that early stopping watches. What passes cost has
        names as well: "passes", for instance.
    best_iteration : int, optional
        Marked by a line.
    ax : matplotlib Axes, optional

    Raises
    ------
    ParameterError
        No evaluation, or a metric that was not evaluated.
    MissingDependencyError
        matplotlib is not installed.
    """
    evals_result = getattr(evals_result, "evals_result_", evals_result)
    if not isinstance(evals_result, Mapping):
        raise ParameterError(f"evals_result is {type(evals_result).__name__}; pass what train filled, or an estimator")
    metrics = list(dict.fromkeys(name for values in evals_result.values() for name in values))
    evaluated = [list(values) for name, values in evals_result.items() if name != REPORT_NAME]
    if not (evaluated or metric) or not metrics:
        raise ParameterError("evals_result is empty: train with evals=[(data, name)] to have a learning curve")
    metric = metric or evaluated[0][-1]
    if metric not in metrics:
        raise ParameterError(f"metric={metric!r} was not evaluated; evals_result has {', '.join(map(repr, metrics))}")
    ax = _axes(ax)
    for name, values in evals_result.items():
        if metric in values:
            ax.plot(values[metric], label=name)
    if best_iteration is not None:
        ax.axvline(best_iteration, color="gray", linestyle=":", label=f"best iteration ({best_iteration})")
    ax.set(xlabel="iteration", ylabel=metric, title="Learning curve")
    ax.legend()
    return ax


def booster_of(model: Any) -> Booster:
    """The model itself, or that of a fitted estimator.

    Raises
    ------
    ParameterError
        Anything else.
    """
    from daskboost.model.booster import Booster

    found = model.booster_ if hasattr(type(model), "booster_") else model
    if not isinstance(found, Booster):
        raise ParameterError(f"booster is {type(model).__name__}; pass a Booster or a fitted estimator")
    return found


def _chosen(booster: Booster, tree: int) -> TreeTable:
    if not 0 <= tree < len(booster.trees):
        raise ParameterError(f"tree={tree}: the model has trees 0 to {len(booster.trees) - 1}")
    return booster.trees[tree]


def to_graphviz(booster: Any, tree: int = 0) -> Source:
    """Return a tree for Graphviz, which draws trees of any size; a notebook shows it, `render` writes it to a file.

    Parameters
    ----------
    booster : Booster or fitted estimator
    tree : int, default 0

    Returns
    -------
    graphviz.Source
        Its attribute ``source`` is the tree in the DOT language. Drawing it takes Graphviz's command ``dot``.

    Raises
    ------
    ParameterError
        A tree the model does not have.
    MissingDependencyError
        The package graphviz is not installed.
    """
    booster = booster_of(booster)
    source = dot_source(booster, _chosen(booster, tree))
    try:
        from graphviz import Source
    except ImportError as error:
        raise MissingDependencyError(
            "to_graphviz needs graphviz; install it: pip install 'daskboost[plot]'"
        ) from error
    return Source(source)


def dot_source(booster: Booster, tree: TreeTable) -> str:
    """Return a tree in the DOT language."""
    lines = ["digraph {", "    graph [rankdir=TB]", "    node [shape=box, style=rounded]"]
    for node in range(tree.n_nodes):
        lines.append(f"    {node} [label={json.dumps(_text(booster, tree, node), ensure_ascii=False)}]")
        lines += [f'    {node} -> {child} [label="{word}"]' for child, word in branches(tree, node)]
    return "\n".join([*lines, "}", ""])


def _text(booster: Booster, tree: TreeTable, node: int) -> str:
    """Return what a node's box says, in one line per value of its leaf."""
    if tree.left_child[node] < 0:
        return "\n".join(["leaf", *(f"{value:.6g}" for value in np.atleast_1d(tree.value[node]))])
    return f"{booster.schema.label(int(tree.feature[node]))}\n< {tree.threshold[node]:.6g}"


def plot_tree(booster: Any, tree: int = 0, ax: Axes | None = None) -> Axes:
    """Draw a tree as boxes that no other touches; branches say yes, no, and which of them missing values take.

    Parameters
    ----------
    booster : Booster or fitted estimator
    tree : int, default 0
    ax : matplotlib Axes, optional
        Texts become as small as its present size demands. By default a figure that has the size that the tree needs.

    Raises
    ------
    ParameterError
        A tree the model does not have, or one of more than `MAX_DRAWN_LEAVES` leaves.
    MissingDependencyError
        matplotlib is not installed.
    """
    booster = booster_of(booster)
    table = _chosen(booster, tree)
    if table.n_leaves > MAX_DRAWN_LEAVES:
        raise ParameterError(
            f"tree={tree} has {table.n_leaves} leaves, too many for one picture (at most {MAX_DRAWN_LEAVES}); "
            "use to_graphviz, or trees_to_dataframe"
        )
    own_figure = ax is None
    ax = _axes(ax)
    TreeDrawing(ax, table, [_text(booster, table, node) for node in range(table.n_nodes)]).draw(
        resize_figure=own_figure
    )
    ax.set_title(f"Tree {tree}")
    ax.set_axis_off()
    return ax
