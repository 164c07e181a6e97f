// Values as unsigned integers of the same order: `daskboost/devices/cpu/predict.py`, to the last bit.
#pragma once

#include "types.cuh"

// -0.0 equals 0.0; NaN becomes `missing`.
static __device__ __forceinline__ u32 ordered_key(float value, u32 missing) {
    const u32 sign = 0x80000000u, bits = __float_as_uint(value), magnitude = bits & ~sign;
    if (magnitude > 0x7F800000u) return missing;
    if (magnitude == 0) return sign;
    return bits & sign ? ~bits : bits | sign;
}

// Whether a feature has to be refused: infinite, or so large that the split `x < float32 max` would not know it from the
// missing values.
static __device__ __forceinline__ bool is_infinite(float value) {
    return (__float_as_uint(value) & 0x7FFFFFFFu) - 0x7F7FFFFFu <= 1;  // NaN has a greater magnitude than infinity
}
