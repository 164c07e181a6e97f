// Values become symbols: the bin of a value is the number of its feature's cut points that are <= the value.
//
// The search is that of `daskboost/devices/cpu/quantize.py`: branchless, in a table of cut points padded with NaN to
// 2**depth - 1 entries. Tables of a block's columns lie in shared memory where they fit: all other reading and writing of
// a value is 5 bytes, its 8 look-ups are 32. A thread takes four rows at a time, whose chains of look-ups overlap.
//
// TABLES 1: in shared memory; 0: read where they are.
//
// variants: SYMBOL_BYTES=1,2 TABLES=0,1
// usual: SYMBOL_BYTES=1 TABLES=1
// budget: quantize_rows registers=56 shared=0
// budget: quantize_entries registers=40 shared=0
#include "matrix.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif
#ifndef TABLES
#define TABLES 1
#endif

#if SYMBOL_BYTES == 1
using Symbol = u8;
#else
using Symbol = u16;
#endif

constexpr i32 AT_ONCE = 4;

// Column c's symbol of a row lies at places[2 * c] + (first_row + row) * places[2 * c + 1]. An absent value becomes
// missing_symbols[c], and where that is negative, `unrepresentable` becomes the column. `features` is null.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_rows(
    MATRIX_PARAMETERS, const float* __restrict__ tables, const i64* table_offsets, const u8* depths,
    const i32* missing_symbols, Symbol* __restrict__ symbols, const i64* places, i64 first_row, i32* unrepresentable) {
    const Walk walk = walk_of<THREADS>(n_rows, n_series, columns, tile_rows);
#if TABLES
    DYNAMIC_SHARED(float, own);
    const i32 n_groups = (n_series + columns - 1) / columns;
    const i32 first = static_cast<i32>(blockIdx.x % n_groups) * columns;
    const i32 end = first + columns < n_series ? first + columns : n_series;
    const i64 begin = table_offsets[first], n_entries = table_offsets[end] - begin;
    for (i64 i = threadIdx.x; i < n_entries; i += THREADS) own[i] = tables[begin + i];
    __syncthreads();
    if (walk.series >= n_series) return;
    const float* const table = own + (table_offsets[walk.series] - begin) - 1;
#else
    if (walk.series >= n_series) return;
    const float* const table = tables + table_offsets[walk.series] - 1;
#endif
    const i32 top = (1 << depths[walk.series]) >> 1, missing_symbol = missing_symbols[walk.series];
    const float* const column = values + walk.series * column_stride;
    const i64 symbol_stride = places[2 * walk.series + 1];
    Symbol* const out = symbols + places[2 * walk.series] + first_row * symbol_stride;
    for (i64 row = walk.row; row < walk.end; row += AT_ONCE * walk.step) {
        float x[AT_ONCE];
        i32 found[AT_ONCE];
#pragma unroll
        for (i32 i = 0; i < AT_ONCE; ++i) {
            const i64 at = row + i * walk.step;
            x[i] = at < walk.end ? column[at * row_stride] : 0.0f;
            found[i] = 0;
        }
        for (i32 step = top; step > 0; step >>= 1) {
#pragma unroll
            for (i32 i = 0; i < AT_ONCE; ++i) found[i] += table[found[i] + step] <= x[i] ? step : 0;
        }
#pragma unroll
        for (i32 i = 0; i < AT_ONCE; ++i) {
            const i64 at = row + i * walk.step;
            if (at >= walk.end) break;
            if (x[i] != x[i] || x[i] == missing) {
                if (missing_symbol < 0) atomicMax(unrepresentable, walk.series);
                found[i] = missing_symbol;
            }
            out[at * symbol_stride] = static_cast<Symbol>(found[i]);
        }
    }
}

// Global bins of CSR entries, all of them present.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_entries(
    const i32* __restrict__ indices, const float* __restrict__ values, i64 n, const float* __restrict__ tables,
    const i64* table_offsets, const u8* depths, const i32* bin_offsets, u32* __restrict__ bins) {
    for (i64 entry = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; entry < n;
         entry += static_cast<i64>(gridDim.x) * THREADS) {
        const i32 feature = indices[entry];
        const float* const table = tables + table_offsets[feature] - 1;
        const float x = values[entry];
        i32 found = 0;
        for (i32 step = (1 << depths[feature]) >> 1; step > 0; step >>= 1)
            found += table[found + step] <= x ? step : 0;
        bins[entry] = static_cast<u32>(bin_offsets[feature] + found);
    }
}
