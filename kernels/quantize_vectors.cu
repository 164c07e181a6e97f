// Gradients of several outputs become pairs of integers, and the sums of these over the rows of nodes.
//
// Neighbouring threads have neighbouring outputs of a row, whatever rows a tile's positions name: loads and stores run along
// the row, 8 bytes read and 4 written per output, so that rows in the order of nodes cost what rows in sequence do. A thread
// stays with its output, whose scales and sums are in registers, and has ROWS rows under way.
//
// variants: SMALL=0,1
// budget: sum_rows registers=80 shared=4*THREADS/32+8
#include "block_tile.cuh"
#include "global_ids.cuh"
#include "pair.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr i32 ROWS = 4;

// `g`, `h` : shape (rows, columns). `weight` : of small data, whose integers it multiplies. `scales`, `keys` : shapes (columns,
// SCALES) and (columns, 2). `pieces` : see global_ids.cuh. `pairs` : shape (rows, columns), or null for sums alone. `sums` :
// shape (nodes, columns, 2), which grow. A block per tile.
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows(
    const float* __restrict__ g, const float* __restrict__ h, const float* __restrict__ weight, i32 n_columns,
    const double* __restrict__ scales, const u64* __restrict__ keys, const i64* __restrict__ pieces, i32 n_pieces,
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* __restrict__ order,
    Pair* __restrict__ pairs, u64* __restrict__ sums) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    const i32 width = min(n_columns, THREADS), at_once = THREADS / width;
    const i32 place = static_cast<i32>(threadIdx.x) / width;
    if (place >= at_once || tile.begin + place >= tile.end) return;
    for (i32 column = static_cast<i32>(threadIdx.x) % width; column < n_columns; column += width) {
        const double* own = scales + static_cast<i64>(column) * SCALES;
        const double scale_g = own[SCALE_G], scale_h = own[SCALE_H];
#if SMALL
        const double scale_w = own[SCALE_W];
#else
        const u64 key = keys[2 * static_cast<i64>(column)];
        GlobalIds ids = ids_from(pieces, n_pieces, order[tile.begin + place]);  // a node's rows are in increasing order
#endif
        i64 sum_g = 0, sum_h = 0;
        for (i64 begin = tile.begin + place; begin < tile.end; begin += ROWS * at_once) {
            u32 rows[ROWS];
            float own_g[ROWS], own_h[ROWS];
#pragma unroll
            for (i32 k = 0; k < ROWS; ++k) rows[k] = order[min(begin + k * at_once, tile.end - 1)];
#pragma unroll
            for (i32 k = 0; k < ROWS; ++k) {
                const i64 at = static_cast<i64>(rows[k]) * n_columns + column;
                own_g[k] = g[at];
                own_h[k] = h[at];
            }
#pragma unroll
            for (i32 k = 0; k < ROWS; ++k) {
                if (begin + k * at_once >= tile.end) continue;
#if SMALL
                const QuantizedPair pair = quantize_small(own_g[k], own_h[k], scale_g, scale_h, weight[rows[k]] * scale_w);
#else
                const QuantizedPair pair = quantize_large(own_g[k], own_h[k], scale_g, scale_h, draw(key, ids.of(rows[k])));
#endif
                sum_g += pair.g;
                sum_h += pair.h;
                if (pairs == nullptr) continue;
#if SMALL
                pairs[static_cast<i64>(rows[k]) * n_columns + column] = pack_small(pair);
#else
                pairs[static_cast<i64>(rows[k]) * n_columns + column] = pack_large(pair);
#endif
            }
        }
        u64* into = sums + 2 * (static_cast<i64>(tile.segment) * n_columns + column);
        atomicAdd(into, static_cast<u64>(sum_g));
        atomicAdd(into + 1, static_cast<u64>(sum_h));
    }
}
