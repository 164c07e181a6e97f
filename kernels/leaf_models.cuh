// Models of leaves: positions of bins, and where sums of normal equations stand. The arithmetic is that of
// `daskboost/devices/leaf_models.py` and `daskboost/devices/cpu/leaf_models.py`, to the last bit.
#pragma once

#include "types.cuh"

constexpr i32 TERMS = 5;    // features of a leaf's model, at most; -1 stands behind the last
constexpr i32 REACH = 127;  // position of a feature's last bin
constexpr i32 EQUATIONS = (TERMS + 1) * (TERMS + 4) / 2;  // sums of a leaf: g times 1 and each position, then h times pairs

// Where the row of sums of h times one position begins, of `j` - 1 or, for 0, of 1.
SHARED_BY_HOST i32 row_of_sums(i32 j) { return TERMS + 1 + j * (j + 1) / 2; }

// The position of a bin, in even steps from -REACH to REACH, rounded half up.
SHARED_BY_HOST i32 position_of_bin(i32 bin, i32 n_bins) {
    if (n_bins < 2) return 0;
    const u32 top = static_cast<u32>(n_bins - 1);
    return static_cast<i32>((4u * REACH * static_cast<u32>(bin) + top) / (2u * top)) - REACH;
}
