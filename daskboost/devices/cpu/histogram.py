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
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.addressed import array_at
from daskboost.devices.cpu.threads import prefetch
from daskboost.devices.row_order import RowOrder, Stretch
from daskboost.dtypes import Int32, Int64, Pairs, Symbols

# A chunk's bins as compiled row loops read them, in either encoding.

class DenseBins(NamedTuple):
    """A matrix of symbols; that of (row, feature) is `symbols[row * row_stride + feature * column_stride]`."""

    symbols: Symbols
    """uint8 or uint16, shape (rows * features,); the bin, or the feature's number of bins for a missing value."""
    row_stride: int
    column_stride: int
    offsets: Int64
    """First slot of each feature in a histogram, shape (features + 1,)."""
    n_bins: Int32
    """Per feature, without the missing slot."""
    blocks: Int64
    """Bounds of ranges of features whose slots fit a scratch array."""
    scratch_entries: int
    """Sums in the largest of these ranges."""


class SparseBins(NamedTuple):
    """CSR rows whose entries are histogram slots, in increasing order; what is missing has no entry."""

    indptr: Int64
    slots: Int32
    offsets: Int64
    """First slot of each feature, shape (features + 1,)."""


def bins_at(common: DenseBins | SparseBins, place: Int64, n_rows: int) -> DenseBins | SparseBins:
    """Return a chunk's bins: what all chunks have in `common`, with symbols, or row pointers and slots, at a place.

    `place` : int64, shape (4,): the address of symbols, 0 and their strides of rows and of columns; or the addresses of
    row pointers and of slots.
    """
    raise NotImplementedError("for compiled code only")


@overload(bins_at, inline="always", strict=False)
def _typed_bins_at(common: types.NamedTuple, place: types.Array, n_rows: types.Integer) -> Callable[..., object]:
    if common.instance_class is DenseBins:
        return lambda common, place, n_rows: DenseBins(
            array_at(place[0], common.symbols, n_rows * len(common.n_bins)), place[2], place[3], common.offsets,
            common.n_bins, common.blocks, common.scratch_entries,
        )  # fmt: skip
    return lambda common, place, n_rows: SparseBins(
        array_at(place[0], common.indptr, n_rows + 1), array_at(place[1], common.slots, np.int64(1) << np.int64(40)),
        common.offsets,
    )  # fmt: skip


@njit(inline="always")
def sparse_symbol(indptr: Int64, slots: Int32, row: np.uint64, low: int, high: int) -> int:
    """Return the bin of the feature that owns slots `[low, high)` in a CSR row, or -1 if the row lacks it."""
    left, end = indptr[row], indptr[row + np.uint64(1)]
    right = end
    while left < right:
        middle = (left + right) >> 1
        if slots[middle] < low:
            left = middle + 1
        else:
            right = middle
    if left < end and slots[left] < high:
        return int(slots[left] - low)
    return -1


WORD_ROWS = 65_536
"""Rows whose sums are sure to fit a word's halves: 2**16 * 2**15 = 2**31, with sign for g and without for h."""
LOW_HALF = np.int64(0xFFFFFFFF)
"""Mask of a word's lower half, the sum of h; the sum of g is above it."""
AHEAD = 16
"""Rows between asking for a row and using it; 8 to 16 were fastest, 32 slower."""


class HistogramSums(NamedTuple):
    """Where the sums of a stretch's rows go; all int64, arrays of words or of pairs."""

    histograms: Int64
    """Shape (nodes, entries), or (nodes, entries, 2); may hold anything before where they are cleared."""
    places: Int64
    """Which of the histograms is each segment's."""
    edge: Int64
    """Cleared histogram for the rows of a segment that begins before the stretch, whose other rows another thread adds
    meanwhile; without entries where a stretch begins with a segment."""
    clear: bool
    """Whether histograms are cleared before rows are added."""


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
def dense_vectors(bins: DenseBins, rows: RowOrder, begin: int, end: int, scratch: Int64, into: Int64) -> None:
    """`dense_rows` of several outputs, whose sums lie side by side in each slot; behind what is spilled, `scratch` has
    an entry for each."""
    flat, stride, offsets, blocks = bins.symbols, np.uint64(bins.row_stride), bins.offsets, bins.blocks
    order, pairs = rows.order, rows.pairs
    width = pairs.shape[1]
    words, step = scratch[len(scratch) - width :], np.uint64(width)
    n_features = len(bins.n_bins)
    if into.ndim == 2 and (end - begin) * 2 < offsets[n_features] // n_features:  # too few rows to pay for a spill
        for i in range(begin, end):
            row = np.uint64(order[i])
            _load(pairs, row, words)
            for f in range(n_features):
                slot = np.uint64(offsets[f]) + np.uint64(flat[row * stride + np.uint64(f)])
                _add_pairs(words, slot * step, into)
        return
    for b in range(len(blocks) - 1):
        low, high = offsets[blocks[b]], offsets[blocks[b + 1]]
        for start in range(begin, end, WORD_ROWS):
            target = into[low * width : high * width] if into.ndim == 1 else scratch
            for i in range(start, min(start + WORD_ROWS, end)):
                row = np.uint64(order[i])
                if i + AHEAD < end:
                    prefetch(flat, np.uint64(order[i + AHEAD]) * stride + np.uint64(blocks[b]))
                _load(pairs, row, words)
                for f in range(blocks[b], blocks[b + 1]):
                    slot = np.uint64(offsets[f] - low) + np.uint64(flat[row * stride + np.uint64(f)])
                    _add_words(words, slot * step, target)
            if into.ndim == 2:
                _spill(scratch, low * width, high * width, into)


@njit(nogil=True)
def sparse_vectors(bins: SparseBins, rows: RowOrder, begin: int, end: int, scratch: Int64, into: Int64) -> None:
    """`sparse_rows` of several outputs, for each of which `scratch` ends with an entry."""
    indptr, slots, order, pairs = bins.indptr, bins.slots, rows.order, rows.pairs
    words, step = scratch[len(scratch) - pairs.shape[1] :], np.uint64(pairs.shape[1])
    for i in range(begin, end):
        row = np.uint64(order[i])
        _load(pairs, row, words)
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            at = np.uint64(slots[k]) * step
            if into.ndim == 1:
                _add_words(words, at, into)
            else:
                _add_pairs(words, at, into)


@njit(nogil=True)
def dense_rows(bins: DenseBins, rows: RowOrder, begin: int, end: int, scratch: Int64, into: Int64) -> None:
    """Add rows `[begin, end)` in node order of a row-major chunk to `into`: pairs or words."""
    flat, stride, offsets, blocks = bins.symbols, np.uint64(bins.row_stride), bins.offsets, bins.blocks
    order, pairs = rows.order, rows.pairs
    if into.ndim == 1:
        for b in range(len(blocks) - 1):
            own = into[offsets[blocks[b]] :]
            _accumulate(bins, rows, (begin, end), end, (blocks[b], blocks[b + 1]), own)
        return
    n_features = len(bins.n_bins)
    if (end - begin) * 2 < offsets[n_features] // n_features:  # too few rows to pay for a spill
        for i in range(begin, end):
            base, value = np.uint64(order[i]) * stride, _pair(pairs[i])
            g, h = value >> np.int64(32), value & LOW_HALF
            for f in range(n_features):
                slot = np.uint64(offsets[f]) + np.uint64(flat[base + np.uint64(f)])
                into[slot, 0] += g
                into[slot, 1] += h
        return
    for b in range(len(blocks) - 1):
        low, high = offsets[blocks[b]], offsets[blocks[b + 1]]
        for start in range(begin, end, WORD_ROWS):
            positions = (start, min(start + WORD_ROWS, end))
            _accumulate(bins, rows, positions, end, (blocks[b], blocks[b + 1]), scratch)
            _spill(scratch, low, high, into)


@njit(inline="always")
def _accumulate(
    bins: DenseBins, rows: RowOrder, positions: tuple[int, int], known: int, features: tuple[int, int], scratch: Int64
) -> None:
    """Add the rows at `[positions)` to the packed sums of the features in `[features)`, four rows at a time.

    Four independent additions in flight hide the latency of a cache's load, add and store; the order is valid up to
    `known`, and rows are asked for before they are needed.
    """
    flat, stride, offsets = bins.symbols, np.uint64(bins.row_stride), bins.offsets
    order, pairs = rows.order, rows.pairs
    first, last = np.uint64(features[0]), np.uint64(features[1])
    low = np.uint64(offsets[first])
    i, end = positions
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
            offset = np.uint64(offsets[f]) - low
            scratch[offset + np.uint64(flat[a + f])] += value_a
            scratch[offset + np.uint64(flat[b + f])] += value_b
            scratch[offset + np.uint64(flat[c + f])] += value_c
            scratch[offset + np.uint64(flat[d + f])] += value_d
        i += 4
    while i < end:
        row, value = np.uint64(order[i]) * stride, _pair(pairs[i])
        for f in range(first, last):
            scratch[np.uint64(offsets[f]) - low + np.uint64(flat[row + f])] += value
        i += 1


@njit(nogil=True)
def sparse_rows(bins: SparseBins, rows: RowOrder, begin: int, end: int, into: Int64) -> None:
    """Add rows `[begin, end)` in node order of a CSR chunk to `into`: pairs or words."""
    indptr, slots, order, pairs = bins.indptr, bins.slots, rows.order, rows.pairs
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


def _scratch(bins: DenseBins | SparseBins, into: Int64, pairs: Pairs) -> Int64:
    """Return cleared room for the packed sums of a block of features, where rows are spilled from there, and for those
    of a row's outputs, where there are several."""
    raise NotImplementedError("for compiled code only")


@overload(_scratch, inline="always", strict=False)
def _typed_scratch(
    bins: types.NamedTuple, into: types.Array, pairs: types.Array
) -> Callable[[DenseBins, Int64, Pairs], Int64]:
    packs_first = bins.instance_class is DenseBins and into.ndim > 2
    if packs_first and pairs.ndim > 1:
        return lambda bins, into, pairs: np.zeros(bins.scratch_entries + pairs.shape[1], np.int64)
    if packs_first:
        return lambda bins, into, pairs: np.zeros(bins.scratch_entries, np.int64)
    if pairs.ndim > 1:
        return lambda bins, into, pairs: np.zeros(pairs.shape[1], np.int64)
    return lambda bins, into, pairs: np.zeros(0, np.int64)


def _add_rows(
    bins: DenseBins | SparseBins, rows: RowOrder, begin: int, end: int, scratch: Int64, into: Int64
) -> None:
    """Add rows `[begin, end)` in node order to `into`, whatever their encoding and however many outputs."""
    raise NotImplementedError("for compiled code only")


@overload(_add_rows, inline="always", strict=False)
def _typed_add_rows(
    bins: types.NamedTuple, rows: types.NamedTuple, begin: types.Type, end: types.Type, scratch: types.Array,
    into: types.Array,
) -> Callable[..., None]:  # fmt: skip
    several = rows[rows.fields.index("pairs")].ndim == 2
    if bins.instance_class is DenseBins:
        if several:
            return lambda bins, rows, begin, end, scratch, into: dense_vectors(bins, rows, begin, end, scratch, into)
        return lambda bins, rows, begin, end, scratch, into: dense_rows(bins, rows, begin, end, scratch, into)
    if several:
        return lambda bins, rows, begin, end, scratch, into: sparse_vectors(bins, rows, begin, end, scratch, into)
    return lambda bins, rows, begin, end, scratch, into: sparse_rows(bins, rows, begin, end, into)


@njit(inline="always")
def _total(segments: Int64) -> int:
    total = 0
    for s in range(len(segments)):
        total += segments[s, 1] - segments[s, 0]
    return total


@njit(cache=True, nogil=True)
def add_segments(bins: DenseBins | SparseBins, rows: RowOrder, stretch: Stretch, sums: HistogramSums) -> int:
    """Add a stretch of the rows to the histograms of their nodes.

    Returns the segment whose rows went to the edge buffer, or -1.
    """
    segments, first, last, out = stretch.segments, stretch.first, stretch.last, sums.histograms
    edge_node = -1
    position = 0
    total = _total(segments)
    scratch = _scratch(bins, out, rows.pairs)
    for node in range(len(segments)):
        begin, end = segments[node, 0], segments[node, 1]
        into = out[sums.places[node]]
        # A node is cleared where its segment begins; those of empty segments at the end, in the last stretch.
        if sums.clear and first <= position and (position < last or position == total):
            into[:] = 0
        low, high = max(first, position), min(last, position + end - begin)
        if low < high:
            shift = begin - position
            if low != position:  # another thread may add to this node
                edge_node = node
                into = sums.edge
            _add_rows(bins, rows, low + shift, high + shift, scratch, into)
        position += end - begin
    return edge_node
