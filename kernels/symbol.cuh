// Which way a split sends a row, in whichever encoding the chunk has.
//
// SYMBOL_BYTES 1 or 2: a column-major copy, of which (row, feature) is `symbols[row * row_stride + feature *
// feature_stride]`, or rows by feature group, where pairs of numbers in `indptr` say of each feature where its first symbol
// lies and how far it is to the next row's. The symbol `n_bins[feature]` is missing.
// SYMBOL_BYTES 0: CSR rows of histogram slots in increasing order, from `symbols[indptr[row]]` on; a row without a slot of
// the feature lacks it. `row_stride` is the number of all slots, of which a row has some.
// `SYMBOLS` passes on what kernels take for either.
#pragma once

#include "bin_lists.cuh"

#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif

#ifndef LISTS
#define LISTS 1  // 0 where no split has a list of bins
#endif

#if SYMBOL_BYTES == 0
using Symbol = i32;
#elif SYMBOL_BYTES == 1
using Symbol = u8;
#else
using Symbol = u16;
#endif

#define SYMBOL_PARAMETERS const Symbol *symbols, const i64 *indptr, i64 row_stride, i64 feature_stride, \
    const i32 *n_bins, const i64 *slot_offsets
#define SYMBOLS symbols, indptr, row_stride, feature_stride, n_bins, slot_offsets

// Splits travel as one array of int32, shape (6, n), a row for each of these (`RowSplits.columns` of
// `daskboost/devices/row_order.py`).
#define NODE 0
#define LEFT 1
#define RIGHT 2
#define FEATURE 3
#define SPLIT_BIN 4
#define DEFAULT_LEFT 5

// Where a split sends rows: left by a bin of at most `last_left`, or as `list` says, or by `missing_left` for want of one.
struct Predicate {
    i32 feature;
    i32 last_left;
    bool missing_left;
    const i32* list;

    __device__ __forceinline__ bool is_set() const { return LISTS && last_left < 0; }
    __device__ __forceinline__ bool set_has(i32 bin) const { return is_listed(list, bin) == (last_left == ALL_BUT); }
    __device__ __forceinline__ bool has_bin(i32 bin) const { return is_set() ? set_has(bin) : bin <= last_left; }
    __device__ __forceinline__ bool has(i32 symbol, i32 missing) const {
        return symbol == missing ? missing_left : has_bin(symbol);
    }
};

// The predicate of split `s` of `n`.
static __device__ __forceinline__ Predicate predicate_of(const i32* splits, i32 n, i32 s, SETS_PARAMETERS) {
    return {splits[FEATURE * n + s], splits[SPLIT_BIN * n + s], splits[DEFAULT_LEFT * n + s] != 0,
            list_of(sets, set_width, splits[NODE * n + s])};
}

#if SYMBOL_BYTES
static __device__ __forceinline__ i32 symbol_of(SYMBOL_PARAMETERS, u32 row, i32 feature) {
    return symbols[indptr ? indptr[2 * feature] + row * indptr[2 * feature + 1]
                          : row * row_stride + feature * feature_stride];
}
#else
// The first slot from `low` on of each of COUNT rows, or NO_SLOT.
//
// Rows lie anywhere, and each sector of 32 bytes that a search meets is a read of memory for which the next one waits. So a
// binary search begins at a guess, `share` of the row's slots from its first, and goes away from there in steps that double
// until they have passed the place: of 50 slots at random it meets 1.4 sectors instead of 2.9. No guess takes it more than
// twice the steps. The searches of all rows go on together, so that their loads are under way together. `share` becomes
// what these rows have before `low`, which is right for further ones wherever features are frequent or rare.
constexpr i32 NO_SLOT = 0x7FFFFFFF;

template <i32 COUNT>
static __device__ __forceinline__ void find_slots(const Symbol* symbols, const i64* indptr, const u32 (&rows)[COUNT],
                                                  i32 low, float* share, i32 (&found)[COUNT]) {
    const Symbol* own[COUNT];
    i32 size[COUNT], left[COUNT], right[COUNT], at[COUNT];
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) {
        const i64 begin = indptr[rows[k]];
        size[k] = static_cast<i32>(indptr[rows[k] + 1ll] - begin);
        own[k] = symbols + begin;
        left[k] = 0, right[k] = size[k];
        at[k] = min(static_cast<i32>(*share * static_cast<float>(size[k])), size[k] - 1);
    }
    bool searches = true;
    for (u32 reach = 0; searches; reach = reach << 1 | 1u) {
        i32 slot[COUNT];
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k) slot[k] = left[k] < right[k] ? own[k][at[k]] : 0;
        searches = false;
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k) {
            if (left[k] >= right[k]) continue;
            const bool is_before = slot[k] < low;
            if (is_before) left[k] = at[k] + 1;
            else right[k] = at[k];
            const i32 step = static_cast<i32>(min(reach, static_cast<u32>(right[k] - left[k]) / 2));
            at[k] = is_before ? left[k] + step : right[k] - 1 - step;
            searches = searches || left[k] < right[k];
        }
    }
    float before = 0, all = 0;
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) {
        found[k] = left[k] < size[k] ? own[k][left[k]] : NO_SLOT;
        before += static_cast<float>(left[k]);
        all += static_cast<float>(size[k]);
    }
    if (all > 0) *share = __fdividef(before, all);
}
#endif

// The first guess of `find_slots`, right where each of all slots is as frequent.
static __device__ __forceinline__ float share_before(SYMBOL_PARAMETERS, i32 feature) {
#if SYMBOL_BYTES == 0
    return __fdividef(static_cast<float>(slot_offsets[feature]), static_cast<float>(row_stride));
#else
    return 0;
#endif
}

// Whether each of COUNT rows goes left; their loads are under way together. `share` : `share_before`, then what it became.
// `split` : a `Predicate`, or what knows its set otherwise.
template <i32 COUNT, class Split>
static __device__ __forceinline__ void go_left(SYMBOL_PARAMETERS, const u32 (&rows)[COUNT], const Split& split,
                                               float* share, bool (&left)[COUNT]) {
    const i32 feature = split.feature;
#if SYMBOL_BYTES == 0
    const i32 low = static_cast<i32>(slot_offsets[feature]), high = static_cast<i32>(slot_offsets[feature + 1]);
    i32 slots[COUNT];
    find_slots(symbols, indptr, rows, low, share, slots);
    if (split.is_set()) {  // of all rows, so that those by thresholds wait for no list
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k)
            left[k] = slots[k] < high ? split.set_has(slots[k] - low) : split.missing_left;
        return;
    }
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) left[k] = slots[k] < high ? slots[k] - low <= split.last_left : split.missing_left;
#else
    const i32 missing = n_bins[feature];
    i32 bins[COUNT];
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) bins[k] = symbol_of(SYMBOLS, rows[k], feature);
    if (split.is_set()) {  // of all rows, so that those by thresholds wait for no list
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k) left[k] = bins[k] == missing ? split.missing_left : split.set_has(bins[k]);
        return;
    }
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) left[k] = bins[k] == missing ? split.missing_left : bins[k] <= split.last_left;
#endif
}

static __device__ __forceinline__ bool goes_left(SYMBOL_PARAMETERS, u32 row, const Predicate& split) {
    const u32 rows[1] = {row};
    bool left[1];
    float share = share_before(SYMBOLS, split.feature);
    go_left(SYMBOLS, rows, split, &share, left);
    return left[0];
}
