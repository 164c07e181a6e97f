// The tile of a block (tiles.cuh), where nobody made a map before: the block counts the tiles of all segments itself, N_THREADS
// segments at a time. For some hundred segments that takes no longer than to look the tile up, and saves a launch.
#pragma once

#include "block.cuh"
#include "tiles.cuh"

// Shared memory of a block that looks for its tile.
template <u32 N_THREADS>
struct TileRoom {
    i32 totals[N_THREADS / WARP];
    i32 segment;
    i32 start;
};

template <u32 N_THREADS>
static __device__ __forceinline__ Tile count_tiles(i32 block, const i64* bounds, const i32* nodes, i32 n, i32 tile_rows,
                                                   TileRoom<N_THREADS>* room) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Tile tile;
    tile.segment = -1;
    i32 before = 0;  // tiles of the segments of earlier rounds
    for (i32 begin = 0; begin < n; begin += N_THREADS) {
        const i32 segment = begin + threadIdx.x;
        const i32 own = segment < n ? tiles_of(bounds, nodes[segment], tile_rows) : 0;
        const i32 sum = running_sum_of_warp(own);
        if (lane == WARP - 1) room->totals[warp] = sum;
        __syncthreads();
        i32 start = before + sum - own;
        for (u32 w = 0; w < N_THREADS / WARP; ++w) {
            const i32 total = room->totals[w];
            if (w < warp) start += total;
            before += total;
        }
        if (start <= block && block < start + own) {
            room->segment = segment;
            room->start = start;
        }
        __syncthreads();
        if (block < before) {
            tile.segment = room->segment;
            set_rows(&tile, block - room->start, bounds + 2 * (i64)nodes[tile.segment], tile_rows);
            break;
        }
    }
    return tile;
}

// Called by all threads of the block. `starts` : the map, or null where there is none. `room->totals` may be used afterwards.
template <u32 N_THREADS>
static __device__ __forceinline__ Tile tile_of_block(const i64* bounds, const i32* nodes, const i32* starts, i32 n,
                                                     i32 tile_rows, TileRoom<N_THREADS>* room) {
    const i32 block = static_cast<i32>(blockIdx.x);
    if (starts) return find_tile(block, bounds, nodes, starts, n, tile_rows);
    return count_tiles<N_THREADS>(block, bounds, nodes, n, tile_rows, room);
}
