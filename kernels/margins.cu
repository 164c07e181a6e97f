// Leaf values are added to the margins of the rows that reached the leaves, a tile of a leaf's rows (tiles.cuh) per block.
//
// Each row is touched once and alone, so the order of threads cannot show. Margins are gathered and scattered: each thread
// has ROWS of them under way.
//
// variants: ROWS=8
// budget: add_leaf_values registers=64 shared=4*THREADS/32+8
// budget: add_leaf_vectors registers=64 shared=4*THREADS/32+8
#include "block_tile.cuh"

#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 8
#endif

// margin[row * stride] += values[node] for the rows of each of `nodes`, which may be -1 for none; `values` are by node.
extern "C" __global__ void __launch_bounds__(THREADS) add_leaf_values(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order, const float* values,
    i64 stride, float* margin) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    const float value = values[nodes[tile.segment]];
    for (i64 begin = tile.begin + threadIdx.x; begin < tile.end; begin += ROWS * THREADS) {
        i64 places[ROWS];
        float sums[ROWS];
#pragma unroll
        for (i32 k = 0; k < ROWS; ++k)  // beyond the tile the thread's own first row: others write theirs meanwhile
            places[k] = order[begin + k * THREADS < tile.end ? begin + k * THREADS : begin] * stride;
#pragma unroll
        for (i32 k = 0; k < ROWS; ++k) sums[k] = margin[places[k]] + value;
#pragma unroll
        for (i32 k = 0; k < ROWS; ++k)
            if (begin + k * THREADS < tile.end) margin[places[k]] = sums[k];
    }
}

// The same of vectors: `values` of shape (nodes, outputs), `margin` of shape (rows, outputs). Neighbouring threads have
// neighbouring outputs.
extern "C" __global__ void __launch_bounds__(THREADS) add_leaf_vectors(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order, const float* values,
    i32 n_outputs, float* margin) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    const i32 width = min(n_outputs, THREADS), at_once = THREADS / width;
    const i32 place = static_cast<i32>(threadIdx.x) / width;
    if (place >= at_once) return;
    for (i32 output = static_cast<i32>(threadIdx.x) % width; output < n_outputs; output += width) {
        const float value = values[static_cast<i64>(nodes[tile.segment]) * n_outputs + output];
#pragma unroll 4
        for (i64 i = tile.begin + place; i < tile.end; i += at_once)
            margin[static_cast<i64>(order[i]) * n_outputs + output] += value;
    }
}
