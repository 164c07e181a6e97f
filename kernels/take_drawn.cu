// The sample of a round among its candidates, those with draw < norm / threshold, divided by their share.
//
//   count_taken   rows of each block's stretch of candidates
//   take_drawn    their numbers and ids, g, h and weights over their share min(1, norm / threshold), margins and labels
//
// variants: THREADS=256
// budget: count_taken registers=40 shared=4*THREADS/32
// budget: take_drawn registers=64 shared=4*THREADS/32+8*THREADS/32
#include "block.cuh"
#include "drawn.cuh"
#include "global_ids.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u32 WARPS = THREADS / WARP;

extern "C" __global__ void __launch_bounds__(THREADS) count_taken(
    const double* __restrict__ norms, const double* __restrict__ draws, i64 n_rows, u32 block_rows, double threshold,
    u32* __restrict__ counts) {
    __shared__ u32 storage[WARPS];
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    u32 count = 0;
    for (u32 row = own.begin + threadIdx.x; row - own.begin < own.n; row += THREADS)
        count += is_drawn(draws[row], norms[row], threshold);
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Taken candidate i, in their order, has chosen[i], to_ids[i] and so on. `counts` : what `count_taken` found. `g`, `h` and
// `margin` : shape (rows, outputs).
extern "C" __global__ void __launch_bounds__(THREADS) take_drawn(
    const double* __restrict__ norms, const double* __restrict__ draws, i64 n_rows, u32 block_rows, double threshold,
    const u32* __restrict__ counts, i32 n_outputs, const i64* __restrict__ ids, const float* __restrict__ g,
    const float* __restrict__ h, const float* __restrict__ margin, const float* __restrict__ label,
    const float* __restrict__ weight, u32* __restrict__ chosen, i64* __restrict__ to_ids, float* __restrict__ to_g,
    float* __restrict__ to_h, float* __restrict__ to_margin, float* __restrict__ to_label, float* __restrict__ to_weight) {
    __shared__ u32 votes[WARPS];
    __shared__ i64 partial[WARPS];
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    i64 place = sum_before<THREADS>(counts, blockIdx.x, partial);
    for (u32 tile = 0; tile < own.n; tile += THREADS) {
        const u32 row = own.begin + tile + threadIdx.x;
        const bool is_in = tile + threadIdx.x < own.n;
        const double ratio = is_in ? norms[row] / threshold : 0.0;
        const bool is_taken = is_in && draws[row] < ratio;
        const Rank rank = rank_in_block<THREADS>(is_taken, votes);
        const i64 at = place + rank.before;
        place += rank.total;
        if (!is_taken) continue;
        const double share = min(ratio, 1.0);
        chosen[at] = row;
        to_ids[at] = ids[row];
        to_label[at] = label[row];
        const i64 from = static_cast<i64>(row) * n_outputs, to = at * n_outputs;
        for (i32 output = 0; output < n_outputs; ++output) to_margin[to + output] = margin[from + output];
#pragma unroll 1
        for (i32 i = 0; i <= 2 * n_outputs; ++i) {  // one division for all: several sites of it take local memory
            const bool is_g = i < n_outputs, is_weight = i == 2 * n_outputs;
            const i32 output = is_g ? i : i - n_outputs;
            const float value = is_weight ? weight[row] : (is_g ? g : h)[from + output];
            const float stretched = static_cast<float>(static_cast<double>(value) / share);
            if (is_weight) to_weight[at] = stretched;
            else (is_g ? to_g : to_h)[to + output] = stretched;
        }
    }
}
