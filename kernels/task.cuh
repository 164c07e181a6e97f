// One node's one feature, as a warp of the split search has it: sums, units, and bins in registers.
#pragma once

#include "searched.cuh"

constexpr i32 HELD = 8;  // bins that a lane has in registers: features of up to 256 bins are read once
constexpr i32 SPAN = HELD * WARP;

// What the warps of a node and feature know of them, from the kernels' arguments.
struct Task {
    HistogramAt histogram;
    i32 bins;
    i32 slots;
    Pair64 total;
    double unit_g;
    double unit_h;
};

// From a kernel's SEARCHED, `keeps`, and its `node` and `feature`.
#define UNIT(statistic) units[static_cast<i64>(node / units_every) * units_stride + statistic]
#define TASK                                                                                              \
    {                                                                                                     \
        {own[node], parents[node], siblings[node], slot_offsets[feature], keeps != 0}, n_bins[feature],   \
            static_cast<i32>(slot_offsets[feature + 1] - slot_offsets[feature]),                          \
            {totals[2 * node], totals[2 * node + 1]}, UNIT(0), UNIT(1)                                    \
    }
#define IS_ALLOWED (allowed[static_cast<i64>(node / allowed_every) * n_features + feature] != 0)

// Some bins of a warp's lane, WARP apart. Each histogram has one address, from which the compiler knows how far bins are.
template <i32 N>
struct SomeBins {
    Pair64 at[N];

    // Reads come before writes, which could be to the same place for all that the compiler knows.
    __device__ __forceinline__ void load(const HistogramAt& from, i32 start, i32 bins) {
        const i32 first = start + static_cast<i32>(threadIdx.x % WARP);
        const i32 n = bins - first;  // asked once for both reads, or else one waits for the other
        if (from.is_built() || from.is_copied()) {
            const longlong2* const only = from.at(from.is_built() ? from.own : from.parent, first);
#pragma unroll
            for (i32 k = 0; k < N; ++k) {
                longlong2 sums = {0, 0};
                if (k * static_cast<i32>(WARP) < n) sums = only[k * WARP];
                at[k] = {sums.x, sums.y};
            }
            return;
        }
        const longlong2* const parent = from.at(from.parent, first);
        const longlong2* const sibling = from.at(from.sibling, first);
        longlong2 all[N], others[N];
#pragma unroll
        for (i32 k = 0; k < N; ++k) {
            all[k] = others[k] = {0, 0};
            if (k * static_cast<i32>(WARP) >= n) continue;
            all[k] = parent[k * WARP];
            others[k] = sibling[k * WARP];
        }
#pragma unroll
        for (i32 k = 0; k < N; ++k) at[k] = {all[k].x - others[k].x, all[k].y - others[k].y};
    }
    __device__ __forceinline__ void keep(const HistogramAt& to, i32 start, i32 bins) const {
        if (!to.keeps || to.is_built()) return;
        const i32 first = start + static_cast<i32>(threadIdx.x % WARP);
        longlong2* const sums = to.at(to.own, first);
#pragma unroll
        for (i32 k = 0; k < N; ++k)
            if (first + k * static_cast<i32>(WARP) < bins) sums[k * WARP] = make_longlong2(at[k].g, at[k].h);
    }
};

using Bins = SomeBins<HELD>;
