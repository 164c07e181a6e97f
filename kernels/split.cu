// The best split of every node, from its histogram: the arithmetic of `daskboost/devices/cpu/split.py`, to the last
// bit.
//
//   rough_of_features   a warp per (node, feature): its largest gain, in float32, where rough.cuh knows the formula
//   best_of_features    in its place where it does not: the largest gain exactly
//   best_of_nodes       a block per node: the exact gains of the features that may be its best; several warps share one
//                       where they are few
//
// Exact gains take float64 divisions and 64-bit sums. Rough ones take neither, so that memory is the limit, and leave
// few features to be looked at exactly. Ties go to the lowest feature, then to missing values on the right, then to the
// lowest bin. Deep nodes of sparse data leave most bins empty, and those need no rough gain: `see_filled` looks at the
// others only.
//
// Histograms are named by address, since those of parents lie where earlier levels left them. A node that was not built
// from rows is its parent less its sibling: computed by the first of the kernels, and kept for its own children.
// Siblings lie side by side: their warps share a block, so that the cache has what both read.
//
// variants: THREADS=128
// usual: THREADS=128
// budget: rough_of_features registers=96 shared=64*THREADS
// budget: best_of_features registers=128 shared=0
// budget: best_of_nodes registers=128 shared=56*NODE_THREADS/32+4*LISTED+16
#include "rough.cuh"
#include "task.cuh"

#ifndef THREADS
#define THREADS 128
#endif
#define NODE_THREADS 256
#define LISTED (8 * NODE_THREADS)

constexpr i32 PAIRED = THREADS / WARP / 2;  // features of a block

// Node and feature of a warp: blocks go through the features of a pair of nodes, which are siblings below the root.
struct Job {
    i32 node;
    i32 feature;

    __device__ __forceinline__ explicit Job(i32 n_features) {
        const u32 per_pair = (n_features + PAIRED - 1) / PAIRED, warp = threadIdx.x / WARP;
        node = static_cast<i32>(2 * (blockIdx.x / per_pair) + warp % 2);
        feature = static_cast<i32>(PAIRED * (blockIdx.x % per_pair) + warp / 2);
    }
};

// A lane's rough top of the splits that it has seen, of sums in integers T that all of them fit.
template <class T>
struct RoughTop {
    const RoughNode& rough;
    T total_g, total_h, missing_g, missing_h, least;
    bool some_missing;
    float top;

    __device__ __forceinline__ RoughTop(const RoughNode& node, Pair64 total, Pair64 missing, i64 least_h)
        : rough(node), total_g(static_cast<T>(total.g)), total_h(static_cast<T>(total.h)),
          missing_g(static_cast<T>(missing.g)), missing_h(static_cast<T>(missing.h)), least(static_cast<T>(least_h)),
          some_missing(missing.g != 0 || missing.h != 0), top(NO_SPLIT) {}

    // The splits behind a bin, of the sums up to it.
    __device__ __forceinline__ void see(T g, T h) {
        top = max(top, rough.gain<T>(g, h, total_g - g, total_h - h, least));
        if (!some_missing) return;
        const T left_g = g + missing_g, left_h = h + missing_h;
        top = max(top, rough.gain<T>(left_g, left_h, total_g - left_g, total_h - left_h, least));
    }
};

// Reads bins from `start` on once more, where a feature has more than `held` has room for.
static __device__ __forceinline__ void hold(i32 start, const Task& task, Bins& held) {
    if (task.bins <= SPAN) return;
    HistogramAt from = task.histogram;
    if (from.keeps) from.parent = 0;  // `own` has what the lane found before
    held.load(from, start, task.bins);
}

// Of sums of 64 bits, a bin a lane.
static __device__ __forceinline__ float see_all(const Task& task, Bins& held, RoughTop<i64> seen) {
    Pair64 before = {0, 0};
    for (i32 start = 0; start < task.bins; start += SPAN) {
        hold(start, task, held);
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            if (start + k * static_cast<i32>(WARP) >= task.bins) break;
            const i64 g = running_sum_of_warp(held.at[k].g) + before.g;
            const i64 h = running_sum_of_warp(held.at[k].h) + before.h;
            before = {__shfl_sync(ALL_LANES, g, WARP - 1), __shfl_sync(ALL_LANES, h, WARP - 1)};
            seen.see(g, h);  // lanes beyond the last bin see that one's split
        }
    }
    return seen.top;
}

struct __align__(8) Pair32 {
    i32 g;
    i32 h;
};

// Of sums of 32 bits, those of bins that are not empty: a lane takes several, side by side, so that the warp adds up
// once. An empty bin divides as the one before it does; and one before all others, with missing values on the left, as
// the last does with them on the right: the gain of two children is the same to the last bit when they change sides. With
// them on the right its left child is empty, which gains nothing.
// `room` : of the warp, for SPAN bins.
static __device__ __forceinline__ float see_filled(const Task& task, Bins& held, RoughTop<i32> seen, Pair32* room) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    const u32 lower_lanes = (1u << lane) - 1;
    Pair32 before = {0, 0};
    for (i32 start = 0; start < task.bins; start += SPAN) {
        hold(start, task, held);
        i32 n = 0;
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            // Asked before 1, 2 and 4: a branch costs about as much as a round of empty bins.
            if ((k & (k - 1)) == 0 && start + k * static_cast<i32>(WARP) >= task.bins) break;
            const Pair32 sums = {static_cast<i32>(held.at[k].g), static_cast<i32>(held.at[k].h)};
            const bool is_filled = (sums.g | sums.h) != 0;
            const u32 filled = __ballot_sync(ALL_LANES, is_filled);
            if (is_filled) room[n + __popc(filled & lower_lanes)] = sums;
            n += __popc(filled);
        }
        __syncwarp();
        const i32 rounds = (n + static_cast<i32>(WARP) - 1) / static_cast<i32>(WARP);
        const i32 each = rounds + (rounds % 4 == 0);  // lanes that are 4 or 8 pairs apart would wait for few banks
        const i32 first = lane * each, last = min(first + each, n);
        Pair32 own = {0, 0};
#pragma unroll 1
        for (i32 i = first; i < last; ++i) own = {own.g + room[i].g, own.h + room[i].h};
        const Pair32 sums = {running_sum_of_warp(own.g) + before.g, running_sum_of_warp(own.h) + before.h};
        before = {__shfl_sync(ALL_LANES, sums.g, WARP - 1), __shfl_sync(ALL_LANES, sums.h, WARP - 1)};
        Pair32 here = {sums.g - own.g, sums.h - own.h};
#pragma unroll 1
        for (i32 i = first; i < last; ++i) {
            here = {here.g + room[i].g, here.h + room[i].h};
            seen.see(here.g, here.h);
        }
        __syncwarp();  // the room may be used again
    }
    return seen.top;
}

// `tops` : shape (nodes, features), rough gains; NO_GAIN where no split is allowed, infinity where the exact gain must
// be looked at. A node whose histogram is at address 0 is not there, and nothing is said of it.
extern "C" __global__ void __launch_bounds__(THREADS) rough_of_features(SEARCHED, i32 keeps, double* tops) {
    __shared__ Pair32 rooms[THREADS / WARP][SPAN];
    const Job job(n_features);
    const i32 node = job.node, feature = job.feature;
    if (node >= n_nodes || feature >= n_features || own[node] == 0) return;
    const bool is_allowed = IS_ALLOWED;
    const u32 lane = threadIdx.x % WARP;
    if (IS_CODE) {
        if (lane == 0) tops[static_cast<i64>(node) * n_features + feature] = NO_GAIN;
        return;
    }
    if (!is_allowed && !keeps) {
        if (lane == 0) tops[static_cast<i64>(node) * n_features + feature] = NO_GAIN;
        return;
    }
    const Task task = TASK;
    Bins held;
    Pair64 present = {0, 0};
    u64 size = 0, all_h = 0;
    for (i32 start = 0; start < task.bins; start += SPAN) {
        held.load(task.histogram, start, task.bins);
        held.keep(task.histogram, start, task.bins);
#pragma unroll
        for (i32 k = 0; k < HELD; ++k) {
            present = {present.g + held.at[k].g, present.h + held.at[k].h};
            size += static_cast<u64>(held.at[k].g < 0 ? -held.at[k].g : held.at[k].g);
            all_h |= static_cast<u64>(held.at[k].h);
        }
    }
    for (i32 slot = task.bins + lane; slot < task.slots; slot += WARP)
        task.histogram.keep(slot, task.histogram.compute(slot));
    const i64 least = least_quanta(least_h, task.unit_h);
    float top = NO_SPLIT;
    if (is_allowed && task.total.h / 2 >= least) {
        present = {sum_of_warp(present.g), sum_of_warp(present.h)};
        const Pair64 missing = {task.total.g - present.g, task.total.h - present.h};
        // Sums up to any bin are within those of |g| and, as no h is negative, of h. The bound of |g| leaves room for a
        // float's error.
        const float largest_g = sum_of_warp(static_cast<float>(size)) + fabsf(static_cast<float>(task.total.g));
        const bool is_small = largest_g < 0x1p30f && missing.h >= 0 && task.total.h < (1ll << 31);
        const RoughNode rough(RoughTree(lambda, least_h, task.unit_g, task.unit_h), task.total.h);
        if (is_small && !__any_sync(ALL_LANES, all_h >> 31 != 0))
            top = see_filled(task, held, RoughTop<i32>(rough, task.total, missing, least), rooms[threadIdx.x / WARP]);
        else
            top = see_all(task, held, RoughTop<i64>(rough, task.total, missing, least));
        top = rough.is_safe ? max_of_warp(top) : __int_as_float(0x7F800000);
    }
    if (lane == 0) {
        const double found = top < 0.0f ? NO_GAIN : static_cast<double>(top);
        tops[static_cast<i64>(node) * n_features + feature] = found;
    }
}

// The best split of a feature, as all lanes know it, and the sums on its left, as the lane knows where `has_left`.
struct Found {
    double gain;
    i32 place;  // a bin, or SIDE more where missing values go left
    bool has_left;
    Pair64 left;
};

// Bins of a feature, from a multiple of WARP on.
struct Stretch {
    i32 first;
    i32 last;
    Pair64 before;  // sums of the bins before it
};

static __device__ __forceinline__ Found search(const Task& task, Stretch own, Pair64 present, const Regular& regular,
                                               Bounds limits, i32 feature_direction, bool is_plain) {
    const u32 lane = threadIdx.x % WARP;
    const i32 bins = task.bins;
    const i64 total_g = task.total.g, total_h = task.total.h;
    const double unit_g = task.unit_g, unit_h = task.unit_h;
    const i64 missing_g = total_g - present.g, missing_h = total_h - present.h;
    const bool some_missing = missing_g != 0 || missing_h != 0;
    const double parent = parent_gain({total_g * unit_g, total_h * unit_h}, regular, limits, is_plain);
    double best = NO_GAIN;
    i32 best_place = 2 * SIDE;
    Pair64 best_left = {0, 0}, before = own.before;
    for (i32 start = own.first; start < own.last; start += WARP) {
        const i32 bin = start + static_cast<i32>(lane);
        const Pair64 prefix = running_sum(bin < own.last ? task.histogram.read(bin) : Pair64{0, 0}, before);
        before = {__shfl_sync(ALL_LANES, prefix.g, WARP - 1), __shfl_sync(ALL_LANES, prefix.h, WARP - 1)};
        if (bin >= own.last) continue;
        for (i32 side = 0; side < (some_missing ? 2 : 1); ++side) {
            const i64 g = prefix.g + (side ? missing_g : 0), h = prefix.h + (side ? missing_h : 0);
            const Sums left = {g * unit_g, h * unit_h}, right = {(total_g - g) * unit_g, (total_h - h) * unit_h};
            const i32 direction = bin < bins - 1 ? feature_direction : 0;  // the last bin divides present from missing
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
    return {top, top_place, best_place == top_place, best_left};  // places differ from lane to lane, but where none is
}

// `tops` : shape (nodes, features), exact gains.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_features(SEARCHED, i32 keeps, double* tops) {
    const Job job(n_features);
    const i32 node = job.node, feature = job.feature;
    if (node >= n_nodes || feature >= n_features || own[node] == 0) return;
    const Task task = TASK;
    const bool is_threshold = !IS_CODE;
    Pair64 present = {0, 0};
    for (i32 slot = threadIdx.x % WARP; is_threshold && slot < task.slots; slot += WARP) {
        const Pair64 sums = task.histogram.compute(slot);
        task.histogram.keep(slot, sums);
        if (slot < task.bins) present = {present.g + sums.g, present.h + sums.h};
    }
    double top = NO_GAIN;
    if (is_threshold && IS_ALLOWED) {
        present = {sum_of_warp(present.g), sum_of_warp(present.h)};
        top = search(task, {0, task.bins, {0, 0}}, present, {lambda, alpha, max_step, least_h},
                     {bounds[2 * node], bounds[2 * node + 1]}, monotone[feature], is_plain).gain;
    }
    if (threadIdx.x % WARP == 0) tops[static_cast<i64>(node) * n_features + feature] = top;
}

// `tops` : as above, exact or rough. `results` : shape (nodes, RESULTS).
extern "C" __global__ void __launch_bounds__(NODE_THREADS) best_of_nodes(
    SEARCHED, i32 keeps, const double* tops, i32 is_rough, i64* results) {
    constexpr i32 WARPS = NODE_THREADS / WARP;
    __shared__ double gains[WARPS];
    __shared__ i32 features[WARPS], places[WARPS];
    __shared__ Pair64 lefts[WARPS], parts[WARPS];
    __shared__ i32 listed[LISTED], n_listed;
    const i32 node = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (own[node] == 0) return;
    const double* node_tops = tops + static_cast<i64>(node) * n_features;
    double most = NO_GAIN;
#pragma unroll 4
    for (i32 feature = threadIdx.x; feature < n_features; feature += NODE_THREADS) most = max(most, node_tops[feature]);
    most = max_of_warp(most);
    if (lane == 0) gains[warp] = most;
    __syncthreads();
    for (i32 other = 0; other < WARPS; ++other) most = max(most, gains[other]);
    __syncthreads();

    // Warps take turns with those that are listed, in whatever order, so that many of equal gain are shared by all.
    const double enough = most * (is_rough ? 1.0 - MARGIN : 1.0);
    double best = NO_GAIN;
    i32 best_feature = -1;
    for (i32 start = 0; start < n_features; start += LISTED) {
        if (threadIdx.x == 0) n_listed = 0;
        __syncthreads();
        double own_tops[LISTED / NODE_THREADS];
#pragma unroll
        for (i32 k = 0; k < LISTED / NODE_THREADS; ++k) {
            const i32 feature = start + k * NODE_THREADS + static_cast<i32>(threadIdx.x);
            own_tops[k] = feature < n_features ? node_tops[feature] : NO_GAIN;
        }
#pragma unroll
        for (i32 k = 0; k < LISTED / NODE_THREADS; ++k) {
            const i32 feature = start + k * NODE_THREADS + static_cast<i32>(threadIdx.x);
            if (own_tops[k] >= enough && own_tops[k] > NO_GAIN) listed[atomicAdd(&n_listed, 1)] = feature;
        }
        __syncthreads();
        // Of few features, teams of warps take one each, and a warp of a team an equal part of its bins.
        i32 team = WARPS;
        while (team > 1 && team * n_listed > WARPS) team /= 2;
        for (i32 first = 0; first < n_listed; first += WARPS / team) {
            const i32 i = first + warp / team, member = warp % team;
            const bool is_mine = i < n_listed;
            const i32 feature = is_mine ? listed[i] : 0;
            const Task task = TASK;
            const i32 rounds = (task.bins + team * static_cast<i32>(WARP) - 1) / (team * static_cast<i32>(WARP));
            Stretch own = {min(task.bins, member * rounds * static_cast<i32>(WARP)), 0, {0, 0}};
            own.last = is_mine ? min(task.bins, own.first + rounds * static_cast<i32>(WARP)) : own.first;
            Pair64 present = {0, 0};
#pragma unroll 4
            for (i32 bin = own.first + lane; bin < own.last; bin += WARP) {
                const Pair64 sums = task.histogram.read(bin);
                present = {present.g + sums.g, present.h + sums.h};
            }
            present = {sum_of_warp(present.g), sum_of_warp(present.h)};
            if (team > 1) {  // then there is one round of this loop
                if (lane == 0) parts[warp] = present;
                __syncthreads();
                present = {0, 0};
                for (i32 other = 0; other < team; ++other) {
                    if (other == member) own.before = present;
                    const Pair64 part = parts[warp - member + other];
                    present = {present.g + part.g, present.h + part.h};
                }
            }
            if (own.first == own.last) continue;
            const Found found = search(task, own, present, {lambda, alpha, max_step, least_h},
                                       {bounds[2 * node], bounds[2 * node + 1]}, monotone[feature], is_plain);
            const bool is_tie = found.gain == best && feature < best_feature;
            if (!(found.gain > best) && !is_tie) continue;
            best = found.gain;
            best_feature = feature;
            __syncwarp();  // another lane may have written them for an earlier feature, and shuffles order no writes
            if (!found.has_left) continue;
            places[warp] = found.place;
            lefts[warp] = found.left;
        }
        __syncthreads();
    }
    if (lane == 0) features[warp] = best_feature;
    if (lane == 0) gains[warp] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
    i32 first = 0;
    for (i32 other = 1; other < WARPS; ++other) {
        if (features[other] < 0) continue;
        const bool is_earlier = features[other] < features[first] ||
                                (features[other] == features[first] && places[other] < places[first]);
        if (gains[other] > gains[first] || (gains[other] == gains[first] && is_earlier)) first = other;
    }
    i64* result = results + static_cast<i64>(node) * RESULTS;
    const bool is_found = gains[first] > 0.0;
    result[0] = __double_as_longlong(is_found ? gains[first] : NO_GAIN);
    result[1] = is_found ? features[first] : -1;
    result[2] = is_found ? places[first] % SIDE : 0;
    result[3] = is_found ? places[first] / SIDE : 0;
    result[4] = is_found ? lefts[first].g : 0;
    result[5] = is_found ? lefts[first].h : 0;
}
