// Groups of features whose bins a block's shared memory holds (`daskboost/devices/gpu/rows/feature_groups.py`).
#pragma once

#include "types.cuh"

// As it comes from the host: five numbers.
struct Group {
    i32 plane;    // place of its rows among those of this width
    i32 first;    // feature in column 0
    i32 n;        // features, at most COLUMNS; columns beyond them hold zeros
    i32 low;      // first bin; not 0 only where a single feature's bins are divided among groups
    i32 symbols;  // bins from there on, at most
};

static __device__ __forceinline__ Group group_of(const i32* groups, i32 place) {
    const i32* of = groups + 5 * place;
    return {of[0], of[1], of[2], of[3], of[4]};
}
