// What the searching kernels take of the nodes of a level, and what they answer.
//
// Nodes may belong to several trees, `units_every` nodes to each: tree t's quanta are worth `units[t * units_stride]` and
// the number after it. `own`, `parents`, `siblings` : addresses, see histogram_at.cuh. `totals` : sums of g and h, shape
// (nodes, 2). `bounds` : limits of the leaf value, shape (nodes, 2). `allowed` : shape (lists, features), a list for every
// `allowed_every` nodes. `is_code` : the features that sets of bins split, which split_sets.cu searches; null for none.
#pragma once

#include "gain.cuh"
#include "histogram_at.cuh"

#define SEARCHED                                                                                                   \
    const u64 *own, const u64 *parents, const u64 *siblings, const i64 *totals, const double *bounds,              \
        const u8 *allowed, i32 allowed_every, const double *units, i32 units_every, i32 units_stride,              \
        const i64 *slot_offsets, const i32 *n_bins, const i32 *monotone, const u8 *is_code, i32 n_features,        \
        i32 n_nodes,                                                                                           \
        double lambda, double alpha, double max_step, double least_h, i32 is_plain

constexpr i32 SIDE = 1 << 16;  // more than any bin: what orders places of equal gain
#define IS_CODE (is_code && is_code[feature])
