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
    i32 segment;              // place of the node in the list of nodes; -1 for none
    i32 number;               // of the tile within its segment
    i64 begin, end;     // the tile's positions in the row order
    i64 first;          // the segment's first position
};

// The tile of a block; `bounds` are pairs (begin, end) by node.
static __device__ __forceinline__ Tile find_tile(i32 block, const i64* bounds, const i32* nodes, const i32* starts,
                                                 i32 n, i32 tile_rows) {
    Tile tile;
    tile.segment = -1;
    if (block >= starts[n]) return tile;
    i32 low = 0, high = n;  // the last segment that starts at or before the block: empty ones start where the next does
    while (high - low > 1) {
        const i32 middle = (low + high) >> 1;
        if (starts[middle] <= block) low = middle;
        else high = middle;
    }
    const i32 node = nodes[low];
    const i64 last = bounds[2 * (i64)node + 1];
    tile.segment = low;
    tile.number = block - starts[low];
    tile.first = bounds[2 * (i64)node];
    tile.begin = tile.first + (i64)tile.number * tile_rows;
    tile.end = tile.begin + tile_rows < last ? tile.begin + tile_rows : last;
    return tile;
}
