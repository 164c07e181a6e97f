// What is known of the nodes of a grown tree, and the strict order of splits played back over it by one warp: one loop in
// which every turn waits for the last one's end, so that its length is what counts. See best_first.cu.
#pragma once

#include "block.cuh"
#include "tree_table.cuh"

// What is known of grown nodes, beside their tables; `capacity` of each.
#define GROWN i64 *found, i32 *chosen_as, i32 *places, i32 *waiting, u64 *keys, i32 *counts

struct Grown {
    i64* found;      // the best split, RESULTS numbers
    i32* chosen_as;  // its number in the chosen tree; NONE before it has one
    i32* places;     // of its histogram
    i32* waiting;    // nodes of the chosen tree that are worth splitting, in any order
    u64* keys;       // of nodes that may yet be chosen, see ahead.cuh
    i32* counts;     // shape (5,), see below

    __device__ __forceinline__ i32& n_waiting() const { return counts[0]; }
    __device__ __forceinline__ i32& n_nodes() const { return counts[1]; }   // of the chosen tree
    __device__ __forceinline__ i32& n_leaves() const { return counts[2]; }
    __device__ __forceinline__ i32& n_splits() const { return counts[3]; }  // of the grown tree
    __device__ __forceinline__ i32& goes_on() const { return counts[4]; }

    __device__ __forceinline__ double gain(i32 node) const { return gain_of(found, node); }
};

// The nodes that wait, in shared memory; a chosen tree has as many leaves at most.
struct Queue {
    double gains[MOST_LEAVES];
    i32 nodes[MOST_LEAVES];
    i32 lefts[MOST_LEAVES];    // left children in the grown tree
    i32 numbers[MOST_LEAVES];  // in the chosen tree

    __device__ __forceinline__ void put(i32 place, i32 node, double gain, i32 left, i32 number) {
        gains[place] = gain;
        nodes[place] = node;
        lefts[place] = left;
        numbers[place] = number;
    }
    __device__ __forceinline__ void load(const Table& table, const Grown& grown, i32 n) {
        for (i32 place = threadIdx.x; place < n; place += THREADS) {
            const i32 node = grown.waiting[place];
            put(place, node, grown.gain(node), table.left(node), grown.chosen_as[node]);
        }
    }
    __device__ __forceinline__ void store(const Grown& grown, i32 n) const {
        for (i32 place = threadIdx.x; place < n; place += THREADS) grown.waiting[place] = nodes[place];
    }
};

constexpr u32 NOBODY = 0xFFFFFFFFu;
static_assert(2ull * MOST_LEAVES * MOST_LEAVES < NOBODY, "a number and a place fit one word");

// A node that waits: the smaller is chosen of equal gains, which is the one of the smaller number.
struct First {
    double gain;
    u32 number_and_place;

    __device__ __forceinline__ void take(double gain_, u32 number_and_place_) {
        if (!(gain_ > gain || (gain_ == gain && number_and_place_ < number_and_place))) return;
        gain = gain_;
        number_and_place = number_and_place_;
    }
};

// Of the places that a lane looks after: its own, and those WARP apart.
static __device__ __forceinline__ First first_of_lane(const Queue& queue, i32 n) {
    First first = {NO_GAIN, NOBODY};
    for (i32 place = threadIdx.x % WARP; place < n; place += WARP)
        first.take(queue.gains[place], static_cast<u32>(queue.numbers[place]) * MOST_LEAVES + place);
    return first;
}

static __device__ __forceinline__ First first_of_warp(First first) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const double gain = __shfl_xor_sync(ALL_LANES, first.gain, step);
        first.take(gain, __shfl_xor_sync(ALL_LANES, first.number_and_place, step));
    }
    return first;
}

// How far the choice has come.
struct Progress {
    i32 n_waiting;
    i32 n_nodes;
    i32 n_leaves;
};

// Go on choosing as long as the best node is split in the grown tree; the node at which it stopped for want of that, or
// NONE. Lanes keep the first of the places that they look after, and look again only where something has changed.
static __device__ __forceinline__ i32 play_back(const Table& table, const Grown& grown, i32 max_leaves, double gamma,
                                                Progress& progress, Queue& queue) {
    const i32 lane = threadIdx.x % WARP;
    First own = first_of_lane(queue, progress.n_waiting);
    while (progress.n_leaves < max_leaves) {
        const First first = first_of_warp(own);
        if (first.number_and_place == NOBODY) break;
        const i32 freed = static_cast<i32>(first.number_and_place % MOST_LEAVES), left = queue.lefts[freed];
        if (left == LEAF) return queue.nodes[freed];
        const i32 child = left + lane % 2, number = progress.n_nodes + lane % 2;
        const double gain = grown.gain(child);
        const i32 child_left = table.left(child), last = progress.n_waiting - 1;
        const u32 worth = __ballot_sync(ALL_LANES, is_worth_it(gain, gamma)) & 3;
        __syncwarp();  // all have read what is overwritten next
        if (lane < 2) {  // a child takes the place that is free, the other one comes last
            grown.chosen_as[child] = number;
            const i32 place = lane == 1 && worth == 3 ? last + 1 : freed;
            if (worth >> lane & 1) queue.put(place, child, gain, child_left, number);
        }
        if (lane == 0 && worth == 0)
            queue.put(freed, queue.nodes[last], queue.gains[last], queue.lefts[last], queue.numbers[last]);
        progress.n_waiting += __popc(worth) - 1;
        progress.n_nodes += 2;
        ++progress.n_leaves;
        __syncwarp();
        const bool is_changed = lane == freed % 32 || lane == last % 32 || lane == (last + 1) % 32;
        if (is_changed) own = first_of_lane(queue, progress.n_waiting);
    }
    return NONE;
}
