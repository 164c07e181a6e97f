// Histograms of CSR rows, whose entries are histogram slots: g and h of every (node, slot), all nodes of a level in one
// launch. Three ways, the first of which the data decide, the other two by the number of nodes and of their rows:
//
// `add_shared`   all slots fit shared memory: LANES lanes share a row and take its entries in turn.
// `add_columns`  few cells and many entries: a copy of the entries sorted by feature is read in full, block by block of
//                slots that fit shared memory for all nodes together. An entry finds its row's node and pair in a table
//                (`place_rows`). A warp's lanes are far apart in that order, or all would meet in the few bins of a feature.
// `add_global`   many cells, or few rows: entries seldom meet, and go straight to device memory.
//
// Sums in shared memory are of 32 bits, as in histogram.cu.
//
// variants: SMALL=0,1
// budget: add_shared registers=64 shared=0
// budget: place_rows registers=40 shared=0
// budget: add_columns registers=64 shared=0
// budget: add_global registers=48 shared=0
#include "rounding.cuh"
#include "row_state.cuh"
#include "shares.cuh"

#ifndef THREADS
#define THREADS 1024
#endif
#ifndef LANES
#define LANES 8
#endif

constexpr i32 AT_ONCE = 8;  // entries of a thread: a sector of rows, and one of slots

// Slots that a block adds up for all nodes, and the entries that may have them.
struct SlotGroup {
    i64 first;
    i64 n;
    i64 begin;  // entries
    i64 end;
};

// Adds sums of at least `least` to `out` and clears them.
static __device__ __forceinline__ void hand_over(u32* sums, i32 n, i32 least, u64* out) {
    for (i32 i = threadIdx.x; i < n; i += THREADS) {
        const i32 sum = static_cast<i32>(sums[i]);
        if (!reaches(sum, least)) continue;
        sums[i] = 0;
        atomicAdd(out + i, static_cast<u64>(static_cast<i64>(sum)));
    }
}

// `out` : shape (nodes, slots, 2). `order` : the row at each position, which begins again after every `n_order`; or null
// where positions are rows, once and again for each of several trees. `pairs` : by position. Any grid. Dynamic shared memory: 8 bytes x slots.
extern "C" __global__ void __launch_bounds__(THREADS, 1) add_shared(
    const i64* indptr, const i32* slots, i64 n_rows, i32 n_slots, i32 least_tiles, const i64* bounds, const i32* nodes,
    const i32* starts, i32 n, i32 tile_rows, const u32* order, i64 n_order, const Pair* pairs, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    Share share(starts, n, 1, least_tiles);
    if (share.at >= share.last) return;
    for (i32 i = threadIdx.x; i < 2 * n_slots; i += THREADS) sums[i] = 0;
    __syncthreads();
    while (share.at < share.last) {
        const Piece piece = share.next(bounds, nodes, starts, tile_rows);
        const i64 first = piece.begin % (order ? n_order : n_rows);
        for (i32 begin = 0; begin < piece.n_rows;) {
            const i32 end = piece.n_rows - begin < ROWS_UNTIL_SPILL ? piece.n_rows : begin + ROWS_UNTIL_SPILL;
            for (i32 i = begin + threadIdx.x / LANES; i < end; i += THREADS / LANES) {
                const i64 position = piece.begin + i, row = order ? order[first + i] : first + i;
                const Pair pair = pairs[position];
                const u32 g = static_cast<u32>(g_of(pair)), h = static_cast<u32>(h_of(pair));
                const i64 stop = indptr[row + 1];
                for (i64 entry = indptr[row] + threadIdx.x % LANES; entry < stop; entry += LANES) {
                    atomicAdd(sums + 2 * slots[entry], g);
                    atomicAdd(sums + 2 * slots[entry] + 1, h);
                }
            }
            begin = end;
            __syncthreads();
            hand_over(sums, 2 * n_slots, begin < piece.n_rows ? SPILL_FROM : 1,
                      out + 2 * static_cast<i64>(piece.segment) * n_slots);
            __syncthreads();
        }
    }
}

// The nodes' rows, in tiles: many enough that `add_columns` is the better way?
static __device__ __forceinline__ bool are_many(const i32* starts, i32 n, i32 tile_rows, i64 many_rows) {
    return static_cast<i64>(starts[n]) * tile_rows >= many_rows;
}

// `states` : by row; -1 all over before. `n_rows` : of the chunk; nodes are of one tree, or a row would need several states.
// Grid: tiles.
extern "C" __global__ void __launch_bounds__(THREADS) place_rows(
    const i64* bounds, const i32* nodes, const i32* starts, i32 n, i32 tile_rows, i64 many_rows, i64 n_rows,
    const u32* order, const Pair* pairs, RowState* states) {
    if (!are_many(starts, n, tile_rows, many_rows)) return;
    const Tile tile = find_tile(blockIdx.x, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += THREADS)
        states[order ? order[i] : i % n_rows] = {pairs[i], static_cast<Pair>(tile.segment)};
}

// Of AT_ONCE entries from `at` on, those within [begin, end) whose slots are among `n_own` from `low` on and whose rows are in
// one of the nodes; `sums` : shape (nodes, n_own, 2).
static __device__ __forceinline__ void add_entries(const u32* entry_rows, const i32* entry_slots, const RowState* states,
                                                   i64 at, i64 begin, i64 end, u32 low, u32 n_own, u32* sums) {
#pragma unroll 1
    for (i64 four = at; four < at + AT_ONCE; four += 4) {
        const uint4 in = *reinterpret_cast<const uint4*>(entry_rows + four);
        const int4 of = *reinterpret_cast<const int4*>(entry_slots + four);
        const u32 rows[4] = {in.x, in.y, in.z, in.w};
        const u32 own[4] = {of.x - low, of.y - low, of.z - low, of.w - low};
        RowState found[4];
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            found[i].segment = -1;
            if (four + i >= begin && four + i < end && own[i] < n_own) found[i] = states[rows[i]];
        }
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            if (found[i].segment < 0) continue;
            u32* cell = sums + 2 * (static_cast<u32>(found[i].segment) * n_own + own[i]);
            atomicAdd(cell, static_cast<u32>(g_of(found[i].pair)));
            atomicAdd(cell + 1, static_cast<u32>(h_of(found[i].pair)));
        }
    }
}

// `entry_rows`, `entry_slots` : sorted by feature, then by row; room for a multiple of AT_ONCE. `groups` : int64, shape
// (groups, 4), see SlotGroup. `before` : entries of the groups before, and of all. `spills` : whether a slot may have more
// than 65,536 rows. Any grid. Dynamic shared memory: 8 bytes x nodes x a group's slots.
extern "C" __global__ void __launch_bounds__(THREADS, 1) add_columns(
    const u32* entry_rows, const i32* entry_slots, const SlotGroup* groups, const i64* before, i32 n_groups,
    i32 shared_words, i32 spills, i64 n_slots, const RowState* states, const i32* starts, i32 n, i32 tile_rows,
    i64 many_rows, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    if (!are_many(starts, n, tile_rows, many_rows)) return;
    const i64 all = before[n_groups], last = all * (blockIdx.x + 1) / gridDim.x;
    i64 at = all * blockIdx.x / gridDim.x;
    for (i32 i = threadIdx.x; i < shared_words; i += THREADS) sums[i] = 0;
    __syncthreads();
    const i64 stream = threadIdx.x % 32 * (THREADS / 32) + threadIdx.x / 32;  // lanes far apart
    i32 number = 0;
    while (at < last) {
        while (before[number + 1] <= at) ++number;
        const SlotGroup group = groups[number];
        const i64 begin = group.begin + at - before[number];
        const i64 end = last < before[number + 1] ? group.begin + last - before[number] : group.end;
        at += end - begin;
        const i64 first = begin / AT_ONCE, each = ((end + AT_ONCE - 1) / AT_ONCE - first + THREADS - 1) / THREADS;
        const u32 low = static_cast<u32>(group.first), n_own = static_cast<u32>(group.n);
        for (i64 k = 0; k < each;) {
            const i64 stop = spills && k + ROWS_UNTIL_SPILL / THREADS / AT_ONCE < each
                ? k + ROWS_UNTIL_SPILL / THREADS / AT_ONCE : each;
            for (; k < stop; ++k) {
                const i64 entry = (first + stream * each + k) * AT_ONCE;
                if (entry < end) add_entries(entry_rows, entry_slots, states, entry, begin, end, low, n_own, sums);
            }
            __syncthreads();
            for (i32 segment = 0; segment < n; ++segment)
                hand_over(sums + 2 * segment * n_own, static_cast<i32>(2 * n_own), k < each ? SPILL_FROM : 1,
                          out + 2 * (segment * n_slots + group.first));
            __syncthreads();
        }
    }
}

// Grid: tiles.
extern "C" __global__ void __launch_bounds__(THREADS) add_global(
    const i64* indptr, const i32* slots, i64 n_rows, i64 n_slots, const i64* bounds, const i32* nodes,
    const i32* starts, i32 n, i32 tile_rows, i64 many_rows, const u32* order, i64 n_order, const Pair* pairs,
    u64* out) {
    if (are_many(starts, n, tile_rows, many_rows)) return;
    const Tile tile = find_tile(blockIdx.x, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    u64* own = out + 2 * tile.segment * n_slots;
    const i64 ahead = tile.begin - tile.begin % (order ? n_order : n_rows);
    for (i64 i = tile.begin + threadIdx.x / LANES; i < tile.end; i += THREADS / LANES) {
        const i64 row = order ? order[i - ahead] : i - ahead, end = indptr[row + 1];
        const Pair pair = pairs[i];
        for (i64 entry = indptr[row] + threadIdx.x % LANES; entry < end; entry += LANES) {
            atomicAdd(own + 2 * static_cast<i64>(slots[entry]), static_cast<u64>(static_cast<i64>(g_of(pair))));
            atomicAdd(own + 2 * static_cast<i64>(slots[entry]) + 1, static_cast<u64>(h_of(pair)));
        }
    }
}
