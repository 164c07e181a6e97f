// exp and what follows from it in float32: `daskboost/objectives/objective.py`, operation by operation, so that the
// bits are NumPy's. That needs IEEE division, no fused multiply-adds and no flushing of subnormal numbers to zero.
#pragma once

#include "types.cuh"

// As `np.clip` and `np.maximum`: NaN stays, which `fminf` and `fmaxf` would drop.
SHARED_BY_HOST float clip(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
SHARED_BY_HOST float at_least(float x, float low) { return x < low ? low : x; }

// e**x for |x| <= 80; beyond, the value at the end of that range.
SHARED_BY_HOST float exp_of(float x) {
    constexpr float shift = 12582912.0f;  // 1.5 * 2**23: adding it rounds to a whole number, which its low bits then hold
    x = clip(x, -80.0f, 80.0f);
    const float shifted = x * 1.44269504f + shift;
    const float n = shifted - shift;
    float r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    float p = r * 1.9875691500e-4f;
    p = (p + 1.3981999507e-3f) * r;
    p = (p + 8.3334519073e-3f) * r;
    p = (p + 4.1665795894e-2f) * r;
    p = (p + 1.6666665459e-1f) * r;
    p = (p + 0.5f) * r;
    p = p * r + r + 1.0f;
    const u32 power = __float_as_uint(shifted) - __float_as_uint(shift) + 127;
    return p * __uint_as_float(power << 23);
}

// 1 / x, rounded as division is, of x from 2**-120 to 2**120. The division that compilers make of it also serves all other
// numbers, by a call that keeps the instructions of several from being mixed.
SHARED_BY_HOST float reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
    return __fmaf_rn(near, __fmaf_rn(-x, near, 1.0f), near);
#else
    return 1.0f / x;
#endif
}

// The bits of x * y + shift, rounded once: those of `shift` and as many units of its last place as are nearest to x * y,
// if that is not too large. `shift` : a power of two, or 1.5 times one.
SHARED_BY_HOST u32 shifted_product(float x, float y, float shift) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;  // to a whole number" : "=f"(sum) : "f"(x), "f"(y), "f"(shift));
    return __float_as_uint(sum);
#else
    const double unit = static_cast<double>(__uint_as_float(__float_as_uint(shift) & 0x7F800000u)) * 0x1p-23;
    const double rounded = rint(static_cast<double>(x) * static_cast<double>(y) / unit) * unit;
    return __float_as_uint(static_cast<float>(rounded + static_cast<double>(shift)));
#endif
}

SHARED_BY_HOST float sigmoid(float x) { return 1.0f / (exp_of(-x) + 1.0f); }
