// Sums of nodes whose rows were moved to them at once, along a tree that was known.
//
//   sum_segments   g and h of each node's rows, a tile (tiles.cuh) per block
//   sum_children   histograms of places, and of all nodes above them
//
// All are integers, so that no order of blocks can show. Histograms are summed word by word: a thread has one of every node,
// and goes through nodes from the last to the first, so that children come before their parents and nobody waits.
//
// variants: SMALL=0,1
// budget: sum_segments registers=40 shared=4*THREADS/32+8+8*THREADS/32
// budget: sum_children registers=32 shared=0
#include "block_tile.cuh"
#include "pair.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// sums[s] += the pairs of the rows of nodes[s].
extern "C" __global__ void __launch_bounds__(THREADS) sum_segments(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const Pair* __restrict__ pairs,
    u64* sums) {
    __shared__ TileRoom<THREADS> room;
    __shared__ i64 storage[THREADS / WARP];
    const Tile tile = tile_of_block<THREADS>(bounds, nodes, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    i64 g = 0, h = 0;
#pragma unroll 4
    for (i64 at = tile.begin + threadIdx.x; at < tile.end; at += THREADS) {
        const Pair pair = pairs[at];
        g += g_of(pair);
        h += h_of(pair);
    }
    g = sum_of_block<THREADS>(g, storage);
    h = sum_of_block<THREADS>(h, storage);
    if (threadIdx.x > 0) return;
    atomicAdd(sums + 2 * tile.segment, static_cast<u64>(g));
    atomicAdd(sums + 2 * tile.segment + 1, static_cast<u64>(h));
}

// out[i], of `n` histograms, is that of place origins[i][0], or, where that is -1, the sum of the out[...] of origins[i][1]
// and origins[i][2], which are greater than i. Histograms have `n_words` sums.
extern "C" __global__ void __launch_bounds__(THREADS) sum_children(
    const i64* __restrict__ places, i64 n_words, const i32* __restrict__ origins, i32 n, i64* out) {
    const i64 word = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (word >= n_words) return;
    for (i32 i = n - 1; i >= 0; --i) {
        const i32 place = origins[3 * i];
        out[i * n_words + word] = place >= 0 ? places[place * n_words + word]
                                             : out[origins[3 * i + 1] * n_words + word] +
                                                   out[origins[3 * i + 2] * n_words + word];
    }
}
