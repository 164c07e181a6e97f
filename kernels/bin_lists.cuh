// Sets of bins by which splits divide features of codes: lists of the few bins that a set has, or lacks.
//
// In place of the last bin on the left a split has BY_SET, where the bins of its node's list go right, or ALL_BUT, where all
// others do (`BY_SET` and `ALL_BUT` of `daskboost/devices/row_order.py`). A list has `set_width` numbers: how many bins there
// are, then these, increasing; the last may be one that the feature lacks. So a set takes a search of a few steps in memory
// that stays in the cache, whatever the number of a feature's bins. A block all of whose rows go by one set makes a map of
// the list, which takes one step.
#pragma once

#include "search.cuh"

constexpr i32 BY_SET = -1;
constexpr i32 ALL_BUT = -2;

// The lists of all nodes; null where no node has one.
#define SETS_PARAMETERS const i32 *sets, i32 set_width

static __device__ __forceinline__ const i32* list_of(const i32* sets, i32 set_width, i64 node) {
    return sets ? sets + node * set_width : nullptr;
}

static __device__ __forceinline__ bool is_listed(const i32* list, i32 bin) {
    const i32 end = list[0] + 1, at = first_not_below(list, 1, end, bin);
    return at < end && list[at] == bin;
}

// A bit for each of `n_bins` bins, whether it is listed, in `map`: shared memory, of four words more at most than the bits
// take. Called by all N_THREADS threads of a block, whose rows may look bins up afterwards.
template <i32 N_THREADS>
static __device__ __forceinline__ void map_list(const i32* list, i32 n_bins, u32* map) {
    uint4* const quads = reinterpret_cast<uint4*>(map);
    for (i32 i = threadIdx.x; i < (n_bins + 127) / 128; i += N_THREADS) quads[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    for (i32 i = threadIdx.x; i < list[0]; i += N_THREADS) {
        const i32 bin = list[1 + i];
        if (bin < n_bins) atomicOr(map + bin / 32, 1u << bin % 32);
    }
    __syncthreads();
}
