// Order-preserving keys of float32: keys compare as values do, and both zeros have one (`daskboost/data/cuts/key_counts.py`).
#pragma once

#include "types.cuh"

static __device__ __forceinline__ u32 key_of(float value) {
    const u32 bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float value_of(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key); }
