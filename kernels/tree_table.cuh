// Trees under construction on the device: their tables, the nodes that are searched, and what a split does to them. The
// arithmetic is that of `daskboost/tree/growing_tree.py`, to the last bit.
//
// With VECTORS leaves are vectors: a single tree has `n_outputs` of all that is by output; others have one.
#pragma once

#include "gain.cuh"

#ifndef VECTORS
#define VECTORS 0
#endif

constexpr i32 LEAF = -1;
constexpr i32 NONE = -1;
constexpr double SMALLEST_POSITIVE = 0x1p-1074;
constexpr i32 ROUNDING = 5;  // numbers of a tree's rounding
constexpr double FLOAT_LIMIT = 0x1.fffffep+127;

// The tables of all trees, `capacity` nodes each.
#define TREES                                                                                                  \
    i32 capacity, i32 *sizes, i32 *links, i64 *sums, double *limits, double *gains, u8 *default_left, double *rounding
#define TABLE_WITHOUT_OUTPUTS \
    capacity, sizes, links, sums, limits, gains, default_left, rounding + ROUNDING * blockIdx.x, static_cast<i32>(blockIdx.x)
#if VECTORS
#define TABLE {TABLE_WITHOUT_OUTPUTS, n_outputs}
#else
#define TABLE {TABLE_WITHOUT_OUTPUTS}
#endif

struct Table {
    i32 capacity;
    i32* sizes;      // shape (trees, 2): nodes, leaves
    i32* links;      // shape (trees, 6, capacity): parent, depth, left and right child, feature, bin
    i64* sums;       // shape (trees, capacity, outputs, 2): g and h
    double* limits;  // shape (trees, capacity, 2): of the leaf value
    double* gains;   // shape (trees, capacity)
    u8* default_left;
    double* unit;  // shape (outputs, ROUNDING): what a quantum of g and of h is worth, the largest |g| and h, the gain of noise
    i32 tree;
#if VECTORS
    i32 n_outputs;
#else
    static constexpr i32 n_outputs = 1;
#endif

    __device__ __forceinline__ i32& link(i32 column, i32 node) const {
        return links[(static_cast<i64>(tree) * 6 + column) * capacity + node];
    }
    __device__ __forceinline__ i32& parent(i32 node) const { return link(0, node); }
    __device__ __forceinline__ i32& depth(i32 node) const { return link(1, node); }
    __device__ __forceinline__ i32& left(i32 node) const { return link(2, node); }
    __device__ __forceinline__ i32& right(i32 node) const { return link(3, node); }
    __device__ __forceinline__ i32& feature(i32 node) const { return link(4, node); }
    __device__ __forceinline__ i32& bin(i32 node) const { return link(5, node); }
    __device__ __forceinline__ i64 place(i32 node) const { return static_cast<i64>(tree) * capacity + node; }
    __device__ __forceinline__ i64& g(i32 node, i32 output = 0) const {
        return sums[2 * (place(node) * n_outputs + output)];
    }
    __device__ __forceinline__ i64& h(i32 node, i32 output = 0) const {
        return sums[2 * (place(node) * n_outputs + output) + 1];
    }
    __device__ __forceinline__ const double* unit_of(i32 output) const { return unit + ROUNDING * output; }
    __device__ __forceinline__ Sums sums_of_node(i32 node, i32 output = 0) const {
        return sums_of(g(node, output), h(node, output), unit_of(output)[0], unit_of(output)[1]);
    }
    __device__ __forceinline__ double& low(i32 node) const { return limits[2 * place(node)]; }
    __device__ __forceinline__ double& high(i32 node) const { return limits[2 * place(node) + 1]; }
    __device__ __forceinline__ i32& size() const { return sizes[2 * tree]; }
    __device__ __forceinline__ i32& leaves() const { return sizes[2 * tree + 1]; }

    // `given` : `stride` numbers per output.
    __device__ __forceinline__ void take_rounding(const double* given, i32 stride) const {
        for (i32 output = 0; output < n_outputs; ++output)
            for (i32 i = 0; i < ROUNDING; ++i) unit[ROUNDING * output + i] = given[output * stride + i];
    }

    // `g_`, `h_` : sums of the first output; callers give the node those of others.
    __device__ __forceinline__ void make(i32 node, i32 parent_, i32 depth_, i64 g_, i64 h_, double low_,
                                         double high_) const {
        parent(node) = parent_;
        depth(node) = depth_;
        left(node) = right(node) = LEAF;
        feature(node) = 0;
        bin(node) = -1;
        g(node) = g_;
        h(node) = h_;
        low(node) = low_;
        high(node) = high_;
        gains[place(node)] = 0.0;
        default_left[place(node)] = 0;
    }
};

// The nodes of a level, as the search takes them.
#define LEVEL i32 *nodes, u64 *own, u64 *parents, u64 *siblings, i64 *totals, double *bounds

struct Level {
    i32* nodes;
    u64* own;
    u64* parents;
    u64* siblings;
    i64* totals;
    double* bounds;

    // Put a node into a slot; NONE leaves it empty.
    __device__ __forceinline__ void put(const Table& table, i64 slot, i32 node, u64 own_, u64 parent, u64 sibling) const {
        nodes[slot] = node;
        own[slot] = node == NONE ? 0 : own_;
        if (node == NONE) return;
        parents[slot] = parent;
        siblings[slot] = sibling;
        const i64* const sums = &table.g(node);
        for (i32 i = 0; i < 2 * table.n_outputs; ++i) totals[2 * slot * table.n_outputs + i] = sums[i];
        bounds[2 * slot] = table.low(node);
        bounds[2 * slot + 1] = table.high(node);
    }
};

// Whether the best split of a node is worth finding, `opens` being false where depth or the number of leaves forbid it.
static __device__ __forceinline__ i32 opened(const Table& table, i32 node, bool opens, double least_h,
                                             bool is_symmetric) {
#if VECTORS
    bool is_heavy = false;
    for (i32 output = 0; output < table.n_outputs; ++output)
        is_heavy = is_heavy || table.sums_of_node(node, output).h >= least_h;
#else
    const bool is_heavy = table.h(node) * table.unit[1] >= 2.0 * least_h;
#endif
    return opens && (is_heavy || is_symmetric) ? node : NONE;
}

// Whether the left child of a node has no larger sum of hessians than the right one.
static __device__ __forceinline__ bool is_left_lighter(const Table& table, i32 left) {
#if VECTORS
    double heavier = 0.0;
    for (i32 output = 0; output < table.n_outputs; ++output)
        heavier += table.sums_of_node(left, output).h - table.sums_of_node(left + 1, output).h;
    return heavier <= 0.0;
#else
    return table.h(left) <= table.h(left + 1);
#endif
}

static __device__ __forceinline__ double gain_of(const i64* results, i32 slot, i32 n_outputs = 1) {
    return __longlong_as_double(results[static_cast<i64>(slot) * results_of(n_outputs)]);
}

// The least gain of a split: `least_gain` of `daskboost/tree/growing_tree.py`.
static __device__ __forceinline__ double least_gain(const Table& table, double gamma) {
    double noise = 0.0;
    for (i32 output = 0; output < table.n_outputs; ++output) noise += table.unit_of(output)[4];
    return larger(larger(gamma, noise), SMALLEST_POSITIVE);
}

static __device__ __forceinline__ bool is_worth_it(const i64* results, const i32* nodes, i32 slot, double least,
                                                   i32 n_outputs) {
    return nodes[slot] != NONE && gain_of(results, slot, n_outputs) >= least;
}

// Give a node two children, `left` and the one after it; `result` : of its search.
static __device__ __forceinline__ void split_node(const Table& table, i32 node, i32 left, const i64* result) {
    const i32 depth = table.depth(node) + 1;
    const double low = table.low(node), high = table.high(node);
    table.left(node) = left;
    table.right(node) = left + 1;
    table.feature(node) = static_cast<i32>(result[1]);
    table.bin(node) = static_cast<i32>(result[2]);
    table.default_left[table.place(node)] = result[3] != 0;
    table.make(left, node, depth, result[4], result[5], low, high);
    table.make(left + 1, node, depth, table.g(node) - result[4], table.h(node) - result[5], low, high);
    for (i32 output = 1; output < table.n_outputs; ++output) {
        const i64 g = result[4 + 2 * output], h = result[5 + 2 * output];
        table.g(left, output) = g;
        table.h(left, output) = h;
        table.g(left + 1, output) = table.g(node, output) - g;
        table.h(left + 1, output) = table.h(node, output) - h;
    }
}

// A split's gain as trees record it, and the values of its sides.
struct Sides {
    double gain;
    double left;
    double right;
};

static __device__ __forceinline__ Sides weigh_sides(const Table& table, i32 node, Regular regular) {
    const i32 left = table.left(node);
    const Bounds limits = {table.low(node), table.high(node)};
    Sides sides = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (i32 which = 0; which < 3; ++which) {  // one copy of the division
        const i32 whose = which < 2 ? left + which : node;
        const Sums sums = sums_of(table.g(whose), table.h(whose), table.unit[0], table.unit[1]);
        const double weight = leaf_weight(sums, regular, limits);
        const double own_gain = gain_of_weight(sums, weight, regular);
        sides.gain += which < 2 ? own_gain : -own_gain;
        if (which == 0) sides.left = weight;
        if (which == 1) sides.right = weight;
    }
    return sides;
}

// The gain of a split of several outputs, as trees record it.
static __device__ __forceinline__ double gain_of_vectors(const Table& table, i32 node, Regular regular) {
    const i32 left = table.left(node);
    double children = 0.0, parent = 0.0;
    for (i32 output = 0; output < table.n_outputs; ++output) {
        const double own = gain_of_output(table.sums_of_node(left, output), regular, false);
        children += own + gain_of_output(table.sums_of_node(left + 1, output), regular, false);
        parent += gain_of_output(table.sums_of_node(node, output), regular, false);
    }
    return children - parent;
}

// The gain of a node's split, and its children's limits, which vectors have none of.
static __device__ __forceinline__ void weigh_split(const Table& table, i32 node, Regular regular, const i32* monotone,
                                                   const i32* n_bins) {
#if VECTORS
    static_cast<void>(monotone);
    static_cast<void>(n_bins);
    table.gains[table.place(node)] = gain_of_vectors(table, node, regular);
#else
    const i32 left = table.left(node);
    const Sides sides = weigh_sides(table, node, regular);
    table.gains[table.place(node)] = sides.gain;
    // Sides of constrained splits are kept apart at the middle; of present and missing values, either may be the higher.
    i32 direction = monotone[table.feature(node)];
    if (direction == 0) return;
    if (table.bin(node) == n_bins[table.feature(node)] - 1)
        direction = sides.right > sides.left ? 1 : sides.right < sides.left ? -1 : 0;
    const double middle = (sides.left + sides.right) / 2.0;
    if (direction < 0) table.low(left) = table.high(left + 1) = middle;
    if (direction > 0) table.high(left) = table.low(left + 1) = middle;
#endif
}
