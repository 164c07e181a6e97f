"""Whether GPUs that grow trees together share the rows of a fit or its features: the one rule.

By rows, each GPU has all features of its own rows, and the histograms of every level are added up over all GPUs. By
columns, each has all rows with a share of the features: histograms stay where they are, and only the sides that rows go
to travel, but every GPU moves all rows to their nodes.
"""

from __future__ import annotations

from daskboost.devices.budget.plan import FitSize

PAIR_BYTES = 16
"""Bytes of a slot's sums."""
LINK_BYTES_S = 2e11
"""Bytes of sums that GPUs with NVLink add up in a second: 2.6e11 on two H100s, less where levels are small."""
ROW_S = 4e-11
"""Seconds that a GPU takes to move a row to a node of the next level, with its gradients: .28 ms for 11M rows of 28
features on an H200, and as much again for gradients and margins, once a tree."""
SIDES_S = 2e-5
"""Seconds in which the GPUs tell each other the sides of a level's rows, however few."""


def columns_pay(size: FitSize) -> bool:
    """Whether trees grow faster where GPUs share the features."""
    n_built = max(1, size.most_leaves // 2)  # of all levels together
    summed_s = n_built * size.n_entries * PAIR_BYTES / LINK_BYTES_S
    others = size.most_rows * (1 - 1 / size.n_engines)
    moved_s = (size.depth + 1) * (others * ROW_S + SIDES_S)
    return size.n_engines > 1 and moved_s < summed_s
