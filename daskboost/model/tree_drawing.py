"""Where the boxes of a drawn tree go: each subtree has a strip of its own, as wide as its texts, so that none overlap.

All lengths are in points. Axes that are smaller than the tree shrink its texts, gaps and lines alike; texts are
measured anew then, for small letters are wider than their size says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Float64, Int32
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

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
    by_default = bool(tree.default_left[node])
    return [
        (int(tree.left_child[node]), "yes, missing" if by_default else "yes"),
        (int(tree.right_child[node]), "no" if by_default else "no, missing"),
    ]


@dataclass(frozen=True)
class Layout:
    """Where everything of a tree goes, from the upper left corner."""

    tree: TreeTable
    depth: Int32
    """Depth of each node; int32, shape (nodes,)."""
    box_sizes: Float64
    """Widths and heights of boxes; shape (nodes, 2)."""
    label_sizes: Float64
    """Widths and heights of the words at the branch to each node, 0 for the root; shape (nodes, 2)."""
    scale: float
    """What gaps are multiplied by."""

    @property
    def width(self) -> float:
        return float(self._strips[0][0])

    @property
    def height(self) -> float:
        return self._levels[2]

    @cached_property
    def _strips(self) -> tuple[Float64, Float64]:
        """Width of each node's subtree, and how far from the strip's left edge the node's own centre lies."""
        tree = self.tree
        own = np.maximum(self.box_sizes[:, 0], self.label_sizes[:, 0]) + GAP * self.scale
        width, centre = own.copy(), own / 2
        for node in range(tree.n_nodes - 1, -1, -1):  # children come after their parent
            left, right = tree.left_child[node], tree.right_child[node]
            if left >= 0:
                below = width[left] + width[right]
                width[node] = max(own[node], below)
                middle = (centre[left] + width[left] + centre[right]) / 2 + (width[node] - below) / 2
                centre[node] = np.clip(middle, own[node] / 2, width[node] - own[node] / 2)
        return width, centre

    @cached_property
    def x(self) -> Float64:
        """Centres of boxes and of their branches' words; float64, shape (nodes,)."""
        tree, (width, centre) = self.tree, self._strips
        begin = np.zeros(tree.n_nodes)
        for node in range(tree.n_nodes):
            left, right = tree.left_child[node], tree.right_child[node]
            if left >= 0:
                begin[left] = begin[node] + (width[node] - width[left] - width[right]) / 2
                begin[right] = begin[left] + width[left]
        return np.asarray(begin + centre)

    @property
    def box_y(self) -> Float64:
        """Middle of each box, downwards; float64, shape (nodes,)."""
        return np.asarray(self._levels[0][self.depth])

    @property
    def label_y(self) -> Float64:
        """Middle of the words above each box, downwards; float64, shape (nodes,)."""
        return np.asarray(self._levels[1][self.depth])

    @cached_property
    def _levels(self) -> tuple[Float64, Float64, float]:
        """Middle of each level's boxes and of the words above them; the whole height."""
        boxes, labels, y = [], [], GAP * self.scale
        for level in range(int(self.depth.max()) + 1):
            there = self.depth == level
            height, label = self.box_sizes[there, 1].max(), self.label_sizes[there, 1].max()
            if level:
                y += DROP * self.scale + label / 2
            labels.append(y)
            if level:
                y += label / 2 + GAP / 2 * self.scale
            boxes.append(y + height / 2)
            y += height
        return np.array(boxes), np.array(labels), float(y + GAP * self.scale)


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
        return Layout(self._tree, self._depth, boxes, np.array(words), scale)

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
