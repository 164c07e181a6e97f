// The position of a row's feature in models of leaves, in whichever encoding the chunk has (symbol.cuh).
#pragma once

#include "leaf_models.cuh"
#include "symbol.cuh"

static __device__ __forceinline__ i32 position_of(SYMBOL_PARAMETERS, u32 row, i32 feature) {
    const i32 missing = n_bins[feature];
#if SYMBOL_BYTES == 0
    const u32 rows[1] = {row};
    const i32 low = static_cast<i32>(slot_offsets[feature]), high = static_cast<i32>(slot_offsets[feature + 1]);
    i32 slots[1];
    float share = share_before(SYMBOLS, feature);
    find_slots(symbols, indptr, rows, low, &share, slots);
    const i32 symbol = slots[0] < high ? slots[0] - low : missing;
#else
    const i32 symbol = symbol_of(SYMBOLS, row, feature);
#endif
    return symbol == missing ? 0 : position_of_bin(symbol, missing);
}
