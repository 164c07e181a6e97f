// Equal shares of many nodes' rows: a block takes as many tiles (tiles.cuh) as any other, one behind the other, of all
// groups of features, and adds up and hands over what belongs to one node and group at a time. Handing over takes as long
// as the rows of `least_tiles` do, which the map of tiles puts before the rows of each node that has some, its lead: who
// begins a node behind another one takes fewer rows.
//
//   group       0                       0               1
//   node        4                       7               4
//   tiles       - - . . . . . . . . . . - - . . . . . . - - . . . . ...   - is the lead of two tiles
//   blocks      0           1           2           3           4         six tiles each
//
// Blocks 0 and 2 begin nodes and have four tiles of rows; block 3 ends one and begins another, and has four as well; the
// others have six. A block that meets nothing but leads has no rows.
#pragma once

#include "tiles.cuh"

constexpr i32 ROWS_UNTIL_SPILL = 32768;  // whose 15 bits take a sum below 2^30 to one below 2^31
constexpr i32 SPILL_FROM = 1 << 30;

// Whether a 32-bit sum is to be handed over.
static __device__ __forceinline__ bool reaches(i32 sum, i32 least) { return sum >= least || sum <= -least; }

struct Piece {
    i32 group;
    i32 segment;    // place of the node in the list of nodes
    i64 begin;      // first position in the row order
    i32 n_rows;
    bool is_whole;  // all rows of the node: no other block has any, of this group
};

// How the tiles of all groups are divided, leads among them: equally, by `least_tiles` to a block and one block more for
// each node of a group, but no more blocks than there may be.
struct Division {
    u64 all;
    u32 n_tiles;  // of a group
    u32 blocks;

    __device__ __forceinline__ Division(const i32* starts, i32 n, i32 n_groups, i32 least_tiles, u32 most_blocks) {
        n_tiles = starts[n];
        all = static_cast<u64>(n_tiles) * n_groups;
        blocks = min(static_cast<u32>(all / least_tiles) + static_cast<u32>(n) * n_groups, most_blocks);
    }

    // Tiles before a block's share.
    __device__ __forceinline__ u32 before(u32 block) const { return static_cast<u32>(all * block / blocks); }

    // The first block whose share begins at `tile` or behind it.
    __device__ __forceinline__ u32 first_from(u32 tile) const {
        return static_cast<u32>((static_cast<u64>(tile) * blocks + all - 1) / all);
    }
};

struct Share {
    u32 at;       // tiles before the next piece's rows, of all groups
    u32 last;     // tiles before the next block's share
    u32 n_tiles;
    u32 lead;
    i32 segment;  // of the next piece, or before it

    __device__ __forceinline__ Share(const i32* starts, i32 n, i32 n_groups, i32 least_tiles) : lead(least_tiles) {
        const Division division(starts, n, n_groups, least_tiles, gridDim.x);
        n_tiles = division.n_tiles;
        at = last = 0;
        if (blockIdx.x >= division.blocks) return;
        at = division.before(blockIdx.x);
        last = division.before(blockIdx.x + 1);
        if (at >= last) return;
        const u32 tile = at % n_tiles;
        segment = segment_of(static_cast<i32>(tile), starts, n);
        at = min(max(at, at - tile + starts[segment] + lead), last);
    }

    __device__ __forceinline__ Piece next(const i64* bounds, const i32* nodes, const i32* starts, i32 tile_rows) {
        const u32 group = at / n_tiles, tile = at - group * n_tiles;
        if (tile == lead) segment = 0;
        while (static_cast<u32>(starts[segment + 1]) <= tile) ++segment;
        const u32 start = starts[segment] + lead, n_node = starts[segment + 1] - start;
        const u32 n_own = min(start + n_node - tile, last - at);
        const i64* rows = bounds + 2 * static_cast<i64>(nodes[segment]);
        const i64 begin = rows[0] + static_cast<i64>(tile - start) * tile_rows;
        const i64 room = static_cast<i64>(n_own) * tile_rows, ahead = rows[1] - begin;
        at = min(at + n_own + (n_own == start + n_node - tile ? lead : 0), last);
        return {static_cast<i32>(group), segment, begin, static_cast<i32>(room < ahead ? room : ahead), n_own == n_node};
    }
};
