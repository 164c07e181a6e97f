// Work on the rows of many nodes in one launch: each node's segment of the row order is cut into tiles of a fixed number
// of rows, and a block takes one tile. The map from blocks to tiles is made on the device (`tiles.cu`), so that no launch
// waits for the host to learn how many rows a node has:
//
//   segments   [ node 4: 5000 rows      ][ node 7: none ][ node 9: 2100 rows ]      tiles of 2048 rows
//   starts       0                         3               3                     5
//   blocks     0       1       2                           3       4                the rest of the grid ends at once
#pragma once

#include "types.cuh"

struct Tile {
    i32 segment;     // place of the node in the list of nodes; -1 for none
    i32 number;      // of the tile within its segment
    i64 begin, end;  // the tile's positions in the row order
    i64 first;       // the segment's first position
};

// How many tiles a node has; -1 has none.
static __device__ __forceinline__ i32 tiles_of(const i64* bounds, i32 node, i32 tile_rows) {
    if (node < 0) return 0;
    const i64* segment = bounds + 2 * (i64)node;
    return (i32)((u32)(segment[1] - segment[0] + tile_rows - 1) / (u32)tile_rows);
}

// The same and, where it has rows, `lead` tiles before them (shares.cuh).
static __device__ __forceinline__ i32 tiles_of(const i64* bounds, i32 node, i32 tile_rows, i32 lead) {
    const i32 tiles = tiles_of(bounds, node, tile_rows);
    return tiles ? tiles + lead : 0;
}

// The positions of tile `number` of a segment (begin, end).
static __device__ __forceinline__ void set_rows(Tile* tile, i32 number, const i64* segment, i32 tile_rows) {
    const i64 last = segment[1];
    tile->number = number;
    tile->first = segment[0];
    tile->begin = tile->first + (i64)number * tile_rows;
    tile->end = tile->begin + tile_rows < last ? tile->begin + tile_rows : last;
}

// The last segment that starts at or before a tile that there is: empty ones start where the next does.
static __device__ __forceinline__ i32 segment_of(i32 tile, const i32* starts, i32 n) {
    i32 low = 0, high = n;
    while (high - low > 1) {
        const i32 middle = (low + high) >> 1;
        if (starts[middle] <= tile) low = middle;
        else high = middle;
    }
    return low;
}

// The tile of a block; `bounds` are pairs (begin, end) by node.
static __device__ __forceinline__ Tile find_tile(i32 block, const i64* bounds, const i32* nodes, const i32* starts,
                                                 i32 n, i32 tile_rows) {
    Tile tile;
    tile.segment = -1;
    if (block >= starts[n]) return tile;
    tile.segment = segment_of(block, starts, n);
    set_rows(&tile, block - starts[tile.segment], bounds + 2 * (i64)nodes[tile.segment], tile_rows);
    return tile;
}
