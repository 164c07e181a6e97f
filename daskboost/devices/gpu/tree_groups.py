"""How many trees of a round grow together on a GPU: the one rule, which plans count and engines follow.

Trees that share launches wait for them once. A tree's launches, some seven a level, take about as long as passing over
two million rows does. So little is to be gained once `ROWS_TOGETHER` rows are in a launch: what their trees still wait
is an eighth of what they work. Nor is there where histograms are large: passing over `HISTOGRAM_BYTES` takes ten times
as long as a launch. Both also bound the memory, in which every tree has its own rows and histograms.
"""

from __future__ import annotations

ROWS_TOGETHER = 1 << 24
"""Enough rows of all trees of a launch; at 16 bytes in the order of nodes, a quarter of a gigabyte."""
HISTOGRAM_BYTES = 1 << 28
"""Enough bytes of histograms, of two levels and all trees."""


def trees_together(n_outputs: int, n_rows: int, tree_bytes: int) -> int:
    """Trees of a round's `n_outputs` that grow together, over `n_rows` each with histograms of `tree_bytes` each.

    Groups are about equal: seven trees, of which five would do, are four and three.
    """
    enough = min(-(-ROWS_TOGETHER // max(n_rows, 1)), HISTOGRAM_BYTES // tree_bytes, n_outputs)
    return -(-n_outputs // tree_groups(n_outputs, max(enough, 1)))


def tree_groups(n_outputs: int, n_trees: int) -> int:
    """Groups of `n_trees`, of which the last may have fewer."""
    return -(-n_outputs // n_trees)
