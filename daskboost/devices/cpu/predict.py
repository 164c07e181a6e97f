"""Prediction on the CPU: blocks of rows walk blocks of trees.

Three ideas carry the speed. Feature values become unsigned integers of the same order, with the missing value as the
smallest or the largest of them, so a step of the walk is one integer comparison with no test for NaN; a feature
that is used with both default directions gets a column for each. The top levels of a tree lie as a complete binary
heap, so a node needs no child pointers and is one 64-bit word (threshold, column). Eight rows walk together, which
hides the latency of the loads. Nodes of a heap may split by sets of categories that are bits; it ends above the first
set that is a list.

Margins are added in tree order in float32, whatever the blocks are, so a prediction depends on its row alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.predict_sets import HeapSets, PackedSets, holds, holds_bit, place_of
from daskboost.dtypes import Bool, Csr, Float32, Int32, Int64, UInt32

LANES = 8
"""Rows that walk together; a block is a multiple of it."""

_SIGN = np.uint32(0x80000000)
_INFINITY = np.uint32(0x7F800000)
_ZERO = np.uint32(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)


class PackedForest(NamedTuple):
    """A model's trees as the kernels read them. Nodes are numbered over all trees.

    A *column* is a feature with a default direction; a *key* is a value as an unsigned integer of the same order. Sets
    of categories have columns of their own, the last ones, whose keys are places of codes (`PackedSets`).
    """

    output: Int32
    """Per tree, the output it adds to."""
    depth: Int32
    """Per tree, the levels of its heap."""
    is_deep: Bool
    """Per tree, whether nodes lie below its heap."""
    has_sets: Bool
    """Per tree, whether nodes of its heap split by sets."""
    heap_start: Int64
    """Per tree, where its `2**depth` heap nodes begin in `heap`, and its `2**depth` exits in `exits`."""
    node_start: Int32
    """Per tree, the number of its root."""
    heap: UInt32
    """Pairs as in `splits` of the top levels of every tree, root at 1, children of `i` at `2 i` and `2 i + 1`."""
    exits: Int32
    """The node below a heap at which a row arrives."""
    exit_values: Float32
    """The first value of that node: what a tree adds unless `is_deep` or leaves are vectors."""
    splits: UInt32
    """Per node, `LANES` times its column and its threshold's key or where its set begins, shape (nodes, 2)."""
    left: Int32
    """Per node, its left child, or -1 in a leaf."""
    right: Int32
    """Per node, its right child."""
    values: Float32
    """Per node, what it adds as a leaf: to a margin, shape (nodes, 1), or to those of all outputs, (nodes, outputs)."""
    column_feature: Int32
    """Per column, the feature it holds."""
    missing: UInt32
    """Per column, the key of a missing value: 0 to go left, else to go right: 2**32 - 1, or 1 for places."""
    feature_columns: Int32
    """Per feature, its columns where missing goes right and left, of values and then, where there are sets, of codes;
    shape (features, 2 or 4), -1 where no split needs it."""
    sets: PackedSets


@njit(cache=True, nogil=True)
def _ordered(bits: np.uint32, missing: np.uint32) -> np.uint32:
    """The bits of a float32 as an unsigned integer of the same order (-0.0 equals 0.0), or `missing` for NaN."""
    magnitude = bits & ~_SIGN
    if magnitude > _INFINITY:
        return missing
    if magnitude == _ZERO:
        return _SIGN
    return ~bits if bits & _SIGN else bits | _SIGN


@njit(cache=True, nogil=True)
def ordered_bits(bits: UInt32) -> UInt32:
    """Map the bits of float32 thresholds (none NaN) to the integers the walk compares; shape (thresholds,)."""
    keys = np.empty_like(bits)
    for i in range(len(bits)):
        keys[i] = _ordered(bits[i], _ZERO)
    return keys


@njit(cache=True, nogil=True)
def dense_keys(forest: PackedForest, values: UInt32, first: int, stop: int, keys: UInt32) -> None:
    """Keys of rows `first:stop` of a dense matrix.

    Parameters
    ----------
    values : uint32 array, shape (rows, features); the bits of float32
    keys : uint32 array, shape (tiles * columns * LANES,); written
        `LANES` rows make a tile; a tile holds its rows' keys of the first column, then of the second, and so on.
    """
    n_columns, n_values = len(forest.missing), _value_columns(forest)
    for row in range(first, stop):
        start = _tile_start(row - first, n_columns)
        for column in range(n_values):
            bits = values[row, forest.column_feature[column]]
            keys[start + column * LANES] = _ordered(bits, forest.missing[column])
        for column in range(n_values, n_columns):
            bits = values[row, forest.column_feature[column]]
            keys[start + column * LANES] = place_of(forest.sets, column - n_values, bits, forest.missing[column])


@njit(cache=True, nogil=True)
def sparse_keys(
    forest: PackedForest, entries: Csr, first: int, stop: int, keys: UInt32
) -> None:
    """Do what `dense_keys` does for a CSR matrix; absent entries are missing."""
    indptr, indices, values, n_columns = entries.indptr, entries.indices, entries.values, len(forest.missing)
    for row in range(first, stop):
        start = _tile_start(row - first, n_columns)
        for column in range(n_columns):
            keys[start + column * LANES] = forest.missing[column]
        for entry in range(indptr[row], indptr[row + 1]):
            if indices[entry] < len(forest.feature_columns):  # features beyond are in no split
                for direction in range(2):
                    column = forest.feature_columns[indices[entry], direction]
                    if column >= 0:
                        keys[start + column * LANES] = _ordered(values[entry], forest.missing[column])
    if len(forest.sets.code_start) > 1:
        _sparse_places(forest, entries, first, stop, keys)


@njit(cache=True, nogil=True)
def _sparse_places(forest: PackedForest, entries: Csr, first: int, stop: int, keys: UInt32) -> None:
    """Write what `sparse_keys` writes of present codes."""
    n_columns, n_values = len(forest.missing), _value_columns(forest)
    for row in range(first, stop):
        start = _tile_start(row - first, n_columns)
        for entry in range(entries.indptr[row], entries.indptr[row + 1]):
            if entries.indices[entry] < len(forest.feature_columns):
                for column in forest.feature_columns[entries.indices[entry], 2:]:
                    if column >= 0:
                        place = place_of(forest.sets, column - n_values, entries.values[entry], forest.missing[column])
                        keys[start + column * LANES] = place


@njit(cache=True, nogil=True)
def _value_columns(forest: PackedForest) -> int:
    """How many columns hold values; those of codes follow."""
    return len(forest.missing) - (len(forest.sets.code_start) - 1)


@njit(cache=True, nogil=True)
def _tile_start(row: int, n_columns: int) -> int:
    """Where the first key of a block's row lies."""
    return row // LANES * LANES * n_columns + row % LANES


@njit(cache=True, nogil=True)
def _step(nodes: UInt32, node: np.uint64, tile: UInt32, lane: np.uint64, sets: HeapSets | None) -> np.uint64:
    """One level down the heap: from `node` to `2 node`, or to `2 node + 1` if the row's key reaches the split's, or
    lies in its set."""
    key = tile[np.uint64(nodes[_TWO * node]) + lane]
    if sets is None:  # known when this is compiled
        return node + node + np.uint64(key >= nodes[_TWO * node + _ONE])
    column, split = nodes[_TWO * node], nodes[_TWO * node + _ONE]
    is_set = column >= sets.first_column
    held = holds_bit(sets.words, split if is_set else _ZERO, key)
    return node + node + np.uint64(held if is_set else key >= split)


@njit(cache=True, nogil=True)
def walk_heap(
    heap: UInt32, start: int, depth: int, keys: UInt32, tile_size: int, slots: Int32, sets: HeapSets, has_sets: bool
) -> None:
    """Walk a block of rows down the heap of one tree; `slots[row]` becomes the exit, in `[0, 2**depth)`.

    The length of `slots` is a multiple of `LANES`; padding rows of `keys` hold anything and their exits mean nothing.
    `has_sets` : whether nodes of the heap split by sets.
    """
    if has_sets:
        _walk_heap(heap, start, depth, keys, tile_size, slots, sets)
    else:
        _walk_heap(heap, start, depth, keys, tile_size, slots, None)


@njit(cache=True, nogil=True)
def _walk_heap(
    heap: UInt32, start: int, depth: int, keys: UInt32, tile_size: int, slots: Int32, sets: HeapSets | None
) -> None:
    nodes = heap[2 * start :]
    skip = _ONE << np.uint64(depth)  # the first exit's number in the heap
    for first in range(0, len(slots), LANES):
        tile = keys[first // LANES * tile_size :]
        n0 = n1 = n2 = n3 = n4 = n5 = n6 = n7 = _ONE
        for _ in range(depth):
            n0 = _step(nodes, n0, tile, np.uint64(0), sets)
            n1 = _step(nodes, n1, tile, np.uint64(1), sets)
            n2 = _step(nodes, n2, tile, np.uint64(2), sets)
            n3 = _step(nodes, n3, tile, np.uint64(3), sets)
            n4 = _step(nodes, n4, tile, np.uint64(4), sets)
            n5 = _step(nodes, n5, tile, np.uint64(5), sets)
            n6 = _step(nodes, n6, tile, np.uint64(6), sets)
            n7 = _step(nodes, n7, tile, np.uint64(7), sets)
        slots[first] = n0 - skip
        slots[first + 1] = n1 - skip
        slots[first + 2] = n2 - skip
        slots[first + 3] = n3 - skip
        slots[first + 4] = n4 - skip
        slots[first + 5] = n5 - skip
        slots[first + 6] = n6 - skip
        slots[first + 7] = n7 - skip


@njit(cache=True, nogil=True)
def _heap_sets(forest: PackedForest) -> HeapSets:
    """What walks down heaps need of the forest's sets."""
    return HeapSets(forest.sets.words, np.uint32(LANES * _value_columns(forest)))


@njit(cache=True, nogil=True)
def _descend(forest: PackedForest, node: int, keys: UInt32, row: int) -> int:
    """From a node below the heap to the row's leaf."""
    start, first_of_codes = _tile_start(row, len(forest.missing)), LANES * _value_columns(forest)
    while forest.left[node] >= 0:
        column, split = forest.splits[node, 0], forest.splits[node, 1]
        key = keys[start + column]
        right = key >= split if column < first_of_codes else holds(forest.sets.words, split, key)
        node = forest.right[node] if right else forest.left[node]
    return node


@njit(cache=True, nogil=True)
def node_depths(left: Int32, right: Int32) -> Int32:
    """Depth of every node of a forest in which children come after their parent; shape (nodes,)."""
    depths = np.zeros(len(left), np.int32)
    for node in range(len(left)):
        if left[node] >= 0:
            depths[left[node]] = depths[right[node]] = depths[node] + 1
    return depths


@njit(cache=True, nogil=True)
def fill_heaps(forest: PackedForest) -> None:
    """Derive `heap`, `exits` and `exit_values` from the nodes; a leaf above the heap's floor fills its subtree."""
    for tree in range(len(forest.depth)):
        n_exits = 1 << forest.depth[tree]
        start = forest.heap_start[tree]
        node_of = np.empty(2 * n_exits, np.int32)
        node_of[1] = forest.node_start[tree]
        for i in range(1, n_exits):
            node = node_of[i]
            if forest.left[node] >= 0:
                forest.heap[2 * (start + i)], forest.heap[2 * (start + i) + 1] = forest.splits[node]
                node_of[2 * i], node_of[2 * i + 1] = forest.left[node], forest.right[node]
            else:
                forest.heap[2 * (start + i)], forest.heap[2 * (start + i) + 1] = 0, 0
                node_of[2 * i] = node_of[2 * i + 1] = node
        for slot in range(n_exits):
            forest.exits[start + slot] = node_of[n_exits + slot]
            forest.exit_values[start + slot] = forest.values[node_of[n_exits + slot], 0]


@njit(cache=True, nogil=True)
def add_margins(
    forest: PackedForest, keys: UInt32, first_tree: int, stop_tree: int, slots: Int32, margins: Float32
) -> None:
    """Add trees `first_tree:stop_tree`, in order, to the margins of a block of rows.

    Parameters
    ----------
    keys : uint32 array, shape (padded rows * columns,); from `dense_keys` or `sparse_keys`
    slots : int32 array, shape (padded rows,); scratch, its length a multiple of `LANES`
    margins : float32 array, shape (rows, outputs); changed
    """
    tile_size, sets = len(forest.missing) * LANES, _heap_sets(forest)
    for tree in range(first_tree, stop_tree):
        start, depth, k = forest.heap_start[tree], forest.depth[tree], forest.output[tree]
        walk_heap(forest.heap, start, depth, keys, tile_size, slots, sets, forest.has_sets[tree])
        if forest.values.shape[1] > 1:
            for row in range(len(margins)):
                leaf = _descend(forest, forest.exits[start + slots[row]], keys, row)
                for output in range(margins.shape[1]):
                    margins[row, output] += forest.values[leaf, output]
        elif forest.is_deep[tree]:
            for row in range(len(margins)):
                leaf = _descend(forest, forest.exits[start + slots[row]], keys, row)
                margins[row, k] += forest.values[leaf, 0]
        else:
            for row in range(len(margins)):
                margins[row, k] += forest.exit_values[start + slots[row]]


@njit(cache=True, nogil=True)
def find_leaves(
    forest: PackedForest, keys: UInt32, first_tree: int, stop_tree: int, slots: Int32, leaves: Int32
) -> None:
    """Write each row's leaf in each of the trees, numbered within its tree, to `leaves`, shape (rows, trees)."""
    tile_size, sets = len(forest.missing) * LANES, _heap_sets(forest)
    for tree in range(first_tree, stop_tree):
        start, depth = forest.heap_start[tree], forest.depth[tree]
        walk_heap(forest.heap, start, depth, keys, tile_size, slots, sets, forest.has_sets[tree])
        for row in range(len(leaves)):
            node = forest.exits[start + slots[row]]
            leaf = _descend(forest, node, keys, row)
            leaves[row, tree - first_tree] = leaf - forest.node_start[tree]


@njit(cache=True, nogil=True)
def predict_dense(
    forest: PackedForest, values: UInt32, first_tree: int, stop_tree: int, block: int, leaves: Int32, margins: Float32
) -> None:
    """Margins of a dense matrix, shape (rows, features), or leaves where `leaves` has rows; `block` rows at a time."""
    n_rows, n_columns = len(values), len(forest.missing)
    keys, slots = np.zeros(block * n_columns, np.uint32), np.empty(block, np.int32)
    for first in range(0, n_rows, block):
        stop = min(first + block, n_rows)
        dense_keys(forest, values, first, stop, keys)
        padded = slots[: (stop - first + LANES - 1) // LANES * LANES]
        if len(leaves):
            find_leaves(forest, keys, first_tree, stop_tree, padded, leaves[first:stop])
        else:
            add_margins(forest, keys, first_tree, stop_tree, padded, margins[first:stop])


@njit(cache=True, nogil=True)
def predict_sparse(
    forest: PackedForest, entries: Csr, first_tree: int, stop_tree: int, block: int, leaves: Int32, margins: Float32
) -> None:
    """Do what `predict_dense` does for a CSR matrix; only the columns that trees use become dense, one block at a
    time."""
    n_rows, n_columns = len(entries.indptr) - 1, len(forest.missing)
    keys, slots = np.zeros(block * n_columns, np.uint32), np.empty(block, np.int32)
    for first in range(0, n_rows, block):
        stop = min(first + block, n_rows)
        sparse_keys(forest, entries, first, stop, keys)
        padded = slots[: (stop - first + LANES - 1) // LANES * LANES]
        if len(leaves):
            find_leaves(forest, keys, first_tree, stop_tree, padded, leaves[first:stop])
        else:
            add_margins(forest, keys, first_tree, stop_tree, padded, margins[first:stop])
