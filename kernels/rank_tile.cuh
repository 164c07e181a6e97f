// A tile of rows as prediction walks it: ranks of 128 rows, one column behind the other.
//
//   column 0: lane 0's four rows, lane 1's, ..., lane 31's;  column 1: ...
//
// A rank is the number of a feature's thresholds that the value reaches, so `value >= threshold j` is `rank > j`: exact, in
// 1 or 2 bytes (RANK_BYTES). Every lane finds its rows of any column in a bank of its own, or in two.
#pragma once

#include "types.cuh"

#ifndef RANK_BYTES
#define RANK_BYTES 1
#endif

#if RANK_BYTES == 1
using Rank = u8;
#else
using Rank = u16;
#endif

constexpr i32 LANE_ROWS = 4;
constexpr i32 TILE_ROWS = LANE_ROWS * 32;
constexpr i32 COLUMN_BYTES = TILE_ROWS * RANK_BYTES;

// Where a column holds a lane's row, in bytes: whole words of the 32 lanes side by side.
SHARED_BY_HOST i32 rank_offset(i32 lane, i32 slot) {
    return slot * RANK_BYTES / 4 * 128 + lane * 4 + slot * RANK_BYTES % 4;
}
