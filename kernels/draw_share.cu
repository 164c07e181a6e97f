// Each row of a chunk is of the sample or not, by its hash, and what goes with those that are is copied in their order.
//
//   count_share   rows of the sample in each block's stretch
//   keep_share    their numbers, ids, margins, labels and weights
//
// Hashes are computed in both launches: 20 instructions a row, where flags in between would be written and read.
//
// variants: THREADS=256
// budget: count_share registers=40 shared=4*THREADS/32
// budget: keep_share registers=64 shared=4*THREADS/32+8*THREADS/32
#include "block.cuh"
#include "global_ids.cuh"
#include "hashing.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u32 WARPS = THREADS / WARP;

// counts[block] : rows of the stretch that are of the sample, see `is_sampled`.
extern "C" __global__ void __launch_bounds__(THREADS) count_share(
    const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows, u32 block_rows, u64 key, u64 below,
    u32* __restrict__ counts) {
    __shared__ u32 storage[WARPS];
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    u32 count = 0;
    for (u32 at = threadIdx.x; at < own.n; at += THREADS) count += is_sampled(key, ids.of(own.begin + at), below);
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Row i of the sample, in increasing order, has chosen[i], to_ids[i] and so on. `counts` : what `count_share` found.
// `margin` : shape (rows, outputs), as `to_margin`; `weight` and `to_weight` : or null, both.
extern "C" __global__ void __launch_bounds__(THREADS) keep_share(
    const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows, u32 block_rows, u64 key, u64 below,
    const u32* __restrict__ counts, i32 n_outputs, const float* __restrict__ margin, const float* __restrict__ label,
    const float* __restrict__ weight, u32* __restrict__ chosen, i64* __restrict__ to_ids, float* __restrict__ to_margin,
    float* __restrict__ to_label, float* __restrict__ to_weight) {
    __shared__ u32 votes[WARPS];
    __shared__ i64 partial[WARPS];
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    i64 place = sum_before<THREADS>(counts, blockIdx.x, partial);
    for (u32 tile = 0; tile < own.n; tile += THREADS) {  // whole warps: all lanes vote
        const bool is_in = tile + threadIdx.x < own.n;
        const u32 row = own.begin + tile + threadIdx.x;
        const u64 id = is_in ? ids.of(row) : 0;
        const bool is_kept = is_in && is_sampled(key, id, below);
        const Rank rank = rank_in_block<THREADS>(is_kept, votes);
        const i64 at = place + rank.before;
        place += rank.total;
        if (!is_kept) continue;
        chosen[at] = row;
        to_ids[at] = static_cast<i64>(id);
        to_label[at] = label[row];
        if (weight != nullptr) to_weight[at] = weight[row];
        for (i32 output = 0; output < n_outputs; ++output)
            to_margin[at * n_outputs + output] = margin[static_cast<i64>(row) * n_outputs + output];
    }
}
