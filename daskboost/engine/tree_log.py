"""Trees that compiled code has grown, one behind the other, until Python takes them."""

from __future__ import annotations

import numpy as np

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.cpu.by_reference import by_reference, change
from daskboost.devices.cpu.grow import Log
from daskboost.devices.cpu.views import WalkArrays
from daskboost.dtypes import Array
from daskboost.tree.growing_tree import finished_tree
from daskboost.tree.table import LEAF, TreeTable

LEAST_NODES, LEAST_TREES = 2**13, 2**10
"""Nodes and trees that there is room for at least: half a megabyte."""


class TreeLog:
    """Room for trees: `record` is what compiled code writes to."""

    def __init__(self) -> None:
        self.record = by_reference(_empty(LEAST_NODES, LEAST_TREES))

    def make_room(self, n_nodes: int, n_trees: int, n_kept: int) -> None:
        """Have room for so many nodes and trees; the first `n_kept` nodes stay, and all trees."""
        log = self.record
        if n_nodes > len(log.left) or n_trees > len(log.ends):
            larger = _empty(max(n_nodes, len(log.left)), max(n_trees, len(log.ends)))
            for old, new in zip(_nodes(log), _nodes(larger), strict=True):
                new[:n_kept] = old[:n_kept]
            larger.ends[: len(log.ends)] = log.ends
            change(log, **larger._asdict())

    def tables(self, cuts: Cuts, n_trees: int) -> list[TreeTable]:
        """Return the first trees as models have them, made as one of all nodes and taken apart."""
        ends = self.record.ends[:n_trees].tolist()
        n = ends[-1] if ends else 0
        left, feature, split_bin, default_left, gain, cover, value = (each[:n] for each in _nodes(self.record))
        walked = WalkArrays(
            left.copy(), left + (left != LEAF), feature.copy(), split_bin.copy(), default_left != 0, value.copy()
        )
        table = finished_tree(cuts, walked, gain, cover)
        return [table] if n_trees == 1 else table.parts(ends)


def _nodes(log: Log) -> tuple[Array, ...]:
    return log.left, log.feature, log.split_bin, log.default_left, log.gain, log.cover, log.value


def _empty(n_nodes: int, n_trees: int) -> Log:
    i32, f64 = np.int32, np.float64
    return Log(
        left=np.empty(n_nodes, i32), feature=np.empty(n_nodes, i32), split_bin=np.empty(n_nodes, i32),
        default_left=np.empty(n_nodes, np.uint8), gain=np.empty(n_nodes, f64), cover=np.empty(n_nodes, f64),
        value=np.empty(n_nodes, np.float32), ends=np.empty(n_trees, np.int64),
    )  # fmt: skip
