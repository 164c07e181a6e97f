// Zeros in the histograms that blocks of histogram.cu add to: those of a (node, group) whose rows are divided between
// blocks; and in those of nodes without rows, which no block meets. All others are stored, whatever they were: of a level
// of wide data nearly all, so that half a gigabyte is written once, not three times.
//
// Blocks whose shares begin in the middle of a (node, group) clear equal parts of it together: at the root, all do.
//
// Of few nodes it also makes the map of tiles that `build` reads (tiles.cuh), each block for itself, which takes less than
// the launch of tiles.cu before it.
//
// variants: THREADS=256
// usual: THREADS=256
// budget: zero_divided registers=48 shared=4*THREADS+4*THREADS/32+4
#include "block.cuh"
#include "feature_group.cuh"
#include "shares.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// Part `part` of `n_parts` of a group's slots in one node's histogram, by all threads of a block.
static __device__ __forceinline__ void zero_slots(const Group& group, const i64* slot_offsets, u32 part, u32 n_parts,
                                                  ulonglong2* histogram) {
    const i64 first = slot_offsets[group.first] + group.low, all = slot_offsets[group.first + group.n] - first;
    const u64 n = group.n > 1 || all < group.symbols ? all : group.symbols;
    const u64 end = n * (part + 1) / n_parts;
    for (u64 i = n * part / n_parts + threadIdx.x; i < end; i += THREADS) histogram[first + static_cast<i64>(i)] = {0, 0};
}

// Tiles before each segment, and all of them, into shared memory: of THREADS segments at most.
static __device__ __forceinline__ void count_before(const i64* bounds, const i32* nodes, i32 n, i32 tile_rows, i32 lead,
                                                    i32* starts, i32* totals) {
    const i32 segment = threadIdx.x, lane = segment % WARP, warp = segment / WARP;
    const i32 own = segment < n ? tiles_of(bounds, nodes[segment], tile_rows, lead) : 0;
    i32 end = running_sum_of_warp(own);
    if (lane == WARP - 1) totals[warp] = end;
    __syncthreads();
    for (i32 other = 0; other < warp; ++other) end += totals[other];
    if (segment == 0) starts[0] = 0;
    if (segment < n) starts[segment + 1] = end;
    __syncthreads();
}

// Arguments are those of the launch of `build` that follows, `blocks` its grid. Grid: as many, or more. `map` : whether
// `known`, the map of tiles, is to be made, of at most THREADS nodes.
extern "C" __global__ void __launch_bounds__(THREADS) zero_divided(
    const i32* groups, i32 n_groups, i32 least_tiles, i32 blocks, const i64* slot_offsets, i32 n_features,
    const i64* bounds, const i32* nodes, i32* known, i32 n, i32 tile_rows, i32 map, u64* out) {
    __shared__ i32 counted[THREADS + 1], totals[THREADS / WARP];
    const i32* starts = known;
    if (map) {
        count_before(bounds, nodes, n, tile_rows, least_tiles, counted, totals);
        starts = counted;
        if (blockIdx.x == 0)
            for (i32 i = threadIdx.x; i <= n; i += THREADS) known[i] = counted[i];
    }
    const Division division(starts, n, n_groups, least_tiles, blocks);
    const i64 n_slots = slot_offsets[n_features];
    ulonglong2* const histograms = reinterpret_cast<ulonglong2*>(out);
    if (blockIdx.x < division.blocks && division.all > 0) {
        const u32 at = division.before(blockIdx.x), number = at / division.n_tiles, ahead = number * division.n_tiles;
        const i32 segment = segment_of(static_cast<i32>(at - ahead), starts, n);
        const u32 start = ahead + starts[segment] + least_tiles, end = ahead + starts[segment + 1];
        if (start < at) {
            const u32 first = division.first_from(start + 1);
            zero_slots(group_of(groups, static_cast<i32>(number)), slot_offsets, blockIdx.x - first,
                       division.first_from(end) - first, histograms + segment * n_slots);
        }
    }
    // Blocks take the segments of all groups in turn.
    for (i32 group = 0, segment = blockIdx.x;; segment += gridDim.x) {
        for (; segment >= n && group < n_groups; ++group) segment -= n;
        if (group == n_groups) break;
        if (starts[segment] == starts[segment + 1] && nodes[segment] >= 0)
            zero_slots(group_of(groups, group), slot_offsets, 0, 1, histograms + segment * n_slots);
    }
}
