// Adds a tree's leaf vectors to the margins of rows, walking it by bins: a thread finds the leaf of a row, and the lanes of
// a warp together add the vectors of its rows, which follow one another in memory. LISTS: nodes may split by lists of bins.
//
// variants: SYMBOL_BYTES=0,1,2 LISTS=0,1
// budget: walk_vectors registers=64 shared=0
#ifndef LISTS
#define LISTS 0
#endif
#include "symbol.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `value` : shape (nodes, outputs). `sets` : of all nodes, with LISTS. `margin` : shape (n, outputs). Blocks stride over the rows.
extern "C" __global__ void __launch_bounds__(THREADS) walk_vectors(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, const i32* left_child, const i32* right_child, const i32* split_feature, const i32* split_bin,
    const u8* default_left, const float* __restrict__ value, SETS_PARAMETERS, i32 n_outputs, i64 n,
    float* __restrict__ margin) {
    const i32 lane = threadIdx.x % WARP;
    for (i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x - lane; first < n;
         first += static_cast<i64>(gridDim.x) * THREADS) {
        const u32 row = static_cast<u32>(min(first + lane, n - 1));
        i32 node = 0;
        while (left_child[node] >= 0) {
            const i32* const list = LISTS ? list_of(sets, set_width, node) : nullptr;
            const Predicate split = {split_feature[node], split_bin[node], default_left[node] != 0, list};
            const bool left = goes_left(SYMBOLS, row, split);
            node = left ? left_child[node] : right_child[node];
        }
        __syncwarp();
        const i32 n_rows = static_cast<i32>(min(n - first, static_cast<i64>(WARP)));
        float* const own = margin + first * n_outputs;
        i32 place = lane / n_outputs, output = lane % n_outputs;  // of number `lane` of the warp's
        for (i32 i = 0; i < n_rows * n_outputs; i += WARP) {      // all lanes go round as often
            const i64 leaf = __shfl_sync(ALL_LANES, node, place % WARP);
            if (place < n_rows) own[i + lane] += value[leaf * n_outputs + output];
            for (output += WARP; output >= n_outputs; output -= n_outputs) ++place;
        }
    }
}
