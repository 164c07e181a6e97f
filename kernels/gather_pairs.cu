// Pairs of several outputs, which lie row by row, in the order of nodes and output by output: what the histograms of one
// output read in sequence, once for every 32 features.
//
// Histograms that looked their pairs up themselves would read a sector per row and group of features, to use 4 of its 32
// bytes; here a sector gives AT_ONCE outputs their pairs. Lanes share rows to read and outputs to write, by way of shared
// memory. The nodes of all these outputs are then built by one launch: each output has segments of its own.
//
// variants: SMALL=0,1
// budget: gather_pairs registers=64 shared=AT_ONCE*(THREADS+4)*(4+4*SMALL)
#include "pair.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef AT_ONCE
#define AT_ONCE 8
#endif

constexpr i32 ROWS = THREADS / AT_ONCE;  // at a time
constexpr i32 STRIDE = THREADS + 4;      // 4 rows of AT_ONCE outputs find 32 banks

// `pairs` : shape (rows, columns), of which `n_own` from `first` on are gathered, at most AT_ONCE. `order` : the row at each
// position, or null where positions are rows. `out` : shape (n_own, out_stride), by position. `own_bounds`,
// `own_nodes` : become the segments of all nodes, output by output, in `out`, shapes (n_own * n, 2) and (n_own * n,), -1 for
// none. Tiles have THREADS rows.
extern "C" __global__ void __launch_bounds__(THREADS) gather_pairs(
    const Pair* __restrict__ pairs, i32 n_columns, i32 first, i32 n_own, const i64* bounds, const i32* nodes,
    const i32* starts, i32 n, i32 tile_rows, const u32* __restrict__ order, Pair* __restrict__ out, i64 out_stride,
    i64* __restrict__ own_bounds, i32* __restrict__ own_nodes) {
    __shared__ Pair found[AT_ONCE * STRIDE];
    for (i32 i = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x); i < n_own * n; i += static_cast<i32>(gridDim.x * THREADS)) {
        const i32 node = nodes[i % n];
        own_nodes[i] = node < 0 ? -1 : i;
        if (node < 0) continue;
        own_bounds[2 * i] = bounds[2 * static_cast<i64>(node)] + i / n * out_stride;
        own_bounds[2 * i + 1] = bounds[2 * static_cast<i64>(node) + 1] + i / n * out_stride;
    }
    const Tile tile = find_tile(static_cast<i32>(blockIdx.x), bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    const i32 column = threadIdx.x % AT_ONCE, n_rows = static_cast<i32>(tile.end - tile.begin);
    for (i32 i = threadIdx.x / AT_ONCE; i < n_rows && column < n_own; i += ROWS) {
        const i64 position = tile.begin + i, row = order ? order[position] : position;
        found[column * STRIDE + i] = pairs[row * n_columns + first + column];
    }
    __syncthreads();
    const i32 own = threadIdx.x;
    if (own >= n_rows) return;
    for (i32 k = 0; k < n_own; ++k) out[k * out_stride + tile.begin + own] = found[k * STRIDE + own];
}
