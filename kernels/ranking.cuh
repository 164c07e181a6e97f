// Rows of a query in the order of their scores, from the highest one on; of equal scores the first row comes first.
#pragma once

#include "keys.cuh"

#define TILE 2048  // rows of a large query that a block sorts

// Keys of increasing order for decreasing scores; of equal scores the first row comes first.
static __device__ __forceinline__ u64 key_of_row(float score, u32 row) {
    return static_cast<u64>(~key_of(score)) << 32 | row;
}

// Scores that are not finite are the first ones or the last ones of a query.
static __device__ __forceinline__ bool is_finite_key(u64 key) {
    const float score = value_of(~static_cast<u32>(key >> 32));
    return score - score == 0;
}

// Sorts as many keys in shared memory as a power of two by bitonic merges; called by all threads of the block.
static __device__ __forceinline__ void sort_keys(u64* keys, i32 size) {
    for (i32 width = 2; width <= size; width *= 2) {
        for (i32 step = width / 2; step > 0; step /= 2) {
            for (i32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const i32 low = 2 * i - (i & (step - 1)), high = low + step;
                const u64 a = keys[low], b = keys[high];
                if ((a > b) == ((low & width) == 0)) keys[low] = b, keys[high] = a;
            }
            __syncthreads();
        }
    }
}

static __device__ __forceinline__ i32 power_from(i32 n) { return n <= 2 ? n : 1 << (32 - __clz(n - 1)); }

// Rows of a large query at places that follow one another.
struct Tile {
    i64 query;
    i64 number;  // of the query among the large ones
    i64 base;    // of its first place
    i64 first;   // its own first place within the query, a multiple of TILE
    i64 n;       // rows of the query

    __device__ __forceinline__ i32 size() const { return static_cast<i32>(min(n - first, static_cast<i64>(TILE))); }
};
