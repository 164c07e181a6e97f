// Counting residuals by the bits of their sortable keys: one round of a distributed radix selection.
//
// A block counts the rows of one tile in shared memory, with native 32-bit atomics: a weight is at most 2**20, so the 2**11
// rows of a tile stay within an unsigned 32-bit sum.
//
// variants: DIGITS=2048
// budget: count_residuals registers=48 shared=4*DIGITS
#include "keys.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 2048
#endif
#ifndef DIGITS
#define DIGITS 2048
#endif

// `order` : rows by position, or null where position and row are the same. `weight` : float, or null for ones.
// `counts` : shape (leaves, 2**next_bits).
extern "C" __global__ void __launch_bounds__(THREADS) count_residuals(
    const i64* bounds, const i32* leaves, const i32* starts, i32 n, const u32* order, const float* label,
    const float* margin, i64 margin_stride, const float* weight, double weight_scale, const u32* prefixes,
    i32 known_bits, i32 next_bits, u64* counts) {
    __shared__ u32 own[DIGITS];
    const Tile tile = find_tile(blockIdx.x, bounds, leaves, starts, n, TILE_ROWS);
    if (tile.segment < 0) return;
    const i32 n_digits = 1 << next_bits;
    for (i32 digit = threadIdx.x; digit < n_digits; digit += THREADS) own[digit] = 0;
    __syncthreads();
    const u32 prefix = prefixes[tile.segment];
    const i32 shift = 32 - known_bits - next_bits;
    for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += THREADS) {
        const i64 row = order ? order[i] : i;
        const u32 key = key_of(label[row] - margin[row * margin_stride]);
        if (known_bits > 0 && key >> (32 - known_bits) != prefix) continue;
        const u32 amount = weight ? (u32)rint((double)weight[row] * weight_scale) : 1u;
        atomicAdd(&own[key >> shift & (n_digits - 1u)], amount);
    }
    __syncthreads();
    u64* into = counts + (i64)tile.segment * n_digits;
    for (i32 digit = threadIdx.x; digit < n_digits; digit += THREADS)
        if (own[digit]) atomicAdd(&into[digit], (u64)own[digit]);
}
