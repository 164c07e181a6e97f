// The one set of bins of a symmetric tree's level: the choice of `best_of_level` in `daskboost/devices/cpu/split_level.py`, to the
// last bit and the last tie.
//
//   begin_level      nothing is summed; the histograms of whole levels are those of trees that are there
//   sum_codes        a block per (node, chunk of a feature's codes): sums that are not there yet, and those of the level
//   order_codes      a block per (tree, feature): the codes at both ends of its order, which split_sets.cu has found in the
//                    sums of the level
//   gain_of_codes    a block per (node, feature): what the node gains by each set
//   best_of_codes    a block per (tree, feature): the set that gains most in all nodes, in node order
//   best_of_sets     a warp per node: that of the best feature, or the split by a threshold that split_level.cu has found
//
// variants: THREADS=256
// budget: begin_level registers=40 shared=0
// budget: sum_codes registers=72 shared=0
// budget: order_codes registers=80 shared=16*MOST_TAKEN+16*MOST_TAKEN+2240+16
// budget: gain_of_codes registers=128 shared=48*MOST_TAKEN
// budget: best_of_codes registers=64 shared=12*THREADS
// budget: best_of_sets registers=64 shared=0
#include "code_ends.cuh"

// `sums` : shape (trees, n_words), of all slots of a level. `level_own`, `nobody` : shape (trees,), addresses of these sums, 0
// where a tree is not there, and zeros. `per_tree` : nodes of a tree.
extern "C" __global__ void __launch_bounds__(THREADS) begin_level(
    const u64* own, i32 per_tree, i32 n_trees, i64 n_words, i64* sums, u64* level_own, u64* nobody) {
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, stride = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = first; i < n_trees * n_words; i += stride) sums[i] = 0;
    for (i64 tree = first; tree < n_trees; tree += stride) {
        level_own[tree] = own[tree * per_tree] == 0 ? 0 : reinterpret_cast<u64>(sums + tree * n_words);
        nobody[tree] = 0;
    }
}

// `sums` : see begin_level. Grid: nodes x chunks.
extern "C" __global__ void __launch_bounds__(THREADS) sum_codes(
    SEARCHED, i32 keeps, const Coded* coded, const Chunk* chunks, i32 n_chunks, i64 n_words, i64* sums) {
    const i32 node = static_cast<i32>(blockIdx.x) / n_chunks, place = static_cast<i32>(blockIdx.x) % n_chunks;
    const Chunk chunk = chunks[place];
    const Coded own_feature = coded[chunk.coded];
    const i32 feature = own_feature.feature;
    if (own[node] == 0 || (chunk.ends == NONE && !keeps)) return;
    const Task task = TASK;
    u64* const level = reinterpret_cast<u64*>(sums) + node / units_every * n_words + 2 * slot_offsets[feature];
    const i32 first = chunk.number * CHUNK;
    const i32 end = chunk.number + 1 == own_feature.n_chunks ? task.slots : first + CHUNK;
    read_and_keep(task.histogram, first, end, [&](i32 slot, Pair64 own_sums) {
        if (chunk.ends == NONE || slot >= end) return;
        if (own_sums.g != 0) atomicAdd(level + 2 * slot, static_cast<u64>(own_sums.g));
        if (own_sums.h != 0) atomicAdd(level + 2 * slot + 1, static_cast<u64>(own_sums.h));
    });
}

// A tree's nodes, and a feature of codes: the block's of (tree, feature).
struct LevelTask {
    i32 first;  // node
    i32 last;   // behind the last one
    i32 which;  // among features of codes
};

static __device__ __forceinline__ LevelTask level_task(i32 n_coded, i32 per_tree) {
    const i32 tree = static_cast<i32>(blockIdx.x) / n_coded;
    return {tree * per_tree, (tree + 1) * per_tree, static_cast<i32>(blockIdx.x) % n_coded};
}

// `orders` : shape (trees, coded, 2, most_of_all), codes of both ends. `n_sets` : shape (trees, coded), sets that are tried at
// either end, or codes where each is tried alone; 0 where some node may not be split by the feature. Grid: trees x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 3) order_codes(
    const u64* own, const u8* allowed, i32 allowed_every, const i32* n_bins, i32 n_features, i32 per_tree, double smooth,
    const Coded* coded, i32 n_coded, ENDS, i32* orders, i32* n_sets) {
    __shared__ Ranked ranked;
    const LevelTask task = level_task(n_coded, per_tree);
    const Coded own_feature = coded[task.which];
    const i32 feature = own_feature.feature, node = static_cast<i32>(blockIdx.x) / n_coded;
    if (own[task.first] == 0) return;
    bool usable = true;
    for (i32 i = task.first + static_cast<i32>(threadIdx.x); i < task.last; i += THREADS)
        usable = usable && allowed[static_cast<i64>(i / allowed_every) * n_features + feature];
    usable = __syncthreads_and(usable);
    i32 n = usable ? n_bins[feature] - 1 : 0;
    if (usable && own_feature.most > 0) {
        i32* const order = orders + blockIdx.x * (2 * static_cast<i64>(most_of_all));
        n = ranked.rank(ENDS_OF_NODE, own_feature, smooth, [](i32 code) { return code; },
                        [&](i32 side, i32 rank, i32 code) { order[side * most_of_all + rank] = code; });
    }
    if (threadIdx.x == 0) n_sets[blockIdx.x] = max(n, 0);
}

// The sums of a node's rows whose values are missing, by a warp.
static __device__ __forceinline__ Pair64 missing_of(const Task& task) {
    Pair64 present = {0, 0};
    for (i32 bin = static_cast<i32>(threadIdx.x % WARP); bin < task.bins; bin += WARP) {
        const Pair64 sums = task.histogram.read(bin);
        present = {present.g + sums.g, present.h + sums.h};
    }
    return {task.total.g - sum_of_warp(present.g), task.total.h - sum_of_warp(present.h)};
}

// `gains` : shape (nodes, coded, width), by place: codes with missing values on the left and on the right, one after the other,
// or sets of the first codes and, `most` behind, of the last ones; NO_GAIN where a node may not be split so. Grid: nodes x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gain_of_codes(
    SEARCHED, i32 keeps, double l2, double least_group, const Coded* coded, i32 n_coded, i32 most_of_all, const i32* orders,
    const i32* n_sets, i32 width, double* gains) {
    __shared__ Pair64 rights[2 * MOST_TAKEN];
    __shared__ double of_sets[2 * MOST_TAKEN];
    const i32 node = static_cast<i32>(blockIdx.x) / n_coded, which = static_cast<i32>(blockIdx.x) % n_coded;
    const i64 of_tree = static_cast<i64>(node / units_every) * n_coded + which;
    const Coded own_feature = coded[which];
    const i32 feature = own_feature.feature, most = own_feature.most, thread = static_cast<i32>(threadIdx.x);
    if (own[node] == 0 || n_sets[of_tree] == 0) return;
    const i32 n = n_sets[of_tree];
    const Task task = TASK;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
    const Sums whole = sums_of(task.total.g, task.total.h, task.unit_g, task.unit_h);
    const double parent = leaf_gain(whole, regular, limits);
    const Sides sides = sides_of(task, regular, most > 0 ? l2 : 0.0, limits, parent, is_plain);
    double* const to = gains + blockIdx.x * static_cast<i64>(width);
    if (most == 0) {
        const Pair64 missing = missing_of(task);
        for (i32 place = thread; place < 2 * n; place += THREADS) {
            Pair64 right = task.histogram.read(place / 2);
            if (place % 2) right = {right.g + missing.g, right.h + missing.h};
            to[place] = sides.gain(right);
        }
        return;
    }
    for (i32 place = thread; place < 2 * most; place += THREADS) {
        const i32 side = place / most, i = place % most;
        const i32 code = i < n ? orders[(of_tree * 2 + side) * most_of_all + i] : NONE;
        rights[place] = code == NONE ? Pair64{0, 0} : task.histogram.read(code);
    }
    __syncthreads();
    gain_of_sets(task, sides, rights, most, n, least_group, of_sets);
    for (i32 place = thread; place < 2 * most; place += THREADS)
        if (place % most < n) to[place] = of_sets[place];
}

// `found` : shape (trees, coded, RESULTS), but for sums. `lists` : shape (trees, coded, list_width). Grid: trees x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 4) best_of_codes(
    const u64* own, const i32* n_bins, i32 per_tree, const Coded* coded, i32 n_coded, i32 most_of_all, const i32* orders,
    const i32* n_sets, i32 width, const double* gains, i32 list_width, i64* found, i32* lists) {
    __shared__ double block_gains[THREADS];
    __shared__ i32 places[THREADS];
    const LevelTask task = level_task(n_coded, per_tree);
    const Coded own_feature = coded[task.which];
    i64* const result = found + blockIdx.x * static_cast<i64>(RESULTS);
    if (threadIdx.x == 0) result[0] = __double_as_longlong(NO_GAIN);
    if (own[task.first] == 0) return;
    const i32 most = own_feature.most, n = n_sets[blockIdx.x];
    Tried best = {0.0, NONE, {0, 0}};  // what gains nothing is no split
    for (i32 place = static_cast<i32>(threadIdx.x); place < 2 * (most > 0 ? most : n); place += THREADS) {
        if (most > 0 && place % most >= n) continue;
        double gain = 0.0;
        for (i32 node = task.first; node < task.last; ++node) {
            const double of_node = gains[(static_cast<i64>(node) * n_coded + task.which) * width + place];
            if (of_node > NO_GAIN) gain += of_node;
        }
        best.take(gain, place, {0, 0});
    }
    best_of_block<THREADS>(best.gain, best.place, block_gains, places);
    if (places[0] == NONE) return;
    write_set(own_feature, n_bins[own_feature.feature] - 1, places[0], block_gains[0],
              orders + blockIdx.x * (2 * static_cast<i64>(most_of_all)), most_of_all,
              lists + blockIdx.x * static_cast<i64>(list_width), result);
}

// The sums of a node's rows on the right of a set of a list, by a warp.
static __device__ __forceinline__ Pair64 right_of_list(const Task& task, const i32* list, bool is_all_but, bool has_missing) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    Pair64 listed = {0, 0};
    for (i32 i = lane; i < list[0]; i += WARP) {
        const Pair64 sums = task.histogram.read(list[1 + i]);
        listed = {listed.g + sums.g, listed.h + sums.h};
    }
    listed = {sum_of_warp(listed.g), sum_of_warp(listed.h)};
    if (is_all_but) return {task.total.g - listed.g, task.total.h - listed.h};  // missing values too
    if (!has_missing) return listed;
    const Pair64 missing = missing_of(task);
    return {listed.g + missing.g, listed.h + missing.h};
}

// `results` : shape (nodes, RESULTS), of thresholds before. `found`, `lists` : see best_of_codes. `sets` : shape (nodes,
// list_width).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_sets(
    SEARCHED, i32 keeps, i32 n_coded, const i64* found, const i32* lists, i32 list_width, i64* results, i32* sets) {
    const i32 node = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (node >= n_nodes || own[node] == 0) return;
    i64* const result = results + static_cast<i64>(node) * RESULTS;
    const i64 best = best_found(result, found, static_cast<i64>(node / units_every) * n_coded, n_coded);
    if (best == NONE) return;
    const i64* const of_tree = found + best * RESULTS;
    const i32* const list = lists + best * list_width;
    const i32 feature = static_cast<i32>(of_tree[1]);
    const Task task = TASK;
    const Pair64 right = right_of_list(task, list, of_tree[2] == ALL_BUT, of_tree[3] == 0);
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    if (lane < 4) result[lane] = of_tree[lane];
    if (lane == 4) result[4] = task.total.g - right.g;
    if (lane == 5) result[5] = task.total.h - right.h;
    copy_list(list, sets + static_cast<i64>(node) * list_width);
}
