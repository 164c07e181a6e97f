// The one split of a symmetric tree's level: gains summed over all nodes, in node order, so that threads cannot show.
// The arithmetic is that of `daskboost/devices/cpu/split.py`, to the last bit. Features of codes are left to
// `split_level_sets.cu`.
//
//   sum_bins           a warp per (node, feature): histograms of nodes that rows have not built, and running sums of bins
//   best_of_features   a block per (tree, feature), or several where these are few, with every so many bins each: LANES
//                      threads take a bin, and look at as many nodes at a time
//   best_of_level      a block per tree: the best feature, and each node's sums on the left
//
// variants: THREADS=128,256
// budget: sum_bins registers=64 shared=0
// budget: best_of_features registers=104 shared=12*THREADS+56*NODES
// budget: best_of_level registers=64 shared=12*THREADS
#include "best.cuh"
#include "searched.cuh"

#ifndef THREADS
#define THREADS 128
#endif
#define NODES 128  // whose sums a block keeps at a time

constexpr i32 BINS = 32;  // of a block at a time
constexpr i32 LANES = THREADS / BINS;

// `prefix` : shape (nodes, slots, 2), sums of g and h up to each bin.
extern "C" __global__ void __launch_bounds__(THREADS) sum_bins(
    i64* prefix, const u64* own, const u64* parents, const u64* siblings, const i64* slot_offsets, const i32* n_bins,
    i32 n_features, const u8* is_code, i32 n_nodes, i32 keeps) {
    const i64 job = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    const i32 node = static_cast<i32>(job / n_features), feature = static_cast<i32>(job % n_features);
    if (node >= n_nodes || own[node] == 0 || IS_CODE) return;
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

// What all bins of a feature share of a node.
struct Known {
    Pair64 total;
    Pair64 missing;
    double parent;  // gain
    Bounds limits;
};

static __device__ __forceinline__ bool some(Pair64 sums) { return sums.g != 0 || sums.h != 0; }

// The sums of a node's rows without a value. `sums` : up to each bin.
static __device__ __forceinline__ Pair64 missing_of(const i64* total, const i64* sums, i32 bins) {
    return {total[0] - sums[2 * (bins - 1)], total[1] - sums[2 * (bins - 1) + 1]};
}

static __device__ __forceinline__ Known known_of(i32 node, const i64* totals, const i64* sums, i32 bins,
                                                 const double* bounds, const double* unit, const Regular& regular) {
    const Pair64 total = {totals[2 * node], totals[2 * node + 1]};
    const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
    const double parent = leaf_gain(sums_of(total.g, total.h, unit[0], unit[1]), regular, limits);
    return {total, missing_of(totals + 2 * node, sums, bins), parent, limits};
}

// What a node adds to a split's gain, of the sums on its left. `direction` : see limited_split_gain; 0 where there is none.
static __device__ __forceinline__ double share_of(Pair64 sums, const Known& node, const double* unit, const Regular& regular,
                                                  i32 direction, bool is_plain) {
    const Sums left = sums_of(sums.g, sums.h, unit[0], unit[1]);
    const Sums right = sums_of(node.total.g - sums.g, node.total.h - sums.h, unit[0], unit[1]);
    const double gain = is_plain ? plain_split_gain(left, right, regular)
                                 : limited_split_gain(left, right, regular, node.limits, 0);
    // A level's gains know no monotone constraints: a split that breaks one in any node is ruled out.
    if (direction != 0) {
        const double left_weight = leaf_weight(left, regular, node.limits);
        const double right_weight = leaf_weight(right, regular, node.limits);
        if (direction > 0 ? left_weight > right_weight : left_weight < right_weight) return NO_GAIN;
    }
    return gain > NO_GAIN ? gain - node.parent : 0.0;
}

// `n_blocks` blocks per (tree, feature). `gains`, `places` : shape (trees, features, n_blocks); a place is a bin, or SIDE
// more where missing values go left. All of a tree's nodes are there, or none.
extern "C" __global__ void __launch_bounds__(THREADS, 1) best_of_features(
    const i64* prefix, SEARCHED, i32 n_blocks, double* gains, i32* places) {
    __shared__ Known known[NODES];
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_places[THREADS];
    const i32 column = static_cast<i32>(blockIdx.x) / n_blocks, begins = static_cast<i32>(blockIdx.x) % n_blocks * BINS;
    const i32 tree = column / n_features, feature = column % n_features, bins = n_bins[feature];
    const i32 first = tree * units_every, last = min(first + units_every, n_nodes);
    if (own[first] == 0) return;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const double* unit = units + static_cast<i64>(tree) * units_stride;
    const i64 stride = 2 * slot_offsets[n_features];
    const i64* own_prefix = prefix + 2 * slot_offsets[feature];
    bool usable = !IS_CODE, any_missing = false;
    for (i32 node = first + static_cast<i32>(threadIdx.x); usable && node < last; node += THREADS) {
        usable = usable && allowed[static_cast<i64>(node / allowed_every) * n_features + feature];
        any_missing = any_missing || some(missing_of(totals + 2 * node, own_prefix + node * stride, bins));
    }
    usable = __syncthreads_and(usable);
    any_missing = __syncthreads_or(any_missing);
    // Behind the last bin nothing is left to divide where no value is missing: no node adds anything, unless children
    // without h are allowed, whose gains are off by rounding.
    const i32 n_searched = any_missing || least_h == 0.0 ? bins : bins - 1;
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    const i32 lane = static_cast<i32>(threadIdx.x) % LANES;
    for (i32 start = begins; usable && start < n_searched; start += n_blocks * BINS) {
        const i32 bin = start + static_cast<i32>(threadIdx.x) / LANES;
        const i32 direction = bin < bins - 1 ? monotone[feature] : 0;
        for (i32 side = 0; side < (any_missing ? 2 : 1); ++side) {
            double gain = 0.0;
            for (i32 begin = first; begin < last; begin += NODES) {
                const i32 n = min(NODES, last - begin);
                const i64* of_nodes = own_prefix + begin * stride;
                if ((start == begins && side == 0) || last - first > NODES) {
                    __syncthreads();
                    if (static_cast<i32>(threadIdx.x) < n)
                        known[threadIdx.x] = known_of(begin + threadIdx.x, totals, of_nodes + threadIdx.x * stride, bins,
                                                      bounds, unit, regular);
                    __syncthreads();
                }
                // In the nodes' order: LANES threads look at one each, and tell each other.
                for (i32 i = lane; i - lane < n; i += LANES) {
                    double share = 0.0;
                    if (bin < n_searched && i < n) {
                        const longlong2 sums = reinterpret_cast<const longlong2*>(of_nodes + i * stride)[bin];
                        const Known& node = known[i];
                        const Pair64 more = side ? node.missing : Pair64{0, 0};
                        share = share_of({sums.x + more.g, sums.y + more.h}, node, unit, regular, direction, is_plain != 0);
                    }
#pragma unroll
                    for (i32 from = 0; from < LANES; ++from) gain += __shfl_sync(ALL_LANES, share, from, LANES);
                }
            }
            const i32 place = bin + side * SIDE;
            if (bin < n_searched && (gain > best || (gain == best && place < best_place))) {
                best = gain;
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

// A block per tree, of `per_tree` nodes. `gains`, `places`, `n_blocks` : as above. `results` : shape (nodes, RESULTS).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_level(
    const i64* prefix, const u64* own, const i64* totals, const i64* slot_offsets, const i32* n_bins, i32 n_features,
    i32 per_tree, i32 n_blocks, const double* gains, const i32* places, i64* results) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 block_features[THREADS];
    const i32 first = blockIdx.x * per_tree;
    const i64 row = static_cast<i64>(blockIdx.x) * n_features * n_blocks;
    if (own[first] == 0) return;
    best_feature_of_block<THREADS>(gains + row, n_features * n_blocks, block_gains, block_features);
    const double best = block_gains[0];
    const bool is_found = best > 0.0;
    const i32 feature = is_found ? block_features[0] / n_blocks : 0;
    i32 place = 2 * SIDE;  // of equal gains of the feature, which several blocks may have found, the lowest
    for (i64 i = row + feature * n_blocks; i < row + (feature + 1) * n_blocks; ++i)
        if (gains[i] == best) place = min(place, places[i]);
    const i32 bin = place % SIDE, side = place / SIDE;
    for (i32 node = first + threadIdx.x; node < first + per_tree; node += THREADS) {
        i64* result = results + static_cast<i64>(node) * RESULTS;
        result[0] = __double_as_longlong(is_found ? best : NO_GAIN);
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
