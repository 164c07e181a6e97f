"""Naive twins of partitioning rows and of walking trees by bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daskboost.devices.cpu.views import WalkArrays


def goes_left(symbol: int, split_bin: int, n_bins: int, default_left: bool) -> bool:
    """Where a row goes; symbol `n_bins` is missing."""
    return default_left if symbol == n_bins else symbol <= split_bin


def split(rows: Sequence[int], symbols: Any, split_bin: int, n_bins: int, default_left: bool
          ) -> tuple[list[int], list[int]]:  # fmt: skip
    """Rows that go left and right, each in the order they came; `symbols` of the split feature, by row."""
    left = [row for row in rows if goes_left(int(symbols[row]), split_bin, n_bins, default_left)]
    right = [row for row in rows if not goes_left(int(symbols[row]), split_bin, n_bins, default_left)]
    return left, right


def leaf(tree: WalkArrays, symbols: Any, n_bins: Any) -> int:
    """The leaf of one row, given its symbols, shape (features,)."""
    node = 0
    while tree.left_child[node] >= 0:
        f = tree.feature[node]
        left = goes_left(int(symbols[f]), int(tree.split_bin[node]), int(n_bins[f]), bool(tree.default_left[node]))
        node = int(tree.left_child[node] if left else tree.right_child[node])
    return node
