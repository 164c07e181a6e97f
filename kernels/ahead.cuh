// Which nodes to split ahead of the strict order (best_first.cu). That order goes on where it has stopped for want of a split;
// whatever else is split is a guess, which decides how many steps a tree takes and never what it is.
//
// Open nodes are those that wait, and whatever has been grown below them. A node is chosen once all nodes above it are, so
// the least gain on its way down, from the node that waits, says when: before all open nodes of smaller ones. Among
// nodes that have it from the same one above them, the least gain on the rest of the way does. Nodes behind as many others
// as splits are left come too late, whatever is found below those; of the others the first are split.
#pragma once

#include "play_back.cuh"

// Keys rank open nodes, larger ones first, and differ: the least gain, as a float; the least below, a float of fewer bits;
// the node; whether it is not split.
constexpr u32 NODE_BITS = MOST_LEAVES > 1024 ? 16 : 13, BELOW_BITS = 32 - NODE_BITS;
constexpr u32 LAST_NODE = (1u << NODE_BITS) - 1;
constexpr u64 UNSPLIT = 1;

static __device__ __forceinline__ u64 rank_bits(double gain) {
    return __float_as_uint(static_cast<float>(gain));  // ordered as the gains, which are positive
}

static __device__ __forceinline__ u64 key_of(u64 least, u64 below, i32 node, bool is_split) {
    const u64 order = least << BELOW_BITS | below >> (31 - BELOW_BITS);
    return (order << NODE_BITS | (LAST_NODE - static_cast<u32>(node))) << 1 | (is_split ? 0 : UNSPLIT);
}
static __device__ __forceinline__ i32 node_of(u64 key) { return static_cast<i32>(LAST_NODE - (key >> 1 & LAST_NODE)); }

// The key of a grown node; 0 where it is not open. `next` : the node that is chosen next, whose key is the largest.
static __device__ __forceinline__ u64 open_key(const Table& table, const Grown& grown, i32 node, i32 next, double least_gain) {
    constexpr u64 MOST = 0x7FFFFFFF;
    const double gain = grown.gain(node);
    if (node == next) return key_of(MOST, MOST, node, false);
    if (!(gain >= least_gain)) return 0;
    const i32 left = table.left(node);
    i32 above = node;
    double least = gain, below = NO_LIMIT;
    while (grown.chosen_as[above] == NONE) {
        above = table.parent(above);
        const double other = grown.gain(above);
        if (other > least) continue;
        below = least;
        least = other;
    }
    if (above == node && left != LEAF && grown.chosen_as[left] != NONE) return 0;  // chosen and split
    return key_of(rank_bits(least), rank_bits(below), node, left != LEAF);
}

// A key that as many others reach as may: at most `most`, and of unsplit nodes at most `most_unsplit`. `room` : two words for
// each warp.
static __device__ __forceinline__ u64 least_key(const u64* keys, i32 n, u32 most, u32 most_unsplit, u32* room) {
    constexpr u32 WARPS = THREADS / WARP, ONE_UNSPLIT = 1 << 16;
    u64 low = 0, high = ~0ull, asked = 0;  // too many reach `low`, but for the first time
    for (u32 turn = 0;; turn = 1 - turn) {
        u32 reach = 0;
        for (i32 i = threadIdx.x; i < n; i += THREADS)
            if (keys[i] >= asked) reach += keys[i] & UNSPLIT ? 1 + ONE_UNSPLIT : 1;
        reach = sum_of_warp(reach);
        if (threadIdx.x % WARP == 0) room[turn * WARPS + threadIdx.x / WARP] = reach;
        __syncthreads();
        reach = 0;
        for (u32 warp = 0; warp < WARPS; ++warp) reach += room[turn * WARPS + warp];
        const u32 all = reach % ONE_UNSPLIT, unsplit = reach / ONE_UNSPLIT;
        if (all > most || unsplit > most_unsplit) low = asked;
        else if (all == most || unsplit == most_unsplit || asked == 0) return asked;
        else high = asked;
        if (high - low <= 1) return high;
        asked = low + (high - low) / 2;
    }
}

// Open nodes that are not split and shall be, in order, into `splits`; their number into `n_ahead`. `most` : splits that are
// left; `most_unsplit` : of a step, at least 1. `room` : as above. Shared counts are 0 before.
static __device__ __forceinline__ void find_ahead(const Table& table, const Grown& grown, i32 next, double least_gain,
                                                  i32 most, i32 most_unsplit, u64* first_keys, u32* room, i32* n_keys,
                                                  i32* n_ahead, i32* splits) {
    const i32 size = table.size();
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        const u64 key = open_key(table, grown, node, next, least_gain);
        if (key != 0) grown.keys[atomicAdd(n_keys, 1)] = key;
    }
    __syncthreads();
    const i32 n = *n_keys;
    const u64 least = least_key(grown.keys, n, most, most_unsplit, room);
    for (i32 i = threadIdx.x; i < n; i += THREADS) {
        const u64 key = grown.keys[i];
        if (key >= least && key & UNSPLIT) first_keys[atomicAdd(n_ahead, 1)] = key;
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < *n_ahead; i += THREADS) {
        i32 n_before = 0;
        for (i32 j = 0; j < *n_ahead; ++j) n_before += first_keys[j] > first_keys[i];
        splits[n_before] = node_of(first_keys[i]);
    }
}
