// The largest absolute value of each column of a matrix, in one pass.
//
// The bits of float32 without their sign sort as the values do, infinity above all numbers and NaN above infinity: a
// maximum of integers, which has no order, so that threads cannot show.
//
// variants: THREADS=256
// budget: largest_of_columns registers=48 shared=4*THREADS
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `values` : row-major, `n` in all. `tops` : zeros, bits of a float per column. The grid has a multiple of `n_columns`
// threads, so that each thread stays in one column.
extern "C" __global__ void __launch_bounds__(THREADS) largest_of_columns(
    const float* __restrict__ values, i64 n, i32 n_columns, u32* __restrict__ tops) {
    __shared__ u32 own[THREADS];  // of the columns from the block's first on, which go round
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS;
    const i64 step = static_cast<i64>(gridDim.x) * THREADS;
    const i32 place = static_cast<i32>(threadIdx.x) % n_columns;
    own[threadIdx.x] = 0;
    __syncthreads();
    u32 top = 0;
    for (i64 i = first + threadIdx.x; i < n; i += step) top = max(top, __float_as_uint(values[i]) & 0x7FFFFFFFu);
    atomicMax(&own[place], top);
    __syncthreads();
    if (static_cast<i32>(threadIdx.x) < n_columns) atomicMax(&tops[(first + threadIdx.x) % n_columns], own[threadIdx.x]);
}
