// Rows of ranks walk down a forest; the CPU's `daskboost/devices/cpu/predict.py`, bit for bit.
//
//   device memory   tiles of ranks (rank_tile.cuh)    groups of trees, 8 KB each
//                       | once                            | one ahead, through registers
//   shared memory   a tile per warp                   two groups: one is walked while the other fills
//
// Why ranks: a node is one word (threshold's rank, column's place in the tile), so a tree of eight levels takes 1 KB and
// its leaves another; a row takes a byte per column, so that 2,048 rows of 28 columns and 8 trees fit a block and every
// read of a visit is served by shared memory. Why a complete heap: no child pointers, and what shared memory charges for is
// banks: the words of the first six levels lie in different banks, so a warp's 32 reads of a level cost one cycle however
// the rows spread, two at level six, and between two and three at level seven. A lane's ranks lie in its own bank. Per warp,
// row of the lane and tree of eight levels that makes 10.7 cycles for nodes, 8 for ranks and 3.4 for leaves: 22 cycles for
// 256 visits, 11.6 visits per cycle and multiprocessor, 2.7 T visits/s on 132 of them at 1.75 GHz. A visit takes seven
// instructions, for which there is room for eleven. Root and its ranks are read once for a lane's four rows, which walk
// together to hide the latency of dependent loads.
//
// A tree is `2 << levels` words: its head, the heap's nodes from 1 on, and at `1 << levels` the exits: what the tree adds
// to the margin, or, with LEAF, the number of the leaf. Trees with nodes below the heap have the places of `deep` nodes for
// exits.
//
//   head    levels : 4 | is_deep : 1 | place in a row of `out` : 27
//   node    rank : 16 | column's offset in the tile, bytes : 16
//   deep    node, unused, left child (the right one follows; -1 in a leaf), value
//
// Margins are added in float32 in the order of the trees. Those of one place follow each other, and its sum stays in a
// register: the trees of a model with several outputs come sorted by output, which no sum can tell.
//
// variants: RANK_BYTES=1,2 LEAF=0,1 THREADS=128,256,512
// budget: walk_ranks registers=64 shared=0
#include "rank_tile.cuh"

#ifndef THREADS
#define THREADS 512
#endif
#ifndef LEAF
#define LEAF 0
#endif

constexpr i32 GROUP_QUADS = 512;  // of 16 bytes
constexpr i32 OWN_QUADS = GROUP_QUADS / THREADS;

#if LEAF
using Out = u32;
#else
using Out = float;
#endif

static __device__ __forceinline__ u32 rank_at(const u8* rows, u32 node, i32 slot) {
    return *reinterpret_cast<const Rank*>(rows + (node & 0xFFFF) + (rank_offset(0, slot)));
}

// One level down: to `2 place`, or to `2 place + 1` if the row's rank exceeds the node's. The difference is negative then.
static __device__ __forceinline__ u32 descend(u32 place, u32 node, u32 rank) {
    return __funnelshift_l(node - (rank << 16), place, 1);
}

// From a node below the heap to the leaf's value.
static __device__ __forceinline__ u32 walk_deep(const uint4* deep, u32 place, const u8* rows, i32 slot) {
    uint4 node = deep[place];
    while (static_cast<i32>(node.z) >= 0) node = deep[node.z + ((node.x - (rank_at(rows, node.x, slot) << 16)) >> 31)];
    return node.w;
}

// Exits of the four rows of a lane in one tree in shared memory.
static __device__ __forceinline__ void walk_tree(
    const u32* tree, i32 levels, const u8* rows, u32 (&exits)[LANE_ROWS]) {
    u32 places[LANE_ROWS];
#pragma unroll
    for (i32 slot = 0; slot < LANE_ROWS; ++slot) places[slot] = 1;
    if (levels > 0) {
        const u32 root = tree[1];
        u32 words[RANK_BYTES];
#pragma unroll
        for (i32 k = 0; k < RANK_BYTES; ++k) words[k] = *reinterpret_cast<const u32*>(rows + (root & 0xFFFF) + 128 * k);
#pragma unroll
        for (i32 slot = 0; slot < LANE_ROWS; ++slot) {
            const u32 rank = words[slot * RANK_BYTES / 4] >> 8 * (slot * RANK_BYTES % 4) & ((1u << 8 * RANK_BYTES) - 1);
            places[slot] = descend(1, root, rank);
        }
    }
    for (i32 level = 1; level < levels; ++level) {
#pragma unroll
        for (i32 slot = 0; slot < LANE_ROWS; ++slot) {
            const u32 node = tree[places[slot]];
            places[slot] = descend(places[slot], node, rank_at(rows, node, slot));
        }
    }
#pragma unroll
    for (i32 slot = 0; slot < LANE_ROWS; ++slot) exits[slot] = tree[places[slot]];
}

// `ranks` : tiles of `n_columns`, whole ones. `groups` : GROUP_QUADS each, with `group_trees` trees. `out` : (row, place) at
// row * out_stride + place; margins are added to, leaves written. Dynamic shared memory: two groups of trees and a tile per
// warp.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) walk_ranks(
    const uint4* __restrict__ ranks, i32 n_columns, i64 n_rows, const uint4* __restrict__ groups,
    const i32* __restrict__ group_trees, i32 n_groups, const uint4* __restrict__ deep, Out* __restrict__ out,
    i64 out_stride) {
    DYNAMIC_SHARED(uint4, shared);
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 tile = static_cast<i64>(blockIdx.x) * (THREADS / 32) + warp;
    const i64 first_row = tile * TILE_ROWS + lane * LANE_ROWS;
    const bool has_rows = tile * TILE_ROWS < n_rows;
    const i32 tile_quads = n_columns * (COLUMN_BYTES / 16);
    uint4* const own = shared + 2 * GROUP_QUADS + warp * tile_quads;
    if (has_rows)
        for (i32 i = lane; i < tile_quads; i += 32) own[i] = ranks[tile * tile_quads + i];
    const u8* const rows = reinterpret_cast<const u8*>(own) + rank_offset(lane, 0);

    uint4 next[OWN_QUADS];
#pragma unroll
    for (i32 k = 0; k < OWN_QUADS; ++k) shared[threadIdx.x + k * THREADS] = groups[threadIdx.x + k * THREADS];
    __syncthreads();
#if !LEAF
    float sums[LANE_ROWS] = {};
    i64 summed = -1;  // the place whose sums these are
#endif
    for (i32 group = 0; group < n_groups; ++group) {
        const bool has_next = group + 1 < n_groups;
        if (has_next) {
            const uint4* const from = groups + static_cast<i64>(group + 1) * GROUP_QUADS;
#pragma unroll
            for (i32 k = 0; k < OWN_QUADS; ++k) next[k] = from[threadIdx.x + k * THREADS];
        }
        const u32* tree = reinterpret_cast<const u32*>(shared + group % 2 * GROUP_QUADS);
        for (i32 left = has_rows ? group_trees[group] : 0; left > 0; --left) {
            const u32 head = tree[0];
            const i32 levels = head & 15;
            const i64 place = head >> 5;
            u32 exits[LANE_ROWS];
            walk_tree(tree, levels, rows, exits);
            if (head & 16) {
#pragma unroll
                for (i32 slot = 0; slot < LANE_ROWS; ++slot) exits[slot] = walk_deep(deep, exits[slot], rows, slot);
            }
#if LEAF
#pragma unroll
            for (i32 slot = 0; slot < LANE_ROWS; ++slot)
                if (first_row + slot < n_rows) out[(first_row + slot) * out_stride + place] = exits[slot];
#else
            if (place != summed) {
#pragma unroll
                for (i32 slot = 0; slot < LANE_ROWS; ++slot) {
                    if (first_row + slot >= n_rows) continue;
                    float* const at = out + (first_row + slot) * out_stride;
                    if (summed >= 0) at[summed] = sums[slot];
                    sums[slot] = at[place];
                }
                summed = place;
            }
#pragma unroll
            for (i32 slot = 0; slot < LANE_ROWS; ++slot) sums[slot] += __uint_as_float(exits[slot]);
#endif
            tree += 2 << levels;
        }
        if (has_next) {
#pragma unroll
            for (i32 k = 0; k < OWN_QUADS; ++k)
                shared[(group + 1) % 2 * GROUP_QUADS + threadIdx.x + k * THREADS] = next[k];
        }
        __syncthreads();
    }
#if !LEAF
    if (summed >= 0) {
#pragma unroll
        for (i32 slot = 0; slot < LANE_ROWS; ++slot)
            if (first_row + slot < n_rows) out[(first_row + slot) * out_stride + summed] = sums[slot];
    }
#endif
}
