// Counts of (negatives, positives) per score, in cells of the finest resolution that has room, and areas under curves from
// them: what `daskboost/data/cuts/key_counts.py` counts, without a sort.
//
// Scores become keys of their order (ordered.cuh); a cell of a resolution is all keys that share so many leading bits. Which
// keys there are is a set of bits, kept in two levels as it would take half a gigabyte in one: a bit for each *prefix* of 26
// bits, and below each prefix that there is, by its place among them, a bit for each of the 64 keys. The second level is
// there only if the prefixes are no more than cells may be: not of millions of rows, whose scores take up several binades
// of 2**17 prefixes each. Folding bits counts the cells of all resolutions; the finest that has room keeps a bit where each
// of its cells begins, and the bits before a key's number its cell. Atomics set bits and add integers, so that nothing
// depends on the order of rows.
//
//   mark_prefixes   rows -> bits of the first level          number_prefixes   its cells, the places of prefixes
//   count_prefixes  cells of each resolution up to 26 bits   mark_keys         rows -> bits of the second level
//   count_keys      the same from 27 bits on                 number_keys       its cells
//   count_rows      rows -> counts of cells                  sum_cells         counts of blocks of cells
//   add_area        cells -> terms of the area under a curve, added up exactly
//
// variants: KEYS=0,1 CURVE=0
// variants: KEYS=0 CURVE=1
// usual: KEYS=0 CURVE=0
// budget: mark_prefixes registers=40 shared=0
// budget: count_prefixes registers=80 shared=4*RESOLUTIONS
// budget: number_prefixes registers=128 shared=8*THREADS/32+4*THREADS/32+4
// budget: mark_keys registers=40 shared=0
// budget: count_keys registers=64 shared=4*RESOLUTIONS
// budget: number_keys registers=64 shared=8*THREADS/32+4*THREADS/32+4
// budget: count_rows registers=40 shared=0
// budget: sum_cells registers=40 shared=8*THREADS/32
// budget: add_area registers=80 shared=24*THREADS/32+8*THREADS/32
#include "block.cuh"
#include "ordered.cuh"
#include "wide_sum.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef KEYS
#define KEYS 0  // whether the least and greatest key of each cell are kept
#endif
#ifndef CURVE
#define CURVE 0
#endif
#define ROC 0
#define PRECISION 1
#ifndef ROWS
#define ROWS 4  // rows of a thread, whose loads are under way together
#endif
#define RESOLUTIONS 11  // most that a level has

constexpr i32 PREFIX_BITS = 26, KEY_BITS = 32;
constexpr i32 LEAST_BITS = 16;     // of a resolution: a thread's words of the first level are one cell of it
constexpr i32 PREFIX_WORDS = 32;   // words of the first level that a thread has
constexpr i32 KEY_WORDS = 2;       // words of the second level below a prefix
constexpr i32 KEYS_OF_LEVEL = KEY_BITS - PREFIX_BITS;
static_assert(RESOLUTIONS == PREFIX_BITS - LEAST_BITS + 1 && RESOLUTIONS >= KEYS_OF_LEVEL, "counts of either level");

constexpr u32 JOINED_CELLS = 1u << 13;  // few enough for some rows of a warp to share one

// Places of `found`.
constexpr i32 REFUSED = 0;     // 1 if a label is neither 0 nor 1, 2 if a score is NaN
constexpr i32 PREFIX_CELL = 1; // resolution of the cells of the first level; below 26 there is no second level
constexpr i32 RESOLUTION = 2;  // of the cells
constexpr i32 CELLS = 3;       // how many there are
constexpr i32 COUNTS = 4;      // cells at each resolution, by its bits

// What a row counts for; `scale` is a power of two. Rows that count for nothing leave no trace.
static __device__ __forceinline__ i64 units_of(const float* weight, i64 row, double scale) {
    return weight ? static_cast<i64>(rint(static_cast<double>(weight[row]) * scale)) : 1;
}

// Rows of a thread, with what they count for; 0 of those that are not there.
struct ThreadRows {
    i64 first;
    float values[ROWS];
    i64 units[ROWS];

    __device__ __forceinline__ ThreadRows(const float* score, i64 stride, const float* weight, double scale, i64 n) {
        first = static_cast<i64>(blockIdx.x) * (ROWS * THREADS) + threadIdx.x;
#pragma unroll
        for (i32 k = 0; k < ROWS; ++k) {
            values[k] = row(k) < n ? score[row(k) * stride] : 0.0f;
            units[k] = row(k) < n ? units_of(weight, row(k), scale) : 0;
        }
    }
    __device__ __forceinline__ i64 row(i32 k) const { return first + k * THREADS; }
};

// Sets a bit of each row that counts; most are set already, by rows of the same score.
static __device__ __forceinline__ void set_bits(const u32* places, const i64* units, u32* words) {
    u32 seen[ROWS];
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) seen[k] = units[k] != 0 ? words[places[k] / 32] : ~0u;
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k)
        if (!(seen[k] >> places[k] % 32 & 1u)) atomicOr(&words[places[k] / 32], 1u << places[k] % 32);
}

// Bits of a word before `place`, and with it.
static __device__ __forceinline__ u32 up_to(u32 place) { return (2u << place % 32) - 1u; }

// Of `2**step` neighbouring bits each, whether one is set, in the lowest of them.
static __device__ __forceinline__ u32 lowest_of_groups(i32 step) {
    return step == 0 ? ~0u : step == 1 ? 0x55555555u : step == 2 ? 0x11111111u : step == 3 ? 0x01010101u
                                                     : step == 4 ? 0x00010001u : 1u;
}

// Cells that a thread's words have at each resolution, of `TOP` + 1 in all; the finest, of one bit each, is the last.
template <i32 N, i32 TOP>
static __device__ __forceinline__ void add_cells(const u32 (&words)[N], u32 (&counts)[TOP + 1]) {
    u32 folded_words = 0;  // a bit for each word that has some
#pragma unroll
    for (i32 i = 0; i < N; ++i) {
        u32 folded = words[i];
        folded_words |= (folded != 0 ? 1u : 0u) << i;
#pragma unroll
        for (i32 step = 0; step < 5; ++step) {
            counts[TOP - step] += __popc(folded);
            folded = (folded | folded >> (1 << step)) & lowest_of_groups(step + 1);
        }
    }
#pragma unroll
    for (i32 step = 0; step <= TOP - 5; ++step) {
        counts[TOP - 5 - step] += __popc(folded_words);
        if (step < 5) folded_words = (folded_words | folded_words >> (1 << step)) & lowest_of_groups(step + 1);
    }
}

// Keeps of a thread's words the first bit of each cell of 2**step bits; their number.
template <i32 N>
static __device__ __forceinline__ i32 keep_first_bits(u32 (&words)[N], i32 step) {
    i32 count = 0;
    bool is_seen = false;  // where a cell is several words
#pragma unroll
    for (i32 i = 0; i < N; ++i) {
        u32 first = words[i];
        if (step >= 5) {
            if ((i & ((1 << (step - 5)) - 1)) == 0) is_seen = false;
            first = is_seen ? 0u : first & (0u - first);
            is_seen = is_seen || first != 0;
        } else if (step > 0) {
            u32 left = first;
            first = 0;
            for (i32 cell = 0; left != 0; cell += 1 << step) {
                const u32 own = left & ((1u << (1 << step)) - 1u) << cell;
                first |= own & (0u - own);
                left &= ~own;
            }
        }
        words[i] = first;
        count += __popc(first);
    }
    return count;
}

template <i32 N>
static __device__ __forceinline__ void load_words(const u32* from, u32 (&words)[N]) {
    if constexpr (N == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(from);
        words[0] = two.x, words[1] = two.y;
    } else {
#pragma unroll
        for (i32 i = 0; i < N; i += 4) {
            const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
            words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
        }
    }
}

// Adds a thread's counts to those of the block, and these to all; `of_blocks` : shape (blocks, RESOLUTIONS).
template <i32 N>
static __device__ __forceinline__ void add_counts(const u32 (&counts)[N], u32* own, u32* all, u32* of_blocks) {
    if (threadIdx.x < N) own[threadIdx.x] = 0;
    __syncthreads();
    if (__any_sync(ALL_LANES, counts[N - 1] != 0)) {  // few rows have marks in few warps
#pragma unroll
        for (i32 i = 0; i < N; ++i) {
            const u32 of_warp = sum_of_warp(counts[i]);
            if (threadIdx.x % WARP == 0 && of_warp) atomicAdd(&own[i], of_warp);
        }
    }
    __syncthreads();
    if (threadIdx.x >= N) return;
    of_blocks[blockIdx.x * RESOLUTIONS + threadIdx.x] = own[threadIdx.x];
    if (own[threadIdx.x]) atomicAdd(&all[threadIdx.x], own[threadIdx.x]);
}

// The most bits from `low` to `high` at which there are at most `capacity` cells; `low` if there are none such.
static __device__ __forceinline__ i32 finest(const u32* counts, i32 low, i32 high, u32 capacity) {
    i32 bits = high;
    while (bits > low && counts[bits] > capacity) --bits;
    return bits;
}

// What the threads of the block before this one have, of `count` of each, and those of the blocks before.
static __device__ __forceinline__ u32 cells_before(u32 count, const u32* of_blocks, i32 which, i64* sums, u32* totals) {
    i64 before = 0;
    for (u32 block = threadIdx.x; block < blockIdx.x; block += THREADS) before += of_blocks[block * RESOLUTIONS + which];
    before = sum_of_block<THREADS>(before, sums);
    const u32 up_to_own = running_sum_of_warp(count);
    if (threadIdx.x % WARP == WARP - 1) totals[threadIdx.x / WARP] = up_to_own;
    if (threadIdx.x == 0) sums[0] = before;
    __syncthreads();
    u32 found = static_cast<u32>(sums[0]) + up_to_own - count;
    for (u32 warp = 0; warp < threadIdx.x / WARP; ++warp) found += totals[warp];
    return found;
}

#define SCORES const float *score, i64 stride, const float *label, const float *weight, double scale, i64 n

// `score` : `stride` between rows. `marks` : zeros, a bit for each prefix.
extern "C" __global__ void __launch_bounds__(THREADS) mark_prefixes(SCORES, u32* marks, u32* found) {
    const ThreadRows rows(score, stride, weight, scale, n);
    u32 refused = 0, places[ROWS];
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) {
        const float value = rows.values[k], y = rows.row(k) < n ? label[rows.row(k)] : 0.0f;
        refused |= (y != 0 && y != 1 ? 1u : 0u) | (value != value ? 2u : 0u);
        places[k] = ordered_key(value, 0) >> KEYS_OF_LEVEL;
    }
    if (refused) atomicOr(&found[REFUSED], refused);
    set_bits(places, rows.units, marks);
}

// `found` : zeros but for REFUSED; COUNTS grow. `of_blocks` : shape (blocks, RESOLUTIONS).
extern "C" __global__ void __launch_bounds__(THREADS) count_prefixes(const u32* marks, u32* found, u32* of_blocks) {
    __shared__ u32 own[RESOLUTIONS];
    u32 words[PREFIX_WORDS], counts[RESOLUTIONS] = {};
    load_words<PREFIX_WORDS>(marks + (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) * PREFIX_WORDS, words);
    add_cells<PREFIX_WORDS, RESOLUTIONS - 1>(words, counts);
    add_counts<RESOLUTIONS>(counts, own, found + COUNTS + LEAST_BITS, of_blocks);
}

// `marks` become the beginnings of cells; `before` : of each word with marks, the cells before it.
extern "C" __global__ void __launch_bounds__(THREADS) number_prefixes(
    u32* marks, u32* before, const u32* of_blocks, u32 capacity, u32* found) {
    __shared__ i64 sums[THREADS / WARP];
    __shared__ u32 totals[THREADS / WARP];
    __shared__ i32 chosen;
    if (threadIdx.x == 0) {
        chosen = finest(found + COUNTS, LEAST_BITS, PREFIX_BITS, capacity);
        if (blockIdx.x == 0) {
            found[PREFIX_CELL] = found[RESOLUTION] = chosen;
            found[CELLS] = found[COUNTS + chosen];
        }
    }
    __syncthreads();
    const i32 bits = chosen;
    const i64 first = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) * PREFIX_WORDS;
    u32 words[PREFIX_WORDS];
    load_words<PREFIX_WORDS>(marks + first, words);
    u32 has_marks = 0;
#pragma unroll
    for (i32 i = 0; i < PREFIX_WORDS; ++i) has_marks |= (words[i] != 0 ? 1u : 0u) << i;
    const u32 count = static_cast<u32>(keep_first_bits<PREFIX_WORDS>(words, PREFIX_BITS - bits));
    u32 cell = cells_before(count, of_blocks, bits - LEAST_BITS, sums, totals);
#pragma unroll
    for (i32 i = 0; i < PREFIX_WORDS; ++i) {
        if (!(has_marks >> i & 1u)) continue;
        before[first + i] = cell;
        marks[first + i] = words[i];
        cell += __popc(words[i]);
    }
}

// The cell of a prefix; its place among all that there are, where the second level is there.
static __device__ __forceinline__ u32 cell_of_prefix(const u32* marks, const u32* before, u32 key) {
    const u32 prefix = key >> KEYS_OF_LEVEL;
    return before[prefix / 32] + __popc(marks[prefix / 32] & up_to(prefix)) - 1u;
}

// Whether there is a second level.
static __device__ __forceinline__ bool has_keys(const u32* found) { return found[PREFIX_CELL] == PREFIX_BITS; }

// `keys` : zeros, a bit for each key below a prefix.
extern "C" __global__ void __launch_bounds__(THREADS) mark_keys(SCORES, const u32* marks, const u32* before, u32* keys,
                                                                const u32* found) {
    if (!has_keys(found)) return;
    const ThreadRows rows(score, stride, weight, scale, n);
    u32 places[ROWS];
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) {
        const u32 key = ordered_key(rows.values[k], 0);
        places[k] = rows.units[k] != 0 ? cell_of_prefix(marks, before, key) * (32 * KEY_WORDS) + key % (32 * KEY_WORDS) : 0;
    }
    set_bits(places, rows.units, keys);
}

// A thread has a prefix.
extern "C" __global__ void __launch_bounds__(THREADS) count_keys(const u32* keys, u32* found, u32* of_blocks) {
    __shared__ u32 own[RESOLUTIONS];
    if (!has_keys(found)) return;
    const u32 prefix = blockIdx.x * THREADS + threadIdx.x;
    u32 words[KEY_WORDS] = {}, counts[KEYS_OF_LEVEL + 1] = {};  // that of prefixes is known already
    if (prefix < found[COUNTS + PREFIX_BITS])
        load_words<KEY_WORDS>(keys + static_cast<i64>(prefix) * KEY_WORDS, words);
    add_cells<KEY_WORDS, KEYS_OF_LEVEL>(words, counts);
    counts[0] = 0;
    add_counts<KEYS_OF_LEVEL + 1>(counts, own, found + COUNTS + PREFIX_BITS, of_blocks);
}

// `keys` become the beginnings of cells; `before` : of each prefix, the cells before it.
extern "C" __global__ void __launch_bounds__(THREADS) number_keys(u32* keys, u32* before, const u32* of_blocks,
                                                                  u32 capacity, u32* found) {
    __shared__ i64 sums[THREADS / WARP];
    __shared__ u32 totals[THREADS / WARP];
    __shared__ i32 chosen;
    if (!has_keys(found)) return;
    if (threadIdx.x == 0) chosen = finest(found + COUNTS, PREFIX_BITS, KEY_BITS, capacity);
    __syncthreads();
    const i32 bits = chosen;
    if (bits == PREFIX_BITS) return;  // prefixes are the cells
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        found[RESOLUTION] = bits;
        found[CELLS] = found[COUNTS + bits];
    }
    const u32 prefix = blockIdx.x * THREADS + threadIdx.x;
    const bool is_there = prefix < found[COUNTS + PREFIX_BITS];
    u32 words[KEY_WORDS] = {};
    u32* const own = keys + static_cast<i64>(prefix) * KEY_WORDS;
    if (is_there) load_words<KEY_WORDS>(own, words);
    const u32 count = static_cast<u32>(keep_first_bits<KEY_WORDS>(words, KEY_BITS - bits));
    const u32 cell = cells_before(count, of_blocks, bits - PREFIX_BITS, sums, totals);
    if (!is_there) return;
    before[prefix] = cell;
#pragma unroll
    for (i32 i = 0; i < KEY_WORDS; ++i) own[i] = words[i];
}

// `counts` : zeros, shape (cells, 2), of negatives and of positives. `lower`, `upper` : of each cell, its least key, from
// all ones, and its greatest, from 0.
extern "C" __global__ void __launch_bounds__(THREADS) count_rows(
    SCORES, const u32* marks, const u32* before_prefixes, const u32* keys, const u32* before_keys, const u32* found,
    u64* counts, u32* lower, u32* upper) {
    const ThreadRows rows(score, stride, weight, scale, n);
    u32 cells[ROWS], places[ROWS], positive = 0;
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) positive |= (rows.row(k) < n && label[rows.row(k)] == 1 ? 1u : 0u) << k;
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k)
        cells[k] = rows.units[k] != 0 ? cell_of_prefix(marks, before_prefixes, ordered_key(rows.values[k], 0)) : 0;
    if (found[RESOLUTION] > PREFIX_BITS) {
#pragma unroll
        for (i32 k = 0; k < ROWS; ++k) {
            if (rows.units[k] == 0) continue;
            const u32 key = ordered_key(rows.values[k], 0), last = key / 32 % KEY_WORDS;
            u32 words[KEY_WORDS];
            load_words<KEY_WORDS>(keys + static_cast<i64>(cells[k]) * KEY_WORDS, words);
            cells[k] = before_keys[cells[k]] - 1u;
#pragma unroll
            for (u32 i = 0; i < KEY_WORDS; ++i)
                cells[k] += i < last ? __popc(words[i]) : i == last ? __popc(words[i] & up_to(key)) : 0;
        }
    }
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) {
        places[k] = ~0u;  // of no count
        if (rows.units[k] != 0) places[k] = 2 * cells[k] + (positive >> k & 1u);
#if KEYS
        if (rows.units[k] == 0) continue;
        atomicMin(&lower[cells[k]], ordered_key(rows.values[k], 0));
        atomicMax(&upper[cells[k]], ordered_key(rows.values[k], 0));
#endif
    }
    // Rows of one score come together in the first rounds of a fit, which know few of them.
    const bool is_joined = !weight && found[CELLS] <= JOINED_CELLS;
#pragma unroll
    for (i32 k = 0; k < ROWS; ++k) {
        if (!is_joined) {
            if (rows.units[k] != 0) atomicAdd(&counts[places[k]], static_cast<u64>(rows.units[k]));
            continue;
        }
        const u32 same = __match_any_sync(ALL_LANES, places[k]);
        if (places[k] != ~0u && same >> threadIdx.x % WARP == 1u)
            atomicAdd(&counts[places[k]], static_cast<u64>(__popc(same)));
    }
}

constexpr i32 CELLS_OF_THREAD = 4;
constexpr i32 CELLS_OF_BLOCK = CELLS_OF_THREAD * THREADS;

// `totals` : shape (blocks, 2).
extern "C" __global__ void __launch_bounds__(THREADS) sum_cells(const u64* counts, const u32* found, u64* totals) {
    __shared__ u64 storage[THREADS / WARP];
    const u32 first = blockIdx.x * CELLS_OF_BLOCK + threadIdx.x, n_cells = found[CELLS];
    for (i32 which = 0; which < 2; ++which) {
        u64 sum = 0;
        for (i32 k = 0; k < CELLS_OF_THREAD; ++k) {
            const u32 cell = first + k * THREADS;
            if (cell < n_cells) sum += counts[2 * cell + which];
        }
        sum = sum_of_block<THREADS>(sum, storage);
        if (threadIdx.x == 0) totals[2 * blockIdx.x + which] = sum;
    }
}

// The sum of one value per thread over the threads before this one; `storage` holds one value per warp.
static __device__ __forceinline__ u64 sum_of_threads_before(u64 value, u64* storage) {
    const u64 up_to_own = running_sum_of_warp(value);
    __syncthreads();  // `storage` may be read still
    if (threadIdx.x % WARP == WARP - 1) storage[threadIdx.x / WARP] = up_to_own;
    __syncthreads();
    u64 found = up_to_own - value;
    for (u32 warp = 0; warp < threadIdx.x / WARP; ++warp) found += storage[warp];
    return found;
}

// Known to all threads.
static __device__ __forceinline__ u64 sum_for_all(u64 value, u64* storage) {
    value = sum_of_block<THREADS>(value, storage);
    if (threadIdx.x == 0) storage[0] = value;
    __syncthreads();
    value = storage[0];
    __syncthreads();
    return value;
}

// `totals` : of `sum_cells`. `sums` : of each block three words. `limbs`, `specials` : see `Outside`, zeros. `all` : all
// negatives, all positives, and REFUSED of `found`.
extern "C" __global__ void __launch_bounds__(THREADS) add_area(
    const u64* counts, const u64* totals, const u32* found, u64* sums, u64* limbs, u32* specials, u64* all) {
    __shared__ WideSum wide[THREADS / WARP];
    __shared__ u64 storage[THREADS / WARP];
    u64 before[2], whole[2];
    for (i32 which = 0; which < 2; ++which) {
        u64 of_before = 0, of_all = 0;
        for (u32 block = threadIdx.x; block < gridDim.x; block += THREADS) {
            of_before += block < blockIdx.x ? totals[2 * block + which] : 0;
            of_all += totals[2 * block + which];
        }
        before[which] = sum_for_all(of_before, storage);
        whole[which] = sum_for_all(of_all, storage);
    }
    const u32 first = blockIdx.x * CELLS_OF_BLOCK + threadIdx.x * CELLS_OF_THREAD, n_cells = found[CELLS];
    u64 negative[CELLS_OF_THREAD], positive[CELLS_OF_THREAD], negatives = 0, positives = 0;
#pragma unroll
    for (i32 k = 0; k < CELLS_OF_THREAD; ++k) {
        const bool is_in = first + k < n_cells;
        negatives += negative[k] = is_in ? counts[2 * (first + k)] : 0;
        positives += positive[k] = is_in ? counts[2 * (first + k) + 1] : 0;
    }
    before[0] += sum_of_threads_before(negatives, storage);
    before[1] += sum_of_threads_before(positives, storage);
    WideSum area = {{0, 0, 0}};
    const Outside outside = {limbs, specials};
#pragma unroll
    for (i32 k = 0; k < CELLS_OF_THREAD; ++k) {
        const double own = static_cast<double>(static_cast<i64>(positive[k]));
        if (positive[k] != 0) {
#if CURVE == ROC
            const double below = static_cast<double>(static_cast<i64>(before[0]));
            const double wins = own * (below + 0.5 * static_cast<double>(static_cast<i64>(negative[k])));
            add_exactly<HALVES>(area, wins, outside);
#else
            const i64 hits = static_cast<i64>(whole[1] - before[1]);
            const i64 above = hits + static_cast<i64>(whole[0] - before[0]);
            add_exactly<UNIT>(area, own * (static_cast<double>(hits) / static_cast<double>(above)), outside);
#endif
        }
        before[0] += negative[k];
        before[1] += positive[k];
    }
    area = wide_sum_of_block<THREADS>(area, wide);
    if (threadIdx.x != 0) return;
    for (i32 k = 0; k < 3; ++k) sums[3 * blockIdx.x + k] = area.words[k];
    if (blockIdx.x == 0) all[0] = whole[0], all[1] = whole[1], all[2] = found[REFUSED];
}
