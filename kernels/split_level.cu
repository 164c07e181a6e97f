// The one split of a symmetric tree's level: gains summed over all nodes, in node order, so that threads cannot show.
// The arithmetic is that of `daskboost/devices/cpu/split_level.py`, to the last bit.
//
//   sum_bins           a warp per (node, feature): histograms of nodes that rows have not built, and running sums of bins
//   best_of_features   a block per (tree, feature): each thread takes bins and goes through the nodes
//   best_of_level      a block per tree: the best feature, and each node's sums on the left
//
// variants: THREADS=128
// budget: sum_bins registers=64 shared=0
// budget: best_of_features registers=128 shared=12*THREADS
// budget: best_of_level registers=64 shared=12*THREADS
#include "best.cuh"
#include "searched.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// `prefix` : shape (nodes, slots, 2), sums of g and h up to each bin.
extern "C" __global__ void __launch_bounds__(THREADS) sum_bins(
    const u64* own, const u64* parents, const u64* siblings, const i64* slot_offsets, const i32* n_bins, i32 n_features,
    i32 n_nodes, i32 keeps, i64* prefix) {
    const i64 job = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    const i32 node = static_cast<i32>(job / n_features), feature = static_cast<i32>(job % n_features);
    if (node >= n_nodes || own[node] == 0) return;
    const u32 lane = threadIdx.x % WARP;
    const i64 first = slot_offsets[feature];
    const i32 bins = n_bins[feature], slots = static_cast<i32>(slot_offsets[feature + 1] - first);
    const HistogramAt histogram = {own[node], parents[node], siblings[node], first, keeps != 0};
    i64* sums = prefix + 2 * (node * slot_offsets[n_features] + first);
    Pair64 before = {0, 0};
    for (i32 start = 0; start < slots; start += WARP) {
        const i32 slot = start + static_cast<i32>(lane);
        const Pair64 value = slot < slots ? histogram.compute(slot) : Pair64{0, 0};
        if (slot < slots) histogram.keep(slot, value);
        const Pair64 total = running_sum(slot < bins ? value : Pair64{0, 0}, before);
        before = {__shfl_sync(ALL_LANES, total.g, WARP - 1), __shfl_sync(ALL_LANES, total.h, WARP - 1)};
        if (slot < bins) {
            sums[2 * slot] = total.g;
            sums[2 * slot + 1] = total.h;
        }
    }
}

// A block per (tree, feature). `gains`, `places` : shape (trees, features); a place is a bin, or SIDE more where missing
// values go left. All of a tree's nodes are there, or none.
extern "C" __global__ void __launch_bounds__(THREADS, 1) best_of_features(
    const i64* prefix, SEARCHED, double* gains, i32* places) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_places[THREADS];
    const i32 tree = blockIdx.x / n_features, feature = blockIdx.x % n_features, bins = n_bins[feature];
    const i32 first = tree * units_every, last = min(first + units_every, n_nodes);
    if (own[first] == 0) return;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const double* unit = units + static_cast<i64>(tree) * units_stride;
    bool usable = true, any_missing = false;
    for (i32 node = first; node < last; ++node) {
        usable = usable && allowed[static_cast<i64>(node / allowed_every) * n_features + feature];
        const i64* all = prefix + 2 * (node * slot_offsets[n_features] + slot_offsets[feature] + bins - 1);
        any_missing = any_missing || all[0] != totals[2 * node] || all[1] != totals[2 * node + 1];
    }
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    for (i32 bin = threadIdx.x; usable && bin < bins; bin += THREADS) {
        double sum_right = 0.0, sum_left = 0.0;
        for (i32 node = first; node < last; ++node) {
            const i64* sums = prefix + 2 * (node * slot_offsets[n_features] + slot_offsets[feature]);
            const i64 total_g = totals[2 * node], total_h = totals[2 * node + 1];
            const i64 missing_g = total_g - sums[2 * bins - 2], missing_h = total_h - sums[2 * bins - 1];
            const bool some_missing = missing_g != 0 || missing_h != 0;
            const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
            // A level's gains know no monotone constraints: a split that breaks one in any node is ruled out below.
            const double parent = leaf_gain({total_g * unit[0], total_h * unit[1]}, regular, limits);
            double right_gain = NO_GAIN;
            for (i32 side = 0; side < 2; ++side) {
                const i64 g = sums[2 * bin] + (side ? missing_g : 0), h = sums[2 * bin + 1] + (side ? missing_h : 0);
                const Sums left = {g * unit[0], h * unit[1]}, right = {(total_g - g) * unit[0], (total_h - h) * unit[1]};
                double gain = right_gain;
                if (side == 0 || some_missing)
                    gain = is_plain ? plain_split_gain(left, right, regular)
                                    : limited_split_gain(left, right, regular, limits, 0);
                double& sum = side ? sum_left : sum_right;
                if (gain > NO_GAIN) sum += gain - parent;
                if (side == 0) right_gain = gain;
                if (monotone[feature] == 0 || bin >= bins - 1) continue;
                const double left_weight = leaf_weight(left, regular, limits);
                const double right_weight = leaf_weight(right, regular, limits);
                const bool is_broken = monotone[feature] > 0 ? left_weight > right_weight : left_weight < right_weight;
                if (is_broken) sum = NO_GAIN;
            }
        }
        for (i32 side = 0; side < (any_missing ? 2 : 1); ++side) {
            const double sum = side ? sum_left : sum_right;
            const i32 place = bin + side * SIDE;
            if (sum > best || (sum == best && place < best_place)) {
                best = sum;
                best_place = place;
            }
        }
    }
    best_of_block<THREADS>(best, best_place, block_gains, block_places);
    if (threadIdx.x == 0) {
        gains[blockIdx.x] = block_gains[0];
        places[blockIdx.x] = block_places[0];
    }
}

// A block per tree, of `per_tree` nodes. `results` : shape (nodes, RESULTS).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_level(
    const i64* prefix, const u64* own, const i64* totals, const i64* slot_offsets, const i32* n_bins, i32 n_features,
    i32 per_tree, const double* gains, const i32* places, i64* results) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_features[THREADS];
    const i32 first = blockIdx.x * per_tree;
    const i64 row = static_cast<i64>(blockIdx.x) * n_features;
    if (own[first] == 0) return;
    best_feature_of_block<THREADS>(gains + row, n_features, block_gains, block_features);
    const double best = block_gains[0];
    const bool is_found = best > NO_GAIN;
    const i32 feature = is_found ? block_features[0] : 0;
    const i32 bin = places[row + feature] % SIDE, side = places[row + feature] / SIDE;
    for (i32 node = first + threadIdx.x; node < first + per_tree; node += THREADS) {
        i64* result = results + static_cast<i64>(node) * RESULTS;
        result[0] = __double_as_longlong(best);
        result[1] = is_found ? feature : -1;
        result[2] = is_found ? bin : 0;
        result[3] = is_found ? side : 0;
        const i64* sums = prefix + 2 * (node * slot_offsets[n_features] + slot_offsets[feature]);
        for (i32 statistic = 0; statistic < 2; ++statistic) {
            const i64 missing = totals[2 * node + statistic] - sums[2 * (n_bins[feature] - 1) + statistic];
            result[4 + statistic] = is_found ? sums[2 * bin + statistic] + (side ? missing : 0) : 0;
        }
    }
}
