// The best split of every node among those that GPUs have found, each of which has searched a share of the features.
//
// Shares follow one another in the order of features, so that of equal gains the first share's is the one that a search of all
// features would have found.
//
// variants: THREADS=128
// budget: best_of_shares registers=72 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// `found` : shape (shares, nodes, words), results of searches (split.cu, split_vectors.cu), whose features count from
// `first_features` of the share on. `results` : shape (nodes, words).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_shares(
    const i64* found, const i32* first_features, i32 n_shares, i32 n_nodes, i32 words, i64* results) {
    const i32 node = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (node >= n_nodes) return;
    i32 best = 0;
    double gain = __longlong_as_double(found[static_cast<i64>(node) * words]);
    for (i32 share = 1; share < n_shares; ++share) {
        const double other = __longlong_as_double(found[(static_cast<i64>(share) * n_nodes + node) * words]);
        if (other > gain) {
            gain = other;
            best = share;
        }
    }
    const i64* from = found + (static_cast<i64>(best) * n_nodes + node) * words;
    i64* to = results + static_cast<i64>(node) * words;
    for (i32 word = 0; word < words; ++word) to[word] = from[word] + (word == 1 ? first_features[best] : 0);
}
