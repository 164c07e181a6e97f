// The best split of every node, from its histogram: the arithmetic of `daskboost/devices/cpu/split.py`, to the last bit.
//
//   best_of_features   a warp per (node, feature): gains of all bins, missing values right and left
//   best_of_nodes      a block per node: the best of its features
//
// Histograms are named by address, since those of parents lie where earlier levels left them. A node that was not built
// from rows is its parent less its sibling: computed here, kept for its own children. Ties go to the lowest feature, then
// to missing values on the right, then to the lowest bin.
//
// variants: THREADS=128
// budget: best_of_features registers=128 shared=0
// budget: best_of_nodes registers=64 shared=12*THREADS
#include "searched.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// `gains`, `places` : shape (nodes, features); a place is a bin, or SIDE more where missing values go left. `lefts` : shape
// (nodes, features, 2). A node whose histogram is at address 0 is not there, and nothing is said of it.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_features(
    SEARCHED, double* gains, i32* places, i64* lefts) {
    const i64 job = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    const i32 node = static_cast<i32>(job / n_features), feature = static_cast<i32>(job % n_features);
    if (node >= n_nodes || own[node] == 0) return;
    const u32 lane = threadIdx.x % WARP;
    const i64 first = slot_offsets[feature];
    const i32 bins = n_bins[feature], slots = static_cast<i32>(slot_offsets[feature + 1] - first);
    const HistogramAt histogram = {own[node], parents[node], siblings[node], first};

    Pair64 present = {0, 0};
    for (i32 slot = lane; slot < slots; slot += WARP) {
        const Pair64 sums = histogram.compute(slot);
        if (slot < bins) present = {present.g + sums.g, present.h + sums.h};
    }
    present = {sum_of_warp(present.g), sum_of_warp(present.h)};
    if (lane == 0) gains[job] = NO_GAIN;
    if (!allowed[static_cast<i64>(node / allowed_every) * n_features + feature]) return;

    const i64 total_g = totals[2 * node], total_h = totals[2 * node + 1];
    const i64 missing_g = total_g - present.g, missing_h = total_h - present.h;
    const bool some_missing = missing_g != 0 || missing_h != 0;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
    const double* unit = units + static_cast<i64>(node / units_every) * units_stride;
    const double unit_g = unit[0], unit_h = unit[1];
    const double parent = parent_gain({total_g * unit_g, total_h * unit_h}, regular, limits, is_plain);
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    Pair64 best_left = {0, 0}, before = {0, 0};
    for (i32 start = 0; start < bins; start += WARP) {
        const i32 bin = start + static_cast<i32>(lane);
        const Pair64 prefix = running_sum(bin < bins ? histogram.read(bin) : Pair64{0, 0}, before);
        before = {__shfl_sync(ALL_LANES, prefix.g, WARP - 1), __shfl_sync(ALL_LANES, prefix.h, WARP - 1)};
        if (bin >= bins) continue;
        for (i32 side = 0; side < (some_missing ? 2 : 1); ++side) {
            const i64 g = prefix.g + (side ? missing_g : 0), h = prefix.h + (side ? missing_h : 0);
            const Sums left = {g * unit_g, h * unit_h}, right = {(total_g - g) * unit_g, (total_h - h) * unit_h};
            const i32 direction = bin < bins - 1 ? monotone[feature] : 0;  // the last bin divides present from missing
            const double gain = (is_plain ? plain_split_gain(left, right, regular)
                                          : limited_split_gain(left, right, regular, limits, direction)) - parent;
            const i32 place = bin + side * SIDE;
            if (gain > best || (gain == best && place < best_place)) {
                best = gain;
                best_place = place;
                best_left = {g, h};
            }
        }
    }
    double top = best;
    i32 top_place = best_place;
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const double other = __shfl_xor_sync(ALL_LANES, top, step);
        const i32 other_place = __shfl_xor_sync(ALL_LANES, top_place, step);
        if (other > top || (other == top && other_place < top_place)) {
            top = other;
            top_place = other_place;
        }
    }
    if (top > NO_GAIN && best_place == top_place) {  // places differ from lane to lane
        gains[job] = top;
        places[job] = top_place;
        lefts[2 * job] = best_left.g;
        lefts[2 * job + 1] = best_left.h;
    }
}

// One block per node. `results` : shape (nodes, RESULTS).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_nodes(
    const u64* own, const double* gains, const i32* places, const i64* lefts, i32 n_features, i64* results) {
    __shared__ double tops[THREADS];
    __shared__ i32 features[THREADS];
    if (own[blockIdx.x] == 0) return;
    const i64 first = static_cast<i64>(blockIdx.x) * n_features;
    double best = NO_GAIN;
    i32 best_feature = -1;
    for (i32 feature = threadIdx.x; feature < n_features; feature += THREADS) {
        if (gains[first + feature] > best) {
            best = gains[first + feature];
            best_feature = feature;
        }
    }
    tops[threadIdx.x] = best;
    features[threadIdx.x] = best_feature;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            const double other = tops[threadIdx.x + half];
            const i32 feature = features[threadIdx.x + half];
            const bool is_tie = other == tops[threadIdx.x] && feature >= 0 && feature < features[threadIdx.x];
            if (other > tops[threadIdx.x] || is_tie) {
                tops[threadIdx.x] = other;
                features[threadIdx.x] = feature;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    i64* result = results + static_cast<i64>(blockIdx.x) * RESULTS;
    const i32 feature = features[0];
    const i32 place = feature < 0 ? 0 : places[first + feature];
    result[0] = __double_as_longlong(tops[0]);
    result[1] = feature;
    result[2] = place % SIDE;
    result[3] = place / SIDE;
    result[4] = feature < 0 ? 0 : lefts[2 * (first + feature)];
    result[5] = feature < 0 ? 0 : lefts[2 * (first + feature) + 1];
}
