// Histograms of CSR rows, whose entries are histogram slots: g and h of every (node, slot), all nodes of a level in one
// launch.
//
// LANES lanes share a row and take its entries in turn. Where all slots fit shared memory a block adds there first, with
// native 32-bit atomics, sums that TILE_ROWS <= 65,536 rows of 15 bits cannot overflow; otherwise entries are spread over
// so many slots that they seldom meet, and go straight to device memory.
//
// variants: SMALL=0,1
// budget: add_shared registers=40 shared=0
// budget: add_global registers=40 shared=0
#include "pair.cuh"
#include "rounding.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 512
#endif
#ifndef LANES
#define LANES 8
#endif

// `out` : shape (nodes, slots, 2), zeros. Grid: (tiles,). Dynamic shared memory: 8 bytes x slots.
extern "C" __global__ void __launch_bounds__(THREADS) add_shared(
    const i64* indptr, const i32* slots, i32 n_slots, const i64* bounds, const i32* nodes, const i32* starts, i32 n,
    i32 tile_rows, const u32* order, const Pair* pairs, u64* out) {
    DYNAMIC_SHARED(u32, sums);
    const Tile tile = find_tile(blockIdx.x, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    for (i32 i = threadIdx.x; i < 2 * n_slots; i += THREADS) sums[i] = 0;
    __syncthreads();
    for (i64 i = tile.begin + threadIdx.x / LANES; i < tile.end; i += THREADS / LANES) {
        const Pair pair = pairs[i];
        const u32 row = order[i], g = (u32)g_of(pair), h = (u32)h_of(pair);
        const i64 end = indptr[row + 1ll];
        for (i64 entry = indptr[row] + threadIdx.x % LANES; entry < end; entry += LANES) {
            atomicAdd(sums + 2 * slots[entry], g);
            atomicAdd(sums + 2 * slots[entry] + 1, h);
        }
    }
    __syncthreads();
    u64* own = out + 2 * (i64)tile.segment * n_slots;
    for (i32 i = threadIdx.x; i < 2 * n_slots; i += THREADS)
        if (sums[i]) atomicAdd(own + i, (u64)(i64)(i32)sums[i]);
}

// The same without shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) add_global(
    const i64* indptr, const i32* slots, i32 n_slots, const i64* bounds, const i32* nodes, const i32* starts, i32 n,
    i32 tile_rows, const u32* order, const Pair* pairs, u64* out) {
    const Tile tile = find_tile(blockIdx.x, bounds, nodes, starts, n, tile_rows);
    if (tile.segment < 0) return;
    u64* own = out + 2 * (i64)tile.segment * n_slots;
    for (i64 i = tile.begin + threadIdx.x / LANES; i < tile.end; i += THREADS / LANES) {
        const Pair pair = pairs[i];
        const u32 row = order[i];
        const i64 end = indptr[row + 1ll];
        for (i64 entry = indptr[row] + threadIdx.x % LANES; entry < end; entry += LANES) {
            atomicAdd(own + 2 * (i64)slots[entry], (u64)(i64)g_of(pair));
            atomicAdd(own + 2 * (i64)slots[entry] + 1, (u64)h_of(pair));
        }
    }
}
