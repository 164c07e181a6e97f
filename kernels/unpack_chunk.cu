// A packed chunk becomes what training views read: planes of symbols (symbols.py), or row pointers and histogram slots. A
// launch takes one of the chunks whose rows a view joins, one after the other.
//
// Rows come packed over the bus, which is 80 times as slow as the device's memory: unpacking reads and writes every byte
// once, and takes no time that could be seen. A thread makes a unit, the symbols that fill 4 bytes of a plane's row (or
// one of 2 bytes); neighbouring threads make the units of a row, so that they read neighbouring words and fill sectors.
//
// variants: SYMBOL_BYTES=1,2
// budget: unpack_planes registers=48 shared=0
// budget: unpack_slots registers=40 shared=0
#include "bits.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif

#if SYMBOL_BYTES == 1
using Unit = u32;
constexpr i32 SYMBOLS = 4;
#else
using Unit = u16;
constexpr i32 SYMBOLS = 1;
#endif

// Rows of `stride_bytes`, which become those of the planes from `first_row` on. `columns` : of each symbol of a unit, its
// first bit in the row and its width, 0 where there is none. `places` : of each unit, its place in the planes of row 0, in
// units, and the step to the next row's. A block takes `tile_rows` rows at a time; tile_rows * n_units must fit 32 bits.
extern "C" __global__ void __launch_bounds__(THREADS) unpack_planes(
    const u32* __restrict__ words, const u32* __restrict__ columns, const i64* __restrict__ places, i32 n_units,
    i64 stride_bytes, i64 first_row, i64 n_rows, i32 tile_rows, Unit* __restrict__ planes) {
    for (i64 start = static_cast<i64>(blockIdx.x) * tile_rows; start < n_rows;
         start += static_cast<i64>(gridDim.x) * tile_rows) {
        const u32 n = static_cast<u32>(n_rows - start < tile_rows ? n_rows - start : tile_rows) * n_units;
        for (u32 i = threadIdx.x; i < n; i += THREADS) {
            const u32 unit = i % n_units;
            const i64 row = start + i / n_units;
            const u64 first_bit = static_cast<u64>(row) * stride_bytes * 8;
            u32 made = 0;
#pragma unroll
            for (i32 k = 0; k < SYMBOLS; ++k) {
                const u32 offset = columns[2 * (unit * SYMBOLS + k)], width = columns[2 * (unit * SYMBOLS + k) + 1];
                if (width) made |= read_symbol(words, first_bit + offset, width) << (8 * k);
            }
            planes[places[2 * unit] + (first_row + row) * places[2 * unit + 1]] = static_cast<Unit>(made);
        }
    }
}

// slots[i] of `n_entries` global bins of `width` bits, one behind the other, and indptr[r] of `n_rows` + 1 row pointers,
// all of them larger by `first_entry`.
extern "C" __global__ void __launch_bounds__(THREADS) unpack_slots(
    const u32* __restrict__ words, i32 width, i64 n_entries, const i32* __restrict__ slot_of_bin,
    const u32* __restrict__ pointers, i64 n_rows, i64 first_entry, i32* __restrict__ slots, i64* __restrict__ indptr) {
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, step = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = first; i < n_entries; i += step)
        slots[i] = slot_of_bin[read_symbol(words, static_cast<u64>(i) * width, width)];
    for (i64 row = first; row <= n_rows; row += step) indptr[row] = first_entry + pointers[row];
}
