"""Whether several engines share the rows of a fit, and whether GPUs that do share its features instead: the rules.

By rows, each GPU has all features of its own rows, and the histograms of every level are added up over all GPUs. By
columns, each has all rows with a share of the features: histograms stay where they are, and only the sides that rows go
to travel, but every GPU moves all rows to their nodes.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.budget.plan import FitSize
from daskboost.dtypes import Int64

ONE_ENGINE_BYTES = 2**22
"""Data sets of at most so many bytes of bins have one engine: where several share them, the round trips of every level
take longer than the work that they share (100k x 28 on 2 workers: 39 ms per tree against 21 on one)."""
SHARE_BYTES = {"cuda": 2**25, "cpu": 1}
"""Bytes of bins that each engine has at least where several share a larger set, by its kind of device: 1M x 28 takes an
H100 .38 ms a tree, and two .43, which wait for each other for .13 of them and for launches as long as one."""
PAIR_BYTES = 16
"""Bytes of a slot's sums."""
LINK_BYTES_S = 2e11
"""Bytes of sums that GPUs with NVLink add up in a second: 2.6e11 on two H100s, less where levels are small."""
ROW_S = 4e-11
"""Seconds that a GPU takes to move a row to a node of the next level, with its gradients: .28 ms for 11M rows of 28
features on an H200, and as much again for gradients and margins, once a tree."""
SIDES_S = 2e-5
"""Seconds in which the GPUs tell each other the sides of a level's rows, however few."""


def engines_that_pay(n: int, n_bytes: int, home: str) -> int:
    """Return how many of `n` engines share bins of `n_bytes`, on devices of that kind, "cuda" or "cpu"."""
    return min(n, max(1, n_bytes // SHARE_BYTES[home])) if n_bytes > ONE_ENGINE_BYTES else 1


def columns_pay(size: FitSize) -> bool:
    """Whether trees grow faster where GPUs share the features."""
    n_built = max(1, size.most_leaves // 2)  # of all levels together
    summed_s = n_built * size.n_entries * PAIR_BYTES / LINK_BYTES_S
    others = size.most_rows * (1 - 1 / size.n_engines)
    moved_s = (size.depth + 1) * (others * ROW_S + SIDES_S)
    return size.n_engines > 1 and moved_s < summed_s


def feature_costs(size: FitSize, n_slots: Int64, n_entries: Int64) -> Int64:
    """Return about how long the trees of a fit take with each feature, in any unit, by its slots and by the entries of
    all rows: each level adds up the entries, and searches the slots of its nodes; a slot takes as long as an entry."""
    found: Int64 = size.depth * n_entries + size.most_leaves * n_slots
    return found


def balanced_shares(costs: Int64, n: int) -> list[tuple[int, int]]:
    """Divide features into `n` ranges of neighbours, of one feature at least, whose costs are about equal.

    Parameters
    ----------
    costs : int64 array, shape (features,)
        At least `n` of them, none negative.
    n : int

    Returns
    -------
    list of (int, int)
        First feature of each range, and the one behind its last.
    """
    up_to = np.concatenate([[0], np.cumsum(costs)])
    edges = [0]
    for k in range(1, n):
        goal = up_to[-1] * k / n
        edge = int(np.searchsorted(up_to, goal))
        if edge > 0 and goal - up_to[edge - 1] < up_to[edge] - goal:
            edge -= 1
        edges.append(min(max(edge, edges[-1] + 1), len(costs) - (n - k)))
    return list(zip(edges, [*edges[1:], len(costs)], strict=True))
