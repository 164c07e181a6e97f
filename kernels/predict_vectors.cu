// Margins of models whose leaves are vectors, from the leaves that rows reach (`predict.cu` and `predict_wide.cu` find them).
//
// Neighbouring threads have neighbouring outputs of a row: a leaf's vector is read once, in sequence, from what the L2 cache
// keeps of the trees. Vectors are added in the order of the trees, the CPU's.
//
// variants: THREADS=256
// budget: add_vectors registers=48 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `leaves` : shape (rows, trees), nodes of their trees. `values` : shape (nodes of all trees, outputs); `starts` : each tree's
// first node. `margin` : shape (rows, outputs). Blocks stride over the margins.
extern "C" __global__ void __launch_bounds__(THREADS) add_vectors(
    const i32* __restrict__ leaves, i32 n_trees, const float* __restrict__ values, const i32* __restrict__ starts,
    i32 n_outputs, i64 n_rows, float* __restrict__ margin) {
    const i64 n = n_rows * n_outputs, step = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        const i64 row = i / n_outputs, output = i - row * n_outputs;
        const i32* own = leaves + row * n_trees;
        float sum = margin[i];
#pragma unroll 4
        for (i32 tree = 0; tree < n_trees; ++tree)
            sum += values[(static_cast<i64>(starts[tree]) + own[tree]) * n_outputs + output];
        margin[i] = sum;
    }
}
