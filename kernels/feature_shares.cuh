// The best split of every node among those that GPUs have found, each of which has searched a share of the features.
//
// Shares follow one another in the order of features, so that of equal gains the first share's is the one that a search of all
// features would have found.
#pragma once

#include "types.cuh"

// What GPUs have found. `found` : shape (shares, nodes, words), results of searches (split.cu, split_vectors.cu), whose
// features count from `first_features` of the share on; null where one GPU has searched all.
#define SHARES const i64 *found, const i32 *first_features, i32 n_shares

struct FeatureShares {
    const i64* found;
    const i32* first_features;
    i32 n_shares;
    i64 n_nodes;
    i32 words;

    // Make the best of all shares the result of a node. `results` : shape (nodes, words), or what one GPU has found already.
    __device__ __forceinline__ void take_best(i64 node, i64* results) const {
        if (!found) return;
        i32 best = 0;
        double gain = __longlong_as_double(found[node * words]);
#pragma unroll 1
        for (i32 share = 1; share < n_shares; ++share) {
            const double other = __longlong_as_double(found[(share * n_nodes + node) * words]);
            if (other > gain) {
                gain = other;
                best = share;
            }
        }
        const i64* from = found + (best * n_nodes + node) * words;
        i64* to = results + node * words;
        for (i32 word = 0; word < words; ++word) to[word] = from[word] + (word == 1 ? first_features[best] : 0);
    }
};
