"""Rows move to their children, and leaf values to the margins.

Partitioning a segment is stable: rows stay in increasing order within a node, so reads of the chunk run forward.
A large segment is divided among threads, each of which partitions its piece in place; the caller then joins the
pieces, which moves whole blocks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.devices.cpu.prefetch import prefetch
from daskboost.dtypes import Bool, Float32, Int32, Int64, Pairs, Symbols, UInt8, UInt32

AHEAD = 32
"""Rows between asking for a symbol and using it."""


@njit(inline="always")
def _sparse_symbol(indptr: Int64, slots: Int32, row: np.uint64, low: int, high: int) -> int:
    """Bin of the feature that owns slots `[low, high)` in a CSR row, or -1 if the row lacks it."""
    left, right = indptr[row], indptr[row + np.uint64(1)]
    while left < right:
        middle = (left + right) >> 1
        if slots[middle] < low:
            left = middle + 1
        else:
            right = middle
    if left < indptr[row + np.uint64(1)] and slots[left] < high:
        return int(slots[left] - low)
    return -1


@njit(nogil=True)
def _carry(pairs: Pairs, spare: Pairs, i: int | np.uint64, place: int | np.uint64, right: int | np.uint64) -> None:
    """Bring a row's pair where the row goes on either side; those of several outputs stay in the order of rows."""
    if pairs.ndim == 1:
        pair = pairs[i]
        pairs[place] = pair  # never ahead of i, so nothing unread is overwritten
        spare[right] = pair


@njit(nogil=True)
def _bring_back(pairs: Pairs, spare: Pairs, place: np.uint64, begin: np.uint64, end: np.uint64) -> None:
    """Copy the right-goers' pairs behind those of the left-goers, up to `end`."""
    if pairs.ndim == 1:
        for i in range(end - place):
            pairs[place + i] = spare[begin + i]


@njit(nogil=True)
def _add_value(margin: Float32, row: np.uint64, value: Float32, node: int | np.uint64) -> None:
    """Add a node's value, or its values of all outputs, to a row's margin."""
    if margin.ndim == 1:
        margin[row] += value[node]
    else:
        for k in range(margin.shape[1]):
            margin[row, k] += value[node, k]


@njit(cache=True, nogil=True)
def split_dense(
    flat: Symbols, row_stride: int, column_stride: int, order: UInt32, pairs: Pairs, segments: Int64, feature: Int32,
    split_bin: Int32, default_left: UInt8, n_bins: Int32, first: int, last: int, spare_order: UInt32,
    spare_pairs: Pairs, lefts: Int64,
) -> None:  # fmt: skip
    """Partition each segment's piece within positions `[first, last)` of the concatenated segments, in place.

    The symbol of (row, feature) is `flat[row * row_stride + feature * column_stride]`. `lefts[s]` becomes the number
    of left-goers of segment `s` within the range.
    """
    position = 0
    stride = np.uint64(row_stride)
    for s in range(len(segments)):
        size = segments[s, 1] - segments[s, 0]
        shift = segments[s, 0] - position
        low, high = max(first, position) + shift, min(last, position + size) + shift
        column = np.uint64(feature[s]) * np.uint64(column_stride)
        last_left, missing, missing_left = split_bin[s], n_bins[feature[s]], default_left[s] != 0
        # Unsigned indices spare the compiler Python's negative ones: half of the time of this loop.
        begin, end = np.uint64(low), np.uint64(max(low, high))
        place, right = begin, begin
        for i in range(begin, end):
            if i + np.uint64(AHEAD) < end:
                prefetch(flat, np.uint64(order[i + np.uint64(AHEAD)]) * stride + column)
            row = order[i]
            symbol = np.int32(flat[np.uint64(row) * stride + column])
            left = np.uint64(symbol <= last_left) | np.uint64((symbol == missing) & missing_left)
            order[place] = spare_order[right] = row
            _carry(pairs, spare_pairs, i, place, right)
            place += left
            right += np.uint64(1) - left
        if low < high:
            lefts[s] = np.int64(place - begin)
            for i in range(end - place):
                order[place + i] = spare_order[begin + i]
            _bring_back(pairs, spare_pairs, place, begin, end)
        position += size


@njit(cache=True, nogil=True)
def split_sparse(
    indptr: Int64, slots: Int32, slot_offsets: Int64, order: UInt32, pairs: Pairs, segments: Int64, feature: Int32,
    split_bin: Int32, default_left: UInt8, first: int, last: int, spare_order: UInt32, spare_pairs: Pairs,
    lefts: Int64,
) -> None:  # fmt: skip
    """`split_dense` for a CSR chunk."""
    position = 0
    for s in range(len(segments)):
        size = segments[s, 1] - segments[s, 0]
        shift = segments[s, 0] - position
        low, high = max(first, position) + shift, min(last, position + size) + shift
        slot_low, slot_high = slot_offsets[feature[s]], slot_offsets[feature[s] + 1]
        begin, end = np.uint64(low), np.uint64(max(low, high))
        place, right = begin, begin
        for i in range(begin, end):
            row = order[i]
            symbol = _sparse_symbol(indptr, slots, np.uint64(row), slot_low, slot_high)
            left = np.uint64(default_left[s] if symbol < 0 else np.uint8(symbol <= split_bin[s]))
            order[place] = spare_order[right] = row
            _carry(pairs, spare_pairs, i, place, right)
            place += left
            right += np.uint64(1) - left
        if low < high:
            lefts[s] = np.int64(place - begin)
            for i in range(end - place):
                order[place + i] = spare_order[begin + i]
            _bring_back(pairs, spare_pairs, place, begin, end)
        position += size


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
            _add_value(margin, order[i], values, s)


@njit(cache=True, nogil=True)
def mark_absent(order: UInt32, kept: int, absent: Bool) -> None:
    """Set `absent[row] = False` for the rows that grow the tree."""
    for i in range(kept):
        absent[order[i]] = False


@njit(inline="always")
def _next_dense(
    flat: Symbols, base: np.uint64, n_bins: Int32, left_child: Int32, right_child: Int32, feature: Int32,
    split_bin: Int32, default_left: Bool, node: np.uint64,
) -> np.uint64:  # fmt: skip
    """Where a row whose symbols begin at `base` goes from a node; a leaf's rows stay. Without jumps, half of which
    would be guessed wrong."""
    f = np.uint64(feature[node])
    symbol = np.int32(flat[base + f])
    left = np.int32(symbol <= split_bin[node]) | (np.int32(symbol == n_bins[f]) & np.int32(default_left[node]))
    left_node, right_node = left_child[node], right_child[node]
    to = np.uint64(right_node + (left_node - right_node) * left)
    return to if left_node >= 0 else node


@njit(cache=True, nogil=True)
def walk_dense(
    flat: Symbols, n_features: int, n_bins: Int32, left_child: Int32, right_child: Int32, feature: Int32,
    split_bin: Int32, default_left: Bool, value: Float32, rows: UInt32, first: int, last: int, margin: Float32,
) -> None:  # fmt: skip
    """Add a tree's leaf values to the margins of `rows[first:last]`, walking it by bins.

    Four rows side by side: each step of one waits for the one before. Depth 6 takes 8 ns a row, and took 35 one by one.
    """
    stride, root = np.uint64(n_features), np.uint64(0)
    i = first
    while i + 4 <= last:
        a, b = np.uint64(rows[i]) * stride, np.uint64(rows[i + 1]) * stride
        c, d = np.uint64(rows[i + 2]) * stride, np.uint64(rows[i + 3]) * stride
        at_a, at_b, at_c, at_d = root, root, root, root
        moved = left_child[0] >= 0
        while moved:
            to_a = _next_dense(flat, a, n_bins, left_child, right_child, feature, split_bin, default_left, at_a)
            to_b = _next_dense(flat, b, n_bins, left_child, right_child, feature, split_bin, default_left, at_b)
            to_c = _next_dense(flat, c, n_bins, left_child, right_child, feature, split_bin, default_left, at_c)
            to_d = _next_dense(flat, d, n_bins, left_child, right_child, feature, split_bin, default_left, at_d)
            moved = ((to_a ^ at_a) | (to_b ^ at_b) | (to_c ^ at_c) | (to_d ^ at_d)) != root
            at_a, at_b, at_c, at_d = to_a, to_b, to_c, to_d
        _add_value(margin, rows[i], value, at_a)
        _add_value(margin, rows[i + 1], value, at_b)
        _add_value(margin, rows[i + 2], value, at_c)
        _add_value(margin, rows[i + 3], value, at_d)
        i += 4
    while i < last:
        base, node = np.uint64(rows[i]) * stride, root
        while left_child[node] >= 0:
            node = _next_dense(flat, base, n_bins, left_child, right_child, feature, split_bin, default_left, node)
        _add_value(margin, rows[i], value, node)
        i += 1


@njit(cache=True, nogil=True)
def walk_sparse(
    indptr: Int64, slots: Int32, slot_offsets: Int64, left_child: Int32, right_child: Int32, feature: Int32,
    split_bin: Int32, default_left: Bool, value: Float32, rows: UInt32, first: int, last: int, margin: Float32,
) -> None:  # fmt: skip
    """`walk_dense` for a CSR chunk."""
    for i in range(first, last):
        row = np.uint64(rows[i])
        node = 0
        while left_child[node] >= 0:
            f = feature[node]
            symbol = _sparse_symbol(indptr, slots, row, slot_offsets[f], slot_offsets[f + 1])
            left = default_left[node] if symbol < 0 else symbol <= split_bin[node]
            node = left_child[node] if left else right_child[node]
        _add_value(margin, row, value, node)
