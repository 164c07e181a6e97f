// Rows walk trees whose leaves have models, by bins, and what these give is added to margins: a leaf's value, and slopes
// times positions, in float64, where products are exact.
//
// variants: SYMBOL_BYTES=0,1,2
// budget: walk_models registers=80 shared=0
#include "leaf_positions.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// Arguments as those of `walk` (walk.cu); `terms`, `slopes` : TERMS of each node, trees `n_nodes` nodes apart.
extern "C" __global__ void __launch_bounds__(THREADS) walk_models(
    SYMBOL_PARAMETERS, const i32* left_child, const i32* right_child, const i32* split_feature, const i32* split_bin,
    const u8* default_left, const float* value, SETS_PARAMETERS, const i32* terms, const float* slopes, i32 n_nodes, i64 n,
    float* margin, i64 stride, i32 n_trees, i64 next_links, i64 next_margin) {
    const i64 tree = blockIdx.x % static_cast<u32>(n_trees);
    const i64 block = blockIdx.x / static_cast<u32>(n_trees), blocks = gridDim.x / static_cast<u32>(n_trees);
    left_child += tree * next_links;
    right_child += tree * next_links;
    split_feature += tree * next_links;
    split_bin += tree * next_links;
    default_left += tree * n_nodes;
    value += tree * n_nodes;
    terms += tree * n_nodes * TERMS;
    slopes += tree * n_nodes * TERMS;
    if (sets) sets += tree * n_nodes * set_width;
    margin += tree * next_margin;
    for (i64 row = block * THREADS + threadIdx.x; row < n; row += blocks * THREADS) {
        const u32 own = static_cast<u32>(row);
        i32 node = 0;
        while (left_child[node] >= 0) {
            const Predicate split = {split_feature[node], split_bin[node], default_left[node] != 0,
                                     list_of(sets, set_width, node)};
            node = goes_left(SYMBOLS, own, split) ? left_child[node] : right_child[node];
        }
        double total = static_cast<double>(value[node]);
        const i32* const features = terms + static_cast<i64>(node) * TERMS;
        const float* const steps = slopes + static_cast<i64>(node) * TERMS;
#pragma unroll 1
        for (i32 k = 0; k < TERMS; ++k) {
            const i32 feature = features[k];
            if (feature < 0) break;
            total += static_cast<double>(steps[k]) * static_cast<double>(position_of(SYMBOLS, own, feature));
        }
        margin[row * stride] += static_cast<float>(total);
    }
}
