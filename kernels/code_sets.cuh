// Sets of categories of a forest that predicts: `daskboost/devices/cpu/predict_sets.py`, to the last bit.
#pragma once

#include "search.cuh"

constexpr u32 OUTSIDE = 0;      // the place of what no set holds
constexpr u32 FIRST_PLACE = 2;  // of a column's first code
constexpr i32 MAX_CATEGORIES = 1 << 24;

// The sets of a forest, whose columns from `first_column` on are of codes; fields as of `PackedSets`.
struct CodeSets {
    i32 first_column;
    const i32* code_start;
    const i32* codes;
    const u32* words;

    // The place of a value that is there in a column of codes; the value's whole part is its code.
    __device__ __forceinline__ u32 place_of(i32 column, float value) const {
        if (!(value >= 0.0f && value < static_cast<float>(MAX_CATEGORIES))) return OUTSIDE;
        const i32 code = static_cast<i32>(value);
        const i32 first = code_start[column - first_column], stop = code_start[column - first_column + 1];
        const i32 at = first_not_below(codes, first, stop, code);
        return at < stop && codes[at] == code ? FIRST_PLACE + static_cast<u32>(at - first) : OUTSIDE;
    }

    // Whether the set that begins at `start`, bits or a list, holds a place.
    __device__ __forceinline__ bool holds(u32 start, u32 place) const {
        const u32 head = words[start], size = head >> 1;
        if (!(head & 1)) return place / 32 < size && words[start + 1 + place / 32] >> place % 32 & 1;
        const i32 stop = static_cast<i32>(start + 1 + size);
        const i32 at = first_not_below(words, static_cast<i32>(start + 1), stop, place);
        return at < stop && words[at] == place;
    }
};
