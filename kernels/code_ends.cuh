// Codes of features that are split by sets: which of them lie at either end of their order, and what the sets gain that are cut
// off there. For `split_sets.cu`, which searches nodes, `split_level_sets.cu`, which searches levels, and
// `split_vector_sets.cu`, which searches either for leaves that are vectors.
#pragma once

#include "best.cuh"
#include "bin_lists.cuh"
#include "select.cuh"
#include "task.cuh"

#ifndef THREADS
#define THREADS 256
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
    i32 first_code;   // among those of all features
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

// A number as an integer of the same order; -0.0 is 0.0.
static __device__ __forceinline__ u64 key_of_number(double value) {
    const u64 sign = 1ull << 63, bits = static_cast<u64>(__double_as_longlong(value == 0.0 ? 0.0 : value));
    return bits & sign ? ~bits : bits | sign;
}

// The leaf value of a code alone, by penalties of which `smooth` is a part, as such an integer.
static __device__ __forceinline__ u64 key_of(Pair64 sums, double unit_g, double unit_h, Regular regular, double smooth) {
    const Sums worth = sums_of(sums.g, sums.h, unit_g, unit_h);
    if (worth.h < smooth) return LIGHT;
    double value = 0.0;  // of many codes, and a division of 0 is slow
    if (soft_magnitude(worth.g, regular.alpha) != 0.0) value = leaf_weight(worth, regular, {NO_GAIN, NO_LIMIT});
    return key_of_number(value);
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

// `more_lambda` : what lambda is more in gains than in `regular`. `parent` : the gain of the node as a leaf.
static __device__ __forceinline__ Sides sides_of(const Task& task, Regular regular, double more_lambda, Bounds limits,
                                                 double parent, i32 is_plain) {
    regular.lambda += more_lambda;
    return {task.total, task.unit_g, task.unit_h, parent, regular, limits, is_plain != 0};
}

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

// The gains of the sets that are cut off at both ends, `most` apart, of which there are `n_sets` at each; `rights` : see
// sum_rights. By all threads.
static __device__ __forceinline__ void gain_of_sets(const Task& task, const Sides& sides, Pair64* rights, i32 most, i32 n_sets,
                                                    double least_group, double* gains) {
    const Pair64 no_code = task.histogram.read(task.bins - 1);
    const Pair64 all = {task.total.g - no_code.g, task.total.h - no_code.h};
    sum_rights(rights, most, all);
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

// Write the set at a place to its list, and the split by it to `result`, but for its sums. `orders` : codes of both ends, in order,
// of which lists are `stride` apart. By all threads.
static __device__ __forceinline__ void write_set(const Coded& own, i32 n_codes, i32 place, double gain, const i32* orders,
                                                 i32 stride, i32* list, i64* result) {
    const i32 thread = static_cast<i32>(threadIdx.x), most = own.most;
    const bool from_last = most > 0 && place >= most;
    const i32* const order = orders + (from_last ? stride : 0);
    const i32 n = most == 0 ? 1 : place % most + 1;
    for (i32 start = 0; start < n; start += THREADS / RANKED_BY) {
        const i32 i = start + thread / RANKED_BY;
        const i32 code = most == 0 ? place / 2 : order[min(i, n - 1)];
        const i32 rank = rank_of(most == 0 ? 0 : n, [&](i32 other) { return order[other] < code; });
        if (i < n && thread % RANKED_BY == 0) list[1 + rank] = code;
    }
    if (thread > 0) return;
    list[0] = n + from_last;
    if (from_last) list[1 + n] = n_codes;  // what is no code goes left
    result[0] = __double_as_longlong(gain);
    result[1] = own.feature;
    result[2] = from_last ? ALL_BUT : BY_SET;
    result[3] = most == 0 ? place % 2 == 0 : !from_last;
}

static __device__ __forceinline__ void copy_list(const i32* from, i32* to) {
    const i32 n = from[0];
    for (i32 i = threadIdx.x % WARP; i <= n; i += WARP) to[i] = from[i];
}

// Which of the sets that features have found, a row of RESULTS each from `first` on, gains more than a result, or as much where
// that is of a later feature; NONE where none does. By a warp, all of whose lanes have read the result afterwards.
static __device__ __forceinline__ i64 best_found(const i64* result, const i64* found, i64 first, i32 n_coded) {
    double gain = __longlong_as_double(result[0]);
    i64 feature = result[1], best = NONE;
    for (i64 i = first; i < first + n_coded; ++i) {
        const double other = __longlong_as_double(found[i * RESULTS]);
        if (other == NO_GAIN || other < gain || (other == gain && found[i * RESULTS + 1] > feature)) continue;
        gain = other;
        feature = found[i * RESULTS + 1];
        best = i;
    }
    __syncwarp();
    return best;
}
