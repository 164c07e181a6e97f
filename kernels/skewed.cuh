// The order in which lanes add a row's columns where rows follow one another, and columns N_STEPS < 32: at step j lane
// l, which has a row of its own, adds its symbol of column (l + j) % N_STEPS.
//
//            step 0   step 1   step 2                no step is spent on columns without a feature; that 32 lanes find
//   row 0    column 0 column 1 column 2              32 banks takes two cells of most columns: 64 banks for g of a bin,
//   row 1    column 1 column 2 column 3              of which lane l takes l + j, and as many for h, BINS bins further
//   row 2    column 2 column 3 column 4
//
// A byte permutation makes an address, of which the step and the statistic are constant parts of the instruction. Lanes
// read their rows in halves, so that a warp asks twice for each sector, which costs where rows are gathered.
#pragma once

#include "bytes.cuh"

constexpr i32 N_STEPS = SKEWED;
constexpr i32 LANES_PER_ROW = 1;
constexpr i32 WORDS = N_STEPS / 4;  // of a row
constexpr i32 SETS = 1;
constexpr i32 BANKS = 64;
constexpr i32 COPIES = (31 + N_STEPS + N_STEPS - 1) / N_STEPS;  // of a column, but for has_copy
constexpr i32 BIN_BYTES = 4 * BANKS;
constexpr i32 BYTES_TO_H = BIN_BYTES * BINS;

static __device__ __forceinline__ i32 cell_of(i32 bin, i32 statistic, i32 column, i32 copy) {
    return (statistic * BINS + bin) * BANKS + copy * N_STEPS + column;
}
static __device__ __forceinline__ bool has_copy(i32 column, i32 copy) {
    return column < N_STEPS && copy * N_STEPS + column < 31 + N_STEPS;
}

struct Words {
    u32 at[WORDS];
};

static __device__ __forceinline__ Words load_words(const u8* from) {
    const uint4 low = reinterpret_cast<const uint4*>(from)[0], high = reinterpret_cast<const uint4*>(from)[1];
    const u32 all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    Words words;
#pragma unroll
    for (i32 k = 0; k < WORDS; ++k) words.at[k] = all[k];
    return words;
}

// Where a lane adds which symbol at each step.
struct Lane {
    u32 bank;    // bytes to the first
    u32 first;   // column

    __device__ __forceinline__ Lane(i32 lane, i32) : bank(4 * lane), first(lane % N_STEPS) {}

    // Symbols of columns `first`, `first` + 1 and so on, around.
    __device__ __forceinline__ Words turn(const Words& words) const {
        Words now = words;
#pragma unroll
        for (i32 step = 1; step < WORDS; step <<= 1) {
            const Words before = now;
            const bool turns = (first / 4 & step) != 0;
#pragma unroll
            for (i32 k = 0; k < WORDS; ++k) now.at[k] = turns ? before.at[(k + step) % WORDS] : before.at[k];
        }
        Words bytes;
#pragma unroll
        for (i32 k = 0; k < WORDS; ++k) bytes.at[k] = __funnelshift_r(now.at[k], now.at[(k + 1) % WORDS], 8 * (first % 4));
        return bytes;
    }

    // Bytes from the first cell to the one of g.
    __device__ __forceinline__ u32 offset(const Words& now, i32 step) const {
        return pick_bytes(now.at[step / 4], bank, 0x5504 | step % 4 << 4) + 4 * step;
    }
};
