// A tile of CSR entries in shared memory, brought from the order of slots into that of (node, slot): the entries of a node
// and feature, a *segment*, are neighbours then, and running sums over all tell those up to any bin of any segment.
#pragma once

#include "block.cuh"
#include "histogram_at.cuh"
#include "rounding.cuh"
#include "row_state.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr i32 ITEMS = 8;  // entries of a thread
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 TILE = THREADS * ITEMS;

#if SMALL
using Sum = i64;
#else
using Sum = i32;  // of at most TILE terms of 15 bits
#endif

struct alignas(2 * sizeof(Sum)) Sums2 {
    Sum g;
    Sum h;
};

// Whole features, or a slice of one that has more entries than a tile. `row` : place of the slice among sums, -1 of whole
// features; `total` : that of all of its feature's slices.
struct EntryTile {
    i64 begin;  // entries
    i64 end;
    i64 first;  // features
    i64 last;
    i64 row;
    i64 total;
};

// Shared memory of a block, for `n` nodes; `entry_tile_bytes` of devices/gpu/trees/entry_search.py counts it. What does not depend
// on `n` comes first: its addresses take no registers.
struct Tiled {
    Sums2* sums;       // of each entry; once they are added up, of all entries up to it
    i32* slots;
    i32* totals;       // of warps
    u16* nodes;
    u16* features;     // counted from the tile's first
    u16* segments;
    u16* starts;       // first entry of each segment, and behind the last
    u32* tops;         // by node: the largest of its candidates so far (entry_gain.cuh), as a float's bits
    i32* node_starts;  // first entry of each node, n + 1
    u16* listed;
    u16* counts;       // by warp and node

    __device__ __forceinline__ Tiled(u8* memory, i32 n) {
        sums = reinterpret_cast<Sums2*>(memory);
        slots = reinterpret_cast<i32*>(sums + TILE);
        totals = slots + TILE;
        nodes = reinterpret_cast<u16*>(totals + WARPS);
        features = nodes + TILE;
        segments = features + TILE;
        starts = segments + TILE;
        tops = reinterpret_cast<u32*>(starts + TILE + 2);
        node_starts = reinterpret_cast<i32*>(tops + n);
        listed = reinterpret_cast<u16*>(node_starts + n + 1);
        counts = listed + TILE + n;
    }
};

// An entry of a warp's, which has ITEMS times as many as lanes, one behind the other.
static __device__ __forceinline__ i32 own_entry(i32 k) {
    return static_cast<i32>(threadIdx.x / WARP) * (WARP * ITEMS) + k * static_cast<i32>(WARP) +
           static_cast<i32>(threadIdx.x % WARP);
}

// What the warps below have, of a value of each warp; `all` : of all warps. Two barriers.
static __device__ __forceinline__ i32 of_warps_before(i32 of_warp, i32* totals, i32& all) {
    const i32 warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) totals[warp] = of_warp;
    __syncthreads();
    i32 before = 0;
    all = 0;
    for (i32 other = 0; other < WARPS; ++other) {
        before += other < warp ? totals[other] : 0;
        all += totals[other];
    }
    __syncthreads();
    return before;
}

// Counts by warp and node become places, and `node_starts` is filled in; the number of entries.
static __device__ __forceinline__ i32 place_nodes(const Tiled& to, i32 n) {
    i32 before = 0;
    for (i32 start = 0; start < n; start += THREADS) {
        const i32 node = start + static_cast<i32>(threadIdx.x);
        i32 count = 0, all;
        if (node < n)
            for (i32 warp = 0; warp < WARPS; ++warp) count += to.counts[warp * n + node];
        const i32 up_to = running_sum_of_warp(count);
        const i32 of_warp = __shfl_sync(ALL_LANES, up_to, WARP - 1);
        i32 place = before + of_warps_before(of_warp, to.totals, all) + up_to - count;
        before += all;
        if (node >= n) continue;
        to.node_starts[node] = place;
        for (i32 warp = 0; warp < WARPS; ++warp) {
            const i32 own = to.counts[warp * n + node];
            to.counts[warp * n + node] = static_cast<u16>(place);
            place += own;
        }
    }
    if (threadIdx.x == 0) to.node_starts[n] = before;
    return before;
}

// Entries whose rows are in one of `n` nodes, stably sorted by node; their number.
static __device__ __forceinline__ i32 sort_by_node(const EntryTile& tile, const u32* entry_rows, const i32* entry_slots,
                                                   const u16* entry_features, const RowState* states, i32 n,
                                                   const Tiled& to) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (i32 i = threadIdx.x; i < WARPS * n; i += THREADS) to.counts[i] = 0;
    __syncthreads();
    RowState found[ITEMS];
    i32 slots[ITEMS], ranks[ITEMS];
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i64 entry = tile.begin + own_entry(k);
        found[k] = {0, -1};
        slots[k] = 0;
        if (entry >= tile.end) continue;
        slots[k] = entry_slots[entry];
        found[k] = states[entry_rows[entry]];
    }
    u16* own = to.counts + warp * n;
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i32 node = static_cast<i32>(found[k].segment);
        const u32 same = __match_any_sync(ALL_LANES, node);
        const i32 before = node < 0 ? 0 : own[node];
        ranks[k] = before + __popc(same & ((1u << lane) - 1u));
        __syncwarp();
        if (node >= 0 && same >> lane == 1u) own[node] = static_cast<u16>(before + __popc(same));
        __syncwarp();
    }
    __syncthreads();
    const i32 n_entries = place_nodes(to, n);
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i32 node = static_cast<i32>(found[k].segment);
        if (node < 0) continue;
        const i32 place = own[node] + ranks[k];
        to.sums[place] = {g_of(found[k].pair), h_of(found[k].pair)};
        to.slots[place] = slots[k];
        to.nodes[place] = static_cast<u16>(node);
        to.features[place] = entry_features[tile.begin + own_entry(k)];
    }
    __syncthreads();
    return n_entries;
}

// Sums of entries become those of all entries up to them.
static __device__ __forceinline__ void add_up(Sums2* sums, i32 n_entries, Sums2* of_warps) {
    Sums2 own[ITEMS], before = {0, 0};
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        own[k] = own_entry(k) < n_entries ? sums[own_entry(k)] : Sums2{0, 0};
        own[k] = {running_sum_of_warp(own[k].g) + before.g, running_sum_of_warp(own[k].h) + before.h};
        before = {__shfl_sync(ALL_LANES, own[k].g, WARP - 1), __shfl_sync(ALL_LANES, own[k].h, WARP - 1)};
    }
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = before;
    __syncthreads();
    before = {0, 0};
    for (u32 warp = 0; warp < threadIdx.x / WARP; ++warp)
        before = {before.g + of_warps[warp].g, before.h + of_warps[warp].h};
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        if (own_entry(k) < n_entries) sums[own_entry(k)] = {own[k].g + before.g, own[k].h + before.h};
    }
    __syncthreads();
}

// Fills in `segments` and `starts`.
static __device__ __forceinline__ void find_segments(i32 n_entries, const Tiled& in) {
    const u32 lane = threadIdx.x % WARP;
    u32 votes[ITEMS];
    i32 count = 0, all;
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i32 i = own_entry(k);
        const bool starts =
            i < n_entries && (i == 0 || in.nodes[i] != in.nodes[i - 1] || in.features[i] != in.features[i - 1]);
        votes[k] = __ballot_sync(ALL_LANES, starts);
        count += __popc(votes[k]);
    }
    i32 before = of_warps_before(count, in.totals, all);
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i32 i = own_entry(k), segment = before + __popc(votes[k] << (WARP - 1 - lane)) - 1;
        if (i < n_entries) in.segments[i] = static_cast<u16>(segment);
        if (votes[k] >> lane & 1u) in.starts[segment] = static_cast<u16>(i);
        before += __popc(votes[k]);
    }
    if (threadIdx.x == 0) in.starts[all] = static_cast<u16>(n_entries);
    __syncthreads();
}
