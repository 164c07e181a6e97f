// Bytes of two words, put together by one instruction.
#pragma once

#include "types.cuh"

// Byte k of the result is the byte of `low` (0 to 3) or `high` (4 to 7) that hexadecimal digit k of `selector` names; a
// digit 8 greater fills it with that byte's sign. (CUDA's `__byte_perm` promises no signs.)
static __device__ __forceinline__ u32 pick_bytes(u32 low, u32 high, u32 selector) {
#ifdef CUDA_EMULATION
    const u64 both = (static_cast<u64>(high) << 32) | low;
    u32 picked = 0;
    for (u32 k = 0; k < 4; ++k) {
        const u32 digit = selector >> 4 * k & 15, byte = static_cast<u32>(both >> 8 * (digit & 7)) & 255;
        picked |= (digit < 8 ? byte : (byte & 128) ? 255u : 0u) << 8 * k;
    }
    return picked;
#else
    u32 picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(selector));
    return picked;
#endif
}
