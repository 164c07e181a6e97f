// Sums of g and h in one word of 32 bits, so that one atomic adds both: g in the upper half, h in the lower, as `pack_large`
// of rounding.cuh packs a row's. Rows are rounded to few levels (PACKED_LIMIT of daskboost/cluster/rounding.py).
//
// A word can be taken apart while |g| < 2^15 and 0 <= h < 2^16. Sums that stay in shared memory at a spill are below
// PACKED_G_FROM and PACKED_H_FROM, and PACKED_ROWS rows later still within: 4095 + 7168 * 4 = 2^15 - 1.
#pragma once

#include "rounding.cuh"

constexpr i32 PACKED_LIMIT = 4;
constexpr i32 PACKED_G_FROM = 1 << 12;
constexpr i32 PACKED_H_FROM = 9 << 12;
constexpr i32 PACKED_ROWS = 7168;
static_assert(PACKED_G_FROM - 1 + PACKED_ROWS * PACKED_LIMIT <= 0x7FFF, "g keeps its sign");
static_assert(PACKED_H_FROM - 1 + PACKED_ROWS * PACKED_LIMIT <= 0xFFFF, "h does not reach g");

// Whether a sum is to be handed over before more rows come.
static __device__ __forceinline__ bool is_full(i32 packed) {
    return g_of(packed) >= PACKED_G_FROM || g_of(packed) <= -PACKED_G_FROM || h_of(packed) >= PACKED_H_FROM;
}
