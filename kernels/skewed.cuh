// The order in which lanes add a row's columns where rows follow one another, and columns N_STEPS < 32. A lane has a row
// of its own, whose words of four columns it begins with word l / 4, and each word with byte l % 4:
//
//            step 0   step 1   step 2   step 3   step 4      no step is spent on columns without a feature; that 32 lanes
//   lane 0   column 0 column 1 column 2 column 3 column 4    find 32 banks takes two cells of most columns: 64 banks for
//   lane 1   column 1 column 2 column 3 column 0 column 5    g of a bin, of which four lanes take those from 4 (l / 4) +
//   lane 4   column 4 column 5 column 6 column 7 column 8    4 (j / 4) on, and as many for h, BINS bins further
//
// A byte permutation makes an address, of which the word and the statistic are constant parts of the instruction.
// Rows as they are: skewed_rows.cuh. A copy in which the lanes' bytes lie in this order: turned.cuh.
#pragma once

#include "bytes.cuh"

constexpr i32 N_STEPS = SKEWED;
constexpr i32 LANES_PER_ROW = 1;
constexpr i32 WORDS = N_STEPS / 4;  // of a row
constexpr i32 BANKS = 64;
constexpr i32 USED_BANKS = 28 + N_STEPS;
constexpr i32 COPIES = (USED_BANKS + N_STEPS - 1) / N_STEPS;  // of a column, but for has_copy
constexpr i32 BIN_BYTES = 4 * BANKS;
constexpr i32 BYTES_TO_H = BIN_BYTES * BINS;

static __device__ __forceinline__ i32 cell_of(i32 bin, i32 statistic, i32 column, i32 copy) {
    return (statistic * BINS + bin) * BANKS + copy * N_STEPS + column;
}
static __device__ __forceinline__ bool has_copy(i32 column, i32 copy) {
    return column < N_STEPS && copy * N_STEPS + column < USED_BANKS;
}
