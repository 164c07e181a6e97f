// Gradients become pairs of integers, in increasing order of the sampled rows, with their sums.
//
// A row's pair is one int32 (large data) or int64 (SMALL); `rounding.cuh` has the arithmetic. A block takes TILE rows.
// Where rows are sampled, `count_sampled` says how many of each tile are kept, the caller sums those counts up, and
// `quantize_gradients` hashes again, which costs less than writing the answers down.
//
// variants: SMALL=0,1
// budget: count_sampled registers=32 shared=4*THREADS/32
// budget: quantize_gradients registers=56 shared=12*THREADS/32
#include "block.cuh"
#include "pair.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u32 STEPS = 8;
constexpr u32 TILE = STEPS * THREADS;  // `TILE_ROWS` of daskboost/devices/gpu/gradients.py

// counts[block]: rows of the tile that are sampled.
extern "C" __global__ void __launch_bounds__(THREADS) count_sampled(
    u64 sample_key, u64 sample_below, i64 first_row, i64 n_rows, i64* __restrict__ counts) {
    __shared__ u32 storage[THREADS / WARP];
    u32 count = 0;
    for (u32 step = 0; step < STEPS; ++step) {
        const i64 row = static_cast<i64>(blockIdx.x) * TILE + step * THREADS + threadIdx.x;
        count += row < n_rows && is_sampled(sample_key, static_cast<u64>(first_row) + row, sample_below);
    }
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Rows of `g` and `h` into `order`, as `begin + row`, and `pairs`; sums[0] and sums[1] grow by their integers.
// `ends` : running sums of the tiles' counts, or null, which keeps all rows. `weight` : of small data only.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_gradients(
    const float* __restrict__ g, const float* __restrict__ h, const float* __restrict__ weight, i64 stride_g,
    i64 stride_h, double scale_g, double scale_h, double scale_w, u64 round_key, u64 sample_key, u64 sample_below,
    i64 first_row, i64 n_rows, const i64* __restrict__ ends, u32 begin, u32* __restrict__ order,
    Pair* __restrict__ pairs, u64* __restrict__ sums) {
    __shared__ u32 counts[THREADS / WARP];
    __shared__ i64 partial[THREADS / WARP];
    const i64 start = static_cast<i64>(blockIdx.x) * TILE;
    i64 place = ends == nullptr ? start : blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1];
    i64 sum_g = 0, sum_h = 0;
    for (u32 step = 0; step < STEPS; ++step) {
        const i64 row = start + step * THREADS + threadIdx.x;
        const u64 global_row = static_cast<u64>(first_row) + row;
        const bool is_kept = row < n_rows && (ends == nullptr || is_sampled(sample_key, global_row, sample_below));
        i64 at = place + threadIdx.x;
        if (ends != nullptr) {
            const Rank rank = rank_in_block<THREADS>(is_kept, counts);
            at = place + rank.before;
            place += rank.total;
        } else {
            place += THREADS;
        }
        if (!is_kept) continue;
#if SMALL
        const double times = static_cast<double>(weight[row]) * scale_w;
        const QuantizedPair pair = quantize_small(g[row * stride_g], h[row * stride_h], scale_g, scale_h, times);
        pairs[at] = pack_small(pair);
#else
        const u64 bits = draw(round_key, global_row);
        const QuantizedPair pair = quantize_large(g[row * stride_g], h[row * stride_h], scale_g, scale_h, bits);
        pairs[at] = pack_large(pair);
#endif
        order[at] = begin + static_cast<u32>(row);
        sum_g += pair.g;
        sum_h += pair.h;
    }
    sum_g = sum_of_block<THREADS>(sum_g, partial);
    sum_h = sum_of_block<THREADS>(sum_h, partial);
    if (threadIdx.x == 0) {
        atomicAdd(&sums[0], static_cast<u64>(sum_g));
        atomicAdd(&sums[1], static_cast<u64>(sum_h));
    }
}
