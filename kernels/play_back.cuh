// What is known of the nodes of a grown tree, and the strict order of splits played back over it by one warp: one loop in
// which every turn waits for the last one's end, so that its length is what counts. See best_first.cu.
#pragma once

#include "block.cuh"
#include "tree_table.cuh"

// What is known of grown nodes, beside their tables; `capacity` of each. `queue_room` : of `Queue`, where it is not in shared
// memory.
#define GROWN i64 *found, i32 *chosen_as, i32 *places, i32 *waiting, u64 *keys, i32 *counts, u64 *queue_room
#define GROWN_TREE {found, chosen_as, places, waiting, keys, counts}

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
    __device__ __forceinline__ u64 gain_bits(i32 node) const {
        return static_cast<u64>(found[static_cast<i64>(node) * RESULTS]);
    }
};

// The nodes that wait, in shared memory where that has room for as many as there may be: a chosen tree has as many leaves
// at most. Gains are their bits: integers are compared faster, and in the same order, since no gain that is worth a split is
// negative.
#if SHARED_LEAVES > 0
#define QUEUED(type, name) type name[MOST_LEAVES]
#else
#define QUEUED(type, name) type* name
#endif
struct Queue {
    QUEUED(u64, gains);
    QUEUED(i32, nodes);
    QUEUED(i32, lefts);    // left children in the grown tree
    QUEUED(i32, numbers);  // in the chosen tree

    // `room` : 20 bytes for each of MOST_LEAVES.
    __device__ __forceinline__ void take_room(u64* room) {
#if SHARED_LEAVES == 0
        gains = room;
        nodes = reinterpret_cast<i32*>(room + MOST_LEAVES);
        lefts = nodes + MOST_LEAVES;
        numbers = lefts + MOST_LEAVES;
#else
        static_cast<void>(room);
#endif
    }

    __device__ __forceinline__ void put(i32 place, i32 node, u64 gain, i32 left, i32 number) {
        gains[place] = gain;
        nodes[place] = node;
        lefts[place] = left;
        numbers[place] = number;
    }
    __device__ __forceinline__ void move(i32 to, i32 from) {
        put(to, nodes[from], gains[from], lefts[from], numbers[from]);
    }
    __device__ __forceinline__ void load(const Table& table, const Grown& grown, i32 n) {
        for (i32 place = threadIdx.x; place < n; place += THREADS) {
            const i32 node = grown.waiting[place];
            put(place, node, grown.gain_bits(node), table.left(node), grown.chosen_as[node]);
        }
    }
    __device__ __forceinline__ void store(const Grown& grown, i32 n) const {
        for (i32 place = threadIdx.x; place < n; place += THREADS) grown.waiting[place] = nodes[place];
    }
};

constexpr u32 NOBODY = 0xFFFFFFFFu;
static_assert(2ull * MOST_LEAVES * MOST_LEAVES < NOBODY, "a number and a place fit one word");

// A node that waits. Of equal gains the smaller word is chosen, which is that of the smaller number.
struct First {
    u64 gain;
    u32 number_and_place;

    __device__ __forceinline__ void take(u64 gain_, u32 number_and_place_) {
        if (gain_ < gain || (gain_ == gain && number_and_place_ > number_and_place)) return;
        gain = gain_;
        number_and_place = number_and_place_;
    }
    __device__ __forceinline__ bool is_none() const { return number_and_place == NOBODY; }
    __device__ __forceinline__ i32 place() const { return static_cast<i32>(number_and_place % MOST_LEAVES); }
};

// Of the places that a lane looks after: its own, and those WARP apart.
static __device__ __forceinline__ First first_of_lane(const Queue& queue, i32 n) {
    First first = {0, NOBODY};
#pragma unroll 4
    for (i32 place = threadIdx.x % WARP; place < n; place += WARP)
        first.take(queue.gains[place], static_cast<u32>(queue.numbers[place]) * MOST_LEAVES + place);
    return first;
}

static __device__ __forceinline__ First first_of_warp(First first) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const u64 gain = __shfl_xor_sync(ALL_LANES, first.gain, step);
        first.take(gain, __shfl_xor_sync(ALL_LANES, first.number_and_place, step));
    }
    return first;
}

// What is known of a node's children; of one without, nothing.
struct Children {
    u64 gains[2];
    i32 lefts[2];

    __device__ __forceinline__ void load(const Table& table, const Grown& grown, const Queue& queue, const First& parent) {
        const i32 left = parent.is_none() ? LEAF : queue.lefts[parent.place()];
        if (left == LEAF) return;
#pragma unroll
        for (i32 side = 0; side < 2; ++side) {
            gains[side] = grown.gain_bits(left + side);
            lefts[side] = table.left(left + side);
        }
    }
};

// How far the choice has come.
struct Progress {
    i32 n_waiting;
    i32 n_nodes;
    i32 n_leaves;
};

// Go on choosing as long as the best node is split in the grown tree; the node at which it stopped for want of that, or
// NONE. Lanes keep the first of the places that they look after, and its children, which are thus under way while the warp
// finds the first of all; they look again only where something has changed.
static __device__ __forceinline__ i32 play_back(const Table& table, const Grown& grown, i32 max_leaves, double least,
                                                Progress& progress, Queue& queue) {
    const i32 lane = threadIdx.x % WARP;
    First own = first_of_lane(queue, progress.n_waiting);
    Children children = {};
    children.load(table, grown, queue, own);
    while (progress.n_leaves < max_leaves) {
        const First first = first_of_warp(own);
        if (first.is_none()) break;
        const i32 freed = first.place(), last = progress.n_waiting - 1, left = queue.lefts[freed];
        if (left == LEAF) return queue.nodes[freed];
        __syncwarp();  // all have read what is overwritten next
        i32 place = freed;  // for the first child that is worth it; behind all for the other one
#pragma unroll
        for (i32 side = 0; side < 2; ++side) {
            const u64 gain = __shfl_sync(ALL_LANES, children.gains[side], freed % WARP);
            const i32 child_left = __shfl_sync(ALL_LANES, children.lefts[side], freed % WARP);
            const i32 child = left + side, number = progress.n_nodes + side;
            if (lane == 0) grown.chosen_as[child] = number;
            if (!(__longlong_as_double(static_cast<i64>(gain)) >= least)) continue;
            if (lane == 0) queue.put(place, child, gain, child_left, number);
            place = progress.n_waiting++;
        }
        if (--progress.n_waiting == last && lane == 0) queue.move(freed, last);
        progress.n_nodes += 2;
        ++progress.n_leaves;
        __syncwarp();
        const bool is_changed = lane == freed % 32 || lane == last % 32 || lane == (last + 1) % 32;
        if (!is_changed) continue;
        own = first_of_lane(queue, progress.n_waiting);
        children.load(table, grown, queue, own);
    }
    return NONE;
}
