// Minimal-variance sampling of one row: the arithmetic of `daskboost/devices/sampling.py` and `cpu/samples.py`, to the
// last bit. Everything is float64, made of operations that IEEE 754 rounds alike everywhere.
#pragma once

#include "types.cuh"

constexpr i32 CELL_BITS = 6, N_CELLS = 256 << CELL_BITS;
constexpr i64 FIRST_CELL = static_cast<i64>(1023 - 128) << CELL_BITS;
constexpr double NORM_LAMBDA = 0.1;

// One output's part of the square of a norm.
SHARED_BY_HOST double square_of(float g, float h) {
    const double own_g = g, own_h = h;
    return own_g * own_g + NORM_LAMBDA * (own_h * own_h);
}

// Infinite where a gradient is not finite, so that the row is always drawn.
SHARED_BY_HOST double norm_of(double square) {
    const double infinite = __longlong_as_double(0x7FF0000000000000ll), norm = sqrt(square);
    return norm < infinite ? norm : infinite;
}

// The cell that a norm above 0 is counted in: by exponent and leading bits.
SHARED_BY_HOST i32 cell_of(double norm) {
    const i64 cell = (__double_as_longlong(norm) >> (52 - CELL_BITS)) - FIRST_CELL;
    return static_cast<i32>(min(max(cell, 0ll), static_cast<i64>(N_CELLS - 1)));
}

// 64 random bits as a number in [0, 1).
SHARED_BY_HOST double draw_of(u64 bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

SHARED_BY_HOST bool is_drawn(double draw, double norm, double threshold) { return draw < norm / threshold; }
