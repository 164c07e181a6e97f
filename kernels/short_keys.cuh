// Rows of a query in the order of their scores, sorted by keys of 32 bits: a score's highest bits and the row's number.
//
// Where rows differ only in the bits that keys lack, neighbors are exchanged afterwards until all are right, which few queries
// need, and these a pass or two.
#pragma once

#include "ranking.cuh"

struct alignas(16) FourScores {
    float at[LANE_KEYS];
};

// Whether keys side by side, of one warp, have the same bits of scores, those above `numbers`.
static __device__ __forceinline__ bool has_close(const LaneKeys<u32>& lane, u32 numbers, i32 n) {
    const u32 next = __shfl_down_sync(ALL_LANES, lane.own[0], 1);
    u32 close = ~0u;
#pragma unroll
    for (i32 k = 0; k + 1 < LANE_KEYS; ++k) close = min(close, lane.own[k] ^ lane.own[k + 1]);
    if (threadIdx.x % LANES + 1 < LANES) close = min(close, lane.own[LANE_KEYS - 1] ^ next);
    return close <= numbers && lane.first < n;
}

// Writes the numbers of `n` rows from the highest score to the lowest, of equal scores the first row first. All threads of
// the block call it, of which there is one for each 4 of `size`, a power of two from 32 and `n` on, and whole warps. Scores
// beyond `n` are read, too.
static __device__ __forceinline__ void sort_rows(const float* scores, i32 n, i32 size, u32* rows) {
    LaneKeys<u32> lane = {static_cast<i32>(threadIdx.x) * LANE_KEYS, {~0u, ~0u, ~0u, ~0u}};
    const u32 numbers = static_cast<u32>(size) - 1;
    if (lane.first < size) {
        const FourScores found = *reinterpret_cast<const FourScores*>(scores + lane.first);
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k)
            if (lane.first + k < n) lane.own[k] = (~key_of(found.at[k]) & ~numbers) | static_cast<u32>(lane.first + k);
    }
    lane.sort(rows, size);
    const bool may_be_wrong = blockDim.x > WARP || __any_sync(ALL_LANES, has_close(lane, numbers, n));
#pragma unroll
    for (i32 k = 0; k < LANE_KEYS; ++k) lane.own[k] &= numbers;
    lane.store(rows, size);
    __syncthreads();
    while (may_be_wrong) {
        i32 is_wrong = 0;
        for (i32 i = threadIdx.x; i + 1 < n; i += blockDim.x) is_wrong |= scores[rows[i]] < scores[rows[i + 1]];
        if (!__syncthreads_or(is_wrong)) break;
        for (i32 odd = 0; odd < 2; ++odd) {
            for (i32 i = 2 * static_cast<i32>(threadIdx.x) + odd; i + 1 < n; i += 2 * blockDim.x) {
                const u32 a = rows[i], b = rows[i + 1];
                if (scores[a] < scores[b]) rows[i] = b, rows[i + 1] = a;
            }
            __syncthreads();
        }
    }
}
