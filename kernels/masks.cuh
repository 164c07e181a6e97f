// Which of a tree's sets of bins list a slot: a bit for each of up to 256 sets, so that a sector holds them.
#pragma once

#include "types.cuh"

constexpr i32 MASK_WORDS = 8;

// One of eight words in registers, by some selections instead of an access to memory.
static __device__ __forceinline__ u32 word_of(const u32 (&words)[8], u32 word) {
    const u32 a = word & 1 ? words[1] : words[0], b = word & 1 ? words[3] : words[2];
    const u32 c = word & 1 ? words[5] : words[4], d = word & 1 ? words[7] : words[6];
    const u32 low = word & 2 ? b : a, high = word & 2 ? d : c;
    return word & 4 ? high : low;
}

// Takes the eight words of a sector.
static __device__ __forceinline__ void load_words(const void* sector, u32 (&words)[8]) {
    const uint4* from = static_cast<const uint4*>(sector);
    const uint4 low = from[0], high = from[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}
