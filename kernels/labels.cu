// What a fit must know of its labels before it starts, in one look: how many are missing, infinite or no whole numbers,
// and the least and the greatest.
//
// variants: THREADS=256
// budget: summarize_labels registers=40 shared=8*3*THREADS/32+4*2*THREADS/32
#include "block.cuh"
#include "keys.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// counts[0..2] += missing, infinite, not whole (infinite and missing ones count as whole). `range` : least and greatest key
// of those that are not missing.
extern "C" __global__ void __launch_bounds__(THREADS) summarize_labels(
    const float* __restrict__ labels, i64 n, u64* counts, u32* range) {
    __shared__ u64 sums[3][THREADS / WARP];
    __shared__ u32 ends[2][THREADS / WARP];
    u64 missing = 0, infinite = 0, broken = 0;
    u32 least = 0xFFFFFFFFu, greatest = 0;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS) {
        const float x = labels[i];
        const u32 size = __float_as_uint(x) & 0x7FFFFFFFu, key = key_of(x);
        if (size > 0x7F800000u) {
            ++missing;
            continue;
        }
        infinite += size == 0x7F800000u;
        broken += size < 0x4B000000u && static_cast<float>(static_cast<i32>(x)) != x;  // below 2**23 there are fractions
        least = key < least ? key : least;
        greatest = key > greatest ? key : greatest;
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const u32 low = __shfl_xor_sync(ALL_LANES, least, step), high = __shfl_xor_sync(ALL_LANES, greatest, step);
        least = low < least ? low : least;
        greatest = high > greatest ? high : greatest;
    }
    if (threadIdx.x % WARP == 0) {
        ends[0][threadIdx.x / WARP] = least;
        ends[1][threadIdx.x / WARP] = greatest;
    }
    missing = sum_of_block<THREADS>(missing, sums[0]);  // a barrier, behind which `ends` is known
    infinite = sum_of_block<THREADS>(infinite, sums[1]);
    broken = sum_of_block<THREADS>(broken, sums[2]);
    if (threadIdx.x > 0) return;
    for (u32 warp = 0; warp < THREADS / WARP; ++warp) {
        least = ends[0][warp] < least ? ends[0][warp] : least;
        greatest = ends[1][warp] > greatest ? ends[1][warp] : greatest;
    }
    atomicMin(&range[0], least);
    atomicMax(&range[1], greatest);
    if (missing) atomicAdd(&counts[0], missing);
    if (infinite) atomicAdd(&counts[1], infinite);
    if (broken) atomicAdd(&counts[2], broken);
}
