// What CSR entries need to know of their row, by row: entries in the order of features look it up.
#pragma once

#include "pair.cuh"

struct alignas(2 * sizeof(Pair)) RowState {
    Pair pair;
    Pair segment;  // place of its node in the list of nodes; -1 for none
};
