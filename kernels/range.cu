// The largest |g| and h of a loss over rows, in one pass over labels, margins and weights: neither g nor h is stored.
//
// The bits of float32 without their sign sort as the values do, infinity above all numbers and NaN above infinity: a
// maximum of integers, which has no order. A block takes a stretch of whole tiles, a batch of loads ahead of the
// arithmetic, so that the bytes in flight fill the memory's latency.
//
// variants: OBJECTIVE=1,2,3,4,5,6,7,8
// usual: OBJECTIVE=1,5
// budget: find_range registers=48 shared=4*THREADS/32
#include "block.cuh"
#include "objectives.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr i32 BATCH = 4;
constexpr i64 TILE = BATCH * THREADS;

// tops[0] and tops[1] grow to the bits of the largest |g| and h. `weight` : or null for ones.
extern "C" __global__ void __launch_bounds__(THREADS, 5) find_range(
    const float* __restrict__ label, const float* __restrict__ margin, const float* __restrict__ weight,
    i64 stride_label, i64 stride_margin, const float* __restrict__ parameters, i32 is_small, i64 n_rows,
    i64 block_rows, u32* __restrict__ top_g, u32* __restrict__ top_h) {
    __shared__ u32 storage[THREADS / WARP];
    const LossParameters loss = load_parameters(parameters);
    const i64 begin = blockIdx.x * block_rows, end = min(begin + block_rows, n_rows);
    u32 most_g = 0, most_h = 0;
    for (i64 tile = begin; tile < end; tile += TILE) {
        float labels[BATCH], margins[BATCH], weights[BATCH];
#pragma unroll
        for (i32 i = 0; i < BATCH; ++i) {
            const i64 row = tile + i * THREADS + threadIdx.x;
            labels[i] = row < end ? label[row * stride_label] : 0.0f;
            margins[i] = row < end ? margin[row * stride_margin] : 0.0f;
            weights[i] = row < end && weight != nullptr ? weight[row] : 1.0f;
        }
#pragma unroll
        for (i32 i = 0; i < BATCH; ++i) {
            if (tile + i * THREADS + threadIdx.x >= end) continue;
            Gradient gradient = gradient_of(labels[i], margins[i], loss);
            if (weight != nullptr) gradient = weighted(gradient, weights[i], is_small);
            most_g = max(most_g, __float_as_uint(gradient.g) & 0x7FFFFFFFu);
            most_h = max(most_h, __float_as_uint(gradient.h) & 0x7FFFFFFFu);
        }
    }
    most_g = max_of_block<THREADS>(most_g, storage);
    most_h = max_of_block<THREADS>(most_h, storage);
    if (threadIdx.x == 0) {
        atomicMax(top_g, most_g);
        atomicMax(top_h, most_h);
    }
}
