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
// budget: best_of_codes registers=120 shared=64*MOST_TAKEN+12*THREADS+2240+32
// budget: best_of_sets registers=40 shared=0
// budget: keep_lists registers=32 shared=0
#include "best.cuh"
#include "bin_lists.cuh"
#include "select.cuh"
#include "task.cuh"

#ifndef THREADS
#define THREADS 256
#endif
// Blocks of ends_of_chunks on a multiprocessor, in 64 registers a thread, which newer architectures' code would spill.
#if __CUDA_ARCH__ >= 1000
#define CHUNKS_AT_ONCE 3
#else
#define CHUNKS_AT_ONCE 4
#endif
#define CHUNK 2048
#define MOST_TAKEN 512

constexpr i32 NONE = -1;
constexpr u64 NO_KEY = ~0ull;  // larger than that of any number, from either end
constexpr i32 LANES = WARP;
constexpr i32 SIDE_THREADS = THREADS / 2;  // one half of a block for each end
constexpr i32 SIDE_WARPS = SIDE_THREADS / LANES;
constexpr i32 EACH = CHUNK / SIDE_THREADS;  // items of a thread
constexpr i32 BATCH = 4;                    // slots that a thread reads at a time
constexpr i32 RANKED_BY = 2;                // threads that rank an item

// A feature of codes, and where its ends lie: a row of `coded`.
struct Coded {
    i32 feature;
    i32 first_chunk;  // among all chunks
    i32 n_chunks;
    i32 most;         // codes of an end; 0 where each code alone is tried against all others
    i32 first_ends;   // the last lists of its ends, among those of all features
    i32 n_ends;
};

// A row of `chunks`.
struct Chunk {
    i32 coded;
    i32 number;  // of the feature's
    i32 ends;    // the list of its ends; NONE where each code alone is tried
};

// A row of `joins`: lists that follow one another become one.
struct Join {
    i32 coded;
    i32 first;
    i32 n;
    i32 ends;
};

// The lists of codes at both ends of chunks: shape (nodes, lists, 2, most), with keys that increase from the end on. A list
// that is not full ends with NO_KEY.
#define ENDS u64 *end_keys, i32 *end_codes, i32 n_lists, i32 most_of_all
#define ENDS_OF_NODE {end_keys, end_codes, n_lists, most_of_all, node}

struct Ends {
    u64* keys;
    i32* codes;
    i32 n_lists;
    i32 most;
    i32 node;

    __device__ __forceinline__ i64 place(i32 list, i32 side) const {
        return ((static_cast<i64>(node) * n_lists + list) * 2 + side) * most;
    }
};

constexpr u64 LIGHT = 0;  // less than the key of any number

// The leaf value of a code alone, by penalties of which `smooth` is a part, as an integer of the same order; -0.0 is 0.0.
static __device__ __forceinline__ u64 key_of(Pair64 sums, double unit_g, double unit_h, Regular regular, double smooth) {
    const Sums worth = sums_of(sums.g, sums.h, unit_g, unit_h);
    if (worth.h < smooth) return LIGHT;
    double value = 0.0;  // of many codes, and a division of 0 is slow
    if (soft_magnitude(worth.g, regular.alpha) != 0.0) value = leaf_weight(worth, regular, {NO_GAIN, NO_LIMIT});
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
    // LIGHT becomes NO_KEY from either end.
    __device__ __forceinline__ u64 at(i32 i) const { return is_reversed ? ~keys[from(i)] : keys[i] - 1; }
    __device__ __forceinline__ i32 code(i32 i) const { return first + from(i); }
};

constexpr u32 LIST_BITS = 21;
static_assert((CHUNK - 1) * ((1ull << LIST_BITS) + 1) < 1ull << 32 && CHUNK * MOST_TAKEN < 1 << LIST_BITS,
              "products of items have 32 bits, and are off by less than an item");

// The same of lists of ends that follow one another: the largest from the last list on, whose codes are larger.
struct Listed {
    const u64* keys;
    const i32* codes;
    i32 n;
    u32 lists_of_item;  // 1 / most in units of 2**-LIST_BITS, rounded up
    i32 skipped;        // between one list's codes and the next one's; negative from the last one on

    __device__ __forceinline__ i32 from(i32 i) const {
        const u32 list = static_cast<u32>(i) * lists_of_item >> LIST_BITS;  // i / most
        return static_cast<i32>(list) * skipped + i;
    }
    __device__ __forceinline__ u64 at(i32 i) const { return keys[from(i)]; }
    __device__ __forceinline__ i32 code(i32 i) const { return codes[from(i)]; }
};

static __device__ __forceinline__ Listed lists_from(const Ends& ends, i32 first, i32 n, i32 most, i32 side) {
    const i64 from = ends.place(side == 0 ? first : first + n - 1, side);
    const u32 lists_of_item = (1u << LIST_BITS) / static_cast<u32>(most) + 1;
    return {ends.keys + from, ends.codes + from, n * most, lists_of_item, (side == 0 ? 2 : -2) * ends.most - most};
}

// What half a block needs to select.
struct SideRoom {
    SelectRoom select;
    u32 counts[SIDE_WARPS];
};

// The keys of items as half a block has them: each warp those of a range, its lanes' WARP apart.
struct Held {
    u64 keys[EACH];

    // The item of the first lane's key `k`.
    static __device__ __forceinline__ i32 first(i32 k) {
        return (static_cast<i32>(threadIdx.x) % SIDE_THREADS / LANES * EACH + k) * LANES;
    }
    __device__ __forceinline__ void load(const Listed& items) { load_in_order(items); }
    __device__ __forceinline__ void load(const Codes& items) {  // a loop for each order, which then has constant steps
        if (items.is_reversed) load_in_order(Codes{items.keys, items.n, items.first, true});
        else load_in_order(Codes{items.keys, items.n, items.first, false});
    }
    template <class Items>
    __device__ __forceinline__ void load_in_order(const Items& items) {
#pragma unroll
        for (i32 k = 0; k < EACH; ++k) {
            const i32 item = first(k) + static_cast<i32>(threadIdx.x) % LANES;
            keys[k] = item < items.n ? items.at(item) : NO_KEY;
        }
    }
    template <class See>
    __device__ __forceinline__ void each(See see) const {
#pragma unroll
        for (i32 k = 0; k < EACH; ++k) see(keys[k]);
    }
};

// The first `most` items, or as many as there are, in the order in which they come: `take(place, item)` is called for each.
// By all threads, each half of the block for a side of its own.
template <class Items, class Take>
static __device__ __forceinline__ void take_first(const Items& items, i32 most, SideRoom& room, Take take) {
    Held held;
    held.load(items);
    const Smallest best = select_smallest<SIDE_THREADS>(held, most, room.select);
    const u32 most_equal = best.last == NO_KEY ? 0 : static_cast<u32>(best.n_equal);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x % SIDE_THREADS / WARP;
    u32 below = 0, equal = 0;  // bits of all lanes' items: the `lane`-th of each
#pragma unroll
    for (i32 k = 0; k < EACH; ++k) {
        const u32 are_below = __ballot_sync(ALL_LANES, held.keys[k] < best.last);
        const u32 are_equal = __ballot_sync(ALL_LANES, held.keys[k] == best.last);
        if (lane == static_cast<u32>(k)) {
            below = are_below;
            equal = are_equal;
        }
    }
    constexpr u32 EQUAL = 16;  // the first of the bits that count equal keys; those before it count the ones below
    static_assert(CHUNK < 1 << EQUAL && EACH <= WARP, "counts are half a word, and a lane has a word of bits");
    const u32 own = static_cast<u32>(__popc(below)) | static_cast<u32>(__popc(equal)) << EQUAL;
    u32 counts = running_sum_of_warp(own);
    if (lane == WARP - 1) room.counts[warp] = counts;
    __syncthreads();
    counts -= own;
#pragma unroll
    for (u32 w = 0; w < SIDE_WARPS - 1; ++w)
        if (w < warp) counts += room.counts[w];
    u32 n_below = counts & ((1u << EQUAL) - 1), n_equal = counts >> EQUAL;
    for (;;) {
        const u32 left = n_equal < most_equal ? below | equal : below, bit = left & (0 - left);
        if (left == 0) break;
        const i32 item = Held::first(static_cast<i32>(lane)) + __ffs(static_cast<i32>(left)) - 1;
        take(static_cast<i32>(n_below + min(n_equal, most_equal)), item);
        n_below += (below & bit) != 0;
        n_equal += (equal & bit) != 0;
        below &= ~bit;
        equal &= ~bit;
    }
}

// Items of one side become a list of ends.
template <class Items>
static __device__ __forceinline__ void store_ends(const Items& items, i32 most, SideRoom& room, const Ends& to, i32 list,
                                                  i32 side) {
#pragma unroll 1
    for (i32 i = static_cast<i32>(threadIdx.x) % SIDE_THREADS; i < most; i += SIDE_THREADS)
        to.keys[to.place(list, side) + i] = NO_KEY;  // where the list is not full
    take_first(items, most, room, [&](i32 place, i32 item) {
        const i64 at = to.place(list, side) + place;
        to.keys[at] = items.at(item);
        to.codes[at] = items.code(item);
    });
}

// The sums of slots from `first` to `end`, kept where they shall be, and given to a function.
template <class See>
static __device__ __forceinline__ void read_and_keep(const HistogramAt& histogram, i32 first, i32 end, See see) {
    const i32 lane = static_cast<i32>(threadIdx.x) % LANES, warp = static_cast<i32>(threadIdx.x) / LANES;
#pragma unroll 1
    for (i32 start = first + warp * BATCH * LANES; start < end; start += BATCH * THREADS) {
        SomeBins<BATCH> held;
        held.load(histogram, start, end);
        held.keep(histogram, start, end);
#pragma unroll
        for (i32 k = 0; k < BATCH; ++k) {
            const i32 slot = start + k * LANES + lane;
            see(slot, held.at[k]);
        }
    }
}

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

// How many of `n` items come before one, by its RANKED_BY threads, which follow one another. Called by whole warps.
template <class IsBefore>
static __device__ __forceinline__ i32 rank_of(i32 n, IsBefore is_before) {
    i32 rank = 0;
#pragma unroll 4
    for (i32 other = static_cast<i32>(threadIdx.x) % RANKED_BY; other < n; other += RANKED_BY) rank += is_before(other);
#pragma unroll
    for (u32 step = 1; step < RANKED_BY; step *= 2) rank += __shfl_xor_sync(ALL_LANES, rank, step);
    return rank;
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
        const double gain = is_plain ? plain_split_gain(left_sums, right_sums, regular)
                                     : limited_split_gain(left_sums, right_sums, regular, limits, 0);
        return gain - parent;  // NO_GAIN where it is that
    }
};

// The codes of both ends of a feature, in order, as a block has them.
struct Ranked {
    union {
        u64 keys[2][MOST_TAKEN];
        double gains[2 * MOST_TAKEN];  // of the sets that are cut off, once keys are no longer needed
    };
    i32 codes[2][MOST_TAKEN];
    i32 order[2][MOST_TAKEN];
    i32 n_taken;
    SideRoom rooms[2];

    // Rank the codes at both ends of a feature, the last lists of which are in `ends`, and return how many sets are cut off
    // at either end: one of each number of codes, but of all that may be taken. `load(code)` is called for each code of an
    // end, and `store(side, rank, ...)` with what it returned. By all threads; `order` is there for all of them afterwards.
    template <class Load, class Store>
    __device__ __forceinline__ i32 rank(const Ends& ends, const Coded& own, double smooth, Load load, Store store) {
        const i32 thread = static_cast<i32>(threadIdx.x), side = thread / SIDE_THREADS, side_thread = thread % SIDE_THREADS;
        const i32 most = own.most;
        const Listed items = lists_from(ends, own.first_ends, own.n_ends, most, side);
        for (i32 i = side_thread; i < most; i += SIDE_THREADS) codes[side][i] = NONE;  // where fewer are taken
        if (thread == 0) n_taken = 0;
        take_first(items, most, rooms[side], [&](i32 place, i32 item) { codes[side][place] = item; });
        __syncthreads();
        for (i32 i = side_thread; i < most; i += SIDE_THREADS) {
            const i32 item = codes[side][i];
            keys[side][i] = item == NONE ? NO_KEY : items.at(item);
            codes[side][i] = item == NONE ? 0 : items.code(item);
            if (smooth > 0.0 && side == 0 && item != NONE) atomicAdd(&n_taken, 1);
        }
        __syncthreads();
        for (i32 start = 0; start < most; start += SIDE_THREADS / RANKED_BY) {
            const i32 place = start + side_thread / RANKED_BY, i = min(place, most - 1);
            const i32 code = codes[side][i];
            const auto loaded = load(code);
            const u64 key = keys[side][i];
            const i32 rank = rank_of(most, [&](i32 other) {
                return keys[side][other] < key || (keys[side][other] == key && other < i);
            });
            if (place < most && thread % RANKED_BY == 0) {
                order[side][rank] = code;
                store(side, rank, loaded);
            }
        }
        __syncthreads();
        if (smooth <= 0.0) return most;
        if (n_taken < most) return n_taken - 1;
        return order[0][most - 1] == order[1][0] ? most - 1 : most;  // both ends have all, or there are more
    }
};

// `rights` : sums of the codes at both ends, in order, of `most` each; they become those of the right sides of sets. From the
// last code on, the right side is what is left, with the missing values. By all threads.
static __device__ __forceinline__ void sum_rights(Pair64* rights, i32 most, Pair64 all) {
    const i32 side = static_cast<i32>(threadIdx.x) / SIDE_THREADS, side_thread = static_cast<i32>(threadIdx.x) % SIDE_THREADS;
    if (side_thread < LANES) {
        Pair64 before = {0, 0};
        for (i32 start = 0; start < most; start += LANES) {
            const i32 i = start + side_thread;
            Pair64* const right = rights + side * most + i;
            const Pair64 sums = running_sum(i < most ? *right : Pair64{0, 0}, before);
            before = {__shfl_sync(ALL_LANES, sums.g, LANES - 1), __shfl_sync(ALL_LANES, sums.h, LANES - 1)};
            if (i < most) *right = side ? Pair64{all.g - sums.g, all.h - sums.h} : sums;
        }
    }
    __syncthreads();
}

// Take the gains from the sets of one end that come too soon behind another one that is tried, or leave too little.
static __device__ __forceinline__ void rule_out(double* gains, const Pair64* rights, i32 n_sets, i32 side, const Sides& sides,
                                                Pair64 all, double least_group) {
    i64 group = 0, before = side ? all.h : 0;
    for (i32 i = 0; i < n_sets; ++i) {
        const i64 h = rights[i].h, others = side ? h : sides.total.h - h;
        group += side ? before - h : h - before;
        before = h;
        if (static_cast<double>(min(group, others)) * sides.unit_h < least_group) gains[i] = NO_GAIN;
        if (gains[i] > NO_GAIN) group = 0;
    }
}

// The gains of the sets that are cut off at both ends, `most` apart, of which there are `n_sets` at each. By all threads.
static __device__ __forceinline__ void gain_of_sets(double* gains, const Pair64* rights, i32 most, i32 n_sets,
                                                    const Sides& sides, Pair64 all, double least_group) {
    const i32 side = static_cast<i32>(threadIdx.x) / SIDE_THREADS, side_thread = static_cast<i32>(threadIdx.x) % SIDE_THREADS;
    for (i32 i = side_thread; i < n_sets; i += SIDE_THREADS) gains[side * most + i] = sides.gain(rights[side * most + i]);
    __syncthreads();
    if (least_group <= 0.0) return;
    if (side_thread == 0) rule_out(gains + side * most, rights + side * most, n_sets, side, sides, all, least_group);
    __syncthreads();
}

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
    const Regular scored = {most > 0 ? lambda + l2 : lambda, alpha, max_step, least_h};
    const Bounds limits = {bounds[2 * node], bounds[2 * node + 1]};
    const Sums whole = sums_of(task.total.g, task.total.h, task.unit_g, task.unit_h);
    const Sides sides = {task.total, task.unit_g, task.unit_h, parent_gain(whole, regular, limits, is_plain), scored,
                         limits, is_plain != 0};
    const i32 n_codes = task.bins - 1;
    Pair64 missing = task.total;
    const i64* of_chunks = present + 2 * (static_cast<i64>(node) * n_chunks + own_feature.first_chunk);
    for (i32 chunk = 0; most == 0 && chunk < own_feature.n_chunks; ++chunk)
        missing = {missing.g - of_chunks[2 * chunk], missing.h - of_chunks[2 * chunk + 1]};
    i32 n_sets = n_codes;
    if (most > 0) {
        n_sets = ranked.rank(ENDS_OF_NODE, own_feature, smooth, [&](i32 code) { return task.histogram.read(code); },
                             [&](i32 side, i32 rank, Pair64 sums) { rights[side * most + rank] = sums; });
        const Pair64 no_code = task.histogram.read(n_codes);
        const Pair64 all = {task.total.g - no_code.g, task.total.h - no_code.h};
        sum_rights(rights, most, all);
        gain_of_sets(ranked.gains, rights, most, n_sets, sides, all, least_group);
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
    const bool from_last = most > 0 && place >= most;
    const i32 n = most == 0 ? 1 : place % most + 1;
    for (i32 start = 0; start < n; start += THREADS / RANKED_BY) {
        const i32 i = start + thread / RANKED_BY;
        const i32 code = most == 0 ? place / 2 : ranked.order[from_last][min(i, n - 1)];
        const i32 rank = rank_of(most == 0 ? 0 : n, [&](i32 other) { return ranked.order[from_last][other] < code; });
        if (i < n && thread % RANKED_BY == 0) list[1 + rank] = code;
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
