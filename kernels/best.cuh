// The largest of the gains that the threads of a block have.
#pragma once

#include "types.cuh"

// Of all threads' gains the largest, the lowest place among equals, becomes thread 0's.
template <u32 N_THREADS>
__device__ __forceinline__ void best_of_block(double gain, i32 place, double* gains, i32* places) {
    gains[threadIdx.x] = gain;
    places[threadIdx.x] = place;
    __syncthreads();
    for (u32 half = N_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const double other = gains[threadIdx.x + half];
            const i32 other_place = places[threadIdx.x + half];
            if (other > gains[threadIdx.x] || (other == gains[threadIdx.x] && other_place < places[threadIdx.x])) {
                gains[threadIdx.x] = other;
                places[threadIdx.x] = other_place;
            }
        }
        __syncthreads();
    }
}
