// The best set of bins of every feature of codes in every node, from histograms: the choice of `best_set` in
// `daskboost/devices/cpu/split.py`, to the last bit and the last tie.
//
//   ends_of_chunks   a block per (node, chunk of a feature's codes): sums that are not there yet; of more codes than a
//                    chunk, those at either end of its order
//   join_ends        the same of several chunks' ends, until a feature has few
//   best_of_codes    a block per (node, feature): its best set
//   best_of_sets     a warp per node: the best of its sets, or the split by a threshold that split.cu has found
//   keep_lists       sets of slots of a search, where their nodes have them
//
// Codes are in the order of the leaf values that they would have alone, and equal ones in that of their numbers. A set is cut
// off at either end, and has at most `most` codes there. So nothing is sorted but those: they are selected, in chunks of
// CHUNK codes, then among what chunks have selected, and the `most` that are left are ranked by comparing all of them.
//
//   codes of a feature   [ chunk 0 ][ chunk 1 ][ chunk 2 ]
//   ends                 [k0 . . k0][k1 . . k1][k2 . . k2]    least of each; of the largest too
//   a set                k . . k                             the first of these in order
//
// variants: THREADS=256
// budget: ends_of_chunks registers=96 shared=8*CHUNK+2064+8*THREADS/32
// budget: join_ends registers=72 shared=12*CHUNK+2064+4*THREADS/32
// budget: best_of_codes registers=128 shared=12*CHUNK+20*MOST_TAKEN+12*THREADS+2064+4*THREADS/32+64
// budget: best_of_sets registers=40 shared=0
// budget: keep_lists registers=32 shared=0
#include "best.cuh"
#include "bin_lists.cuh"
#include "select.cuh"
#include "task.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#define CHUNK 2048
#define MOST_TAKEN 512
static_assert(THREADS == 1 << DIGIT, "as select_smallest is called");
static_assert(2 * MOST_TAKEN * sizeof(Pair64) <= CHUNK * sizeof(u64), "sums of sets lie where keys lay");

constexpr i32 NONE = -1;

// A feature of codes, and where its ends lie: a row of `coded`.
struct Coded {
    i32 feature;
    i32 first_chunk;  // among all chunks
    i32 n_chunks;
    i32 most;         // codes of an end; 0 where each code alone is tried against all others
    i32 first_ends;   // the last lists of its ends, among those of all features
    i32 n_ends;       // 0 where its codes are few
};

// A row of `chunks`.
struct Chunk {
    i32 coded;
    i32 number;  // of the feature's
    i32 ends;    // the list of its ends; NONE where it has none
};

// A row of `joins`: lists that follow one another become one.
struct Join {
    i32 coded;
    i32 first;
    i32 n;
    i32 ends;
};

// The lists of codes at both ends of chunks: shape (nodes, lists, 2, most), with keys that increase from the end on. A list
// that is not full ends with NONE.
#define ENDS u64 *end_keys, i32 *end_codes, i32 n_lists, i32 most_of_all

static __device__ __forceinline__ i64 place_of_ends(i32 n_lists, i32 most_of_all, i32 node, i32 list, i32 side) {
    return ((static_cast<i64>(node) * n_lists + list) * 2 + side) * most_of_all;
}

// The leaf value of a code alone as an integer of the same order; -0.0 is 0.0.
static __device__ __forceinline__ u64 key_of(Pair64 sums, double unit_g, double unit_h, Regular regular) {
    const double value = leaf_weight(sums_of(sums.g, sums.h, unit_g, unit_h), regular, {NO_GAIN, NO_LIMIT});
    const u64 sign = 1ull << 63, bits = static_cast<u64>(__double_as_longlong(value == 0.0 ? 0.0 : value));
    return bits & sign ? ~bits : bits | sign;
}

// Codes that follow one another, of which some are selected: the first in order, of equal keys those that come first.
struct Codes {
    const u64* keys;
    i32 n;
    i32 first;
    bool is_reversed;  // from the last code on, the largest keys are the first

    __device__ __forceinline__ i32 from(i32 i) const { return is_reversed ? n - 1 - i : i; }
    __device__ __forceinline__ bool has(i32) const { return true; }
    __device__ __forceinline__ u64 at(i32 i) const { return is_reversed ? ~keys[from(i)] : keys[i]; }
    __device__ __forceinline__ i32 code(i32 i) const { return first + from(i); }
};

// The same of codes that were selected already; NONE is no code.
struct Listed {
    const u64* keys;
    const i32* codes;
    i32 n;

    __device__ __forceinline__ bool has(i32 i) const { return codes[i] != NONE; }
    __device__ __forceinline__ u64 at(i32 i) const { return keys[i]; }
    __device__ __forceinline__ i32 code(i32 i) const { return codes[i]; }
};

// Up to `most` items, in the order in which they come; how many. `to_keys`, `to_codes` : room for `most`. `ranks` : a word
// for each warp. Called by all threads.
template <class Items>
static __device__ __forceinline__ i32 take_first(const Items& items, i32 most, SelectRoom& room, u32* ranks,
                                                 u64* to_keys, i32* to_codes) {
    i32 n_all = 0;
    for (i32 begin = 0; begin < items.n; begin += THREADS) {
        const i32 i = begin + static_cast<i32>(threadIdx.x);
        n_all += static_cast<i32>(rank_in_block<THREADS>(i < items.n && items.has(i), ranks).total);
    }
    Smallest best = {~0ull, ALL_EQUAL};
    if (n_all > most) best = select_smallest(items, items.n, most, room);
    i32 n_equal = 0, n_taken = 0;
    for (i32 begin = 0; begin < items.n; begin += THREADS) {
        const i32 i = begin + static_cast<i32>(threadIdx.x);
        const bool is_there = i < items.n && items.has(i);
        const u64 key = is_there ? items.at(i) : 0;
        const bool is_equal = is_there && key == best.last;
        const Rank equal = rank_in_block<THREADS>(is_equal, ranks);
        const bool is_taken = is_there && (key < best.last || (is_equal && n_equal + static_cast<i32>(equal.before) < best.n_equal));
        const Rank taken = rank_in_block<THREADS>(is_taken, ranks);
        if (is_taken) {
            to_keys[n_taken + taken.before] = key;
            to_codes[n_taken + taken.before] = items.code(i);
        }
        n_equal += static_cast<i32>(equal.total);
        n_taken += static_cast<i32>(taken.total);
    }
    return n_taken;
}

// Items of one side, from lists of ends that follow one another: the largest from the last list on, whose codes are larger.
static __device__ __forceinline__ Listed load_ends(const u64* end_keys, const i32* end_codes, i32 n_lists, i32 most_of_all,
                                                  i32 node, i32 first, i32 n, i32 most, i32 side, u64* keys, i32* codes) {
    for (i32 i = threadIdx.x; i < n * most; i += THREADS) {
        const i32 list = side ? n - 1 - i / most : i / most;
        const i64 from = place_of_ends(n_lists, most_of_all, node, first + list, side) + i % most;
        keys[i] = end_keys[from];
        codes[i] = end_codes[from];
    }
    __syncthreads();
    return {keys, codes, n * most};
}

// Items become a list of ends.
template <class Items>
static __device__ __forceinline__ void store_ends(const Items& items, i32 most, SelectRoom& room, u32* ranks, i64 to,
                                                  u64* end_keys, i32* end_codes) {
    const i32 n = take_first(items, most, room, ranks, end_keys + to, end_codes + to);
    for (i32 i = n + static_cast<i32>(threadIdx.x); i < most; i += THREADS) end_codes[to + i] = NONE;
    __syncthreads();  // items may be overwritten
}

// `chunks` : shape (n_chunks, 3). `present` : shape (nodes, chunks, 2), sums of the chunk's bins. Grid: nodes x chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 2) ends_of_chunks(
    SEARCHED, i32 keeps, const Coded* coded, const Chunk* chunks, i32 n_chunks, ENDS, i64* present) {
    __shared__ u64 keys[CHUNK];
    __shared__ SelectRoom room;
    __shared__ i64 storage[THREADS / WARP];
    const i32 node = static_cast<i32>(blockIdx.x) / n_chunks, place = static_cast<i32>(blockIdx.x) % n_chunks;
    const Chunk chunk = chunks[place];
    const Coded own_feature = coded[chunk.coded];
    const i32 feature = own_feature.feature;
    const bool is_allowed = IS_ALLOWED;
    if (own[node] == 0 || (!is_allowed && !keeps)) return;
    const Task task = TASK;
    const Regular regular = {lambda, alpha, max_step, least_h};
    const i32 first = chunk.number * CHUNK, last = min(first + CHUNK, task.bins - 1);  // the last bin is of no code
    const i32 end = chunk.number + 1 == own_feature.n_chunks ? task.slots : first + CHUNK;
    const bool has_ends = chunk.ends != NONE && is_allowed;
    Pair64 all = {0, 0};
    for (i32 slot = first + static_cast<i32>(threadIdx.x); slot < end; slot += THREADS) {
        const Pair64 sums = task.histogram.compute(slot);
        task.histogram.keep(slot, sums);
        if (slot < task.bins) all = {all.g + sums.g, all.h + sums.h};
        if (has_ends && slot < last) keys[slot - first] = key_of(sums, task.unit_g, task.unit_h, regular);
    }
    all.g = sum_of_block<THREADS>(all.g, storage);
    all.h = sum_of_block<THREADS>(all.h, storage);
    if (threadIdx.x == 0) {
        i64* to = present + 2 * (static_cast<i64>(node) * n_chunks + place);
        to[0] = all.g;
        to[1] = all.h;
    }
    if (!has_ends) return;
    for (i32 side = 0; side < 2; ++side)
        store_ends(Codes{keys, last - first, first, side != 0}, own_feature.most, room, reinterpret_cast<u32*>(storage),
                   place_of_ends(n_lists, most_of_all, node, chunk.ends, side), end_keys, end_codes);
}

// `joins` : shape (n_joins, 4). Grid: nodes x joins.
extern "C" __global__ void __launch_bounds__(THREADS) join_ends(
    const u64* own, const Coded* coded, const Join* joins, i32 n_joins, ENDS) {
    __shared__ u64 keys[CHUNK];
    __shared__ i32 codes[CHUNK];
    __shared__ SelectRoom room;
    __shared__ u32 ranks[THREADS / WARP];
    const i32 node = static_cast<i32>(blockIdx.x) / n_joins;
    const Join join = joins[static_cast<i32>(blockIdx.x) % n_joins];
    if (own[node] == 0) return;
    const i32 most = coded[join.coded].most;
    for (i32 side = 0; side < 2; ++side) {
        const Listed items =
            load_ends(end_keys, end_codes, n_lists, most_of_all, node, join.first, join.n, most, side, keys, codes);
        store_ends(items, most, room, ranks, place_of_ends(n_lists, most_of_all, node, join.ends, side), end_keys, end_codes);
    }
}

// What all threads know of a node and feature.
struct Sides {
    Pair64 total;
    double unit_g;
    double unit_h;
    double parent;
    Regular regular;
    Bounds limits;
    bool is_plain;

    __device__ __forceinline__ double gain(Pair64 right) const {
        const Sums left_sums = sums_of(total.g - right.g, total.h - right.h, unit_g, unit_h);
        const Sums right_sums = sums_of(right.g, right.h, unit_g, unit_h);
        return (is_plain ? plain_split_gain(left_sums, right_sums, regular)
                         : limited_split_gain(left_sums, right_sums, regular, limits, 0)) - parent;
    }
};

// A set as it is tried: what comes first is taken of equal gains.
struct Tried {
    double gain;
    i32 place;
    Pair64 right;

    __device__ __forceinline__ void take(double gain_, i32 place_, Pair64 right_) {
        if (gain_ < gain || (gain_ == gain && place_ >= place)) return;
        gain = gain_;
        place = place_;
        right = right_;
    }
};

// `n_chunks` : of all features of codes. `found` : shape (nodes, coded, RESULTS). `lists` : shape (nodes, coded, list_width).
// Grid: nodes x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 2) best_of_codes(
    SEARCHED, i32 keeps, const Coded* coded, i32 n_coded, i32 n_chunks, ENDS, const i64* present, i32 list_width,
    i64* found, i32* lists) {
    __shared__ u64 keys[CHUNK];
    __shared__ i32 codes[CHUNK];
    __shared__ u64 taken_keys[MOST_TAKEN];
    __shared__ i32 taken_codes[MOST_TAKEN], order[2][MOST_TAKEN];  // of either end
    __shared__ double gains[THREADS];
    __shared__ i32 places[THREADS];
    __shared__ SelectRoom room;
    __shared__ u32 ranks[THREADS / WARP];
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
    const Sides sides = {task.total, task.unit_g, task.unit_h, parent_gain(whole, regular, limits, is_plain), regular,
                         limits, is_plain != 0};
    const i32 n_codes = task.bins - 1;
    Pair64 missing = task.total;
    const i64* of_chunks = present + 2 * (static_cast<i64>(node) * n_chunks + own_feature.first_chunk);
    for (i32 chunk = 0; most == 0 && chunk < own_feature.n_chunks; ++chunk)
        missing = {missing.g - of_chunks[2 * chunk], missing.h - of_chunks[2 * chunk + 1]};
    Pair64* const rights = reinterpret_cast<Pair64*>(keys);  // of the sets at both ends, once these are known
    if (most > 0) {
        if (own_feature.n_ends == 0) {
            for (i32 code = thread; code < n_codes; code += THREADS)
                keys[code] = key_of(task.histogram.read(code), task.unit_g, task.unit_h, regular);
            __syncthreads();
        }
#pragma unroll 1
        for (i32 side = 0; side < 2; ++side) {
            if (own_feature.n_ends > 0)
                take_first(load_ends(end_keys, end_codes, n_lists, most_of_all, node, own_feature.first_ends,
                                     own_feature.n_ends, most, side, keys, codes),
                           most, room, ranks, taken_keys, taken_codes);
            else
                take_first(Codes{keys, n_codes, 0, side != 0}, most, room, ranks, taken_keys, taken_codes);
            __syncthreads();
            for (i32 i = thread; i < most; i += THREADS) {
                i32 rank = 0;
                for (i32 other = 0; other < most; ++other)
                    rank += taken_keys[other] < taken_keys[i] || (taken_keys[other] == taken_keys[i] && other < i);
                order[side][rank] = taken_codes[i];
            }
            __syncthreads();
        }
        // A warp for each end. From the last code on, the right side is what is left, with the missing values.
        const i32 side = thread / static_cast<i32>(WARP), lane = thread % static_cast<i32>(WARP);
        if (side < 2) {
            const Pair64 no_code = task.histogram.read(n_codes);
            const Pair64 all = {task.total.g - no_code.g, task.total.h - no_code.h};
            Pair64 before = {0, 0};
            for (i32 start = 0; start < most; start += WARP) {
                const i32 i = start + lane;
                const Pair64 sums = running_sum(i < most ? task.histogram.read(order[side][i]) : Pair64{0, 0}, before);
                before = {__shfl_sync(ALL_LANES, sums.g, WARP - 1), __shfl_sync(ALL_LANES, sums.h, WARP - 1)};
                if (i < most) rights[side * most + i] = side ? Pair64{all.g - sums.g, all.h - sums.h} : sums;
            }
        }
        __syncthreads();
    }
    Tried best = {0.0, NONE, {0, 0}};  // what gains nothing is no split
    for (i32 place = thread; place < 2 * (most > 0 ? most : n_codes); place += THREADS) {
        Pair64 right = most > 0 ? rights[place] : task.histogram.read(place / 2);
        if (most == 0 && place % 2) right = {right.g + missing.g, right.h + missing.h};
        best.take(sides.gain(right), place, right);
    }
    __syncthreads();
    best_of_block<THREADS>(best.gain, best.place, gains, places);
    const i32 place = places[0];
    if (place == NONE) return;
    if (best.place == place) best_right = best.right;  // one thread's
    __syncthreads();
    const bool from_last = most > 0 && place >= most;
    const i32 n = most == 0 ? 1 : place % most + 1;
    for (i32 i = thread; i < n; i += THREADS) {
        const i32 code = most == 0 ? place / 2 : order[from_last][i];
        i32 rank = 0;
        for (i32 other = 0; most > 0 && other < n; ++other) rank += order[from_last][other] < code;
        list[1 + rank] = code;
    }
    if (thread > 0) return;
    list[0] = n + from_last;
    if (from_last) list[1 + n] = n_codes;  // what is no code goes left
    result[0] = __double_as_longlong(gains[0]);
    result[1] = feature;
    result[2] = from_last ? ALL_BUT : BY_SET;
    result[3] = most == 0 ? place % 2 == 0 : !from_last;
    result[4] = task.total.g - best_right.g;
    result[5] = task.total.h - best_right.h;
}

static __device__ __forceinline__ void copy_list(const i32* from, i32* to) {
    const i32 n = from[0];
    for (i32 i = threadIdx.x % WARP; i <= n; i += WARP) to[i] = from[i];
}

// `results` : shape (nodes, RESULTS), of thresholds before. `sets` : shape (nodes, list_width).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_sets(
    const u64* own, i32 n_nodes, i32 n_coded, const i64* found, const i32* lists, i32 list_width, i64* results, i32* sets) {
    const i32 node = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (node >= n_nodes || own[node] == 0) return;
    i64* const result = results + static_cast<i64>(node) * RESULTS;
    double gain = __longlong_as_double(result[0]);
    i64 feature = result[1], best = NONE;
    for (i64 i = static_cast<i64>(node) * n_coded; i < static_cast<i64>(node + 1) * n_coded; ++i) {
        const double other = __longlong_as_double(found[i * RESULTS]);
        if (other == NO_GAIN || other < gain || (other == gain && found[i * RESULTS + 1] > feature)) continue;
        gain = other;
        feature = found[i * RESULTS + 1];
        best = i;
    }
    if (best == NONE) return;
    __syncwarp();  // all have read the result
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    if (lane < RESULTS) result[lane] = found[best * RESULTS + lane];
    copy_list(lists + best * list_width, sets + static_cast<i64>(node) * list_width);
}

// `nodes` : of each of `n` slots, NONE of those that are left out. `kept` : by node. `results`, `sets` : by slot.
extern "C" __global__ void __launch_bounds__(THREADS) keep_lists(
    const i32* nodes, i32 n, const i64* results, const i32* sets, i32 list_width, i32* kept) {
    const i32 slot = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (slot >= n || nodes[slot] == NONE || results[static_cast<i64>(slot) * RESULTS + 2] >= 0) return;
    copy_list(sets + static_cast<i64>(slot) * list_width, kept + static_cast<i64>(nodes[slot]) * list_width);
}
