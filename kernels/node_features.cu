// The features that each node of a search may split on: of its tree's those that its level draws, of these those that the node
// draws, and of these those that interaction constraints allow behind the splits above it. The definition is `FeatureRules`
// of `daskboost/tree/constraints.py`, to the byte.
//
// Drawn are the features of the smallest hashes. These all differ: an odd number times the feature, added to a key, is
// another number for each, and `mix` loses none. So the last of them says which they are.
//
// Constraints are groups of features, and a node may use those of the groups that have all features of its path. It has a
// bit for each group: its parent's, less those of groups that the parent's feature is not in. Where no group has all, the
// path is a feature without a group, which stays alone.
//
// variants: THREADS=256
// budget: allow_features registers=80 shared=4*THREADS+80
#include "hashing.cuh"
#include "select.cuh"
#include "tree_table.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// A draw, of the features whose hash is at most `last`: all of them before it is made.
struct Draw {
    u64 key;
    u64 last = ~0ull;

    __device__ __forceinline__ u64 hash(i32 feature) const { return draw(key, static_cast<u64>(feature)); }
    __device__ __forceinline__ bool has(i32 feature) const { return last == ~0ull || hash(feature) <= last; }
};

// What is drawn from: features that are given, and drawn already.
struct Features {
    const u8* given;
    Draw drawn;

    __device__ __forceinline__ bool has(i32 feature) const { return given[feature] && drawn.has(feature); }
};

// What is to be drawn from them.
struct Hashes {
    const Features& from;
    const Draw& draw;

    __device__ __forceinline__ bool has(i32 feature) const { return from.has(feature); }
    __device__ __forceinline__ u64 at(i32 feature) const { return draw.hash(feature); }
};

// A block per node. `nodes` : numbers in their trees, `per_tree` of each; -1 is none. `links` : as in tree_table.cuh.
// `given` : shape (trees, features). `n_of_level`, `n_drawn` : features that a level draws from these, and each node from its
// level's; 0 for all. `states` : shape (2, trees), of the keys of each tree's levels, to which a depth is added, and of its
// nodes, to which depth and number are added. `members` : shape (features, words), bits of the groups that a feature is in;
// no words where there are no constraints. `open_groups` : shape (trees, capacity, words). `allowed` : shape (nodes,
// features).
extern "C" __global__ void __launch_bounds__(THREADS, 1) allow_features(
    const i32* nodes, i32 per_tree, i32 capacity, i32* links, const u8* given, i32 n_features, i32 n_of_level,
    i32 n_drawn, const u64* states, const u32* members, i32 words, u32* open_groups, u8* allowed) {
    __shared__ SelectRoom room;
    const i32 node = nodes[blockIdx.x], tree = static_cast<i32>(blockIdx.x) / per_tree;
    if (node == NONE) return;
    const Table table = {capacity, nullptr, links, nullptr, nullptr, nullptr, nullptr, nullptr, tree};
    const u64 depth = static_cast<u64>(table.depth(node));
    Features from = {given + static_cast<i64>(tree) * n_features, {0}};
    Draw by_node = {0};
#pragma unroll 1
    for (i32 of_node = 0; of_node < 2; ++of_node) {  // one copy of the search
        const i32 n = of_node ? n_drawn : n_of_level;
        if (n == 0) continue;
        u64 state = with_part(states[of_node * (static_cast<i32>(gridDim.x) / per_tree) + tree], depth);
        if (of_node) state = with_part(state, static_cast<u64>(node));
        Draw made = {key_of(state)};
        const Hashes hashes = {from, made};
        made.last = select_smallest<THREADS>(KeysOfBlock<Hashes>{hashes, n_features}, n, room).last;
        if (of_node) by_node = made;
        else from.drawn = made;
    }
    const i32 parent = table.parent(node), used = parent == NONE ? 0 : table.feature(parent);
    u32* own_groups = open_groups + table.place(node) * words;
    bool is_open = false;
    for (i32 word = threadIdx.x; word < words; word += THREADS) {
        u32 groups = ~0u;
        if (parent != NONE)
            groups = open_groups[table.place(parent) * words + word] & members[static_cast<i64>(used) * words + word];
        own_groups[word] = groups;
        is_open = is_open || groups != 0;
    }
    is_open = __syncthreads_or(is_open);
    u8* own = allowed + static_cast<i64>(blockIdx.x) * n_features;
    for (i32 feature = threadIdx.x; feature < n_features; feature += THREADS) {
        bool may = from.has(feature) && by_node.has(feature);
        if (may && words > 0 && parent != NONE) {
            bool is_member = !is_open && feature == used;
            for (i32 word = 0; word < words && !is_member; ++word)
                is_member = (own_groups[word] & members[static_cast<i64>(feature) * words + word]) != 0;
            may = is_member;
        }
        own[feature] = may;
    }
}
