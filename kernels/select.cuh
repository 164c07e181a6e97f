// The smallest of many keys, found by one block digit by digit: how many there are of each value of a digit says in which the
// last one lies.
#pragma once

#include "scan.cuh"

constexpr u32 DIGIT = 8;  // bits; a thread for each of its values
constexpr i32 ALL_EQUAL = 0x7FFFFFFF;

struct SelectRoom {
    u64 found;
    i32 left;
    i32 counts[1 << DIGIT];
    i32 scan[1 << DIGIT];
};

// Selected are keys below `last`, and the first `n_equal` of those that equal it.
struct Smallest {
    u64 last;
    i32 n_equal;
};

// The `n` smallest of the keys `keys.at(i)` of those i below `n_all` that `keys.has(i)`; `n` is at least 1, and at most as many
// as there are. Called by all threads of a block of 1 << DIGIT.
template <class Keys>
static __device__ __forceinline__ Smallest select_smallest(const Keys& keys, i32 n_all, i32 n, SelectRoom& room) {
    u64 prefix = 0;
    for (u32 shift = 64 - DIGIT;; shift -= DIGIT) {
        room.counts[threadIdx.x] = 0;
        __syncthreads();
        for (i32 i = threadIdx.x; i < n_all; i += 1 << DIGIT) {
            if (!keys.has(i)) continue;
            const u64 key = keys.at(i);
            const bool is_near = shift == 64 - DIGIT || key >> (shift + DIGIT) == prefix;
            if (is_near) atomicAdd(room.counts + (key >> shift & ((1u << DIGIT) - 1)), 1);
        }
        __syncthreads();
        const i32 own = room.counts[threadIdx.x], before = scan_block(own, room.scan);
        if (before < n && n <= before + own) {
            room.found = prefix << DIGIT | threadIdx.x;
            room.left = n == before + own ? 0 : n - before;
        }
        __syncthreads();
        prefix = room.found;
        n = room.left;
        __syncthreads();  // the room may be used again
        if (n == 0) return {prefix << shift | ((1ull << shift) - 1), ALL_EQUAL};
        if (shift == 0) return {prefix, n};
    }
}
