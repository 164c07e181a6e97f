// Rows move to their children: a stable partition of all split nodes' segments, in four launches for a whole level.
//
//   count_left     one bit per row: goes left?            flags, and the left-goers of each tile
//   place_tiles    running sums over tiles                where each tile's left-goers go; the children's segments
//   move_rows      order, pairs -> spare order, pairs
//   return_rows    and back, so that nodes that were not split stay where they are
//
// A tile has TILE_ROWS rows (tiles.cuh), 32 to a word of flags. Rows keep their order, which is thus the same in every run.
//
// variants: SYMBOL_BYTES=0,1,2 SMALL=0,1
// budget: count_left registers=40 shared=4
// budget: place_tiles registers=48 shared=4*THREADS
// budget: move_rows registers=72 shared=4*TILE_ROWS/32
// budget: return_rows registers=40 shared=0
#include "pair.cuh"
#include "scan.cuh"
#include "symbol.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 2048
#endif
#define WORDS (TILE_ROWS / 32)
static_assert(WORDS == 64, "move_rows sums the words of a tile with one warp");
#define WARPS (THREADS / 32)

// Splits travel as one array of int32, shape (6, n).
#define NODE 0
#define LEFT 1
#define RIGHT 2
#define FEATURE 3
#define SPLIT_BIN 4
#define DEFAULT_LEFT 5

extern "C" __global__ void __launch_bounds__(THREADS) count_left(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, const i32* splits, i32 n, const i64* bounds, const i32* starts, const u32* order,
    u32* flags, i32* counts) {
    __shared__ i32 total;
    const Tile tile = find_tile(blockIdx.x, bounds, splits + NODE * n, starts, n, TILE_ROWS);
    if (tile.segment < 0) return;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    const i32 feature = splits[FEATURE * n + tile.segment], last_left = splits[SPLIT_BIN * n + tile.segment];
    const bool missing_left = splits[DEFAULT_LEFT * n + tile.segment] != 0;
    const i64 place = (i64)blockIdx.x * WORDS;
    const i32 lane = threadIdx.x % 32;
    for (i32 word = threadIdx.x / 32; word < WORDS; word += WARPS) {
        const i64 i = tile.begin + word * 32 + lane;
        const bool left = i < tile.end && goes_left(SYMBOLS, order[i], feature, last_left, missing_left);
        const u32 bits = __ballot_sync(ALL_LANES, left);
        if (lane == 0) {
            flags[place + word] = bits;
            atomicAdd(&total, __popc(bits));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// One block. `before[t]` becomes the left-goers of all tiles before t; the children's segments follow.
extern "C" __global__ void __launch_bounds__(THREADS) place_tiles(const i32* splits, i32 n, const i32* starts,
                                                                  const i32* counts, i32* before, i64* bounds) {
    __shared__ i32 room[THREADS];
    const i32 n_tiles = starts[n], each = (n_tiles + THREADS - 1) / THREADS;
    const i32 begin = min(n_tiles, (i32)threadIdx.x * each), end = min(n_tiles, begin + each);
    i32 own = 0;
    for (i32 t = begin; t < end; ++t) own += counts[t];
    i32 sum = scan_block(own, room);
    for (i32 t = begin; t < end; ++t) {
        before[t] = sum;
        sum += counts[t];
    }
    if (threadIdx.x == THREADS - 1) before[n_tiles] = sum;
    __syncthreads();
    for (i32 s = threadIdx.x; s < n; s += THREADS) {
        if (splits[NODE * n + s] < 0) continue;
        const i64* parent = bounds + 2 * (i64)splits[NODE * n + s];
        const i64 first = parent[0], last = parent[1];
        const i64 middle = first + (before[starts[s + 1]] - before[starts[s]]);
        i64* left = bounds + 2 * (i64)splits[LEFT * n + s];
        i64* right = bounds + 2 * (i64)splits[RIGHT * n + s];
        left[0] = first;
        left[1] = right[0] = middle;
        right[1] = last;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) move_rows(
    const i32* splits, i32 n, const i64* bounds, const i32* starts, const i32* before, const u32* flags,
    const u32* order, const Pair* pairs, u32* spare_order, Pair* spare_pairs) {
    __shared__ i32 lefts[WORDS];  // of the words before
    const Tile tile = find_tile(blockIdx.x, bounds, splits + NODE * n, starts, n, TILE_ROWS);
    if (tile.segment < 0) return;
    const u32* own = flags + (i64)blockIdx.x * WORDS;
    if (threadIdx.x < 32) {  // one warp, two words a lane
        const i32 even = __popc(own[2 * threadIdx.x]), odd = __popc(own[2 * threadIdx.x + 1]);
        i32 sum = even + odd;
        for (i32 step = 1; step < 32; step <<= 1) {
            const i32 other = __shfl_up_sync(ALL_LANES, sum, step);
            if ((i32)threadIdx.x >= step) sum += other;
        }
        lefts[2 * threadIdx.x] = sum - odd - even;
        lefts[2 * threadIdx.x + 1] = sum - odd;
    }
    __syncthreads();
    const i64 left_before = before[blockIdx.x] - before[starts[tile.segment]];
    const i64 middle = bounds[2 * (i64)splits[RIGHT * n + tile.segment]];
    const i64 to_left = tile.first + left_before;
    const i64 to_right = middle + (tile.begin - tile.first) - left_before;
    const i32 lane = threadIdx.x % 32;
    for (i32 word = threadIdx.x / 32; word < WORDS; word += WARPS) {
        const i32 within = word * 32 + lane;
        const i64 i = tile.begin + within;
        if (i >= tile.end) break;
        const u32 bits = own[word];
        const i32 rank = lefts[word] + __popc(bits & ((1u << lane) - 1u));
        const i64 place = bits >> lane & 1u ? to_left + rank : to_right + within - rank;
        spare_order[place] = order[i];
        spare_pairs[place] = pairs[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) return_rows(
    const i32* splits, i32 n, const i64* bounds, const i32* starts, const u32* spare_order,
    const Pair* spare_pairs, u32* order, Pair* pairs) {
    const Tile tile = find_tile(blockIdx.x, bounds, splits + NODE * n, starts, n, TILE_ROWS);
    if (tile.segment < 0) return;
    for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += THREADS) {
        order[i] = spare_order[i];
        pairs[i] = spare_pairs[i];
    }
}
