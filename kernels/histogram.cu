// Histograms of rows of symbols: g and h of every (node, bin), all nodes and features of a level in one launch per width.
//
// A warp takes 32 rows of a tile (tiles.cuh), a lane a row, and one group of COLUMNS features. Shared memory holds one
// 32-bit sum per (symbol, statistic, column), so that a column is a memory bank where COLUMNS is 32. At step j lane l adds
// its row's symbol of column l ^ j:
//
//            step 0   step 1   step 2                no two lanes ever share a bank, whatever the data, which native
//   lane 0   column 0 column 1 column 2              32-bit atomics reward with the rate of plain stores; rows can be
//   lane 1   column 1 column 0 column 3              gathered in any order, since nothing but this order of steps is
//   lane 2   column 2 column 3 column 0              skewed.
//
// Sums of TILE_ROWS <= 65,536 rows of 15 bits fit 32 bits; those of small data do by their scale. A block adds its sums to
// the int64 histograms in device memory with 64-bit atomics: integers, so that no order of blocks can show.
//
// variants: SYMBOL_BYTES=1 COLUMNS=4,8,16,32 SMALL=0,1
// variants: SYMBOL_BYTES=2 COLUMNS=1,2,4,8,16,32 SMALL=0,1
// budget: add_rows registers=64 shared=0
// budget: add_wide registers=40 shared=0
#include "pair.cuh"
#include "rounding.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 512
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif
#define PER_WORD (4 / SYMBOL_BYTES)                // symbols in a word
#define WORDS ((COLUMNS + PER_WORD - 1) / PER_WORD)  // words of a row that a lane holds
#define SYMBOL_MASK ((1u << 8 * SYMBOL_BYTES) - 1u)

// A group of features, as it comes from the host: three numbers.
struct Group {
    i32 first;    // feature in column 0, a multiple of COLUMNS
    i32 n;        // features, at most COLUMNS; columns beyond them hold symbols of padding
    i32 symbols;  // most symbols of a feature
};

static __device__ __forceinline__ Group group_of(const i32* groups, i32 place) {
    return {groups[3 * place], groups[3 * place + 1], groups[3 * place + 2]};
}

#if COLUMNS * SYMBOL_BYTES >= 16
static __device__ __forceinline__ void load_words(const u8* row, u32 (&words)[WORDS]) {
    const uint4* from = reinterpret_cast<const uint4*>(row);
#pragma unroll
    for (i32 k = 0; k < WORDS / 4; ++k) {
        const uint4 four = from[k];
        words[4 * k] = four.x;
        words[4 * k + 1] = four.y;
        words[4 * k + 2] = four.z;
        words[4 * k + 3] = four.w;
    }
}
#elif COLUMNS * SYMBOL_BYTES >= 4
static __device__ __forceinline__ void load_words(const u8* row, u32 (&words)[WORDS]) {
#pragma unroll
    for (i32 k = 0; k < WORDS; ++k) words[k] = reinterpret_cast<const u32*>(row)[k];
}
#else  // less than a word: one or two narrow features
static __device__ __forceinline__ void load_words(const u8* row, u32 (&words)[WORDS]) {
    words[0] = COLUMNS * SYMBOL_BYTES == 2 ? *reinterpret_cast<const u16*>(row) : *row;
}
#endif

// Words in the order in which a lane needs them: word k becomes word k ^ (lane / PER_WORD).
static __device__ __forceinline__ void rotate_words(u32 (&words)[WORDS], i32 lane) {
#pragma unroll
    for (i32 step = 1; step < WORDS; step <<= 1) {
        const bool swap = (lane / PER_WORD & step) != 0;
#pragma unroll
        for (i32 k = 0; k < WORDS; ++k) {
            if (k & step) continue;
            const u32 low = words[k], high = words[k | step];
            words[k] = swap ? high : low;
            words[k | step] = swap ? low : high;
        }
    }
}

// `out` : shape (nodes, slots, 2), zeros. Blocks: tiles x groups, the groups of a tile
// side by side. Dynamic shared memory: 8 bytes x COLUMNS x the
// largest group's symbols. `row_bytes` between rows; `slot_offsets` says where features lie in a histogram.
extern "C" __global__ void __launch_bounds__(THREADS, 2) add_rows(
    const u8* symbols, i64 row_bytes, const i32* groups, i32 n_groups, const i64* slot_offsets, i32 n_features, const i64* bounds,
    const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order, const Pair* pairs, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    const Tile tile = find_tile(blockIdx.x / n_groups, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    const Group group = group_of(groups, blockIdx.x % n_groups);
    const i32 cells = group.symbols * 2 * COLUMNS;
    for (i32 i = threadIdx.x; i < cells; i += THREADS) sums[i] = 0;
    __syncthreads();

    const i32 lane = threadIdx.x % 32;
    const u8* column = symbols + (i64)group.first * SYMBOL_BYTES;
    i32 shifts[PER_WORD];
#pragma unroll
    for (i32 k = 0; k < PER_WORD; ++k) shifts[k] = 8 * SYMBOL_BYTES * ((k ^ lane) % PER_WORD % COLUMNS);
    // Three rows are in flight: one is added while the next one's symbols and the place of the one after it are read.
    i64 i = tile.begin + threadIdx.x;
    u32 next[WORDS];
    Pair pair = 0;
    u32 row = 0;
    if (i < tile.end) {
        pair = pairs[i];
        load_words(column + order[i] * row_bytes, next);
        if (i + THREADS < tile.end) row = order[i + THREADS];
    }
    for (; i < tile.end; i += THREADS) {
        u32 words[WORDS];
#pragma unroll
        for (i32 k = 0; k < WORDS; ++k) words[k] = next[k];
        const u32 g = (u32)g_of(pair), h = (u32)h_of(pair);
        if (i + THREADS < tile.end) {
            pair = pairs[i + THREADS];
            load_words(column + row * row_bytes, next);
            if (i + 2 * THREADS < tile.end) row = order[i + 2 * THREADS];
        }
        rotate_words(words, lane);
#pragma unroll
        for (i32 j = 0; j < COLUMNS; ++j) {
            const u32 symbol = words[j / PER_WORD] >> shifts[j % PER_WORD] & SYMBOL_MASK;
            u32* cell = sums + symbol * (2 * COLUMNS) + ((lane ^ j) & (COLUMNS - 1));
            atomicAdd(cell, g);
            atomicAdd(cell + COLUMNS, h);
        }
    }
    __syncthreads();

    // Four lanes to a feature: their cells (two bins, g and h) are one 32-byte sector of the histogram.
    const i64 n_slots = slot_offsets[n_features];
    const i32 statistic = threadIdx.x % 2, low_bin = threadIdx.x / 2 % 2;
    const i32 quads = (group.symbols + 1) / 2 * group.n;
    for (i32 quad = threadIdx.x / 4; quad < quads; quad += THREADS / 4) {
        const i32 feature = quad % group.n, bin = quad / group.n * 2 + low_bin;
        const i64 slot = slot_offsets[group.first + feature] + bin;
        if (slot >= slot_offsets[group.first + feature + 1]) continue;
        const i32 sum = (i32)sums[bin * (2 * COLUMNS) + statistic * COLUMNS + feature];
        if (sum) atomicAdd(out + 2 * (tile.segment * n_slots + slot) + statistic, (u64)(i64)sum);
    }
}

// A feature whose bins fit no shared memory, straight into device memory: so many bins seldom meet.
extern "C" __global__ void __launch_bounds__(THREADS) add_wide(
    const u8* symbols, i64 row_bytes, const i32* groups, i32 n_groups, const i64* slot_offsets, i32 n_features, const i64* bounds,
    const i32* nodes, const i32* starts, i32 n, i32 tile_rows, const u32* order, const Pair* pairs, u64* out) {
    const Tile tile = find_tile(blockIdx.x / n_groups, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    const i32 feature = group_of(groups, blockIdx.x % n_groups).first;
    u64* own = out + 2 * (tile.segment * slot_offsets[n_features] + slot_offsets[feature]);
    for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += THREADS) {
        const u8* at = symbols + order[i] * row_bytes + (i64)feature * SYMBOL_BYTES;
        const u32 symbol = SYMBOL_BYTES == 1 ? *at : *reinterpret_cast<const u16*>(at);
        const Pair pair = pairs[i];
        atomicAdd(own + 2 * symbol, (u64)(i64)g_of(pair));
        atomicAdd(own + 2 * symbol + 1, (u64)h_of(pair));
    }
}
