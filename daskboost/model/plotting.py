"""Pictures of a model: importance, one tree, the learning curve, by matplotlib or Graphviz (the extra ``plot``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.dtypes import Float64, Int32
from daskboost.errors import MissingDependencyError, ParameterError
from daskboost.params import REPORT_NAME
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from graphviz import Source
    from matplotlib.axes import Axes
    from matplotlib.text import Text

    from daskboost.model.booster import Booster
    from daskboost.model.explain import ImportanceType

# Where the boxes of a drawn tree go: each subtree has a strip of its own, as wide as its texts, so that none overlap.
#
# All lengths are in points. Axes that are smaller than the tree shrink its texts, gaps and lines alike; texts are
# measured anew then, for small letters are wider than their size says.

FONT_SIZE = 8.0
LABEL_SIZE = 6.5
"""Size of the words at branches."""
PADDING = 0.35
"""Between a box and its text, as a share of the font's size."""
GAP = 10.0
"""Between neighbouring boxes, and the margin around the tree."""
DROP = 26.0
"""From a box to the label of a branch that leaves it."""
TITLE = 24.0
"""Height of the title."""
LEAST_WIDTH = 144.0
"""Least width of a figure, so that there is room for its title."""
MEASUREMENTS = 5
"""How often a tree is measured, at most, until it fits its axes."""


def branches(tree: TreeTable, node: int) -> list[tuple[int, str]]:
    """Return the children of a node and which rows go to each: "yes", "no", and "missing" with one of them."""
    if tree.left_child[node] < 0:
        return []
    words = {int(tree.yes_child[node]): "yes", int(tree.no_child[node]): "no"}
    words[int(tree.missing_child[node])] += ", missing"
    return sorted(words.items(), key=lambda item: item[0] != tree.left_child[node])


@dataclass(frozen=True)
class Layout:
    """Where everything of a tree goes, from the upper left corner; arrays are float64, shape (nodes,)."""

    width: float
    height: float
    x: Float64
    """Centres of boxes and of their branches' words."""
    box_y: Float64
    """Middle of each box, downwards."""
    label_y: Float64
    """Middle of the words above each box, downwards."""
    scale: float
    """What gaps are multiplied by."""

    @classmethod
    def of(cls, tree: TreeTable, depth: Int32, boxes: Float64, words: Float64, scale: float) -> Layout:
        """Return the layout of a tree.

        `boxes`, `words` : widths and heights of boxes and of the words at the branch to each node, 0 for the root,
        shape (nodes, 2).
        """
        x, width = _across(tree, np.maximum(boxes[:, 0], words[:, 0]) + GAP * scale)
        box_y, label_y, height = _down(depth, boxes[:, 1], words[:, 1], scale)
        return cls(width, height, x, box_y, label_y, scale)


def _across(tree: TreeTable, own: Float64) -> tuple[Float64, float]:
    """Return the centres of nodes that take so much width each, and the width of the tree."""
    width, centre, begin = own.copy(), own / 2, np.zeros(tree.n_nodes)  # centres from a strip's left edge on
    for node in range(tree.n_nodes - 1, -1, -1):  # children come after their parent
        left, right = tree.left_child[node], tree.right_child[node]
        if left >= 0:
            below = width[left] + width[right]
            width[node] = max(own[node], below)
            middle = (centre[left] + width[left] + centre[right]) / 2 + (width[node] - below) / 2
            centre[node] = np.clip(middle, own[node] / 2, width[node] - own[node] / 2)
    for node in range(tree.n_nodes):
        left, right = tree.left_child[node], tree.right_child[node]
        if left >= 0:
            begin[left] = begin[node] + (width[node] - width[left] - width[right]) / 2
            begin[right] = begin[left] + width[left]
    return np.asarray(begin + centre), float(width[0])


def _down(depth: Int32, heights: Float64, label_heights: Float64, scale: float) -> tuple[Float64, Float64, float]:
    """Return the middle of each node's box and of the words above it, and the height of the tree."""
    boxes, labels, y = [], [], GAP * scale
    for level in range(int(depth.max()) + 1):
        height, label = heights[depth == level].max(), label_heights[depth == level].max()
        if level:
            y += DROP * scale + label / 2
        labels.append(y)
        if level:
            y += label / 2 + GAP / 2 * scale
        boxes.append(y + height / 2)
        y += height
    return np.array(boxes)[depth], np.array(labels)[depth], float(y + GAP * scale)


class TreeDrawing:
    """A tree's boxes, branches and words on some axes.

    Parameters
    ----------
    ax : matplotlib Axes
    tree : TreeTable
    texts : sequence of str
        What each node's box says.
    """

    def __init__(self, ax: Axes, tree: TreeTable, texts: Sequence[str]) -> None:
        self._ax, self._tree, self._depth = ax, tree, tree.depth
        self._points = 72 / ax.figure.dpi
        self._boxes = [
            ax.text(
                0, 0, text, ha="center", va="center", parse_math=False, zorder=3,
                bbox={"boxstyle": f"round,pad={PADDING}", "fc": "honeydew" if tree.is_leaf[node] else "white"},
            )
            for node, text in enumerate(texts)
        ]  # fmt: skip
        self._words = {
            child: ax.text(
                0, 0, word, ha="center", va="center", color="dimgray", zorder=2,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"},
            )
            for node in range(tree.n_nodes) for child, word in branches(tree, node)
        }  # fmt: skip

    def draw(self, *, resize_figure: bool) -> None:
        """Put everything where it belongs.

        Parameters
        ----------
        resize_figure : bool
            Give the figure, whose only axes these are, the size that the tree needs. Otherwise what does not fit the
            axes is drawn smaller.
        """
        layout = self._layout(1.0)
        if resize_figure:
            self._resize_figure(layout)
        else:
            for _ in range(MEASUREMENTS):
                width, height = self._room()
                share = min(width / layout.width, height / layout.height)
                if share >= 1:
                    break
                layout = self._layout(layout.scale * share * 0.98)
        self._place(layout)

    def _layout(self, scale: float) -> Layout:
        """Give texts their sizes, measure them, and find their places."""
        for box in self._boxes:
            box.set_fontsize(FONT_SIZE * scale)
            patch = box.get_bbox_patch()
            assert patch is not None
            patch.set_linewidth(scale)
        for word in self._words.values():
            word.set_fontsize(LABEL_SIZE * scale)
        boxes = np.array([self._size(text) for text in self._boxes]) + 2 * PADDING * FONT_SIZE * scale
        words = [self._size(self._words[i]) if i in self._words else (0.0, 0.0) for i in range(self._tree.n_nodes)]
        return Layout.of(self._tree, self._depth, boxes, np.array(words), scale)

    def _size(self, text: Text) -> tuple[float, float]:
        """Return the width and height of a text without its box."""
        box = text.get_window_extent()
        return float(box.width) * self._points, float(box.height) * self._points

    def _room(self) -> tuple[float, float]:
        """Return the width and height of the axes."""
        room = self._ax.get_window_extent()
        return float(room.width) * self._points, float(room.height) * self._points

    def _resize_figure(self, layout: Layout) -> None:
        width, height = max(layout.width, LEAST_WIDTH), layout.height + TITLE
        figure = self._ax.get_figure(root=True)
        assert figure is not None
        figure.set_size_inches(width / 72, height / 72)
        self._ax.set_position((0.0, 0.0, 1.0, layout.height / height))

    def _place(self, layout: Layout) -> None:
        """Make one unit of the axes a point, and move texts and branches there, in the middle and at the top."""
        width, height = self._room()
        begin = (layout.width - width) / 2
        self._ax.set(xlim=(begin, begin + width), ylim=(height, 0))
        x, y, label_y = layout.x, layout.box_y, layout.label_y
        for node, box in enumerate(self._boxes):
            box.set_position((x[node], y[node]))
            for child, word in branches(self._tree, node):
                style = "-" if "missing" in word else "--"
                self._ax.plot([x[node], x[child], x[child]], [y[node], label_y[child], y[child]], style, color="gray",
                              linewidth=layout.scale, zorder=1)  # fmt: skip
                self._words[child].set_position((x[child], label_y[child]))


MAX_DRAWN_LEAVES = 512
"""More boxes than this no picture can show; `to_graphviz` has no limit."""


def _axes(ax: Axes | None) -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib; install it: pip install 'daskboost[plot]'") from error
    return pyplot.subplots()[1] if ax is None else ax


def plot_importance(
    booster: Any, importance_type: ImportanceType = "gain", max_num_features: int | None = 20, ax: Axes | None = None
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
    scores = sorted(booster_of(booster).get_score(importance_type).items(), key=lambda item: item[1])
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
    """The model itself, or that of a fitted estimator; ParameterError for anything else."""
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
    """Return what a node's box says, in one line per value of its leaf, and per slope."""
    if tree.left_child[node] < 0:
        slopes = (f"{slope:+.3g} {booster.schema.label(feature)}" for feature, slope in tree.models.terms(node))
        return "\n".join(["leaf", *(f"{value:.6g}" for value in np.atleast_1d(tree.value[node])), *slopes])
    feature = int(tree.feature[node])
    return f"{booster.schema.label(feature)}\n{tree.condition(node, partial(booster.schema.category, feature))}"


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
