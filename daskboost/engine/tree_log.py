"""Trees that compiled code has grown, one behind the other, until Python takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.cpu.by_reference import by_reference, change
from daskboost.devices.cpu.growing import Log
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.leaf_models import LeafModels
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Array
from daskboost.tree.growing_tree import saturated
from daskboost.tree.set_bins import sets_of_bins
from daskboost.tree.table import LEAF, TreeTable

LEAST_NODES, LEAST_TREES = 2**13, 2**10
"""Nodes and trees that there is room for at least: half a megabyte, and 12 bytes for each node and output."""


class TreeLog:
    """Room for trees: `record` is what compiled code writes to."""

    def __init__(self, set_words: int, leaf_terms: int, layout: SlotLayout) -> None:
        self._widths = set_words, leaf_terms, layout
        self.record = by_reference(_empty(LEAST_NODES, LEAST_TREES, *self._widths))

    def make_room(self, n_nodes: int, n_trees: int, n_kept: int) -> None:
        """Have room for so many nodes and trees; the first `n_kept` nodes stay, and all trees."""
        log = self.record
        if n_nodes > len(log.left) or n_trees > len(log.ends):
            larger = _empty(max(n_nodes, len(log.left)), max(n_trees, len(log.ends)), *self._widths)
            for old, new in zip(_all(log), _all(larger), strict=True):
                new[:n_kept] = old[:n_kept]
            larger.ends[: len(log.ends)] = log.ends
            change(log, **larger._asdict())

    def tables(self, n_trees: int) -> list[TreeTable]:
        """Return the first trees, copied all at once and taken apart."""
        ends = self.record.ends[:n_trees].tolist()
        if not ends:
            return []
        nodes: list[Any] = [_copied(each, ends[-1]) for each in _nodes(self.record)]
        left, right, feature, split_bin, threshold, default_left, gain, value = nodes
        by_set = (left != LEAF) & (split_bin == BY_SET)
        sets = sets_of_bins(_copied(self.record.right_bins, ends[-1]), by_set)
        models = LeafModels.of_nodes(*(_copied(each, ends[-1]) for each in (self.record.term, self.record.slope)))
        cover = saturated(_copied(self.record.hessian, ends[-1]).sum(axis=1))
        return TreeTable(
            left, right, feature, split_bin, threshold, default_left, gain, cover, value, sets=sets, models=models
        ).parts(ends)  # fmt: skip


def _copied(array: Array, n: int) -> Array:
    """Return a copy of the first numbers of an array, made without letting go of Python's lock: NumPy would, and where
    fits run at once, whoever takes it may keep it for milliseconds."""
    return np.frombuffer(bytearray(array[:n]), array.dtype).reshape(n, *array.shape[1:])


def _nodes(log: Log) -> tuple[Array, ...]:
    """Return what the log has of nodes, in the order of a table's arrays, but for their hessians."""
    return (
        log.left, log.right, log.feature, log.split_bin, log.threshold, log.default_left, log.gain, log.value,
    )  # fmt: skip


def _all(log: Log) -> tuple[Array, ...]:
    """Return all that the log has of nodes."""
    return (*_nodes(log), log.hessian, log.right_bins, log.term, log.slope)


def _empty(n_nodes: int, n_trees: int, set_words: int, leaf_terms: int, layout: SlotLayout) -> Log:
    i32, f32 = np.int32, np.float32
    return Log(
        left=np.empty(n_nodes, i32), right=np.empty(n_nodes, i32), feature=np.empty(n_nodes, i32),
        split_bin=np.empty(n_nodes, i32), threshold=np.empty(n_nodes, f32), default_left=np.empty(n_nodes, np.bool_),
        gain=np.empty(n_nodes, f32), value=np.empty((n_nodes, *layout.of_leaf), f32),
        hessian=np.empty((n_nodes, layout.width)),
        right_bins=np.empty((n_nodes, set_words), np.uint32), term=np.empty((n_nodes, leaf_terms), i32),
        slope=np.empty((n_nodes, leaf_terms), f32), ends=np.empty(n_trees, np.int64),
    )  # fmt: skip
