// Equal shares of many nodes' rows: a block takes as many tiles (tiles.cuh) as any other, one behind the other, of all
// groups of features, and adds up and hands over what belongs to one node and group at a time:
//
//   tiles    [ group 0: node 4 . . . . . ][ node 7 . . ][ group 1: node 4 . . . . . ][ node 7 . . ]
//   blocks   [ 0         ][ 1         ][ 2         ][ 3         ][ 4         ]   three nodes' parts for block 2, say
#pragma once

#include "tiles.cuh"

constexpr i32 ROWS_UNTIL_SPILL = 32768;  // whose 15 bits take a sum below 2^30 to one below 2^31
constexpr i32 SPILL_FROM = 1 << 30;

// Whether a 32-bit sum is to be handed over.
static __device__ __forceinline__ bool reaches(i32 sum, i32 least) { return sum >= least || sum <= -least; }

struct Piece {
    i32 group;
    i32 segment;  // place of the node in the list of nodes
    i64 begin;    // first position in the row order
    i32 n_rows;
};

struct Share {
    u32 at;    // tiles before the next piece, of all groups
    u32 last;  // tiles before the next block's share
    u32 n_tiles;

    // At least `least_tiles` each, except that a node of its own costs no more than a part of one.
    __device__ __forceinline__ Share(const i32* starts, i32 n, i32 n_groups, i32 least_tiles) {
        n_tiles = starts[n];
        const u64 all = static_cast<u64>(n_tiles) * n_groups;
        const u32 worth = static_cast<u32>(all) / least_tiles + static_cast<u32>(n) * n_groups, blocks = min(worth, gridDim.x);
        at = last = 0;
        if (blockIdx.x >= blocks) return;
        at = static_cast<u32>(all * blockIdx.x / blocks);
        last = static_cast<u32>(all * (blockIdx.x + 1) / blocks);
    }

    __device__ __forceinline__ Piece next(const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows) {
        const u32 tile = at % n_tiles;
        const Tile head = find_tile(static_cast<i32>(tile), bounds, nodes, starts, n, tile_rows);
        const u32 n_own = min(starts[head.segment + 1] - tile, last - at);
        const i64 room = static_cast<i64>(n_own) * tile_rows;
        const i64 ahead = bounds[2 * static_cast<i64>(nodes[head.segment]) + 1] - head.begin;
        const Piece piece = {static_cast<i32>(at / n_tiles), head.segment, head.begin,
                             static_cast<i32>(room < ahead ? room : ahead)};
        at += n_own;
        return piece;
    }
};
