// Running sums by one block: each thread sums a stretch of its own, and the stretches' totals are scanned in shared memory.
#pragma once

#include "types.cuh"

// The exclusive running sum of one value per thread; `room` has one int per thread. Called by all threads of the block.
static __device__ __forceinline__ i32 scan_block(i32 value, i32* room) {
    const i32 thread = threadIdx.x, n = blockDim.x;
    room[thread] = value;
    __syncthreads();
    for (i32 step = 1; step < n; step <<= 1) {
        const i32 other = thread >= step ? room[thread - step] : 0;
        __syncthreads();
        room[thread] += other;
        __syncthreads();
    }
    const i32 result = room[thread] - value;
    __syncthreads();  // the room may be used again
    return result;
}
