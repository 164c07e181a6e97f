// Trees grow without the host: which of a level's splits are made, how children are numbered, and the leaves' values.
// The decisions are those of `daskboost/tree/growing_tree.py`, in its order and to the last bit.
//
//   start_trees     the root of every tree, from the sums of all rows
//   choose_splits   after the search of a level: its splits, and the nodes of the next level
//   finish_trees    leaf values
//
// A level has as many slots per tree as there could be nodes: 2**d at depth d, but no more than leaves. So the host knows
// the size of every launch before a tree begins. Nodes fill the first slots, and the children of split r of a level lie in
// slots 2 r and 2 r + 1 of the next one:
//
//   level d       slot     0     1         2     3         4       splits of slots 1 and 3; -1 : no node
//   split r                      0               1
//   level d + 1   slots    0     1         2     3         -1 ...
//                          built derived   derived built           rows build the lighter child's, into place r of `built`;
//                                                                  its sibling's goes to place r of `derived`
//
// One block per tree. In tables nodes are numbered within their tree, in `splits` and `built` over all trees, CAPACITY each.
//
// A tree whose leaves are vectors has sums of `n_outputs`, and grows alone.
//
// variants: THREADS=256 VECTORS=0,1
// usual: THREADS=256 VECTORS=0
// budget: start_trees registers=40+8*VECTORS shared=0
// budget: choose_splits registers=128+16*VECTORS shared=8*THREADS+96
// budget: finish_trees registers=64 shared=4*THREADS
#include "feature_shares.cuh"
#include "scan.cuh"
#include "select.cuh"
#include "tree_table.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `root_sums` : of g and h, `root_stride` numbers per tree; `given_rounding` alike. `built` : shape (trees,); `address` : of the first tree's root
// histogram, those of others follow.
extern "C" __global__ void __launch_bounds__(THREADS) start_trees(
    i32 n_outputs, TREES, LEVEL, const i64* root_sums, i32 root_stride, const double* given_rounding, i32 rounding_stride,
    i32 opens, double least_h, i32 is_symmetric, u64 address, u64 node_bytes, i32* built) {
    if (threadIdx.x > 0) return;
    const Table table = TABLE;
    const Level level = {nodes, own, parents, siblings, totals, bounds};
    const i64* root = root_sums + static_cast<i64>(blockIdx.x) * root_stride;
    table.size() = table.leaves() = 1;
    table.make(0, NONE, 0, root[0], root[1], -NO_LIMIT, NO_LIMIT);
    for (i32 output = 1; output < table.n_outputs; ++output) {
        table.g(0, output) = root[2 * output];
        table.h(0, output) = root[2 * output + 1];
    }
    table.take_rounding(given_rounding + static_cast<i64>(blockIdx.x) * rounding_stride, rounding_stride);
    const i32 node = opened(table, 0, opens, least_h, is_symmetric);
    level.put(table, blockIdx.x, node, address + blockIdx.x * node_bytes, 0, 0);
    built[blockIdx.x] = node == NONE ? NONE : static_cast<i32>(table.place(0));
}

// A level's splits that are worth it: the larger the gain, which is positive, the smaller the key.
struct WorthIt {
    const i64* results;
    const i32* nodes;
    double least;
    i32 n_outputs;

    __device__ __forceinline__ bool has(i32 slot) const { return is_worth_it(results, nodes, slot, least, n_outputs); }
    __device__ __forceinline__ u64 at(i32 slot) const {
        return ~static_cast<u64>(results[static_cast<i64>(slot) * results_of(n_outputs)]);
    }

    // Whether a slot's split is among the best; `n_equal` : slots before it that equal the last of those, counted up.
    __device__ __forceinline__ bool is_among(const Smallest& best, i32 slot, i32& n_equal) const {
        if (!has(slot) || at(slot) > best.last) return false;
        return at(slot) < best.last || n_equal++ < best.n_equal;
    }
};

// Splits of a level of `n` slots per tree; `results` : of its search, or to be taken from those of all GPUs. `splits` : as partition.cu takes them, for all trees.
// `next_*` : the next level, of `2 * n_pairs` slots per tree; `built` : shape (trees, n_pairs), the child of each split that
// rows build, whose histograms begin at `built_address`, the siblings' at `derived_address`.
extern "C" __global__ void __launch_bounds__(THREADS, 1) choose_splits(
    i32 n_outputs, TREES, LEVEL, i32 n, i64* results, SHARES, double lambda, double alpha, double max_step, double least_h,
    double gamma, i32 max_leaves, i32 opens, i32 is_symmetric, const i32* monotone,
    const i32* n_bins, i32* splits, i32 n_pairs, i32* next_nodes, u64* next_own, u64* next_parents, u64* next_siblings,
    i64* next_totals, double* next_bounds, i32* built, u64 built_address, u64 derived_address, u64 node_bytes) {
    __shared__ SelectRoom room;
    __shared__ i32 scanned[THREADS], n_of_all;
    const Table table = TABLE;
    const Level next = {next_nodes, next_own, next_parents, next_siblings, next_totals, next_bounds};
    const i64 first = static_cast<i64>(blockIdx.x) * n, n_slots = static_cast<i64>(gridDim.x) * n;
    const i32 size = table.size(), leaves = table.leaves();
    const i32 each = (n + THREADS - 1) / THREADS;
    const i32 begin = min(n, static_cast<i32>(threadIdx.x) * each), end = min(n, begin + each);
    const i64* own_results = results + first * results_of(table.n_outputs);
    const i32* own_nodes = nodes + first;
    const WorthIt worth = {own_results, own_nodes, least_gain(table, gamma), table.n_outputs};

    const FeatureShares shares = {found, first_features, n_shares, n_slots, results_of(table.n_outputs)};
    i32 n_worth = 0;
    for (i32 slot = begin; slot < end; ++slot) {
        shares.take_best(first + slot, results);
        n_worth += worth.has(slot);
    }
    i32 rank = scan_block(n_worth, scanned);
    if (threadIdx.x == THREADS - 1) n_of_all = rank + n_worth;
    __syncthreads();
    i32 n_chosen = n_of_all, n_equal = 0;
    __syncthreads();
    const i32 left_room = max_leaves - leaves;
    Smallest best = {~0ull, ALL_EQUAL};
    if (max_leaves > 0 && !is_symmetric && n_chosen > left_room) {
        best = select_smallest<THREADS>(KeysOfBlock<WorthIt>{worth, n}, left_room, room);
        for (i32 slot = begin; slot < end; ++slot) n_equal += worth.has(slot) && worth.at(slot) == best.last;
        n_equal = scan_block(n_equal, scanned);
        i32 n_own = 0, n_before = n_equal;
        for (i32 slot = begin; slot < end; ++slot) n_own += worth.is_among(best, slot, n_before);
        rank = scan_block(n_own, scanned);
        n_chosen = left_room;
    }
    const bool children_open = opens && !(max_leaves > 0 && leaves + n_chosen >= max_leaves);
    __syncthreads();  // all have read them
    if (threadIdx.x == 0) {
        table.size() = size + 2 * n_chosen;
        table.leaves() = leaves + n_chosen;
    }

    for (i32 slot = begin; slot < end; ++slot) {
        const i64 s = first + slot;
        i32* split = splits + s;
        if (!worth.is_among(best, slot, n_equal)) {
            split[0] = NONE;
            continue;
        }
        const i32 node = own_nodes[slot], left = size + 2 * rank++, base = static_cast<i32>(table.place(0));
        split_node(table, node, left, own_results + static_cast<i64>(slot) * results_of(table.n_outputs));
        split[0] = base + node;
        split[n_slots] = base + left;
        split[2 * n_slots] = base + left + 1;
        split[3 * n_slots] = table.feature(node);
        split[4 * n_slots] = table.bin(node);
        split[5 * n_slots] = table.default_left[table.place(node)];
    }
    for (i32 slot = begin; slot < end; ++slot) {  // apart from the loop above for want of registers
        if (splits[first + slot] != NONE)
            weigh_split(table, own_nodes[slot], {lambda, alpha, max_step, least_h}, monotone, n_bins);
    }
    const i64 first_pair = static_cast<i64>(blockIdx.x) * n_pairs;
    for (i32 slot = begin; slot < end; ++slot) {
        const i64 s = first + slot;
        if (splits[s] == NONE) continue;
        const i32 left = table.left(own_nodes[slot]), base = static_cast<i32>(table.place(0));
        const i64 pair = first_pair + (left - size) / 2;
        const i32 open_left = opened(table, left, children_open, least_h, is_symmetric);
        const i32 open_right = opened(table, left + 1, children_open, least_h, is_symmetric);
        const bool builds_left = is_left_lighter(table, left);
        const u64 at_built = built_address + pair * node_bytes, at_derived = derived_address + pair * node_bytes;
        const u64 parent = own[s];
        const bool is_built = open_left != NONE || open_right != NONE;
        built[pair] = is_built ? base + (builds_left ? left : left + 1) : NONE;
        next.put(table, 2 * pair, open_left, builds_left ? at_built : at_derived, builds_left ? 0 : parent, at_built);
        next.put(table, 2 * pair + 1, open_right, builds_left ? at_derived : at_built, builds_left ? parent : 0, at_built);
    }
    for (i32 pair = n_chosen + static_cast<i32>(threadIdx.x); pair < n_pairs; pair += THREADS) {
        built[first_pair + pair] = NONE;
        next.put(table, 2 * (first_pair + pair), NONE, 0, 0, 0);
        next.put(table, 2 * (first_pair + pair) + 1, NONE, 0, 0, 0);
    }
}

// `values` : shape (trees, capacity, outputs), what a leaf adds to margins. `learning_rate` : one number. `leaves` : shape (trees,
// most_leaves), the nodes that are leaves, numbered over all trees, in order; NONE behind them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) finish_trees(
    i32 n_outputs, TREES, double lambda, double alpha, double max_step, double least_h, const double* learning_rate,
    float* values, i32 most_leaves, i32* leaves) {
    __shared__ i32 room[THREADS];
    const Table table = TABLE;
    const i32 size = table.size(), each = (size + THREADS - 1) / THREADS;
    const i32 begin = min(size, static_cast<i32>(threadIdx.x) * each), end = min(size, begin + each);
    i32* const own_leaves = leaves + static_cast<i64>(blockIdx.x) * most_leaves;
    i32 n_leaves = 0;
    for (i32 node = begin; node < end; ++node) n_leaves += table.left(node) == LEAF;
    i32 rank = scan_block(n_leaves, room);
    for (i32 node = begin; node < end; ++node)
        if (table.left(node) == LEAF) own_leaves[rank++] = static_cast<i32>(table.place(node));
    for (i32 i = table.leaves() + static_cast<i32>(threadIdx.x); i < most_leaves; i += THREADS) own_leaves[i] = NONE;
    const Regular regular = {lambda, alpha, max_step, least_h};
    for (i32 i = threadIdx.x; i < size * table.n_outputs; i += THREADS) {
        const i32 node = i / table.n_outputs, output = i % table.n_outputs;
        const Bounds limits = {table.low(node), table.high(node)};
        const double value = leaf_weight(table.sums_of_node(node, output), regular, limits) * *learning_rate;
        values[table.place(node) * table.n_outputs + output] = static_cast<float>(clamp(value, -FLOAT_LIMIT, FLOAT_LIMIT));
    }
}
