// The sets of a tree the other way round: of each slot of a histogram, which of the sets list its bin. A row that walks the
// tree reads that once for its bin of a feature, however many nodes split it by sets of the feature (walk.cu).
//
//   mask_lists   a warp per node: the number of its set, and a bit of that number for each slot that is listed
//
// variants: THREADS=256
// budget: mask_lists registers=40 shared=0
#include "block.cuh"
#include "bin_lists.cuh"
#include "masks.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `size` : nodes of the tree. `masks` : zeros. `numbers` : by node, of those that split by sets. `slot_offsets` : of features.
extern "C" __global__ void __launch_bounds__(THREADS) mask_lists(
    const i32* size, const i32* left_child, const i32* split_feature, const i32* split_bin, SETS_PARAMETERS,
    const i64* slot_offsets, u32* masks, i32* numbers) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP), n = size[0];
    const i32 node = static_cast<i32>((blockIdx.x * THREADS + threadIdx.x) / WARP);
    if (node >= n) return;
    const auto has_set = [&](i32 i) { return i < n && left_child[i] >= 0 && split_bin[i] < 0; };
    if (!has_set(node)) return;
    i32 number = 0;
    for (i32 first = 0; first < node; first += WARP)
        number += __popc(__ballot_sync(ALL_LANES, first + lane < node && has_set(first + lane)));
    if (lane == 0) numbers[node] = number;
    const i32* const list = list_of(sets, set_width, node);
    const i64 first = slot_offsets[split_feature[node]], end = slot_offsets[split_feature[node] + 1];
    for (i32 i = lane; i < list[0]; i += WARP) {
        const i64 slot = first + list[1 + i];
        if (slot < end) atomicOr(masks + slot * MASK_WORDS + number / 32, 1u << number % 32);
    }
}
