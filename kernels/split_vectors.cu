// The best splits for leaves that are vectors: a split's gain is the sum of its gains in all outputs. The arithmetic is that
// of `daskboost/devices/cpu/split_vectors.py`, to the last bit.
//
//   sum_chunks               a warp per (node, feature, output): histograms of nodes that rows have not built, and the sums
//                            before every chunk of 32 bins
//   best_of_features         a block per (node, feature): each warp takes chunks and goes through the outputs
//   best_of_level_features   a block per feature, for the one split of a symmetric tree's level: through the nodes as well
//   best_of_nodes            a block per node: the best feature, and the sums on its left
//
// Features of codes are left to `split_vector_sets.cu`, which finds their histograms and all their sums here.
//
// A lane has a bin, and adds up its gains output by output, the order of the CPU. What the bins of one output need of each
// other is within a warp but for the sums before it, which makes warps independent: at the root they are few enough to wait
// for memory otherwise. Each output's histograms of a level lie one behind the other, as the rows of one output are added up
// at a time, so nodes have addresses and, of each, the bytes to the next output's.
//
// variants: THREADS=128
// budget: sum_chunks registers=64 shared=0
// budget: best_of_features registers=128 shared=12*THREADS
// budget: best_of_level_features registers=128 shared=12*THREADS
// budget: best_of_nodes registers=64 shared=12*THREADS
#include "best.cuh"
#include "vector_gain.cuh"

#ifndef THREADS
#define THREADS 128
#endif

constexpr i32 WARPS = THREADS / WARP;

// Both ways: missing values go right, or left.
struct Gains {
    double right, left;
};

// Of each lane's bin, the parent's gain not yet subtracted; called by whole warps. `left` is the same as `right` where
// nothing is missing.
static __device__ __forceinline__ Gains gains_of(const Place& place, i32 bin, bool some_missing, const double* units,
                                                 i32 units_stride, i32 n_outputs, Regular regular, bool is_plain) {
    Gain right = {0.0, 0.0, 0.0}, left = {0.0, 0.0, 0.0};
#pragma unroll 2
    for (i32 output = 0; output < n_outputs; ++output) {
        const Pair64 sums = place.sums_up_to(bin, output, n_outputs);
        const i64 g = place.totals[2 * output], h = place.totals[2 * output + 1];
        const double* unit = units + static_cast<i64>(output) * units_stride;
        const double unit_g = unit[0], unit_h = unit[1];
        right.add(sums.g, sums.h, g, h, unit_g, unit_h, regular, is_plain);
        if (!some_missing) continue;
        const Pair64 missing = place.missing(output, n_outputs);
        left.add(sums.g + missing.g, sums.h + missing.h, g, h, unit_g, unit_h, regular, is_plain);
    }
    const double gain = right.allowed(regular.least_h);
    return {gain, some_missing ? left.allowed(regular.least_h) : gain};
}

// `parents`, `siblings` : addresses as `own`, with steps of their own.
extern "C" __global__ void __launch_bounds__(THREADS) sum_chunks(
    const u64* own, const u64* own_steps, const u64* parents, const u64* parent_steps, const u64* siblings,
    const u64* sibling_steps, const i64* slot_offsets, const i32* n_bins, i32 n_features, i32 n_outputs, i32 n_nodes,
    i64* sums_before) {
    const i64 job = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    const i32 output = static_cast<i32>(job % n_outputs), feature = static_cast<i32>(job / n_outputs % n_features);
    const i32 node = static_cast<i32>(job / n_outputs / n_features), lane = threadIdx.x % WARP;
    if (node >= n_nodes || own[node] == 0) return;
    const i64 first = slot_offsets[feature];
    const i32 bins = n_bins[feature], slots = static_cast<i32>(slot_offsets[feature + 1] - first);
    const u64 k = static_cast<u64>(output), parent = parents[node];
    const HistogramAt histogram = {own[node] + k * own_steps[node], parent ? parent + k * parent_steps[node] : 0,
                                   siblings[node] + k * sibling_steps[node], first, true};
    const i64 chunks = chunk_of(slot_offsets, n_features);
    i64* to = sums_before + 2 * ((node * chunks + chunk_of(slot_offsets, feature)) * n_outputs + output);
    Pair64 before = {0, 0};
    for (i32 start = 0; start < slots; start += WARP) {
        const i32 slot = start + lane;
        const Pair64 value = slot < slots ? histogram.compute(slot) : Pair64{0, 0};
        if (slot < slots) histogram.keep(slot, value);
        if (lane == 0 && start < bins) {
            to[0] = before.g;
            to[1] = before.h;
            to += 2 * n_outputs;
        }
        before.g += sum_of_warp(slot < bins ? value.g : 0);
        before.h += sum_of_warp(slot < bins ? value.h : 0);
    }
    if (lane > 0) return;
    to[0] = before.g;
    to[1] = before.h;
}

// `gains`, `places` : shape (nodes, features); a place is a bin, or SIDE more where missing values go left. A node whose
// histogram is at address 0 is not there, and nothing is said of it.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_features(SEARCHED_VECTORS, double* gains, i32* places) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_places[THREADS];
    const i32 node = blockIdx.x / n_features, feature = blockIdx.x % n_features;
    if (own[node] == 0) return;
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    if (allowed[static_cast<i64>(node / allowed_every) * n_features + feature] && !IS_CODE) {
        const Regular regular = {lambda, alpha, max_step, least_h};
        const Place place = place_of(node, feature, own, own_steps, totals, slot_offsets, n_bins, n_features, n_outputs,
                                     sums_before);
        const bool some_missing = place.some_missing(n_outputs);
        const double parent = parent_of(place.totals, units, units_stride, n_outputs, regular, is_plain);
        for (i32 bin = threadIdx.x; bin / 32 < chunks_of(place.bins); bin += THREADS) {
            const Gains found = gains_of(place, bin, some_missing, units, units_stride, n_outputs, regular, is_plain);
            if (bin >= place.bins) continue;
            for (i32 side = 0; side < (some_missing ? 2 : 1); ++side) {
                const double gain = (side ? found.left : found.right) - parent;
                if (gain > best || (gain == best && bin + side * SIDE < best_place)) {
                    best = gain;
                    best_place = bin + side * SIDE;
                }
            }
        }
    }
    best_of_block<THREADS>(best, best_place, block_gains, block_places);
    if (threadIdx.x > 0) return;
    gains[blockIdx.x] = block_gains[0];
    places[blockIdx.x] = block_places[0];
}

// The same over all nodes that are there. `gains`, `places` : shape (features,).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_level_features(
    SEARCHED_VECTORS, double* gains, i32* places) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_places[THREADS];
    const i32 feature = blockIdx.x, bins = n_bins[feature];
    const Regular regular = {lambda, alpha, max_step, least_h};
    bool usable = !IS_CODE;
    for (i32 node = 0; node < n_nodes; node += allowed_every)
        usable = usable && allowed[static_cast<i64>(node / allowed_every) * n_features + feature];
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    for (i32 bin = threadIdx.x; usable && bin / 32 < chunks_of(bins); bin += THREADS) {
        double sum_right = 0.0, sum_left = 0.0;
        bool any_missing = false;
        for (i32 node = 0; node < n_nodes; ++node) {
            if (own[node] == 0) continue;
            const Place place = place_of(node, feature, own, own_steps, totals, slot_offsets, n_bins, n_features,
                                         n_outputs, sums_before);
            const bool some_missing = place.some_missing(n_outputs);
            const double parent = parent_of(place.totals, units, units_stride, n_outputs, regular, is_plain);
            const Gains found = gains_of(place, bin, some_missing, units, units_stride, n_outputs, regular, is_plain);
            if (found.right > NO_GAIN) sum_right += found.right - parent;
            if (found.left > NO_GAIN) sum_left += found.left - parent;
            any_missing = any_missing || some_missing;
        }
        if (bin >= bins) continue;
        for (i32 side = 0; side < (any_missing ? 2 : 1); ++side) {
            const double gain = side ? sum_left : sum_right;
            if (gain > best || (gain == best && bin + side * SIDE < best_place)) {
                best = gain;
                best_place = bin + side * SIDE;
            }
        }
    }
    best_of_block<THREADS>(best, best_place, block_gains, block_places);
    if (threadIdx.x > 0) return;
    gains[feature] = block_gains[0];
    places[feature] = block_places[0];
}

// `gains`, `places` : shape (nodes, features), or of all nodes the same if `is_level`. `results` : shape (nodes, RESULTS - 2 +
// 2 * outputs): gain (its bits), feature, bin, default left, sums of g and h of each output on the left.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_nodes(
    const u64* own, const u64* own_steps, const i64* totals, const i64* slot_offsets, const i32* n_bins, i32 n_features,
    i32 n_outputs, const i64* sums_before, const double* gains, const i32* places, i32 is_level, i64* results) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_features[THREADS];
    const i32 node = blockIdx.x, lane = threadIdx.x % WARP;
    if (own[node] == 0) return;
    const i64 row = is_level ? 0 : static_cast<i64>(node) * n_features;
    best_feature_of_block<THREADS>(gains + row, n_features, block_gains, block_features);
    const bool is_found = block_gains[0] > 0.0;
    const i32 feature = is_found ? block_features[0] : 0, found = is_found ? places[row + feature] : 0;
    const i32 bin = found % SIDE, side = found / SIDE;
    i64* result = results + static_cast<i64>(node) * results_of(n_outputs);
    if (threadIdx.x == 0) {
        result[0] = __double_as_longlong(is_found ? block_gains[0] : NO_GAIN);
        result[1] = is_found ? feature : -1;
        result[2] = bin;
        result[3] = side;
    }
    const Place place = place_of(node, feature, own, own_steps, totals, slot_offsets, n_bins, n_features, n_outputs,
                                 sums_before);
    for (i32 output = threadIdx.x / WARP; output < n_outputs; output += WARPS) {
        const Pair64 sums = place.sums_up_to(bin / 32 * 32 + lane, output, n_outputs);
        const Pair64 missing = place.missing(output, n_outputs);
        if (lane != bin % 32) continue;
        result[4 + 2 * output] = is_found ? sums.g + (side ? missing.g : 0) : 0;
        result[5 + 2 * output] = is_found ? sums.h + (side ? missing.h : 0) : 0;
    }
}
