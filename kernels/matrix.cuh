// Walking a matrix of float32 by columns and tiles of rows, whatever its strides.
//
// Series are the columns of interest: series s is column `features[s]`, or s where `features` is null. A block takes
// `tile_rows` rows of `columns` neighbouring series, one series per thread, so that what a thread gathers for its series
// stays in registers. Where rows are contiguous, neighbouring threads read neighbouring columns of a row; where columns
// are, `columns` is 1 and they read neighbouring rows.
#pragma once

#include "types.cuh"

#define MATRIX_PARAMETERS                                                                                    \
    const float *__restrict__ values, i64 row_stride, i64 column_stride, i64 n_rows, const i32 *features, i32 n_series, \
        i32 columns, i32 tile_rows, float missing
#define MATRIX values, row_stride, column_stride, n_rows, features, n_series, columns, tile_rows, missing

// Where a thread begins, and its step from row to row.
struct Walk {
    i32 series;  // below n_series, or the thread has nothing to do
    i32 step;
    i64 row;
    i64 end;
};

template <u32 N_THREADS>
static __device__ __forceinline__ Walk walk_of(i64 n_rows, i32 n_series, i32 columns, i32 tile_rows) {
    const i32 n_groups = (n_series + columns - 1) / columns;
    const i64 tile = blockIdx.x / n_groups;
    const i32 group = static_cast<i32>(blockIdx.x % n_groups), thread = static_cast<i32>(threadIdx.x);
    Walk walk;
    walk.step = N_THREADS / columns;
    walk.series = thread < walk.step * columns ? group * columns + thread % columns : n_series;
    walk.row = tile * tile_rows + thread / columns;
    walk.end = (tile + 1) * tile_rows < n_rows ? (tile + 1) * tile_rows : n_rows;
    return walk;
}

// Calls visit(row, value, is_absent) for all values of the thread's series in its tile.
template <u32 N_THREADS, class Visit>
static __device__ __forceinline__ void for_each_value(const Walk walk, MATRIX_PARAMETERS, Visit visit) {
    constexpr i32 AHEAD = 4;  // loads that are under way together
    if (walk.series >= n_series) return;
    const float* column = values + (features ? features[walk.series] : walk.series) * column_stride;
    for (i64 first = walk.row; first < walk.end; first += AHEAD * walk.step) {
        float x[AHEAD];
#pragma unroll
        for (i32 i = 0; i < AHEAD; ++i) {
            const i64 row = first + i * walk.step;
            x[i] = row < walk.end ? column[row * row_stride] : 0.0f;
        }
#pragma unroll
        for (i32 i = 0; i < AHEAD; ++i) {
            const i64 row = first + i * walk.step;
            if (row < walk.end) visit(row, x[i], x[i] != x[i] || x[i] == missing);
        }
    }
}
