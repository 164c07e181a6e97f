// What given pairs of rows of a query, and those of noisy orders, add to both: `daskboost/devices/cpu/queries.py`, operation
// by operation.
#pragma once

#include "block.cuh"
#include "elementary.cuh"
#include "ranking.cuh"

#ifndef WEIGHT
#define WEIGHT 1  // what pairs count, as `PairWeight` numbers it
#endif
#define ONE 0
#define NDCG 1
#define MAP 2
#define MRR 3
#define ERR 4

constexpr double SHARE = 0x1p55;  // 1 in sums of 1 / place

struct Row {
    float score, gain;
    double above, below;
};

// Adds to a sum in global memory, or in shared memory, whose atomics are of 32 bits.
template <bool SHARED>
static __device__ __forceinline__ void add_to(u64* sum, i64 value) {
    if (SHARED) {
        u32* const halves = reinterpret_cast<u32*>(sum);
        const u32 low = static_cast<u32>(value), before = atomicAdd(halves, low);
        atomicAdd(halves + 1, static_cast<u32>(static_cast<u64>(value) >> 32) + (before + low < before ? 1u : 0u));
    } else {
        atomicAdd(sum, static_cast<u64>(value));
    }
}

// What a pair adds to its rows: `slope` is positive where the first one has more gain.
struct Pull {
    i64 slope, curve;
};

// What a swap of two places changes, but for the gains. `is_right` : whether the row of more gain has the higher place.
static __device__ __forceinline__ double change_of(const Row& a, const Row& b, bool is_right) {
    return fabs(is_right ? a.above - b.above : a.below - b.below);
}

// The derivatives of `weight` log(1 + exp(t - s)); s is the score of the row of more gain.
static __device__ __forceinline__ Pull pull_of(const Row& a, const Row& b, float weight) {
    float difference = fabsf(a.score - b.score);
    if (difference > 1e30f) difference = 1e30f;
    const float lower = exp_of(-difference);
    const float of_a = a.score < b.score ? lower : 1.0f, of_b = a.score < b.score ? 1.0f : lower, both = of_a + of_b;
    const float share = reciprocal(both);
    weight *= share;
    return {__float2ll_rn(weight * (a.gain > b.gain ? of_b : -of_a)),
            __float2ll_rn(weight * both * at_least(of_a * of_b * (share * share), 1e-16f))};
}

// Sums of g and h.
struct Sums {
    i64 g, h;
};

// Adds a pair whose first row has sums `of_a`.
static __device__ __forceinline__ void add_pair(const Pull& pull, Sums& of_a, Sums& of_b) {
    of_a.g -= pull.slope;
    of_a.h += pull.curve;
    of_b.g += pull.slope;
    of_b.h += pull.curve;
}

template <bool SHARED>
static __device__ __forceinline__ void add_sums(u64* sums, i32 place, const Sums& own) {
    add_to<SHARED>(sums + 2 * place, own.g);
    add_to<SHARED>(sums + 2 * place + 1, own.h);
}

// What gradients of a query whose scores are not finite are.
static __device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7FC00000u); }

// `scale` : a power of two.
static __device__ __forceinline__ float gradient_of(i64 sum, double scale, double factor) {
    return static_cast<float>(static_cast<double>(sum) * (1.0 / scale) * factor);
}

// Relevant rows, and their shares of 1 / place, before a thread's stretch of rows, of all before it in its block.
struct Shares {
    i32 relevant;
    i64 shares;

    __device__ __forceinline__ void add(float gain, double step) {
        if (gain > 0) ++relevant, shares += static_cast<i64>(rint(step * SHARE));
    }

    // What a place counts in a pair whose higher row has more gain, where that goes by average precision.
    __device__ __forceinline__ double above(double step) const {
        return static_cast<double>(relevant) * step - static_cast<double>(shares) * (1.0 / SHARE);
    }
};

// The sum over the threads before; all threads of the block call it. Storage: one value of each kind for a warp.
static __device__ __forceinline__ Shares shares_before(Shares own, i64* of_shares, i32* of_relevant) {
    const u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    Shares found = {running_sum_of_warp(own.relevant), running_sum_of_warp(own.shares)};
    if (lane == LANES - 1) of_relevant[warp] = found.relevant, of_shares[warp] = found.shares;
    __syncthreads();
    found.relevant -= own.relevant, found.shares -= own.shares;
    for (u32 w = 0; w < warp; ++w) found.relevant += of_relevant[w], found.shares += of_shares[w];
    __syncthreads();
    return found;
}

// The same where `n_before` tiles come before the block's, whose sums are in `of_tiles` before `tile`, (relevant, shares) each.
template <u32 N_THREADS>
static __device__ __forceinline__ Shares shares_before(Shares own, const i64* of_tiles, i64 tile, i32 n_before,
                                                       i64* storage, i64* of_shares, i32* of_relevant) {
    i64 relevant = 0, shares = 0;
    for (i32 i = threadIdx.x; i < n_before; i += N_THREADS) {
        relevant += of_tiles[2 * (tile - 1 - i)];
        shares += of_tiles[2 * (tile - 1 - i) + 1];
    }
    relevant = sum_of_block<N_THREADS>(relevant, storage);
    shares = sum_of_block<N_THREADS>(shares, storage);  // which thread 0 adds to what it has, for all others
    if (threadIdx.x == 0) own.relevant += static_cast<i32>(relevant), own.shares += shares;
    const Shares found = shares_before(own, of_shares, of_relevant);
    return threadIdx.x == 0 ? Shares{static_cast<i32>(relevant), shares} : found;
}

// Writes the sum over the threads of a block as its tile's, see above.
template <u32 N_THREADS>
static __device__ __forceinline__ void write_shares(const Shares& own, i64* of_tiles, i64 tile, i64* storage) {
    const i64 relevant = sum_of_block<N_THREADS>(static_cast<i64>(own.relevant), storage);
    const i64 shares = sum_of_block<N_THREADS>(own.shares, storage);
    if (threadIdx.x == 0) of_tiles[2 * tile] = relevant, of_tiles[2 * tile + 1] = shares;
}

// A thread's places among `n`, which follow one another.
static __device__ __forceinline__ i32 stretch_begin(i32 n, u32 thread) {
    const i32 each = (n + blockDim.x - 1) / blockDim.x;
    return min(static_cast<i32>(thread) * each, n);
}
