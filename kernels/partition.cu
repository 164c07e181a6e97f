// Rows move to their children: a stable partition of all split nodes' segments, in two launches for a whole level.
//
//   count_left   one bit per row: goes left?    flags, and how many of each tile do; none by features of other GPUs
//   move_rows    order and pairs                the children's rows and segments; no pairs where they stay in row order
//
// `order` and `pairs` have two halves of `half` places each. The children of a segment lie where it lay, but in the other
// half: nothing needs to be copied back, and segments that are not split stay where they are.
//
// A warp takes a quarter of a tile (tiles.cuh), and 32 * WORDS rows at a time, so that each thread has WORDS loads under way:
// those of symbols are gathers. Where a tile's rows go follows from the counts of its segment's tiles, which each
// block adds up itself rather than wait for another launch; the host makes tiles so large that they are few. Rows keep
// their order, which is thus the same in every run, and lets rows of a node that are neighbours share sectors.
//
// variants: SYMBOL_BYTES=0,1,2 SMALL=0,1
// usual: SYMBOL_BYTES=1 SMALL=0
// budget: count_left registers=64 shared=4*THREADS/32+16
// budget: move_rows registers=72 shared=16*THREADS/32+16
#include "block_tile.cuh"
#include "pair.cuh"
#include "symbol.cuh"

#ifndef THREADS
#define THREADS 128
#endif
constexpr i32 WARPS = THREADS / WARP;
constexpr i32 WORDS = 8;                                    // of flags; tiles are multiples of WARPS * WORDS of them
constexpr i32 SEARCHES = SYMBOL_BYTES ? WORDS : WORDS / 2;  // rows of a thread at once: a CSR row's search takes 8 registers
constexpr i32 MOVES = SMALL ? WORDS / 2 : WORDS;            // small data's pairs take twice the registers

// `splits`, `sets` : as symbol.cuh has them; a node of -1 is no split. The symbols are those of `n_features` features from
// `first_feature` on.

// The rows of a tile that are a warp's.
struct Share {
    i64 begin;  // position of the first
    i32 n;
    i64 flags;  // place of their words
};

// A predicate whose set lies in shared memory, a bit for each bin (`map_list`).
struct MappedPredicate : Predicate {
    const u32* map;

    __device__ __forceinline__ bool set_has(i32 bin) const {
        return ((map[bin / 32] >> bin % 32 & 1u) != 0) == (last_left == ALL_BUT);
    }
};

static __device__ __forceinline__ Share share_of(const Tile& tile, i32 tile_rows, i32 warp) {
    const i32 rows = tile_rows / WARPS;
    const i64 begin = min(tile.begin + (i64)warp * rows, tile.end);
    return {begin, (i32)min(tile.end - begin, (i64)rows), ((i64)blockIdx.x * tile_rows + (i64)warp * rows) / 32};
}

// Dynamic shared memory: where there are sets, a bit for each bin of the feature of most bins.
extern "C" __global__ void __launch_bounds__(THREADS) count_left(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, i32 first_feature, i32 n_features, const i32* splits, const i64* bounds, const i32* starts,
    i32 n, i32 tile_rows, SETS_PARAMETERS, const u32* order, u32* flags, i32* counts) {
    __shared__ TileRoom<THREADS> room;
    const Tile tile = tile_of_block<THREADS>(bounds, splits + NODE * n, starts, n, tile_rows, &room);
    if (tile.segment < 0) return;
    DYNAMIC_SHARED(u32, map);
    MappedPredicate split = {predicate_of(splits, n, tile.segment, sets, set_width), map};
    split.feature -= first_feature;
    if (split.feature < 0 || split.feature >= n_features) {
        const i32 words = tile_rows / 32;
        for (i32 word = threadIdx.x; word < words; word += THREADS) flags[(i64)blockIdx.x * words + word] = 0;
        if (threadIdx.x == 0) counts[blockIdx.x] = 0;
        return;
    }
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Share share = share_of(tile, tile_rows, warp);
    const u32* from = order + share.begin;
    u32* own = flags + share.flags;
    if (split.is_set()) map_list<THREADS>(split.list, n_bins[split.feature], map);
    float before = share_before(SYMBOLS, split.feature);
    i32 count = 0;
    for (i32 i = lane; i - lane < share.n; i += 32 * SEARCHES, own += SEARCHES) {
        u32 rows[SEARCHES];
        bool left[SEARCHES];
#pragma unroll
        for (i32 k = 0; k < SEARCHES; ++k) rows[k] = from[min(i + 32 * k, share.n - 1)];
        go_left(SYMBOLS, rows, split, &before, left);
        u32 mine = 0;
#pragma unroll
        for (i32 k = 0; k < SEARCHES; ++k) {
            const u32 bits = __ballot_sync(ALL_LANES, left[k] && i + 32 * k < share.n);
            if (lane == k) mine = bits;
            count += __popc(bits);
        }
        if (lane < SEARCHES) own[lane] = mine;
    }
    if (lane == 0) room.totals[warp] = count;
    __syncthreads();
    if (threadIdx.x > 0) return;
    count = 0;
    for (i32 w = 0; w < WARPS; ++w) count += room.totals[w];
    counts[blockIdx.x] = count;
}

// The segments of the children of split `s`.
static __device__ __forceinline__ void set_children(const i32* splits, i32 n, i32 s, i64 begin, i64 middle, i64 end,
                                                    i64* bounds) {
    i64* left = bounds + 2 * (i64)splits[LEFT * n + s];
    i64* right = bounds + 2 * (i64)splits[RIGHT * n + s];
    left[0] = begin;
    left[1] = right[0] = middle;
    right[1] = end;
}

extern "C" __global__ void __launch_bounds__(THREADS) move_rows(
    const i32* splits, i64* bounds, const i32* starts, i32 n, i32 tile_rows, i64 half, const i32* counts, const u32* flags,
    u32* order, Pair* pairs) {
    __shared__ TileRoom<THREADS> room;
    __shared__ i32 shares[3][WARPS];  // left-goers: of each warp's rows, of the tiles before, of the segment
    const Tile tile = tile_of_block<THREADS>(bounds, splits + NODE * n, starts, n, tile_rows, &room);
    if (blockIdx.x == 0)  // no block has the segments without rows
#pragma unroll 1
        for (i32 s = threadIdx.x; s < n; s += THREADS) {
            const i32 node = splits[NODE * n + s];
            if (node < 0) continue;
            const i64 begin = bounds[2 * (i64)node];
            if (bounds[2 * (i64)node + 1] == begin) set_children(splits, n, s, begin, begin, begin, bounds);
        }
    if (tile.segment < 0) return;

    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Share share = share_of(tile, tile_rows, warp);
    const u32* own = flags + share.flags;
    const i32 node = splits[NODE * n + tile.segment], n_tiles = tiles_of(bounds, node, tile_rows);
    const i64 end = bounds[2 * (i64)node + 1];
    const i32* counted = counts + (blockIdx.x - tile.number);
    i32 of_warp = 0, before = 0, all = 0;
#pragma unroll 1
    for (i32 word = lane; word < (share.n + 31) / 32; word += WARP) of_warp += __popc(own[word]);
#pragma unroll 4
    for (i32 t = threadIdx.x; t < n_tiles; t += THREADS) {
        const i32 count = counted[t];
        all += count;
        if (t < tile.number) before += count;
    }
    of_warp = sum_of_warp(of_warp), before = sum_of_warp(before), all = sum_of_warp(all);
    if (lane == 0) shares[0][warp] = of_warp, shares[1][warp] = before, shares[2][warp] = all;
    __syncthreads();
    before = all = 0;
    for (i32 w = 0; w < WARPS; ++w) {
        before += shares[1][w] + (w < warp ? shares[0][w] : 0);
        all += shares[2][w];
    }
    const i64 first = tile.first < half ? tile.first + half : tile.first - half;
    if (tile.number == 0 && threadIdx.x == 0)
        set_children(splits, n, tile.segment, first, first + all, first + (end - tile.first), bounds);

    i64 to_left = first + before, to_right = first + all + (share.begin - tile.first) - before;
    const u32* from_order = order + share.begin;
    const Pair* from_pairs = pairs ? pairs + share.begin : nullptr;
    for (i32 i = lane; i - lane < share.n; i += 32 * MOVES, own += MOVES) {
        u32 rows[MOVES];
        Pair values[MOVES];
#pragma unroll
        for (i32 k = 0; k < MOVES; ++k) {
            const i32 at = min(i + 32 * k, share.n - 1);
            rows[k] = from_order[at];
            if (from_pairs) values[k] = from_pairs[at];
        }
        const u32 mine = lane < MOVES && i + 31 * lane < share.n ? own[lane] : 0;  // i + 31 * lane: its word's first row
#pragma unroll
        for (i32 k = 0; k < MOVES; ++k) {
            const u32 bits = __shfl_sync(ALL_LANES, mine, k);
            const i32 rank = __popc(bits & ((1u << lane) - 1u)), n_left = __popc(bits);
            const i64 place = bits >> lane & 1u ? to_left + rank : to_right + lane - rank;
            if (i + 32 * k < share.n) {
                order[place] = rows[k];
                if (from_pairs) pairs[place] = values[k];
            }
            to_left += n_left;
            to_right += 32 - n_left;
        }
    }
}
