// The smallest of many keys, found by a group of threads: the range of the keys is divided into parts, and how many keys each
// has says in which the last one lies, whose range is divided again. So bits that all keys share take no time, nor do equal
// keys. The upper halves of keys come first; the lower ones count where upper ones are equal.
#pragma once

#include "block.cuh"

constexpr u32 DIGIT = 8;
constexpr u32 PARTS = 1 << DIGIT;
constexpr u32 MOST_WARPS = 8;  // of a group
constexpr i32 ALL_EQUAL = 0x7FFFFFFF;

// Bits of a part of the upper halves at most, as long as their range is not divided: an eighth of an octave of float64. The
// numbers of largest magnitude, with which the range begins, then lie in many parts; the last one has what is more than 32
// octaves away.
constexpr u32 PART_OF_OCTAVE = 17;

struct SelectRoom {
    alignas(16) i32 counts[PARTS];
    u32 from_low[MOST_WARPS];   // of each warp: how far the first of the words that are left is from `low`
    u32 from_high[MOST_WARPS];  // and the last of them from `high`
    i32 part;
    i32 left;
    i32 n_there;
};

// Selected are keys below `last`, and the first `n_equal` of those that equal it.
struct Smallest {
    u64 last;
    i32 n_equal;
};

// Selected are words up to `last`; where `n_equal` is not 0, so many of those that equal it.
struct SmallestWords {
    u32 last;
    i32 n_equal;
};

// The part that the n-th word lies in, from counts of all; by the group's first warp.
static __device__ __forceinline__ void find_part(SelectRoom& room, i32 n) {
    constexpr i32 EACH_LANE = PARTS / WARP;
    const i32 first = static_cast<i32>(threadIdx.x % WARP) * EACH_LANE;
    i32 counts[EACH_LANE], all = 0;
#pragma unroll
    for (i32 k = 0; k < EACH_LANE; ++k) all += counts[k] = room.counts[first + k];
    i32 before = running_sum_of_warp(all) - all;
    if (n <= before || n > before + all) return;
    i32 part = first, there = counts[0];
#pragma unroll
    for (i32 k = 1; k < EACH_LANE; ++k) {
        if (n <= before + there) break;
        before += there;
        there = counts[k];
        ++part;
    }
    room.part = part;
    room.left = n - before;
    room.n_there = there;
}

// The `n` smallest of the words that `words` gives to a function, to each thread its own; of none where `n` is 0. Its first
// parts have at most `most_bits` bits.
template <u32 N_THREADS, class Words>
static __device__ __forceinline__ SmallestWords smallest_words(const Words& words, i32 n, u32 most_bits, SelectRoom& room) {
    static_assert(N_THREADS % WARP == 0 && N_THREADS <= MOST_WARPS * WARP, "whole warps, words of each in the room");
    const u32 thread = threadIdx.x % N_THREADS, warp = thread / WARP;
    u32 low = 0, high = ~0u;  // the last word is one of those from here to there
    for (bool is_open = n > 0;; most_bits = 32) {
        if (is_open) {
            u32 from_low = ~0u, from_high = ~0u;
            words([&](u32 word) {  // those that are not left are farther from either
                from_low = min(from_low, word - low);
                from_high = min(from_high, high - word);
            });
            from_low = min_of_warp(from_low);
            from_high = min_of_warp(from_high);
            if (thread % WARP == 0) {
                room.from_low[warp] = from_low;
                room.from_high[warp] = from_high;
            }
#pragma unroll
            for (u32 part = thread; part < PARTS; part += N_THREADS) room.counts[part] = 0;
        }
        if (!__syncthreads_or(is_open)) return {high, n};
        u32 shift = 0;
        if (is_open) {
            u32 from_low = ~0u, from_high = ~0u;
#pragma unroll
            for (u32 w = 0; w < N_THREADS / WARP; ++w) {
                from_low = min(from_low, room.from_low[w]);
                from_high = min(from_high, room.from_high[w]);
            }
            low += from_low;
            high -= from_high;
            const i32 bits = 32 - __clz(static_cast<i32>(high - low)) - static_cast<i32>(DIGIT);
            shift = min(static_cast<u32>(max(bits, 0)), most_bits);
            is_open = low < high;  // or else all that are left are equal
        }
        if (is_open)
            words([&](u32 word) {
                const u32 part = min((word - low) >> shift, PARTS - 1);
                if (word - low <= high - low) atomicAdd(room.counts + part, 1);
            });
        __syncthreads();
        if (is_open && warp == 0) find_part(room, n);
        __syncthreads();
        if (is_open) {
            const u32 part = static_cast<u32>(room.part);
            low += part << shift;
            if (part < PARTS - 1) high = low + min(high - low, (1u << shift) - 1);
            n = room.left == room.n_there ? 0 : room.left;
            is_open = n > 0;
        }
    }
}

// The upper words of keys. (Functions of functions are structures here: NVRTC 13.0 takes a lambda within a generic one for a
// function of the host.)
template <class Keys>
struct UpperWords {
    const Keys& keys;

    template <class See>
    struct Upper {
        const See& see;

        __device__ __forceinline__ void operator()(u64 key) const { see(static_cast<u32>(key >> 32)); }
    };

    template <class See>
    __device__ __forceinline__ void operator()(const See& see) const { keys.each(Upper<See>{see}); }
};

// The lower words of keys whose upper word is `upper`.
template <class Keys>
struct LowerWords {
    const Keys& keys;
    u32 upper;

    template <class See>
    struct Lower {
        const See& see;
        u32 upper;

        __device__ __forceinline__ void operator()(u64 key) const {
            if (static_cast<u32>(key >> 32) == upper) see(static_cast<u32>(key));
        }
    };

    template <class See>
    __device__ __forceinline__ void operator()(const See& see) const { keys.each(Lower<See>{see, upper}); }
};

// The `n` smallest of the keys that `keys.each` gives to a function, to each thread its own; `n` is at least 1, and at most as
// many as there are. A block consists of groups of N_THREADS with keys and room of their own, which call this together.
template <u32 N_THREADS, class Keys>
static __device__ __forceinline__ Smallest select_smallest(const Keys& keys, i32 n, SelectRoom& room) {
    const SmallestWords upper = smallest_words<N_THREADS>(UpperWords<Keys>{keys}, n, PART_OF_OCTAVE, room);
    const SmallestWords lower = smallest_words<N_THREADS>(LowerWords<Keys>{keys, upper.last}, upper.n_equal, 32, room);
    return {static_cast<u64>(upper.last) << 32 | lower.last, lower.n_equal == 0 ? ALL_EQUAL : lower.n_equal};
}

// Keys `keys.at(i)` of those i below `n` that `keys.has(i)`, for a group that is a block.
template <class Keys>
struct KeysOfBlock {
    const Keys& keys;
    i32 n;

    template <class See>
    __device__ __forceinline__ void each(See see) const {
#pragma unroll 1
        for (i32 i = threadIdx.x; i < n; i += static_cast<i32>(blockDim.x))
            if (keys.has(i)) see(keys.at(i));
    }
};
