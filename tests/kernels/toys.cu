// Kernels that use, or break, one rule of CUDA each, for `test_emulation.py` and `test_sanitizers.py`.
//
// variants: EMULATION_BY_UCONTEXT=0,1
// budget: indices registers=32 shared=0
// budget: reverse registers=32 shared=4*64
// budget: reverse_without_barrier registers=32 shared=4*64
// budget: divergent_barrier registers=32 shared=0
// budget: two_barriers registers=32 shared=0
// budget: half_a_warp registers=32 shared=0
// budget: early_exit registers=32 shared=0
// budget: votes registers=32 shared=0
// budget: shuffles registers=40 shared=0
// budget: atomics registers=40 shared=40
// budget: unset_shared registers=32 shared=4
// budget: sum_dynamic registers=40 shared=0
// budget: read_beyond registers=32 shared=0
// budget: write_beyond_shared registers=32 shared=4*8
// budget: write_beyond_dynamic registers=32 shared=0
// budget: overflow registers=32 shared=0
// budget: misaligned registers=32 shared=0
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(96) indices(i32* out) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 1000 * gridDim.x + 10 * blockIdx.x + (threadIdx.y == 0 && threadIdx.z == 0);
}

extern "C" __global__ void __launch_bounds__(64) reverse(i32* values) {
    __shared__ i32 room[64];
    for (i32 round = 0; round < 3; ++round) {
        room[threadIdx.x] = values[threadIdx.x];
        __syncthreads();
        values[threadIdx.x] = room[63 - threadIdx.x] + 1;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(64) reverse_without_barrier(i32* values) {
    __shared__ i32 room[64];
    room[threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = room[63 - threadIdx.x] + 1;
}

extern "C" __global__ void divergent_barrier(i32* out) {
    if (threadIdx.x < 5) __syncthreads();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void two_barriers(i32* out) {
    if (threadIdx.x < 5) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void half_a_warp(i32* out) {
    if (threadIdx.x % WARP < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000FFFFu, (i32)threadIdx.x, 1);
    else if (threadIdx.x % WARP == 20) out[threadIdx.x] = __any_sync(ALL_LANES, 1);
}

extern "C" __global__ void early_exit(i32* out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = __ballot_sync(ALL_LANES, 1);
}

// out[6 * i ...] : votes of thread i's warp and block about whether its value is odd, lanes with the same value.
extern "C" __global__ void votes(const i32* values, i32* out) {
    const i32 value = values[threadIdx.x], is_odd = value % 2;
    i32* const row = out + 7 * threadIdx.x;
    row[0] = (i32)__ballot_sync(ALL_LANES, is_odd);
    row[1] = __any_sync(ALL_LANES, is_odd);
    row[2] = __all_sync(ALL_LANES, is_odd);
    row[3] = (i32)__match_any_sync(ALL_LANES, value);
    row[4] = __syncthreads_count(is_odd);
    row[5] = __syncthreads_or(is_odd);
    row[6] = __syncthreads_and(is_odd);
}

extern "C" __global__ void shuffles(const double* values, double* out) {
    const double value = values[threadIdx.x];
    double* const row = out + 5 * threadIdx.x;
    row[0] = __shfl_sync(ALL_LANES, value, 3);
    row[1] = __shfl_up_sync(ALL_LANES, value, 2);
    row[2] = __shfl_down_sync(ALL_LANES, value, 5);
    row[3] = __shfl_xor_sync(ALL_LANES, value, 9);
    row[4] = __shfl_down_sync(ALL_LANES, value, 3, 8);
}

// Each thread brings its value to the block's totals, which thread 0 brings to those of all blocks.
extern "C" __global__ void atomics(const u32* values, u64* sum, i32* least, u32* most, u32* bits, u32* swaps,
                                   float* real) {
    __shared__ u64 block_sum;
    __shared__ i32 block_least;
    if (threadIdx.x == 0) block_sum = 0, block_least = 0x7FFFFFFF;
    __syncthreads();
    const u32 value = values[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(&block_sum, (u64)value << 20);
    atomicMin(&block_least, (i32)value);
    atomicMax(most, value);
    atomicOr(bits, 1u << value % 32);
    atomicAdd(real, 0.5f);
    u32 seen = *swaps;  // adds by compare and swap
    for (u32 expected = ~seen; expected != seen;) {
        expected = seen;
        seen = atomicCAS(swaps, expected, expected + value);
    }
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(sum, block_sum), atomicMin(least, block_least);
}

extern "C" __global__ void unset_shared(u32* out) {
    __shared__ u32 word;
    out[blockIdx.x] = word;
    word = 0;
}

extern "C" __global__ void sum_dynamic(const i64* values, i64* out) {
    DYNAMIC_SHARED(i64, room);
    room[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    if (threadIdx.x > 0) return;
    i64 sum = 0;
    for (u32 i = 0; i < blockDim.x; ++i) sum += room[i];
    *out = sum;
}

extern "C" __global__ void read_beyond(const i32* values, i32 n, i32* out) {
    out[0] = values[n];  // read_beyond
}

extern "C" __global__ void write_beyond_shared(i32 n, i32* out) {
    __shared__ i32 room[8];
    i32* const place = room + n;
    *place = 3;  // write_beyond_shared
    out[0] = room[0];
}

extern "C" __global__ void write_beyond_dynamic(i32 n, i32* out) {
    DYNAMIC_SHARED(i32, room);
    room[n] = 3;  // write_beyond_dynamic
    out[0] = room[0];
}

extern "C" __global__ void overflow(i32* sum) {
    sum[0] += 0x7FFFFFFF;  // overflow
}

extern "C" __global__ void misaligned(u8* bytes) {
    *reinterpret_cast<u32*>(bytes + 1) = 5;  // misaligned
}
