// Sums and prefix sums over a block, of integers: the same in any order. Helpers take their shared storage from the
// kernel, which every thread of the block must call them from.
#pragma once

#include "types.cuh"

// Operations whose order does not matter. Over a block their neutral element is 0: there the largest is of numbers from 0
// on.
struct Add {
    template <class T>
    static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};

struct Larger {
    template <class T>
    static __device__ __forceinline__ T of(T a, T b) { return max(a, b); }
};

template <class Operation, class T>
__device__ __forceinline__ T fold_of_warp(T value) {
    for (u32 step = WARP / 2; step > 0; step /= 2)
        value = Operation::of(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

template <class T>
__device__ __forceinline__ T sum_of_warp(T value) { return fold_of_warp<Add>(value); }

template <class T>
__device__ __forceinline__ T max_of_warp(T value) { return fold_of_warp<Larger>(value); }

__device__ __forceinline__ u32 min_of_warp(u32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(ALL_LANES, value);
#else
    return ~max_of_warp(~value);
#endif
}

__device__ __forceinline__ u32 largest_of_warp(u32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, value);
#else
    return max_of_warp(value);
#endif
}

// Each lane's sum of the lanes up to itself.
template <class T>
__device__ __forceinline__ T running_sum_of_warp(T value) {
    for (u32 step = 1; step < WARP; step *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, value, step);
        if (threadIdx.x % WARP >= step) value += other;
    }
    return value;
}

// Over all threads, known to thread 0 only; `storage` holds one value per warp.
template <class Operation, u32 N_THREADS, class T>
__device__ __forceinline__ T fold_of_block(T value, T* storage) {
    static_assert(N_THREADS % WARP == 0 && N_THREADS <= WARP * WARP, "whole warps, one value each");
    value = fold_of_warp<Operation>(value);
    if (threadIdx.x % WARP == 0) storage[threadIdx.x / WARP] = value;
    __syncthreads();
    if (threadIdx.x < WARP)
        value = fold_of_warp<Operation>(threadIdx.x < N_THREADS / WARP ? storage[threadIdx.x] : T(0));
    __syncthreads();  // `storage` may be used again
    return value;
}

template <u32 N_THREADS, class T>
__device__ __forceinline__ T sum_of_block(T value, T* storage) { return fold_of_block<Add, N_THREADS>(value, storage); }

template <u32 N_THREADS, class T>
__device__ __forceinline__ T max_of_block(T value, T* storage) {
    return fold_of_block<Larger, N_THREADS>(value, storage);
}

// The sum of the counts of blocks before `block`, known to all threads; `storage` holds one value per warp.
template <u32 N_THREADS>
__device__ __forceinline__ i64 sum_before(const u32* counts, u32 block, i64* storage) {
    i64 before = 0;
    for (u32 i = threadIdx.x; i < block; i += N_THREADS) before += counts[i];
    before = sum_of_block<N_THREADS>(before, storage);
    if (threadIdx.x == 0) storage[0] = before;
    __syncthreads();
    before = storage[0];
    __syncthreads();  // `storage` may be used again
    return before;
}

// How many threads before this one, and in the whole block, are `true`; `storage` holds one value per warp.
struct Rank {
    u32 before;
    u32 total;
};

template <u32 N_THREADS>
__device__ __forceinline__ Rank rank_in_block(bool is_counted, u32* storage) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 votes = __ballot_sync(ALL_LANES, is_counted);
    if (lane == 0) storage[warp] = __popc(votes);
    __syncthreads();
    Rank rank = {static_cast<u32>(__popc(votes & ((1u << lane) - 1))), 0};
    for (u32 w = 0; w < N_THREADS / WARP; ++w) {
        rank.before += w < warp ? storage[w] : 0;
        rank.total += storage[w];
    }
    __syncthreads();
    return rank;
}
