// What is known of the nodes of a grown tree, and the strict order of splits played back over it by one block: one loop
// in which every turn waits for the last one's end, so that its length is what counts. See best_first.cu.
#pragma once

#include "block.cuh"
#include "tree_table.cuh"

// What is known of grown nodes, beside their tables; `capacity` of each.
#define GROWN i64 *found, i32 *chosen_as, i32 *places, i32 *waiting, i32 *counts

struct Grown {
    i64* found;      // the best split, RESULTS numbers
    i32* chosen_as;  // its number in the chosen tree; NONE before it has one
    i32* places;     // of its histogram
    i32* waiting;    // nodes of the chosen tree that are worth splitting, in any order
    i32* counts;     // shape (6,), see below

    __device__ __forceinline__ i32& n_waiting() const { return counts[0]; }
    __device__ __forceinline__ i32& n_nodes() const { return counts[1]; }   // of the chosen tree
    __device__ __forceinline__ i32& n_leaves() const { return counts[2]; }
    __device__ __forceinline__ i32& n_splits() const { return counts[3]; }  // of the grown tree
    __device__ __forceinline__ i32& goes_on() const { return counts[4]; }
    __device__ __forceinline__ i32& n_ahead() const { return counts[5]; }   // splits of this step

    __device__ __forceinline__ double gain(i32 node) const { return gain_of(found, node); }
};

// A node that waits, and its place among those that do; -1 for none.
struct Waiting {
    double gain;
    i32 number;  // in the chosen tree
    i32 node;
    i32 place;

    // Whether it comes before another in the order of choice.
    __device__ __forceinline__ bool is_before(const Waiting& other) const {
        if (place < 0 || other.place < 0) return place >= 0 && other.place < 0;
        return gain > other.gain || (gain == other.gain && number < other.number);
    }
};

static __device__ __forceinline__ Waiting waiting_at(const Grown& grown, i32 place) {
    const i32 node = grown.waiting[place];
    return {grown.gain(node), grown.chosen_as[node], node, place};
}

// The first of the places that a thread looks after: its own, and those THREADS apart.
static __device__ __forceinline__ Waiting first_of_thread(const Grown& grown, i32 n_waiting) {
    Waiting first = {NO_GAIN, 0, NONE, -1};
    for (i32 place = threadIdx.x; place < n_waiting; place += THREADS) {
        const Waiting other = waiting_at(grown, place);
        if (other.is_before(first)) first = other;
    }
    return first;
}

// The first of all threads', to all threads; `room` has one for each warp. Other synchronisation keeps calls apart.
static __device__ __forceinline__ Waiting first_of_block(Waiting first, Waiting* room) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const Waiting other = {
            __shfl_xor_sync(ALL_LANES, first.gain, step), __shfl_xor_sync(ALL_LANES, first.number, step),
            __shfl_xor_sync(ALL_LANES, first.node, step), __shfl_xor_sync(ALL_LANES, first.place, step)};
        if (other.is_before(first)) first = other;
    }
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = first;
    __syncthreads();
#pragma unroll
    for (u32 warp = 0; warp < THREADS / WARP; ++warp) {
        if (room[warp].is_before(first)) first = room[warp];
    }
    return first;
}

// How far the choice has come: every thread knows, so that none waits for another's count.
struct Progress {
    i32 n_waiting;
    i32 n_nodes;
    i32 n_leaves;
};

// Go on choosing as long as the best node is split in the grown tree; whether it stopped for want of that. Threads keep
// the first of the places that they look after, and look again only where something has changed.
static __device__ __forceinline__ bool play_back(const Table& table, const Grown& grown, i32 max_leaves, double gamma,
                                                 Progress& progress, Waiting* room) {
    Waiting own = first_of_thread(grown, progress.n_waiting);
    while (progress.n_leaves < max_leaves) {
        const Waiting first = first_of_block(own, room);
        if (first.place < 0) return false;
        const i32 left = table.left(first.node), last = --progress.n_waiting, number = progress.n_nodes;
        if (left == LEAF) {
            ++progress.n_waiting;
            return true;
        }
        const double gains[2] = {grown.gain(left), grown.gain(left + 1)};
        if (threadIdx.x == 0) grown.waiting[first.place] = grown.waiting[last];
#pragma unroll
        for (i32 side = 0; side < 2; ++side) {
            const bool is_worth_it = gains[side] > LEAST_GAIN && gains[side] >= gamma;
            if (threadIdx.x == 0) {
                grown.chosen_as[left + side] = number + side;
                if (is_worth_it) grown.waiting[progress.n_waiting] = left + side;
            }
            progress.n_waiting += is_worth_it;
        }
        progress.n_nodes += 2;
        ++progress.n_leaves;
        __syncthreads();
        const u32 freed = first.place;
        const bool is_changed = threadIdx.x == freed % THREADS || (threadIdx.x - last) % THREADS < 3;  // or at the end
        if (is_changed) own = first_of_thread(grown, progress.n_waiting);
    }
    return false;
}

// Of the waiting nodes that may yet be chosen, those that are not split, in order, into `splits`; adds their number to
// `n_ahead`. Threads compare their node with all others, which pass through shared memory.
static __device__ __forceinline__ void find_ahead(const Table& table, const Grown& grown, i32 n_waiting, i32 left_over,
                                                  i32 width, i32 most_splits, double* gains, i32* room, i32* splits,
                                                  i32* n_ahead) {
    const i32 n_splits = grown.n_splits();
    for (i32 first = 0; first < n_waiting; first += THREADS) {
        const i32 place = first + static_cast<i32>(threadIdx.x);
        Waiting own = {NO_GAIN, 0, NONE, -1};
        if (place < n_waiting) own = waiting_at(grown, place);
        const bool is_asked = place < n_waiting && table.left(own.node) == LEAF;
        i32 n_before = 0, n_unsplit = 0;
        for (i32 start = 0; start < n_waiting; start += THREADS) {
            const i32 n = min(n_waiting - start, THREADS);
            if (static_cast<i32>(threadIdx.x) < n) {
                const Waiting other = waiting_at(grown, start + threadIdx.x);
                gains[threadIdx.x] = other.gain;
                room[threadIdx.x] = 2 * other.number + (table.left(other.node) == LEAF);
            }
            __syncthreads();
#pragma unroll 4
            for (i32 j = 0; is_asked && j < n; ++j) {
                const bool is_before = gains[j] > own.gain || (gains[j] == own.gain && room[j] / 2 < own.number);
                n_before += is_before;
                n_unsplit += is_before && room[j] % 2 != 0;
            }
            __syncthreads();
        }
        const bool fits = n_unsplit < width && n_splits + n_unsplit + left_over <= most_splits;
        if (is_asked && n_before < left_over && fits) {
            splits[n_unsplit] = own.node;
            atomicAdd(n_ahead, 1);
        }
    }
}
