// Packed symbols become machine integers: rows of a dense chunk, or the entries of a CSR chunk.
//
// Symbols are written in order, so that neighbouring threads write neighbouring places and read the same few words.
// Readers that place symbols elsewhere call `read_symbol` of bits.cuh themselves.
//
// variants: SYMBOL_BYTES=1,2
// budget: unpack_rows registers=40 shared=0
// budget: unpack_stream registers=40 shared=0
#include "bits.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif

#if SYMBOL_BYTES == 1
using Symbol = u8;
#else
using Symbol = u16;
#endif

// symbols[row * n_features + f] of all rows; a row takes `stride_bytes`, and feature f of it the bits from offsets[f]
// up to offsets[f + 1]. A block takes `tile_rows` rows at a time; tile_rows * n_features must fit 32 bits.
extern "C" __global__ void __launch_bounds__(THREADS) unpack_rows(
    const u32* __restrict__ words, const u32* __restrict__ offsets, i32 n_features, i64 stride_bytes, i64 n_rows,
    i32 tile_rows, Symbol* __restrict__ symbols) {
    for (i64 start = static_cast<i64>(blockIdx.x) * tile_rows; start < n_rows;
         start += static_cast<i64>(gridDim.x) * tile_rows) {
        const u32 n = static_cast<u32>(n_rows - start < tile_rows ? n_rows - start : tile_rows) * n_features;
        for (u32 i = threadIdx.x; i < n; i += THREADS) {
            const u32 row = i / n_features, f = i % n_features;
            const u64 bit = static_cast<u64>(start + row) * stride_bytes * 8 + offsets[f];
            symbols[start * n_features + i] = static_cast<Symbol>(read_symbol(words, bit, offsets[f + 1] - offsets[f]));
        }
    }
}

// bins[i] of `n` symbols of `width` bits, one behind the other.
extern "C" __global__ void __launch_bounds__(THREADS) unpack_stream(
    const u32* __restrict__ words, i32 width, i64 n, u32* __restrict__ bins) {
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS)
        bins[i] = read_symbol(words, static_cast<u64>(i) * width, width);
}
