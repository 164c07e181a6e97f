// What rounds leave waits on the device until the host fetches that of several rounds together.
//
// A round has its place in a ring, by its number, which is in device memory: launches that are always the same serve all
// rounds. Copies are of single bytes, since tables of trees have any size and begin anywhere; there are few of them.
//
// variants: THREADS=256
// usual: THREADS=256
// budget: keep_bytes registers=32 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `round` : number of the round that left `bytes`, below 0 for none. `ring` : of `n_places` rounds, `round_bytes` each.
// `ended` : becomes that number, unless it is null. Any grid.
extern "C" __global__ void __launch_bounds__(THREADS) keep_bytes(
    const u8* __restrict__ bytes, i64 n, const i32* __restrict__ round, i32 n_places, i64 round_bytes,
    u8* __restrict__ ring, i32* __restrict__ ended) {
    const i32 own = *round;
    if (own < 0) return;
    u8* const place = ring + (own % n_places) * round_bytes;
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, step = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = first; i < n; i += step) place[i] = bytes[i];
    if (ended != nullptr && first == 0) *ended = own;
}
