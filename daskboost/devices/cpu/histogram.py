"""Histograms of quantized gradients.

Rows of a chunk are kept in node order (`order`), each node a segment. A thread adds the rows of a stretch of
segments. Both statistics of a row are added with one 64-bit addition per (row, feature), in a word: g in the upper
half, h in the lower.

A histogram of at most `WORD_ROWS` rows stays an array of words, shape (slots,): no sum of g or h outgrows its half. Its
clearing, subtracting and searching move half the bytes of a histogram of pairs, shape (slots, 2), of any number of
rows. Those are accumulated in words too, in a scratch array that fits the L2 cache, and spilled before a half could
overflow. Segments too short to pay for the spill go straight into the pairs.

Slots: feature `f` owns `slot_offsets[f]` to `slot_offsets[f + 1]`: its bins, then one slot for missing where the
training data has missing values. Split search never reads that slot; it keeps the inner loop free of branches.

Trees whose leaves are vectors have several outputs. Their sums lie side by side: entry `slot * outputs + k` is output k
of a slot, so that a row adds to neighbouring words and one pass over the rows serves all outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, types
from numba.extending import overload

from daskboost.devices.cpu.prefetch import prefetch
from daskboost.dtypes import Int32, Int64, Pairs, Symbols, UInt32

WORD_ROWS = 65_536
"""Rows whose sums are sure to fit a word's halves: 2**16 * 2**15 = 2**31, with sign for g and without for h."""
LOW_HALF = np.int64(0xFFFFFFFF)
"""Mask of a word's lower half, the sum of h; the sum of g is above it."""
AHEAD = 16
"""Rows between asking for a row and using it; 8 to 16 were fastest, 32 slower."""


def _pair(packed: np.signedinteger) -> np.int64:
    """A row's pair as it is added: g in the upper half of an int64, h in the lower. Small data hold it so already."""
    raise NotImplementedError("for compiled code only")


@overload(_pair, inline="always", strict=False)  # strict also compares type hints
def _typed_pair(packed: types.Type) -> Callable[[np.int64], np.int64]:
    if packed == types.int64:
        return lambda packed: packed
    return lambda packed: (np.int64(packed >> np.int32(16)) << np.int64(32)) + np.int64(packed & np.int32(0xFFFF))


@njit(inline="always")
def _spill(scratch: Int64, low: int, high: int, into: Int64) -> None:
    """Add the packed sums of slots `[low, high)` to `into` and clear them."""
    for slot in range(low, high):
        packed = scratch[slot - low]
        if packed != 0:
            into[slot, 0] += packed >> np.int64(32)
            into[slot, 1] += packed & LOW_HALF
            scratch[slot - low] = 0


@njit(inline="always")
def _load(pairs: Pairs, row: np.uint64, words: Int64) -> None:
    """The pairs of a row's outputs as they are added."""
    for k in range(len(words)):
        words[k] = _pair(pairs[row, k])


@njit(inline="always")
def _add_words(words: Int64, at: np.uint64, into: Int64) -> None:
    """Add the words of all outputs to a slot of an array of words: neighbours, so vector instructions do."""
    for k in range(len(words)):
        into[at + np.uint64(k)] += words[k]


@njit(inline="always")
def _add_pairs(words: Int64, at: np.uint64, into: Int64) -> None:
    """Add the words of all outputs to a slot of an array of pairs."""
    for k in range(len(words)):
        into[at + np.uint64(k), 0] += words[k] >> np.int64(32)
        into[at + np.uint64(k), 1] += words[k] & LOW_HALF


@njit(nogil=True)
def _dense_vectors(
    flat: Symbols, stride: np.uint64, order: UInt32, pairs: Pairs, begin: int, end: int, slot_offsets: Int64,
    blocks: Int64, scratch: Int64, into: Int64,
) -> None:  # fmt: skip
    """`dense_rows` of several outputs, whose sums lie side by side in each slot."""
    width = pairs.shape[1]
    words, step = np.empty(width, np.int64), np.uint64(width)
    n_features = np.int64(stride)
    if into.ndim == 2 and (end - begin) * 2 < slot_offsets[n_features] // n_features:  # too few rows to pay for a spill
        for i in range(begin, end):
            row = np.uint64(order[i])
            _load(pairs, row, words)
            for f in range(n_features):
                slot = np.uint64(slot_offsets[f]) + np.uint64(flat[row * stride + np.uint64(f)])
                _add_pairs(words, slot * step, into)
        return
    for b in range(len(blocks) - 1):
        low, high = slot_offsets[blocks[b]], slot_offsets[blocks[b + 1]]
        for start in range(begin, end, WORD_ROWS):
            target = into[low * width : high * width] if into.ndim == 1 else scratch
            for i in range(start, min(start + WORD_ROWS, end)):
                row = np.uint64(order[i])
                if i + AHEAD < end:
                    prefetch(flat, np.uint64(order[i + AHEAD]) * stride + np.uint64(blocks[b]))
                _load(pairs, row, words)
                for f in range(blocks[b], blocks[b + 1]):
                    slot = np.uint64(slot_offsets[f] - low) + np.uint64(flat[row * stride + np.uint64(f)])
                    _add_words(words, slot * step, target)
            if into.ndim == 2:
                _spill(scratch, low * width, high * width, into)


@njit(nogil=True)
def _sparse_vectors(
    indptr: Int64, slots: Int32, order: UInt32, pairs: Pairs, begin: int, end: int, into: Int64
) -> None:
    """`sparse_rows` of several outputs."""
    words, step = np.empty(pairs.shape[1], np.int64), np.uint64(pairs.shape[1])
    for i in range(begin, end):
        row = np.uint64(order[i])
        _load(pairs, row, words)
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            at = np.uint64(slots[k]) * step
            if into.ndim == 1:
                _add_words(words, at, into)
            else:
                _add_pairs(words, at, into)


@njit(cache=True, nogil=True)
def dense_rows(
    flat: Symbols, n_features: int, order: UInt32, pairs: Pairs, begin: int, end: int,
    slot_offsets: Int64, blocks: Int64, scratch: Int64, into: Int64,
) -> None:  # fmt: skip
    """Add rows `order[begin:end]` of a row-major chunk to `into`: pairs or words."""
    stride = np.uint64(n_features)
    if pairs.ndim == 2:
        _dense_vectors(flat, stride, order, pairs, begin, end, slot_offsets, blocks, scratch, into)
        return
    if into.ndim == 1:
        for b in range(len(blocks) - 1):
            first, last = np.uint64(blocks[b]), np.uint64(blocks[b + 1])
            own = into[slot_offsets[first] :]
            _accumulate(flat, stride, order, pairs, begin, end, end, slot_offsets, first, last, own)
        return
    if (end - begin) * 2 < slot_offsets[n_features] // n_features:  # too few rows to pay for a spill
        for i in range(begin, end):
            base, value = np.uint64(order[i]) * stride, _pair(pairs[i])
            g, h = value >> np.int64(32), value & LOW_HALF
            for f in range(n_features):
                slot = np.uint64(slot_offsets[f]) + np.uint64(flat[base + np.uint64(f)])
                into[slot, 0] += g
                into[slot, 1] += h
        return
    for b in range(len(blocks) - 1):
        first, last = np.uint64(blocks[b]), np.uint64(blocks[b + 1])
        low, high = slot_offsets[first], slot_offsets[last]
        for start in range(begin, end, WORD_ROWS):
            _accumulate(
                flat, stride, order, pairs, start, min(start + WORD_ROWS, end), end, slot_offsets, first, last, scratch
            )
            _spill(scratch, low, high, into)


@njit(inline="always")
def _accumulate(
    flat: Symbols, stride: np.uint64, order: UInt32, pairs: Pairs, begin: int, end: int, known: int,
    slot_offsets: Int64, first: np.uint64, last: np.uint64, scratch: Int64,
) -> None:  # fmt: skip
    """Add rows `order[begin:end]` to the packed sums of features `[first, last)`, four rows at a time.

    Four independent additions in flight hide the latency of a cache's load, add and store; `order` is valid up to
    `known`, and rows are asked for before they are needed.
    """
    low = np.uint64(slot_offsets[first])
    i = begin
    while i + 4 <= end:
        if i + AHEAD + 4 <= known:
            for j in range(4):
                row = np.uint64(order[i + AHEAD + j]) * stride
                prefetch(flat, row + first)
                prefetch(flat, row + last - np.uint64(1))
        a, b = np.uint64(order[i]) * stride, np.uint64(order[i + 1]) * stride
        c, d = np.uint64(order[i + 2]) * stride, np.uint64(order[i + 3]) * stride
        value_a, value_b, value_c, value_d = (
            _pair(pairs[i]),
            _pair(pairs[i + 1]),
            _pair(pairs[i + 2]),
            _pair(pairs[i + 3]),
        )
        for f in range(first, last):
            offset = np.uint64(slot_offsets[f]) - low
            scratch[offset + np.uint64(flat[a + f])] += value_a
            scratch[offset + np.uint64(flat[b + f])] += value_b
            scratch[offset + np.uint64(flat[c + f])] += value_c
            scratch[offset + np.uint64(flat[d + f])] += value_d
        i += 4
    while i < end:
        row, value = np.uint64(order[i]) * stride, _pair(pairs[i])
        for f in range(first, last):
            scratch[np.uint64(slot_offsets[f]) - low + np.uint64(flat[row + f])] += value
        i += 1


@njit(cache=True, nogil=True)
def sparse_rows(indptr: Int64, slots: Int32, order: UInt32, pairs: Pairs, begin: int, end: int, into: Int64) -> None:
    """Add rows `order[begin:end]` of a CSR chunk, whose entries are slots, to `into`: pairs or words."""
    if pairs.ndim == 2:
        _sparse_vectors(indptr, slots, order, pairs, begin, end, into)
        return
    if into.ndim == 1:
        for i in range(begin, end):
            row, value = np.uint64(order[i]), _pair(pairs[i])
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                into[np.uint64(slots[k])] += value
        return
    for i in range(begin, end):
        row, value = np.uint64(order[i]), _pair(pairs[i])
        g, h = value >> np.int64(32), value & LOW_HALF
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            slot = np.uint64(slots[k])
            into[slot, 0] += g
            into[slot, 1] += h


@njit(inline="always")
def _target(piece_begin: int, segment_begin: int, node: int, out: Int64, edge: Int64) -> Int64:
    """A stretch that starts inside a segment may share its node with another thread: it gets the edge buffer."""
    return out[node] if piece_begin == segment_begin else edge


@njit(inline="always")
def _total(segments: Int64) -> int:
    total = 0
    for s in range(len(segments)):
        total += segments[s, 1] - segments[s, 0]
    return total


@njit(inline="always")
def _clear(node: int, position: int, first: int, last: int, total: int, out: Int64) -> None:
    """Clear a node's histogram if its segment, the one at `position`, begins in this stretch; empty ones at the end do
    in the last."""
    if first <= position and (position < last or position == total):
        out[node] = 0


@njit(cache=True, nogil=True)
def dense_segments(
    flat: Symbols, n_features: int, order: UInt32, pairs: Pairs, segments: Int64, first: int, last: int,
    slot_offsets: Int64, blocks: Int64, scratch: Int64, places: Int64, out: Int64, edge: Int64, clear: bool,
) -> int:  # fmt: skip
    """Add positions `[first, last)` of the concatenated `segments`; that of segment s is `out[places[s]]`.

    Returns the segment whose rows went to `edge`, or -1. With `clear`, `out` may hold anything before.
    """
    edge_node = -1
    position = 0
    total = _total(segments)
    for node in range(len(segments)):
        size = segments[node, 1] - segments[node, 0]
        if clear:
            _clear(places[node], position, first, last, total, out)
        low, high = max(first, position), min(last, position + size)
        if low < high:
            if low != position:
                edge_node = node
            shift = segments[node, 0] - position
            into = _target(low, position, places[node], out, edge)
            dense_rows(flat, n_features, order, pairs, low + shift, high + shift, slot_offsets, blocks, scratch, into)
        position += size
    return edge_node


@njit(cache=True, nogil=True)
def sparse_segments(
    indptr: Int64, slots: Int32, order: UInt32, pairs: Pairs, segments: Int64, first: int, last: int,
    places: Int64, out: Int64, edge: Int64, clear: bool,
) -> int:  # fmt: skip
    """`dense_segments` for a CSR chunk."""
    edge_node = -1
    position = 0
    total = _total(segments)
    for node in range(len(segments)):
        size = segments[node, 1] - segments[node, 0]
        if clear:
            _clear(places[node], position, first, last, total, out)
        low, high = max(first, position), min(last, position + size)
        if low < high:
            if low != position:
                edge_node = node
            shift = segments[node, 0] - position
            into = _target(low, position, places[node], out, edge)
            sparse_rows(indptr, slots, order, pairs, low + shift, high + shift, into)
        position += size
    return edge_node
