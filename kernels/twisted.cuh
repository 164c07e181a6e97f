// The order in which lanes add a row's columns where rows are gathered: at step j a lane adds its symbol of column (first
// of its columns) + (j ^ place of its row among the warp's rows).
//
//            step 0   step 1   step 2                no two lanes ever share a bank, whatever the data, which native
//   row 0    column 0 column 1 column 2              32-bit atomics reward with the rate of plain stores
//   row 1    column 1 column 0 column 3
//   row 2    column 2 column 3 column 0
//
// LANES_PER_ROW lanes share a row, each with up to 16 bytes of it in registers: a warp reads whole sectors, each once.
// Shared memory holds one 32-bit sum per (bin, statistic, bank); a column is a bank, or several where a group has fewer
// than 32. A bin takes 256 bytes (g of 32 banks, then h), so that one byte permutation makes the address of both atomics:
// the symbol above a byte from a small table of the lane's banks. Where histograms do not fit so, bins are closer.
#pragma once

#include "bytes.cuh"

constexpr i32 PER_WORD = 4 / SYMBOL_BYTES;
constexpr i32 MOST_LANE_SYMBOLS = 16 / SYMBOL_BYTES;
constexpr i32 N_STEPS = COLUMNS < MOST_LANE_SYMBOLS ? COLUMNS : MOST_LANE_SYMBOLS;
constexpr i32 LANES_PER_ROW = COLUMNS / N_STEPS;
constexpr i32 WORDS = (N_STEPS + PER_WORD - 1) / PER_WORD;  // that a lane holds of a row
constexpr i32 SETS = (WORDS == 1 ? 4 : 2) >> SMALL;         // of rows, in flight together
constexpr i32 BANKS = SYMBOL_BYTES == 1 ? 32 : COLUMNS;     // that a bin's g, or h, has for itself
constexpr i32 COPIES = BANKS / COLUMNS;                     // of a column
constexpr i32 CLOSER = BANKS == 32 ? 0 : BANKS == 16 ? 1 : BANKS == 8 ? 2 : BANKS == 4 ? 3 : BANKS == 2 ? 4 : 5;
constexpr i32 BIN_BYTES = 256 >> CLOSER;
constexpr i32 BYTES_TO_H = BIN_BYTES / 2;                   // from the g of a bin and column

// Of the warp's rows, the one of a lane.
static __device__ __forceinline__ i32 place_of(i32 lane) { return lane / LANES_PER_ROW; }

static __device__ __forceinline__ i32 cell_of(i32 bin, i32 statistic, i32 column, i32 copy) {
    return (2 * bin + statistic) * BANKS + copy * COLUMNS + column;
}
static __device__ __forceinline__ bool has_copy(i32, i32) { return true; }

// A lane's part of a row.
struct Words {
    u32 at[WORDS];
};

static __device__ __forceinline__ Words load_words(const u8* from) {
    Words words;
#if COLUMNS * SYMBOL_BYTES >= 16
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words.at[0] = all.x, words.at[1] = all.y, words.at[2] = all.z, words.at[3] = all.w;
#elif COLUMNS * SYMBOL_BYTES == 8
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    words.at[0] = all.x, words.at[1] = all.y;
#elif COLUMNS * SYMBOL_BYTES == 4
    words.at[0] = *reinterpret_cast<const u32*>(from);
#else
    words.at[0] = *reinterpret_cast<const u16*>(from);
#endif
    return words;
}

// Where a lane adds which symbol at each step.
struct Lane {
    u32 selectors[4];                 // of `pick_bytes`, by step % 4
    u32 banks[(N_STEPS + 3) / 4];     // a byte per step: its bank's offset, before bins are put closer
    i32 turned;                       // word k becomes word k ^ this

    __device__ __forceinline__ Lane(i32 lane) {
        const i32 place = place_of(lane), part = lane % LANES_PER_ROW;
        const i32 twist = place % N_STEPS, copy = place / N_STEPS % COPIES;
        turned = twist / PER_WORD;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 byte = SYMBOL_BYTES * ((i ^ twist) % PER_WORD % N_STEPS), zero = 12 + i;
            selectors[i] = (4 + i) | byte << 4 | (SYMBOL_BYTES == 1 ? zero : byte + 1) << 8 | zero << 12;
        }
#pragma unroll
        for (i32 k = 0; k < (N_STEPS + 3) / 4; ++k) {
            banks[k] = 0;
#pragma unroll
            for (i32 i = 0; i < 4; ++i) {
                const u32 column = part * N_STEPS + ((4 * k + i) ^ twist) % N_STEPS;
                banks[k] |= ((copy * COLUMNS + column) * 4 << CLOSER) << 8 * i;
            }
        }
    }

    __device__ __forceinline__ Words turn(const Words& words) const {
        Words now = words;
#pragma unroll
        for (i32 step = 1; step < WORDS; step <<= 1) {
            const bool swap = (turned & step) != 0;
#pragma unroll
            for (i32 k = 0; k < WORDS; ++k) {
                if (k & step) continue;
                const u32 low = now.at[k], high = now.at[k | step];
                now.at[k] = swap ? high : low;
                now.at[k | step] = swap ? low : high;
            }
        }
        return now;
    }

    // Bytes to add to the address of a row.
    __device__ __forceinline__ i32 shift(i32 lane) const {
        return lane % LANES_PER_ROW * (COLUMNS / LANES_PER_ROW * SYMBOL_BYTES);
    }

    // The lane's part of a row, if `n_left`, the rows from it to the end, says that there is one.
    __device__ __forceinline__ void load(Words& words, const u8* own, u32 row, i32 n_left) const {
        if (n_left > 0) words = load_words(own + static_cast<u64>(row) * (COLUMNS * SYMBOL_BYTES));
    }

    // Bytes from the first cell to the one of g.
    __device__ __forceinline__ u32 offset(const Words& now, i32 step) const {
        return pick_bytes(now.at[step / PER_WORD], banks[step / 4], selectors[step % 4]) >> CLOSER;
    }
};
