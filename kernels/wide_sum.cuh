// Sums of float64 that no order can change, as `daskboost/exact_sum.py` has them.
//
// A thread's sum is an integer of 192 bits in units of 2**-100, two's complement. Values of 2**-48 up to 2**59 are whole
// multiples of the unit, and 2**32 of them fit; losses that are neither are rare and go to limbs in device memory, one pair
// per exponent, as `daskboost/devices/cpu/arithmetic.py` keeps all. What is known to be multiples of another unit may have
// that one.
#pragma once

#include "types.cuh"

constexpr i32 UNIT = -100;             // the usual unit's exponent
constexpr i32 HALVES = -1;             // of halves of integers up to 2**125
constexpr i32 MOST_SHIFT = 106;        // 192 bits less sign, 2**32 values and a mantissa
constexpr i32 MANTISSA_UNIT = -1075;   // exponent of a mantissa's last bit, less the biased exponent
constexpr i32 LOW_BITS = 26;

struct WideSum {
    u64 words[3];

    __device__ __forceinline__ void add(u64 low, u64 middle, u64 high) {
        words[0] += low;
        const u64 carry = words[0] < low;
        const u64 sum = words[1] + middle;
        const u64 second = (sum < middle) + (sum + carry < carry);
        words[1] = sum + carry;
        words[2] += high + second;
    }
    __device__ __forceinline__ void add(const WideSum& other) { add(other.words[0], other.words[1], other.words[2]); }
};

// Where what does not fit goes: `limbs` of shape (2048, 2), and `specials` of exact_sum.py, with 8 where limbs were added to.
struct Outside {
    u64* limbs;
    u32* specials;
};

template <i32 EXPONENT>
static __device__ __forceinline__ void add_exactly(WideSum& sum, double value, const Outside& outside) {
    const u64 bits = static_cast<u64>(__double_as_longlong(value));
    const i32 exponent = static_cast<i32>(bits >> 52 & 0x7FF);
    const u64 fraction = bits & 0x000FFFFFFFFFFFFFull;
    if (exponent == 0x7FF) {
        atomicOr(outside.specials, fraction ? 4u : bits >> 63 ? 2u : 1u);
        return;
    }
    u64 mantissa = exponent ? fraction | 1ull << 52 : fraction;
    if (mantissa == 0) return;
    const u64 sign = 0 - (bits >> 63);  // all ones if negative: (x ^ sign) - sign negates
    i32 shift = (exponent ? exponent : 1) + MANTISSA_UNIT - EXPONENT;
    if (EXPONENT == HALVES && shift < 0) {  // the bits below the unit are zeros
        mantissa >>= -shift;
        shift = 0;
    }
    if (shift < 0 || shift > MOST_SHIFT) {
        atomicOr(outside.specials, 8u);
        atomicAdd(outside.limbs + 2 * exponent, ((mantissa >> LOW_BITS) ^ sign) - sign);
        atomicAdd(outside.limbs + 2 * exponent + 1, ((mantissa & ((1ull << LOW_BITS) - 1)) ^ sign) - sign);
        return;
    }
    const i32 within = shift % 64;
    const u64 lower = mantissa << within, upper = within ? mantissa >> (64 - within) : 0;
    WideSum shifted = {{shift < 64 ? lower : 0, shift < 64 ? upper : lower, shift < 64 ? 0 : upper}};
    if (sign) {
        shifted.words[0] = ~shifted.words[0];
        shifted.words[1] = ~shifted.words[1];
        shifted.words[2] = ~shifted.words[2];
        shifted.add(1, 0, 0);
    }
    sum.add(shifted);
}

// The sum over the block's threads, known to thread 0; `storage` holds one sum per warp.
template <u32 N_THREADS>
__device__ __forceinline__ WideSum wide_sum_of_block(WideSum sum, WideSum* storage) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const u64 low = __shfl_xor_sync(ALL_LANES, sum.words[0], step);
        const u64 middle = __shfl_xor_sync(ALL_LANES, sum.words[1], step);
        sum.add(low, middle, __shfl_xor_sync(ALL_LANES, sum.words[2], step));
    }
    if (threadIdx.x % WARP == 0) storage[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 warp = 1; warp < N_THREADS / WARP; ++warp) sum.add(storage[warp]);
    __syncthreads();  // `storage` may be used again
    return sum;
}
