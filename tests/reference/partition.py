"""Naive twins of partitioning rows and of walking trees by bins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.row_order import BY_SET


def goes_left(symbol: int, split_bin: int, n_bins: int, default_left: bool, right: Collection[int] = ()) -> bool:
    """Where a row goes; symbol `n_bins` is missing. `right` : bins that go right, where `split_bin` is `BY_SET`."""
    if symbol == n_bins:
        return default_left
    return symbol not in right if split_bin == BY_SET else symbol <= split_bin


def split(rows: Sequence[int], symbols: Any, split_bin: int, n_bins: int, default_left: bool,
          right_bins: Collection[int] = ()) -> tuple[list[int], list[int]]:  # fmt: skip
    """Rows that go left and right, each in the order they came; `symbols` of the split feature, by row."""
    goes = {row: goes_left(int(symbols[row]), split_bin, n_bins, default_left, right_bins) for row in rows}
    return [row for row in rows if goes[row]], [row for row in rows if not goes[row]]


def bins_in(words: Any) -> list[int]:
    """The bins of a set; `words` : uint32, a bit for each bin."""
    return [32 * at + bit for at, word in enumerate(np.asarray(words).tolist()) for bit in range(32) if word >> bit & 1]


def leaf(tree: WalkArrays, symbols: Any, n_bins: Any) -> int:
    """The leaf of one row, given its symbols, shape (features,)."""
    node = 0
    while tree.left_child[node] >= 0:
        f = tree.feature[node]
        left = goes_left(
            int(symbols[f]), int(tree.split_bin[node]), int(n_bins[f]), bool(tree.default_left[node]),
            bins_in(tree.right_bins[node]),
        )  # fmt: skip
        node = int(tree.left_child[node] if left else tree.right_child[node])
    return node
