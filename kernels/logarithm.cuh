// The natural logarithm from operations that IEEE 754 fixes to the last bit: `daskboost/devices/cpu/arithmetic.py`.
//
// Libraries' logarithms differ in the last bit, and a metric's would decide when training stops.
#pragma once

#include "elementary.cuh"

// To one unit in the last place; the reduction and the polynomial of FreeBSD's e_log.c (Sun Microsystems, 1993):
// x = 2**k (1 + f), s = f / (2 + f), log(1 + f) = f - s (f - R(s**2)).
static __device__ __forceinline__ double logarithm(double x) {
    if (!(x > 0)) return x == 0 ? -__longlong_as_double(0x7FF0000000000000ll) : __longlong_as_double(0x7FF8000000000000ll);
    i64 bits = __double_as_longlong(x);
    if (bits >= 0x7FF0000000000000ll) return x;
    i64 k = 0;
    if (bits < 0x0010000000000000ll) {  // subnormal
        bits = __double_as_longlong(x * 0x1p54);
        k = -54;
    }
    bits += 0x3FF0000000000000ll - 0x3FE6A09E00000000ll;  // 1 + f lies between the roots of 1/2 and of 2
    k += (bits >> 52) - 0x3FF;
    const double f = __longlong_as_double((bits & 0x000FFFFFFFFFFFFFll) + 0x3FE6A09E00000000ll) - 1.0;
    const double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s, w = z * z;
    const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01
                       + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double dk = static_cast<double>(k);
    return s * (half + (odd + even)) + dk * 1.90821492927058770002e-10 - half + f + dk * 6.93147180369123816490e-01;
}

// log(1 + x), accurate where x is small: what rounding 1 + x loses is put back.
static __device__ __forceinline__ double logarithm_of_one_plus(double x) {
    const double u = 1.0 + x;
    const double found = logarithm(u);
    return found - found == 0 ? found + (x - (u - 1.0)) / u : found;  // not for infinities and NaN
}

// The same in float32, of x from 0 to 2**119, to a few units in the last place; the polynomial of FreeBSD's e_logf.c.
static __device__ __forceinline__ float short_logarithm_of_one_plus(float x) {
    const float u = 1.0f + x;
    const i32 bits = static_cast<i32>(__float_as_uint(u)), k = (bits - 0x3F3504F3) >> 23;  // 1 + f lies as above
    const float f = __uint_as_float(static_cast<u32>(bits) - (static_cast<u32>(k) << 23)) - 1.0f;
    const float s = f * reciprocal(2.0f + f), z = s * s, half = 0.5f * f * f, dk = static_cast<float>(k);
    const float r = z * (0.66666662693f + z * (0.40000972152f + z * (0.28498786688f + z * 0.24279078841f)));
    const float lost = (x - (u - 1.0f)) * reciprocal(u);
    return s * (half + r) + (dk * 9.0580006145e-06f + lost) - half + f + dk * 6.9313812256e-01f;
}
