// Bisection of increasing numbers.
#pragma once

#include "types.cuh"

// The first of the `numbers` in [low, high) that is no less than `wanted`; `high` if there is none.
template <typename T, typename Place>
static __device__ __forceinline__ Place first_not_below(const T* numbers, Place low, Place high, T wanted) {
    while (low < high) {
        const Place middle = (low + high) / 2;
        if (numbers[middle] < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}
