// Places of the flags that are set, in increasing order.
//
//   count_true    of each block's stretch
//   put_places    behind those of the blocks before
//
// variants: THREADS=256
// budget: count_true registers=40 shared=4*THREADS/32
// budget: put_places registers=56 shared=4*THREADS/32+8*THREADS/32
#include "block.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u32 WARPS = THREADS / WARP;

extern "C" __global__ void __launch_bounds__(THREADS) count_true(const unsigned char* __restrict__ flags, i64 n,
                                                                 i64 block_flags, u32* __restrict__ counts) {
    __shared__ u32 storage[WARPS];
    const i64 begin = blockIdx.x * block_flags, end = min(begin + block_flags, n);
    u32 count = 0;
    for (i64 at = begin + threadIdx.x; at < end; at += THREADS) count += flags[at] != 0;
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// `counts` : what `count_true` found.
extern "C" __global__ void __launch_bounds__(THREADS) put_places(const unsigned char* __restrict__ flags, i64 n,
                                                                 i64 block_flags, const u32* __restrict__ counts,
                                                                 i64* __restrict__ places) {
    __shared__ u32 votes[WARPS];
    __shared__ i64 partial[WARPS];
    const i64 begin = blockIdx.x * block_flags, end = min(begin + block_flags, n);
    i64 next = sum_before<THREADS>(counts, blockIdx.x, partial);
    for (i64 tile = begin; tile < end; tile += THREADS) {  // whole warps: all lanes vote
        const i64 at = tile + threadIdx.x;
        const bool is_set = at < end && flags[at] != 0;
        const Rank rank = rank_in_block<THREADS>(is_set, votes);
        if (is_set) places[next + rank.before] = at;
        next += rank.total;
    }
}
