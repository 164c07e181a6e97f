// The largest of the gains that the threads of a block have.
#pragma once

#include "gain.cuh"

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

// Of the gains by feature, which blocks of an earlier launch have found, the largest and its feature, the first among equals,
// become thread 0's; `n_features` where no split is allowed.
template <u32 N_THREADS>
__device__ __forceinline__ void best_feature_of_block(const double* by_feature, i32 n_features, double* gains,
                                                      i32* features) {
    double best = NO_GAIN;
    i32 best_feature = n_features;
    for (i32 feature = threadIdx.x; feature < n_features; feature += N_THREADS) {
        if (by_feature[feature] > best) {
            best = by_feature[feature];
            best_feature = feature;
        }
    }
    best_of_block<N_THREADS>(best, best_feature, gains, features);
}
