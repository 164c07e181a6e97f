// Margins of models whose leaves are linear, from the leaves that rows reach (`predict.cu` and `predict_wide.cu` find them).
//
//   find_positions   of the features that models have, a byte for each row
//   add_models       leaves' values, and slopes times positions, in the order of the trees
//
// A thread has a row of the second, whose positions are a sector or two.
//
// variants: SPARSE=0,1
// budget: find_positions registers=48 shared=0
// budget: add_models registers=64 shared=0
#include "leaf_models.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SPARSE
#define SPARSE 0
#endif

constexpr i32 NO_COLUMN = -1;

// The position of a value that is there: of the bin of as many cut points as are not above it.
static __device__ __forceinline__ i8 position_of_value(float value, const i64* cut_begin, const float* cuts, i32 column) {
    const i64 begin = cut_begin[column], end = cut_begin[column + 1];
    i64 low = begin, high = end;
    while (low < high) {
        const i64 middle = (low + high) >> 1;
        if (cuts[middle] <= value) low = middle + 1;
        else high = middle;
    }
    return static_cast<i8>(position_of_bin(static_cast<i32>(low - begin), static_cast<i32>(end - begin) + 1));
}

// `values` : of the entries of CSR rows, or of a matrix, `stride_row` and `stride_feature` from one to the next; NaN and
// `missing` are missing. `features` : of each column; `column_of` : of each of `n_features` features. `positions` : shape
// (n, n_columns).
extern "C" __global__ void __launch_bounds__(THREADS) find_positions(
    const float* __restrict__ values, i64 stride_row, i64 stride_feature, const i64* __restrict__ indptr,
    const i32* __restrict__ indices, float missing, i64 n, i32 n_columns, const i32* __restrict__ features,
    const i32* __restrict__ column_of, i32 n_features, const i64* __restrict__ cut_begin, const float* __restrict__ cuts,
    i8* __restrict__ positions) {
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, step = static_cast<i64>(gridDim.x) * THREADS;
#if SPARSE
    for (i64 row = first; row < n; row += step) {
        i8* const own = positions + row * n_columns;
        for (i32 column = 0; column < n_columns; ++column) own[column] = 0;
        for (i64 entry = indptr[row]; entry < indptr[row + 1]; ++entry) {
            const i32 column = indices[entry] < n_features ? column_of[indices[entry]] : NO_COLUMN;
            const float value = values[entry];
            if (column != NO_COLUMN && value == value && value != missing)
                own[column] = position_of_value(value, cut_begin, cuts, column);
        }
    }
#else
    for (i64 i = first; i < n * n_columns; i += step) {
        const i64 row = i / n_columns;
        const i32 column = static_cast<i32>(i - row * n_columns);
        const float value = values[row * stride_row + features[column] * stride_feature];
        positions[i] = value == value && value != missing ? position_of_value(value, cut_begin, cuts, column) : i8(0);
    }
#endif
}

// `leaves` : shape (rows, trees), nodes of their trees; `starts` : each tree's first node among all; `outputs` : the one that
// it adds to. `columns`, `slopes` : `n_terms` of each node, NO_COLUMN behind the last. `margin` : shape (rows, n_outputs).
extern "C" __global__ void __launch_bounds__(THREADS) add_models(
    const i32* __restrict__ leaves, i32 n_trees, const i64* __restrict__ starts, const i32* __restrict__ outputs,
    const float* __restrict__ values, const i32* __restrict__ columns, const float* __restrict__ slopes, i32 n_terms,
    const i8* __restrict__ positions, i32 n_columns, i64 n, i32 n_outputs, float* __restrict__ margin) {
    const i64 step = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; row < n; row += step) {
        const i8* const own = positions + row * n_columns;
        for (i32 tree = 0; tree < n_trees; ++tree) {
            const i64 node = starts[tree] + leaves[row * n_trees + tree];
            double total = static_cast<double>(values[node]);
#pragma unroll 1
            for (i32 k = 0; k < n_terms; ++k) {
                const i32 column = columns[node * n_terms + k];
                if (column == NO_COLUMN) break;
                total += static_cast<double>(slopes[node * n_terms + k]) * static_cast<double>(own[column]);
            }
            margin[row * n_outputs + outputs[tree]] += static_cast<float>(total);
        }
    }
}
