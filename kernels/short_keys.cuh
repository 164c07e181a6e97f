// Rows of a query in the order of their scores, sorted by keys of 32 bits: a score's highest bits and the row's number.
//
// A lane has four keys in registers, and a warp's lanes exchange them by shuffles. Where rows differ only in the bits that
// keys lack, neighbors are exchanged afterwards until all are right, which few queries need, and these a pass or two.
#pragma once

#include "ranking.cuh"

struct alignas(16) FourScores {
    float at[LANE_KEYS];
};

struct alignas(16) FourRows {
    u32 at[LANE_KEYS];
};

// Four keys of a lane, of the places from `first` on.
struct ShortKeys {
    i32 first;
    u32 own[LANE_KEYS];

    // Leaves the lower one of two keys first, or last.
    __device__ __forceinline__ void order(i32 a, i32 b, bool is_up) {
        const u32 low = min(own[a], own[b]), high = max(own[a], own[b]);
        own[a] = is_up ? low : high, own[b] = is_up ? high : low;
    }

    // Compares keys that lie `step` < WARP_KEYS apart, in runs of `width`, of which every other one is to fall.
    __device__ __forceinline__ void compare(i32 width, i32 step) {
        const bool is_up = (first & width) == 0;
        if (step >= LANE_KEYS) {
            const bool keeps_low = is_up == ((first & step) == 0);
#pragma unroll
            for (i32 k = 0; k < LANE_KEYS; ++k) {
                const u32 other = __shfl_xor_sync(ALL_LANES, own[k], step / LANE_KEYS);
                own[k] = keeps_low ? min(own[k], other) : max(own[k], other);
            }
        } else if (step == 2) {
            order(0, 2, is_up), order(1, 3, is_up);
        } else {
            order(0, 1, width == 2 || is_up), order(2, 3, width != 2 && is_up);
        }
    }

    __device__ __forceinline__ void load(const u32* keys, i32 size) {
        if (first < size) {
            const FourRows found = *reinterpret_cast<const FourRows*>(keys + first);
#pragma unroll
            for (i32 k = 0; k < LANE_KEYS; ++k) own[k] = found.at[k];
        }
    }

    __device__ __forceinline__ void store(u32* keys, i32 size, u32 mask) const {
        if (first < size)
            *reinterpret_cast<FourRows*>(keys + first) = {own[0] & mask, own[1] & mask, own[2] & mask, own[3] & mask};
    }
};

// Writes the numbers of `n` rows from the highest score to the lowest, of equal scores the first row first. All threads of
// the block call it, of which there is one for each 4 of `size`, a power of two from 32 and `n` on, and whole warps. Scores
// beyond `n` are read, too.
static __device__ __forceinline__ void sort_rows(const float* scores, i32 n, i32 size, u32* rows) {
    ShortKeys lane = {static_cast<i32>(threadIdx.x) * LANE_KEYS, {~0u, ~0u, ~0u, ~0u}};
    const u32 numbers = static_cast<u32>(size) - 1;
    if (lane.first < size) {
        const FourScores found = *reinterpret_cast<const FourScores*>(scores + lane.first);
#pragma unroll
        for (i32 k = 0; k < LANE_KEYS; ++k)
            if (lane.first + k < n) lane.own[k] = (~key_of(found.at[k]) & ~numbers) | static_cast<u32>(lane.first + k);
    }
#pragma unroll
    for (i32 width = 2; width <= WARP_KEYS; width *= 2) {
        if (width > size) break;
#pragma unroll
        for (i32 step = width / 2; step > 0; step /= 2) lane.compare(width, step);
    }
    for (i32 width = 2 * WARP_KEYS; width <= size; width *= 2) {
        lane.store(rows, size, ~0u);
        __syncthreads();
        for (i32 step = width / 2; step >= WARP_KEYS; step /= 2) {
            for (i32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const i32 low = 2 * i - (i & (step - 1));
                const u32 a = rows[low], b = rows[low + step];
                if ((a > b) == ((low & width) == 0)) rows[low] = b, rows[low + step] = a;
            }
            __syncthreads();
        }
        lane.load(rows, size);
#pragma unroll
        for (i32 step = WARP_KEYS / 2; step > 0; step /= 2) lane.compare(width, step);
    }
    lane.store(rows, size, numbers);
    __syncthreads();
    for (;;) {
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
