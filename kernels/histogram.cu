// Histograms of rows of symbols: g and h of every (node, bin), all nodes and features of a level in one launch per width.
//
// Features lie in groups of COLUMNS; of a row, a group's symbols are neighbours. Warps take rows, and add their columns in
// an order in which no two lanes meet in a bank of shared memory: twisted.cuh, or, where positions are rows and columns
// are SKEWED, fewer than 32, skewed.cuh; of a copy that is TURNED, where there is one.
//
// A block takes an equal share of all (group, row), however nodes divide it, and hands over 64 KB once per node and group
// that it meets: as much time as thousands of rows take. What it has all rows of it stores, zeros included; what it shares
// with other blocks it adds to zeros (histogram_zeros.cu). Sums stay 32 bits wide: rows have 15 bits, so that 65,536 of them
// fit, and after every further 32,768 if those sums that have reached 2^30 are handed over. Small data's never do, by their
// scale. All are integers, so that no order of blocks can show.
//
// A block fills a multiprocessor, or half of one (THREADS): where it meets many nodes and groups, another block adds while
// it hands over.
//
// variants: SYMBOL_BYTES=1 COLUMNS=4,8,16,32 SKEWED=0 SMALL=0,1 THREADS=1024
// variants: SYMBOL_BYTES=2 COLUMNS=1,2,4,8,16,32 SKEWED=0 SMALL=0,1 THREADS=1024
// variants: SYMBOL_BYTES=1 COLUMNS=32 SKEWED=0 SMALL=0 THREADS=512
// variants: SYMBOL_BYTES=1 COLUMNS=32 SKEWED=20,24,28 TURNED=0,1 BINS=64,128,256 SMALL=0 THREADS=1024
// usual: SYMBOL_BYTES=1 COLUMNS=32 SKEWED=0 SMALL=0 THREADS=512,1024
// budget: build registers=64 shared=0
#include "feature_group.cuh"
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
#ifndef TURNED
#define TURNED 0
#endif
#if TURNED
#include "turned.cuh"
#elif SKEWED
#include "skewed_rows.cuh"
#else
#include "twisted.cuh"
#endif

constexpr i32 WARPS = THREADS / 32;
constexpr i32 ROWS = 32 / LANES_PER_ROW;  // of a warp at a time
constexpr i32 CHUNK = SETS * ROWS;
constexpr i32 STRIDE = WARPS * CHUNK;        // rows that a block adds at a time
static_assert(ROWS_UNTIL_SPILL % STRIDE == 0, "blocks stop for a spill between two strides");
static_assert(2 * ROWS_UNTIL_SPILL <= 0x7FFFFFFF / 0x7FFF, "sums of so many rows fit");
constexpr i32 PLACES = THREADS / COLUMNS;    // threads of a column that hand over
constexpr i32 COPIES_AT_ONCE = SKEWED ? COPIES : 1;
constexpr i32 QUAD = COLUMNS < 4 ? 1 : 4;    // lanes that exchange their columns' sums

// The sum of a cell's copies: they may wrap, it does not. Lanes of a column begin with different copies: different banks.
static __device__ __forceinline__ i32 sum_of(const u32* sums, i32 bin, i32 statistic, i32 column) {
    u32 sum = 0;
#pragma unroll COPIES_AT_ONCE
    for (i32 k = 0; k < COPIES; ++k) {
        const i32 copy = (static_cast<i32>(threadIdx.x) % 32 / COLUMNS + k) % COPIES;
        if (!has_copy(column, copy)) continue;
        sum += sums[cell_of(bin, statistic, column, copy)];
    }
    return static_cast<i32>(sum);
}

static __device__ __forceinline__ void clear(u32* sums, i32 bin, i32 statistic, i32 column) {
#pragma unroll COPIES_AT_ONCE
    for (i32 copy = 0; copy < COPIES; ++copy)
        if (has_copy(column, copy)) sums[cell_of(bin, statistic, column, copy)] = 0;
}

// Sums that have reached 2^30 are added to the histogram, or all stored, and begin anew. In between rows: what is fast here
// is to leave them their registers.
static __device__ __forceinline__ void spill(u32* sums, const Group& group, bool stores, const i64* slot_offsets, u64* out) {
    const i32 column = threadIdx.x % COLUMNS;
#pragma unroll 1
    for (i32 i = threadIdx.x / COLUMNS; i < 2 * group.symbols; i += PLACES) {
        const i32 sum = sum_of(sums, i / 2, i % 2, column);
        if (!stores && !reaches(sum, SPILL_FROM)) continue;
        clear(sums, i / 2, i % 2, column);
        if (column >= group.n) continue;
        const i64* offset = slot_offsets + group.first + column;
        u64* to = out + 2 * (*offset + group.low) + i;
        if (to >= out + 2 * offset[1]) continue;
        if (stores) *to = static_cast<u64>(static_cast<i64>(sum));
        else atomicAdd(to, static_cast<u64>(static_cast<i64>(sum)));
    }
}

// Of value i of lane j of four, which is the one of row i ^ j, value j of lane i's column.
static __device__ __forceinline__ void transpose(i32 (&values)[4], i32 place) {
#pragma unroll
    for (i32 i = 1; i < 4; ++i) values[i] = __shfl_xor_sync(ALL_LANES, values[i], i);
#pragma unroll
    for (i32 step = 1; step < 4; step <<= 1) {
        const bool swap = (place & step) != 0;
#pragma unroll
        for (i32 k = 0; k < 4; ++k) {
            if (k & step) continue;
            const i32 low = values[k], high = values[k | step];
            values[k] = swap ? high : low;
            values[k | step] = swap ? low : high;
        }
    }
}

// Hands over all sums, and `clears` them where more are to come.
//
// Lanes read different columns, which are banks, and exchange what they have read, for device memory likes neighbours: of
// a column, four lanes store four bins, 64 bytes, or add two, a sector. Blocks begin at different bins: to add to one place
// at the same time would take turns.
template <bool STORES>
static __device__ __forceinline__ void hand_over(u32* sums, const Group& group, bool clears,
                                                 const i64* slot_offsets, u64* out) {
    const i32 column = threadIdx.x % COLUMNS, own_place = threadIdx.x / COLUMNS;
    if constexpr (QUAD == 1) {  // a number of the histogram to a lane
        const bool is_feature = column < group.n;
        const i64 first = is_feature ? slot_offsets[group.first + column] + group.low : 0;
        const i64 bins = is_feature ? slot_offsets[group.first + column + 1] - first : 0;
        const i32 n = 2 * group.symbols, ahead = static_cast<i32>(static_cast<i64>(n) * blockIdx.x / gridDim.x) & -32;
        for (i32 i = own_place; i < n; i += PLACES) {
            const i32 number = i + ahead < n ? i + ahead : i + ahead - n;
            const i32 value = sum_of(sums, number / 2, number % 2, column);
            if (clears) clear(sums, number / 2, number % 2, column);
            if (number >= 2 * bins || (!STORES && value == 0)) continue;
            const u64 sum = static_cast<u64>(static_cast<i64>(value));
            if constexpr (STORES) out[2 * first + number] = sum;
            else atomicAdd(out + 2 * first + number, sum);
        }
        return;
    }
    const i32 place = column % QUAD;
    const i64 group_first = slot_offsets[group.first];
    i32 firsts[QUAD + 1];  // slots of the four lanes' columns
#pragma unroll
    for (i32 k = 0; k <= QUAD; ++k)
        firsts[k] = static_cast<i32>(slot_offsets[group.first + min(column - place + k, group.n)] - group_first);
    out += 2 * group_first;
    const i32 n = ((group.symbols + 3) / 4 + PLACES - 1) / PLACES * PLACES;  // fours of bins; the same for all lanes
    const i32 ahead = static_cast<i32>(static_cast<u32>(n) * blockIdx.x / gridDim.x);
#pragma unroll 1
    for (i32 i = own_place; i < n; i += PLACES) {
        const i32 bin = 4 * (i + ahead < n ? i + ahead : i + ahead - n);
        i32 values[2][4];
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
#pragma unroll
            for (i32 k = 0; k < 4; ++k) {
                const i32 row = k ^ place;
                const i32 from = bin + (STORES ? row : 2 * half + row / 2), statistic = STORES ? half : row % 2;
                values[half][k] = from < group.symbols ? sum_of(sums, from, statistic, column) : 0;
                if (clears && from < group.symbols) clear(sums, from, statistic, column);
            }
        }
        transpose(values[0], place);
        transpose(values[1], place);
#pragma unroll
        for (i32 k = 0; k < 4; ++k) {
            const i32 bins = firsts[k + 1] - firsts[k];
            if constexpr (STORES) {
                const u64 g = static_cast<u64>(static_cast<i64>(values[0][k]));
                const u64 h = static_cast<u64>(static_cast<i64>(values[1][k]));
                if (bin + place < bins) reinterpret_cast<ulonglong2*>(out)[firsts[k] + bin + place] = {g, h};
            } else {
#pragma unroll
                for (i32 half = 0; half < 2; ++half) {
                    const i32 to = bin + 2 * half + place / 2, value = values[half][k];
                    if (to < bins && value != 0)
                        atomicAdd(out + 2 * (firsts[k] + to) + place % 2, static_cast<u64>(static_cast<i64>(value)));
                }
            }
        }
    }
}

// Histograms of the nodes' rows into `out`, shape (nodes, slots, 2), of which zero_divided has cleared some; or added to what
// is there (`adds`). A node of -1 has no histogram: its place stays as it is.
//
// `symbols` : planes of `n_plane_rows` rows, `plane_bytes` apart, COLUMNS symbols to a row. `groups` : see Group. `order` :
// the row at each position, which begins again after every `n_order`; or null where positions are rows, of several trees all
// rows again and again: their blocks are then at the same rows at about the same time, and one reads for all what the L2 cache keeps. `pairs` : by position. Any
// grid: blocks share the work as shares.cuh has it. Dynamic shared memory: the cells of the largest group, `shared_quads` of four.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) build(
    const u8* symbols, i64 plane_bytes, i64 n_plane_rows, const i32* groups, i32 n_groups, i32 shared_quads, i32 least_tiles,
    const i64* slot_offsets, i32 n_features, const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows,
    const u32* order, u32 n_order, const Pair* pairs, i32 adds, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    Share share(starts, n, n_groups, least_tiles);
    if (share.at >= share.last) return;
    const i32 warp = threadIdx.x / 32, place = place_of(threadIdx.x % 32);
    const Lane lane(threadIdx.x % 32);
    const bool gathers = !SKEWED && order != nullptr;
    u8* const cells = reinterpret_cast<u8*>(sums);
    bool is_clear = false;
    while (share.at < share.last) {
        const Piece piece = share.next(bounds, nodes, starts, tile_rows);
        const Group group = group_of(groups, piece.group);
        const u32 first = static_cast<u32>(piece.begin) % static_cast<u32>(n_plane_rows);
        const i32 n_before = TURNED ? first % ROWS : 0;  // rows of the tile that a piece begins in
        const i32 n_rows = piece.n_rows + n_before;
        const u8* own = symbols + group.plane * plane_bytes + lane.shift(threadIdx.x % 32);
        const u32 position = static_cast<u32>(piece.begin) - n_before + warp * CHUNK + place;
        u32 row = first - n_before + warp * CHUNK + place;
        if (TURNED) own += static_cast<u64>(row) * N_STEPS;
        const u32* own_order = gathers ? order + position % n_order : nullptr;
        const Pair* own_pairs = pairs + position;
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
                const i32 left = n_left - ahead - set * ROWS;
                const bool is_inside = left > 0 && (!TURNED || ahead || left <= piece.n_rows);
                next_pair[set] = is_inside ? own_pairs[ahead + set * ROWS] : 0;
                lane.load(next[set], own, TURNED ? ahead + set * ROWS : rows[set], left);
            }
        };
        find_rows(0);
        load_rows(0);
        find_rows(STRIDE);
        if (!is_clear) {
            uint4* quads = reinterpret_cast<uint4*>(sums);
            for (i32 i = threadIdx.x; i < shared_quads; i += THREADS) quads[i] = {0, 0, 0, 0};
            is_clear = true;
        }
        bool stores = piece.is_whole && !adds;  // once; then what it has stored is added to
        auto histogram = [&] { return out + 2 * share.segment * slot_offsets[n_features]; };
        for (i32 begin = 0, most = 2 * ROWS_UNTIL_SPILL;; most = ROWS_UNTIL_SPILL) {
            const i32 end = n_rows - begin < most ? n_rows : begin + most;
            __syncthreads();  // here, where the first rows are already being read, all cells are clear
#pragma unroll 1
            for (; begin < end; begin += STRIDE) {
                if (n_left + place <= 0) continue;  // the warp has no rows left
                Words turned[SETS];
                u32 g[SETS], h[SETS];
#pragma unroll
                for (i32 set = 0; set < SETS; ++set) {
                    turned[set] = lane.turn(next[set]);
                    g[set] = static_cast<u32>(g_of(next_pair[set]));
                    h[set] = static_cast<u32>(h_of(next_pair[set]));
                }
                load_rows(STRIDE);
                find_rows(2 * STRIDE);
#if SKEWED && !TURNED
                lane.prefetch(own, row + AHEAD * STRIDE, n_left - AHEAD * STRIDE);
#endif
                if (TURNED) own += STRIDE * N_STEPS;
                else row += STRIDE;
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
                        atomicAdd(reinterpret_cast<u32*>(cells + offset + BYTES_TO_H), h[set]);
                    }
                }
            }
            __syncthreads();
            if (begin >= n_rows) break;
            spill(sums, group_of(groups, piece.group), stores, slot_offsets, histogram());
            stores = false;
        }
        const bool clears = share.at < share.last;
        const Group same = group_of(groups, piece.group);  // again: not to keep it in registers
        if (stores) hand_over<true>(sums, same, clears, slot_offsets, histogram());
        else hand_over<false>(sums, same, clears, slot_offsets, histogram());
    }
}
