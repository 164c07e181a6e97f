// Normal equations of the models of leaves: sums of g and h of a leaf's rows, times positions and products of two.
//
// Rows lie in the order of leaves, a tile (tiles.cuh) of a leaf's rows per block, so that all threads look up the same
// features, and each has sums of its own in registers. Pairs are by row: gradients are quantized again for these sums,
// whatever the tree was searched on. Integers, so that no order of blocks can show.
//
// variants: SYMBOL_BYTES=0,1,2 SMALL=0,1
// budget: add_equations registers=128 shared=4*THREADS/32+8+8*27*THREADS/32
#include "block_tile.cuh"
#include "leaf_positions.cuh"
#include "pair.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// sums[s], of EQUATIONS numbers, grow by the rows of nodes[s]. `terms` : features, TERMS of each node, counted over all
// trees if `by_node`, or else of each of `nodes`. `pairs` : of `n_rows` rows for each tree, which have `capacity` nodes.
extern "C" __global__ void __launch_bounds__(THREADS) add_equations(
    SYMBOL_PARAMETERS, const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order,
    const Pair* __restrict__ pairs, i64 n_rows, i32 capacity, i32 by_node, const i32* terms, u64* sums) {
    __shared__ TileRoom<THREADS> room;
    __shared__ i64 of_warps[THREADS / WARP * EQUATIONS];
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    const i32 node = nodes[tile.segment];
    const Pair* const own = pairs + static_cast<i64>(node / capacity) * n_rows;
    i32 features[TERMS];
    i64 found[EQUATIONS];
#pragma unroll
    for (i32 k = 0; k < TERMS; ++k) features[k] = terms[static_cast<i64>(by_node ? node : tile.segment) * TERMS + k];
#pragma unroll
    for (i32 s = 0; s < EQUATIONS; ++s) found[s] = 0;
    for (i64 at = tile.begin + threadIdx.x; at < tile.end; at += THREADS) {
        const u32 row = order[at];
        const Pair pair = own[row];
        const i64 g = g_of(pair), h = h_of(pair);
        i32 x[TERMS + 1];
        x[0] = 1;
#pragma unroll
        for (i32 k = 0; k < TERMS; ++k) x[k + 1] = features[k] < 0 ? 0 : position_of(SYMBOLS, row, features[k]);
#pragma unroll
        for (i32 j = 0; j <= TERMS; ++j) {
            found[j] += g * x[j];
            const i64 hx = h * x[j];
#pragma unroll
            for (i32 k = 0; k <= j; ++k) found[row_of_sums(j) + k] += hx * x[k];
        }
    }
#pragma unroll
    for (i32 s = 0; s < EQUATIONS; ++s) {
        const i64 sum = sum_of_warp(found[s]);
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP * EQUATIONS + s] = sum;
    }
    __syncthreads();
    for (i32 s = threadIdx.x; s < EQUATIONS; s += THREADS) {
        i64 sum = 0;
        for (u32 warp = 0; warp < THREADS / WARP; ++warp) sum += of_warps[warp * EQUATIONS + s];
        if (sum != 0) atomicAdd(sums + static_cast<i64>(tile.segment) * EQUATIONS + s, static_cast<u64>(sum));
    }
}
