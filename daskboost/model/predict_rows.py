"""Margins and leaves of rows in memory: packs a forest for the kernels and spreads row ranges over threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.row_batch import Features
from daskboost.dtypes import Bool, Float32, Int32, UInt32
from daskboost.model.pack_sets import pack_sets
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict import PackedForest
    from daskboost.devices.cpu.predict_sets import PackedSets

HEAP_DEPTH = 8
"""Most levels of a tree laid out as a complete heap: 255 words of 8 bytes stay in the L1 cache beside a block."""
GPU_HEAP_DEPTH = 10
"""The same on a GPU: what `kernels/predict.cu` has shared memory for."""
GPU_EXITS_PER_LEAF = 4
"""Beyond `HEAP_DEPTH`, a GPU's heaps have at most so many exits per leaf of the tree: deep trees leave most empty."""
BLOCK_BYTES = 1 << 15
"""Keys of a block of rows aim at a usual L1 cache, within the two limits that follow."""
MIN_BLOCK, MAX_BLOCK = 32, 256
TASK_ROWS = 1 << 14
"""Rows a thread takes at a time: enough to hide the hand-over, few enough to balance the threads."""
_OF_CODES = 1 << 40
"""What tells columns of codes from others when columns are numbered: more than any feature's number."""


def cpu_heap_depths(depths: Int32, n_leaves: Int32) -> Int32:
    """Levels of the heaps of trees of these depths and numbers of leaves."""
    return np.minimum(depths, HEAP_DEPTH)


def gpu_heap_depths(depths: Int32, n_leaves: Int32) -> Int32:
    """The same on a GPU, where what lies below a heap is read from device memory."""
    affordable = np.log2(GPU_EXITS_PER_LEAF * n_leaves).astype(np.int32)
    return np.minimum(depths, np.clip(affordable, HEAP_DEPTH, GPU_HEAP_DEPTH))


def pack_forest(
    trees: Sequence[TreeTable],
    outputs: Sequence[int],
    heap_depths_of: Callable[[Int32, Int32], Int32] = cpu_heap_depths,
) -> PackedForest:
    """Lay out trees for the kernels of `daskboost.devices.cpu.predict`.

    Parameters
    ----------
    outputs : sequence of int, same length
        The output that each tree adds to; 0 where leaves are vectors.
    heap_depths_of : function
        Levels of the heaps, from the trees' depths and numbers of leaves.
    """
    from daskboost.devices.cpu.predict import PackedForest, fill_heaps, node_depths

    starts = np.concatenate([[0], np.cumsum([tree.n_nodes for tree in trees])]).astype(np.int64)
    left = _join([_global(tree.left_child, start) for tree, start in zip(trees, starts, strict=False)], np.int32)
    right = _join([_global(tree.right_child, start) for tree, start in zip(trees, starts, strict=False)], np.int32)
    depths = node_depths(left, right)
    deepest = np.maximum.reduceat(depths, starts[:-1]) if len(trees) else depths
    heap_depths = heap_depths_of(deepest, np.array([tree.n_leaves for tree in trees], np.int32)).astype(np.int32)
    sets = CategorySets.joined([tree.sets for tree in trees], [tree.n_nodes for tree in trees])
    has_set = sets.sizes(len(left)) > 0
    splits, column_feature, missing, feature_columns, packed_sets = _splits(trees, sets, has_set)
    first_set = first_list = np.full(len(trees), np.iinfo(np.int32).max)
    if sets:
        is_list = has_set & (packed_sets.words[splits[:, 1] * has_set] & 1 > 0)
        first_set, first_list = (
            np.minimum.reduceat(np.where(where, depths, first_set[0]), starts[:-1]) for where in (has_set, is_list)
        )
    heap_depths = np.minimum(heap_depths, first_list).astype(np.int32)
    heap_start = np.concatenate([[0], np.cumsum(1 << heap_depths.astype(np.int64))]).astype(np.int64)
    values = np.concatenate([tree.values for tree in trees]) if trees else np.empty((0, 1), np.float32)
    forest = PackedForest(
        output=np.asarray(outputs, np.int32),
        depth=heap_depths,
        is_deep=deepest > heap_depths,
        has_sets=first_set < heap_depths,
        heap_start=heap_start[:-1],
        node_start=starts[:-1].astype(np.int32),
        heap=np.zeros(2 * heap_start[-1], np.uint32),
        exits=np.empty(heap_start[-1], np.int32),
        exit_values=np.empty(heap_start[-1], np.float32),
        splits=splits,
        left=left,
        right=right,
        values=values,
        column_feature=column_feature,
        missing=missing,
        feature_columns=feature_columns,
        sets=packed_sets,
    )
    fill_heaps(forest)
    return forest


def _join(arrays: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)


def _global(child: Int32, start: int) -> Int32:
    """Children numbered over all trees; leaves keep -1."""
    return np.where(child < 0, child, child + start).astype(np.int32)


def _splits(
    trees: Sequence[TreeTable], sets: CategorySets, has_set: Bool
) -> tuple[UInt32, Int32, UInt32, Int32, PackedSets]:
    """Give each feature, default direction and kind of split in use a column; return splits and columns as in
    PackedForest."""
    from daskboost.devices.cpu.predict import LANES, ordered_bits
    from daskboost.devices.cpu.predict_sets import INSIDE, OUTSIDE

    inner: Bool = ~_join([tree.is_leaf for tree in trees], np.bool_)
    feature = _join([tree.feature for tree in trees], np.int32)[inner].astype(np.int64)
    default_left = _join([tree.default_left for tree in trees], np.bool_)[inner]
    threshold: Float32 = _join([tree.threshold for tree in trees], np.float32)[inner]
    of_codes = has_set[inner]
    found, column = np.unique(of_codes * _OF_CODES + feature * 2 + default_left, return_inverse=True)
    holds_codes, features, to_left = found >= _OF_CODES, (found % _OF_CODES >> 1).astype(np.int32), found & 1
    packed, starts = pack_sets(sets, column[of_codes] - np.sum(~holds_codes), int(np.sum(holds_codes)))
    splits = np.zeros((len(inner), 2), np.uint32)
    splits[inner, 0], splits[inner, 1] = column * LANES, ordered_bits(threshold.view(np.uint32))
    splits[has_set, 1] = starts
    feature_columns = np.full((int(features.max(initial=-1)) + 1, 4 if sets else 2), -1, np.int32)
    feature_columns[features, 2 * holds_codes + to_left] = np.arange(len(found), dtype=np.int32)
    to_right = np.where(holds_codes, INSIDE, np.uint32(0xFFFFFFFF))
    missing = np.where(to_left, OUTSIDE, to_right).astype(np.uint32)
    return splits, features, missing, feature_columns, packed


def add_margins(
    forest: PackedForest, rows: Features, trees: tuple[int, int], margins: Float32, n_threads: int | None = None
) -> None:
    """Add the leaves that rows reach to their margins, tree by tree in float32.

    Parameters
    ----------
    trees : tuple of int
        First tree and the one after the last.
    margins : float32 array, shape (rows, outputs)
        Starts as base score or base margin; changed.
    n_threads : int, optional
        As many as the process may run on when None. The result does not depend on it.
    """
    _predict(forest, rows, trees, np.empty((0, 0), np.int32), margins, n_threads)


def find_leaves(forest: PackedForest, rows: Features, trees: tuple[int, int], n_threads: int | None = None) -> Int32:
    """The leaf of each row in each tree, as a node of its tree; int32, shape (rows, trees)."""
    leaves = np.empty((rows.n_rows, trees[1] - trees[0]), np.int32)
    _predict(forest, rows, trees, leaves, np.empty((rows.n_rows, 0), np.float32), n_threads)
    return leaves


def _predict(
    forest: PackedForest,
    rows: Features,
    trees: tuple[int, int],
    leaves: Int32,
    margins: Float32,
    n_threads: int | None,
) -> None:
    from daskboost.devices.cpu.predict import LANES

    block = BLOCK_BYTES // (4 * max(len(forest.missing), 1))
    block = min(max(block, MIN_BLOCK), MAX_BLOCK) // LANES * LANES

    def work(start: int) -> None:
        rows.walk(forest, trees, block, slice(start, start + TASK_ROWS), leaves, margins)

    spread(work, range(0, rows.n_rows, TASK_ROWS), n_threads)


def thread_count(given: int | None) -> int:
    """Threads for a batch of rows: as many as are given, or as the process may run on."""
    return given or len(os.sched_getaffinity(0))


def spread(work: Callable[[int], None], tasks: Sequence[int], n_threads: int | None) -> None:
    """Run the tasks on threads; one that fails surfaces here."""
    n_threads = min(thread_count(n_threads), len(tasks))
    if n_threads <= 1:
        for task in tasks:
            work(task)
        return
    with ThreadPoolExecutor(n_threads, thread_name_prefix="daskboost-predict") as pool:
        for _ in pool.map(work, tasks):
            pass
