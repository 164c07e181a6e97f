// Rows of a chunk are drawn by the norm of their gradients, and what goes with them is copied in their order.
//
//   count_drawn   norms by cell, and the drawn rows of each block's stretch
//   keep_drawn    numbers, ids, norms, draws, gradients, margins, labels and weights of the drawn rows
//
// Gradients of a loss are computed in both launches, as the draws are: that reads 12 bytes a row, where norms and draws in
// between would be 16 to write and to read. Norms lie close together, at first all in one cell: lanes of a warp that count
// in the same cell add up first, as a cell's atomics come one after the other.
//
// variants: OBJECTIVE=0,1,2,3,4,5,6,7,8
// budget: count_drawn registers=64 shared=4*THREADS/32
// budget: keep_drawn registers=72 shared=4*THREADS/32+8*THREADS/32
#include "block.cuh"
#include "drawn.cuh"
#include "global_ids.cuh"
#include "hashing.cuh"
#include "objectives.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u32 WARPS = THREADS / WARP;

// What the gradients of all outputs of a chunk's rows are computed from, as `quantize_gradients` takes it, and what stands
// for h in norms, unless that is null: searched[row * stride_searched].
struct Rows {
    const float *first, *second, *weight;
    i64 stride_first, stride_second, next_first, next_second;
    const float* parameters;
    i32 n_outputs;
    const float* searched;
    i64 stride_searched;

    __device__ __forceinline__ Gradient gradient(i64 row, i32 output) const {
        const LossParameters loss = load_parameters(parameters + (OBJECTIVE == GIVEN ? 0 : 2 * output));
        const Gradient found = gradient_of(first[row * stride_first + output * next_first],
                                           second[row * stride_second + output * next_second], loss);
        return OBJECTIVE != GIVEN && weight != nullptr ? weighted(found, weight[row], false) : found;
    }

    __device__ __forceinline__ double norm(i64 row) const {
        double square = 0.0;
        for (i32 output = 0; output < n_outputs; ++output) {
            const Gradient own = gradient(row, output);
            square += square_of(own.g, searched == nullptr ? own.h : searched[row * stride_searched]);
        }
        return norm_of(square);
    }
};

// cells[c] grows by the rows whose norm is counted in cell c, those of norm 0 in none; counts[block] : rows of the stretch
// with draw < norm / threshold.
extern "C" __global__ void __launch_bounds__(THREADS) count_drawn(
    const float* __restrict__ first, const float* __restrict__ second, const float* __restrict__ weight, i64 stride_first,
    i64 stride_second, i64 next_first, i64 next_second, const float* __restrict__ parameters, i32 n_outputs,
    const float* __restrict__ searched, i64 stride_searched, const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows,
    u32 block_rows, u64 key, double threshold, u64* __restrict__ cells, u32* __restrict__ counts) {
    __shared__ u32 storage[WARPS];
    const Rows rows = {first,      second,    weight,   stride_first,   stride_second, next_first, next_second,
                       parameters, n_outputs, searched, stride_searched};
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    u32 count = 0;
    for (u32 tile = 0; tile < own.n; tile += THREADS) {  // whole warps: all lanes vote
        const bool is_in = tile + threadIdx.x < own.n;
        const u32 row = own.begin + tile + threadIdx.x;
        const double norm = is_in ? rows.norm(row) : 0.0;
        const i32 cell = norm > 0.0 ? cell_of(norm) : -1;
        const u32 same = __match_any_sync(ALL_LANES, cell);
        if (cell < 0) continue;
        if (static_cast<u32>(__ffs(static_cast<i32>(same)) - 1) == threadIdx.x % WARP)
            atomicAdd(&cells[cell], static_cast<u64>(__popc(same)));
        count += is_drawn(draw_of(draw(key, ids.of(row))), norm, threshold);
    }
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Drawn row i, in increasing order, has chosen[i], to_ids[i] and so on. `counts` : what `count_drawn` found. `margin` : shape
// (rows, outputs), as `to_g`, `to_h` and `to_margin`; `row_weight` : or null for ones.
extern "C" __global__ void __launch_bounds__(THREADS) keep_drawn(
    const float* __restrict__ first, const float* __restrict__ second, const float* __restrict__ weight, i64 stride_first,
    i64 stride_second, i64 next_first, i64 next_second, const float* __restrict__ parameters, i32 n_outputs,
    const float* __restrict__ searched, i64 stride_searched, const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows,
    u32 block_rows, u64 key, double threshold, const u32* __restrict__ counts, const float* __restrict__ margin,
    const float* __restrict__ label, const float* __restrict__ row_weight, u32* __restrict__ chosen,
    i64* __restrict__ to_ids, double* __restrict__ to_norms, double* __restrict__ to_draws, float* __restrict__ to_g,
    float* __restrict__ to_h, float* __restrict__ to_margin, float* __restrict__ to_label, float* __restrict__ to_weight) {
    __shared__ u32 votes[WARPS];
    __shared__ i64 partial[WARPS];
    const Rows rows = {first,      second,    weight,   stride_first,   stride_second, next_first, next_second,
                       parameters, n_outputs, searched, stride_searched};
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    i64 place = sum_before<THREADS>(counts, blockIdx.x, partial);
    for (u32 tile = 0; tile < own.n; tile += THREADS) {
        const bool is_in = tile + threadIdx.x < own.n;
        const u32 row = own.begin + tile + threadIdx.x;
        const double norm = is_in ? rows.norm(row) : 0.0;
        const u64 id = norm > 0.0 ? ids.of(row) : 0;
        const double own_draw = draw_of(draw(key, id));
        const bool is_kept = norm > 0.0 && is_drawn(own_draw, norm, threshold);
        const Rank rank = rank_in_block<THREADS>(is_kept, votes);
        const i64 at = place + rank.before;
        place += rank.total;
        if (!is_kept) continue;
        chosen[at] = row;
        to_ids[at] = static_cast<i64>(id);
        to_norms[at] = norm;
        to_draws[at] = own_draw;
        to_label[at] = label[row];
        to_weight[at] = row_weight == nullptr ? 1.0f : row_weight[row];
        for (i32 output = 0; output < n_outputs; ++output) {
            const Gradient gradient = rows.gradient(row, output);
            to_g[at * n_outputs + output] = gradient.g;
            to_h[at * n_outputs + output] = gradient.h;
            to_margin[at * n_outputs + output] = margin[static_cast<i64>(row) * n_outputs + output];
        }
    }
}
