// Rows walk down a forest straight from their values: for what `predict.cu` has no room for, which is hundreds of columns,
// tens of thousands of thresholds of one feature, sparse rows, and forests that split by sets of categories.
//
// A thread takes a row through all trees. Nodes and values come from device memory by way of the caches, which hold the top
// of every tree. `nodes` : column, threshold's key or where its set begins, left child (the right one follows; -1 in a leaf),
// value.
//
// variants: SPARSE=0,1 LEAF=0,1 HAS_SETS=0,1
// budget: walk_keys registers=56 shared=0
#include "code_sets.cuh"
#include "ordered.cuh"
#include "search.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SPARSE
#define SPARSE 0
#endif
#ifndef LEAF
#define LEAF 0
#endif
#ifndef HAS_SETS
#define HAS_SETS 0
#endif

#if LEAF
using Out = u32;
#else
using Out = float;
#endif

// One matrix, dense (row, feature at row * row_stride + feature * feature_stride) or CSR with increasing `indices`.
struct Rows {
    const float* values;
    i64 row_stride;
    i64 feature_stride;
    const i64* indptr;
    const i32* indices;
    float missing;

    // The value; NaN for a missing one.
    __device__ __forceinline__ float value(i64 row, i32 feature) const {
#if SPARSE
        const i64 end = indptr[row + 1], at = first_not_below(indices, indptr[row], end, feature);
        if (at == end || indices[at] != feature) return __int_as_float(0x7FC00000);
        const float found = values[at];
#else
        const float found = values[row * row_stride + feature * feature_stride];
#endif
        return found == missing ? __int_as_float(0x7FC00000) : found;
    }
};

// `column_feature`, `column_missing` : per column, its feature and the key, or the place, of a missing value. `roots`,
// `places` : per tree. `out` : (row, place) at row * out_stride + place; margins are added to in the order of the trees,
// leaves written.
extern "C" __global__ void __launch_bounds__(THREADS) walk_keys(
    const float* __restrict__ values, i64 row_stride, i64 feature_stride, const i64* __restrict__ indptr,
    const i32* __restrict__ indices, float missing, i64 n_rows, const i32* __restrict__ column_feature,
    const u32* __restrict__ column_missing, const uint4* __restrict__ nodes, const i32* __restrict__ roots,
    const i32* __restrict__ places, i32 n_trees, i32 first_code_column, const i32* __restrict__ code_start,
    const i32* __restrict__ codes, const u32* __restrict__ words, Out* __restrict__ out, i64 out_stride) {
    const Rows rows = {values, row_stride, feature_stride, indptr, indices, missing};
    const i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= n_rows) return;
#if HAS_SETS
    const CodeSets sets = {first_code_column, code_start, codes, words};
#endif
    for (i32 tree = 0; tree < n_trees; ++tree) {
        uint4 node = nodes[roots[tree]];
        while (static_cast<i32>(node.z) >= 0) {
            const float value = rows.value(row, column_feature[node.x]);
            const u32 absent = column_missing[node.x];
#if HAS_SETS
            const i32 column = static_cast<i32>(node.x);
            const bool right = column < sets.first_column
                ? ordered_key(value, absent) >= node.y
                : sets.holds(node.y, value == value ? sets.place_of(column, value) : absent);
#else
            const bool right = ordered_key(value, absent) >= node.y;
#endif
            node = nodes[node.z + (right ? 1 : 0)];
        }
        Out* const at = out + row * out_stride + places[tree];
#if LEAF
        *at = node.w;
#else
        *at += __uint_as_float(node.w);
#endif
    }
}
