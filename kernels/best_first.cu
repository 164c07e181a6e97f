// Trees that grow best first: the node of the largest gain splits, one at a time, until there are `max_leaves` leaves. The
// trees are those of the policy `Lossguide` of `daskboost/tree/growth.py`; what differs is the order of the work.
//
// One split at a time would leave a GPU idle. So nodes are split ahead, up to WIDTH in one step: those that may yet be
// chosen, since fewer than the remaining splits are better. What is split is the *grown* tree; the strict order is played
// back over it, and goes on as long as the next best node has been split there:
//
//   start_best       the root
//   keep_histograms  what rows have added up in a step, to its place
//   choose_best      take in the search of the last step; play back; find the nodes to split ahead
//   split_best       split them, open their children
//   finish_best      the chosen tree, in the order of its splits, and leaf values
//
// Nodes of the grown tree that the order never chose are none of the chosen one. A grown node's histogram has a place in memory; the child that rows do not build takes its
// parent's.
//
// variants: THREADS=256
// budget: start_best registers=40 shared=0
// budget: choose_best registers=64 shared=12*THREADS+64
// budget: split_best registers=128 shared=0
// budget: finish_best registers=96 shared=0
// budget: keep_histograms registers=32 shared=0
#include "scan.cuh"
#include "tree_table.cuh"

#ifndef THREADS
#define THREADS 256
#endif

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
    // Whether a node of the chosen tree comes before another.
    __device__ __forceinline__ bool is_before(double gain_, i32 node, double other_gain, i32 other) const {
        return gain_ > other_gain || (gain_ == other_gain && chosen_as[node] < chosen_as[other]);
    }
};

// The root; arguments as in grow.cu, for one tree. `built` : shape (WIDTH,), `built_places` : the same, of histograms.
extern "C" __global__ void __launch_bounds__(THREADS) start_best(
    TREES, GROWN, LEVEL, const i64* root_sums, const double* given_rounding, i32 opens, double least_h, i32 width,
    u64 address, i32* built, i32* built_places) {
    const Level level = {nodes, own, parents, siblings, totals, bounds};
    for (i32 slot = threadIdx.x; slot < 2 * width; slot += THREADS) {
        nodes[slot] = NONE;
        own[slot] = 0;
        if (slot < width) built[slot] = NONE;
    }
    for (i32 node = threadIdx.x; node < capacity; node += THREADS) {
        chosen_as[node] = NONE;
        found[static_cast<i64>(node) * RESULTS] = __double_as_longlong(NO_GAIN);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const Table table = TABLE;
    const Grown grown = {found, chosen_as, places, waiting, counts};
    table.size() = table.leaves() = 1;
    table.take_rounding(given_rounding);
    table.make(0, NONE, 0, root_sums[0], root_sums[1], -NO_LIMIT, NO_LIMIT);
    grown.n_waiting() = grown.n_splits() = 0;
    grown.n_nodes() = grown.n_leaves() = grown.goes_on() = 1;
    chosen_as[0] = 0;
    places[0] = built_places[0] = 0;
    const i32 node = opened(table, 0, opens, least_h, false);
    level.put(table, 0, node, address, 0, 0);
    built[0] = node;
}

// The first of the waiting nodes in the order of choice, as its place among them, to all threads; -1 if there is none.
static __device__ __forceinline__ i32 first_waiting(const Grown& grown, double* gains, i32* best) {
    i32 own = -1;
    double own_gain = NO_GAIN;
    for (i32 i = threadIdx.x; i < grown.n_waiting(); i += THREADS) {
        const i32 node = grown.waiting[i];
        if (own < 0 || grown.is_before(grown.gain(node), node, own_gain, grown.waiting[own])) {
            own = i;
            own_gain = grown.gain(node);
        }
    }
    gains[threadIdx.x] = own_gain;
    best[threadIdx.x] = own;
    __syncthreads();
    for (i32 half = THREADS / 2; half > 0; half /= 2) {
        const i32 other = threadIdx.x + half;
        if (static_cast<i32>(threadIdx.x) < half && best[other] >= 0 &&
            (best[threadIdx.x] < 0 || grown.is_before(gains[other], grown.waiting[best[other]], gains[threadIdx.x],
                                                      grown.waiting[best[threadIdx.x]]))) {
            gains[threadIdx.x] = gains[other];
            best[threadIdx.x] = best[other];
        }
        __syncthreads();
    }
    const i32 result = best[0];
    __syncthreads();
    return result;
}

// Go on choosing as long as the best node is split in the grown tree; whether it stopped for want of that.
static __device__ __forceinline__ bool play_back(const Table& table, const Grown& grown, i32 max_leaves, double gamma,
                                                 double* gains, i32* best) {
    while (grown.n_leaves() < max_leaves) {
        const i32 place = first_waiting(grown, gains, best);
        if (place < 0) return false;
        const i32 node = grown.waiting[place], left = table.left(node);
        if (left == LEAF) return true;
        __syncthreads();  // all have read what changes now
        if (threadIdx.x == 0) {
            grown.waiting[place] = grown.waiting[--grown.n_waiting()];
            for (i32 child = left; child <= left + 1; ++child) {
                grown.chosen_as[child] = grown.n_nodes()++;
                if (grown.gain(child) > LEAST_GAIN && grown.gain(child) >= gamma)
                    grown.waiting[grown.n_waiting()++] = child;
            }
            ++grown.n_leaves();
        }
        __syncthreads();
    }
    return false;
}

// One block. `results` : of the search of `nodes`, shape (2 width, RESULTS). `splits` : shape (6, width), as partition.cu takes
// them. `most_splits` : of the grown tree, at least `max_leaves` - 1.
extern "C" __global__ void __launch_bounds__(THREADS, 1) choose_best(
    TREES, GROWN, const i32* nodes, const i64* results, i32 width, double gamma, i32 max_leaves, i32 most_splits,
    i32* splits) {
    __shared__ double gains_[THREADS];
    __shared__ i32 room[THREADS];
    __shared__ i32 n_ahead;
    const Table table = TABLE;
    const Grown grown = {found, chosen_as, places, waiting, counts};
    if (!grown.goes_on()) return;  // the last step has left no split
    for (i32 i = threadIdx.x; i < 2 * width * RESULTS; i += THREADS) {
        const i32 node = nodes[i / RESULTS];
        if (node != NONE) found[static_cast<i64>(node) * RESULTS + i % RESULTS] = results[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        n_ahead = 0;
        if (nodes[0] == 0 && grown.gain(0) > LEAST_GAIN && grown.gain(0) >= gamma) waiting[grown.n_waiting()++] = 0;
    }
    __syncthreads();
    const bool is_blocked = play_back(table, grown, max_leaves, gamma, gains_, room);
    __syncthreads();

    // Of the waiting nodes that may yet be chosen, those that are not split: into `splits` for now.
    const i32 left_over = max_leaves - grown.n_leaves(), n_waiting = is_blocked ? grown.n_waiting() : 0;
    const i32 n_splits = grown.n_splits();
    for (i32 i = threadIdx.x; i < n_waiting; i += THREADS) {
        const i32 node = waiting[i];
        i32 n_before = 0, n_unsplit = 0;
        for (i32 j = 0; j < n_waiting; ++j) {
            if (!grown.is_before(grown.gain(waiting[j]), waiting[j], grown.gain(node), node)) continue;
            ++n_before;
            n_unsplit += table.left(waiting[j]) == LEAF;
        }
        const bool fits = n_unsplit < width && n_splits + n_unsplit + left_over <= most_splits;
        if (table.left(node) == LEAF && n_before < left_over && fits) {
            splits[n_unsplit] = node;
            atomicAdd(&n_ahead, 1);
        }
    }
    __syncthreads();

    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {
        if (slot >= n_ahead) splits[slot] = NONE;
    }
    if (threadIdx.x == 0) {
        grown.n_ahead() = n_ahead;
        grown.goes_on() = is_blocked;
    }
}

// One block: split the nodes in `splits`, of which choose_best has found the first row, and open their children. `built`,
// `built_places` : nodes whose histograms rows build, and the places of those.
extern "C" __global__ void __launch_bounds__(THREADS, 1) split_best(
    TREES, GROWN, LEVEL, i32 width, double lambda, double alpha, double max_step, double least_h, i32 max_depth,
    const i32* monotone, const i32* n_bins, i32* splits, i32* built, i32* built_places, u64 address, u64 node_bytes) {
    const Table table = TABLE;
    const Grown grown = {found, chosen_as, places, waiting, counts};
    const Level next = {nodes, own, parents, siblings, totals, bounds};
    const i32 n_splits = grown.n_splits();
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {
        const i32 node = splits[slot], left = 1 + 2 * (n_splits + slot);
        if (node == NONE) continue;
        split_node(table, node, left, found + static_cast<i64>(node) * RESULTS);
        splits[width + slot] = left;
        splits[2 * width + slot] = left + 1;
        splits[3 * width + slot] = table.feature(node);
        splits[4 * width + slot] = table.bin(node);
        splits[5 * width + slot] = table.default_left[node];
    }
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {  // apart from the others for want of registers
        if (splits[slot] != NONE) weigh_split(table, splits[slot], {lambda, alpha, max_step, 0.0}, monotone, n_bins);
    }
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {
        const i32 node = splits[slot];
        built[slot] = NONE;
        if (node == NONE) {
            next.put(table, 2 * slot, NONE, 0, 0, 0);
            next.put(table, 2 * slot + 1, NONE, 0, 0, 0);
            continue;
        }
        const i32 left = table.left(node);
        const bool opens = table.depth(left) < max_depth, builds_left = table.h(left) <= table.h(left + 1);
        const i32 open_left = opened(table, left, opens, least_h, false);
        const i32 open_right = opened(table, left + 1, opens, least_h, false);
        const i32 own_place = 1 + n_splits + slot, parent_place = places[node];
        const u64 at_built = address + own_place * node_bytes, at_parent = address + parent_place * node_bytes;
        places[left] = builds_left ? own_place : parent_place;
        places[left + 1] = builds_left ? parent_place : own_place;
        built_places[slot] = own_place;
        if (open_left != NONE || open_right != NONE) built[slot] = builds_left ? left : left + 1;
        next.put(table, 2 * slot, open_left, builds_left ? at_built : at_parent, builds_left ? 0 : at_parent, at_built);
        next.put(table, 2 * slot + 1, open_right, builds_left ? at_parent : at_built, builds_left ? at_parent : 0,
                 at_built);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        grown.n_splits() = n_splits + grown.n_ahead();
        table.size() = 1 + 2 * grown.n_splits();
    }
}

// One block. The chosen tree into tables of its own (`out_*`, `out_capacity` nodes, in the order of `TREES`), with
// `values` of its nodes.
extern "C" __global__ void __launch_bounds__(THREADS, 1) finish_best(
    TREES, GROWN, double lambda, double alpha, double max_step, const double* learning_rate, i32 out_capacity,
    i32* out_sizes, i32* out_links, i64* out_sums, double* out_limits, double* out_gains, u8* out_default_left,
    double* out_rounding, float* values) {
    const Table table = TABLE;
    const Grown grown = {found, chosen_as, places, waiting, counts};
    const Table out = {out_capacity, out_sizes, out_links, out_sums, out_limits, out_gains, out_default_left, out_rounding, 0};
    const i32 size = table.size();
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        if (chosen_as[node] == NONE) continue;
        const Sums own = sums_of(table.g(node), table.h(node), table.unit[0], table.unit[1]);
        const Bounds limits = {table.low(node), table.high(node)};
        const double value = leaf_weight(own, {lambda, alpha, max_step, 0.0}, limits) * *learning_rate;
        values[chosen_as[node]] = static_cast<float>(clamp(value, -FLOAT_LIMIT, FLOAT_LIMIT));
    }
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        const i32 number = chosen_as[node], left = table.left(node);
        if (number == NONE) continue;
        const i32 parent = node == 0 ? NONE : chosen_as[table.parent(node)];
        out.make(number, parent, table.depth(node), table.g(node), table.h(node), table.low(node), table.high(node));
        if (left == LEAF || chosen_as[left] == NONE) continue;
        out.left(number) = chosen_as[left];
        out.right(number) = chosen_as[left + 1];
        out.feature(number) = table.feature(node);
        out.bin(number) = table.bin(node);
        out.gains[number] = table.gains[node];
        out.default_left[number] = table.default_left[node];
    }
    if (threadIdx.x == 0) {
        out.size() = grown.n_nodes();
        out.leaves() = grown.n_leaves();
        out.take_rounding(table.unit);
    }
}

// Histograms of built nodes from where rows have been added up to their places. A block row of `gridDim.x / width` blocks
// per slot; `n` : numbers of a histogram.
extern "C" __global__ void __launch_bounds__(THREADS) keep_histograms(
    const i32* built, const i32* built_places, i32 width, i64 n, const i64* added, i64* kept) {
    const i32 slot = blockIdx.x % width;
    if (built[slot] == NONE) return;
    const i64* from = added + slot * n;
    i64* to = kept + built_places[slot] * n;
    const i64 first = static_cast<i64>(blockIdx.x / width) * THREADS + threadIdx.x;
    for (i64 i = first; i < n; i += static_cast<i64>(gridDim.x / width) * THREADS) to[i] = from[i];
}
