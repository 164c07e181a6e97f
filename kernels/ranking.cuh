// Rows of a query in the order of their scores, from the highest one on; of equal scores the first row comes first.
#pragma once

#include "block.cuh"
#include "keys.cuh"

#define TILE 2048  // rows of a large query that a block sorts

// Keys of increasing order for decreasing scores; of equal scores the first row comes first.
static __device__ __forceinline__ u64 key_of_row(float score, u32 row) {
    return static_cast<u64>(~key_of(score)) << 32 | row;
}

static __device__ __forceinline__ float score_of(u64 key) { return value_of(~static_cast<u32>(key >> 32)); }

// Scores that are not finite are the first ones or the last ones of a query.
static __device__ __forceinline__ bool is_finite_key(u64 key) { return score_of(key) - score_of(key) == 0; }

constexpr i32 LANES = 32;
constexpr i32 LANE_KEYS = 4;                  // that a lane sorts in registers
constexpr i32 WARP_KEYS = LANES * LANE_KEYS;  // of a block with a thread for each 4 keys

// Leaves the lower one of two keys first, or last.
static __device__ __forceinline__ void order_keys(u64& a, u64& b, bool is_up) {
    const u64 first = a;
    if ((a > b) == is_up) a = b, b = first;
}

// A lane's keys of a block's in shared memory, which has `size`.
struct LaneKeys {
    u64* keys;
    i32 size, first;
    u64 own[LANE_KEYS];

    __device__ __forceinline__ void load() {
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k) own[k] = first + k < size ? keys[first + k] : ~0ull;
    }

    __device__ __forceinline__ void store() const {
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k)
            if (first + k < size) keys[first + k] = own[k];
    }

    // Compares keys that lie `step` < WARP_KEYS apart, in runs of `width`, of which every other one is to fall.
    __device__ __forceinline__ void compare(i32 width, i32 step) {
        const bool is_up = (first & width) == 0;
        if (step >= LANE_KEYS) {
            const bool keeps_low = is_up == ((first & step) == 0);
#pragma unroll
            for (i32 k = 0; k < LANE_KEYS; ++k) {
                const u64 other = __shfl_xor_sync(ALL_LANES, own[k], step / LANE_KEYS);
                if ((other < own[k]) == keeps_low) own[k] = other;
            }
        } else if (step == 2) {
            order_keys(own[0], own[2], is_up), order_keys(own[1], own[3], is_up);
        } else {
            order_keys(own[0], own[1], width == 2 || is_up), order_keys(own[2], own[3], width != 2 && is_up);
        }
    }
};

// Sorts as many keys in shared memory as a power of two by bitonic merges. All threads of the block call it, of which there
// is at least one for each 4 keys, and whole warps: a warp's keys stay in registers but for the steps between warps.
static __device__ __forceinline__ void sort_keys(u64* keys, i32 size) {
    LaneKeys lane = {keys, size, static_cast<i32>(threadIdx.x) * LANE_KEYS, {}};
    lane.load();
    for (i32 width = 2; width <= size; width *= 2) {
        i32 step = width / 2;
        if (step >= WARP_KEYS) {
            lane.store();
            __syncthreads();
            for (; step >= WARP_KEYS; step /= 2) {
                for (i32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                    const i32 low = 2 * i - (i & (step - 1));
                    order_keys(keys[low], keys[low + step], (low & width) == 0);
                }
                __syncthreads();
            }
            lane.load();
        }
        for (; step > 0; step /= 2) lane.compare(width, step);
    }
    lane.store();
    __syncthreads();
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
