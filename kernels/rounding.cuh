// Gradients become integers: the arithmetic of `daskboost/devices/cpu/gradients.py`, to the last bit.
//
// Large data are rounded stochastically to 15 bits, by a hash of the global row id; small data to nearest, before the
// weight multiplies. Everything is float64 in the order of the CPU's operations; modules are compiled without
// contraction into fused multiply-adds.
#pragma once

#include "hashing.cuh"

struct QuantizedPair {
    i64 g;
    i64 h;
};

// `value * scale` rounded up with a probability equal to its fraction; `bits` are 32 random bits.
SHARED_BY_HOST i64 round_stochastically(float value, double scale, u32 bits) {
    return static_cast<i64>(floor(static_cast<double>(value) * scale + static_cast<double>(bits) * 0x1p-32));
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
