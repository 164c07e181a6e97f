"""Whether a fit on a GPU puts its rows in the order of its first tree's leaves: the one rule, which plans count and
engines follow.

Below the root, a node's rows lie apart in memory, and a GPU fetches 64 bytes for each symbol that a partition looks up,
and as many for a row of 32 bytes. Once rows lie in the order of one tree's leaves, those of later trees' nodes have
neighbours: the trees of one fit divide the rows much alike. Moving all rows takes about as long as four trees gain.
"""

from __future__ import annotations

from daskboost.devices.budget.plan import FitSize

LEAST_BYTES = 1 << 26
"""Least bytes of symbols by row: those of fewer lie in the cache, of 50 MB on an H100, in whatever order."""
LEAST_ROUNDS = 8
"""With fewer, the fit gains nothing worth the memory."""
LEAST_DEPTH = 4
"""Rows of nodes of the first levels are every second or fourth one, which share what is fetched as it is."""
MOST_IDS = 1 << 32
"""Rows of all engines whose global ids have 32 bits, in which they are kept once rows have another order."""
WORD_BYTES = 4
"""A row's place in the new order, its global id, and each of its values while these are moved."""


def why_in_given_order(size: FitSize) -> str:
    """Return why rows stay in their order where another one would pay; empty where it does not, and where they are put
    in that order."""
    reasons = {
        "other fits share them": size.shares_views,
        "their global ids have more than 32 bits": size.most_rows > MOST_IDS,
        "they are evaluated": any(each.of_training for each in size.evals),
        "they are sparse": size.train.n_entries > 0,
        "trees leave some out": size.samples_rows,
        "trees grow best first": size.grow_policy == "lossguide",
        "leaves are vectors": size.leaf_vector > 0,
        "gradients have no kernel": size.by_expressions,
        "rows of a query lie side by side": size.query_loss is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "") if _pays(size) else ""


def ordered_bytes(size: FitSize) -> int:
    """Return the bytes of the copy of the rows in the order of leaves, and of what they are moved by; 0 where they stay
    in their order."""
    rows = size.train
    if not _pays(size) or why_in_given_order(size):
        return 0
    return rows.unpacked_bytes(rows.n_rows, 0) + WORD_BYTES * rows.n_rows * (2 + size.n_outputs)


def _pays(size: FitSize) -> bool:
    """Whether trees would gain by another order of their rows, where the host does not take longer than these."""
    by_row = size.train.unpacked_bytes(size.train.resident_rows, size.train.resident_entries)
    needed = (by_row >= LEAST_BYTES, size.depth >= LEAST_DEPTH, size.n_rounds >= LEAST_ROUNDS, size.without_host)
    return all(needed) and not size.small_data
