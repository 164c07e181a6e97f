// Few sums of many outputs' gradients: `project` of `daskboost/fit/recipe.py`, to the last bit.
//
// Each column is the sum of its outputs, each with its sign, in float32, output after output. A block brings some rows to
// shared memory, since the outputs of a column lie anywhere in a row; then each thread adds up columns.
//
// variants: THREADS=256
// budget: project registers=64 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `values` : shape (rows, outputs). `starts` : shape (columns + 1,), places in `outputs` and `signs`, where a column's are in
// increasing order. `sums` : shape (rows, columns). Any grid. Dynamic shared memory: `at_once` rows of values; 0 of them
// where a row has no room, and is read where it lies.
extern "C" __global__ void __launch_bounds__(THREADS) project(
    const float* __restrict__ values, i64 n_rows, i32 n_outputs, const i32* __restrict__ starts,
    const i32* __restrict__ outputs, const float* __restrict__ signs, i32 n_columns, i32 at_once,
    float* __restrict__ sums) {
    DYNAMIC_SHARED(float, room);
    const i32 step = max(at_once, 1);
    for (i64 first = static_cast<i64>(blockIdx.x) * step; first < n_rows; first += static_cast<i64>(gridDim.x) * step) {
        const i32 n_own = static_cast<i32>(min(n_rows - first, static_cast<i64>(step)));
        const float* from = values + first * n_outputs;
        if (at_once) {
            for (i32 i = threadIdx.x; i < n_own * n_outputs; i += THREADS) room[i] = from[i];
            __syncthreads();
            from = room;
        }
        for (i32 i = threadIdx.x; i < n_own * n_columns; i += THREADS) {
            const i32 column = i % n_columns;
            const float* row = from + i / n_columns * n_outputs;
            float sum = 0.0f;
            for (i32 place = starts[column]; place < starts[column + 1]; ++place)
                sum += row[outputs[place]] * signs[place];
            sums[first * n_columns + i] = sum;
        }
        if (at_once) __syncthreads();  // the next rows take the place
    }
}
