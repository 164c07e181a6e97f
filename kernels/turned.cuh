// Lanes that add rows in the order of skewed.cuh, and read them from a copy in which they are turned already (turn.cu):
//
//   tile of 32 rows   word 0 of lanes 0 ... 31 | word 1 of lanes 0 ... 31 | ...      lines of 128 bytes
//
// Byte i of word k is the symbol that the lane adds at step 4 k + i: nothing is shuffled or selected, rows take as many
// bytes as they have columns, and a warp reads full lines. Of 28 columns, a warp's 32 rows take 56 wavefronts of atomics and
// 8 of loads, where skewed_rows.cuh takes 69, and two thirds of its instructions.
//
// Two tiles are on their way while two are added: for as long as device memory takes where all of its bandwidth is asked
// for, without asking the L2 cache twice.
#pragma once

#include "skewed.cuh"

constexpr i32 SETS = 2;
constexpr i32 LINE_WORDS = 32;

// Of the warp's rows, the one of a lane.
static __device__ __forceinline__ i32 place_of(i32 lane) { return lane; }

struct Words {
    u32 at[WORDS];
};

// Where a lane adds which symbol at each step.
struct Lane {
    u32 banks;  // a byte for each of four steps: offset of the bank, but for the word's

    __device__ __forceinline__ Lane(i32 lane) : banks(0) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) banks |= static_cast<u32>(16 * (lane / 4) + 4 * ((i + lane) % 4)) << 8 * i;
    }

    // Bytes to add to the address of a row, which is that of its tile and as many rows: from there to the lane's first word.
    __device__ __forceinline__ i32 shift(i32 lane) const { return lane * (4 - N_STEPS); }

    // The row's words, if `n_left`, the rows from it to the end, says that there is one.
    __device__ __forceinline__ void load(Words& words, const u8* own, u32 row, i32 n_left) const {
        const u32* from = reinterpret_cast<const u32*>(own + static_cast<u64>(row) * N_STEPS);
        if (n_left <= 0) return;
#pragma unroll
        for (i32 k = 0; k < WORDS; ++k) words.at[k] = from[k * LINE_WORDS];
    }

    __device__ __forceinline__ Words turn(const Words& words) const { return words; }

    // Bytes from the first cell to the one of g.
    __device__ __forceinline__ u32 offset(const Words& now, i32 step) const {
        const u32 byte = step % 4, zero = 12 + byte;
        return pick_bytes(now.at[step / 4], banks, (4 + byte) | byte << 4 | zero << 8 | zero << 12) + 16 * (step / 4);
    }
};
