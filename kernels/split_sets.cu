// The best set of bins of every feature of codes in every node, from histograms: the choice of `best_set` in
// `daskboost/devices/cpu/split.py`, to the last bit and the last tie.
//
//   ends_of_chunks   a block per (node, chunk of a feature's codes): sums that are not there yet, and the codes at either end
//                    of its order
//   join_ends        the same of several chunks' ends, until a feature has few
//   best_of_codes    a block per (node, feature): its best set
//   best_of_sets     a warp per node: the best of its sets, or the split by a threshold that split.cu has found
//   keep_lists       sets of slots of a search, where their nodes have them
//
// Codes are in the order of the leaf values that they would have alone, and equal ones in that of their numbers. A set is cut
// off at either end, and has at most `most` codes there. So nothing is sorted but those: they are selected, in chunks of
// CHUNK codes, then among what chunks have selected, and the `most` that are left are ranked by comparing all of them. Codes of
// less than `smooth` are taken from neither end: their keys are NO_KEY.
//
//   codes of a feature   [ chunk 0 ][ chunk 1 ][ chunk 2 ]
//   ends                 [k0 . . k0][k1 . . k1][k2 . . k2]    least of each; of the largest too
//   a set                k . . k                             the first of these in order
//
// variants: THREADS=256
// budget: ends_of_chunks registers=72 shared=8*CHUNK+2240+8*THREADS/32
// budget: join_ends registers=80 shared=2240
// budget: best_of_codes registers=128 shared=64*MOST_TAKEN+12*THREADS+2240+32
// budget: best_of_sets registers=40 shared=0
// budget: keep_lists registers=32 shared=0
#include "code_ends.cuh"

// Blocks of ends_of_chunks on a multiprocessor, in 64 registers a thread, which newer architectures' code would spill.
#if __CUDA_ARCH__ >= 1000
#define CHUNKS_AT_ONCE 3
#else
#define CHUNKS_AT_ONCE 4
#endif

// `chunks` : shape (n_chunks, 3). `present` : shape (nodes, chunks, 2), sums of the chunk's bins where it has no ends. Grid:
// nodes x chunks.
extern "C" __global__ void __launch_bounds__(THREADS, CHUNKS_AT_ONCE) ends_of_chunks(
    SEARCHED, i32 keeps, double smooth, const Coded* coded, const Chunk* chunks, i32 n_chunks, ENDS, i64* present) {
    __shared__ u64 keys[CHUNK];
    __shared__ SideRoom rooms[2];
    __shared__ i64 storage[THREADS / WARP];
    const i32 node = static_cast<i32>(blockIdx.x) / n_chunks, place = static_cast<i32>(blockIdx.x) % n_chunks;
    const Chunk chunk = chunks[place];
    const Coded own_feature = coded[chunk.coded];
    const i32 feature = own_feature.feature;
    const bool is_allowed = IS_ALLOWED;
    if (own[node] == 0 || (!is_allowed && !keeps)) return;
    const Task task = TASK;
    const Regular regular = {lambda + smooth, alpha, max_step, least_h};
    const i32 first = chunk.number * CHUNK, last = min(first + CHUNK, task.bins - 1);  // the last bin is of no code
    const i32 end = chunk.number + 1 == own_feature.n_chunks ? task.slots : first + CHUNK;
    if (chunk.ends == NONE) {
        Pair64 all = {0, 0};
        read_and_keep(task.histogram, first, end, [&](i32 slot, Pair64 sums) {
            if (slot < task.bins) all = {all.g + sums.g, all.h + sums.h};
        });
        all.g = sum_of_block<THREADS>(all.g, storage);
        all.h = sum_of_block<THREADS>(all.h, storage);
        if (threadIdx.x > 0) return;
        i64* to = present + 2 * (static_cast<i64>(node) * n_chunks + place);
        to[0] = all.g;
        to[1] = all.h;
        return;
    }
    read_and_keep(task.histogram, first, end, [&](i32 slot, Pair64 sums) {
        if (slot < last) keys[slot - first] = key_of(sums, task.unit_g, task.unit_h, regular, smooth);
    });
    if (!is_allowed) return;
    __syncthreads();
    const i32 side = static_cast<i32>(threadIdx.x) / SIDE_THREADS;
    const Ends ends = ENDS_OF_NODE;
    const Codes items = {keys, last - first, first, side != 0};
    store_ends(items, own_feature.most, rooms[side], ends, chunk.ends, side);
}

// `joins` : shape (n_joins, 4). Grid: nodes x joins.
extern "C" __global__ void __launch_bounds__(THREADS, 3) join_ends(
    const u64* own, const Coded* coded, const Join* joins, i32 n_joins, ENDS) {
    __shared__ SideRoom rooms[2];
    const i32 node = static_cast<i32>(blockIdx.x) / n_joins;
    const Join join = joins[static_cast<i32>(blockIdx.x) % n_joins];
    if (own[node] == 0) return;
    const i32 most = coded[join.coded].most, side = static_cast<i32>(threadIdx.x) / SIDE_THREADS;
    const Ends ends = ENDS_OF_NODE;
    const Listed items = lists_from(ends, join.first, join.n, most, side);
    store_ends(items, most, rooms[side], ends, join.ends, side);
}

// `n_chunks` : of all features of codes. `found` : shape (nodes, coded, RESULTS). `lists` : shape (nodes, coded, list_width).
// Grid: nodes x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 2) best_of_codes(
    SEARCHED, i32 keeps, double smooth, double l2, double least_group, const Coded* coded, i32 n_coded, i32 n_chunks, ENDS,
    const i64* present, i32 list_width, i64* found, i32* lists) {
    __shared__ Pair64 rights[2 * MOST_TAKEN];  // sums of the sets at both ends
    __shared__ Ranked ranked;
    __shared__ double gains[THREADS];
    __shared__ i32 places[THREADS];
    __shared__ Pair64 best_right;
    const i32 node = static_cast<i32>(blockIdx.x) / n_coded, which = static_cast<i32>(blockIdx.x) % n_coded;
    const Coded own_feature = coded[which];
    const i32 feature = own_feature.feature, most = own_feature.most, thread = static_cast<i32>(threadIdx.x);
    i64* const result = found + blockIdx.x * static_cast<i64>(RESULTS);
    i32* const list = lists + blockIdx.x * static_cast<i64>(list_width);
    if (thread == 0) result[0] = __double_as_longlong(NO_GAIN);
    if (own[node] == 0 || !IS_ALLOWED) return;
    const Task task = TASK;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
    const Sums whole = sums_of(task.total.g, task.total.h, task.unit_g, task.unit_h);
    const double parent = parent_gain(whole, regular, limits, is_plain);
    const Sides sides = sides_of(task, regular, most > 0 ? l2 : 0.0, limits, parent, is_plain);
    const i32 n_codes = task.bins - 1;
    Pair64 missing = task.total;
    const i64* of_chunks = present + 2 * (static_cast<i64>(node) * n_chunks + own_feature.first_chunk);
    for (i32 chunk = 0; most == 0 && chunk < own_feature.n_chunks; ++chunk)
        missing = {missing.g - of_chunks[2 * chunk], missing.h - of_chunks[2 * chunk + 1]};
    i32 n_sets = n_codes;
    if (most > 0) {
        n_sets = ranked.rank(ENDS_OF_NODE, own_feature, smooth, [&](i32 code) { return task.histogram.read(code); },
                             [&](i32 side, i32 rank, Pair64 sums) { rights[side * most + rank] = sums; });
        gain_of_sets(task, sides, rights, most, n_sets, least_group, ranked.gains);
    }
    Tried best = {0.0, NONE, {0, 0}};  // what gains nothing is no split
    for (i32 place = thread; place < 2 * (most > 0 ? most : n_codes); place += THREADS) {
        if (most > 0) {
            if (place % most < n_sets) best.take(ranked.gains[place], place, rights[place]);
            continue;
        }
        Pair64 right = task.histogram.read(place / 2);
        if (place % 2) right = {right.g + missing.g, right.h + missing.h};
        best.take(sides.gain(right), place, right);
    }
    __syncthreads();
    best_of_block<THREADS>(best.gain, best.place, gains, places);
    const i32 place = places[0];
    if (place == NONE) return;
    if (best.place == place) best_right = best.right;  // one thread's
    __syncthreads();
    write_set(own_feature, n_codes, place, gains[0], &ranked.order[0][0], MOST_TAKEN, list, result);
    if (thread > 0) return;
    result[4] = task.total.g - best_right.g;
    result[5] = task.total.h - best_right.h;
}

// `results` : shape (nodes, RESULTS), of thresholds before. `sets` : shape (nodes, list_width).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_sets(
    const u64* own, i32 n_nodes, i32 n_coded, const i64* found, const i32* lists, i32 list_width, i64* results, i32* sets) {
    const i32 node = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (node >= n_nodes || own[node] == 0) return;
    i64* const result = results + static_cast<i64>(node) * RESULTS;
    const i64 best = best_found(result, found, static_cast<i64>(node) * n_coded, n_coded);
    if (best == NONE) return;
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    if (lane < RESULTS) result[lane] = found[best * RESULTS + lane];
    copy_list(lists + best * list_width, sets + static_cast<i64>(node) * list_width);
}

// `nodes` : of each of `n` slots, NONE of those that are left out. `kept` : by node. `results`, `sets` : by slot; a result has
// `n_results` numbers.
extern "C" __global__ void __launch_bounds__(THREADS) keep_lists(
    const i32* nodes, i32 n, const i64* results, i32 n_results, const i32* sets, i32 list_width, i32* kept) {
    const i32 slot = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (slot >= n || nodes[slot] == NONE || results[static_cast<i64>(slot) * n_results + 2] >= 0) return;
    copy_list(sets + static_cast<i64>(slot) * list_width, kept + static_cast<i64>(nodes[slot]) * list_width);
}
