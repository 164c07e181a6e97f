// Trees that grow best first: the node of the largest gain splits, one at a time, until there are `max_leaves` leaves. The
// trees are those of the policy `Lossguide` of `daskboost/tree/growing_tree.py`; what differs is the order of the work.
//
// One split at a time would leave a GPU idle. So nodes are split ahead, many in one step: those that may yet be chosen
// (ahead.cuh), children of nodes among them that were split ahead themselves. What is split is the *grown* tree; the
// strict order is played back over it, and goes on as long as the next best node has been split there:
//
//   start_best       the root
//   choose_best      take in the search of the last step; play back; find the nodes to split ahead, split them, open their
//                    children
//   finish_best      the chosen tree, in the order of its splits, and leaf values
//
// Nodes of the grown tree that the order never chose are none of the chosen one. A grown node's histogram has a place in
// memory, to which the search brings what rows have added up in a step; the child that rows do not build takes its parent's.
//
// variants: MOST_LEAVES=1024,8192
// budget: start_best registers=40 shared=0
// budget: choose_best registers=128 shared=20*SHARED_LEAVES+8*THREADS+8*THREADS/32+64
// budget: finish_best registers=96 shared=0
#ifndef THREADS
#define THREADS 256
#endif
#ifndef MOST_LEAVES
#define MOST_LEAVES 1024
#endif
#if MOST_LEAVES > 1024
#define SHARED_LEAVES 0
#else
#define SHARED_LEAVES MOST_LEAVES
#endif

#include "ahead.cuh"

// The root; arguments as in grow.cu, for one tree. `built` : shape (width,), nodes whose histograms rows build:
// at `added`, one behind the other. `kept` : where the places of histograms begin.
extern "C" __global__ void __launch_bounds__(THREADS) start_best(
    TREES, GROWN, LEVEL, const i64* root_sums, const double* given_rounding, i32 opens, double least_h, i32 width,
    u64 kept, u64 added, i32* built) {
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
    const Grown grown = GROWN_TREE;
    table.size() = table.leaves() = 1;
    table.take_rounding(given_rounding, ROUNDING);
    table.make(0, NONE, 0, root_sums[0], root_sums[1], -NO_LIMIT, NO_LIMIT);
    grown.n_waiting() = grown.n_splits() = 0;
    grown.n_nodes() = grown.n_leaves() = grown.goes_on() = 1;
    chosen_as[0] = waiting[0] = 0;
    places[0] = 0;
    const i32 node = opened(table, 0, opens, least_h, false);
    level.put(table, 0, node, kept, added, 0);
    built[0] = node;
}

// Split the nodes that stand in the first row of `splits`, and open their children. `kept`, `added` : addresses of
// histograms.
static __device__ __forceinline__ void split_ahead(
    const Table& table, const Grown& grown, const Level& level, i32 width, const Regular& regular, i32 max_depth,
    const i32* monotone, const i32* n_bins, i32* splits, i32* built, u64 kept, u64 added, u64 node_bytes) {
    const i32 n_splits = grown.n_splits();
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {
        const i32 node = splits[slot], left = 1 + 2 * (n_splits + slot);
        if (node == NONE) continue;
        split_node(table, node, left, grown.found + static_cast<i64>(node) * RESULTS);
        splits[width + slot] = left;
        splits[2 * width + slot] = left + 1;
        splits[3 * width + slot] = table.feature(node);
        splits[4 * width + slot] = table.bin(node);
        splits[5 * width + slot] = table.default_left[node];
    }
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {  // apart from the others for want of registers
        if (splits[slot] != NONE) weigh_split(table, splits[slot], regular, monotone, n_bins);
    }
    for (i32 slot = threadIdx.x; slot < width; slot += THREADS) {
        const i32 node = splits[slot];
        built[slot] = NONE;
        if (node == NONE) {
            level.put(table, 2 * slot, NONE, 0, 0, 0);
            level.put(table, 2 * slot + 1, NONE, 0, 0, 0);
            continue;
        }
        const i32 left = table.left(node);
        const bool opens = table.depth(left) < max_depth, builds_left = table.h(left) <= table.h(left + 1);
        const i32 open_left = opened(table, left, opens, regular.least_h, false);
        const i32 open_right = opened(table, left + 1, opens, regular.least_h, false);
        const i32 own_place = 1 + n_splits + slot, parent_place = grown.places[node];
        const u64 at_parent = kept + parent_place * node_bytes, at_added = added + slot * node_bytes;
        grown.places[left] = builds_left ? own_place : parent_place;
        grown.places[left + 1] = builds_left ? parent_place : own_place;
        if (open_left != NONE || open_right != NONE) built[slot] = builds_left ? left : left + 1;
        const i32 open_built = builds_left ? open_left : open_right, open_other = builds_left ? open_right : open_left;
        level.put(table, 2 * slot + !builds_left, open_built, kept + own_place * node_bytes, at_added, 0);
        level.put(table, 2 * slot + builds_left, open_other, at_parent, at_parent, at_added);
    }
}

// One block. `results` : of the search of `nodes`, shape (2 width, RESULTS). `splits` : shape (6, width), as partition.cu takes
// them. `most_splits` : of the grown tree, at least `max_leaves` - 1. The others are as above.
extern "C" __global__ void __launch_bounds__(THREADS, 1) choose_best(
    TREES, GROWN, LEVEL, const i64* results, i32 width, double gamma, i32 max_leaves, i32 most_splits, double lambda,
    double alpha, double max_step, double least_h, i32 max_depth, const i32* monotone, const i32* n_bins, i32* splits,
    i32* built, u64 kept, u64 added, u64 node_bytes) {
    __shared__ Queue queue;
    __shared__ u64 first_keys[THREADS];
    __shared__ u32 room[2 * THREADS / WARP];
    __shared__ Progress progress;
    __shared__ i32 next, n_keys, n_ahead;
    const Table table = TABLE;
    const Grown grown = GROWN_TREE;
    if (!grown.goes_on()) return;  // the last step has left no split
    const double least = least_gain(table, gamma);
    for (i32 i = threadIdx.x; i < 2 * width * RESULTS; i += THREADS) {
        const i32 node = nodes[i / RESULTS];
        if (node != NONE) found[static_cast<i64>(node) * RESULTS + i % RESULTS] = results[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        queue.take_room(queue_room);
        progress = {grown.n_waiting(), grown.n_nodes(), grown.n_leaves()};
        n_keys = n_ahead = 0;
        if (nodes[0] == 0) progress.n_waiting = grown.gain(0) >= least;  // the root
    }
    __syncthreads();
    queue.load(table, grown, progress.n_waiting);
    __syncthreads();
    if (threadIdx.x < WARP) {
        Progress reached = progress;
        const i32 stopped_at = play_back(table, grown, max_leaves, least, reached, queue);
        __syncwarp();  // all have read where they begin
        if (threadIdx.x == 0) {
            progress = reached;
            next = stopped_at;
        }
    }
    __syncthreads();
    queue.store(grown, progress.n_waiting);
    if (next != NONE) {
        const i32 left_over = max_leaves - progress.n_leaves, room_ahead = 1 + most_splits - grown.n_splits() - left_over;
        find_ahead(table, grown, next, least, left_over, min(width, room_ahead), first_keys, room, &n_keys, &n_ahead, splits);
    }
    __syncthreads();
    for (i32 slot = n_ahead + threadIdx.x; slot < width; slot += THREADS) splits[slot] = NONE;
    __syncthreads();
    split_ahead(table, grown, {nodes, own, parents, siblings, totals, bounds}, width, {lambda, alpha, max_step, least_h},
                max_depth, monotone, n_bins, splits, built, kept, added, node_bytes);
    __syncthreads();
    if (threadIdx.x > 0) return;
    grown.n_waiting() = progress.n_waiting;
    grown.n_nodes() = progress.n_nodes;
    grown.n_leaves() = progress.n_leaves;
    grown.goes_on() = next != NONE;
    grown.n_splits() += n_ahead;
    table.size() = 1 + 2 * grown.n_splits();
}

// One block. The chosen tree into tables of its own (`out_*`, `out_capacity` nodes, in the order of `TREES`), with
// `values` of its nodes.
extern "C" __global__ void __launch_bounds__(THREADS, 1) finish_best(
    TREES, GROWN, double lambda, double alpha, double max_step, double least_h, const double* learning_rate,
    i32 out_capacity, i32* out_sizes, i32* out_links, i64* out_sums, double* out_limits, double* out_gains, u8* out_default_left,
    double* out_rounding, float* values) {
    const Table table = TABLE;
    const Grown grown = GROWN_TREE;
    const Table out = {out_capacity, out_sizes, out_links, out_sums, out_limits, out_gains, out_default_left, out_rounding, 0};
    const i32 size = table.size();
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        if (chosen_as[node] == NONE) continue;
        const Sums own = sums_of(table.g(node), table.h(node), table.unit[0], table.unit[1]);
        const Bounds limits = {table.low(node), table.high(node)};
        const double value = leaf_weight(own, {lambda, alpha, max_step, least_h}, limits) * *learning_rate;
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
        out.take_rounding(table.unit, ROUNDING);
    }
}
