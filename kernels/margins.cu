// Leaf values are added to the margins of the rows that reached the leaves.
//
// Each row is touched once and alone, so the order of threads cannot show. Rows say their node by position, as the GPU
// engine keeps them, or by the order of segments, as the CPU does.
//
// variants: POSITION_BYTES=1,2,4
// budget: add_leaf_values registers=40 shared=0
// budget: add_leaf_values_in_order registers=40 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef POSITION_BYTES
#define POSITION_BYTES 4
#endif

#if POSITION_BYTES == 1
using Position = u8;
#elif POSITION_BYTES == 2
using Position = u16;
#else
using Position = u32;
#endif

// margin[row * stride] += values[position[row]]; positions at or above `n_values` are of rows that grow no tree.
extern "C" __global__ void __launch_bounds__(THREADS) add_leaf_values(
    const Position* __restrict__ position, const float* __restrict__ values, i32 n_values, i64 n_rows, i64 stride,
    float* __restrict__ margin) {
    for (i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; row < n_rows;
         row += static_cast<i64>(gridDim.x) * THREADS) {
        const u32 node = position[row];
        if (node < static_cast<u32>(n_values)) margin[row * stride] += values[node];
    }
}

// margin[order[i] * stride] += values[s] for the `i` of segment s: from ends[s - 1], or 0, up to ends[s].
extern "C" __global__ void __launch_bounds__(THREADS) add_leaf_values_in_order(
    const u32* __restrict__ order, const i64* __restrict__ ends, const float* __restrict__ values, i32 n_segments,
    i64 stride, float* __restrict__ margin) {
    const i64 n = n_segments > 0 ? ends[n_segments - 1] : 0;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS) {
        i32 low = 0, high = n_segments - 1;
        while (low < high) {  // the first segment that ends behind i
            const i32 middle = (low + high) / 2;
            if (ends[middle] > i) high = middle;
            else low = middle + 1;
        }
        margin[order[i] * stride] += values[low];
    }
}
