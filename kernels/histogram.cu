// Histograms of rows of symbols: g and h of every (node, bin), all nodes and features of a level in one launch per width.
//
// Features lie in groups of COLUMNS; of a row, a group's symbols are neighbours. Warps take rows, and add their columns in
// an order in which no two lanes meet in a bank of shared memory: twisted.cuh, or, where positions are rows and columns
// are SKEWED, fewer than 32, skewed.cuh.
//
// A block takes an equal share of all (group, row), however nodes divide it, and clears and hands over 64 KB once per
// node and group that it meets: as much time as thousands of rows take. Sums stay 32 bits wide: rows have 15 bits, so
// that after every 32,768 rows it is enough to hand over the sums that have reached 2^30. Small data's never do, by
// their scale. All are integers, so that no order of blocks can show.
//
// PACKED adds g and h as one word (packed.cuh), half the atomics, and hands over large sums every few thousand rows. The
// halves of shared memory that h has otherwise stay empty: cells as far apart as that need no more instructions.
//
// A block fills a multiprocessor, or half of one (THREADS): where it meets many nodes and groups, another block adds while
// it hands over.
//
// variants: SYMBOL_BYTES=1 COLUMNS=4,8,16,32 SKEWED=0 SMALL=0,1 PACKED=0 THREADS=1024
// variants: SYMBOL_BYTES=1 COLUMNS=4,8,16,32 SKEWED=0 SMALL=0 PACKED=1 THREADS=1024
// variants: SYMBOL_BYTES=2 COLUMNS=1,2,4,8,16,32 SKEWED=0 SMALL=0,1 PACKED=0 THREADS=1024
// variants: SYMBOL_BYTES=1 COLUMNS=32 SKEWED=0 SMALL=0 PACKED=0,1 THREADS=512
// variants: SYMBOL_BYTES=1 COLUMNS=32 SKEWED=20,24,28 BINS=64,128,256 SMALL=0 PACKED=0,1 THREADS=1024
// budget: add_rows registers=64 shared=0
#include "packed.cuh"
#include "pair.cuh"
#include "rounding.cuh"
#include "shares.cuh"

#ifndef THREADS
#define THREADS 1024
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif
#ifndef SKEWED
#define SKEWED 0
#endif
#ifndef PACKED
#define PACKED 0
#endif
#if SKEWED
#include "skewed.cuh"
#else
#include "twisted.cuh"
#endif

constexpr i32 WARPS = THREADS / 32;
constexpr i32 ROWS = 32 / LANES_PER_ROW;  // of a warp at a time
constexpr i32 CHUNK = SETS * ROWS;
constexpr i32 STRIDE = WARPS * CHUNK;             // rows that a block adds at a time
constexpr i32 BINS_AT_ONCE = COPIES > 2 ? 1 : 2;  // of a thread that hands over: more copies take more registers
constexpr i32 MOST_ROWS = PACKED ? PACKED_ROWS / STRIDE * STRIDE : ROWS_UNTIL_SPILL;  // between two spills
static_assert(MOST_ROWS > 0 && MOST_ROWS % STRIDE == 0, "blocks stop for a spill between two strides");

// A group of features, as it comes from the host: five numbers.
struct Group {
    i32 plane;    // place of its rows among those of this width
    i32 first;    // feature in column 0
    i32 n;        // features, at most COLUMNS; columns beyond them hold zeros
    i32 low;      // first bin; not 0 only where a single feature's bins are divided among groups
    i32 symbols;  // bins from there on, at most
};

static __device__ __forceinline__ Group group_of(const i32* groups, i32 place) {
    const i32* of = groups + 5 * place;
    return {of[0], of[1], of[2], of[3], of[4]};
}

#if PACKED
// Adds the sums that are full, or all if these were the last rows, to the histogram of one node, and clears them. Four lanes
// to a feature, one to a cell of both sums.
static __device__ __forceinline__ void hand_over(u32* sums, const Group& group, bool is_last, const i64* slot_offsets,
                                                 u64* out) {
    const i32 column = threadIdx.x / 4 % COLUMNS;
    const bool is_feature = column < group.n;
    const i64 first = is_feature ? slot_offsets[group.first + column] + group.low : 0;
    const i64 bins = is_feature ? slot_offsets[group.first + column + 1] - first : 0;
#pragma unroll BINS_AT_ONCE
    for (i32 bin = threadIdx.x / 4 / COLUMNS * 4 + threadIdx.x % 4; bin < group.symbols; bin += THREADS / COLUMNS) {
        i64 g = 0, h = 0;
        bool enough = false;
#pragma unroll
        for (i32 copy = 0; copy < COPIES; ++copy) {
            if (!has_copy(column, copy)) continue;
            const i32 cell = static_cast<i32>(sums[cell_of(bin, 0, column, copy)]);
            g += g_of(cell);
            h += h_of(cell);
            enough |= is_last ? cell != 0 : is_full(cell);
        }
        if (!enough) continue;
#pragma unroll
        for (i32 copy = 0; copy < COPIES; ++copy)
            if (has_copy(column, copy)) sums[cell_of(bin, 0, column, copy)] = 0;
        if (bin >= bins) continue;
        atomicAdd(out + 2 * (first + bin), static_cast<u64>(g));
        atomicAdd(out + 2 * (first + bin) + 1, static_cast<u64>(h));
    }
}
#else
// Adds the sums that are full, or all if these were the last rows, to the histogram of one node, and clears them. Four lanes to a feature: their cells
// (two bins, g and h) are one 32-byte sector of the histogram.
static __device__ __forceinline__ void hand_over(u32* sums, const Group& group, bool is_last, const i64* slot_offsets,
                                                 u64* out) {
    const i32 least = is_last ? 1 : SPILL_FROM;
    const i32 statistic = threadIdx.x % 2, column = threadIdx.x / 4 % COLUMNS;
    const bool is_feature = column < group.n;
    const i64 first = is_feature ? slot_offsets[group.first + column] + group.low : 0;
    const i64 bins = is_feature ? slot_offsets[group.first + column + 1] - first : 0;
#pragma unroll BINS_AT_ONCE
    for (i32 bin = threadIdx.x / 4 / COLUMNS * 2 + threadIdx.x / 2 % 2; bin < group.symbols; bin += THREADS / 2 / COLUMNS) {
        i64 sum = 0;
        bool enough = false;
#pragma unroll
        for (i32 copy = 0; copy < COPIES; ++copy) {
            if (!has_copy(column, copy)) continue;
            const i32 cell = static_cast<i32>(sums[cell_of(bin, statistic, column, copy)]);
            sum += cell;
            enough |= reaches(cell, least);
        }
        if (!enough) continue;
#pragma unroll
        for (i32 copy = 0; copy < COPIES; ++copy)
            if (has_copy(column, copy)) sums[cell_of(bin, statistic, column, copy)] = 0;
        if (bin < bins) atomicAdd(out + 2 * (first + bin) + statistic, static_cast<u64>(sum));
    }
}
#endif

// `symbols` : planes of rows, `plane_bytes` apart, COLUMNS symbols to a row. `groups` : see Group. `order` : the row at
// each position, or null where positions are rows. `pairs` : by position. `out` : shape (nodes, slots, 2). Any grid: blocks
// share the work, at least `least_tiles` each. Dynamic shared memory: `shared_words`, the cells of the largest group.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) add_rows(
    const u8* symbols, i64 plane_bytes, const i32* groups, i32 n_groups, i32 shared_words, i32 least_tiles,
    const i64* slot_offsets, i32 n_features, const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows,
    const u32* order, const Pair* pairs, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    Share share(starts, n, n_groups, least_tiles);
    if (share.at >= share.last) return;
    for (i32 i = threadIdx.x; i < shared_words; i += THREADS) sums[i] = 0;

    const i32 warp = threadIdx.x / 32, place = threadIdx.x % 32 / LANES_PER_ROW, part = threadIdx.x % LANES_PER_ROW;
    const Lane lane(place, part);
    const bool gathers = order != nullptr;
    u8* const cells = reinterpret_cast<u8*>(sums);
    while (share.at < share.last) {
        const Piece piece = share.next(bounds, nodes, starts, n, tile_rows);
        const Group group = group_of(groups, piece.group);
        const i32 n_rows = piece.n_rows;
        const u8* own = symbols + group.plane * plane_bytes + part * (COLUMNS / LANES_PER_ROW * SYMBOL_BYTES);
        u32 row = static_cast<u32>(piece.begin) + warp * CHUNK + place;
        const u32* own_order = gathers ? order + row : nullptr;
        const Pair* own_pairs = pairs + row;
        i32 n_left = n_rows - warp * CHUNK - place;  // of the lane, a chunk's stride apart

        // Three chunks are in flight: one is added while the next one's symbols and the places of the one after it are read.
        Words next[SETS] = {};
        Pair next_pair[SETS];
        u32 rows[SETS] = {};
        auto find_rows = [&](i32 ahead) {
#pragma unroll
            for (i32 set = 0; set < SETS; ++set) {
                rows[set] = row + ahead + set * ROWS;
                if (gathers && ahead + set * ROWS < n_left) rows[set] = own_order[ahead + set * ROWS];
            }
        };
        auto load_rows = [&](i32 ahead) {  // those beyond the end add zeros to the cells of the ones before
#pragma unroll
            for (i32 set = 0; set < SETS; ++set) {
                next_pair[set] = 0;
                if (ahead + set * ROWS >= n_left) continue;
                next_pair[set] = own_pairs[ahead + set * ROWS];
                next[set] = load_words(own + static_cast<u64>(rows[set]) * (COLUMNS * SYMBOL_BYTES));
            }
        };
        find_rows(0);
        load_rows(0);
        find_rows(STRIDE);
        for (i32 begin = 0; begin < n_rows;) {
            const i32 end = n_rows - begin < MOST_ROWS ? n_rows : begin + MOST_ROWS;
            __syncthreads();  // here, where the first rows are already being read, all cells are clear
#pragma unroll 1
            for (; begin < end; begin += STRIDE) {
                Words turned[SETS];
                u32 g[SETS], h[SETS];
#pragma unroll
                for (i32 set = 0; set < SETS; ++set) {
                    turned[set] = lane.turn(next[set]);
                    g[set] = static_cast<u32>(PACKED ? static_cast<i32>(next_pair[set]) : g_of(next_pair[set]));
                    h[set] = static_cast<u32>(h_of(next_pair[set]));
                }
                load_rows(STRIDE);
                find_rows(2 * STRIDE);
                row += STRIDE;
                own_order += STRIDE;
                own_pairs += STRIDE;
                n_left -= STRIDE;
#pragma unroll
                for (i32 step = 0; step < N_STEPS; ++step) {
#pragma unroll
                    for (i32 set = 0; set < SETS; ++set) {
                        u32 offset = lane.offset(turned[set], step);
                        if constexpr (COLUMNS == 1) {
                            offset -= group.low * BIN_BYTES;
                            if (offset >= static_cast<u32>(group.symbols * BIN_BYTES)) continue;
                        }
                        atomicAdd(reinterpret_cast<u32*>(cells + offset), g[set]);
                        if (!PACKED) atomicAdd(reinterpret_cast<u32*>(cells + offset + BYTES_TO_H), h[set]);
                    }
                }
            }
            __syncthreads();
            hand_over(sums, group, begin >= n_rows, slot_offsets,
                      out + 2 * piece.segment * slot_offsets[n_features]);
        }
    }
}
