// Histograms in device memory, by address, and running sums over their bins by one warp.
#pragma once

#include "block.cuh"

struct Pair64 {
    i64 g;
    i64 h;
};

// One node's sums of one feature.
struct HistogramAt {
    u64 own;      // address of the node's histogram, i64 pairs
    u64 parent;   // of its parent's; 0 where `own` is built from rows
    u64 sibling;  // of its sibling's
    i64 first;    // the feature's first slot

    __device__ __forceinline__ Pair64 read_at(u64 address, i32 slot) const {
        const i64* sums = reinterpret_cast<const i64*>(address) + 2 * (first + slot);
        return {sums[0], sums[1]};
    }

    __device__ __forceinline__ Pair64 read(i32 slot) const { return read_at(own, slot); }

    // The sums of a slot; where they are the parent's less the sibling's, they are written first.
    __device__ __forceinline__ Pair64 compute(i32 slot) const {
        if (parent == 0) return read(slot);
        const Pair64 all = read_at(parent, slot), others = read_at(sibling, slot);
        const Pair64 left = {all.g - others.g, all.h - others.h};
        i64* sums = reinterpret_cast<i64*>(own) + 2 * (first + slot);
        sums[0] = left.g;
        sums[1] = left.h;
        return left;
    }
};

// Each lane's sum of `before`, the lanes below it and itself.
static __device__ __forceinline__ Pair64 running_sum(Pair64 value, Pair64 before) {
    const u32 lane = threadIdx.x % WARP;
    for (u32 step = 1; step < WARP; step *= 2) {
        const i64 g = __shfl_up_sync(ALL_LANES, value.g, step), h = __shfl_up_sync(ALL_LANES, value.h, step);
        if (lane >= step) value = {value.g + g, value.h + h};
    }
    return {value.g + before.g, value.h + before.h};
}
