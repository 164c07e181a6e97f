"""Forests as the kernels of `kernels/predict.cu` and `kernels/predict_wide.cu` read them, made from packed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Int32, Int64, UInt32, UInt64

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict import PackedForest

GROUP_WORDS = 2048
"""Words of a group of trees, as in `kernels/predict.cu`: `2 << levels` of them are a tree."""
TILE_ROWS = 128
"""Rows of a tile, as in `kernels/rank_tile.cuh`."""
MOST_THRESHOLDS = {1: 255, 2: 32767}
"""Most thresholds of a feature, by the bytes of a rank. A node has 16 bits for one, of which the first is the sign of a
difference."""
MOST_OFFSET = 0xFFFF
"""Largest offset of a column within a tile, in bytes: what a node has room for."""

_LEVEL_BITS = 4
_DEEP = 1 << _LEVEL_BITS
_PLACE_SHIFT = _LEVEL_BITS + 1


@dataclass(frozen=True)
class Thresholds:
    """The distinct thresholds of each feature that a forest splits."""

    places: UInt64
    """Feature times 2**32 plus the threshold's key, increasing."""
    starts: Int64
    """Where each feature's thresholds begin, and the end; shape (features + 1,)."""

    @classmethod
    def of(cls, forest: PackedForest) -> Thresholds:
        inner = forest.left >= 0
        n_features = len(forest.feature_columns)
        places = np.unique(_places(forest, forest.splits[inner]))
        starts = np.searchsorted(places, np.arange(n_features + 1, dtype=np.uint64) << np.uint64(32))
        return cls(places, starts.astype(np.int64))

    @property
    def keys(self) -> UInt32:
        return (self.places & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    @property
    def most(self) -> int:
        """Most thresholds of one feature."""
        return int(np.diff(self.starts).max(initial=0))

    def ranks(self, forest: PackedForest, splits: UInt32) -> UInt32:
        """Place of the threshold of each (column, key) among its feature's; anything where there is none."""
        places = _places(forest, splits)
        features = (places >> np.uint64(32)).astype(np.int64)
        ranks: Int64 = np.maximum(np.searchsorted(self.places, places) - self.starts[features], 0)
        return ranks.astype(np.uint32)


def _places(forest: PackedForest, splits: UInt32) -> UInt64:
    return forest.column_feature[_columns(splits)].astype(np.uint64) << np.uint64(32) | splits[:, 1]


def _columns(splits: UInt32) -> UInt32:
    from daskboost.devices.cpu.predict import LANES

    return splits[:, 0] // np.uint32(LANES)


@dataclass(frozen=True)
class RankForest:
    """Trees whose nodes compare ranks, in the host's memory; see the opening comment of `kernels/predict.cu`."""

    rank_bytes: int
    n_columns: int
    groups: UInt32
    """Shape (groups, GROUP_WORDS)."""
    group_trees: Int32
    deep: UInt32
    """Nodes below heaps, shape (nodes, 4); empty where all trees end with their heap."""
    thresholds: UInt32
    threshold_ends: Int32
    """Per used feature, the end of its thresholds."""
    feature_columns: Int32


def rank_bytes_of(forest: PackedForest, thresholds: Thresholds) -> int | None:
    """Bytes of a rank; None where nodes have no room for the forest's thresholds or columns, or split by sets."""
    if n_code_columns(forest):
        return None
    for rank_bytes, most in MOST_THRESHOLDS.items():
        if thresholds.most <= most:
            fits = len(forest.missing) * TILE_ROWS * rank_bytes <= MOST_OFFSET + 1
            return rank_bytes if fits else None
    return None


def rank_forest(forest: PackedForest, thresholds: Thresholds, rank_bytes: int, places: Sequence[int], leaves: bool
                ) -> RankForest:  # fmt: skip
    """Lay out a forest for `walk_ranks`.

    `places` : of each tree in a row of the result; trees of one place follow each other. `leaves` : what the result is.
    """

    def words(splits: UInt32) -> UInt32:
        if not len(forest.missing):
            return np.zeros(len(splits), np.uint32)
        offsets = _columns(splits) * np.uint32(TILE_ROWS * rank_bytes)
        return thresholds.ranks(forest, splits) << np.uint32(16) | offsets

    numbers = _numbers(forest)
    values = _values(forest, leaves)
    any_deep = bool(forest.is_deep.any())
    deep = _nodes(forest, words(forest.splits), np.zeros(len(numbers), np.uint32), numbers, values)
    groups, group_trees = _groups(forest, words(forest.heap.reshape(-1, 2)), numbers, values, places)
    return RankForest(
        rank_bytes, len(forest.missing), groups, group_trees, deep if any_deep else deep[:0], thresholds.keys,
        thresholds.starts[1:].astype(np.int32), forest.feature_columns,
    )  # fmt: skip


def _groups(forest: PackedForest, heap: UInt32, numbers: Int32, values: UInt32, places: Sequence[int]
            ) -> tuple[UInt32, Int32]:  # fmt: skip
    """Trees, `2 << levels` words each, into as few groups as their order allows."""
    sizes = (np.int64(2) << forest.depth.astype(np.int64)).tolist()
    found: list[list[int]] = [[]]
    room = GROUP_WORDS
    for tree, size in enumerate(sizes):
        if size > room:
            found.append([])
            room = GROUP_WORDS
        found[-1].append(tree)
        room -= size
    groups = np.zeros((len(found), GROUP_WORDS), np.uint32)
    for members, words in zip(found, groups, strict=True):
        begin = 0
        for tree in members:
            n, start = sizes[tree] // 2, int(forest.heap_start[tree])
            exits = forest.exits[start : start + n]
            words[begin : begin + n] = heap[start : start + n]
            words[begin] = int(forest.depth[tree]) | _DEEP * bool(forest.is_deep[tree]) | places[tree] << _PLACE_SHIFT
            words[begin + n : begin + 2 * n] = numbers[exits] if forest.is_deep[tree] else values[exits]
            begin += 2 * n
    return groups, np.array([len(members) for members in found], np.int32)


@dataclass(frozen=True)
class KeyForest:
    """Trees whose nodes compare keys, in the host's memory; see `kernels/predict_wide.cu`."""

    column_feature: Int32
    column_missing: UInt32
    nodes: UInt32
    """Shape (nodes, 4)."""
    roots: Int32
    places: Int32
    first_code_column: int
    """Columns from here on are of codes; these fields as in `kernels/code_sets.cuh`."""
    code_start: Int32
    codes: Int32
    words: UInt32


def key_forest(forest: PackedForest, places: Sequence[int], leaves: bool) -> KeyForest:
    """Lay out a forest for `walk_keys`; parameters as of `rank_forest`."""
    columns, keys = _columns(forest.splits), np.ascontiguousarray(forest.splits[:, 1])
    nodes = _nodes(forest, columns, keys, _numbers(forest), _values(forest, leaves))
    sets = forest.sets
    return KeyForest(
        forest.column_feature, forest.missing, nodes, forest.node_start, np.array(places, np.int32),
        len(forest.missing) - n_code_columns(forest), sets.code_start.astype(np.int32), sets.codes, sets.words,
    )  # fmt: skip


def n_code_columns(forest: PackedForest) -> int:
    """Return how many of a forest's columns are of codes, which sets of categories split; they are the last ones."""
    return len(forest.sets.code_start) - 1


def _nodes(forest: PackedForest, first: UInt32, second: UInt32, numbers: Int32, values: UInt32) -> UInt32:
    """Words of each node, in the order of `numbers`: two that say its split, its left child, what it adds as a leaf."""
    nodes = np.empty((len(numbers), 4), np.uint32)
    children = np.where(forest.left >= 0, numbers[forest.left], -1).astype(np.int32)
    for word, column in enumerate((first, second, children.view(np.uint32), values)):
        nodes[numbers, word] = column
    return nodes


def _numbers(forest: PackedForest) -> Int32:
    """New numbers of the nodes: those of a tree stay together, its root first, and right children follow left ones."""
    inner = np.flatnonzero(forest.left >= 0)
    trees = np.searchsorted(forest.node_start, inner, side="right") - 1
    inner_before = np.searchsorted(inner, forest.node_start)  # of earlier trees
    first = forest.node_start[trees] + 1 + 2 * (np.arange(len(inner)) - inner_before[trees])
    numbers = np.empty(len(forest.left), np.int32)
    numbers[forest.node_start] = forest.node_start
    numbers[forest.left[inner]], numbers[forest.right[inner]] = first, first + 1
    return numbers


def _values(forest: PackedForest, leaves: bool) -> UInt32:
    """Bits of what each node gives as a leaf: what it adds, or its number within its tree."""
    if not leaves:
        return np.ascontiguousarray(forest.values[:, 0]).view(np.uint32)
    sizes = np.diff(np.append(forest.node_start, len(forest.left)))
    return (np.arange(len(forest.left)) - np.repeat(forest.node_start, sizes)).astype(np.uint32)
