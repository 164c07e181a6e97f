// Which way a split sends a row, in whichever encoding the chunk has.
//
// SYMBOL_BYTES 1 or 2: a column-major copy, of which (row, feature) is `symbols[row * row_stride + feature *
// feature_stride]`, or rows by feature group, where pairs of numbers in `indptr` say of each feature where its first symbol
// lies and how far it is to the next row's. The symbol `n_bins[feature]` is missing.
// SYMBOL_BYTES 0: CSR rows of histogram slots in increasing order, from `symbols[indptr[row]]` on; a row without a slot of
// the feature lacks it. `SYMBOLS` passes on what kernels take for either.
#pragma once

#include "types.cuh"

#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif

#if SYMBOL_BYTES == 0
using Symbol = i32;
#elif SYMBOL_BYTES == 1
using Symbol = u8;
#else
using Symbol = u16;
#endif

#define SYMBOLS symbols, indptr, row_stride, feature_stride, n_bins, slot_offsets

static __device__ __forceinline__ bool is_left(i32 symbol, i32 missing, i32 last_left, bool missing_left) {
    return symbol == missing ? missing_left : symbol <= last_left;
}

#if SYMBOL_BYTES
static __device__ __forceinline__ i32 symbol_of(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, u32 row, i32 feature) {
    return symbols[indptr ? indptr[2 * feature] + row * indptr[2 * feature + 1]
                          : row * row_stride + feature * feature_stride];
}
#endif

static __device__ __forceinline__ bool goes_left(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, u32 row, i32 feature, i32 last_left, bool missing_left) {
#if SYMBOL_BYTES == 0
    const i32 low = static_cast<i32>(slot_offsets[feature]), high = static_cast<i32>(slot_offsets[feature + 1]);
    const i64 end = indptr[row + 1ll];
    i64 left = indptr[row], right = end;
    while (left < right) {  // the first slot from `low` on
        const i64 middle = (left + right) / 2;
        if (symbols[middle] < low) left = middle + 1;
        else right = middle;
    }
    return left < end && symbols[left] < high ? symbols[left] - low <= last_left : missing_left;
#else
    return is_left(symbol_of(SYMBOLS, row, feature), n_bins[feature], last_left, missing_left);
#endif
}
