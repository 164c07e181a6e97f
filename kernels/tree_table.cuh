// Trees under construction on the device: their tables, the nodes that are searched, and what a split does to them. The
// arithmetic is that of `daskboost/tree/growing_tree.py`, to the last bit.
#pragma once

#include "gain.cuh"

constexpr i32 LEAF = -1;
constexpr i32 NONE = -1;
constexpr double SMALLEST_POSITIVE = 0x1p-1074;
constexpr i32 ROUNDING = 5;  // numbers of a tree's rounding
constexpr double FLOAT_LIMIT = 0x1.fffffep+127;

// The tables of all trees, `capacity` nodes each.
#define TREES                                                                                                  \
    i32 capacity, i32 *sizes, i32 *links, i64 *sums, double *limits, double *gains, u8 *default_left, double *rounding
#define TABLE \
    {capacity, sizes, links, sums, limits, gains, default_left, rounding + ROUNDING * blockIdx.x, static_cast<i32>(blockIdx.x)}

struct Table {
    i32 capacity;
    i32* sizes;      // shape (trees, 2): nodes, leaves
    i32* links;      // shape (trees, 6, capacity): parent, depth, left and right child, feature, bin
    i64* sums;       // shape (trees, capacity, 2): g and h
    double* limits;  // shape (trees, capacity, 2): of the leaf value
    double* gains;   // shape (trees, capacity)
    u8* default_left;
    double* unit;  // what a quantum of g and of h is worth, the largest |g| and h, and the gain of noise
    i32 tree;

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
    __device__ __forceinline__ i64& g(i32 node) const { return sums[2 * place(node)]; }
    __device__ __forceinline__ i64& h(i32 node) const { return sums[2 * place(node) + 1]; }
    __device__ __forceinline__ double& low(i32 node) const { return limits[2 * place(node)]; }
    __device__ __forceinline__ double& high(i32 node) const { return limits[2 * place(node) + 1]; }
    __device__ __forceinline__ i32& size() const { return sizes[2 * tree]; }
    __device__ __forceinline__ i32& leaves() const { return sizes[2 * tree + 1]; }

    __device__ __forceinline__ void take_rounding(const double* given) const {
        for (i32 i = 0; i < ROUNDING; ++i) unit[i] = given[i];
    }

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
        totals[2 * slot] = table.g(node);
        totals[2 * slot + 1] = table.h(node);
        bounds[2 * slot] = table.low(node);
        bounds[2 * slot + 1] = table.high(node);
    }
};

// Whether the best split of a node is worth finding, `opens` being false where depth or the number of leaves forbid it.
static __device__ __forceinline__ i32 opened(const Table& table, i32 node, bool opens, double least_h,
                                             bool is_symmetric) {
    const bool is_heavy = table.h(node) * table.unit[1] >= 2.0 * least_h;
    return opens && (is_heavy || is_symmetric) ? node : NONE;
}

static __device__ __forceinline__ double gain_of(const i64* results, i32 slot) {
    return __longlong_as_double(results[static_cast<i64>(slot) * RESULTS]);
}

// The least gain of a split: `least_gain` of `daskboost/tree/growing_tree.py`.
static __device__ __forceinline__ double least_gain(const Table& table, double gamma) {
    return larger(larger(gamma, table.unit[4]), SMALLEST_POSITIVE);
}

static __device__ __forceinline__ bool is_worth_it(const i64* results, const i32* nodes, i32 slot, double least) {
    return nodes[slot] != NONE && gain_of(results, slot) >= least;
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

// The gain of a node's split, and its children's limits.
static __device__ __forceinline__ void weigh_split(const Table& table, i32 node, Regular regular, const i32* monotone,
                                                   const i32* n_bins) {
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
}
