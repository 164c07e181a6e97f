// What splits gain where leaves are vectors, and a node's feature as the kernels see it that search for them. For
// `split_vectors.cu`, which tries thresholds, and `split_vector_sets.cu`, which tries sets of bins.
#pragma once

#include "searched.cuh"

// What the searching kernels take. `own`, `parents`, `siblings` : addresses of the first output's histograms, as in
// searched.cuh; `own_steps` and so on: bytes to the next output's. `totals` : shape (nodes, outputs, 2). `allowed` : shape
// (lists, features), a list for every `allowed_every` nodes. `units` : first of each output, what a quantum of g and of
// h is worth; `units_stride` numbers per output. `is_code` : as in searched.cuh. `sums_before` : of each node and output, the
// sums before each chunk of a feature, and of all its bins: shape (nodes, chunks, outputs, 2), see `chunk_of`.
#define SEARCHED_VECTORS                                                                                            \
    const u64 *own, const u64 *own_steps, const i64 *totals, const u8 *allowed, i32 allowed_every,                  \
        const double *units, i32 units_stride, i32 n_outputs, const i64 *slot_offsets, const i32 *n_bins,           \
        const u8 *is_code, i32 n_features, i32 n_nodes, double lambda, double alpha, double max_step, double least_h, \
        i32 is_plain,                                                                                               \
        const i64 *sums_before

// The place of a feature's first chunk: each has room for one more than its bins take.
static __device__ __forceinline__ i64 chunk_of(const i64* slot_offsets, i32 feature) {
    return slot_offsets[feature] / static_cast<i64>(WARP) + 2ll * feature;
}
static __device__ __forceinline__ i32 chunks_of(i32 bins) { return (bins + 31) / 32; }

// A node as kernels see one feature of it.
struct Place {
    u64 own;              // address of the first output's sums of the feature's first bin
    u64 step;             // bytes to the next output's
    const i64* before;    // the first chunk's sums
    const i64* totals;    // of the node
    i32 bins;

    __device__ __forceinline__ Pair64 sums(i32 bin, i32 output) const {
        const i64* at = reinterpret_cast<const i64*>(own + static_cast<u64>(output) * step) + 2 * static_cast<i64>(bin);
        return {at[0], at[1]};
    }

    __device__ __forceinline__ Pair64 total(i32 output) const { return {totals[2 * output], totals[2 * output + 1]}; }

    // Sums of the bins of a chunk's lanes, up to each.
    __device__ __forceinline__ Pair64 sums_up_to(i32 bin, i32 output, i32 n_outputs) const {
        const Pair64 value = bin < bins ? sums(bin, output) : Pair64{0, 0};
        return running_sum(value, sums_before(bin / static_cast<i32>(WARP), output, n_outputs));
    }

    __device__ __forceinline__ Pair64 sums_before(i32 chunk, i32 output, i32 n_outputs) const {
        const i64* at = before + 2 * (static_cast<i64>(chunk) * n_outputs + output);
        return {at[0], at[1]};
    }

    // Of rows whose value is missing.
    __device__ __forceinline__ Pair64 missing(i32 output, i32 n_outputs) const {
        const Pair64 present = sums_before(chunks_of(bins), output, n_outputs);
        return {totals[2 * output] - present.g, totals[2 * output + 1] - present.h};
    }

    // Whether there are any; the same in all lanes, which call it together.
    __device__ __forceinline__ bool some_missing(i32 n_outputs) const {
        bool found = false;
        for (i32 output = threadIdx.x % WARP; output < n_outputs; output += WARP) {
            const Pair64 sums = missing(output, n_outputs);
            found = found || sums.g != 0 || sums.h != 0;
        }
        return __any_sync(ALL_LANES, found);
    }
};

static __device__ __forceinline__ Place place_of(i32 node, i32 feature, const u64* own, const u64* own_steps,
                                                 const i64* totals, const i64* slot_offsets, const i32* n_bins,
                                                 i32 n_features, i32 n_outputs, const i64* sums_before) {
    const i64 chunks = chunk_of(slot_offsets, n_features);
    return {own[node] + 16 * static_cast<u64>(slot_offsets[feature]), own_steps[node],
            sums_before + 2 * ((node * chunks + chunk_of(slot_offsets, feature)) * n_outputs),
            totals + 2 * static_cast<i64>(node) * n_outputs, n_bins[feature]};
}

// The gain of a node as a leaf: lanes take outputs, whose gains are added one after the other.
static __device__ __forceinline__ double parent_of(const i64* totals, const double* units, i32 units_stride,
                                                   i32 n_outputs, Regular regular, bool is_plain) {
    double sum = 0.0;
    for (i32 first = 0; first < n_outputs; first += WARP) {
        const i32 output = first + static_cast<i32>(threadIdx.x % WARP), last = min(n_outputs - first, 32);
        double own = 0.0;
        if (output < n_outputs) {
            const double* unit = units + static_cast<i64>(output) * units_stride;
            const Sums sums = {totals[2 * output] * unit[0], totals[2 * output + 1] * unit[1]};
            own = gain_of_output(sums, regular, is_plain);
        }
        for (i32 lane = 0; lane < last; ++lane) sum += __shfl_sync(ALL_LANES, own, lane);
    }
    return sum;
}

// Gains of one way to split, while outputs are added.
struct Gain {
    double sum;
    double heaviest_left, heaviest_right;

    __device__ __forceinline__ void add(i64 g, i64 h, i64 total_g, i64 total_h, double unit_g, double unit_h,
                                        Regular regular, bool is_plain) {
        const Sums left = {g * unit_g, h * unit_h}, right = {(total_g - g) * unit_g, (total_h - h) * unit_h};
        sum += gain_of_output(left, regular, is_plain) + gain_of_output(right, regular, is_plain);
        heaviest_left = larger(heaviest_left, left.h);
        heaviest_right = larger(heaviest_right, right.h);
    }

    // NO_GAIN where no output of a child weighs enough.
    __device__ __forceinline__ double allowed(double least_h) const {
        return smaller(heaviest_left, heaviest_right) < least_h ? NO_GAIN : sum;
    }
};
