// Rows of a chunk as kernels that draw for them take them: a stretch per block, and the global id of each.
#pragma once

#include "types.cuh"

// The rows of one block; a chunk has fewer than 2**32.
struct Stretch {
    u32 begin, n;
};

__device__ __forceinline__ Stretch stretch_of(u32 block, u32 block_rows, i64 n_rows) {
    const u32 begin = block * block_rows;
    return {begin, min(static_cast<u32>(n_rows) - begin, block_rows)};
}

constexpr i32 SHORT_IDS = -1;  // in place of a number of pieces

// Global ids of rows that a thread visits in increasing order. `pieces` : (first row, its global id) of stretches with
// consecutive ids, increasing, the first one from row 0 on; of `n` 0, the id of each row, where stretches would be short; of
// SHORT_IDS the same, of 32 bits.
struct GlobalIds {
    const i64* pieces;
    i32 n;
    i32 at;
    u32 end;     // of the piece; of the last one, none
    u64 offset;  // of global ids over rows

    __device__ __forceinline__ void enter(i32 piece) {
        at = piece;
        if (n <= 0) {  // a stretch of its own
            const u32 row = static_cast<u32>(piece);
            end = row + 1;
            offset = (n == 0 ? static_cast<u64>(pieces[row]) : reinterpret_cast<const u32*>(pieces)[row]) - row;
            return;
        }
        end = piece + 1 < n ? static_cast<u32>(pieces[2 * (piece + 1)]) : 0xFFFFFFFFu;
        offset = static_cast<u64>(pieces[2 * piece + 1]) - static_cast<u64>(pieces[2 * piece]);
    }

    __device__ __forceinline__ u64 of(u32 row) {
        while (row >= end) enter(n > 0 ? at + 1 : static_cast<i32>(row));
        return offset + row;
    }
};

__device__ __forceinline__ GlobalIds ids_from(const i64* pieces, i32 n, u32 row) {
    i32 low = 0, high = n;  // the last piece that starts at or before the row
    while (high - low > 1) {
        const i32 middle = (low + high) / 2;
        if (pieces[2 * middle] <= row) low = middle;
        else high = middle;
    }
    GlobalIds ids = {pieces, n, 0, 0, 0};
    if (n > 0) ids.enter(low);
    return ids;
}
