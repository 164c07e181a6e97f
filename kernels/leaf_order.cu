// Rows of a chunk take the order of the leaves that a tree has brought them to: the nodes of later trees, which divide
// the rows much alike, then gather neighbours (take_rows.cu moves their symbols).
//
//   order_of_leaves   the row at each place of that order
//   take_values       what rows have of some values, in that order
//   number_rows       their global ids, by which kernels draw wherever rows lie
//
// variants: THREADS=256
// budget: order_of_leaves registers=48 shared=4*THREADS/32+8
// budget: take_values registers=64 shared=0
// budget: number_rows registers=40 shared=0
#include "block_tile.cuh"
#include "global_ids.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `nodes` : the tree's leaves, -1 for none, whose segments lie in either half of `order`, of `half` places: together they
// are each place of the tree's rows once. `rows` : the row at each place.
extern "C" __global__ void __launch_bounds__(THREADS) order_of_leaves(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* __restrict__ order, i64 half,
    u32* __restrict__ rows) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    const i64 first = tile.begin < half ? 0 : half;
    for (i64 at = tile.begin + threadIdx.x; at < tile.end; at += THREADS) rows[at - first] = order[at];
}

// Row i of `to` becomes row rows[i] of `from`; 32-bit words, shape (n, columns).
extern "C" __global__ void __launch_bounds__(THREADS) take_values(
    const u32* __restrict__ from, i32 columns, const u32* __restrict__ rows, i64 n, u32* __restrict__ to) {
    const i64 step = static_cast<i64>(gridDim.x) * THREADS;
#pragma unroll 4
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        const i64 row = rows[i];
        for (i32 k = 0; k < columns; ++k) to[i * columns + k] = from[row * columns + k];
    }
}

// ids[i] = the global id of row rows[i], below 2**32; `pieces` : as global_ids.cuh has them.
extern "C" __global__ void __launch_bounds__(THREADS) number_rows(
    const i64* __restrict__ pieces, i32 n_pieces, const u32* __restrict__ rows, i64 n, u32* __restrict__ ids) {
    const i64 step = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step)
        ids[i] = static_cast<u32>(ids_from(pieces, n_pieces, rows[i]).of(rows[i]));
}
