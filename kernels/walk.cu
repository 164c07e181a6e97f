// Adds a tree's leaf values to the margins of rows, walking it by bins; one thread per row.
//
// variants: SYMBOL_BYTES=0,1,2
// budget: walk registers=40 shared=0
#include "symbol.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `skipped` : one byte per row, not zero where a row is left alone, or null to walk all `n`. `margin` : `margin_stride`
// between rows.
extern "C" __global__ void __launch_bounds__(THREADS) walk(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, const i32* left_child, const i32* right_child, const i32* split_feature, const i32* split_bin,
    const u8* default_left, const float* value, const u8* skipped, i64 n, float* margin, i64 margin_stride) {
    const i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= n || (skipped && skipped[row])) return;
    i32 node = 0;
    while (left_child[node] >= 0) {
        const i32 feature = split_feature[node], last_left = split_bin[node];
        const bool left = goes_left(SYMBOLS, static_cast<u32>(row), feature, last_left, default_left[node] != 0);
        node = left ? left_child[node] : right_child[node];
    }
    margin[row * margin_stride] += value[node];
}
