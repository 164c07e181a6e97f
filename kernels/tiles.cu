// The map from blocks to tiles of nodes' rows, see tiles.cuh. One block.
//
// variants: THREADS=1024
// budget: map_tiles registers=40 shared=4*THREADS
#include "scan.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 1024
#endif

// `starts[i]` becomes the number of tiles before segment i; `starts[n]` that of all. A node of -1 has none.
// `lead` : see shares.cuh.
extern "C" __global__ void __launch_bounds__(THREADS) map_tiles(const i64* bounds, const i32* nodes, i32 n,
                                                                i32 tile_rows, i32 lead, i32* starts) {
    __shared__ i32 room[THREADS];
    const i32 each = (n + THREADS - 1) / THREADS;
    const i32 begin = min(n, (i32)threadIdx.x * each), end = min(n, begin + each);
    i32 own = 0;
    for (i32 i = begin; i < end; ++i) own += tiles_of(bounds, nodes[i], tile_rows, lead);
    i32 before = scan_block(own, room);
    for (i32 i = begin; i < end; ++i) {
        starts[i] = before;
        before += tiles_of(bounds, nodes[i], tile_rows, lead);
    }
    if (threadIdx.x == THREADS - 1) starts[n] = before;
}
