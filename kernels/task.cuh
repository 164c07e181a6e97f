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

// Bins of a warp's lane, WARP apart.
struct Bins {
    Pair64 at[HELD];

    // Reads come before writes, which could be to the same place for all that the compiler knows.
    __device__ __forceinline__ void load(const HistogramAt& from, i32 start, i32 bins) {
        const i32 first = start + static_cast<i32>(threadIdx.x % WARP);
        if (from.is_built()) {
#pragma unroll
            for (i32 k = 0; k < HELD; ++k) {
                const i32 bin = first + k * static_cast<i32>(WARP);
                at[k] = bin < bins ? from.read_at(from.own, bin) : Pair64{0, 0};
            }
            return;
        }
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            const i32 bin = first + k * static_cast<i32>(WARP);
            at[k] = bin < bins ? from.read_at(from.parent, bin) : Pair64{0, 0};
        }
        if (from.is_copied()) return;
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            const i32 bin = first + k * static_cast<i32>(WARP);
            const Pair64 others = bin < bins ? from.read_at(from.sibling, bin) : Pair64{0, 0};
            at[k] = {at[k].g - others.g, at[k].h - others.h};
        }
    }
    __device__ __forceinline__ void keep(const HistogramAt& to, i32 start, i32 bins) const {
        const i32 first = start + static_cast<i32>(threadIdx.x % WARP);
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            const i32 bin = first + k * static_cast<i32>(WARP);
            if (bin < bins) to.keep(bin, at[k]);
        }
    }
};
