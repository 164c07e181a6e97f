// Reading symbols from packed words: the little-endian bit stream of `daskboost/data/chunks/packing.py`.
#pragma once

#include "types.cuh"

// The symbol of `width` bits, 1 to 32, that starts at bit `bit`. Loads two words: arrays end with a guard word.
SHARED_BY_HOST u32 read_symbol(const u32* words, u64 bit, u32 width) {
    const u64 place = bit >> 5;
    const u64 both = static_cast<u64>(words[place]) | static_cast<u64>(words[place + 1]) << 32;
    return static_cast<u32>(both >> (bit & 31)) & (0xFFFFFFFFu >> (32 - width));
}
