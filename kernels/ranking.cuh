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

// Keys of a lane, side by side among those of a block. They are merged by networks that leave lower keys first everywhere:
// first keys of two runs are compared with last ones, and then those half a run apart, a quarter, and so on.
template <class Key>
struct LaneKeys {
    i32 first;
    Key own[LANE_KEYS];

    __device__ __forceinline__ void load(const Key* keys, i32 size) {
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k) own[k] = first + k < size ? keys[first + k] : ~static_cast<Key>(0);
    }

    __device__ __forceinline__ void store(Key* keys, i32 size) const {
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k)
            if (first + k < size) keys[first + k] = own[k];
    }

    __device__ __forceinline__ void order(i32 a, i32 b) {
        const Key low = min(own[a], own[b]);
        own[b] = max(own[a], own[b]), own[a] = low;
    }

    // Orders keys with those of the lanes whose numbers differ by these bits, the lower ones for lanes without the bit `HIGH`.
    template <i32 BITS, i32 HIGH, bool FROM_LAST>
    __device__ __forceinline__ void exchange() {
        const bool keeps_low = (first / LANE_KEYS & HIGH) == 0;
        const LaneKeys before = *this;
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k) {
            const Key other = __shfl_xor_sync(ALL_LANES, before.own[FROM_LAST ? LANE_KEYS - 1 - k : k], BITS);
            if ((other < own[k]) == keeps_low) own[k] = other;
        }
    }

    // Orders keys that lie `STEP` < WARP_KEYS apart, then half of that, down to neighbors.
    template <i32 STEP>
    __device__ __forceinline__ void settle() {
        if constexpr (STEP >= LANE_KEYS) exchange<STEP / LANE_KEYS, STEP / LANE_KEYS, false>();
        else if constexpr (STEP == 2) order(0, 2), order(1, 3);
        else order(0, 1), order(2, 3);
        if constexpr (STEP > 1) settle<STEP / 2>();
    }

    // Merges runs of keys two by two into such of `WIDTH` <= WARP_KEYS, and these up to `size`.
    template <i32 WIDTH>
    __device__ __forceinline__ void merge(i32 size) {
        if (WIDTH > size) return;
        if constexpr (WIDTH == 2) order(0, 1), order(2, 3);
        else if constexpr (WIDTH == 4) order(0, 3), order(1, 2);
        else exchange<WIDTH / LANE_KEYS - 1, WIDTH / (2 * LANE_KEYS), true>();
        if constexpr (WIDTH > 2) settle<WIDTH / 4>();
        if constexpr (WIDTH < WARP_KEYS) merge<2 * WIDTH>(size);
    }

    // Sorts the keys of a block, as many as a power of two. All threads call it, of which there is at least one for each 4
    // keys, and whole warps: a warp's keys stay in registers but for the steps between warps, which need room for all keys.
    __device__ __forceinline__ void sort(Key* keys, i32 size) {
        merge<2>(size);
        for (i32 width = 2 * WARP_KEYS; width <= size; width *= 2) {
            store(keys, size);
            __syncthreads();
            for (i32 step = width / 2; step >= WARP_KEYS; step /= 2) {
                for (i32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                    const i32 place = i & (step - 1), low = 2 * i - place;
                    const i32 high = 2 * step == width ? low + width - 1 - 2 * place : low + step;
                    const Key a = keys[low], b = keys[high];
                    if (a > b) keys[low] = b, keys[high] = a;
                }
                __syncthreads();
            }
            load(keys, size);
            settle<WARP_KEYS / 2>();
        }
    }
};

// Sorts as many keys in shared memory as a power of two, see above.
static __device__ __forceinline__ void sort_keys(u64* keys, i32 size) {
    LaneKeys<u64> lane = {static_cast<i32>(threadIdx.x) * LANE_KEYS, {}};
    lane.load(keys, size);
    lane.sort(keys, size);
    lane.store(keys, size);
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
