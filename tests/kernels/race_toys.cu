// Kernels with a race each, and without it where ORDERED, for `test_races.py`: 64 threads, that is two warps.
//
// variants: ORDERED=0,1
// budget: raw registers=32 shared=4*64
// budget: war registers=32 shared=4*64
// budget: waw registers=32 shared=4
// budget: loop registers=32 shared=4*64
// budget: warp_raw registers=32 shared=4*64
// budget: warp_war registers=32 shared=4*64
// budget: warp_waw registers=32 shared=4*2
// budget: half_warps registers=32 shared=4*64
// budget: counted registers=32 shared=4
// budget: bytes registers=32 shared=64
// budget: pairs registers=32 shared=8*64
// budget: dynamic registers=32 shared=0
// budget: in_place registers=32 shared=0
// budget: blocks registers=32 shared=0
// budget: tickets registers=32 shared=0
// budget: old_values registers=32 shared=0
// budget: equal_values registers=32 shared=4
#include "types.cuh"

#define THREADS 64
#define MEET if (ORDERED) __syncthreads()
#define MEET_IN_WARP if (ORDERED) __syncwarp()

extern "C" __global__ void __launch_bounds__(THREADS) raw(i32* out) {
    __shared__ i32 room[THREADS];
    room[threadIdx.x] = threadIdx.x;  // first
    MEET;
    out[threadIdx.x] = room[63 - threadIdx.x];  // second
}

extern "C" __global__ void __launch_bounds__(THREADS) war(i32* out) {
    __shared__ i32 room[THREADS];
    room[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = room[63 - threadIdx.x];  // first
    MEET;
    room[threadIdx.x] = 5;  // second
}

extern "C" __global__ void __launch_bounds__(THREADS) waw(i32* out) {
    __shared__ i32 word;
    if (threadIdx.x == 3) word = 1;  // first
    MEET;
    if (threadIdx.x == 40) word = 2;  // second
    __syncthreads();
    out[threadIdx.x] = word;
}

// The barrier of the round is there; that before the next round is not.
extern "C" __global__ void __launch_bounds__(THREADS) loop(i32* out) {
    __shared__ i32 room[THREADS];
    for (i32 round = 0; round < 3; ++round) {
        room[threadIdx.x] = round;  // second
        __syncthreads();
        out[threadIdx.x] += room[63 - threadIdx.x];  // first
        MEET;
    }
}

// A shuffle is no barrier.
extern "C" __global__ void __launch_bounds__(THREADS) warp_raw(i32* out) {
    __shared__ i32 room[THREADS];
    room[threadIdx.x] = threadIdx.x;  // first
    out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, static_cast<i32>(threadIdx.x), 1);
    MEET_IN_WARP;
    out[threadIdx.x] = room[threadIdx.x ^ 1];  // second
}

// Nor is a vote.
extern "C" __global__ void __launch_bounds__(THREADS) warp_war(i32* out) {
    __shared__ i32 room[THREADS];
    room[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = room[threadIdx.x ^ 1];  // first
    out[threadIdx.x] += __any_sync(ALL_LANES, threadIdx.x == 7);
    MEET_IN_WARP;
    room[threadIdx.x] = 5;  // second
}

// Lanes write their warp's word in turn, one a round.
extern "C" __global__ void __launch_bounds__(THREADS) warp_waw(i32* out) {
    __shared__ i32 words[2];
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (i32 round = 0; round < 4; ++round) {
        const i32 top = __shfl_sync(ALL_LANES, round, round);
        MEET_IN_WARP;
        if (lane == top) words[warp] = round;  // first, second
    }
    __syncthreads();
    out[threadIdx.x] = words[warp];
}

// Lanes of half a warp meet: that orders nothing for the other half.
extern "C" __global__ void __launch_bounds__(THREADS) half_warps(i32* out) {
    __shared__ i32 room[THREADS];
    room[threadIdx.x] = threadIdx.x;  // first
    __syncwarp(threadIdx.x % WARP < 16 ? 0x0000FFFFu : 0xFFFF0000u);
    out[threadIdx.x] = room[threadIdx.x ^ (ORDERED ? 8 : 16)];  // second
}

extern "C" __global__ void __launch_bounds__(THREADS) counted(i32* out) {
    __shared__ i32 count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);  // first
    MEET;
    out[threadIdx.x] = count;  // second
}

// A thread's byte is its own, though words are read.
extern "C" __global__ void __launch_bounds__(THREADS) bytes(i32* out) {
    __shared__ i32 room[THREADS / 4];
    reinterpret_cast<u8*>(room)[threadIdx.x] = static_cast<u8>(threadIdx.x);  // first
    MEET;
    out[threadIdx.x] = room[threadIdx.x % 16];  // second
}

struct Both { i32 x, y; };

extern "C" __global__ void __launch_bounds__(THREADS) pairs(i32* out) {
    __shared__ Both room[THREADS];
    room[threadIdx.x] = {static_cast<i32>(threadIdx.x), 3};  // first
    MEET;
    out[threadIdx.x] = room[63 - threadIdx.x].y;  // second
}

extern "C" __global__ void __launch_bounds__(THREADS) dynamic(i32* out) {
    DYNAMIC_SHARED(i32, room);
    room[threadIdx.x] = threadIdx.x;  // first
    MEET;
    out[threadIdx.x] = room[63 - threadIdx.x];  // second
}

// Arrays that are written to, as shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) in_place(i32* out) {
    const i32 other = out[THREADS * blockIdx.x + 63 - threadIdx.x];  // first
    MEET;
    out[THREADS * blockIdx.x + threadIdx.x] = other;  // second
}

// No barrier orders what blocks do.
extern "C" __global__ void __launch_bounds__(THREADS) blocks(i32* out) {
    __syncthreads();
    if (threadIdx.x == 0) out[ORDERED ? blockIdx.x : 0] = blockIdx.x;  // first, second
}

// Atomics of all blocks need no order.
extern "C" __global__ void __launch_bounds__(THREADS) tickets(i32* out) {
    const i32 ticket = atomicAdd(out, 1);  // first
    if (ORDERED) out[1 + ticket] = 1;
    else out[0] = ticket;  // second
}

// Whoever comes last, all have written the same.
extern "C" __global__ void __launch_bounds__(THREADS) equal_values(i32* out) {
    __shared__ i32 word;
    word = ORDERED ? 5 : threadIdx.x / 63;  // first, second
    __syncthreads();
    out[threadIdx.x] = word;
}

// An atomic is left out where an array has its bit: to read too early costs time only. Never a race.
extern "C" __global__ void __launch_bounds__(THREADS) old_values(i32* out) {
    if (!(out[0] & 1)) atomicOr(out, 1);
}
