// A tree that was searched on weights in place of hessians takes the exact sums of its leaves (leaf_sums.cu), and from them
// its values, gains and covers: `GrowingTree.table` of `daskboost/tree/growing_tree.py`, to the last bit.
//
//   mark_leaves    the leaf of each row, from the order of nodes
//   refit_trees    sums of leaves become those of all nodes; values and gains
//   add_values     values become margins, of rows whose leaves are known
//
// variants: THREADS=256
// budget: mark_leaves registers=64 shared=4*THREADS/32+8
// budget: refit_trees registers=96 shared=0
// budget: add_values registers=32 shared=0
#include "block_tile.cuh"
#include "rounding.cuh"
#include "tree_table.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// leaf[row] = the place among `nodes` of the node whose segment has the row.
extern "C" __global__ void __launch_bounds__(THREADS) mark_leaves(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order, i32* leaf) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    for (i64 at = tile.begin + threadIdx.x; at < tile.end; at += THREADS) leaf[order[at]] = tile.segment;
}

// A block per tree. In `sums`, leaves have theirs and all other nodes 0. `scales` : that the sums were rounded by,
// `scales_stride` numbers per tree. `values` : shape (trees, capacity).
extern "C" __global__ void __launch_bounds__(THREADS, 1) refit_trees(
    TREES, const double* scales, i32 scales_stride, double lambda, double alpha, double max_step, double least_h,
    const double* learning_rate, float* values) {
    const Table table = TABLE;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const i32 size = table.size();
    if (threadIdx.x == 0) {
        const double* own = scales + static_cast<i64>(blockIdx.x) * scales_stride;
        table.unit[0] = own[UNIT_G];
        table.unit[1] = own[UNIT_H];
    }
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        if (table.left(node) != LEAF) continue;
        const u64 g = static_cast<u64>(table.g(node)), h = static_cast<u64>(table.h(node));
        for (i32 above = table.parent(node); above != NONE; above = table.parent(above)) {
            atomicAdd(reinterpret_cast<u64*>(&table.g(above)), g);
            atomicAdd(reinterpret_cast<u64*>(&table.h(above)), h);
        }
    }
    __syncthreads();
    for (i32 node = threadIdx.x; node < size; node += THREADS) {
        const Sums own = sums_of(table.g(node), table.h(node), table.unit[0], table.unit[1]);
        const double value = leaf_weight(own, regular, {table.low(node), table.high(node)}) * *learning_rate;
        values[table.place(node)] = static_cast<float>(clamp(value, -FLOAT_LIMIT, FLOAT_LIMIT));
        if (table.left(node) != LEAF) table.gains[table.place(node)] = weigh_sides(table, node, regular).gain;
    }
}

// `leaf` : nodes of a tree, by row.
extern "C" __global__ void __launch_bounds__(THREADS) add_values(
    const i32* __restrict__ leaf, const float* __restrict__ values, i64 n, float* __restrict__ margin, i64 stride) {
    for (i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; row < n;
         row += static_cast<i64>(gridDim.x) * THREADS)
        margin[row * stride] += values[leaf[row]];
}
