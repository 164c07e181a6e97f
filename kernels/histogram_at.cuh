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
    u64 sibling;  // of its sibling's; 0 where `own` is to become a copy of the histogram at `parent`
    i64 first;    // the feature's first slot
    bool keeps;   // whether a parent's less a sibling's sums are written to `own`; as children need them

    __device__ __forceinline__ longlong2* at(u64 address, i32 slot) const {
        return reinterpret_cast<longlong2*>(address) + first + slot;
    }
    __device__ __forceinline__ Pair64 read_at(u64 address, i32 slot) const {
        const longlong2 sums = *at(address, slot);
        return {sums.x, sums.y};
    }
    __device__ __forceinline__ bool is_built() const { return parent == 0; }
    __device__ __forceinline__ bool is_copied() const { return sibling == 0; }

    // The sums of a slot before anything is written: `own` may lie where the parent's does.
    __device__ __forceinline__ Pair64 compute(i32 slot) const {
        if (is_built()) return read_at(own, slot);
        const Pair64 all = read_at(parent, slot);
        if (is_copied()) return all;
        const Pair64 others = read_at(sibling, slot);
        return {all.g - others.g, all.h - others.h};
    }
    // Write what `compute` found.
    __device__ __forceinline__ void keep(i32 slot, Pair64 sums) const {
        if (keeps && !is_built()) *at(own, slot) = make_longlong2(sums.g, sums.h);
    }
    // The sums of a slot once all are kept that shall be.
    __device__ __forceinline__ Pair64 read(i32 slot) const { return keeps ? read_at(own, slot) : compute(slot); }
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
