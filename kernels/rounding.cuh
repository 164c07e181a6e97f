// Gradients become integers: the arithmetic of `daskboost/devices/cpu/gradients.py`, to the last bit.
//
// Large data are rounded stochastically to 15 bits, by a hash of the global row id; small data to nearest, before the
// weight multiplies. Everything is float64 with the values of the CPU's operations; modules are compiled without
// contraction into fused multiply-adds.
#pragma once

#include "hashing.cuh"

struct QuantizedPair {
    i64 g;
    i64 h;
};

// Bits as a fraction of 2**32. They become the low half of a float64 from 2**20 on, whose last bit is worth 2**-32: a
// subtraction is four times as fast as the conversion of an integer.
SHARED_BY_HOST double fraction_of(u32 bits) {
    return __longlong_as_double(0x4130000000000000ll | static_cast<i64>(bits)) - 0x1p20;
}

// `value * scale` rounded up with a probability equal to its fraction; `bits` are 32 random bits.
SHARED_BY_HOST i32 round_stochastically(float value, double scale, u32 bits) {
    return __double2int_rd(static_cast<double>(value) * scale + fraction_of(bits));
}

// To nearest, ties to even, before and after the weight multiplies; `times` is the weight times its scale.
SHARED_BY_HOST i64 round_to_nearest(float value, double scale, double times) {
    return static_cast<i64>(rint(rint(static_cast<double>(value) * scale) * times));
}

// A row of large data; `bits` are its 64 random bits.
SHARED_BY_HOST QuantizedPair quantize_large(float g, float h, double scale_g, double scale_h, u64 bits) {
    return {round_stochastically(g, scale_g, static_cast<u32>(bits >> 32)),
            round_stochastically(h, scale_h, static_cast<u32>(bits))};
}

// A row of small data.
SHARED_BY_HOST QuantizedPair quantize_small(float g, float h, double scale_g, double scale_h, double times) {
    return {round_to_nearest(g, scale_g, times), round_to_nearest(h, scale_h, times)};
}

// g above h. Negative g are multiplied, not shifted, which C++17 leaves undefined.
SHARED_BY_HOST i32 pack_large(QuantizedPair pair) { return static_cast<i32>(pair.g * 65536 + pair.h); }
SHARED_BY_HOST i64 pack_small(QuantizedPair pair) { return pair.g * 4294967296ll + pair.h; }

SHARED_BY_HOST i32 g_of(i32 pair) { return pair >> 16; }
SHARED_BY_HOST i32 h_of(i32 pair) { return pair & 0xFFFF; }
SHARED_BY_HOST i32 g_of(i64 pair) { return static_cast<i32>(pair >> 32); }
SHARED_BY_HOST i32 h_of(i64 pair) { return static_cast<i32>(pair & 0xFFFFFFFFll); }

// How one output's gradients are rounded, as float64 in device memory: `Scales` of daskboost/devices/gpu/rows/rounding.py.
constexpr i32 SCALE_G = 0, SCALE_H = 1, SCALE_W = 2, UNIT_G = 3, UNIT_H = 4, LARGEST_G = 5, LARGEST_H = 6;
constexpr i32 NOISE_GAIN = 7, SCALES = 8;

// The exponent of `frexp`: a positive normal `x` lies in [2**(e - 1), 2**e).
SHARED_BY_HOST i32 exponent_of(double x) { return static_cast<i32>(__double_as_longlong(x) >> 52) - 1022; }
SHARED_BY_HOST double power_of_two(i32 exponent) {
    return __longlong_as_double(static_cast<i64>(exponent + 1023) << 52);
}

// The largest power of two that keeps `largest` within `limit`, a positive integer; 1 for 0.
SHARED_BY_HOST double scale_of(double largest, double limit) {
    if (largest == 0) return 1.0;
    i32 exponent = min(exponent_of(limit) - exponent_of(largest), 1023);
    if (largest * power_of_two(exponent) > limit) --exponent;
    return power_of_two(min(exponent, 1000));
}

// The gain below which a split tells nothing: `noise_gain` of `daskboost/fit/scales.py`. `divisor` : of gains.
// `step` : the largest leaf value, 0 for any.
SHARED_BY_HOST double noise_gain(double unit_g, double largest_g, double divisor, double step) {
    if (largest_g == 0.0 || divisor == 0.0) return 0.0;
    const double quanta = 8.0 * unit_g, share = 0x1p-20 * largest_g, noise = quanta > share ? quanta : share;
    if (0.0 < step && step < noise / divisor) return 2.0 * noise * step - divisor * step * step;
    return noise * noise / divisor;
}

// Writes all fields of one output. A largest value that is not finite has scales and units of 0: all integers are 0, so
// that nothing overflows until the host finds the value and refuses it. `searched` bounds what is quantized in place of
// h, unless it is 0.
SHARED_BY_HOST void store_scales(double top_g, double top_h, double bound, double limit, double scale_w, double lambda,
                                 double step, double searched, double* out) {
    const bool is_finite = top_g <= 0x1.fffffep127 && top_h <= 0x1.fffffep127;  // false for NaN
    const double scale_g = is_finite ? scale_of(bound * top_g, limit) : 0.0;
    const double largest_h = searched != 0.0 ? searched : top_h;
    const double scale_h = is_finite ? scale_of(bound * largest_h, limit) : 0.0;
    out[SCALE_G] = scale_g;
    out[SCALE_H] = scale_h;
    out[SCALE_W] = scale_w;
    out[UNIT_G] = is_finite ? 1.0 / (scale_g * scale_w) : 0.0;
    out[UNIT_H] = is_finite ? 1.0 / (scale_h * scale_w) : 0.0;
    out[LARGEST_G] = top_g;
    out[LARGEST_H] = top_h;
    const double divisor = largest_h / scale_w + lambda;
    out[NOISE_GAIN] = is_finite ? noise_gain(out[UNIT_G], top_g / scale_w, divisor, step) : 0.0;
}
