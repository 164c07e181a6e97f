// Rows of queries that are too large for a block, sorted by score: in tiles, which are merged two by two.
//
// `tiles` : see Tile of ranking.cuh; a block has one of them. `keys` : by place, those of a query from a multiple of 32 on.
//
// variants: THREADS=512
// budget: sort_tiles registers=64 shared=8*TILE
// budget: merge_tiles registers=40 shared=0
#include "ranking.cuh"
#include "search.cuh"

#ifndef THREADS
#define THREADS 512
#endif

// `scores` : of all rows, `stride` apart; `order` : places of rows among these, by query.
extern "C" __global__ void __launch_bounds__(THREADS) sort_tiles(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const float* __restrict__ scores, i64 stride, u64* __restrict__ keys) {
    __shared__ u64 own[TILE];
    const Tile tile = tiles[blockIdx.x];
    const i32 n = tile.size(), size = power_from(n);
    for (i32 i = threadIdx.x; i < size; i += THREADS) {
        const i64 row = tile.first + i;
        own[i] = i < n ? key_of_row(scores[order[begins[tile.query] + row] * stride], static_cast<u32>(row)) : ~0ull;
    }
    __syncthreads();
    sort_keys(own, size);
    for (i32 i = threadIdx.x; i < n; i += THREADS) keys[tile.base + tile.first + i] = own[i];
}

// Sorted runs of `run` keys become runs of twice as many: a key's place follows from how many keys of the other run come
// before it.
extern "C" __global__ void __launch_bounds__(THREADS) merge_tiles(
    const Tile* __restrict__ tiles, const u64* __restrict__ keys, i64 run, u64* __restrict__ merged) {
    const Tile tile = tiles[blockIdx.x];
    const i64 own = tile.first / run * run, other = tile.first / run % 2 == 0 ? own + run : own - run;
    const i64 n_other = other < tile.n ? min(run, tile.n - other) : 0;
    const u64* const others = keys + tile.base + other;
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const u64 key = keys[tile.base + tile.first + i];
        const i64 before = first_not_below(others, i64(0), n_other, key);
        merged[tile.base + min(own, other) + (tile.first + i - own) + before] = key;
    }
}
