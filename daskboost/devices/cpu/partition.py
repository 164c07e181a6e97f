"""Rows move to their children, and leaf values to the margins.

Partitioning a segment is stable: rows stay in increasing order within a node, so reads of the chunk run forward.
A large segment is divided among threads, each of which partitions its piece in place; the caller then joins the
pieces, which moves whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.histogram import LOW_HALF, DenseBins, SparseBins, _pair, sparse_symbol
from daskboost.devices.cpu.threads import Threads, prefetch
from daskboost.devices.row_order import BY_SET, ChunkOrder, Predicates, RowOrder, Stretch
from daskboost.dtypes import Bool, Float32, Int32, Int64, Pairs, Symbols, UInt32

# Rows go to the nodes of a tree that is known whole: one walk and one counting sort, where each level would take a
# partition.
#
# The sort is stable and each thread has a stretch of the rows, so reads of a chunk run forward within a node, as after
# `partition.py`.

@njit(cache=True, nogil=True)
def count_places(
    order: UInt32, pairs: Pairs, place: Float32, begin: int, end: int, counts: Int64, sums: Int64
) -> None:
    """Rows `order[begin:end]` of each place, and their sums of g and h; the last of `counts` is for negative places.

    `place` : float32, shape (rows,), of integers. `counts` : int64, shape (places + 1,). `sums` : (places, 2).
    """
    outside = len(counts) - 1
    for i in range(begin, end):
        at = np.int64(place[order[i]])
        if at < 0:
            counts[outside] += 1
            continue
        value = _pair(pairs[i])
        counts[at] += 1
        sums[at, 0] += value >> np.int64(32)
        sums[at, 1] += value & LOW_HALF


@njit(cache=True, nogil=True)
def sort_places(
    order: UInt32, pairs: Pairs, place: Float32, begin: int, end: int, starts: Int64, to_order: UInt32, to_pairs: Pairs
) -> None:
    """Copy rows `order[begin:end]` and their pairs to where their places go on; `starts` are moved along."""
    outside = len(starts) - 1
    for i in range(begin, end):
        at = np.int64(place[order[i]])
        if at < 0:
            at = np.int64(outside)
        to_order[starts[at]], to_pairs[starts[at]] = order[i], pairs[i]
        starts[at] += 1


def settle(chunk: ChunkOrder, place: Float32, n_places: int, threads: Threads) -> Int64:
    """Sort a chunk's rows by their places, which become its nodes 0 to `n_places`; sums of g and h of each.

    `place` : float32, shape (rows,), of integers below `n_places`; rows of negative ones leave the tree.
    """
    ranges = threads.ranges(chunk.kept)
    counts = np.zeros((len(ranges), n_places + 1), np.int64)
    sums = np.zeros((len(ranges), n_places, 2), np.int64)
    threads.run([
        partial(count_places, chunk.order, chunk.pairs, place, begin, end, counts[part], sums[part])
        for part, (begin, end) in enumerate(ranges)
    ])  # fmt: skip
    ends = np.cumsum(counts.T.ravel()).reshape(counts.T.shape).T  # places one after the other, in each the threads
    starts = np.ascontiguousarray(ends - counts)
    order, pairs = np.empty_like(chunk.order), np.empty_like(chunk.pairs)
    threads.run([
        partial(sort_places, chunk.order, chunk.pairs, place, begin, end, starts[part], order, pairs)
        for part, (begin, end) in enumerate(ranges)
    ])  # fmt: skip
    chunk.order, chunk.pairs = order, pairs
    sizes = counts.sum(axis=0)[:n_places]
    node_ends = np.cumsum(sizes)
    chunk.bounds = np.stack([node_ends - sizes, node_ends], axis=1)
    chunk.kept = int(sizes.sum())
    return np.asarray(sums.sum(axis=0))


AHEAD = 32
"""Rows between asking for a symbol and using it."""


class TreeArrays(NamedTuple):
    """A tree as rows walk it, per node."""

    left_child: Int32
    """-1 in leaves."""
    right_child: Int32
    feature: Int32
    split_bin: Int32
    default_left: Bool
    value: Float32
    """What a leaf adds to a margin, shape (nodes,), or to those of all outputs, shape (nodes, outputs)."""
    right_bins: UInt32
    """Bins that go right where `split_bin` is `BY_SET`, a bit for each; shape (nodes, words)."""


@njit(nogil=True)
def in_set(right_bins: UInt32, i: int | np.uint64, symbol: int | np.int32) -> bool:
    """Whether a bin is in a set of bins, one of several; `right_bins` : shape (sets, words)."""
    word = np.int64(symbol) >> 5
    if word >= right_bins.shape[1]:
        return False
    return bool(((right_bins[i, word] >> np.uint32(np.int64(symbol) & 31)) & np.uint32(1)) != np.uint32(0))


@njit(nogil=True)
def _carry(
    pairs: Pairs, i: int | np.uint64, lefts: Pairs, left: np.uint64, rights: Pairs, right: np.uint64
) -> None:  # fmt: skip
    """Copy a row's pair where the row goes on either side; those of several outputs stay in the order of rows."""
    if pairs.ndim == 1:
        lefts[left] = rights[right] = pairs[i]


@njit(nogil=True)
def _copy_pair(pairs: Pairs, i: np.uint64, into: Pairs, place: np.uint64) -> None:
    """Copy a row's pair, as `_carry` does."""
    if pairs.ndim == 1:
        into[place] = pairs[i]


@njit(nogil=True)
def _bring_back(
    values: UInt32 | Pairs, spare: UInt32 | Pairs, place: np.uint64, begin: np.uint64, end: np.uint64
) -> None:
    """Copy what right-goers have behind what left-goers have, up to `end`; what is by row, of shape (rows, outputs),
    stays."""
    if values.ndim == 1:
        for i in range(end - place):
            values[place + i] = spare[begin + i]


@njit(nogil=True)
def add_value(margin: Float32, row: np.uint64, value: Float32, node: int | np.uint64) -> None:
    """Add a node's value, or its values of all outputs, to a row's margin."""
    if margin.ndim == 1:
        margin[row] += value[node]
    else:
        for k in range(margin.shape[1]):
            margin[row, k] += value[node, k]


@njit(cache=True, nogil=True)
def split_dense(
    bins: DenseBins, rows: RowOrder, spare: RowOrder, stretch: Stretch, splits: Predicates, lefts: Int64
) -> None:
    """Partition each segment's piece within a stretch, in place; `spare` has room for the rows of the chunk.

    `lefts[s]` becomes the number of left-goers of segment `s` within the stretch.
    """
    flat, stride, order, pairs = bins.symbols, np.uint64(bins.row_stride), rows.order, rows.pairs
    spare_order, spare_pairs = spare.order, spare.pairs
    segments, first, last = stretch.segments, stretch.first, stretch.last
    position = 0
    for s in range(len(segments)):
        size = segments[s, 1] - segments[s, 0]
        shift = segments[s, 0] - position
        low, high = max(first, position) + shift, min(last, position + size) + shift
        feature = splits.feature[s]
        column = np.uint64(feature) * np.uint64(bins.column_stride)
        last_left, missing, missing_left = splits.split_bin[s], bins.n_bins[feature], splits.default_left[s] != 0
        by_set = last_left == BY_SET
        # Unsigned indices spare the compiler Python's negative ones: half of the time of this loop.
        begin, end = np.uint64(low), np.uint64(max(low, high))
        place, right = begin, begin
        for i in range(begin, end):
            if i + np.uint64(AHEAD) < end:
                prefetch(flat, np.uint64(order[i + np.uint64(AHEAD)]) * stride + column)
            row = order[i]
            symbol = np.int32(flat[np.uint64(row) * stride + column])
            left = np.uint64(symbol <= last_left) | np.uint64((symbol == missing) & missing_left)
            if by_set and symbol != missing:
                left = np.uint64(not in_set(splits.right_bins, s, symbol))
            order[place] = spare_order[right] = row
            _carry(pairs, i, pairs, place, spare_pairs, right)  # never ahead of i, so nothing unread is lost
            place += left
            right += np.uint64(1) - left
        if low < high:
            lefts[s] = np.int64(place - begin)
            _bring_back(order, spare_order, place, begin, end)
            _bring_back(pairs, spare_pairs, place, begin, end)
        position += size


@njit(cache=True, nogil=True)
def split_sparse(
    bins: SparseBins, rows: RowOrder, spare: RowOrder, stretch: Stretch, splits: Predicates, lefts: Int64
) -> None:
    """`split_dense` for a CSR chunk."""
    indptr, slots, order, pairs = bins.indptr, bins.slots, rows.order, rows.pairs
    spare_order, spare_pairs = spare.order, spare.pairs
    segments, first, last = stretch.segments, stretch.first, stretch.last
    position = 0
    for s in range(len(segments)):
        size = segments[s, 1] - segments[s, 0]
        shift = segments[s, 0] - position
        low, high = max(first, position) + shift, min(last, position + size) + shift
        feature, split_bin, default_left = splits.feature[s], splits.split_bin[s], splits.default_left[s]
        slot_low, slot_high = bins.offsets[feature], bins.offsets[feature + 1]
        begin, end = np.uint64(low), np.uint64(max(low, high))
        place, right = begin, begin
        for i in range(begin, end):
            row = order[i]
            symbol = sparse_symbol(indptr, slots, np.uint64(row), slot_low, slot_high)
            left = np.uint64(default_left if symbol < 0 else np.uint8(symbol <= split_bin))
            if split_bin == BY_SET and symbol >= 0:
                left = np.uint64(not in_set(splits.right_bins, s, symbol))
            order[place] = spare_order[right] = row
            _carry(pairs, i, pairs, place, spare_pairs, right)  # never ahead of i, so nothing unread is lost
            place += left
            right += np.uint64(1) - left
        if low < high:
            lefts[s] = np.int64(place - begin)
            _bring_back(order, spare_order, place, begin, end)
            _bring_back(pairs, spare_pairs, place, begin, end)
        position += size


class OneSplit(NamedTuple):
    """Where one split sends rows, see `Predicates`."""

    feature: int
    split_bin: int
    default_left: bool
    right_bins: UInt32
    """Sets of bins, shape (sets, words)."""
    place: int
    """Where the split's own is among them."""


def goes_left(bins: DenseBins | SparseBins, row: np.uint64, split: OneSplit) -> bool:
    """Whether a split sends a row left: by its bin, or by the default direction for want of one."""
    raise NotImplementedError("for compiled code only")


@overload(goes_left, inline="always", strict=False)
def _typed_goes_left(bins: types.NamedTuple, row: types.Type, split: types.Type) -> Callable[..., bool]:
    return GOES_LEFT[bins.instance_class]


def _sparse_goes_left(bins: SparseBins, row: np.uint64, split: OneSplit) -> bool:
    low, high = bins.offsets[split.feature], bins.offsets[split.feature + 1]
    symbol = sparse_symbol(bins.indptr, bins.slots, row, low, high)
    if split.split_bin == BY_SET and symbol >= 0:
        return not in_set(split.right_bins, split.place, symbol)
    return split.default_left if symbol < 0 else symbol <= split.split_bin


def _dense_goes_left(bins: DenseBins, row: np.uint64, split: OneSplit) -> bool:
    at = row * np.uint64(bins.row_stride) + np.uint64(split.feature) * np.uint64(bins.column_stride)
    symbol, missing = np.int32(bins.symbols[at]), bins.n_bins[split.feature]
    if split.split_bin == BY_SET and symbol != missing:
        return not in_set(split.right_bins, split.place, symbol)
    return bool((symbol <= split.split_bin) | ((symbol == missing) & split.default_left))


GOES_LEFT: Mapping[type, Callable[..., bool]] = {DenseBins: _dense_goes_left, SparseBins: _sparse_goes_left}


def _ask_for(bins: DenseBins | SparseBins, row: np.uint64, feature: int) -> None:
    """Ask for the symbol of a row that is to be looked at soon."""
    raise NotImplementedError("for compiled code only")


@overload(_ask_for, inline="always", strict=False)
def _typed_ask_for(bins: types.NamedTuple, row: types.Type, feature: types.Type) -> Callable[..., None]:
    return ASK_FOR[bins.instance_class]


def _ask_for_dense(bins: DenseBins, row: np.uint64, feature: int) -> None:
    prefetch(bins.symbols, row * np.uint64(bins.row_stride) + np.uint64(feature) * np.uint64(bins.column_stride))


def _ask_for_sparse(bins: SparseBins, row: np.uint64, feature: int) -> None:
    pass


ASK_FOR: Mapping[type, Callable[..., None]] = {DenseBins: _ask_for_dense, SparseBins: _ask_for_sparse}


@njit(nogil=True)
def divide(
    bins: DenseBins | SparseBins, rows: RowOrder, lefts: RowOrder, rights: RowOrder, places: tuple[int, int],
    split: OneSplit,
) -> np.int64:  # fmt: skip
    """Copy the rows at `places`, [begin, end), to the same places of `lefts` and `rights`: left-goers in order from the
    front, right-goers in reverse from the back. Returns the number of left-goers. `lefts` may be `rows`."""
    order, pairs = rows.order, rows.pairs
    left_order, left_pairs, right_order, right_pairs = lefts.order, lefts.pairs, rights.order, rights.pairs
    begin, end = places
    # Unsigned indices spare the compiler Python's negative ones: half of the time of this loop.
    first, last, one = np.uint64(begin), np.uint64(end), np.uint64(1)
    left, right = first, last
    for i in range(first, last):
        if i + np.uint64(AHEAD) < last:
            _ask_for(bins, np.uint64(order[i + np.uint64(AHEAD)]), split.feature)
        row = order[i]
        is_left = np.uint64(goes_left(bins, np.uint64(row), split))
        _carry(pairs, i, left_pairs, left, right_pairs, right - one)  # before another may be written over i
        left_order[left] = right_order[right - one] = row  # the place that is wrong is written again
        left += is_left
        right -= one - is_left
    return np.int64(left - first)


@njit(nogil=True)
def put_back(
    spare: RowOrder, rows: RowOrder, begin: int, end: int, n_left: int, to_left: int, to_right: int
) -> None:
    """Copy rows that `divide` has divided, in order, to the places from `to_left` and from `to_right` on."""
    order, pairs, to_order, to_pairs = spare.order, spare.pairs, rows.order, rows.pairs
    first, middle, last = np.uint64(begin), np.uint64(begin + n_left), np.uint64(end)
    into = np.uint64(to_left)
    for i in range(middle - first):
        to_order[into + i] = order[first + i]
        _copy_pair(pairs, first + i, to_pairs, into + i)
    into, last = np.uint64(to_right), last - np.uint64(1)
    for i in range(np.uint64(end) - middle):
        to_order[into + i] = order[last - i]
        _copy_pair(pairs, last - i, to_pairs, into + i)


@njit(cache=True, nogil=True)
def transpose(flat: Symbols, n_features: int, begin: int, end: int, columns: Symbols) -> None:
    """Copy rows `[begin, end)` of a row-major chunk into `columns`, shape (features, rows), in cache-sized tiles."""
    for start in range(begin, end, 64):
        stop = min(start + 64, end)
        for f in range(n_features):
            for row in range(start, stop):
                columns[f, row] = flat[row * n_features + f]


@njit(cache=True, nogil=True)
def add_leaf_values(order: UInt32, segments: Int64, values: Float32, margin: Float32) -> None:
    """`margin[row] += values[s]` for the rows of each segment.

    `margin`, `values` : float32, shape (rows,), any stride, and (segments,); or one column per output more.
    """
    for s in range(len(segments)):
        for i in range(segments[s, 0], segments[s, 1]):
            add_value(margin, order[i], values, s)


@njit(cache=True, nogil=True)
def mark_absent(order: UInt32, kept: int, absent: Bool) -> None:
    """Set `absent[row] = False` for the rows that grow the tree."""
    for i in range(kept):
        absent[order[i]] = False


@njit(cache=True, nogil=True)
def walk_dense(bins: DenseBins, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32) -> None:
    """Add a tree's leaf values to the margins of `rows[first:last]`, walking it by bins.

    Four rows side by side: each step of one waits for the one before. Depth 6 takes 8 ns a row, and took 35 one by one.
    """
    flat, n_bins, value = bins.symbols, bins.n_bins, tree.value
    left_child, right_child, default_left = tree.left_child, tree.right_child, tree.default_left
    feature, split_bin = tree.feature, tree.split_bin
    stride, root = np.uint64(bins.row_stride), np.uint64(0)
    right_bins, has_sets = tree.right_bins, tree.right_bins.shape[1] > 0

    def step(base: np.uint64, node: np.uint64) -> np.uint64:
        """Where a row whose symbols begin at `base` goes from a node; a leaf's rows stay. Without jumps, half of which
        would be guessed wrong."""
        f = np.uint64(feature[node])
        symbol = np.int32(flat[base + f])
        left = np.int32(symbol <= split_bin[node]) | (np.int32(symbol == n_bins[f]) & np.int32(default_left[node]))
        if has_sets and split_bin[node] == BY_SET and symbol != n_bins[f]:
            left = np.int32(not in_set(right_bins, node, symbol))
        left_node, right_node = left_child[node], right_child[node]
        to = np.uint64(right_node + (left_node - right_node) * left)
        return to if left_node >= 0 else node

    i = first
    while i + 4 <= last:
        a, b = np.uint64(rows[i]) * stride, np.uint64(rows[i + 1]) * stride
        c, d = np.uint64(rows[i + 2]) * stride, np.uint64(rows[i + 3]) * stride
        at_a, at_b, at_c, at_d = root, root, root, root
        moved = left_child[0] >= 0
        while moved:
            to_a = step(a, at_a)
            to_b = step(b, at_b)
            to_c = step(c, at_c)
            to_d = step(d, at_d)
            moved = ((to_a ^ at_a) | (to_b ^ at_b) | (to_c ^ at_c) | (to_d ^ at_d)) != root
            at_a, at_b, at_c, at_d = to_a, to_b, to_c, to_d
        add_value(margin, rows[i], value, at_a)
        add_value(margin, rows[i + 1], value, at_b)
        add_value(margin, rows[i + 2], value, at_c)
        add_value(margin, rows[i + 3], value, at_d)
        i += 4
    while i < last:
        base, node = np.uint64(rows[i]) * stride, root
        while left_child[node] >= 0:
            node = step(base, node)
        add_value(margin, rows[i], value, node)
        i += 1


@njit(cache=True, nogil=True)
def walk_sparse(bins: SparseBins, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32) -> None:
    """`walk_dense` for a CSR chunk."""
    indptr, slots, offsets, value = bins.indptr, bins.slots, bins.offsets, tree.value
    left_child, right_child, default_left = tree.left_child, tree.right_child, tree.default_left
    feature, split_bin = tree.feature, tree.split_bin
    for i in range(first, last):
        row = np.uint64(rows[i])
        node = 0
        while left_child[node] >= 0:
            f = feature[node]
            symbol = sparse_symbol(indptr, slots, row, offsets[f], offsets[f + 1])
            left = default_left[node] if symbol < 0 else symbol <= split_bin[node]
            if split_bin[node] == BY_SET and symbol >= 0:
                left = not in_set(tree.right_bins, node, symbol)
            node = left_child[node] if left else right_child[node]
        add_value(margin, row, value, node)


def walk(
    bins: DenseBins | SparseBins, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32
) -> None:
    """Do what `walk_dense` says for a chunk of either encoding."""
    raise NotImplementedError("for compiled code only")


@overload(walk, inline="always", strict=False)
def _typed_walk(
    bins: types.NamedTuple, tree: types.Type, rows: types.Type, first: types.Type, last: types.Type, margin: types.Type
) -> Callable[..., None]:
    return WALKS[bins.instance_class]


def _walk_dense(
    bins: DenseBins, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32
) -> None:
    walk_dense(bins, tree, rows, first, last, margin)


def _walk_sparse(
    bins: SparseBins, tree: TreeArrays, rows: UInt32, first: int, last: int, margin: Float32
) -> None:
    walk_sparse(bins, tree, rows, first, last, margin)


WALKS: Mapping[type, Callable[..., None]] = {DenseBins: _walk_dense, SparseBins: _walk_sparse}
