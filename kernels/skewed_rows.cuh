// Lanes that add rows in the order of skewed.cuh, and read them as they are, ROW_BYTES apart.
//
// Shared memory, which all loads pass, is what limits: a warp's 32 rows take 56 wavefronts of 28 columns' atomics. A lane
// that read a row of its own in two halves would touch every other 16 bytes, and a warp pay 16 wavefronts for 8 lines. So
// neighbouring lanes read two rows, m and 16 + m, side by side, a line for every eight lanes, and exchange what belongs to
// the other by four shuffles: 8 + 4 wavefronts, 69 instead of 73 with the pairs'.
//
//            lane 2m          lane 2m + 1                 lane 2m adds row m, lane 2m + 1 row 16 + m: which row is whose
//   load 0   row m, low       row m, high                 does not matter to banks
//   load 1   row 16 + m, low  row 16 + m, high
#pragma once

#include "skewed.cuh"

// Of the warp's rows, the one of a lane.
static __device__ __forceinline__ i32 place_of(i32 lane) { return lane / 2 + lane % 2 * 16; }

constexpr i32 SETS = 1;                            // of rows, in flight together
constexpr i32 ROW_BYTES = 32;
constexpr i32 HALF_WORDS = 4;                      // of two rows, in a lane
constexpr i32 HIGH_WORDS = WORDS - HALF_WORDS;     // of the higher half, those with columns
constexpr i32 FAR_BYTES = 16 * ROW_BYTES;          // from one row of two lanes to the other

constexpr i32 AHEAD = 3;                           // strides

struct Words {
    u32 at[2 * HALF_WORDS];
};

static __device__ __forceinline__ void prefetch_line(const void* at) {
#ifndef CUDA_EMULATION
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// Where a lane adds which symbol at each step.
struct Lane {
    u32 selectors[4];  // of `pick_bytes`, by step % 4
    u32 banks;         // a byte for each of these: offset of the bank, but for the word's
    i32 first;         // word
    bool is_odd;

    __device__ __forceinline__ Lane(i32 lane) : banks(0), first(lane / 4 % WORDS), is_odd(lane % 2 != 0) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            const u32 byte = (i + lane) % 4, zero = 12 + i;
            selectors[i] = (4 + i) | byte << 4 | zero << 8 | zero << 12;
            banks |= (16 * (lane / 4) + 4 * byte) << 8 * i;
        }
    }

    // Bytes to add to the address of the lane's row.
    __device__ __forceinline__ i32 shift(i32) const { return is_odd ? ROW_BYTES / 2 - FAR_BYTES : 0; }

    // Halves of two rows, if `n_left`, the rows from the lane's own to the end, says that they are there.
    __device__ __forceinline__ void load(Words& words, const u8* own, u32 row, i32 n_left) const {
        const uint4* from = reinterpret_cast<const uint4*>(own + static_cast<u64>(row) * ROW_BYTES);
        const i32 n_near = n_left + (is_odd ? 16 : 0);
        if (n_near > 0) {
            const uint4 near = *from;
            words.at[0] = near.x, words.at[1] = near.y, words.at[2] = near.z, words.at[3] = near.w;
        }
        if (n_near > 16) {
            const uint4 far = from[FAR_BYTES / 16];
            words.at[4] = far.x, words.at[5] = far.y, words.at[6] = far.z, words.at[7] = far.w;
        }
    }

    // Have the L2 cache fetch the warp's rows AHEAD strides from now, a line by each of eight lanes: registers have no room
    // for loads that wait as long as device memory takes when all of its bandwidth is asked for.
    __device__ __forceinline__ void prefetch(const u8* own, u32 row, i32 n_left) const {
        if (threadIdx.x % 8 < 2 && n_left > 16)
            prefetch_line(own + static_cast<u64>(row) * ROW_BYTES + (is_odd ? FAR_BYTES : 0));
    }

    // The lane's row, beginning with its first word. Called by all lanes.
    __device__ __forceinline__ Words turn(const Words& words) const {
        Words now = {};
#pragma unroll
        for (i32 k = 0; k < HALF_WORDS; ++k) {
            const u32 near = words.at[k], far = words.at[k + HALF_WORDS];
            const u32 given = __shfl_xor_sync(ALL_LANES, is_odd ? near : far, 1);
            now.at[k] = is_odd ? given : near;
            if (k < HIGH_WORDS) now.at[k + HALF_WORDS] = is_odd ? far : given;
        }
#pragma unroll
        for (i32 step = 1; step < WORDS; step <<= 1) {
            const Words before = now;
            const bool turns = (first & step) != 0;
#pragma unroll
            for (i32 k = 0; k < WORDS; ++k) now.at[k] = turns ? before.at[(k + step) % WORDS] : before.at[k];
        }
        return now;
    }

    // Bytes from the first cell to the one of g.
    __device__ __forceinline__ u32 offset(const Words& now, i32 step) const {
        return pick_bytes(now.at[step / 4], banks, selectors[step % 4]) + 16 * (step / 4);
    }
};
