// Key counts of many series of float32: how many values lie in each cell of keys that share their leading bits, at the
// finest resolution whose occupied cells number at most a capacity (`daskboost/data/cuts/key_counts.py`).
//
// Sorting would move every key several times. Cells are found instead, by marking which prefixes of keys occur: a bit for
// each of the 2**20 first prefixes, then, only where capacity is left, bits for the next `width` bits of keys below each
// prefix that occurred. So the occupied cells are a tree of bitmaps, and the rank of a key's bit is its cell's place in
// order: a second pass adds every value to its cell without comparing or sorting. The bitmaps' occupied words stay in
// caches; what a pass costs is reading the values and one atomic addition for each.
//
// A level of a series is `widths[3 * s + level]` bits of keys, and its bitmap starts at `starts[3 * s + level]`: bit
// (number of the cell above) * 2**width + (next `width` bits). In `words` a bitmap's 32 bits have their first bit's rank
// within the series in the upper half.
//
// SOURCE 0: a matrix; 1: entries of CSR rows, feature by entry; 2: keys of cells, which are only marked, and all that
// has no source, which is compiled once only.
//
// variants: SOURCE=0,1,2
// usual: SOURCE=0,2
// budget: mark registers=56 shared=0
// budget: count_bits registers=40 shared=4*THREADS/32
// budget: rank_bits registers=56 shared=4*THREADS/32+8*THREADS/32
// budget: list_cells registers=40 shared=0
// budget: make_words registers=32 shared=0
// budget: count_differences registers=32 shared=0
// budget: pick_ends registers=32 shared=0
// budget: part_bounds registers=32 shared=0
// budget: count registers=64 shared=0
#include "block.cuh"
#include "keys.cuh"
#include "matrix.cuh"
#include "search.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SOURCE
#define SOURCE 0
#endif

constexpr i32 MOST_LEVELS = 3;

// SOURCE 1: `series_of` a feature, or -1. SOURCE 2: series s has the keys `offsets[s]` to `offsets[s + 1]`.
#if SOURCE == 0
#define SOURCE_PARAMETERS MATRIX_PARAMETERS
#define SOURCE_ARGUMENTS MATRIX
#elif SOURCE == 1
#define SOURCE_PARAMETERS const float *__restrict__ values, const i32 *__restrict__ indices, const i32 *series_of, i64 n
#define SOURCE_ARGUMENTS values, indices, series_of, n
#else
#define SOURCE_PARAMETERS const u32 *__restrict__ keys, const i64 *offsets, i32 n_series, i64 n
#define SOURCE_ARGUMENTS keys, offsets, n_series, n
#endif

// Which of `n` runs, bounded by `offsets`, holds a place.
static __device__ __forceinline__ i32 run_of(const i64* offsets, i32 n, i64 place) {
    i32 low = 0, high = n;
    while (high - low > 1) {
        const i32 middle = (low + high) / 2;
        if (offsets[middle] <= place) low = middle;
        else high = middle;
    }
    return low;
}

// Calls visit(series, row or entry, key) for every present value.
template <class Visit>
static __device__ __forceinline__ void for_each_key(SOURCE_PARAMETERS, Visit visit) {
#if SOURCE == 0
    const Walk walk = walk_of<THREADS>(n_rows, n_series, columns, tile_rows);
    for_each_value<THREADS>(walk, MATRIX, [&](i64 row, float x, bool is_absent) {
        if (!is_absent) visit(walk.series, row, key_of(x));
    });
#else
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS) {
#if SOURCE == 1
        const i32 series = series_of[indices[i]];
        if (series >= 0) visit(series, i, key_of(values[i]));
#else
        visit(run_of(offsets, n_series, i), i, keys[i]);
#endif
    }
#endif
}

// Whether a key is wanted: weights are above 0, and intervals, sorted and disjoint, may select keys. Null: none are given.
static __device__ __forceinline__ bool is_wanted(
    const i64* weights, i64 row, const i64* interval_offsets, const u32* lower, const u32* upper, i32 series, u32 key) {
    if (weights && weights[row] <= 0) return false;
    if (!interval_offsets) return true;
    const i64 end = interval_offsets[series + 1], at = first_not_below(upper, interval_offsets[series], end, key);
    return at < end && lower[at] <= key;
}

// The number of a key's cell after `n_levels` levels; takes their bits off the key.
static __device__ __forceinline__ u64 descend(
    const u64* words, const i64* starts, const i32* widths, i32 series, i32 n_levels, u32* key) {
    u64 cell = 0;
    for (i32 level = 0; level < n_levels; ++level) {
        const i32 width = widths[MOST_LEVELS * series + level];
        const u64 bit = cell << width | static_cast<u64>(*key) << width >> 32;
        *key <<= width;
        const u64 word = words[starts[MOST_LEVELS * series + level] + static_cast<i64>(bit >> 5)];
        cell = (word >> 32) + __popc(static_cast<u32>(word) & ((1u << (bit & 31)) - 1));
    }
    return cell;
}

// Sets the bits of all keys on one level, those above being known.
extern "C" __global__ void __launch_bounds__(THREADS) mark(
    SOURCE_PARAMETERS, const i64* weights, const i64* interval_offsets, const u32* lower, const u32* upper,
    const u64* words, const i64* starts, const i32* widths, i32 level, u32* marks) {
    for_each_key(SOURCE_ARGUMENTS, [&](i32 series, i64 row, u32 key) {
        if (!is_wanted(weights, row, interval_offsets, lower, upper, series, key)) return;
        const u64 cell = descend(words, starts, widths, series, level, &key);
        const i32 width = widths[MOST_LEVELS * series + level];
        const u64 bit = cell << width | static_cast<u64>(key) << width >> 32;
        u32* const word = &marks[starts[MOST_LEVELS * series + level] + static_cast<i64>(bit >> 5)];
        const u32 own = 1u << (bit & 31);
        if (!(*word & own)) atomicOr(word, own);  // most are set by then, and reading is cheaper
    });
}

#if SOURCE == 2
// Marked bits of each block's stretch of `block_words`.
extern "C" __global__ void __launch_bounds__(THREADS) count_bits(
    const u32* __restrict__ marks, i64 n, i64 block_words, u32* __restrict__ counts) {
    __shared__ u32 storage[THREADS / WARP];
    const i64 begin = blockIdx.x * block_words, end = min(begin + block_words, n);
    u32 count = 0;
    for (i64 at = begin + threadIdx.x; at < end; at += THREADS) count += __popc(marks[at]);
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Marked bits up to and with each word; `counts` : what `count_bits` found.
extern "C" __global__ void __launch_bounds__(THREADS) rank_bits(
    const u32* __restrict__ marks, i64 n, i64 block_words, const u32* __restrict__ counts, u32* __restrict__ ranks) {
    __shared__ u32 totals[THREADS / WARP];
    __shared__ i64 partial[THREADS / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i64 begin = blockIdx.x * block_words, end = min(begin + block_words, n);
    u32 next = static_cast<u32>(sum_before<THREADS>(counts, blockIdx.x, partial));
    for (i64 tile = begin; tile < end; tile += THREADS) {  // whole warps: all lanes add
        const i64 at = tile + threadIdx.x;
        const u32 running = running_sum_of_warp<u32>(at < end ? __popc(marks[at]) : 0);
        if (lane == WARP - 1) totals[warp] = running;
        __syncthreads();
        u32 before = next;
        for (u32 w = 0; w < THREADS / WARP; ++w) {
            before += w < warp ? totals[w] : 0;
            next += totals[w];
        }
        if (at < end) ranks[at] = before + running;
        __syncthreads();  // `totals` is used again
    }
}

// The cells of one level in order, as the least key that each could hold. `word_offsets` : of each series' bitmap.
// `ranks` : marked bits up to and with each word. `parents` : the level above, from `parent_offsets[s]` on; null for the
// first. `widths` : of this level. `bits` : of keys, down to this level.
extern "C" __global__ void __launch_bounds__(THREADS) list_cells(
    const u32* __restrict__ marks, const u32* __restrict__ ranks, i64 n_words, const i64* word_offsets, i32 n_series,
    const u32* parents, const i64* parent_offsets, const i32* widths, const i32* bits, u32* __restrict__ cells) {
    const i64 word = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (word >= n_words) return;
    u32 rest = marks[word];
    if (!rest) return;
    u32* out = cells + (ranks[word] - __popc(rest));
    const i32 series = run_of(word_offsets, n_series, word), width = widths[series];
    for (; rest; rest &= rest - 1) {
        const u64 bit = static_cast<u64>(word - word_offsets[series]) * 32 + (__ffs(static_cast<int>(rest)) - 1);
        const u64 own = (bit & ((1ull << width) - 1)) << (32 - bits[series]);
        *out++ = (parents ? parents[parent_offsets[series] + static_cast<i64>(bit >> width)] : 0) | static_cast<u32>(own);
    }
}

// Bitmaps with ranks, as `descend` reads them.
extern "C" __global__ void __launch_bounds__(THREADS) make_words(
    const u32* __restrict__ marks, const u32* __restrict__ ranks, i64 n_words, const i64* word_offsets, i32 n_series,
    u64* __restrict__ words) {
    const i64 word = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (word >= n_words) return;
    const i64 first = word_offsets[run_of(word_offsets, n_series, word)];
    const u32 before = ranks[word] - __popc(marks[word]) - (first > 0 ? ranks[first - 1] : 0);
    words[word] = static_cast<u64>(before) << 32 | marks[word];
}

// counts[s, d] += cells of series s that first differ from the one before in bit d of keys, the highest being 0.
extern "C" __global__ void __launch_bounds__(THREADS) count_differences(
    const u32* __restrict__ cells, i64 n, const i64* offsets, i32 n_series, u32* counts) {
    const i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const i32 series = run_of(offsets, n_series, i);
    if (i > offsets[series]) atomicAdd(&counts[32 * series + __clz(static_cast<int>(cells[i] ^ cells[i - 1]))], 1u);
}

// The last number of each run.
extern "C" __global__ void __launch_bounds__(THREADS) pick_ends(
    const u32* __restrict__ numbers, const i64* offsets, i32 n_runs, u32* __restrict__ ends) {
    const i32 run = blockIdx.x * THREADS + threadIdx.x;
    if (run < n_runs) ends[run] = numbers[offsets[run + 1] - 1];
}

// The least and the greatest key of each cell, as `count` leaves them.
extern "C" __global__ void __launch_bounds__(THREADS) part_bounds(
    const u64* __restrict__ bounds, i64 n, u32* __restrict__ least, u32* __restrict__ greatest) {
    const i64 cell = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (cell >= n) return;
    least[cell] = ~static_cast<u32>(bounds[cell]);
    greatest[cell] = static_cast<u32>(bounds[cell] >> 32);
}
#else
// `bounds` of a cell: the complement of the least key seen in the lower half, the greatest in the upper; 0 before any.
static __device__ __forceinline__ void add_to_cell(u64* bounds, u64* counts, u64 cell, u32 key, u64 amount) {
    const u64 seen = __ldcg(&bounds[cell]);  // from the L2 cache: an old copy in L1 would make every key look new
    u32* const own = reinterpret_cast<u32*>(&bounds[cell]);
    if (~key > static_cast<u32>(seen)) atomicMax(&own[0], ~key);
    if (key > static_cast<u32>(seen >> 32)) atomicMax(&own[1], key);
    atomicAdd(&counts[cell], amount);
}

// Adds every value to its cell, that of series s with number c being `cell_offsets[s] + c`; `depths` : levels of a series.
//
// A thread of a matrix keeps to itself what it counts of one key, the majority of its values if there is one (Boyer and
// Moore, "MJRTY: a fast majority vote algorithm", 1981): millions of additions to one address would queue.
extern "C" __global__ void __launch_bounds__(THREADS) count(
    SOURCE_PARAMETERS, const i64* weights, const i64* interval_offsets, const u32* lower, const u32* upper,
    const u64* words, const i64* starts, const i32* widths, const i32* depths, const i64* cell_offsets, u64* bounds,
    u64* counts) {
    u32 own_key = 0, votes = 0;
    u64 own_amount = 0;
    i32 own_series = 0;
    const auto add = [&](i32 series, u32 key, u64 amount) {
        const u32 whole = key;
        const u64 cell = cell_offsets[series] + descend(words, starts, widths, series, depths[series], &key);
        add_to_cell(bounds, counts, cell, whole, amount);
    };
    for_each_key(SOURCE_ARGUMENTS, [&](i32 series, i64 row, u32 key) {
        if (!is_wanted(weights, row, interval_offsets, lower, upper, series, key)) return;
        u64 amount = weights ? static_cast<u64>(weights[row]) : 1;
        if (SOURCE == 0) {
            if (key == own_key && own_amount) {
                own_amount += amount;
                ++votes;
                return;
            }
            if (votes) {
                --votes;
            } else {  // this key takes the other's place
                const u32 last_key = own_key;
                const u64 last_amount = own_amount;
                own_key = key, own_amount = amount, own_series = series, votes = 1;
                if (!last_amount) return;
                key = last_key, amount = last_amount;
            }
        }
        add(series, key, amount);
    });
    if (own_amount) add(own_series, own_key, own_amount);
}
#endif
